"""Each guarantee of a compile mode is broken by one, and the kit finds it by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from engine.artifacts import MemoryStore
from engine.events import EventBus
from engine.forward_context import current
from engine.graph_compiler import GraphCompiler
from engine.plugin import Numerics
from engine.strategies import (
    CompiledModel,
    CompileJob,
    CompileReport,
    CompileStrategy,
    ModelCall,
)
from engine.testing import CompileStrategyConformance, PluginConformance
from engine.token_range import TokenRange
from engine.tracing import trace_model


class Plain(CompileStrategy):
    """Keeps the contract, without a backend; `wrap` is what the wrong ones change."""

    NAME = "plain"
    SUMMARY = "run the module"
    USES_BACKEND = False

    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        return call

    def compile(self, job: CompileJob) -> CompiledModel:
        return CompiledModel(self.wrap(job.model, job), CompileReport(), watchable=True)


class Traced(CompileStrategy):
    """Keeps the contract, with a backend and artifacts."""

    NAME = "traced"
    SUMMARY = "trace once"
    NUMERICS = Numerics.TOLERANCE
    SETTINGS = frozenset({"cache_dir", "compile_sizes", "compile_ranges", "passes"})

    def compile(self, job: CompileJob) -> CompiledModel:
        report = CompileReport(pieces=1, unique_pieces=1)
        traced = trace_model(job.model, job.max_num_tokens, job.device)
        compiler = GraphCompiler(job, self.fingerprint(), report)
        tokens = TokenRange(1, max(3, job.max_num_tokens))
        call = traced.bind(compiler.compile("model", traced.graph, tokens))
        return CompiledModel(call, report, capturable=job.backend.CAPTURABLE)


class WrongInOneElement(Plain):
    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        def run(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            hidden = call(ids, positions).clone()
            if len(ids) == job.max_num_tokens - 1:
                hidden[3, 7] *= 1.001
            return hidden

        return run


class WrongForExactSizes(Plain):
    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        return lambda ids, at: call(ids, at) * (1.01 if len(ids) in job.exact_sizes else 1)


class FrozenInput(Plain):
    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        kept: dict[int, torch.Tensor] = {}
        return lambda ids, at: call(kept.setdefault(len(ids), ids.clone()), at)


class FrozenContext(Plain):
    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        kept: dict[int, Any] = {}

        def run(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            context = current()
            context.metadata = kept.setdefault(len(ids), context.metadata)
            return call(ids, positions)

        return run


class ReadsBehindTheStep(Plain):
    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        def run(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            whole = ids if ids._base is None else ids._base
            return call(ids, positions) + whole.sum() * 1e-9 - ids.sum() * 1e-9

        return run


class CompilesLate(CompileStrategy):
    NAME = "late"
    SUMMARY = "compile each size when it comes, and tell nobody"
    told = False

    def compile(self, job: CompileJob) -> CompiledModel:
        made: dict[int, ModelCall] = {}
        report = CompileReport(pieces=1, unique_pieces=1)

        def run(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            if len(ids) not in made:
                graph = torch.fx.symbolic_trace(lambda x: (x,))
                job.backend.compile(graph, [ids], dynamic=False)
                made[len(ids)] = job.model
            return made[len(ids)](ids, positions)

        return CompiledModel(run, report, capturable=job.backend.CAPTURABLE)


class TellsNothing(Traced):
    def compile(self, job: CompileJob) -> CompiledModel:
        return super().compile(replace(job, events=EventBus()))


class CountsNothing(Traced):
    def compile(self, job: CompileJob) -> CompiledModel:
        return replace(super().compile(job), report=CompileReport(pieces=1, unique_pieces=1))


class SaysItUsesNoBackend(Traced):
    USES_BACKEND = False


class SaysItUsesABackend(Plain):
    USES_BACKEND = True


class SaysItCanBeRecorded(Plain):
    def compile(self, job: CompileJob) -> CompiledModel:
        return replace(super().compile(job), capturable=False)


class IgnoresWhatTheBackendSays(Traced):
    def compile(self, job: CompileJob) -> CompiledModel:
        return replace(super().compile(job), capturable=True)


class FreezesItsInputWhenRecorded(Plain):
    """What is recorded holds the ids of the batch that it was recorded with."""

    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        kept: dict[int, Any] = {}
        return lambda ids, at: call(kept.setdefault(ids.data_ptr() + len(ids), ids.clone()), at)


class SharesItsCode(Plain):
    shared: ClassVar[dict[int, ModelCall]] = {}

    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        self.shared[0] = call
        return lambda ids, at: self.shared[0](ids, at)


class LeavesASetting(Plain):
    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        torch._dynamo.config.recompile_limit += 1
        return call


class LeavesASettingWhenItFails(Traced):
    def compile(self, job: CompileJob) -> CompiledModel:
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = limit + 1
        made = super().compile(job)
        torch._dynamo.config.recompile_limit = limit
        return made


class SeedsTheRandomNumbers(Plain):
    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        torch.manual_seed(7)
        return call


class KeepsTheModel(Plain):
    kept: ClassVar[list[Any]] = []

    def wrap(self, call: ModelCall, job: CompileJob) -> ModelCall:
        self.kept.append(call)
        return call


class OwnKeys(Traced):
    """Looks artifacts up under a key of its own."""

    KEY = "0" * 64

    def compile(self, job: CompileJob) -> CompiledModel:
        traced = trace_model(job.model, job.max_num_tokens, job.device)
        report = CompileReport(pieces=1, unique_pieces=1)
        backend, data = job.backend, job.store.get(self.KEY)
        if data is None:
            call = backend.compile(traced.graph, traced.example_inputs, dynamic=True)
            self.keep(job, backend.save(call) or b"")
            report.cache_misses = 1
        else:
            call = backend.load(data, traced.graph, traced.example_inputs)
            report.cache_hits = 1
        return CompiledModel(traced.bind(call), report, capturable=backend.CAPTURABLE)

    def keep(self, job: CompileJob, data: bytes) -> None:
        (job.store.root / f"{self.KEY}.artifact").write_bytes(data)  # type: ignore[attr-defined]  # a FileStore


class _Loose(MemoryStore):
    """Hands out whatever lies under a name, without a look at it."""


class StaleCache(OwnKeys):
    """One key for all models."""

    kept: ClassVar[dict[Any, bytes]] = {}

    def compile(self, job: CompileJob) -> CompiledModel:
        return super().compile(replace(job, store=self._loose(job)))

    def _loose(self, job: CompileJob) -> MemoryStore:
        store = _Loose()
        root = getattr(job.store, "root", None)
        if root in self.kept:
            store.put(self.KEY, self.kept[root], {})
        self._root = root
        return store

    def keep(self, job: CompileJob, data: bytes) -> None:
        self.kept[self._root] = data


class DiesOfABadArtifact(Traced):
    def compile(self, job: CompileJob) -> CompiledModel:
        for file in getattr(job.store, "root", _NOWHERE).glob("*.artifact"):
            if not file.read_bytes():
                raise RuntimeError(f"{file} is empty")
        return super().compile(job)


class _Nowhere:
    def glob(self, pattern: str) -> list[Any]:
        return []


_NOWHERE = _Nowhere()


class CompilesAtEachStart(Traced):
    def compile(self, job: CompileJob) -> CompiledModel:
        store = MemoryStore()
        made = super().compile(replace(job, store=store))
        for key, factors in store.stored():
            job.store.put(key, store.get(key) or b"", factors)
        return made


class SaysItKeepsNothing(Traced):
    SETTINGS = frozenset()


WRONG = {
    WrongInOneElement: "any_number_of_tokens_gives_what_the_module_gives",
    WrongForExactSizes: "sizes_and_ranges_of_the_user_give_the_same",
    FrozenInput: "inputs_a_b_a",
    FrozenContext: "the_forward_context_is_read_at_each_step",
    ReadsBehindTheStep: "rows_beyond_the_step_are_not_read",
    CompilesLate: "nothing_is_compiled_late",
    TellsNothing: "what_was_compiled_is_reported",
    CountsNothing: "what_was_compiled_is_reported",
    SaysItUsesNoBackend: "it_calls_the_backend_if_and_only_if_it_says_so",
    SaysItUsesABackend: "it_calls_the_backend_if_and_only_if_it_says_so",
    SaysItCanBeRecorded: "whether_it_may_be_recorded_is_told",
    IgnoresWhatTheBackendSays: "whether_it_may_be_recorded_is_told",
    FreezesItsInputWhenRecorded: "what_is_recorded_reads_its_inputs_at_replay",
    SharesItsCode: "two_engines_of_one_process",
    LeavesASetting: "nothing_global_is_left_changed",
    LeavesASettingWhenItFails: "nothing_global_is_left_changed",
    SeedsTheRandomNumbers: "nothing_global_is_left_changed",
    KeepsTheModel: "close_lets_go_of_the_model",
    StaleCache: "another_model_never_gets_its_code",
    DiesOfABadArtifact: "a_bad_artifact_is_made_anew_once",
    CompilesAtEachStart: "a_second_start_compiles_nothing",
    SaysItKeepsNothing: "artifacts_are_kept_if_and_only_if_it_says_so",
}
CASES = [*WRONG.items(), (CompilesLate, "a_late_compilation_is_told")]
CHECKS = sorted({check for _, check in CASES})


@pytest.fixture(autouse=True)
def settings_as_before() -> Any:
    """Put back what a wrong mode leaves changed."""
    limit = torch._dynamo.config.recompile_limit
    yield
    torch._dynamo.config.recompile_limit = limit


@pytest.mark.parametrize(("plugin", "check"), CASES)
def test_the_kit_finds(catches: Any, plugin: type, check: str) -> None:
    said = catches(CompileStrategyConformance, plugin, check)
    assert "the contract asks" in said


@pytest.mark.parametrize("check", CHECKS)
def test_what_keeps_the_contract_passes(passes: Any, check: str) -> None:
    passes(CompileStrategyConformance, Plain, check)
    passes(CompileStrategyConformance, Traced, check)


def test_every_check_of_a_compile_mode_has_something_to_find() -> None:
    own = CompileStrategyConformance.checks().keys() - PluginConformance.checks().keys()
    assert {name.removeprefix("test_") for name in own} == set(CHECKS)
