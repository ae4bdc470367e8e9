"""The typed configuration. What a user may set; nothing here is decided or looked up.

`None` or "auto" means "not said": resolution fills it in, with a reason, and returns a new
object. The objects are frozen, so no component can change a setting behind another's back.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from engine.errors import ConfigError
from engine.names import BackendName, CompilationMode, CUDAGraphMode

_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def human_int(value: Any) -> Any:
    """Read `32k`, `1.5GiB` or `4_096` as a number; leave anything else to the validator."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([kmg]i?)?b?", value.strip(), re.I)
    if match is None:
        return value
    number, suffix = match[1].replace("_", ""), (match[2] or "").lower()
    scaled = float(number) * _SUFFIX[suffix]
    return int(scaled) if scaled == int(scaled) else value


HumanInt = Annotated[int, BeforeValidator(human_int)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(validation_message(type(self).__name__, error)) from None

    # Tells pydantic that this initializer only words errors, so that a nested model is checked
    # as a part of the outer one and its errors carry the whole path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # functions take attributes


def validation_message(what: str, error: ValidationError) -> str:
    """Turn a validation error into one sentence per problem: field, value, what is expected."""
    lines = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"]) or what
        if problem["type"] == "extra_forbidden":
            lines.append(f"{where}: no such setting; see `engine serve --help`")
        else:
            lines.append(f"{where}={problem['input']!r}: {problem['msg']}")
    return "; ".join(lines)


class CompilationConfig(_Frozen):
    """How the model is compiled and captured: three independent choices and what they read."""

    mode: CompilationMode | None = None
    """Compile mode: how the model's Python becomes a callable."""
    cudagraph_mode: CUDAGraphMode | None = None
    """Graph mode: which batches are replayed from recorded graphs."""
    backend: BackendName | None = None
    """Backend: what turns an FX graph into a callable."""
    mode_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the compile mode, key=value; `engine plugins show MODE` lists them."""
    cudagraph_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the graph mode, key=value."""
    backend_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the backend, key=value."""
    splitting_ops: tuple[str, ...] | None = None
    """Operators that a piecewise graph must not contain; the registered break ops by default."""
    passes: tuple[str, ...] = ()
    """FX passes to switch: `+name` turns one on, `-name` off."""
    compile_sizes: tuple[int, ...] | None = None
    """Token counts to compile for exactly, besides the ranges."""
    compile_ranges: tuple[int, ...] | None = None
    """Upper ends of the token ranges that are compiled separately."""
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    """Token counts to record graphs for; a rule proposes them by default."""
    max_cudagraph_capture_size: int | None = Field(default=None, ge=1)
    """The largest token count to record a graph for."""
    capture_size_policy: str = "default"
    """The plugin that proposes capture sizes when none are named."""
    capture: Literal["eager", "lazy"] = "eager"
    """Record graphs before serving, or when a shape is first met."""
    on_capture_failure: Literal["drop", "abort"] = "drop"
    """What a failed capture does: give that size up, or end the start-up."""
    debug_graphs: bool = False
    """Poison static buffers before each step and check their addresses (slow)."""
    cache_dir: Path | None = None
    """Where compiled artifacts are kept; ~/.cache/engine by default."""


class EngineConfig(_Frozen):
    """Everything that shapes one engine."""

    model: str | None = None
    """Model folder or GGUF file; the demo model when omitted."""
    tokenizer: str | None = None
    """Tokenizer folder; the model's own by default."""
    skip_tokenizer: bool = False
    """Serve token ids only; for models that have no tokenizer."""
    device: str = "auto"
    """Device type: auto, cpu, cuda."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Dtype of weights and activations."""
    load_format: str = "auto"
    """Weight loader; `dummy` makes random weights for benchmarks."""
    model_impl: str = "auto"
    """Model implementation."""
    attention: str = "auto"
    """Attention implementation."""
    graph_device: str = "auto"
    """What records graphs; `simulated` tests graph modes without a GPU."""
    max_model_len: Annotated[HumanInt, Field(ge=1)] | None = None
    """Longest context in tokens; the model's own by default."""
    max_num_seqs: Annotated[HumanInt, Field(ge=1)] = 256
    """Requests that run at the same time."""
    max_num_batched_tokens: Annotated[HumanInt, Field(ge=1)] | None = None
    """Token budget of one step; longer prompts are computed in chunks."""
    max_queue: Annotated[HumanInt, Field(ge=1)] = 4096
    """Requests that may wait; more are refused with 503."""
    block_size: Annotated[int, Field(ge=1)] = 16
    """Tokens in one KV-cache block."""
    kv_cache_memory: Annotated[HumanInt, Field(ge=1)] | None = None
    """Bytes for the KV cache (1GiB, 512MiB); measured by default."""
    num_kv_blocks: Annotated[HumanInt, Field(ge=2)] | None = None
    """KV-cache blocks, instead of kv_cache_memory."""
    memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the device memory that the engine may use."""
    enable_prefix_caching: bool = True
    """Reuse the KV blocks of equal prompt prefixes."""
    seed: int = 0
    """Seed of dummy weights and of requests that bring no seed of their own."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads that operators use; every core by default."""
    optimization_level: Annotated[int, Field(ge=0, le=3)] = 2
    """Set of defaults, 0 to 3; settings given explicitly win over it."""
    preset: str = "default"
    """The plugin that says what each optimisation level means."""
    observers: tuple[str, ...] = ()
    """Installed event observers to attach to the engine."""
    on_downgrade: Literal["error", "warn"] = "error"
    """What happens when an explicit request can't be honoured."""
    hf_overrides: dict[str, Any] = Field(default_factory=dict)
    """Values that replace those of the model's config.json."""
    compilation_config: CompilationConfig = Field(default_factory=CompilationConfig)
    """How the model is compiled and captured."""
