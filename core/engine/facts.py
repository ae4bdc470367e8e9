"""What is known before anything is loaded: the device, the model, the other choices.

Plain data. Resolution and every plugin's `refuse` are functions of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class GraphSupport(IntEnum):
    """For which batches an attention implementation may be inside a recorded graph."""

    NEVER = 0
    UNIFORM_DECODE = 1
    """Only when every request contributes the same small number of tokens."""
    ALWAYS = 2
    """For any batch: its launch geometry depends on the padded shape only."""


@dataclass(frozen=True)
class DeviceFacts:
    """The device that will run the model."""

    type: str
    name: str = ""
    total_memory: int = 0
    """Bytes."""
    graph_device: str | None = None
    """What records graphs here (`cuda`, `simulated`), or None when nothing can."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability."""
    num_threads: int = 1
    """Threads that CPU operators use."""


@dataclass(frozen=True)
class ModelFacts:
    """What the model's configuration says; no weight has been read."""

    architecture: str
    dtype: str
    """The dtype of the checkpoint: `float32`, `bfloat16` or `float16`."""
    max_model_len: int
    """The longest context, in tokens, that the model was made for."""
    num_layers: int = 0
    hidden_size: int = 0
    vocab_size: int = 0
    head_size: int = 0


@dataclass(frozen=True)
class Facts:
    """The device, the model and the choices made so far."""

    device: DeviceFacts
    model: ModelFacts
    dtype: str = "float32"
    graph_support: GraphSupport = GraphSupport.NEVER
    """What the chosen attention implementation declares."""
    capturable: bool = True
    """Whether the chosen compile mode's callables may be recorded."""
    chosen: dict[str, str] = field(default_factory=dict)
    """Plugin names already decided, by kind."""
