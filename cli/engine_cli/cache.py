"""`engine cache`: what is kept between starts, why two artifacts differ, and moving them about."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.errors import ConfigError
from engine_cli.examples import with_examples
from engine_cli.state import command_settings, debug_option
from engine_cli.tables import write_table

if TYPE_CHECKING:
    from engine.cache_folder import CacheFolder, Entry

_COLUMNS = ("key", "size", "age", "unit", "model", "backend", "device")
_DAY = 86400.0


def _folder(cache_dir: Path | None) -> CacheFolder:
    from engine.cache_folder import CacheFolder

    return CacheFolder(cache_dir)


def _list(cache_dir: Path | None, as_json: bool) -> None:
    folder = _folder(cache_dir)
    entries, aside = folder.entries(), folder.set_aside()
    if as_json:
        listed = {
            "directory": str(folder.root),
            "artifacts": [_as_dict(entry) for entry in entries],
            "set_aside": [_as_dict(entry) for entry in aside],
            "total_bytes": sum(entry.size for entry in entries),
        }
        click.echo(json.dumps(listed, indent=2))
        return
    if entries:
        rows = [_cells(entry) for entry in entries]
        colours = ["red" if entry.problem else None for entry in entries]
        write_table(sys.stdout, _COLUMNS, rows, highlight=colours)
    total = f"{len(entries)} artifacts, {_size(sum(e.size for e in entries))} in {folder.root}"
    if aside:
        total += f"; {len(aside)} bad ones set aside, {_size(sum(e.size for e in aside))}"
    click.echo(total)


def _as_dict(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "file": str(entry.path),
        "size": entry.size,
        "age_seconds": round(entry.age, 1),
        "factors": dict(entry.factors),
        "about": dict(entry.about),
        "problem": entry.problem,
    }


def _cells(entry: Entry) -> Sequence[str]:
    from engine.cache_folder import SHORT

    unit = f"bad: {entry.problem}" if entry.problem else entry.about.get("unit", "-")
    backend = entry.factors.get("backend", "-").partition("/")[0]
    return (
        entry.key[:SHORT],
        _size(entry.size),
        _age(entry.age),
        unit,
        entry.about.get("model") or "-",
        backend,
        entry.factors.get("device", "-"),
    )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _age(seconds: float) -> str:
    for unit, length in (("d", _DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _explain(first: str, second: str, cache_dir: Path | None, verbose: bool, as_json: bool) -> None:
    from engine.artifact_comparison import compare

    folder = _folder(cache_dir)
    one, other = folder.find(first), folder.find(second)
    differences = compare(one.factors, other.factors)
    differing = [difference.factor for difference in differences]
    if as_json:
        content = {"first": _as_dict(one), "second": _as_dict(other), "differ": differing}
        click.echo(json.dumps(content, indent=2))
        return
    names = sorted({*one.factors, *other.factors})
    shown = names if verbose else differing
    rows = [
        (name, one.factors.get(name, "-"), other.factors.get(name, "-"), _word(name in differing))
        for name in shown
    ]
    if rows:
        colours = ["yellow" if name in differing else None for name in shown]
        columns = ("factor", one.key[:12], other.key[:12], "differs")
        write_table(sys.stdout, columns, rows, highlight=colours)
    click.echo(f"{len(differing)} of {len(names)} factors differ")


def _word(value: bool) -> str:
    return "yes" if value else "no"


def _clear(
    keys: tuple[str, ...],
    cache_dir: Path | None,
    older_than: float | None,
    quarantine: bool,
    yes: bool,
) -> None:
    if keys and quarantine:
        raise click.UsageError("name keys, or --quarantine for what was set aside; not both")
    folder = _folder(cache_dir)
    chosen = [] if quarantine else [folder.find(k) for k in keys] if keys else folder.entries()
    if not keys:
        chosen += folder.set_aside()
    if older_than is not None:
        chosen = [entry for entry in chosen if entry.age > older_than * _DAY]
    if not chosen:
        click.echo(f"nothing to remove in {folder.root}")
        return
    what = f"{len(chosen)} artifacts, {_size(sum(entry.size for entry in chosen))}"
    if not yes:
        _confirm(f"Remove {what} from {folder.root}?")
    folder.remove(chosen)
    click.echo(f"removed {what} from {folder.root}")


def _confirm(question: str) -> None:
    """Ask, and end the command unless the answer is yes.

    Raises:
        ConfigError: nobody is there to answer.
    """
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise ConfigError("nothing was removed; pass --yes to remove without a question") from None


def _export(file: Path, keys: tuple[str, ...], cache_dir: Path | None) -> int:
    folder = _folder(cache_dir)
    entries = [folder.find(key) for key in keys] if keys else folder.entries()
    bad = folder.export(file, entries)
    for entry in bad:
        click.echo(f"engine: left out {entry.path.name}: {entry.problem}", err=True)
    click.echo(f"wrote {len(entries) - len(bad)} artifacts to {file}")
    return 2 if bad else 0


def _import(file: Path, cache_dir: Path | None) -> int:
    folder = _folder(cache_dir)
    result = folder.import_archive(file)
    for name, reason in result.refused.items():
        click.echo(f"engine: refused {name}: {reason}", err=True)
    click.echo(
        f"took {len(result.added)} artifacts into {folder.root}; "
        f"{len(result.kept)} were there already, {len(result.refused)} refused"
    )
    return 2 if result.refused else 0


def _cache_dir_option() -> click.Option:
    return click.Option(
        ["--cache-dir"],
        type=click.Path(path_type=Path, file_okay=False),
        envvar="ENGINE_CACHE_DIR",
        help="The cache directory, as for `engine serve`. [env: ENGINE_CACHE_DIR; "
        "default: ~/.cache/engine]",
    )


def _json_option() -> click.Option:
    return click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")


def _command(
    name: str,
    callback: Callable[..., Any],
    help_text: str,
    example: str,
    *params: click.Parameter,
) -> click.Command:
    return click.Command(
        name,
        callback=callback,
        context_settings=command_settings(),
        params=[*params, _cache_dir_option(), debug_option()],
        help=with_examples(help_text, example),
    )


def _file_argument() -> click.Argument:
    return click.Argument(["file"], type=click.Path(path_type=Path, dir_okay=False))


def _keys_argument() -> click.Argument:
    return click.Argument(["keys"], nargs=-1, metavar="[KEY]...")


cache = click.Group(
    "cache",
    context_settings=command_settings(),
    params=[debug_option()],
    help=with_examples(
        "Look at and move compiled artifacts. A KEY may be any unambiguous beginning of one.",
        "engine cache list",
        "engine cache clear --older-than 30",
    ),
)
cache.add_command(
    _command(
        "list",
        _list,
        "List the artifacts, the newest first.",
        "engine cache list --json",
        _json_option(),
    )
)
cache.add_command(
    _command(
        "explain",
        _explain,
        "Show in which factors the artifacts FIRST and SECOND differ.",
        "engine cache explain 3fa9 81c2",
        click.Argument(["first"]),
        click.Argument(["second"]),
        click.Option(["-v", "--verbose"], is_flag=True, help="Show equal factors too."),
        _json_option(),
    )
)
cache.add_command(
    _command(
        "clear",
        _clear,
        "Remove artifacts: those of the given keys, or all, set-aside ones included.",
        "engine cache clear 3fa9 81c2 --yes",
        _keys_argument(),
        click.Option(
            ["--older-than"],
            type=click.FloatRange(min=0),
            metavar="DAYS",
            help="Only what was made more than DAYS ago.",
        ),
        click.Option(["--quarantine"], is_flag=True, help="Only bad ones that were set aside."),
        click.Option(["-y", "--yes"], is_flag=True, help="Don't ask."),
    )
)
cache.add_command(
    _command(
        "export",
        _export,
        "Write artifacts into one tar archive; compressed if FILE ends in .gz, .xz or .bz2.",
        "engine cache export artifacts.tar.gz",
        _file_argument(),
        _keys_argument(),
    )
)
cache.add_command(
    _command(
        "import",
        _import,
        "Take the artifacts of an archive, checked one by one; those that are there stay. "
        "Artifacts are code: import only what you trust.",
        "engine cache import artifacts.tar.gz",
        _file_argument(),
    )
)
