"""Runs one scheduled step on the device: inputs, forward pass, logits, sampling."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from engine.artifacts import open_store
from engine.attention import AttentionInputs
from engine.batch import BatchShape
from engine.config import EngineConfig
from engine.dump import GraphDump
from engine.events import CapturePlanned, EventBus, ModelCompiled, Notice, StepRan
from engine.forward_context import ForwardContext, forward_context
from engine.graph_device import GraphDevice
from engine.models import CausalLM
from engine.ranges import step_range
from engine.recording import mixed_shape
from engine.request import PositionLogprobs
from engine.runtime.assembly import Strategies
from engine.runtime.devices import bytes_outside_torch, make_graph_device
from engine.runtime.grammar_masks import GrammarMasks
from engine.runtime.grammar_queue import Grammars
from engine.runtime.graph_memory import estimate_graph_memory
from engine.runtime.greedy_head import GreedyHead
from engine.runtime.kernels_ahead import compile_kernels
from engine.runtime.key_factors import key_factors, model_name
from engine.runtime.launched import Launched
from engine.runtime.memory import MemoryUse
from engine.runtime.pooling import Pooler
from engine.runtime.sampler import Sampler, Sampling
from engine.runtime.scheduler import Row, Step
from engine.runtime.sequence import Sequence
from engine.runtime.startup import compile_request
from engine.runtime.step_buffers import StepBuffers
from engine.runtime.unknown_operators import unknown_operators
from engine.runtime.watched import WatchedSteps
from engine.strategies import CompiledModel, CompileJob, GraphJob, ModelInputs


class ModelRunner:
    """Owns the model, its KV cache, the static buffers and the strategies in force.

    Start-up is `compile`, `allocate_cache`, `capture`, in this order; then `run` for each step.

    Args:
        model: with weights, on its device.
        config: effective settings.
        strategies: the plugins in force.
        vocab_size: V.
        events: where steps are reported.
        grammars: computes masks for constrained sequences.
        dump: takes what people want to read of the start.
    """

    def __init__(
        self,
        model: CausalLM,
        config: EngineConfig,
        strategies: Strategies,
        *,
        vocab_size: int,
        events: EventBus,
        grammars: Grammars,
        dump: GraphDump | None = None,
    ) -> None:
        self._dump = dump or GraphDump()
        self._model, self._config, self._strategies = model, config, strategies
        self._events = events
        needs = strategies.graphs.NEEDS_GRAPHS
        self._graph_device = config.graph_device if needs else None
        self._device = torch.device(config.device)
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        self._sampler = Sampler(vocab_size, self._device, config.seed)
        self._pooler = Pooler()
        self.masks = GrammarMasks(grammars, vocab_size, self._device)
        most = int(config.max_num_batched_tokens or 1)
        self._largest = mixed_shape(most, min(config.max_num_seqs, most))
        max_blocks = -(-int(config.max_model_len or 1) // config.block_size)
        self._buffers = StepBuffers(
            max_num_tokens=most,
            max_num_seqs=config.max_num_seqs,
            max_blocks=max_blocks,
            block_size=config.block_size,
            device=self._device,
            debug=config.compilation_config.debug_graphs,
        )
        self._caches: list[torch.Tensor] = []
        self._compiled: CompiledModel | None = None
        self._recorder: GraphDevice | None = None
        self._head: GreedyHead | None = None
        self._graph_budget: int | None = None
        self._unknown_ops: tuple[str, ...] | None = None
        self.allocate_cache(1)

    def allocate_cache(self, num_blocks: int) -> None:
        """Give every attention layer a zeroed cache of `num_blocks`; block 0 is the reserved one.

        Zeroed because padded and dummy rows may read the reserved block.
        """
        self._caches.clear()
        for spec in self._model.attention_specs:
            size = self._config.block_size
            shape = self._strategies.attention.cache_shape(spec, num_blocks, size)
            self._caches.append(self._zeros(shape))

    def _zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        if self._device.type != "cpu":
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        # numpy asks the system for zeroed pages, which take memory only once they are written.
        pages = np.zeros(math.prod(shape) * self._dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(pages).view(self._dtype).view(shape)

    def compile(self) -> None:
        """Let the compile strategy make the callable that serves every step."""
        compiler = self._strategies.compiler
        with self._events.phase("compile"), torch.inference_mode():
            job = CompileJob(
                **vars(compile_request(self._config)),
                model=self._model,
                backend=self._strategies.backend,
                device=self._device,
                passes=self._strategies.passes,
                store=open_store(self._config),
                events=self._events,
                dummy_batch=self.dummy_batch,
                key_factors=key_factors(self._config, self._strategies, self._model),
                model_name=model_name(self._config),
                require_cache=self._config.compilation_config.require_cache,
                dump=self._dump.inside(f"compile-{compiler.NAME}"),
            )
            self._compiled = compiler.compile(job)
        self._events.emit(ModelCompiled(compiler.NAME, self._compiled.report))

    def compile_kernels(self) -> None:
        """Compile the kernels of steps and recordings side by side, before the first runs."""
        if self._device.type == "cuda":
            with self._events.phase("kernels"), torch.inference_mode():
                compile_kernels(self._strategies.graphs, self._graph_job(), self._largest)

    def capture(self) -> None:
        """Let the graph strategy record what it planned."""
        with self._events.phase("capture"), torch.inference_mode():
            job, graphs = self._graph_job(), self._strategies.graphs
            if graphs.NEEDS_GRAPHS:
                self._events.emit(CapturePlanned(graphs.NAME, graphs.plan(job), job.lazy))
            graphs.prepare(job)
            if job.device is not None and self._device.type == "cuda" and not job.lazy:
                self._head = self._record_head(job.device, job.sizes)
        self._recorder = job.device

    def _record_head(self, device: GraphDevice, sizes: tuple[int, ...]) -> GreedyHead | None:
        """Record what follows a decode step's forward pass; None, with a notice, where it can't."""
        assert self._compiled is not None, "compile() comes first"  # noqa: S101 - our own order
        rows = self._largest.num_reqs
        with self.dummy_batch(mixed_shape(rows, rows)) as inputs:
            hidden = self._compiled.call(inputs.input_ids, inputs.positions)
        vocab_size = self._sampler.vocab_size
        head = GreedyHead(self._model.compute_logits, vocab_size, hidden, device)
        try:
            head.record([size for size in sizes if size <= rows])
        except Exception as error:  # noqa: BLE001 - whatever a model's logits do, it is told
            problem = f"{type(error).__name__}: {error}"
            self._events.emit(Notice(f"logits and greedy tokens are not recorded: {problem}"))
            return None
        return head

    def _graph_job(self) -> GraphJob:
        chosen, compiled = self._config.compilation_config, self._compiled
        assert compiled is not None, "compile() comes first"  # noqa: S101 - our own order
        device = make_graph_device(self._graph_device)
        if device is not None:
            made = self._strategies.compiler.USES_BACKEND
            call = device.adopt(compiled.call, compiled=made)
            # What a device takes as a whole shows nothing of its inside.
            watchable = compiled.watchable and (call is compiled.call or not made)
            compiled = replace(compiled, call=call, watchable=watchable)
            if self._unknown_ops is None:
                with self.dummy_batch(mixed_shape(1, 1)) as inputs:
                    self._unknown_ops = unknown_operators(self._model, inputs)
        return GraphJob(
            compiled=compiled,
            device=device,
            sizes=tuple(sorted(chosen.cudagraph_capture_sizes or ())),
            max_num_seqs=self._config.max_num_seqs,
            graph_support=self._strategies.attention.GRAPH_SUPPORT,
            memory_budget=self._graph_budget,
            lazy=chosen.capture == "lazy",
            abort_on_failure=chosen.on_capture_failure == "abort",
            debug=chosen.debug_graphs,
            events=self._events,
            dummy_batch=self.dummy_batch,
            make=self._strategies.make_graphs,
            unknown_ops=self._unknown_ops or (),
            dump=self._dump.inside(f"capture-{self._strategies.graphs.NAME}"),
        )

    def measure_memory(self) -> MemoryUse | None:
        """Return what weights, the largest step and graphs take; call it before the cache is made.

        None on the CPU, where memory is committed only when it is used.
        """
        if self._device.type != "cuda":
            return None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        weights = torch.cuda.memory_reserved()
        assert self._compiled is not None, "compile() comes first"  # noqa: S101 - our own order
        with torch.inference_mode(), self.dummy_batch(self._largest) as inputs:
            hidden = self._compiled.call(inputs.input_ids, inputs.positions)
            self._model.compute_logits(hidden[: self._largest.num_reqs]).float()
            del hidden
        torch.cuda.synchronize()
        activations = torch.cuda.max_memory_reserved() - weights
        torch.cuda.empty_cache()
        memory = MemoryUse(
            total=torch.cuda.mem_get_info()[1],
            share=self._config.memory_utilization,
            elsewhere=bytes_outside_torch(),
            weights=weights,
            activations=activations,
        )
        if self._strategies.graphs.NEEDS_GRAPHS:
            with self._events.phase("measure graphs"), torch.inference_mode():
                memory = replace(memory, graphs=self._estimate_graphs())
            if self._config.compilation_config.capture == "lazy":
                self._graph_budget = memory.graphs
        return memory

    def _estimate_graphs(self) -> int:
        expected = self._try_graphs()
        gc.collect()
        torch.cuda.empty_cache()
        return expected

    def _try_graphs(self) -> int:
        job = self._graph_job()
        assert job.device is not None, "it needs graphs"  # noqa: S101 - asked by the caller
        pool = job.device.memory

        def used() -> int:
            return bytes_outside_torch() + pool()

        strategy = self._strategies.make_graphs(self._strategies.graphs.NAME)
        expected = estimate_graph_memory(strategy, job, used)
        before = used()
        if not job.lazy:
            self._record_head(job.device, job.sizes)
        return expected + max(0, used() - before)

    def measure_graphs(self, memory: MemoryUse) -> MemoryUse:
        """Return what was measured before, with what the recorded graphs really take."""
        if self._recorder is None:
            return memory
        if self._config.compilation_config.capture == "lazy":
            return memory
        driver = max(0, bytes_outside_torch() - memory.elsewhere)
        return replace(memory, graphs=driver + self._recorder.memory())

    @contextmanager
    def dummy_batch(self, shape: BatchShape) -> Iterator[ModelInputs]:
        """Set a forward context for a batch of this shape that writes to no KV block."""
        inputs, attention = self._buffers.fill_dummy(shape)
        with forward_context(self._context(shape, attention)):
            yield inputs

    def _context(self, shape: BatchShape, inputs: AttentionInputs) -> ForwardContext:
        return ForwardContext(
            shape=shape,
            attention=self._strategies.attention,
            metadata=self._strategies.attention.begin_step(inputs),
            specs=self._model.attention_specs,
            caches=self._caches,
        )

    @contextmanager
    def watch(self) -> Iterator[WatchedSteps]:
        """Run steps without graphs, and keep what their break ops read and write."""
        assert self._compiled is not None, "compile() comes first"  # noqa: S101 - our own order
        strategies = self._strategies
        watched = WatchedSteps(strategies.graphs.NAME, self._compiled.call)
        self._strategies = replace(strategies, graphs=watched)
        try:
            yield watched
        finally:
            self._strategies = strategies

    def may_run_ahead(self, step: Step) -> bool:
        """Say whether this step can be launched before the tokens of the one before are known."""
        sequences = [row.sequence for row in step.rows]
        if any(self.masks.constrains(sequence.request.request_id) for sequence in sequences):
            return False
        return self._sampler.may_run_ahead(sequences)

    @torch.inference_mode()
    def launch(self, step: Step, after: Launched | None = None) -> Launched:
        """Start a step on the device without waiting for its results.

        Args:
            step: what to run.
            after: the step before, if `step` is ahead: its tokens are taken on the device.
        """
        graphs = self._strategies.graphs
        with step_range("prepare"):
            decision = graphs.dispatch(step.shape)
            if after is None:
                inputs, attention = self._buffers.fill(step.rows, step.shape, decision.padded)
            else:
                inputs, attention = self._buffers.fill_ahead(
                    step.rows, step.shape, decision.padded, after.tokens_of(step.rows)
                )
            context = self._context(step.shape, attention)
        with forward_context(context), step_range("forward" if decision.reason else "replay"):
            hidden = graphs.run(decision, inputs)
        tokens = step.shape.num_tokens
        self._events.emit(
            StepRan(graphs.NAME, decision.kind, tokens, decision.padded.num_tokens, decision.reason)
        )
        with step_range("sample"):
            return self._sample(step, hidden[:tokens], attention.host_query_start)

    def _sample(
        self, step: Step, hidden: torch.Tensor, starts: np.ndarray[Any, np.dtype[np.int32]]
    ) -> Launched:
        rows = step.rows
        sampling = tuple(row.sequence for row in rows if step.ahead or row.samples)
        sampled: Sampling | None = None
        errors: dict[str, str] = {}
        if sampling:
            last = hidden
            if len(sampling) < hidden.shape[0]:
                ends = [starts[i + 1] for i, row in enumerate(rows) if row.samples]
                last = hidden[torch.tensor(ends, device=self._device) - 1]
            sampled, errors = self._choose(step, last, sampling)
        prompts: dict[str, list[PositionLogprobs]] = {}
        embeddings: dict[str, list[float]] = {}
        for index, row in enumerate(() if step.ahead else rows):
            states, request_id = (
                hidden[starts[index] : starts[index + 1]],
                row.sequence.request.request_id,
            )
            if (chunk := self._prompt_logprobs(row, states)) is not None:
                prompts[request_id] = chunk
            if (vector := self._pooler.add(row, states)) is not None:
                embeddings[request_id] = vector
        return Launched(sampling, sampled, prompts, embeddings, errors)

    def _choose(
        self, step: Step, hidden: torch.Tensor, sequences: tuple[Sequence, ...]
    ) -> tuple[Sampling, dict[str, str]]:
        """Choose the sequences' tokens; also return why a sequence can't go on, by request id."""
        unknown = int(step.ahead)
        # Of other steps the hidden states are needed afterwards, and a head may overwrite them.
        if (head := self._head) is not None and step.shape.uniform_decode:
            free = not any(self.masks.constrains(s.request.request_id) for s in sequences)
            if free and head.covers(len(sequences)):
                greedy = self._sampler.start_greedy(
                    lambda: head.run(hidden), sequences, unknown=unknown
                )
                if greedy is not None:
                    return greedy, {}
        logits, errors = self.masks.apply(self._model.compute_logits(hidden), sequences)
        return self._sampler.start(logits, sequences, unknown=unknown), errors

    def _prompt_logprobs(self, row: Row, hidden: torch.Tensor) -> list[PositionLogprobs] | None:
        """Return log-probabilities of the prompt tokens that this row's positions predict."""
        sequence = row.sequence
        count = sequence.request.params.prompt_logprobs
        first = sequence.num_computed_tokens + 1
        targets = sequence.token_ids[
            first : min(first + row.num_tokens, sequence.num_prompt_tokens)
        ]
        # None also when they were sent already, before a preemption.
        if count is None or sequence.prompt_logprobs is None or not targets:
            return None
        logits = self._model.compute_logits(hidden[: len(targets)])
        return self._sampler.prompt_logprobs(logits, targets, count)

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a sequence that has ended."""
        self._sampler.forget(request_id)
        self._pooler.forget(request_id)
        self.masks.forget(request_id)

    def close(self) -> None:
        """Free graphs, compiled code and caches."""
        self._head = None
        self._strategies.graphs.close()
        self._strategies.compiler.close()
        self._caches.clear()
