"""`engine config show`: each value, and which source said it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.settings_schema import Schema

Engine = Callable[..., Any]


def rows(engine: Engine, *args: str) -> dict[str, dict[str, Any]]:
    outcome = engine("config", "show", "--json", *args)
    assert outcome.code == 0, outcome.err
    return {row["setting"]: row for row in json.loads(outcome.out)}


def test_each_source_is_named(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("max_num_seqs: 8\nport: 1234\ncompilation_config:\n  mode: none\n")
    monkeypatch.setenv("ENGINE_BLOCK_SIZE", "32")
    found = rows(engine, "--config", str(file), "--dtype", "float32", "--port", "99")
    said = {name: (row["value"], row["source"]) for name, row in found.items()}
    assert said["dtype"] == ("float32", "--dtype")
    assert said["port"] == (99, "--port")
    assert said["block_size"] == (32, "ENGINE_BLOCK_SIZE")
    assert said["max_num_seqs"] == (8, "engine.yaml")
    assert said["compilation_config.mode"] == ("none", "engine.yaml")
    assert said["seed"] == (0, "default")


def test_every_setting_is_there_and_can_be_left_out(engine: Engine) -> None:
    found = rows(engine)
    fields = Schema.of(EngineConfig).fields.values()
    assert {field.name for field in fields if not field.is_group} <= {*found}
    assert {row["source"] for row in found.values()} == {"default"}
    assert rows(engine, "--given") == {}
    assert [*rows(engine, "--given", "--port", "1")] == ["port"]


def test_a_key_of_a_mapping_is_said_by_its_flag(engine: Engine) -> None:
    found = rows(engine, "--hf-overrides", "num_hidden_layers=2", "--given")
    assert found["hf_overrides"]["value"] == {"num_hidden_layers": 2}
    assert found["hf_overrides"]["source"] == "--hf-overrides"


def test_a_secret_is_not_shown(engine: Engine) -> None:
    outcome = engine("config", "show", "--given", "--api-key", "hush")
    assert "hush" not in outcome.out
    assert "(not shown)" in outcome.out


def test_a_bad_value_is_refused_as_everywhere(engine: Engine) -> None:
    outcome = engine("config", "show", "--dtype", "bf16")
    assert outcome.code == 2
    assert "--dtype=bf16" in outcome.err
