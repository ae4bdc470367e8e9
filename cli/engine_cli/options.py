"""Makes click options of settings, so that a field of a model is a flag at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from engine.names import PluginName
from engine.settings_schema import Schema, SettingField
from engine_cli.state import state_of

ENFORCE_EAGER = "enforce_eager"
SHORTCUTS: Mapping[str, Mapping[str, Any]] = {
    ENFORCE_EAGER: {"compilation_config.mode": "none", "compilation_config.cudagraph_mode": "none"}
}
"""The one place where the command line names modes: the shortcut is defined as these two."""

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Model": (
        "model",
        "tokenizer",
        "skip_tokenizer",
        "load_format",
        "model_impl",
        "hf_overrides",
        "max_model_len",
        "seed",
    ),
    "Compile and capture": (
        "optimization_level",
        "preset",
        ENFORCE_EAGER,
        "compilation_config",
        "on_downgrade",
        "debug_dump",
    ),
    "Device and numerics": ("device", "dtype", "attention", "graph_device", "threads"),
    "Memory and scheduler": (
        "kv_cache_memory",
        "num_kv_blocks",
        "memory_utilization",
        "block_size",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_queue",
        "grammar",
        "pooling",
        "enable_prefix_caching",
        "async_scheduling",
        "observers",
    ),
}
"""Help sections by the first part of a setting's name; what is missing here is the server's."""
ELSEWHERE = "Server"
GENERAL = "Options"

_KIND_OF_FIELD = {
    "attention": "attention",
    "load_format": "weights",
    "model_impl": "models",
    "preset": "presets",
    "observers": "observers",
    "grammar": "grammars",
    "compilation_config.capture_size_policy": "capture_sizes",
}
_EXTRA_FLAGS = {"model": ("-m",), "optimization_level": ("-O",)}


def plugin_kind(field: SettingField) -> str | None:
    """Return the kind of plugin that a setting names, or None when it names none."""
    if isinstance(field.type, type) and issubclass(field.type, PluginName):
        return field.type.KIND
    return _KIND_OF_FIELD.get(field.name)


def section_of(name: str) -> str:
    """Return the help section of a setting."""
    top = name.partition(".")[0]
    return next((title for title, names in SECTIONS.items() if top in names), ELSEWHERE)


def section_order(title: str) -> int:
    """Return where a help section stands: a command's own before the settings, the rest last."""
    known = [*SECTIONS, ELSEWHERE, GENERAL]
    return known.index(title) if title in known else -1


class SettingText(click.types.StringParamType):
    """Takes any text: settings of all sources are checked in one place, later.

    Args:
        field: the setting, for its metavar and for shell completion.
    """

    def __init__(self, field: SettingField) -> None:
        self.field = field

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what stands for the value in the help."""
        field = self.field
        if field.choices:
            return f"[{'|'.join(field.choices)}]"
        if field.is_group:
            return "JSON"
        if field.is_mapping:
            return "KEY=VALUE"
        if plugin_kind(field) is not None:
            return "NAME"
        if field.is_list:
            return "N,N,…" if "int" in str(field.type) else "TEXT,…"
        return {int: "N", float: "X", Path: "PATH"}.get(field.type, "TEXT")

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete closed choices and names of installed plugins."""
        kind = plugin_kind(self.field)
        names = state_of(ctx).registry.names(kind) if kind else self.field.choices
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class SettingOption(click.Option):
    """The flag of one setting; every use of it is kept, to find contradictions."""

    def __init__(self, field: SettingField) -> None:
        self.field = field
        flags = [*_EXTRA_FLAGS.get(field.name, ()), field.flag]
        if field.is_flag:
            both = f"{field.flag}/--no-{field.flag.removeprefix('--')}"
            super().__init__([both, field.name.replace(".", "__")], default=None)
        else:
            super().__init__(
                [*flags, field.name.replace(".", "__")], type=SettingText(field), multiple=True
            )

    def spelling(self, arguments: Sequence[str]) -> str:
        """Return the flag as the user wrote it: the short one when only that was used."""
        names = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
        if self.field.flag not in names:
            for short in _EXTRA_FLAGS.get(self.field.name, ()):
                if any(name.startswith(short) for name in names):
                    return short
        return self.field.flag

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return flags and help: what it is, what is installed, environment variable, default."""
        field = self.field
        names = (
            f"{self.opts[0]} / {self.secondary_opts[0]}"
            if field.is_flag
            else f"{', '.join(self.opts)} {self.make_metavar(ctx)}"
        )
        parts = [field.help]
        if (kind := plugin_kind(field)) is not None:
            parts.append(f"Installed: {', '.join(state_of(ctx).registry.names(kind)) or 'none'}.")
        parts.append(f"[{'; '.join(self._facts())}]")
        return names, " ".join(parts)

    def _facts(self) -> Iterator[str]:
        yield f"env: {self.field.variable}"
        default = self.field.default
        if isinstance(default, bool):
            yield f"default: {'on' if default else 'off'}"
        elif default not in (None, (), {}, "") and not self.field.is_group:
            yield f"default: {default}"


class ShortcutOption(click.Option):
    """The flag of a shortcut, which stands for explicit values of other settings."""

    def __init__(self, shortcut: str, schema: Schema) -> None:
        self.shortcut = shortcut
        meaning = " ".join(
            f"{schema[setting].field.flag} {value}"
            for setting, value in schema.shortcuts[shortcut].items()
        )
        super().__init__(
            [f"--{shortcut.replace('_', '-')}", shortcut],
            is_flag=True,
            default=None,
            help=f"The same as {meaning}. [env: ENGINE_{shortcut.upper()}]",
        )


def section_of_param(param: click.Parameter) -> str:
    """Return the help section of any parameter."""
    if isinstance(param, SettingOption):
        return section_of(param.field.name)
    if isinstance(param, ShortcutOption):
        return section_of(param.shortcut)
    return str(getattr(param, "section", GENERAL))


def setting_options(schema: Schema) -> Iterator[click.Option]:
    """Yield a flag for every setting, then those of the shortcuts."""
    for field in schema.fields.values():
        yield SettingOption(field)
    for name in schema.shortcuts:
        yield ShortcutOption(name, schema)


def verbose_option() -> click.Option:
    """Return the `--verbose` flag of commands that show the settings in force."""
    return click.Option(
        ["-v", "--verbose"], is_flag=True, help="Show every setting, not only the notable ones."
    )
