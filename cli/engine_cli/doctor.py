"""`engine doctor`: can a start work here?"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from engine.config import EngineConfig
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.state import State
from engine_cli.tables import write_table
from engine_server.config import ServerConfig

if TYPE_CHECKING:
    from engine_tools.doctor import Finding

_COLOURS = {"warning": "yellow", "error": "red"}


@settings_command(
    "doctor",
    models=(EngineConfig, ServerConfig),
    examples=("engine doctor", "engine doctor ./model --device cuda --port 8080 --json"),
    params=[click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")],
)
@click.pass_obj
def doctor(state: State, /, sources: Sources, as_json: bool) -> int:
    """Look at libraries, plugins, GPU, compiler, user, cache, memory, MODEL's files and port.

    Loads nothing and takes a second or two. Give it the flags that you would give `engine serve`.
    Exits with 1 when a start with them would fail.
    """
    settings = sources.settings(state)
    server, _ = sources.build(ServerConfig)
    state.tell_notes()
    from engine_tools.doctor import Patient, examine

    findings = examine(Patient(settings.config, server.host, server.port, server.uds))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    return int(any(finding.level == "error" for finding in findings))


def _show(findings: Sequence[Finding]) -> None:
    rows = [(f.level.value, f.check, _text(f)) for f in findings]
    colours = [_COLOURS.get(finding.level) for finding in findings]
    write_table(sys.stdout, ("", "check", "found"), rows, highlight=colours)


def _text(finding: Finding) -> str:
    return f"{finding.detail}; {finding.remedy}" if finding.remedy else finding.detail
