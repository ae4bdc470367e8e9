"""What is in a cache key: everything, but for what says why it isn't."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from engine.cache_key import OutOfKey, settings_factors
from engine.config import CompilationConfig, EngineConfig
from engine.environment import environment_factors
from engine.plugin import Plugin
from engine.registry import Registry
from engine.settings_schema import Schema
from engine.source_code import model_code, package_code

REGISTRY = Registry()
FIELDS = [
    *((EngineConfig, name) for name in EngineConfig.model_fields if name != "compilation_config"),
    *((CompilationConfig, name) for name in CompilationConfig.model_fields),
]
SHAPING_KINDS = ("compile_modes", "backends", "passes")
"""The kinds of plugins that have a say in compiled code."""


def flipped(value: Any) -> Any:
    """Return another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case tuple():
            return (*value, 3)
        case dict():
            return {**value, "key": 3}
        case _:
            return 7 if value is None else None


def marks(field: Any) -> list[OutOfKey]:
    return [mark for mark in field.metadata if isinstance(mark, OutOfKey)]


# Settings


@pytest.mark.parametrize(("model", "name"), FIELDS, ids=[name for _, name in FIELDS])
def test_a_setting_changes_the_key_or_says_why_not(model: type[BaseModel], name: str) -> None:
    before = model()
    after = before.model_copy(update={name: flipped(getattr(before, name))})
    declared = marks(model.model_fields[name])
    assert (settings_factors(before) == settings_factors(after)) == bool(declared)
    assert all(len(mark.reason.split()) > 3 for mark in declared)


def test_a_setting_inside_another_is_found() -> None:
    class Inner(BaseModel):
        """Has both kinds."""

        shapes: int = 1
        shows: Annotated[int, OutOfKey("it only changes what is shown")] = 1

    class Outer(BaseModel):
        """Has one inside."""

        inner: Inner = Inner()
        new: str = "a field that nobody thought about"

    factors = settings_factors(Outer(), "setting.")
    assert set(factors) == {"setting.inner.shapes", "setting.new"}
    assert settings_factors(Outer(inner=Inner(shapes=2)), "setting.") != factors
    assert settings_factors(Outer(inner=Inner(shows=2)), "setting.") == factors


# Plugins


def options_of(kind: str) -> list[Any]:
    return [
        pytest.param(plugin, field.name, id=f"{name}.{field.name}")
        for name in REGISTRY.names(kind)
        for plugin in [REGISTRY.load(kind, name)]
        for field in Schema.of(plugin.OPTIONS).fields.values()
    ]


@pytest.mark.parametrize(
    ("plugin", "option"), [one for kind in SHAPING_KINDS for one in options_of(kind)]
)
def test_an_option_of_a_plugin_changes_its_fingerprint_or_says_why_not(
    plugin: type[Plugin], option: str
) -> None:
    before = plugin.OPTIONS()
    after = before.model_copy(update={option: flipped(getattr(before, option))})
    declared = marks(plugin.OPTIONS.model_fields[option])
    assert (plugin(before).fingerprint() == plugin(after).fingerprint()) == bool(declared)


class Open(BaseModel):
    """Takes any option, as backends of other libraries do."""

    model_config = ConfigDict(extra="allow")


def test_an_option_that_the_schema_doesn_t_know_is_in_the_fingerprint() -> None:
    class Named(Plugin):
        """A plugin with open options."""

        NAME, SUMMARY, OPTIONS = "named", "for tests", Open

    prints = {Named(Open(**given)).fingerprint() for given in ({}, {"a": 1}, {"a": 2}, {"b": 1})}
    assert len(prints) == 4


# Code


def write_package(folder: Path, name: str) -> Path:
    package = folder / name
    (package / "tests").mkdir(parents=True)
    for file in ("__init__.py", "strategy.py", "kernel.cu", "notes.md", "tests/test_it.py"):
        (package / file).write_text("")
    return package


@pytest.mark.parametrize(
    ("file", "matters"),
    [
        ("strategy.py", True),
        ("kernel.cu", True),
        ("new.py", True),
        ("notes.md", False),
        ("tests/test_it.py", False),
        ("left_out/other.py", False),
    ],
)
def test_code_of_a_package_is_in_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, matters: bool
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = write_package(tmp_path, "made_package")
    module = importlib.import_module("made_package.strategy").__name__
    try:
        package_code.cache_clear()
        before = package_code(module, without=("left_out",))
        (package / file).parent.mkdir(exist_ok=True)
        (package / file).write_text("changed = 1\n")
        package_code.cache_clear()
        assert (package_code(module, without=("left_out",)) != before) == matters
    finally:
        for name in ("made_package", "made_package.strategy"):
            sys.modules.pop(name, None)
        package_code.cache_clear()


def test_code_of_a_model_is_that_of_all_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("made_outer", "made_inner"):
        (tmp_path / f"{name}.py").write_text("from torch import nn\nclass Made(nn.Module): pass\n")
    outer, inner = (importlib.import_module(name) for name in ("made_outer", "made_inner"))
    try:
        model = outer.Made()
        model.inner, model.plain = inner.Made(), nn.Linear(2, 2)
        hashes = [model_code(model)]
        for name in ("made_outer", "made_inner"):
            with (tmp_path / f"{name}.py").open("a") as file:
                file.write("# changed\n")
            hashes.append(model_code(model))
        assert len(set(hashes)) == 3
        model.plain = None
        assert model_code(model) == hashes[-1]
    finally:
        for name in ("made_outer", "made_inner"):
            sys.modules.pop(name, None)


def test_the_environment_names_what_compiled_code_depends_on() -> None:
    factors = environment_factors(torch.device("cpu"))
    assert set(factors) == {
        "python", "torch", "triton", "transformers", "machine", "device", "cpu",
    }  # fmt: skip
    assert all(factors.values())
