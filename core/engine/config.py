"""The typed configuration. What a user may set; nothing here is decided or looked up.

`None` or "auto" means "not said": resolution fills it in, with a reason, and returns a new
object. The objects are frozen, so no component can change a setting behind another's back.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from engine.cache_key import OutOfKey
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

# Why a setting isn't in the key of compiled artifacts. What is not marked is in it.
_FINGERPRINT = OutOfKey("the fingerprint of the chosen plugin is in the key")
_EFFECT = OutOfKey("names defaults; the settings that come of them are in the key")
_RECORDED = OutOfKey("graphs are recorded of compiled code, they don't shape it")
_TRACED = OutOfKey("what it changes in the model's code is seen in the traced graph")
_TOKENS = OutOfKey("each artifact's range of tokens is in its key")
_WEIGHTS = OutOfKey("weights are inputs of compiled code; their shapes are in the graph")
_CACHE = OutOfKey("says where the same block lies and how many there are, outside the graph")
_REQUESTS = OutOfKey("it is about requests; compiled code sees tokens only")
_WATCH = OutOfKey("it only watches, and changes no code")
_STORE = OutOfKey("where an artifact is kept doesn't change it")


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

    mode: Annotated[CompilationMode | None, _FINGERPRINT] = None
    """Compile mode: how the model's Python becomes a callable."""
    cudagraph_mode: Annotated[CUDAGraphMode | None, _RECORDED] = None
    """Graph mode: which batches are replayed from recorded graphs."""
    backend: Annotated[BackendName | None, _FINGERPRINT] = None
    """Backend: what turns an FX graph into a callable."""
    mode_options: Annotated[dict[str, Any], _FINGERPRINT] = Field(default_factory=dict)
    """Options of the compile mode, key=value; `engine plugins show MODE` lists them."""
    cudagraph_options: Annotated[dict[str, Any], _RECORDED] = Field(default_factory=dict)
    """Options of the graph mode, key=value."""
    backend_options: Annotated[dict[str, Any], _FINGERPRINT] = Field(default_factory=dict)
    """Options of the backend, key=value."""
    splitting_ops: Annotated[tuple[str, ...] | None, _TRACED] = None
    """Operators that a piecewise graph must not contain; the registered break ops by default."""
    passes: Annotated[tuple[str, ...], _FINGERPRINT] = ()
    """FX passes to switch: `+name` turns one on, `-name` off."""
    compile_sizes: Annotated[tuple[int, ...] | None, _TOKENS] = None
    """Token counts to compile for exactly, besides the ranges."""
    compile_ranges: Annotated[tuple[int, ...] | None, _TOKENS] = None
    """Upper ends of the token ranges that are compiled separately."""
    cudagraph_capture_sizes: Annotated[tuple[int, ...] | None, _RECORDED] = None
    """Token counts to record graphs for; a rule proposes them by default."""
    max_cudagraph_capture_size: Annotated[int | None, _RECORDED] = Field(default=None, ge=1)
    """The largest token count to record a graph for."""
    capture_size_policy: Annotated[str, _RECORDED] = "default"
    """The plugin that proposes capture sizes when none are named."""
    capture: Annotated[Literal["eager", "lazy"], _RECORDED] = "eager"
    """Record graphs before serving, or when a shape is first met."""
    on_capture_failure: Annotated[Literal["drop", "abort"], _RECORDED] = "drop"
    """What a failed capture does: give that size up, or end the start-up."""
    debug_graphs: Annotated[bool, _RECORDED] = False
    """Poison static buffers before each step and check their addresses (slow)."""
    cache_dir: Annotated[Path | None, _STORE] = None
    """Where compiled artifacts are kept; ~/.cache/engine by default."""
    require_cache: Annotated[bool, _STORE] = False
    """Start from kept artifacts alone: end the start-up where something would be compiled."""


class EngineConfig(_Frozen):
    """Everything that shapes one engine."""

    model: Annotated[str | None, _TRACED] = None
    """Model folder or GGUF file; the demo model when omitted."""
    tokenizer: Annotated[str | None, _REQUESTS] = None
    """Tokenizer folder; the model's own by default."""
    skip_tokenizer: Annotated[bool, _REQUESTS] = False
    """Serve token ids only; for models that have no tokenizer."""
    device: str = "auto"
    """Device type: auto, cpu, cuda."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Dtype of weights and activations."""
    load_format: Annotated[str, _WEIGHTS] = "auto"
    """Weight loader; `dummy` makes random weights for benchmarks."""
    model_impl: str = "auto"
    """Model implementation."""
    attention: str = "auto"
    """Attention implementation."""
    graph_device: Annotated[str, _RECORDED] = "auto"
    """What records graphs; `simulated` tests graph modes without a GPU."""
    max_model_len: Annotated[Annotated[HumanInt, Field(ge=1)] | None, _TRACED] = None
    """Longest context in tokens; the model's own by default."""
    max_num_seqs: Annotated[HumanInt, Field(ge=1), _TOKENS] = 256
    """Requests that run at the same time."""
    max_num_batched_tokens: Annotated[Annotated[HumanInt, Field(ge=1)] | None, _TOKENS] = None
    """Token budget of one step; longer prompts are computed in chunks."""
    max_queue: Annotated[HumanInt, Field(ge=1), _REQUESTS] = 4096
    """Requests that may wait; more are refused with 503."""
    block_size: Annotated[int, Field(ge=1)] = 16
    """Tokens in one KV-cache block."""
    kv_cache_memory: Annotated[Annotated[HumanInt, Field(ge=1)] | None, _CACHE] = None
    """Bytes for the KV cache (1GiB, 512MiB); measured by default."""
    num_kv_blocks: Annotated[Annotated[HumanInt, Field(ge=2)] | None, _CACHE] = None
    """KV-cache blocks, instead of kv_cache_memory."""
    memory_utilization: Annotated[float, Field(gt=0, le=1), _CACHE] = 0.9
    """Share of the device memory that the engine may use."""
    async_scheduling: Annotated[bool | None, _REQUESTS] = None
    """Launch a step before the tokens of the one before are read; on GPUs by default."""
    enable_prefix_caching: Annotated[bool, _REQUESTS] = True
    """Reuse the KV blocks of equal prompt prefixes."""
    seed: Annotated[int, _WEIGHTS] = 0
    """Seed of dummy weights and of requests that bring no seed of their own."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads that operators use; every core by default."""
    optimization_level: Annotated[int, Field(ge=0, le=3), _EFFECT] = 2
    """Set of defaults, 0 to 3; settings given explicitly win over it."""
    preset: Annotated[str, _EFFECT] = "default"
    """The plugin that says what each optimisation level means."""
    pooling: Annotated[Literal["auto", "mean", "last", "none"], _REQUESTS] = "auto"
    """How embeddings are made of hidden states; as the model's folder says by default."""
    grammar: Annotated[str, _REQUESTS] = "auto"
    """Grammar library for structured outputs; the first usable one by default."""
    observers: Annotated[tuple[str, ...], _WATCH] = ()
    """Installed event observers to attach to the engine."""
    on_downgrade: Annotated[Literal["error", "warn"], _EFFECT] = "error"
    """What happens when an explicit request can't be honoured."""
    debug_dump: Annotated[Path | None, _WATCH] = None
    """Where to write what each start makes: graphs, passes, pieces, generated code, plans."""
    hf_overrides: dict[str, Any] = Field(default_factory=dict)
    """Values that replace those of the model's config.json."""
    compilation_config: CompilationConfig = Field(default_factory=CompilationConfig)
    """How the model is compiled and captured."""
