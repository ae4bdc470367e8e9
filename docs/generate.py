"""Writes the parts of the documentation that the code knows better.

    python -m docs.generate            write
    python -m docs.generate --check    say what is out of date; exit code 1 if anything is

A page marks such a part with `<!-- generated: NAME -->` and `<!-- end -->`; what lies between is
replaced. The pages in docs/modes/ are written whole.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from docs.reference import events, hooks, interfaces
from docs.requests import requests

from engine.config import EngineConfig
from engine.hookspecs import LABEL_OF_KIND
from engine.registry import Claim, Registry
from engine.settings_schema import Schema, SettingField
from engine_cli.options import ELSEWHERE, SECTIONS, SHORTCUTS, plugin_kind, section_of
from engine_cli.plugin_description import describe
from engine_server.config import ServerConfig

ROOT = Path(__file__).parents[1]
DISTRIBUTION = "modular-engine"

# Kinds with a page for each plugin: its file's prefix and how a plugin is selected.
PAGES = {
    "compile_modes": ("compile", "`--compilation-mode {name}`, `CompilationMode.{NAME}`"),
    "cudagraph_modes": ("cudagraph", "`--cudagraph-mode {name}`, `CUDAGraphMode.{NAME}`"),
    "backends": ("backend", "`--backend {name}`, `BackendName.{NAME}`"),
    "attention": ("attention", "`--attention {name}`"),
    "presets": ("preset", "`--preset {name}`"),
}
_MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    cells = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def built_ins(kind: str) -> Iterator[Claim]:
    """Yield our own plugins of a kind; what else happens to be installed is left out."""
    return (c for c in Registry(blocked=()).claims(kind) if c.distribution == DISTRIBUTION)


def settings() -> str:
    """Return a table for each section of `engine serve --help`."""
    fields = Schema.of(EngineConfig, ServerConfig).fields.values()
    parts = []
    for title in (*SECTIONS, ELSEWHERE):
        rows = [_setting_row(field) for field in fields if section_of(field.name) == title]
        parts.append(f"### {title}\n\n{table(('setting', 'flag', 'default', 'meaning'), rows)}")
    return "\n".join(parts)


def _setting_row(field: SettingField) -> tuple[str, str, str, str]:
    default = field.default
    shown = "" if field.is_group or default in (None, (), {}, "") else f"`{default}`"
    shown = {"`True`": "on", "`False`": "off"}.get(shown, shown)
    choices = f" One of {', '.join(f'`{c}`' for c in field.choices)}." if field.choices else ""
    kind = plugin_kind(field)
    named = f" Names a plugin of the kind `{kind}`." if kind else ""
    return f"`{field.name}`", f"`{field.flag}`", shown, f"{field.help}{choices}{named}"


def shortcuts() -> str:
    """Return what each shortcut stands for."""
    schema = Schema.of(EngineConfig)
    rows = [
        (
            f"`--{name.replace('_', '-')}`",
            " ".join(f"`{schema[setting].field.flag} {value}`" for setting, value in said.items()),
        )
        for name, said in SHORTCUTS.items()
    ]
    return table(("shortcut", "the same as"), rows)


def levels() -> str:
    """Return the optimisation levels of the preset that is used by default."""
    preset = Registry(blocked=()).load("presets", EngineConfig().preset)
    rows = [
        (
            f"`-O{number}`",
            level.summary,
            *(
                ", ".join(f"`{name}`" for name in names)
                for names in (level.compile_modes, level.cudagraph_modes, level.backends)
            ),
        )
        for number, level in sorted(preset.LEVELS.items())
    ]
    return table(("level", "meaning", "compile mode", "graph mode", "backend"), rows)


def modes() -> str:
    """Return a table of the plugins of the three axes and of the attention implementations."""
    registry = Registry(blocked=())
    rows = [
        (
            LABEL_OF_KIND[kind],
            f"[`{claim.name}`](docs/modes/{prefix}-{claim.name}.md)",
            registry.load_claim(claim).SUMMARY,
        )
        for kind, (prefix, _) in PAGES.items()
        if kind != "presets"
        for claim in built_ins(kind)
    ]
    return table(("axis", "name", "what it does"), rows)


def page(claim: Claim, plugin: Any) -> str:
    """Return the page of one plugin, from what it declares and its docstring."""
    _, how = PAGES[claim.kind]
    label = LABEL_OF_KIND[claim.kind]
    declared = describe(claim, plugin)
    rows = [("select it with", how.format(name=claim.name, NAME=claim.name.upper()))]
    elsewhere = {"about", "kind", "name", "summary", "options", "levels"}
    elsewhere |= {"distribution", "entry_point", "file"}
    rows += [(k.replace("_", " "), _cell(v)) for k, v in declared.items() if k not in elsewhere]
    parts = [
        f"# {label[0].upper()}{label[1:]} `{claim.name}`\n",
        f"{plugin.SUMMARY[0].upper()}{plugin.SUMMARY[1:]}.\n",
        f"{inspect.getdoc(plugin)}\n",
        table(("", ""), rows),
    ]
    if claim.kind == "presets":
        parts += ["## Levels\n", levels()]
    if options := declared["options"]:
        cells = [(f"`{o['name']}`", o["type"], f"`{o['default']}`", o["help"]) for o in options]
        parts += ["## Options\n", table(("option", "type", "default", "meaning"), cells)]
    return "\n".join(parts)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"`{item}`" for item in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "-"


BLOCKS: dict[str, Callable[[], str]] = {
    "events": events,
    "hooks": hooks,
    "interfaces": interfaces,
    "levels": levels,
    "modes": modes,
    "requests": requests,
    "settings": settings,
    "shortcuts": shortcuts,
}


def generated() -> Iterator[tuple[Path, str]]:
    """Yield every file that holds something generated, with what it should hold."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text()
        if _MARKED.search(text):
            yield path, _MARKED.sub(lambda m: f"{m[1]}\n{BLOCKS[m[2]]()}\n{m[3]}", text)
    registry = Registry(blocked=())
    for kind, (prefix, _) in PAGES.items():
        for claim in built_ins(kind):
            path = ROOT / "docs" / "modes" / f"{prefix}-{claim.name}.md"
            yield path, page(claim, registry.load_claim(claim))


def outdated() -> list[Path]:
    """Return the files that differ from what they should hold, and pages of plugins that ended."""
    wanted = dict(generated())
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text() != text]
    return stale + [p for p in (ROOT / "docs/modes").glob("*.md") if p not in wanted]


def main(arguments: Sequence[str]) -> int:
    """Write, or check."""
    wanted = dict(generated())
    stale = outdated()
    for path in stale:
        print(path.relative_to(ROOT))
        if "--check" in arguments:
            continue
        if path in wanted:
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
