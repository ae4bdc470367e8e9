"""The shape of the code base: what import-linter can't say, and that it is told everything."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.registry import Registry

ROOT = Path(__file__).parents[1]
CODE = [
    path
    for folder in (
        "core",
        "server",
        "tools",
        "cli",
        "plugins",
        "tests",
        "benchmarks",
        "docs",
        "examples",
    )
    for path in sorted((ROOT / folder).rglob("*.py"))
]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/engine_*/__init__.py"))
PACKAGES = [
    ROOT / "core/engine",
    ROOT / "server/engine_server",
    ROOT / "tools/engine_tools",
    ROOT / "cli/engine_cli",
    *PLUGINS,
]

SURFACE = {
    "artifacts",
    "attention",
    "batch",
    "cache_key",
    "dump",
    "errors",
    "events",
    "facts",
    "families",
    "forward_context",
    "grammars",
    "graph_compiler",
    "graph_device",
    "graph_hash",
    "hookspecs",
    "joined_weights",
    "json_calls",
    "model_folder",
    "models",
    "ops",
    "passes",
    "patterns",
    "plugin",
    "presets",
    "ranges",
    "recording",
    "strategies",
    "structured_outputs",
    "token_range",
    "tool_parsers",
    "tracing",
    "weights",
}
"""The modules of the core that plugins may import; docs/plugin-api.md promises exactly these."""

# Words of the trade that happen to be names of modes as well.
AMBIGUOUS = {
    "none": "no name is installed; the cost that is none",
    "eager": "a step that isn't replayed; capture before serving",
    "full": "a queue that is full",
    "inductor": "the namespace of some of PyTorch's own operators",
    "triton": "the language in which kernels of fused operators are written",
}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_test(path: Path) -> bool:
    return "tests" in path.relative_to(ROOT).parts


# Contracts


def linter_settings() -> dict[str, Any]:
    tool: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return dict(tool["importlinter"])


@pytest.mark.parametrize(
    ("contract", "field"),
    [
        (None, "root_packages"),
        ("by-name", "forbidden_modules"),
        ("siblings", "modules"),
        ("plugin-surface", "source_modules"),
    ],
)
def test_every_plugin_package_is_in_the_import_contracts(contract: str | None, field: str) -> None:
    settings = linter_settings()
    for candidate in settings["contracts"]:
        if candidate["id"] == contract:
            settings = candidate
    listed = set(settings[field]) - {"engine", "engine_cli", "engine_server", "engine_tools"}
    assert listed == {package.name for package in PLUGINS}


def test_the_reference_promises_exactly_this_surface() -> None:
    text = (ROOT / "docs/plugin-api.md").read_text()
    section = text.partition("## What may be relied on")[2].partition("\n## ")[0]
    assert set(re.findall(r"`engine\.(\w+)`", section)) - {"testing"} == SURFACE


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}: import absolutely"
            yield node.module or ""
            if node.module == "engine":
                yield from (f"engine.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_imports_the_plugin_surface_only(package: Path) -> None:
    for path in package.rglob("*.py"):
        if is_test(path):
            continue
        ours = [name for name in imported_modules(path) if name.split(".")[0] == "engine"]
        beyond = [n for n in ours if n != "engine" and n.split(".")[1] not in SURFACE]
        assert beyond == [], relative(path)


# The core names no mode


def words_of_code(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the identifiers and the words of string constants, but not those of docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        found: Sequence[str | None] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [] if id(node) in docstrings else re.findall(r"\w+", node.value)
        elif isinstance(node, ast.Name):
            found = [node.id]
        elif isinstance(node, ast.Attribute):
            found = [node.attr]
        elif isinstance(node, ast.arg | ast.keyword):
            found = [node.arg]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.alias):
            found = node.name.split(".")
        yield from ((word.lower(), getattr(node, "lineno", 0)) for word in found if word)


def test_the_core_names_no_mode() -> None:
    registry = Registry()
    kinds = ("compile_modes", "cudagraph_modes", "backends", "attention")
    modes = {name for kind in kinds for name in registry.names(kind)}
    named = {
        f"{relative(path)}:{line} {word}"
        for path in sorted((ROOT / "core/engine").rglob("*.py"))
        if "testing" not in path.parts
        for word, line in words_of_code(ast.parse(path.read_text()))
        if word in modes - AMBIGUOUS.keys()
    }
    assert named == set()


def test_the_rule_finds_a_mode_that_is_named() -> None:
    tree = ast.parse('"""turbo"""\nif mode == "turbo" or Mode.TURBO or f"use turbo: {x}": turbo()')
    found = [line for word, line in words_of_code(tree) if word == "turbo"]
    assert found == [2, 2, 2, 2]


# Imports are light


HEAVY = ("torch", "triton", "transformers", "gguf", "safetensors", "fastapi", "uvicorn")


def run_python(code: str) -> Any:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_importing_engine_needs_no_heavy_library() -> None:
    code = f"import json, sys, engine; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    assert run_python(code) == []


def test_importing_a_plugin_package_needs_no_heavy_library() -> None:
    names = [package.name for package in PLUGINS]
    code = f"""
import importlib, json, sys
loaded = {{}}
for name in {names}:
    before = set(sys.modules)
    importlib.import_module(name)
    loaded[name] = [m for m in {HEAVY} if m in sys.modules and m not in before]
print(json.dumps(loaded))
"""
    assert run_python(code) == {name: [] for name in names}


# Names


def test_every_public_name_exists_and_the_list_is_sorted() -> None:
    assert engine.__all__ == sorted(engine.__all__)
    for name in engine.__all__:
        assert getattr(engine, name) is not None
    assert set(engine.__all__) == set(dir(engine))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = engine.Nothing  # type: ignore[attr-defined]  # the mistake under test


@pytest.mark.parametrize("path", [p for p in CODE if "__all__ = [" in p.read_text()], ids=relative)
def test_every_list_of_public_names_is_sorted(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
            assert names == sorted(names)


# Files


def test_no_file_is_long() -> None:
    long = {relative(p): n for p in CODE if (n := p.read_text().count("\n")) > 400}
    assert long == {}


def test_no_file_is_a_drawer_for_everything() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert [relative(path) for path in CODE if path.name in drawers] == []


def test_test_folders_are_no_packages() -> None:
    assert [relative(p) for p in CODE if is_test(p) and p.name == "__init__.py"] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_package_is_typed(package: Path) -> None:
    assert (package / "py.typed").is_file()


def test_every_suppression_has_a_reason() -> None:
    pattern = re.compile(r"#\s*(?:noqa(?:: [A-Z0-9, ]+)?|type: ignore(?:\[[^\]]*\])?)\s*$")
    bare = [
        f"{relative(path)}:{number}"
        for path in CODE
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert bare == []
