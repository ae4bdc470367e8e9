"""A click command whose flags are settings."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from engine.config import EngineConfig
from engine.settings_schema import Schema
from engine_cli.dotted import take_dotted
from engine_cli.examples import with_examples
from engine_cli.help_sections import write_options
from engine_cli.options import (
    SHORTCUTS,
    SettingOption,
    ShortcutOption,
    setting_options,
)
from engine_cli.sources import MODEL_ARGUMENT, command_line_statements, gather
from engine_cli.state import command_settings, debug_option, plugin_option, state_of

_ARGUMENTS = "engine_cli.arguments"
_DOTTED = "engine_cli.dotted"
_HELP_WORD = "engine_cli.help_word"

EPILOG = (
    "A setting is taken from the command line, else from its ENGINE_ variable, else from the file "
    "of --config, else from the optimisation level, else it has its built-in default. "
    "`-cc.NAME VALUE` sets one field of --compilation-config; sizes may be written 32k or 1GiB."
)


class SettingsCommand(click.Command):
    """Calls its function with `sources`, made of the flags, the environment and a file.

    Args:
        name: of the command.
        models: whose fields become flags.
        model_argument: also take the model as a positional argument.
        params: the command's own parameters.
        **options: as for `click.Command`.
    """

    def __init__(
        self,
        name: str,
        *,
        models: Sequence[type[BaseModel]] = (EngineConfig,),
        model_argument: bool = True,
        params: Sequence[click.Parameter] = (),
        **options: Any,
    ) -> None:
        self.schema = Schema.of(*models, shortcuts=SHORTCUTS)
        argument = click.Argument([MODEL_ARGUMENT], required=False, metavar="[MODEL]")
        super().__init__(
            name,
            params=[
                *([argument] if model_argument else []),
                *params,
                *setting_options(self.schema),
                config_option(),
                plugin_option(),
                debug_option(),
            ],
            epilog=EPILOG,
            context_settings=command_settings(),
            **options,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take out what click can't parse, then let click parse the rest."""
        for argument in args:
            if argument.startswith("--help=") and not ctx.resilient_parsing:
                ctx.meta[_HELP_WORD] = argument.partition("=")[2].lstrip("-")
                click.echo(self.get_help(ctx))
                ctx.exit()
        kept, ctx.meta[_DOTTED] = take_dotted(args, self.schema)
        ctx.meta[_ARGUMENTS] = tuple(kept)
        self._refuse_contradicting_switches(ctx, kept)
        return super().parse_args(ctx, kept)

    def _refuse_contradicting_switches(self, ctx: click.Context, args: Sequence[str]) -> None:
        """Click keeps the last of `--x --no-x`; a contradiction must be told instead."""
        given = {argument.replace("_", "-") for argument in args}
        for param in self.params:
            if isinstance(param, SettingOption) and param.secondary_opts:
                on, off = param.opts[0], param.secondary_opts[0]
                if on in given and off in given:
                    ctx.fail(f"{on} and {off} contradict each other; keep one")

    def invoke(self, ctx: click.Context) -> Any:
        """Gather the settings and call the command's function with them.

        Raises:
            ConfigError: a source is unreadable, misspelt or contradicts itself.
        """
        said = command_line_statements(ctx, ctx.meta[_ARGUMENTS], ctx.meta[_DOTTED], self.schema)
        sources = gather(said, os.environ, ctx.params.pop("config"), state_of(ctx))
        settings = {
            param.name
            for param in self.params
            if isinstance(param, SettingOption | ShortcutOption) or param.name == MODEL_ARGUMENT
        }
        own = {name: value for name, value in ctx.params.items() if name not in settings}
        ctx.params = {**own, "sources": sources}
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options, or those that `--help=WORD` asks for."""
        write_options(ctx, formatter, self.get_params(ctx), ctx.meta.get(_HELP_WORD, ""))


def config_option() -> click.Option:
    """Return the `--config` flag."""
    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        envvar="ENGINE_CONFIG",
        help="A YAML, TOML or JSON file of settings. [env: ENGINE_CONFIG]",
    )


def settings_command(
    name: str, *, examples: Sequence[str], **options: Any
) -> Callable[[Callable[..., Any]], SettingsCommand]:
    """Decorate a function as a command that takes settings; its docstring is the help."""

    def decorate(function: Callable[..., Any]) -> SettingsCommand:
        text = inspect.cleandoc(function.__doc__ or "")
        return SettingsCommand(
            name, callback=function, help=with_examples(text, *examples), **options
        )

    return decorate
