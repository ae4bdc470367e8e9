"""`engine doctor`: is this machine fit for a start?"""

from __future__ import annotations

import json
import sys

import click

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.state import State
from engine_cli.tables import write_table
from engine_server.config import ServerConfig

_COLOURS = {"ok": None, "warning": "yellow", "error": "red"}


@settings_command(
    "doctor",
    models=(EngineConfig, ServerConfig),
    examples=("engine doctor", "engine doctor ./model --device cuda --port 8080 --json"),
    params=[click.Option(["--json", "as_json"], is_flag=True, help="Print the findings as JSON.")],
)
@click.pass_obj
def doctor(state: State, /, sources: Sources, as_json: bool) -> int:
    """Check this machine before MODEL is loaded: tools, folders, memory, versions, files.

    Takes the settings of `engine serve`, and loads nothing. Each finding is ok, a warning or an
    error, with what to do about it. Exits with 1 when there is an error.
    """
    settings = sources.settings(state)
    server, _ = sources.build(ServerConfig)
    state.tell_notes()
    from engine_tools.doctor import Address, Finding, Level, Subject, examine

    findings = examine(Subject(settings, Address(server.host, server.port, server.uds)))
    try:
        server.check_files()
    except ConfigError as error:
        findings.append(Finding("server files", Level.ERROR, str(error), "correct what it names"))
    if as_json:
        click.echo(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        write_table(
            sys.stdout,
            ("check", "level", "what", "remedy"),
            [(f.check, f.level, f.what, f.remedy) for f in findings],
            highlight=[_COLOURS[finding.level] for finding in findings],
        )
    return int(any(finding.level is Level.ERROR for finding in findings))
