"""The engine: what a step is, and what it takes to be ready for one."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from engine.errors import CompileError, EngineError
from engine.events import (
    EngineReady,
    Event,
    EventBus,
    Notice,
    SettingsResolved,
)
from engine.models import CausalLM
from engine.ranges import step_range
from engine.recording import Checkpoint as Seen
from engine.registry import Registry
from engine.request import EngineOutput, EngineRequest, EngineStats
from engine.runtime.assembly import Strategies, assemble, attach_observers
from engine.runtime.block_pool import BlockPool
from engine.runtime.counts import Counts
from engine.runtime.dump_folder import open_dump
from engine.runtime.grammar_queue import GrammarQueue, Grammars
from engine.runtime.kv_memory import bytes_per_block, plan_blocks
from engine.runtime.launched import Launched
from engine.runtime.loading import (
    Checkpoint,
    build_model,
    load_weights,
    open_checkpoint,
    open_tokenizer,
    resolve_for,
)
from engine.runtime.memory import MemoryUse, human
from engine.runtime.model_runner import ModelRunner
from engine.runtime.planning import keep_start, start_factors
from engine.runtime.scheduler import Scheduler, Step
from engine.runtime.start_dump import StartDump
from engine.runtime.startup import FallingBack, LedgerBook, compile_request
from engine.settings import Settings
from engine.structured_outputs import StructuredOutputs

logger = logging.getLogger(__name__)

_GRAMMAR_WAIT_SECONDS = 0.002
"""How long a step with nothing else to do waits for a grammar before messages are looked at."""


class EngineCore:
    """Continuous batching over one model. Not thread-safe: one loop owns it.

    Args:
        settings: what was asked for.
        registry: the installed plugins.
        on_event: receives every event, the start-up's included.
        compile_only: stop when everything is compiled; such an engine can only be closed.

    Raises:
        EngineError: a setting, a plugin, the model or its weights are unusable.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        registry: Registry | None = None,
        on_event: Callable[[Event], None] | None = None,
        compile_only: bool = False,
    ) -> None:
        registry = registry or Registry()
        self._dump = open_dump(
            settings.config.debug_dump, Path(settings.config.model or "demo").name
        )
        self._compile_only, self.kv_tokens = compile_only, 0
        self.events, book = EventBus(), LedgerBook()
        self.events.subscribe(book.observe)
        self._counts = Counts()
        self.events.subscribe(self._counts.observe)
        written = StartDump(self._dump)
        if self._dump.active:
            self.events.subscribe(written.observe)
        if on_event is not None:
            self.events.subscribe(on_event)
        checkpoint = open_checkpoint(settings, registry)
        self.resolution = resolve_for(settings, checkpoint, registry)
        attach_observers(self.resolution.config, registry, self.events)
        self.checkpoint = checkpoint
        self.model_name = checkpoint.name
        self.vocab_size = checkpoint.facts.vocab_size
        self.tokenizer = open_tokenizer(settings.config, checkpoint)
        self.end_token_ids = tuple(
            checkpoint.loader.end_token_ids(checkpoint.path, checkpoint.config, self.tokenizer)
        )
        self._grammars = Grammars(
            self.resolution.config.grammar,
            registry,
            self.tokenizer,
            vocab_size=self.vocab_size,
            end_token_ids=self.end_token_ids,
        )
        self._held = GrammarQueue(self._grammars)
        self._refused: list[tuple[str, EngineError]] = []
        self._ahead: tuple[Step, Launched] | None = None
        """The step that was launched before the results of the last one were read."""
        self.memory: MemoryUse | None = None
        """Where the device's memory went; None on the CPU."""
        self.events.emit(SettingsResolved(self.resolution))
        fallback = FallingBack(settings, checkpoint, registry, self.events)
        factors = start_factors(self.resolution.config, checkpoint)
        self._runner = self._start(checkpoint, registry, fallback)
        self.ledger = book.close()
        if self._dump.active:
            written.resolved(self.resolution)
        if not compile_only:
            keep_start(self.resolution.config, factors, self.ledger)
        self.events.emit(EngineReady(self.ledger))
        self._counts.start_serving()

    def _start(
        self, checkpoint: Checkpoint, registry: Registry, fallback: FallingBack
    ) -> ModelRunner:
        config = self.resolution.config
        if config.device == "cpu" and config.threads:
            torch.set_num_threads(config.threads)
        # Before the weights are read, so that what a plugin refuses is said at once.
        strategies = self._assemble(registry)
        model = build_model(checkpoint, self.resolution, registry)
        strategies.compiler.check(compile_request(config))
        load_weights(model, checkpoint, config, self.events)
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        while (runner := self._compile(model, strategies, fallback)) is None:
            strategies, config = self._assemble(registry), self.resolution.config
        if self._compile_only:
            return runner
        runner.compile_kernels()
        memory = runner.measure_memory()
        block_bytes = bytes_per_block(
            strategies.attention,
            model.attention_specs,
            config.block_size,
            getattr(torch, config.dtype),
        )
        blocks, record = plan_blocks(config, block_bytes, memory)
        self.resolution = self.resolution.with_records([record])
        if record.degraded:
            self.events.emit(
                Notice(f"kv_cache: {record.effective}: {record.reason}; {record.remedy}")
            )
        runner.allocate_cache(blocks)
        runner.capture()
        if memory is not None:
            self._report(runner.measure_graphs(memory).with_cache(blocks * block_bytes))
        self.kv_tokens = (blocks - 1) * config.block_size
        self._scheduler = Scheduler(
            pool=BlockPool(blocks, config.block_size, config.enable_prefix_caching),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=int(config.max_num_batched_tokens or 0),
            max_model_len=int(config.max_model_len or 0),
            max_queue=config.max_queue,
        )
        return runner

    def _assemble(self, registry: Registry) -> Strategies:
        with self.events.phase("plugins"):
            strategies = assemble(self.resolution.config, registry)
            if strategies.compiler.USES_BACKEND:
                strategies.backend.prepare()
        return strategies

    def _compile(
        self, model: CausalLM, strategies: Strategies, fallback: FallingBack
    ) -> ModelRunner | None:
        """Return a runner with compiled code; None when another mode must be tried first."""
        runner = ModelRunner(
            model,
            self.resolution.config,
            strategies,
            vocab_size=self.vocab_size,
            events=self.events,
            grammars=self._grammars,
            dump=self._dump,
        )
        try:
            runner.compile()
        except CompileError as error:
            mode = strategies.compiler.NAME
            runner.close()
            self.resolution = fallback.resolve_without(mode, error)
            return None
        return runner

    def _report(self, memory: MemoryUse) -> None:
        """Tell where the memory went."""
        self.memory = memory
        self.resolution = self.resolution.with_records(memory.records())
        logger.info("memory\n%s", memory.table())
        if memory.free < 0:
            self.events.emit(
                Notice(
                    f"memory: {human(-memory.free)} more than --memory-utilization "
                    f"{memory.share:g} allows are in use, since graphs took more than was "
                    "estimated; record fewer sizes if other processes need it"
                )
            )

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return self._scheduler.has_work or bool(self._held) or bool(self._refused)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait to be admitted."""
        return self._scheduler.num_waiting + len(self._held)

    def add(self, request: EngineRequest) -> None:
        """Queue a sequence; one with a grammar waits until that is compiled.

        Raises:
            QueueFullError: as many wait as may.
            RequestError: it can never fit.
        """
        if (asked := request.params.structured_outputs) is not None:
            self._held.add(request, asked)
        else:
            self._scheduler.add(request)

    def check_grammar(self, asked: StructuredOutputs) -> None:
        """Compile a grammar now.

        Raises:
            RequestError: it is invalid.
        """
        self._grammars.compile(asked).result()

    def take_refused(self) -> list[tuple[str, EngineError]]:
        """Return the sequences that were refused after `add`, with the reasons, once."""
        refused, self._refused = self._refused, []
        return refused

    def _admit_compiled(self) -> None:
        if not self._scheduler.has_work:
            self._held.wait(_GRAMMAR_WAIT_SECONDS)
        for request, grammar in self._held.ready():
            try:
                if isinstance(grammar, EngineError):
                    raise grammar
                self._scheduler.add(request)
            except EngineError as error:
                self._refused.append((request.request_id, error))
            else:
                self._runner.masks.start(request.request_id, grammar)

    def abort(self, request_id: str) -> None:
        """End a sequence and free its blocks; unknown ones are ignored."""
        if self._held.drop(request_id):
            return
        if self._scheduler.abort(request_id):
            self._runner.forget(request_id)

    def step(self) -> list[EngineOutput]:
        """Schedule, run and sample once; return what is new.

        Running ahead, the step after is launched before this one's tokens are read, so that the
        device needn't wait for the host.

        A failure of the whole step (out of memory, a faulty plugin) ends the sequences that were
        in it with an error and leaves the others alone.
        """
        if self._held:
            self._admit_compiled()
        flying, self._ahead = self._ahead, None
        if flying is None:
            with step_range("schedule"):
                step = self._scheduler.schedule()
            if not step.rows:
                return self._scheduler.finish_step(step, {})
        else:
            step = flying[0]
        try:
            launched = self._runner.launch(step) if flying is None else flying[1]
            if self.resolution.config.async_scheduling:
                self._launch_ahead(step, launched)
            with step_range("readback"):
                sampled = launched.collect()
        except Exception as error:
            logger.exception("a step of %d rows failed", len(step.rows))
            message = f"the step failed: {type(error).__name__}: {error}"
            failed = {row.sequence.request.request_id: message for row in step.rows}
            sampled = {}
        else:
            failed = {name: token.error for name, token in sampled.items() if token.error}
        errors = [self._fail(request_id, message) for request_id, message in failed.items()]
        with step_range("finish"):
            outputs = self._scheduler.finish_step(step, sampled)
        for output in outputs:
            if output.finish_reason is not None:
                self._runner.forget(output.request_id)
        if self._ahead is not None and not self._ahead[0].is_wanted:
            self._ahead = None
        return outputs + errors

    def _launch_ahead(self, step: Step, launched: Launched) -> None:
        """Launch the step after a running one, if it can be known already."""
        with step_range("schedule"):
            following = self._scheduler.schedule_ahead(step)
        if following is not None and self._runner.may_run_ahead(following):
            self._ahead = following, self._runner.launch(following, after=launched)

    def _fail(self, request_id: str, message: str) -> EngineOutput:
        """End one sequence with an error."""
        self._scheduler.abort(request_id, reason="error")
        self._runner.forget(request_id)
        return EngineOutput(request_id=request_id, finish_reason="error", error=message)

    @contextmanager
    def watch(self) -> Iterator[list[list[Seen]]]:
        """Run steps as compiled but without graphs, and look into them; for tools.

        Yields:
            What every break op read and wrote, and the hidden states: a list for each step that
            runs inside the block, which grows meanwhile.
        """
        with self._runner.watch() as watched:
            yield watched.passes

    def stats(self) -> EngineStats:
        """Return a snapshot of the counters."""
        scheduler, counts = self._scheduler, self._counts
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_blocks=scheduler.pool.capacity,
            num_free_blocks=scheduler.pool.num_free,
            prompt_tokens=scheduler.prompt_tokens,
            generation_tokens=scheduler.generation_tokens,
            preemptions=scheduler.preemptions,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            padded_tokens=counts.padded_tokens,
            captures=dict(counts.captures),
            late_compiles=counts.late_compiles,
            steps=dict(counts.steps),
            finished=dict(scheduler.finished),
            startup=self.ledger,
        )

    def close(self) -> None:
        """Free what the strategies hold; the engine can't be used afterwards."""
        for line in self._counts.lines():
            logger.info(line)
        self._grammars.close()
        self._runner.close()
        del self._runner  # and the weights with it
        if self.resolution.config.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
