"""`engine compile`: a bundle that starts elsewhere without a compiler, or says what doesn't fit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import (
    LLM,
    CompilationConfig,
    ConfigError,
    EngineConfig,
    SamplingParams,
    compile_bundle,
)
from engine.artifacts import FileStore, artifact_key
from engine.bundle import check_bundle, read_bundle, write_bundle
from engine.cache_folder import CacheFolder
from engine.events import CompiledUnit, Event
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model
from engine_cli.main import main

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
BODY = "from engine.testing.backends import StoringBackend as Base\nclass Made(Base): pass"
UNKEPT = f"{BODY}\nMade.save = lambda self, compiled: None"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(autouse=True)
def storing(make_plugin: PluginMaker) -> None:
    make_plugin("storing", kind="backends", body=BODY)


def settings(model: Path, *, compilation: dict[str, Any] | None = None, **given: Any) -> Any:
    chosen = {
        "mode": "vllm_compile", "backend": "storing", "cudagraph_mode": "none",
        **(compilation or {}),
    }  # fmt: skip
    given = {"max_num_batched_tokens": 40, "threads": 1, **given}
    return EngineConfig(model=str(model), compilation_config=CompilationConfig(**chosen), **given)


def serve(model: Path, bundle: Path, **given: Any) -> tuple[list[int], list[bool]]:
    """Answer one prompt from a bundle alone; also return which units came from it."""
    units: list[bool] = []

    def note(event: Event) -> None:
        if isinstance(event, CompiledUnit):
            units.append(event.cached)

    required = {"cache_dir": bundle, "require_cache": True}
    config = settings(model, compilation=required, **given)
    with LLM(engine_config=config, on_event=note) as llm:
        return list(llm.generate("bundle", GREEDY)[0].outputs[0].token_ids), units


def test_a_bundle_serves_wherever_it_is_put(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compile_bundle(settings(model), tmp_path / "here" / "bundle")
    assert made.folder == tmp_path / "here" / "bundle"
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["bundle"]
    there = shutil.move(made.folder, tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    before = sorted(Path(there).rglob("*"))
    tokens, units = serve(model, Path("there"), num_kv_blocks=30, max_num_seqs=3)
    assert units == [True] * len(made.artifacts)
    assert sorted(Path(there).rglob("*")) == before
    with LLM(engine_config=settings(model, compilation={"mode": "none"})) as plain:
        assert tokens == list(plain.generate("bundle", GREEDY)[0].outputs[0].token_ids)


def test_its_list_names_every_artifact_with_its_checksum_and_no_path(
    model: Path, tmp_path: Path
) -> None:
    made = compile_bundle(settings(model), tmp_path / "bundle")
    assert made == read_bundle(made.folder)
    files = {path for path in made.folder.rglob("*") if path.is_file()}
    assert {made.folder / name for name in made.artifacts} == files - {made.folder / "bundle.json"}
    for name, digest in made.artifacts.items():
        content = (made.folder / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
        assert str(tmp_path).encode() not in content
    text = (made.folder / "bundle.json").read_text()
    assert str(tmp_path) not in text
    assert str(model) not in text
    assert made.model == "tiny"
    assert json.loads(text)["factors"]["setting.dtype"] == '"float32"'


def test_another_environment_or_setting_is_named_before_weights_are_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = compile_bundle(settings(model), tmp_path / "bundle").folder
    monkeypatch.setattr("engine.runtime.engine_core.build_model", None)
    with pytest.raises(ConfigError, match=r"bundle of tiny was made for something else .*dtype"):
        serve(model, bundle, dtype="bfloat16")
    path = bundle / "bundle.json"
    manifest = json.loads(path.read_text())
    manifest["factors"] |= {"torch": "2.0 old", "cpu": "AVX9000"}
    path.write_text(json.dumps(manifest))
    with pytest.raises(ConfigError) as caught:
        serve(model, bundle)
    assert "torch (2.0 old and " in str(caught.value)
    assert "cpu (AVX9000 and " in str(caught.value)
    assert "engine compile" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is no list of a bundle"),
        (b"[]", "is no list of a bundle"),
        (b'{"format": 1}', "is no list of a bundle"),
        (b'{"format": 99}', "its format is 99, this version of engine reads 1"),
        (b"\xff\xfe", "is no list of a bundle"),
    ],
)
def test_a_damaged_list_is_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "bundle.json").write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        read_bundle(tmp_path)


def test_a_missing_artifact_is_named(tmp_path: Path) -> None:
    for unit in "ab":
        FileStore(CacheFolder(tmp_path).root).put(artifact_key({"u": unit}), b"x", {"u": unit})
    bundle = write_bundle(tmp_path, "tiny", {"torch": "2"})
    check_bundle(bundle, {"torch": "2", "only here": "no matter"})
    victim = CacheFolder(tmp_path).entries()[0]
    CacheFolder(tmp_path).remove([victim])
    with pytest.raises(ConfigError, match=f"1 artifacts of the bundle are missing.*{victim.key}"):
        check_bundle(bundle, {"torch": "2"})


def test_a_damaged_artifact_is_not_compiled_anew(model: Path, tmp_path: Path) -> None:
    bundle = compile_bundle(settings(model), tmp_path / "bundle").folder
    victim = CacheFolder(bundle).entries()[0].path
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"require_cache: .* is not among the artifacts"):
        serve(model, bundle)


# What can't be a bundle


@pytest.mark.parametrize(
    ("compilation", "says"),
    [
        ({"mode": "none"}, "compile mode none compiles nothing"),
        ({"mode": "stock_torch_compile"}, "stock_torch_compile doesn't take what it compiles"),
        ({"backend": "eager"}, "backend eager keeps no artifacts"),
        ({"cache_dir": Path("elsewhere")}, "cache_dir .* leave it out"),
        ({"require_cache": True}, "require_cache .* leave it out"),
    ],
)
def test_settings_that_leave_nothing_to_carry_are_refused_at_once(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compilation: dict[str, Any],
    says: str,
) -> None:
    monkeypatch.setattr("engine.runtime.engine_core.build_model", None)
    with pytest.raises(ConfigError, match=says):
        compile_bundle(settings(model, compilation=compilation), tmp_path / "bundle")
    assert list(tmp_path.glob("bundle*")) == []


def test_a_unit_that_cannot_be_kept_is_named_and_nothing_is_left(
    model: Path, tmp_path: Path, make_plugin: PluginMaker
) -> None:
    make_plugin("unkept", kind="backends", body=UNKEPT)
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"piece 0 \[1-40\] can't be kept.*can't save it"):
        compile_bundle(settings(model, compilation={"backend": "unkept"}), out / "bundle")
    assert list(out.iterdir()) == []


def test_a_folder_that_holds_something_is_not_touched(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("dear")
    for folder in (tmp_path, tmp_path / "mine", tmp_path / "mine" / "bundle"):
        with pytest.raises(ConfigError, match=r"exists already|can't be written"):
            compile_bundle(settings(model), folder)
    assert (tmp_path / "mine").read_text() == "dear"


# With the real compiler, from the command line


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from engine_cli.main import main; sys.exit(main())"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ENGINE_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd, env={**clean, **environment}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip


@pytest.mark.slow
def test_a_bundle_of_compiled_kernels_needs_no_compiler(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--threads", "1", "--compilation-mode", "vllm_compile", "--backend", "inductor")
    done = run("compile", str(model), "--out", "bundle", *common, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "start from them: engine serve MODEL --cache-dir bundle --require-cache" in done.stdout
    (tmp_path / "bundle").rename(tmp_path / "moved")
    generate = ("generate", "x", "-m", str(model), "--max-tokens", "5", "--temperature", "0")
    bare = {"PATH": str(tmp_path / "nowhere"), "CXX": "/nowhere/g++", "CC": "/nowhere/gcc"}
    cached = ("--cache-dir", str(tmp_path / "moved"), "--require-cache")
    served = run(*generate, *common, *cached, cwd=model, **bare)
    assert served.returncode == 0, served.stderr
    assert main([*generate, "--enforce-eager", "-q", "--threads", "1"]) == 0
    assert served.stdout == capsys.readouterr().out


def test_the_command_needs_a_place_and_tells_bad_settings(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments, says in (
        (["compile", str(model)], "Missing option '--out'"),
        (["compile", str(model), "--out", str(tmp_path)], "exists already"),
        (["compile", str(model), "--out", str(tmp_path / "b"), "--mode-options", "x=1"], "x"),
        (["compile", str(tmp_path / "none"), "--out", str(tmp_path / "b")], "no such folder"),
    ):
        (tmp_path / "file").touch()
        assert main(arguments) == 2
        assert says in capsys.readouterr().err
