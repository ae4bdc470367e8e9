"""`engine plugins new`: writes a plugin project that works, to be changed from there."""

from __future__ import annotations

import json
import keyword
from pathlib import Path

import click

from engine.errors import ConfigError
from engine.hookspecs import API_VERSION, HOOK_OF_KIND, LABEL_OF_KIND
from engine.names import normalize
from engine_cli.examples import with_examples
from engine_cli.plugin_selection import checked_kind, json_option
from engine_cli.plugin_templates import TEMPLATES, project_files
from engine_cli.state import command_settings, debug_option, state_of


@click.pass_context
def _new(
    context: click.Context, /, kind: str, name: str, output: Path | None, as_json: bool
) -> None:
    if kind not in TEMPLATES:
        raise ConfigError(
            f"there is no template for {LABEL_OF_KIND[kind]}s; there is one for each of "
            f"{', '.join(sorted(TEMPLATES))}"
        )
    plain = normalize(name)
    if not plain.isidentifier() or keyword.iskeyword(plain) or not plain.isascii():
        raise ConfigError(
            f"{name!r} can't be a plugin's name; write letters, digits and underscores"
        )
    registry = state_of(context).registry
    if plain in registry.names(kind):
        owner = registry.claims(kind)
        taken = next(claim.distribution for claim in owner if claim.name == plain)
        raise ConfigError(
            f"{taken} has a {LABEL_OF_KIND[kind]} {plain!r} already; choose another name"
        )
    folder = output or Path(f"engine-{plain.replace('_', '-')}")
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise ConfigError(f"{folder} exists already; choose another folder with --output")
    written = []
    for path, content in project_files(kind, plain, HOOK_OF_KIND[kind], API_VERSION).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        written.append(str(target))
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "files": written}, indent=2))
        return
    for path in written:
        click.echo(path)
    click.echo(f"\nNext:\n  pip install --editable {folder}\n  pytest {folder}")
    click.echo(f"  engine plugins check {kind}/{plain}")


new = click.Command(
    "new",
    callback=_new,
    context_settings=command_settings(),
    params=[
        click.Argument(["kind"], callback=checked_kind),
        click.Argument(["name"]),
        click.Option(
            ["--output"],
            type=click.Path(path_type=Path),
            help="The folder to write; engine-NAME by default.",
        ),
        json_option(),
        debug_option(),
    ],
    help=with_examples(
        "Write a project with a working plugin of KIND called NAME: packaging, implementation, "
        "tests with the conformance kit, README.",
        "engine plugins new passes my_pass",
    ),
)
