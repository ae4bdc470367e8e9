"""From what was asked to what is in force, with the reason for every difference.

`resolve` is a pure function of the settings, the device, the model's configuration and what the
installed plugins declare. It reads no environment and changes nothing, so it can be tested as a
table, and `engine explain` can show its result without loading a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from engine.capture_sizes import resolve_capture_sizes
from engine.config import CompilationConfig
from engine.errors import PluginError, ResolutionError, UnknownPluginError
from engine.facts import DeviceFacts, Facts, ModelFacts
from engine.names import BackendName, CompilationMode, CUDAGraphMode
from engine.plugin import Plugin, Refusal
from engine.plugin_options import check_options
from engine.presets import Level
from engine.records import Record, Resolution
from engine.required_cache import cannot_be_kept
from engine.settings import Settings

__all__ = ["Catalog", "Record", "Resolution", "default_budget", "resolve"]


class Catalog(Protocol):
    """The installed plugins, as resolution sees them (`Registry` is one)."""

    def names(self, kind: str) -> list[str]:
        """Return the installed names of a kind."""
        ...

    def load(self, kind: str, name: str) -> Any:
        """Return the plugin class of a name, or raise a PluginError."""
        ...


def resolve(
    settings: Settings,
    device: DeviceFacts,
    model: ModelFacts,
    catalog: Catalog,
    excluded: Mapping[tuple[str, str], Refusal] | None = None,
) -> Resolution:
    """Decide every setting.

    Args:
        settings: what was asked for.
        device: facts of the device.
        model: facts of the model.
        catalog: the installed plugins.
        excluded: plugins, as (kind, name), that proved unusable, with the reason; they are refused
            as if they had said so themselves.

    Raises:
        ResolutionError: an explicit setting can't be honoured here; says why and what to do.
        PluginError: an explicitly named plugin is unknown, broken or claimed twice.
    """
    return _Resolver(settings, device, model, catalog, excluded or {}).run()


def default_budget(device: DeviceFacts, max_num_seqs: int) -> int:
    """Return the default token budget of a step.

    A GPU needs a few thousand tokens to be busy; a CPU is busy with a few hundred, and a smaller
    chunk keeps running streams flowing while a prompt is computed.
    """
    return max(8192 if device.type != "cpu" else 512, max_num_seqs)


_AXES: tuple[tuple[str, str, type[str]], ...] = (
    # kind, field of the configuration, type of its value; in the order of dependence
    ("attention", "attention", str),
    ("compile_modes", "mode", CompilationMode),
    ("backends", "backend", BackendName),
    ("cudagraph_modes", "cudagraph_mode", CUDAGraphMode),
)
_OPTIONS_OF = {
    "compile_modes": "mode_options",
    "cudagraph_modes": "cudagraph_options",
    "backends": "backend_options",
}
_NOT_FOR_STRATEGIES = frozenset(
    {"mode", "cudagraph_mode", "backend", "mode_options", "cudagraph_options", "backend_options"}
)


class _Resolver:
    """Holds the state of one resolution; `run` walks the settings in order of dependence."""

    def __init__(
        self,
        settings: Settings,
        device: DeviceFacts,
        model: ModelFacts,
        catalog: Catalog,
        excluded: Mapping[tuple[str, str], Refusal],
    ) -> None:
        self.excluded = excluded
        self.config = settings.config
        self.compilation = settings.config.compilation_config
        self.origins = settings.origins
        self.catalog = catalog
        self.facts = Facts(device=device, model=model)
        self.records: list[Record] = []
        self.changes: dict[str, Any] = {}
        self.compilation_changes: dict[str, Any] = {}
        self.chosen: dict[str, type[Plugin]] = {}

    def run(self) -> Resolution:
        level = self._level()
        self._device_and_model()
        self._dtype()
        for kind, field, make in _AXES:
            self._axis(kind, field, make, getattr(level, kind))
        self._options()
        self._unused()
        self._require_cache()
        self._limits()
        self._capture_sizes()
        compilation = self.compilation.model_copy(update=self.compilation_changes)
        config = self.config.model_copy(update={**self.changes, "compilation_config": compilation})
        return Resolution(config, tuple(self.records))

    def _record(
        self, setting: str, requested: Any, effective: Any, by: str, reason: str, remedy: str = ""
    ) -> None:
        wanted = "" if requested is None else str(requested)
        self.records.append(Record(setting, wanted, str(effective), by, reason, remedy))

    def _level(self) -> Level:
        number, preset = self.config.optimization_level, self.config.preset
        levels = self.catalog.load("presets", preset).LEVELS
        if number not in levels:
            raise ResolutionError(
                f"optimization_level={number}: preset {preset!r} has the levels "
                f"{', '.join(map(str, sorted(levels)))}; choose one of them"
            )
        level: Level = levels[number]
        by = self.origins.get("optimization_level", "default")
        self._record("optimization_level", None, number, by, level.summary)
        return level

    def _device_and_model(self) -> None:
        device, config = self.facts.device, self.config
        by = self.origins.get("device", "device")
        label = f"{device.type} ({device.name})" if device.name else device.type
        reason = "asked for" if config.device != "auto" else "the best device found"
        self._record("device", config.device, label, by, reason)
        self.changes["device"] = device.type
        self.changes["graph_device"] = device.graph_device or "auto"
        threads = config.threads or device.num_threads
        if device.type == "cpu":
            by = self.origins.get("threads", "device")
            self._record("threads", config.threads, threads, by, "threads for CPU operators")
        self.changes["threads"] = threads
        self._record(
            "model",
            config.model,
            self.facts.model.architecture,
            self.origins.get("model", "default"),
            f"{self.facts.model.num_layers} layers, hidden {self.facts.model.hidden_size}",
        )

    def _dtype(self) -> None:
        asked, device, checkpoint = self.config.dtype, self.facts.device, self.facts.model.dtype
        dtype: str
        if asked != "auto":
            dtype, by, reason = asked, self.origins.get("dtype", "default"), "asked for"
        elif device.type == "cpu":
            dtype, by = "float32", "device"
            reason = "exact, and faster than 16-bit types without matrix units for them"
        else:
            dtype, by, reason = checkpoint, "model", "the checkpoint's dtype"
        self.facts = replace(self.facts, dtype=dtype)
        self.changes["dtype"] = dtype
        self._record("dtype", asked, dtype, by, reason)

    def _axis(self, kind: str, field: str, make: type[str], preferences: Sequence[str]) -> None:
        inside = field in CompilationConfig.model_fields
        holder: Any = self.compilation if inside else self.config
        changes = self.compilation_changes if inside else self.changes
        setting = f"compilation_config.{field}" if inside else field
        asked = getattr(holder, field)
        asked = None if asked in (None, "auto") else str(asked)
        name, plugin, record = self._choose(kind, setting, asked, preferences)
        self.chosen[kind] = plugin
        changes[field] = make(name)
        self.records.append(self._explain_unused_backend(kind, record))
        self.facts = replace(
            self.facts,
            chosen={**self.facts.chosen, kind: name},
            graph_support=getattr(plugin, "GRAPH_SUPPORT", self.facts.graph_support),
            capturable=self.facts.capturable and getattr(plugin, "CAPTURABLE", True),
        )

    def _choose(
        self, kind: str, setting: str, asked: str | None, preferences: Sequence[str]
    ) -> tuple[str, type[Plugin], Record]:
        passed_over: list[Refusal] = []
        level = f"level {self.config.optimization_level}"
        if asked is not None:
            by = self.origins.get(setting, "request")
            plugin = self.catalog.load(kind, asked)
            if (refusal := self._refuse(kind, plugin)) is None:
                name = asked if ":" in asked else plugin.NAME
                return name, plugin, Record(setting, asked, name, by, "asked for")
            if self.config.on_downgrade == "error":
                raise ResolutionError(
                    f"{setting}={asked} ({by}): {refusal.reason}; {refusal.remedy}, or pass "
                    "--on-downgrade warn to take the next best"
                )
            passed_over.append(refusal)
        for name in preferences:
            refusal_or_plugin = self._try(kind, name)
            if isinstance(refusal_or_plugin, Refusal):
                passed_over.append(refusal_or_plugin)
                continue
            first = passed_over[0] if passed_over else None
            record = Record(
                setting,
                asked or preferences[0],
                name,
                level,
                first.reason if first else "the level's choice",
                first.remedy if first else "",
            )
            return name, refusal_or_plugin, record
        tried = "; ".join(refusal.reason for refusal in passed_over)
        raise ResolutionError(
            f"{setting}: nothing of {level} fits: {tried}. Installed: "
            f"{', '.join(self.catalog.names(kind)) or 'none'}; name one explicitly"
        )

    def _try(self, kind: str, name: str) -> type[Plugin] | Refusal:
        """Return a default's plugin, or why the next preference must be taken.

        A default that is installed but broken is passed over with its error: a default may
        degrade, and the line says so.
        """
        try:
            plugin: type[Plugin] = self.catalog.load(kind, name)
        except UnknownPluginError:
            return Refusal(f"{name} is not installed", f"install a plugin that provides {name}")
        except PluginError as error:
            return Refusal(str(error), f"repair or uninstall the plugin {name}")
        return self._refuse(kind, plugin) or plugin

    def _refuse(self, kind: str, plugin: type[Plugin]) -> Refusal | None:
        return self.excluded.get((kind, plugin.NAME)) or plugin.refuse(self.facts)

    def _explain_unused_backend(self, kind: str, record: Record) -> Record:
        mode = self.chosen.get("compile_modes")
        if kind != "backends" or getattr(mode, "USES_BACKEND", True):
            return record
        reason = f"not called: compile mode {self.facts.chosen['compile_modes']} makes no graph"
        return replace(
            record, effective=f"{record.effective} (not called)", reason=reason, remedy=""
        )

    def _options(self) -> None:
        for kind, field in _OPTIONS_OF.items():
            given: dict[str, Any] = getattr(self.compilation, field)
            check_options(field, self.facts.chosen[kind], self.chosen[kind].OPTIONS, given)
            for key, value in given.items():
                setting = f"compilation_config.{field}.{key}"
                by = self._origin(setting, f"compilation_config.{field}")
                self._record(setting, value, value, by, "asked for")

    def _origin(self, *settings: str) -> str:
        return next((self.origins[s] for s in settings if s in self.origins), "request")

    def _unused(self) -> None:
        read: frozenset[str] = frozenset().union(*(p.SETTINGS for p in self.chosen.values()))
        for field in CompilationConfig.model_fields.keys() - _NOT_FOR_STRATEGIES:
            setting = f"compilation_config.{field}"
            if setting not in self.origins:
                continue
            value, by = getattr(self.compilation, field), self.origins[setting]
            if field in read:
                self._record(setting, value, value, by, "asked for")
            else:
                chosen = ", ".join(
                    self.facts.chosen[k] for k in ("compile_modes", "backends", "cudagraph_modes")
                )
                self._record(
                    setting,
                    value,
                    "no effect",
                    by,
                    f"not read by {chosen}",
                    "drop it, or choose a mode that reads it (`engine plugins show` says which)",
                )

    def _require_cache(self) -> None:
        if not self.compilation.require_cache:
            return
        setting = "compilation_config.require_cache"
        by = self.origins.get(setting, "request")
        self.records = [r for r in self.records if r.setting != setting]
        refusal = cannot_be_kept(self.chosen["compile_modes"], self.chosen["backends"])
        if refusal is None:
            self._record(setting, True, True, by, "asked for")
            return
        if self.config.on_downgrade == "error":
            raise ResolutionError(
                f"{setting}=True ({by}): {refusal.reason}; {refusal.remedy}, or pass "
                "--on-downgrade warn to compile what isn't kept"
            )
        self.compilation_changes["require_cache"] = False
        self._record(setting, True, False, by, refusal.reason, refusal.remedy)

    def _capture_sizes(self) -> None:
        setting, field = "compilation_config.cudagraph_capture_sizes", "cudagraph_capture_sizes"
        if field not in self.chosen["cudagraph_modes"].SETTINGS:
            return
        compilation = self.compilation
        policy = self.catalog.load("capture_sizes", compilation.capture_size_policy)
        found = resolve_capture_sizes(
            compilation.cudagraph_capture_sizes,
            compilation.max_cudagraph_capture_size,
            max_num_seqs=self.config.max_num_seqs,
            max_num_tokens=self.changes["max_num_batched_tokens"],
            policy=policy(),
        )
        self.compilation_changes[field] = found.sizes
        self.records = [r for r in self.records if r.setting != setting]
        effective = f"{len(found.sizes)} sizes, {found.sizes[0]} to {found.sizes[-1]}"
        by = self.origins.get(setting, "policy")
        asked = compilation.cudagraph_capture_sizes
        self._record(setting, asked, effective, by, found.reason)

    def _limits(self) -> None:
        config, model = self.config, self.facts.model
        length = config.max_model_len
        if length is not None and length > model.max_model_len:
            by = self.origins.get("max_model_len", "request")
            raise ResolutionError(
                f"max_model_len={length} ({by}): longer than the model's context of "
                f"{model.max_model_len} tokens; lower it to that or leave it out"
            )
        self._record(
            "max_model_len",
            length,
            length or model.max_model_len,
            self.origins.get("max_model_len", "model"),
            "asked for" if length else "the model's context",
        )
        self.changes["max_model_len"] = length or model.max_model_len
        budget = config.max_num_batched_tokens
        effective = budget or default_budget(self.facts.device, config.max_num_seqs)
        self._record(
            "max_num_batched_tokens",
            budget,
            effective,
            self.origins.get("max_num_batched_tokens", "device"),
            "asked for" if budget else "keeps the device busy",
        )
        self.changes["max_num_batched_tokens"] = effective
        self._async_scheduling()
        for field in sorted(self.origins):
            if any(record.setting == field for record in self.records):
                continue
            group, _, key = field.partition(".")
            value = getattr(config, group, None)
            if key and not isinstance(value, dict):
                continue
            value = value.get(key) if isinstance(value, dict) and key else value
            self._record(field, value, value, self.origins[field], "asked for")

    def _async_scheduling(self) -> None:
        asked, gains = self.config.async_scheduling, self.facts.device.type != "cpu"
        effective, reason = asked, "asked for"
        if asked is None:
            effective = gains
            reason = "the host and the device are one"
            if gains:
                reason = "hides the host's work behind the device's"
        self.changes["async_scheduling"] = effective
        by = self.origins.get("async_scheduling", "device")
        self._record("async_scheduling", asked, effective, by, reason)
