"""The options of a help page: the common ones, those of a section, or all."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

import click

from engine_cli.options import (
    ELSEWHERE,
    GENERAL,
    SECTIONS,
    SettingOption,
    ShortcutOption,
    section_of_param,
    section_order,
)

ALL = "all"
COMMON = frozenset(
    {
        "model",
        "device",
        "dtype",
        "max_model_len",
        "max_num_seqs",
        "memory_utilization",
        "optimization_level",
        "compilation_config.mode",
        "compilation_config.cudagraph_mode",
        "compilation_config.backend",
        "host",
        "port",
        "api_key",
        "served_model_name",
    }
)
"""Settings that the short help shows, besides a command's own options."""
SHORT = "Common settings"
WORDS: Mapping[str, str] = {
    "model": "Model",
    "compile": "Compile and capture",
    "device": "Device and numerics",
    "memory": "Memory and scheduler",
    "server": ELSEWHERE,
    "options": GENERAL,
}
"""What a section is asked for by; any other word is looked for in the options themselves."""


def write_options(
    context: click.Context,
    formatter: click.HelpFormatter,
    params: Sequence[click.Parameter],
    word: str,
) -> None:
    """Write the options that `--help` or `--help=WORD` asks for, in sections.

    Args:
        context: of the command.
        formatter: where to write.
        params: of the command.
        word: empty for the short help, `all`, a section's word, or any other word.

    Raises:
        UsageError: no option is about the word.
    """
    options = [param for param in params if isinstance(param, click.Option)]
    chosen = _chosen(options, word, context)
    if not chosen:
        context.fail(_unknown(word, options))
    for title in sorted(chosen, key=section_order):
        with formatter.section(title):
            formatter.write_dl(chosen[title])
    if not word and (hidden := _sections_of(options)):
        with formatter.section("More settings"):
            rows = [(f"--help={name}", WORDS[name]) for name in hidden]
            rows += [("--help=WORD", "the options about WORD, for instance --help=cudagraph")]
            formatter.write_dl([*rows, (f"--help={ALL}", "every option")])


def _chosen(
    options: Sequence[click.Option], word: str, context: click.Context
) -> dict[str, list[tuple[str, str]]]:
    sections: dict[str, list[tuple[str, str]]] = {}
    for option in options:
        title = section_of_param(option)
        record = option.get_help_record(context)
        if record is None or not _is_about(option, title, record, word):
            continue
        short = not word and _setting(option) is not None
        sections.setdefault(SHORT if short else title, []).append(record)
    return sections


def _is_about(option: click.Option, title: str, record: tuple[str, str], word: str) -> bool:
    if word == ALL:
        return True
    if not word:
        setting = _setting(option)
        return setting is None or setting in COMMON
    if word.lower() in WORDS:
        return title == WORDS[word.lower()]
    return re.search(rf"\b{re.escape(word)}", f"{title} {record[0]} {record[1]}", re.I) is not None


def _setting(option: click.Option) -> str | None:
    """Return the setting of a flag; None for a command's own option."""
    if isinstance(option, SettingOption):
        return option.field.name
    return option.shortcut if isinstance(option, ShortcutOption) else None


def _sections_of(options: Sequence[click.Option]) -> list[str]:
    """Return the words of the sections that settings of a command are in."""
    titles = {section_of_param(option) for option in options if _setting(option) is not None}
    return [word for word, title in WORDS.items() if title in titles & {*SECTIONS, ELSEWHERE}]


def _unknown(word: str, options: Sequence[click.Option]) -> str:
    words = [*_sections_of(options), ALL]
    near = difflib.get_close_matches(word.lower(), words, n=1)
    hint = f" Did you mean --help={near[0]}?" if near else ""
    return f"no option is about {word!r}.{hint} The sections are {', '.join(words)}."
