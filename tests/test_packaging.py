"""What is built and installed: complete, typed, and working away from the source tree."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from engine.hookspecs import HOOK_OF_KIND
from engine.runtime.model_source import DEMO_DISTRIBUTION, DEMO_VERSION
from engine.testing.tiny import write_tiny_model

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PLUGIN_GROUPS = {
    group: entries
    for group, entries in PROJECT["project"]["entry-points"].items()
    if group.startswith("engine.")
}
PLUGIN_ROOTS = sorted(
    {f"plugins/{path.parent.parent.name}" for path in ROOT.glob("plugins/*/*/*.py")}
)
IMPORT_ROOTS = ["core", "server", "tools", "cli", *PLUGIN_ROOTS]


# The metadata agrees with the folders


def test_every_plugin_folder_is_an_entry_point_and_every_entry_point_a_folder() -> None:
    folders = {
        (p.parent.parent.name, p.parent.name) for p in ROOT.glob("plugins/*/engine_*/__init__.py")
    }
    listed = [
        (group.partition(".")[2], target)
        for group, entries in PLUGIN_GROUPS.items()
        for target in entries.values()
    ]
    assert sorted(listed) == sorted(folders)


def test_every_plugin_root_is_a_kind_and_an_import_root() -> None:
    assert {root.partition("/")[2] for root in PLUGIN_ROOTS} <= HOOK_OF_KIND.keys()
    hatch = PROJECT["tool"]["hatch"]["build"]
    for roots in (
        hatch["dev-mode-dirs"],
        hatch["targets"]["wheel"]["sources"],
        [
            r
            for r in PROJECT["tool"]["mypy"]["mypy_path"]
            if not r.startswith(("examples/", "bench"))
        ],
    ):
        assert sorted(roots) == sorted(IMPORT_ROOTS)


def test_the_demo_model_is_pinned_with_its_hash() -> None:
    pinned = (ROOT / "requirements-demo.txt").read_text()
    assert f"{DEMO_DISTRIBUTION}=={DEMO_VERSION} \\\n    --hash=sha256:" in pinned


# What is built


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def source_files() -> set[str]:
    """The files of the packages, by their place in site-packages."""
    return {
        str(path.relative_to(ROOT / root))
        for root in IMPORT_ROOTS
        for package in (ROOT / root).glob("engine*")
        for path in package.rglob("*")
        if path.is_file() and not {"tests", "__pycache__"} & set(path.relative_to(ROOT).parts)
    }


def test_the_wheel_holds_every_package_and_no_test(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert names == source_files()
    packages = {name.partition("/")[0] for name in names}
    assert {f"{package}/py.typed" for package in packages} <= names


def test_the_source_distribution_holds_what_the_tests_need(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"LICENSE", "README.md", "conftest.py", "scripts/test", "tests/test_packaging.py"}
    assert expected <= names
    assert not [name for name in names if name.endswith((".whl", ".pyc"))]


# What is installed


class Environment:
    """A virtual environment that has our dependencies, but of us only what is installed in it.

    The dependencies are those of the environment that runs the tests, through a path file; an
    editable install there stays invisible, because a path file's folders have no path files.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        self.site_packages = Path(
            sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        )
        (self.site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def install(self, *what: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        command = [*pip, "--no-deps", "--no-index", "--no-build-isolation", *what]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def start(self, *command: str, cwd: Path) -> subprocess.Popen[str]:
        """Start a command of the environment, away from the sources."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ENGINE_", "PYTHON"))}
        return subprocess.Popen(
            [str(self.python.parent / command[0]), *command[1:]],
            cwd=cwd,
            env={**kept, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str, cwd: Path) -> str:
        """Run a command to its end and return its standard output."""
        with self.start(*command, cwd=cwd) as process:
            out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        return out


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel installed."""
    environment = Environment(tmp_path_factory.mktemp("installed") / "venv")
    environment.install(str(wheel))
    return environment


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_the_wheel_and_not_the_source_tree_is_imported(
    installed: Environment, tmp_path: Path
) -> None:
    code = "import engine, engine_cli, engine_compile_none as p; print(engine, engine_cli, p)"
    out = installed.run("python", "-c", code, cwd=tmp_path)
    assert out.count(str(installed.site_packages)) == 3
    assert str(ROOT) not in out


def test_the_command_says_its_version(installed: Environment, tmp_path: Path) -> None:
    version = PROJECT["project"]["version"]
    assert version in installed.run("engine", "--version", cwd=tmp_path)


def test_every_built_in_works_when_installed(installed: Environment, tmp_path: Path) -> None:
    rows = json.loads(installed.run("engine", "plugins", "--json", cwd=tmp_path))
    ours = {(row["kind"], row["name"]): row["state"] for row in rows}
    listed = {
        (group.partition(".")[2], name)
        for group, entries in PLUGIN_GROUPS.items()
        for name in entries
    }
    assert ours == dict.fromkeys(listed, "ok")


@pytest.mark.slow
def test_an_installed_engine_continues_a_prompt(
    installed: Environment, tiny_model: Path, tmp_path: Path
) -> None:
    command = ["engine", "generate", "--model", str(tiny_model), "--max-tokens", "5", "--json"]
    out = installed.run(*command, "--temperature", "0", "--quiet", "hello", cwd=tmp_path)
    (choice,) = json.loads(out)["outputs"]
    assert len(choice["token_ids"]) == 5


@pytest.mark.slow
def test_an_installed_engine_runs_the_demo_model(installed: Environment, tmp_path: Path) -> None:
    if not list(metadata.distributions(name=DEMO_DISTRIBUTION)):
        pytest.skip(f"{DEMO_DISTRIBUTION} isn't installed")
    prompt = "The capital of France is"
    command = ["engine", "generate", "--temperature", "0", "--max-tokens", "4", "--quiet", prompt]
    assert "Paris" in installed.run(*command, cwd=tmp_path)


@pytest.mark.slow
def test_an_installed_engine_serves_a_completion_and_ends_cleanly(
    installed: Environment, tiny_model: Path, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = ["engine", "serve", str(tiny_model), "--port", str(port)]
    with installed.start(*command, cwd=tmp_path) as server:
        try:
            deadline = time.monotonic() + 120
            while not is_ready(address):
                assert server.poll() is None, server.communicate()[1]
                assert time.monotonic() < deadline, "not ready in time"
                time.sleep(0.2)
            model = httpx.get(f"{address}/v1/models").json()["data"][0]["id"]
            request = {"model": model, "prompt": "hello", "max_tokens": 5, "ignore_eos": True}
            answer = httpx.post(f"{address}/v1/completions", json=request, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 5
            server.send_signal(signal.SIGINT)
            _, err = server.communicate(timeout=60)
        finally:
            server.kill()
    assert server.returncode == 0, err


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_a_spawned_child_imports_the_installed_engine(
    installed: Environment, tmp_path: Path
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing\n"
        "def child(queue):\n"
        "    from engine import CompilationMode\n"
        "    queue.put(CompilationMode.NONE)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=child, args=(queue,))\n"
        "    process.start()\n"
        "    print(queue.get(timeout=60))\n"
        "    process.join()\n"
    )
    assert installed.run("python", str(script), cwd=tmp_path) == "none\n"


@pytest.mark.slow
def test_an_editable_install_sees_new_files_at_once(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("core", "server", "tools", "cli", "plugins"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    environment = Environment(tmp_path / "venv")
    environment.install("--editable", str(checkout))
    (checkout / "core/engine/new_module.py").write_text("VALUE = 'new'\n")
    package = checkout / "plugins/backends/engine_backend_new"
    package.mkdir()
    (package / "__init__.py").write_text("VALUE = 'new plugin'\n")
    code = "from engine.new_module import VALUE as a; from engine_backend_new import VALUE as b"
    out = environment.run("python", "-c", f"{code}; print(a, b)", cwd=tmp_path)
    assert out == "new new plugin\n"


# What is typed


USER_CODE = """
from engine import LLM, CompilationConfig, CompilationMode, CUDAGraphMode, RequestOutput
from engine import SamplingParams

config = CompilationConfig(mode=CompilationMode.NONE, cudagraph_mode="none", backend="eager")
with LLM(model="folder", compilation_config=config) as llm:
    outputs: list[RequestOutput] = llm.generate(["a"], SamplingParams(max_tokens=3))
    text: str = outputs[0].outputs[0].text
"""
MISTAKES = {
    "count: int = outputs[0].outputs[0].text": "Incompatible types in assignment",
    "SamplingParams(max_token=3)": 'Unexpected keyword argument "max_token"',
    "from engine import Nothing": 'Module "engine" has no attribute "Nothing"',
}


@pytest.mark.slow
def test_a_users_project_is_type_checked_against_the_wheel(
    installed: Environment, tmp_path: Path
) -> None:
    # The large libraries are left out, which keeps this at seconds; we are checked, not they.
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\n"
        "[mypy-torch.*,transformers.*,pydantic.*,numpy.*]\nfollow_imports = skip\n"
    )
    (tmp_path / "right.py").write_text(USER_CODE)
    (tmp_path / "wrong.py").write_text(USER_CODE + "\n".join(MISTAKES))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache")),
            *("--python-executable", str(installed.python), "right.py", "wrong.py"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    first = USER_CODE.count("\n") + 1
    for number, expected in enumerate(MISTAKES.values(), first):
        (line,) = [e for e in errors if e.startswith(f"wrong.py:{number}: ")]
        assert expected in line
    assert len(errors) == len(MISTAKES), done.stdout


# The examples


def lines_of_code(path: Path) -> int:
    """Count the lines that hold more than a comment or a docstring."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    lines = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    text = path.read_text().splitlines()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return sum(1 for n in lines if text[n - 1].strip() and not text[n - 1].lstrip().startswith("#"))


@pytest.mark.parametrize("example", sorted((ROOT / "examples").iterdir()), ids=lambda p: p.name)
def test_an_example_is_small_complete_and_keeps_to_the_surface(example: Path) -> None:
    project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
    groups = [group for group in project["entry-points"] if group.startswith("engine.")]
    assert {group.partition(".")[2] for group in groups} <= HOOK_OF_KIND.keys()
    package = example / f"engine_{example.name}"
    assert sum(lines_of_code(path) for path in package.rglob("*.py")) < 250
    assert f"pip install ./examples/{example.name}" in (example / "README.md").read_text()
    assert (package / "py.typed").is_file()
    forbidden = re.compile(r"engine\.(runtime|testing|registry|resolution|settings|config)\b")
    for path in package.rglob("*.py"):
        assert not forbidden.search(path.read_text()), path


def test_what_the_examples_need_is_pinned_once() -> None:
    wanted = {
        dependency
        for path in ROOT.glob("examples/*/pyproject.toml")
        for dependency in tomllib.loads(path.read_text())["project"]["dependencies"]
        if dependency != "modular-engine"
    }
    pinned = (ROOT / "requirements-examples.txt").read_text().splitlines()
    assert {line for line in pinned if not line.startswith("#")} == wanted
