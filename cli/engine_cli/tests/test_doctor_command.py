"""`engine doctor` prints findings and says by its exit code whether a start can work."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.testing.tiny import write_tiny_model

Engine = Callable[..., Any]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("doctor") / "tiny")


def test_a_sound_machine_exits_with_0_and_every_finding_has_a_row(
    engine: Engine, tiny: Path
) -> None:
    arguments = [str(tiny), "--port", "0", "--device", "cpu"]
    outcome = engine("doctor", *arguments)
    assert outcome.code == 0
    rows = json.loads(engine("doctor", *arguments, "--json").out)
    assert len(outcome.out.splitlines()) == len(rows) + 1
    assert {frozenset(row) for row in rows} == {frozenset({"check", "level", "what", "remedy"})}
    assert "error" not in {row["level"] for row in rows}


def test_a_warning_alone_exits_with_0(engine: Engine, tiny: Path) -> None:
    outcome = engine(
        "doctor", str(tiny), "--port", "0", "--device", "cpu", "--cache-dir", "/proc/x"
    )
    assert outcome.code == 0
    assert "warning  /proc/x/artifacts" in outcome.out


def test_an_error_exits_with_1(engine: Engine, tiny: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny, tmp_path / "copy")
    (model / "model.safetensors").write_bytes(b"no")
    outcome = engine("doctor", str(model), "--port", "0", "--json")
    assert outcome.code == 1
    errors = [row for row in json.loads(outcome.out) if row["level"] == "error"]
    assert [row["check"] for row in errors] == ["model"]


def test_the_settings_of_the_server_are_checked_too(
    engine: Engine, tiny: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        absent = str(tmp_path / "absent.pem")
        outcome = engine("doctor", str(tiny), "--port", port, "--ssl-certfile", absent)
    assert outcome.code == 1
    assert f"port {port} is in use" in outcome.out
    assert f"ssl_certfile={absent}: cannot be read" in outcome.out


def test_bad_usage_exits_with_2(engine: Engine) -> None:
    assert engine("doctor", "--dtype", "float33").code == 2
    assert engine("doctor", "--backend", "no_such_backend").code == 2
