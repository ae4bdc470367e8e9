"""`--debug-dump`: what a start makes is there to read, and nothing else of the start changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, CompilationConfig, ConfigError, SamplingParams
from engine.cache_folder import CacheFolder
from engine.errors import CompileError
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
BACKEND = """
from engine.testing.backends import StoringBackend as Base

class Made(Base):
    def generated_code(self, compiled):
        return {"kernel.c": f"// of {type(compiled).__name__}"}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(autouse=True)
def storing(make_plugin: PluginMaker) -> None:
    make_plugin("storing", kind="backends", body=BACKEND)


class Dumped:
    """The one dump in a folder."""

    def __init__(self, folder: Path) -> None:
        (self.folder,) = folder.iterdir()
        self.index: dict[str, Any] = json.loads((self.folder / "index.json").read_text())
        self.about = {each["file"]: each["about"] for each in self.index["files"]}
        self.missing = {each["what"]: each["why"] for each in self.index["missing"]}

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


def start(model: Path, *, dump: Path | None = None, **given: Any) -> list[int]:
    """Answer one prompt."""
    chosen = {"mode": "vllm_compile", "backend": "storing", "cudagraph_mode": "none"}
    compilation = CompilationConfig(**{**chosen, **given.pop("compilation", {})})
    settings = {"max_num_batched_tokens": 40, "threads": 1, **given}
    with LLM(str(model), debug_dump=dump, compilation_config=compilation, **settings) as llm:
        return list(llm.generate("dump", GREEDY, progress=False)[0].outputs[0].token_ids)


def test_tokens_and_artifacts_are_those_of_a_start_without(model: Path, tmp_path: Path) -> None:
    passes = ("+silu_mul", "+add_rms_norm")
    seen = []
    for dump, cache in ((None, tmp_path / "plain"), (tmp_path / "dump", tmp_path / "dumped")):
        tokens = start(model, dump=dump, compilation={"cache_dir": cache, "passes": passes})
        entries = CacheFolder(cache).entries()
        seen.append((tokens, {entry.key: dict(entry.factors) for entry in entries}))
    assert seen[0] == seen[1]
    assert seen[0][1]


def test_everything_that_a_start_makes_is_there(model: Path, tmp_path: Path) -> None:
    compilation = {
        "passes": ("+silu_mul",),
        "compile_ranges": (8, 40),
        "cudagraph_mode": "piecewise",
        "cudagraph_capture_sizes": (1, 4),
        "cache_dir": tmp_path / "cache",
    }
    start(model, dump=tmp_path / "dump", compilation=compilation, graph_device="simulated")
    dumped = Dumped(tmp_path / "dump")
    inside = "compile-vllm_compile"
    assert "L_input_ids_" in dumped.text(f"{inside}/00-traced.py")
    before, after = (
        dumped.text(f"{inside}/passes/01-silu_mul-{when}.py") for when in ("before", "after")
    )
    assert "silu_mul" not in before
    assert "engine.silu_mul" in after
    assert "fired 2 times" in dumped.about[f"{inside}/passes/01-silu_mul-after.py"]
    assert dumped.text(f"{inside}/stitched.py").startswith("def step(input_ids, positions):")
    pieces = {name: about for name, about in dumped.about.items() if name.endswith("/graph.py")}
    assert list(pieces.values()) == [
        "piece 0, which a step runs once",
        "piece 2, which a step runs once",
        "piece 4, which a step runs once",
    ]
    for tokens in ("1-8", "9-40"):
        assert dumped.text(f"{inside}/piece-0/{tokens}-tokens/code/kernel.c") == "// of method"
    plan = json.loads(dumped.text("capture.json"))
    assert [shape["num_tokens"] for shape in plan["planned"]] == [4, 1]
    assert [each["num_tokens"] for each in plan["captured"]] == [4, 1]
    assert "piecewise: 2 shapes are recorded in this order" in dumped.text("capture.txt")
    settings = {r["setting"]: r["effective"] for r in json.loads(dumped.text("settings.json"))}
    assert settings["compilation_config.backend"] == "storing"
    assert any(name.startswith("kv_cache") for name in settings)
    ledger = json.loads(dumped.text("ledger.json"))
    assert [unit["num_bytes"] > 0 for unit in ledger["units"]] == [True] * 6
    assert [(each["kind"], each["sizes"]) for each in ledger["captures"]] == [("piecewise", [4, 1])]


def test_a_start_from_the_cache_says_what_it_did_not_make(
    model: Path, tmp_path: Path, make_plugin: PluginMaker
) -> None:
    body = """
from engine.strategies import Pass as Base

class Made(Base):
    STAGE = "piece"
    def run(self, graph):
        return 1
"""
    make_plugin("later", kind="passes", body=body)
    compilation = {"cache_dir": tmp_path / "cache", "passes": ("+later",)}
    start(model, dump=tmp_path / "first", compilation=compilation)
    start(model, dump=tmp_path / "second", compilation=compilation)
    first, second = Dumped(tmp_path / "first"), Dumped(tmp_path / "second")
    piece = "compile-vllm_compile/piece-0/1-40-tokens"
    assert f"{piece}/passes/01-later-after.py" in first.about
    assert f"{piece}/passes" not in first.missing
    assert f"{piece}/passes/01-later-after.py" not in second.about
    assert "not compiled now" in second.missing[f"{piece}/passes"]
    assert second.about[f"{piece}/code/kernel.c"].startswith("came from the artifact store")


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ("", "backend quiet shows no code"),
        ("    def generated_code(self, compiled): return 1 / 0", "ZeroDivisionError"),
        ("    def generated_code(self, compiled): return 'text'", "AttributeError"),
        ("    def generated_code(self, compiled): return {'a.c': b'bytes'}", "TypeError"),
    ],
)
def test_a_backend_that_shows_nothing_is_named(
    model: Path, tmp_path: Path, make_plugin: PluginMaker, member: str, reason: str
) -> None:
    body = f"{BACKEND.partition('    def')[0]}    pass\n{member}\n"
    make_plugin("quiet", kind="backends", body=body)
    compilation = {"backend": "quiet", "cache_dir": tmp_path / "cache"}
    start(model, dump=tmp_path / "dump", compilation=compilation)
    missing = Dumped(tmp_path / "dump").missing
    assert reason in missing["compile-vllm_compile/piece-0/1-40-tokens/code"]
    assert missing["capture.txt"] == "the graph mode records nothing"


MODE = """
from engine.graph_compiler import GraphCompiler
from engine.strategies import CompiledModel, CompileReport, CompileStrategy as Base
from engine.token_range import TokenRange
from engine.tracing import trace_model

class Made(Base):
    def compile(self, job):
        traced, report = trace_model(job.model, job.max_num_tokens, job.device), CompileReport()
        job.dump.text("mine.txt", "a word of its own", "a stranger's")
        call = GraphCompiler(job, self.fingerprint(), report).compile(
            "all of it", traced.graph, TokenRange(1, job.max_num_tokens)
        )
        return CompiledModel(traced.bind(call), report)
"""


def test_a_strangers_compile_mode_is_dumped_like_ours(
    model: Path, tmp_path: Path, make_plugin: PluginMaker
) -> None:
    make_plugin("stranger", body=MODE)
    compilation = {"mode": "stranger", "cache_dir": tmp_path / "cache"}
    start(model, dump=tmp_path / "dump", compilation=compilation)
    dumped = Dumped(tmp_path / "dump")
    assert dumped.text("compile-stranger/mine.txt") == "a word of its own"
    assert "embedding" in dumped.text("compile-stranger/all-of-it/graph.py")
    assert "compile-stranger/all-of-it/1-40-tokens/code/kernel.c" in dumped.about


def test_graphs_that_torch_compile_finds_are_dumped(model: Path, tmp_path: Path) -> None:
    start(model, dump=tmp_path / "dump", compilation={"mode": "stock_torch_compile"})
    dumped = Dumped(tmp_path / "dump")
    assert "L_input_ids_" in dumped.text("compile-stock_torch_compile/graph-1/graph.py")
    assert "compile-stock_torch_compile/graph-1/code/kernel.c" in dumped.about


FAILING = """
from engine.errors import CompileError
from engine.strategies import CompileStrategy as Base

class Made(Base):
    def compile(self, job):
        job.dump.text("last.txt", "seen")
        raise CompileError("it can't", "take another")
"""


def test_a_start_that_fails_leaves_what_it_made(
    model: Path, tmp_path: Path, make_plugin: PluginMaker
) -> None:
    make_plugin("failing", body=FAILING)
    with pytest.raises(CompileError, match="it can't"):
        start(model, dump=tmp_path / "dump", compilation={"mode": "failing"})
    dumped = Dumped(tmp_path / "dump")
    assert dumped.text("compile-failing/last.txt") == "seen"
    assert "settings.txt" in dumped.about
    assert "ledger.txt" not in dumped.about


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_opened(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    # There is no such model, which would be the next thing to be told.
    with pytest.raises(ConfigError, match=r"debug_dump=.*name a directory that can"):
        start(tmp_path / "no model", dump=tmp_path / "file")
