"""From graphs to callables through a backend and the artifact store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel
from torch import fx

from engine import graph_compiler
from engine.artifacts import ArtifactStore, FileStore, MemoryStore
from engine.errors import CompileError
from engine.events import CompiledUnit, Event
from engine.graph_compiler import GraphCompiler
from engine.strategies import Backend, CompileReport, Pass
from engine.testing.backends import KeepingBackend
from engine.testing.compiling import ToyDecoder, compile_job, run_step
from engine.token_range import TokenRange
from engine.tracing import Traced, trace_model

RANGE = TokenRange(1, 64)


class Options(BaseModel):
    """Something that changes the code."""

    level: int = 0


class LeveledBackend(KeepingBackend):
    """Has an option and counts by number."""

    OPTIONS = Options

    @property
    def compiled(self) -> int:
        return len(self.graphs)


@pytest.fixture(scope="module")
def traced() -> Traced:
    return trace_model(ToyDecoder(2), 64, torch.device("cpu"))


def compile_graph(
    traced: Traced,
    store: ArtifactStore,
    *,
    backend: Backend | None = None,
    fingerprint: str = "strategy",
    tokens: TokenRange = RANGE,
    passes: tuple[Pass, ...] = (),
    on_event: Callable[[Event], None] | None = None,
) -> tuple[Callable[..., Any], CompileReport]:
    job = compile_job(
        ToyDecoder(1), backend or LeveledBackend(), store=store, passes=passes, on_event=on_event
    )
    report = CompileReport()
    call = GraphCompiler(job, fingerprint, report).compile("graph", traced.graph, tokens)
    return call, report


def test_a_second_start_compiles_nothing_and_runs_the_same(traced: Traced, tmp_path: Path) -> None:
    model = ToyDecoder(2)
    backends, events = [LeveledBackend(), LeveledBackend()], list[Event]()
    for backend in backends:
        call, _ = compile_graph(
            traced, FileStore(tmp_path), backend=backend, on_event=events.append
        )
        assert torch.equal(run_step(traced.bind(call), model, 5), run_step(model, model, 5))
    assert [(b.compiled, b.loaded) for b in backends] == [(1, 0), (0, 1)]
    assert [e.cached for e in events if isinstance(e, CompiledUnit)] == [False, True]


class Doubles(Pass):
    """Does nothing, but says that it might."""

    NAME, SUMMARY = "doubles", "for tests"

    def run(self, graph: fx.GraphModule) -> int:
        return 0


class OtherVersion(LeveledBackend):
    """The same backend, a version later."""

    VERSION = "2"


FLIPS: dict[str, dict[str, Any]] = {
    "backend option": {"backend": LeveledBackend(Options(level=1))},
    "backend version": {"backend": OtherVersion()},
    "strategy": {"fingerprint": "another"},
    "pass": {"passes": (Doubles(),)},
    "range": {"tokens": TokenRange(1, 63)},
    "exact size": {"tokens": TokenRange(8, 8)},
}


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS.keys())
def test_whatever_shapes_the_code_misses(
    traced: Traced, tmp_path: Path, flip: dict[str, Any]
) -> None:
    compile_graph(traced, FileStore(tmp_path))
    _, report = compile_graph(traced, FileStore(tmp_path), **flip)
    assert (report.cache_hits, report.cache_misses) == (0, 1)


@pytest.mark.parametrize("factor", ["python", "torch", "machine", "device", "cpu"])
def test_another_environment_misses(
    traced: Traced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: str
) -> None:
    compile_graph(traced, FileStore(tmp_path))
    real: Any = vars(graph_compiler)["environment_factors"]

    def other(device: torch.device) -> Mapping[str, str]:
        return {**real(device), factor: "another"}

    assert factor in real(torch.device("cpu"))
    monkeypatch.setattr(graph_compiler, "environment_factors", other)
    _, report = compile_graph(traced, FileStore(tmp_path))
    assert report.cache_misses == 1


def test_a_depth_that_no_setting_tells_is_seen_in_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deep(ToyDecoder):
        """Reads its depth from outside, behind every configuration's back."""

        def __init__(self) -> None:
            import os

            super().__init__(int(os.environ["TOY_DEPTH"]))

    def start(depth: int) -> CompileReport:
        monkeypatch.setenv("TOY_DEPTH", str(depth))
        model = Deep()
        whole = trace_model(model, 64, torch.device("cpu"))
        call, report = compile_graph(whole, FileStore(tmp_path))
        assert torch.equal(run_step(whole.bind(call), model, 5), run_step(model, model, 5))
        return report

    assert [start(depth).cache_hits for depth in (1, 2, 1, 2)] == [0, 0, 1, 1]


def test_an_artifact_that_the_backend_rejects_is_made_anew_once(
    traced: Traced, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(tmp_path)
    compile_graph(traced, store)
    (path,) = tmp_path.glob("*.artifact")
    header = path.read_bytes().partition(b"\n")[0]
    factors = json.loads(header)["factors"]
    store.put(path.stem, b"half", factors)
    backends = [LeveledBackend(), LeveledBackend()]
    for backend in backends:
        compile_graph(traced, FileStore(tmp_path), backend=backend)
    assert [(b.compiled, b.loaded) for b in backends] == [(1, 0), (0, 1)]
    assert caplog.text.count("not mine") == 1


def test_an_artifact_of_the_wrong_type_is_made_anew(traced: Traced) -> None:
    class Wrong(LeveledBackend):
        def load(self, artifact: bytes, graph: Any, example_inputs: Any) -> Any:
            return 7

    store = MemoryStore()
    compile_graph(traced, store, backend=Wrong())
    backend = Wrong()
    call, _ = compile_graph(traced, store, backend=backend)
    assert callable(call)
    assert backend.compiled == 1


def test_a_graph_that_cannot_be_described_is_compiled_and_not_kept(tmp_path: Path) -> None:
    model = ToyDecoder(1)
    whole = trace_model(model, 64, torch.device("cpu"))
    shift = 0.0
    with whole.graph.graph.inserting_before(whole.graph.graph.output_node()):
        more = whole.graph.graph.call_function(lambda x: x + shift, (whole.result,))
    whole.graph.graph.output_node().args = ((more,),)
    whole.graph.recompile()
    backend = LeveledBackend()
    call, _ = compile_graph(whole, FileStore(tmp_path), backend=backend)
    assert torch.equal(run_step(whole.bind(call), model, 4), run_step(model, model, 4))
    assert backend.compiled == 1
    assert list(tmp_path.glob("*.artifact")) == []


def test_code_that_is_right_for_a_part_of_the_range_only_is_refused(traced: Traced) -> None:
    class Assumes(LeveledBackend):
        def compile(
            self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
        ) -> Callable[..., Any]:
            size = next(value for value in example_inputs if isinstance(value, torch.SymInt))
            assert bool(size % 2 == 1)
            return graph.forward

    with pytest.raises(CompileError, match=r"keeping compiled .* 1-64 tokens .*Mod\(num_tokens"):
        compile_graph(traced, MemoryStore(), backend=Assumes())


def test_passes_of_a_piece_see_the_shapes_of_its_range(traced: Traced) -> None:
    seen: list[Any] = []

    class Looks(Pass):
        NAME, SUMMARY, STAGE = "looks", "for tests", "piece"

        def run(self, graph: fx.GraphModule) -> int:
            seen.append(graph.graph.output_node().all_input_nodes[0].meta["example_value"].shape[0])
            return 2

    _, report = compile_graph(traced, MemoryStore(), passes=(Looks(),), tokens=TokenRange(8, 8))
    assert (seen, report.passes) == ([8], {"looks": 2})


_STARTS = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_graph_compiler import *
from engine.testing.compiling import ToyDecoder
root, processes, rounds = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
whole = trace_model(ToyDecoder(1), 64, torch.device("cpu"))

class Logs(LeveledBackend):
    def compile(self, graph, example_inputs, *, dynamic):
        with (folder / "compiled").open("a") as log:
            log.write("x")
        time.sleep(0.05)
        return super().compile(graph, example_inputs, dynamic=dynamic)

# Forked rather than started: imports take longer than everything that is tested here.
children = []
while len(children) < processes and (child := os.fork()):
    children.append(child)
if len(children) == processes:
    sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))
for number in range(rounds):
    folder = root / str(number)
    folder.mkdir(exist_ok=True)
    (folder / f"{os.getpid()}.ready").touch()
    while len(list(folder.glob("*.ready"))) < processes:
        time.sleep(0.001)
    call, _ = compile_graph(whole, FileStore(folder / "cache"), backend=Logs())
    assert call is not None
os._exit(0)
"""


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _STARTS, str(Path(__file__).parent), str(tmp_path), "6", "5"]
    subprocess.run(command, check=True, timeout=280)
    folders = list(tmp_path.iterdir())
    assert len(folders) == 5
    for folder in folders:
        assert (folder / "compiled").read_text() == "x"
        assert [path.suffix for path in (folder / "cache").iterdir()] == [".artifact"]


def test_warming_up_runs_each_step_once() -> None:
    ran: list[int] = []

    def step(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        ran.append(input_ids.shape[0])
        return positions

    ranges = (TokenRange(1, 8), TokenRange(9, 32))
    job = compile_job(ToyDecoder(), KeepingBackend(), max_num_tokens=32)
    graph_compiler.warm_up(job, [(each, step) for each in ranges])
    assert ran == [1, 9]
