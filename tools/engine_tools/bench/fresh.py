"""Runs a function in a process of its own, so that nothing is warm and a crash is an answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.config import EngineConfig
from engine.settings import Settings

Outcome = Literal["done", "refused", "failed", "crashed", "interrupted"]
_CHILD = "engine_tools.bench.child"
_TAIL = 2000
"""Characters of the standard error that are kept of a process that crashed."""


@dataclass(frozen=True)
class Reply:
    """What came of a process.

    Attributes:
        outcome: `refused` when the settings can't work here, `failed` when anything else was
            raised, `crashed` when the process ended or was ended without a word, `interrupted`
            when the user ended it or what would have started it.
        value: what the function returned.
        reason: why there is none.
        detail: the end of its standard error.
    """

    outcome: Outcome
    value: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    detail: str = ""


def run_fresh(
    target: str,
    request: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Reply:
    """Call a function of a JSON object in a new process.

    Args:
        target: `module:function`; it takes and returns a JSON object.
        request: its argument.
        environment: variables to set besides those of this process.
        timeout: seconds after which the process is ended; None for no limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer, errors = Path(folder) / "reply.json", Path(folder) / "stderr"
        try:
            # Not a pipe: what a crashed process has started may hold its end open.
            with errors.open("w") as stream:
                done = subprocess.run(  # noqa: S603 - this interpreter, with our own module
                    [sys.executable, "-m", _CHILD, target, str(answer)],
                    input=json.dumps(request),
                    env={**os.environ, **(environment or {})},
                    stdout=subprocess.DEVNULL,
                    stderr=stream,
                    text=True,
                    timeout=timeout,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            return Reply("crashed", reason=f"it was ended after {timeout:g} s without an answer")
        detail = errors.read_text(errors="replace")[-_TAIL:]
        if not answer.exists():
            return Reply("crashed", reason=_death(done.returncode, detail), detail=detail)
        reply = json.loads(answer.read_text())
    return Reply(**reply, detail=detail)


def _death(code: int, detail: str) -> str:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    last = next((line for line in reversed(detail.splitlines()) if line.strip()), "")
    return f"the process ended with {how}" + (f": {last.strip()}" if last else "")


def pack_settings(settings: Settings) -> dict[str, Any]:
    """Return settings as a JSON object."""
    return {
        "config": settings.config.model_dump(mode="json", exclude_unset=True),
        "origins": dict(settings.origins),
    }


def unpack_settings(packed: Mapping[str, Any]) -> Settings:
    """Return the settings that were packed.

    Raises:
        ConfigError: it isn't what `pack_settings` made.
    """
    return Settings(EngineConfig(**packed["config"]), packed["origins"])
