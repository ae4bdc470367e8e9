"""Runs a workload through the reference and through a combination, and judges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine import LLM, CompilationConfig, Registry, Resolution, Settings, resolve_settings
from engine.events import Event, GraphCaptured
from engine.plugin import Numerics
from engine_tools.changed_settings import with_compilation
from engine_tools.verify.answers import Answer, Answers, answer
from engine_tools.verify.comparison import Comparison, compare
from engine_tools.verify.places import first_place, look
from engine_tools.verify.report import Check, Report
from engine_tools.verify.workload import Batch, Limits, workload

_SAME = (
    "device",
    "dtype",
    "attention",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
)
"""Settings that both engines take from the combination's resolution, so that steps are alike."""
_BY = "verify"
_ORDER = list(Numerics)
Progress = Callable[[str], None]


class Verification:
    """Verifies combinations of one model; the reference answers once for all of them.

    Args:
        settings: the model, and the combination by which both engines' limits are set.
        prompts: texts to answer besides the random prompts; need a tokenizer.
        seed: of the random prompts.
        on_event: receives the events of every engine that is started.
        progress: is told what is being done.

    Raises:
        EngineError: the combination is refused, or the reference can't start.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        prompts: Sequence[str] = (),
        seed: int = 0,
        on_event: Callable[[Event], None] | None = None,
        progress: Progress = lambda _line: None,
    ) -> None:
        self._on_event, self._progress = on_event or (lambda _event: None), progress
        resolution = resolve_settings(settings)
        self._pinned = {name: getattr(resolution.config, name) for name in _SAME}
        self._reference = reference_settings(self.pin(settings))
        chosen = resolution.config.compilation_config
        sizes = {*(chosen.cudagraph_capture_sizes or ()), *(chosen.compile_sizes or ())}
        self._progress("reference: none / none / eager")
        with self._engine(self._reference) as llm:
            self.batches = workload(_limits(llm, sizes), seed, _encode(llm, prompts))
            self.answers = self._answer(llm)

    def pin(self, settings: Settings) -> Settings:
        """Return settings with the limits of the verification, and nothing cached by prefix."""
        config = settings.config.model_copy(update={**self._pinned, "enable_prefix_caching": False})
        said = dict.fromkeys((*self._pinned, "enable_prefix_caching"), _BY)
        return Settings(config, {**said, **settings.origins})

    @contextmanager
    def _engine(
        self, settings: Settings, on_event: Callable[[Event], None] | None = None
    ) -> Iterator[LLM]:
        def observe(event: Event) -> None:
            self._on_event(event)
            if on_event is not None:
                on_event(event)

        with LLM(engine_config=settings, on_event=observe) as llm:
            yield llm

    def _answer(self, llm: LLM, names: Sequence[str] | None = None) -> dict[str, list[Answer]]:
        chosen = [batch for batch in self.batches if names is None or batch.name in names]
        found = {}
        for batch in chosen:
            self._progress(f"  {batch.name}")
            found[batch.name] = answer(llm, batch)
        return found

    def check(self, settings: Settings) -> Report:
        """Verify one combination of the same model.

        Raises:
            EngineError: it is refused, or can't start.
        """
        settings = self.pin(settings)
        captured: list[GraphCaptured] = []

        def note(event: Event) -> None:
            if isinstance(event, GraphCaptured) and not event.dropped:
                captured.append(event)

        chosen = resolve_settings(settings).config.compilation_config
        self._progress(f"{chosen.mode} / {chosen.cudagraph_mode} / {chosen.backend}")
        with self._engine(settings, note) as llm:
            numerics, passes = declared(llm.resolution, llm.core.ledger.passes)
            found = self._answer(llm)
            stats, resolution = llm.core.stats(), llm.resolution
        comparison = self._compare(found, numerics, resolution)
        checks = [*_checks(comparison, stats.late_compiles)]
        if captured and not chosen.debug_graphs:
            checks.append(self._poisoned(settings))
        return Report(
            compilation_mode=str(chosen.mode),
            cudagraph_mode=str(chosen.cudagraph_mode),
            backend=str(chosen.backend),
            passes=passes,
            numerics=numerics,
            dtype=resolution.config.dtype,
            comparison=comparison,
            checks=tuple(checks),
            place=self.locate(settings, comparison),
            steps=dict(stats.steps),
            unreached=_unreached(captured, stats.steps),
        )

    def _compare(self, found: Answers, numerics: Numerics, resolution: Resolution) -> Comparison:
        return compare(
            self.batches, self.answers, found, numerics=numerics, dtype=resolution.config.dtype
        )

    def _poisoned(self, settings: Settings) -> Check:
        """Run a part of the workload with every static buffer poisoned before each step."""
        self._progress("static buffers poisoned, replays compared with steps without graphs")
        poisoned = with_compilation(settings, _BY, debug_graphs=True)
        names = [b.name for b in self.batches if not b.name.startswith("prefill of")]
        with self._engine(poisoned) as llm:
            found = self._answer(llm, names)
        errors = [one.error for answers in found.values() for one in answers if one.error]
        detail = errors[0] if errors else "no replay differs from its step without graphs"
        return Check("poisoned buffers reach no answer", not errors, detail)

    def compare_on(self, settings: Settings, batches: Sequence[Batch]) -> list[Comparison]:
        """Compare on other batches than the verification's; one comparison for each."""
        settings = self.pin(settings)
        found: list[dict[str, list[Answer]]] = []
        for one in (self._reference, settings):
            with self._engine(one) as llm:
                found.append({batch.name: answer(llm, batch) for batch in batches})
                numerics, _ = declared(llm.resolution, llm.core.ledger.passes)
                dtype = llm.resolution.config.dtype
        return [
            compare([batch], found[0], found[1], numerics=numerics, dtype=dtype)
            for batch in batches
        ]

    def locate(self, settings: Settings, comparison: Comparison) -> str:
        """Say which layer the first wrong answer comes from."""
        if not comparison.divergences:
            return ""
        tokens = comparison.divergences[0].token_ids
        self._progress("looking for the layer")
        seen = []
        for one in (self._reference, self.pin(settings)):
            with self._engine(one) as llm:
                seen.append(look(llm, tokens))
        return first_place(seen[0], seen[1], len(tokens)) or (
            "no layer of a prefill without graphs: the recorded graphs, sampling, or a batch of "
            "another size"
        )


def reference_settings(settings: Settings) -> Settings:
    """Return the same settings with everything off: `none`, `none`, `eager`."""
    off = {"mode": "none", "cudagraph_mode": "none", "backend": "eager"}
    compilation: Any = CompilationConfig(**off)
    config = settings.config.model_copy(update={"compilation_config": compilation})
    kept = {n: by for n, by in settings.origins.items() if not n.startswith("compilation_config")}
    return Settings(config, {**kept, **{f"compilation_config.{name}": _BY for name in off}})


def declared(resolution: Resolution, fired: dict[str, int]) -> tuple[Numerics, tuple[str, ...]]:
    """Return the weakest class that is declared, and the passes that changed the graph."""
    chosen, registry = resolution.config.compilation_config, Registry()
    mode = registry.load("compile_modes", str(chosen.mode))
    graphs = registry.load("cudagraph_modes", str(chosen.cudagraph_mode))
    passes = tuple(name for name, times in fired.items() if times)
    plugins = [mode, graphs, *(registry.load("passes", name) for name in passes)]
    if mode.USES_BACKEND:
        plugins.append(registry.load("backends", str(chosen.backend)))
    classes = [plugin.NUMERICS for plugin in plugins]
    if graphs.NEEDS_GRAPHS:
        # A padded step has another shape than the reference's, which may round otherwise.
        classes.append(Numerics.SAME_SHAPE_DETERMINISTIC)
    return max(classes, key=_ORDER.index), passes


def _limits(llm: LLM, sizes: set[int]) -> Limits:
    config = llm.resolution.config
    return Limits(
        vocab_size=llm.core.vocab_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=int(config.max_num_batched_tokens or 1),
        max_model_len=min(int(config.max_model_len or 1), llm.core.kv_tokens),
        sizes=tuple(sorted(sizes)),
    )


def _encode(llm: LLM, prompts: Sequence[str]) -> list[tuple[int, ...]]:
    return [tuple(llm.tokenizer(text).input_ids) for text in prompts]


def _checks(comparison: Comparison, late_compiles: int) -> Iterator[Check]:
    kinds = [divergence.kind for divergence in comparison.divergences]
    ties = f", {comparison.near_ties} of them near-ties" if comparison.differing else ""
    yield Check(
        "greedy tokens are the reference's",
        not {"token", "error"} & {*kinds},
        f"{comparison.differing} of {comparison.tokens} differ{ties}",
    )
    yield Check(
        "log-probabilities are near the reference's",
        "probability" not in kinds,
        f"largest difference {comparison.deviation:.3g}, allowed {comparison.bound:.3g}",
    )
    again = kinds.count("repeat")
    yield Check(
        "a batch that comes again gives the same bits",
        not again,
        f"{again} answers differ" if again else "A, B, A",
    )
    yield Check(
        "nothing is compiled while serving", not late_compiles, f"{late_compiles} compilations"
    )


def _unreached(captured: Sequence[GraphCaptured], steps: dict[str, int]) -> tuple[str, ...]:
    ran = {tuple(label.split("|")[1:3]) for label in steps}
    shapes = {(event.kind, str(event.num_tokens)) for event in captured}
    return tuple(f"{kind} {size}" for kind, size in sorted(shapes - ran))
