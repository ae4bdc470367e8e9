"""Resolution as a table: what was asked, what the machine is, what is in force and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict

from engine.batch import BatchShape
from engine.config import CompilationConfig, EngineConfig
from engine.errors import BrokenPluginError, ResolutionError, UnknownPluginError
from engine.facts import DeviceFacts, GraphSupport, ModelFacts
from engine.plugin import Plugin
from engine.presets import Level, Preset
from engine.resolution import Resolution, resolve
from engine.settings import Settings, as_settings
from engine.strategies import CaptureSizePolicy, GraphStrategy

CPU = DeviceFacts("cpu", total_memory=2**34, num_threads=2)
GPU = DeviceFacts("cuda", name="Some GPU", total_memory=2**36, graph_device="cuda")
MODEL = ModelFacts("TinyForCausalLM", "bfloat16", 2048, num_layers=2, hidden_size=64)


class Plain(Plugin):
    NAME = "plain"
    SUMMARY = "compiles nothing"
    USES_BACKEND: ClassVar[bool] = False


class Whole(Plugin):
    NAME = "whole"
    SUMMARY = "compiles everything"
    SETTINGS = frozenset({"compile_sizes"})


class Opaque(Plugin):
    NAME = "opaque"
    SUMMARY = "makes what can't be recorded"
    CAPTURABLE: ClassVar[bool] = False


class Host(Plugin):
    NAME = "host"
    SUMMARY = "attention for any device"
    GRAPH_SUPPORT = GraphSupport.NEVER


class Quick(Plugin):
    NAME = "quick"
    SUMMARY = "attention for GPUs"
    DEVICES = frozenset({"cuda"})
    GRAPH_SUPPORT = GraphSupport.ALWAYS


class OptimizerOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    depth: int = 1


class Optimizer(Plugin):
    NAME = "optimizer"
    SUMMARY = "a backend"
    OPTIONS = OptimizerOptions


class _Graphs(GraphStrategy):
    def plan(self, job: Any) -> tuple[BatchShape, ...]:
        return ()

    def prepare(self, job: Any) -> None: ...

    def dispatch(self, shape: BatchShape) -> Any: ...

    def run(self, decision: Any, inputs: Any) -> Any: ...


class Launch(_Graphs):
    NAME = "launch"
    SUMMARY = "records nothing"
    NEEDS_GRAPHS = False


class Replay(_Graphs):
    NAME = "replay"
    SUMMARY = "records segments"
    SETTINGS = frozenset({"cudagraph_capture_sizes"})


class Monolith(_Graphs):
    NAME = "monolith"
    SUMMARY = "records whole steps"
    MIN_SUPPORT = GraphSupport.UNIFORM_DECODE


class Powers(CaptureSizePolicy):
    NAME = "default"
    SUMMARY = "powers of two"

    def sizes(self, limits: Mapping[str, int]) -> Sequence[int]:
        return [2**n for n in range(20) if 2**n <= limits["max_size"]]


class Levels(Preset):
    NAME = "levels"
    SUMMARY = "two levels"
    LEVELS: ClassVar = {
        0: Level("slow", ("plain",), ("launch",), ("optimizer",), ("quick", "host")),
        2: Level(
            "fast",
            ("missing", "whole", "plain"),
            ("monolith", "replay", "launch"),
            ("optimizer",),
            ("quick", "host"),
        ),
    }


class Catalog:
    """The installed plugins of a test; `broken` names raise as a failing import would."""

    def __init__(self, broken: tuple[str, ...] = ()) -> None:
        self._broken = broken
        self._kinds: dict[str, dict[str, type[Plugin]]] = {
            "presets": {"default": Levels},
            "capture_sizes": {"default": Powers},
            "compile_modes": {p.NAME: p for p in (Plain, Whole, Opaque)},
            "cudagraph_modes": {p.NAME: p for p in (Launch, Replay, Monolith)},
            "backends": {"optimizer": Optimizer},
            "attention": {p.NAME: p for p in (Host, Quick)},
        }

    def names(self, kind: str) -> list[str]:
        return sorted(self._kinds[kind])

    def load(self, kind: str, name: str) -> type[Plugin]:
        if name in self._broken:
            raise BrokenPluginError(f"cannot load {name!r}: ImportError: no such thing")
        try:
            return self._kinds[kind][name]
        except KeyError:
            raise UnknownPluginError(f"unknown {kind} {name!r}.") from None


def run(device: DeviceFacts = CPU, *, broken: tuple[str, ...] = (), **fields: Any) -> Resolution:
    compilation = CompilationConfig(**fields.pop("compilation", {}))
    config = EngineConfig(compilation_config=compilation, **fields)
    return resolve(as_settings(config), device, MODEL, Catalog(broken))


def axes(resolution: Resolution) -> tuple[str, ...]:
    chosen = resolution.config.compilation_config
    return tuple(
        map(str, (chosen.mode, chosen.cudagraph_mode, chosen.backend, resolution.config.attention))
    )


@pytest.mark.parametrize(
    ("device", "asked", "level", "expected"),
    [
        (CPU, {}, 2, ("whole", "launch", "optimizer", "host")),
        (GPU, {}, 2, ("whole", "monolith", "optimizer", "quick")),
        (GPU, {}, 0, ("plain", "launch", "optimizer", "quick")),
        (GPU, {"mode": "plain"}, 2, ("plain", "monolith", "optimizer", "quick")),
        (GPU, {"cudagraph_mode": "replay"}, 0, ("plain", "replay", "optimizer", "quick")),
        (GPU, {"mode": "opaque"}, 2, ("opaque", "launch", "optimizer", "quick")),
    ],
)
def test_each_axis_takes_the_first_preference_that_fits_and_the_users_word_over_it(
    device: DeviceFacts, asked: dict[str, str], level: int, expected: tuple[str, ...]
) -> None:
    assert axes(run(device, optimization_level=level, compilation=asked)) == expected


def test_a_default_that_degrades_says_what_was_wanted_why_and_what_to_do() -> None:
    record = run(CPU)["compilation_config.cudagraph_mode"]
    assert (record.requested, record.effective, record.decided_by) == (
        "monolith",
        "launch",
        "level 2",
    )
    assert "device cpu can't record graphs" in record.reason
    assert record.remedy
    assert record.degraded


def test_a_default_that_is_not_installed_names_the_package_to_install() -> None:
    record = run(CPU)["compilation_config.mode"]
    assert record.requested == "missing"
    assert record.effective == "whole"
    assert record.reason == "missing is not installed"


def test_a_broken_default_is_passed_over_with_its_error() -> None:
    record = run(CPU, broken=("whole",))["compilation_config.mode"]
    assert record.effective == "plain"


def test_an_explicit_broken_plugin_is_an_error_and_never_replaced() -> None:
    with pytest.raises(BrokenPluginError, match="no such thing"):
        run(CPU, broken=("whole",), compilation={"mode": "whole"})


@pytest.mark.parametrize(
    ("device", "fields", "message"),
    [
        (CPU, {"compilation": {"cudagraph_mode": "replay"}}, "device cpu can't record graphs"),
        (CPU, {"attention": "quick"}, "quick runs on cuda, this device is cpu"),
        (
            GPU,
            {"attention": "host", "compilation": {"cudagraph_mode": "monolith"}},
            "attention host can't be inside a recorded graph",
        ),
        (
            GPU,
            {"compilation": {"mode": "opaque", "cudagraph_mode": "replay"}},
            "compile mode opaque makes callables that can't be recorded",
        ),
    ],
)
def test_an_explicit_request_that_cannot_be_honoured_is_an_error_with_a_remedy(
    device: DeviceFacts, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ResolutionError, match="--on-downgrade warn") as caught:
        run(device, **fields)
    assert message in str(caught.value)


def test_on_downgrade_warn_takes_the_next_best_and_says_so() -> None:
    resolution = run(CPU, on_downgrade="warn", compilation={"cudagraph_mode": "replay"})
    record = resolution["compilation_config.cudagraph_mode"]
    assert (record.requested, record.effective) == ("replay", "launch")
    assert record.degraded


def test_an_unknown_explicit_name_is_an_error_also_under_on_downgrade_warn() -> None:
    with pytest.raises(UnknownPluginError):
        run(CPU, on_downgrade="warn", compilation={"mode": "wrong"})


def test_a_backend_that_the_mode_never_calls_is_reported_as_not_called() -> None:
    record = run(GPU, compilation={"mode": "plain", "backend": "optimizer"})[
        "compilation_config.backend"
    ]
    assert record.effective == "optimizer (not called)"
    assert "plain makes no graph" in record.reason


def test_a_setting_that_nothing_in_force_reads_has_no_effect_and_says_so() -> None:
    settings = {"cudagraph_capture_sizes": (1, 2), "compile_sizes": (4,)}
    resolution = run(CPU, compilation=settings)
    sizes = resolution["compilation_config.cudagraph_capture_sizes"]
    assert sizes.effective == "no effect"
    assert "whole, optimizer, launch" in sizes.reason
    assert resolution["compilation_config.compile_sizes"].effective == "(4,)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depht": 3}, "backend_options.depht=3: no such option; optimizer has the options depth"),
        ({"depth": "deep"}, "backend_options.depth='deep'"),
    ],
)
def test_plugin_options_are_checked_against_the_plugins_own_schema(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ResolutionError) as caught:
        run(CPU, compilation={"backend_options": options})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("device", "asked", "expected", "decided_by"),
    [
        (CPU, "auto", "float32", "device"),
        (GPU, "auto", "bfloat16", "model"),
        (CPU, "bfloat16", "bfloat16", "request"),
    ],
)
def test_dtype(device: DeviceFacts, asked: str, expected: str, decided_by: str) -> None:
    resolution = run(device, dtype=asked)
    assert resolution.config.dtype == expected
    assert resolution["dtype"].decided_by == decided_by


def test_a_context_longer_than_the_models_is_refused_with_the_models_length() -> None:
    with pytest.raises(ResolutionError, match=r"max_model_len=4096 .*2048"):
        run(max_model_len=4096)


def test_a_level_that_the_preset_does_not_have_is_refused() -> None:
    with pytest.raises(ResolutionError, match="has the levels 0, 2"):
        run(optimization_level=1)


def test_nothing_is_left_open_after_resolution() -> None:
    config = run(GPU).config
    open_fields = [
        name
        for name in ("device", "dtype", "attention", "max_model_len", "max_num_batched_tokens")
        if getattr(config, name) in (None, "auto")
    ]
    assert open_fields == []
    chosen = config.compilation_config
    assert None not in (chosen.mode, chosen.backend, chosen.cudagraph_mode)


def test_every_explicit_setting_has_a_record_that_names_who_said_it() -> None:
    config = EngineConfig(max_num_seqs=7, seed=3)
    settings = Settings(config, {"max_num_seqs": "--max-num-seqs", "seed": "ENGINE_SEED"})
    resolution = resolve(settings, CPU, MODEL, Catalog())
    assert resolution["max_num_seqs"].decided_by == "--max-num-seqs"
    assert resolution["seed"].effective == "3"
    assert resolution["seed"].decided_by == "ENGINE_SEED"


def test_an_explicit_value_inside_a_mapping_has_a_record_of_its_own() -> None:
    record = run(hf_overrides={"rope_theta": 5.0})["hf_overrides.rope_theta"]
    assert (record.requested, record.effective, record.decided_by) == ("5.0", "5.0", "request")


def test_resolution_is_pure_and_repeats_itself() -> None:
    assert run(GPU) == run(GPU)


REPLAY = {"cudagraph_mode": "replay"}


def sizes_of(**compilation: Any) -> tuple[int, ...] | None:
    resolution = run(
        GPU, max_num_seqs=8, max_num_batched_tokens=64, compilation={**REPLAY, **compilation}
    )
    return resolution.config.compilation_config.cudagraph_capture_sizes


def test_capture_sizes_come_from_the_policy_clipped_to_the_budget() -> None:
    assert sizes_of() == (1, 2, 4, 8, 16, 32, 64)
    assert sizes_of(max_cudagraph_capture_size=20) == (1, 2, 4, 8, 16)


def test_a_users_capture_sizes_are_taken_as_they_are_but_for_order_and_duplicates() -> None:
    assert sizes_of(cudagraph_capture_sizes=(3, 7, 9)) == (3, 7, 9)
    resolution = run(GPU, compilation={**REPLAY, "cudagraph_capture_sizes": (4, 2, 2)})
    assert resolution.config.compilation_config.cudagraph_capture_sizes == (2, 4)
    record = resolution["compilation_config.cudagraph_capture_sizes"]
    assert "duplicates dropped" in record.reason


@pytest.mark.parametrize(
    ("compilation", "message"),
    [
        ({"cudagraph_capture_sizes": ()}, "at least one size"),
        ({"cudagraph_capture_sizes": (4, 2, 2, 9000)}, "9000 can never be used"),
        ({"cudagraph_capture_sizes": (0, 4)}, "0 is no number of tokens"),
        ({"max_cudagraph_capture_size": 100}, "no step is larger than max_num_batched_tokens=64"),
        (
            {"cudagraph_capture_sizes": (1, 2), "max_cudagraph_capture_size": 4},
            "ends at 2 but max_cudagraph_capture_size=4",
        ),
    ],
)
def test_capture_sizes_that_make_no_sense_are_refused_and_never_changed(
    compilation: dict[str, Any], message: str
) -> None:
    with pytest.raises(ResolutionError) as caught:
        sizes_of(**compilation)
    assert message in str(caught.value)


def test_capture_sizes_without_a_mode_that_records_have_no_effect_whatever_they_are() -> None:
    resolution = run(CPU, compilation={"cudagraph_capture_sizes": (4, 2)})
    assert resolution["compilation_config.cudagraph_capture_sizes"].effective == "no effect"
