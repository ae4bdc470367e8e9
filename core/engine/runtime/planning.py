"""What a start will do and cost, without one; and what a start leaves for that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn

import torch

from engine.artifact_file import artifact_key
from engine.cache_key import settings_factors
from engine.config import EngineConfig
from engine.environment import environment_factors
from engine.events import EventBus
from engine.kept_starts import StartsFolder
from engine.ledger import StartupLedger
from engine.registry import Registry
from engine.runtime.assembly import Strategies, assemble
from engine.runtime.loading import Checkpoint, open_checkpoint, resolve_for
from engine.runtime.startup import compile_request
from engine.settings import Settings, as_settings
from engine.start_plan import CapturePlan, CompilePlan, StartPlan
from engine.strategies import CompiledModel, CompileReport, CompileRequest, GraphJob
from engine.token_range import plan_ranges

_ELSEWHERE = {"cache_dir", "require_cache"}
"""Settings of `CompilationConfig` that say where artifacts lie, not what a start does."""


def start_factors(config: EngineConfig, checkpoint: Checkpoint) -> dict[str, str]:
    """Return what the time of a start depends on: model, modes, sizes, versions, device."""
    described = checkpoint.config.to_dict()
    described.pop("_name_or_path", None)
    model = json.dumps(described, sort_keys=True, default=repr)
    compilation = config.compilation_config.model_dump(mode="json", exclude=_ELSEWHERE)
    return {
        **environment_factors(torch.device(config.device)),
        **settings_factors(config),
        "model": artifact_key({"config": model}),
        "load format": config.load_format,
        "graph device": config.graph_device,
        "compilation": json.dumps(compilation, sort_keys=True),
        "limits": f"{config.max_num_batched_tokens} {config.max_num_seqs} {config.max_model_len}",
    }


def keep_start(config: EngineConfig, factors: Mapping[str, str], ledger: StartupLedger) -> None:
    """Keep what a start took, beside its artifacts.

    A directory that is only to be read (`require_cache`) is left as it is.
    """
    chosen = config.compilation_config
    if not chosen.require_cache:
        StartsFolder(chosen.cache_dir).keep(factors, ledger)


def plan_start(settings: EngineConfig | Settings, registry: Registry | None = None) -> StartPlan:
    """Return what a start with these settings compiles and records, and what it took before.

    Reads the model's configuration but none of its weights.

    Args:
        settings: what was asked for, as for an engine.
        registry: the installed plugins.

    Raises:
        EngineError: a setting, a plugin or the model's configuration is unusable.
    """
    registry, asked = registry or Registry(), as_settings(settings)
    checkpoint = open_checkpoint(asked, registry)
    resolution = resolve_for(asked, checkpoint, registry)
    config = resolution.config
    strategies = assemble(config, registry)
    request = compile_request(config)
    if config.compilation_config.splitting_ops is None:
        # Operators that are named may be such as only the model's code defines, at the start.
        strategies.compiler.check(request)
    kept = StartsFolder(config.compilation_config.cache_dir)
    return StartPlan(
        resolution,
        _plan_compilation(strategies, request),
        _plan_capture(config, strategies),
        kept.read(start_factors(config, checkpoint)),
    )


def _plan_compilation(strategies: Strategies, request: CompileRequest) -> CompilePlan:
    compiler = strategies.compiler
    if not compiler.USES_BACKEND:
        return CompilePlan(compiler.NAME)
    reads = compiler.SETTINGS
    ranges: tuple[str, ...] = ()
    if "compile_ranges" in reads:
        planned = plan_ranges(request.max_num_tokens, request.ranges, request.exact_sizes)
        ranges = tuple(str(tokens) for tokens in planned)
    return CompilePlan(
        compiler.NAME,
        strategies.backend.NAME,
        ranges=ranges,
        exact_sizes=request.exact_sizes if "compile_sizes" in reads else (),
        break_ops=tuple(sorted(request.break_ops)) if "splitting_ops" in reads else (),
        passes=tuple(one.NAME for one in strategies.passes),
    )


def _plan_capture(config: EngineConfig, strategies: Strategies) -> CapturePlan:
    graphs, chosen = strategies.graphs, config.compilation_config
    lazy = chosen.capture == "lazy"
    if not graphs.NEEDS_GRAPHS:
        return CapturePlan(graphs.NAME)
    job = GraphJob(
        compiled=CompiledModel(_nothing_yet, CompileReport()),
        device=None,
        sizes=tuple(sorted(chosen.cudagraph_capture_sizes or ())),
        max_num_seqs=config.max_num_seqs,
        graph_support=strategies.attention.GRAPH_SUPPORT,
        memory_budget=None,
        lazy=lazy,
        abort_on_failure=chosen.on_capture_failure == "abort",
        debug=chosen.debug_graphs,
        events=EventBus(),
        dummy_batch=_nothing_yet,
        make=strategies.make_graphs,
    )
    try:
        return CapturePlan(graphs.NAME, tuple(graphs.plan(job)), lazy)
    # A stranger's strategy may want more than there is yet; the start itself will tell.
    except Exception as error:  # noqa: BLE001 - it is told in the plan
        return CapturePlan(graphs.NAME, lazy=lazy, unknown=f"{type(error).__name__}: {error}")


def _nothing_yet(*_: object) -> NoReturn:
    raise RuntimeError("nothing is loaded or compiled: this is a plan")
