"""`engine.plan_start`: what is going to be compiled and recorded, and what it took before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, CompilationConfig, ConfigError, EngineConfig, plan_start
from engine.kept_starts import KeptStarts
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model

BACKEND = "from engine.testing.backends import StoringBackend as Base\nclass Made(Base): pass"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(autouse=True)
def storing(make_plugin: PluginMaker) -> None:
    make_plugin("storing", kind="backends", body=BACKEND)


@pytest.fixture
def weightless(model: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "weightless"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").write_bytes(b"no weights")
    return folder


def settings(model: Path, *, compilation: dict[str, Any], **given: Any) -> EngineConfig:
    chosen = {"mode": "vllm_compile", "backend": "storing", "cudagraph_mode": "none", **compilation}
    given = {"max_num_batched_tokens": 40, "max_num_seqs": 4, "threads": 1, **given}
    return EngineConfig(model=str(model), compilation_config=CompilationConfig(**chosen), **given)


def test_what_is_compiled_and_recorded_is_told_without_weights(weightless: Path) -> None:
    compilation = {
        "compile_ranges": (8, 40),
        "compile_sizes": (2,),
        "passes": ("+silu_mul", "-packed_linear"),
        "cudagraph_mode": "piecewise",
        "cudagraph_capture_sizes": (1, 4, 16),
    }
    plan = plan_start(settings(weightless, compilation=compilation, graph_device="simulated"))
    assert plan.compilation.ranges == ("2", "1-8", "9-40")
    assert plan.compilation.exact_sizes == (2,)
    assert plan.compilation.backend == "storing"
    assert "engine::attention" in plan.compilation.break_ops
    assert plan.compilation.passes == ("silu_mul",)
    assert plan.capture.sizes() == {"any batch": (1, 4, 16)}
    text = "\n".join(plan.lines())
    assert "compile (vllm_compile, storing): tokens 2, 1-8, 9-40" in text
    assert "capture (piecewise): 3 graphs\n  any batch: 1, 4, 16 tokens" in text


@pytest.mark.parametrize(
    ("compilation", "says"),
    [
        ({"mode": "none"}, "compile (none): nothing\ncapture (none): nothing"),
        ({"mode": "stock_torch_compile"}, "tokens what the mode meets\ncapture"),
        (
            {"cudagraph_mode": "piecewise", "capture": "lazy", "cudagraph_capture_sizes": (2,)},
            "capture (piecewise): 1 graphs, when a batch first has them\n  any batch: 2 tokens",
        ),
    ],
)
def test_each_mode_is_told_as_it_is(model: Path, compilation: dict[str, Any], says: str) -> None:
    plan = plan_start(settings(model, compilation=compilation, graph_device="simulated"))
    assert says in "\n".join(plan.lines())


def test_a_strategy_that_cannot_plan_yet_is_told_so(model: Path, make_plugin: PluginMaker) -> None:
    body = """
from engine.recording import RecordingStrategy as Base

class Made(Base):
    KINDS = ("late",)
    def plan(self, job):
        with job.dummy_batch(None):
            pass
    def record(self, inputs):
        pass
"""
    make_plugin("late", kind="cudagraph_modes", body=body)
    asked = settings(model, compilation={"cudagraph_mode": "late"}, graph_device="simulated")
    plan = plan_start(asked)
    assert plan.capture.shapes == ()
    assert "capture (late): told at the start only: RuntimeError" in "\n".join(plan.lines())


def test_what_the_last_starts_took_is_told(model: Path, tmp_path: Path) -> None:
    compilation = {"cache_dir": tmp_path / "cache"}
    asked = settings(model, compilation=compilation)
    before = plan_start(asked)
    assert before.starts == KeptStarts()
    assert "no start with these settings was measured here yet" in "\n".join(before.lines())
    ledgers = []
    for _ in range(2):
        with LLM(engine_config=asked) as llm:
            ledgers.append(llm.core.ledger)
    starts = plan_start(asked).starts
    assert starts.compiled is not None
    assert starts.loaded is not None
    assert [starts.compiled.ledger, starts.loaded.ledger] == ledgers
    assert sum(unit.num_bytes for unit in ledgers[0].units) > 0
    text = "\n".join(plan_start(asked).lines())
    assert f"the last start that compiled here took {ledgers[0].seconds:.1f} s" in text
    assert f"the last start that compiled nothing here took {ledgers[1].seconds:.1f} s" in text
    other = plan_start(settings(model, compilation={**compilation, "compile_ranges": (8, 40)}))
    assert other.starts == KeptStarts()


def test_a_start_from_kept_artifacts_alone_leaves_the_directory_as_it_is(
    model: Path, tmp_path: Path
) -> None:
    compilation = {"cache_dir": tmp_path / "cache"}
    with LLM(engine_config=settings(model, compilation=compilation)):
        pass
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache/starts").iterdir()}
    assert before
    with LLM(engine_config=settings(model, compilation={**compilation, "require_cache": True})):
        pass
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache/starts").iterdir()}
    assert before == after


def test_a_plan_refuses_what_a_start_would(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"names no pass"):
        plan_start(settings(model, compilation={"passes": ("+nothing_like_it",)}))


def test_operators_that_only_a_start_defines_are_not_refused(model: Path) -> None:
    asked = settings(model, compilation={"splitting_ops": ("theirs::defined_later",)})
    assert plan_start(asked).compilation.break_ops == ("theirs::defined_later",)
