"""One cache directory, many starts: never another model's code, never a compilation too many.

The backend keeps the graphs themselves, so a wrong artifact gives wrong tokens.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engine import LLM, ConfigError, SamplingParams
from engine.cache_folder import CacheFolder
from engine.events import CompiledUnit, Event
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
BODY = "from engine.testing.backends import StoringBackend as Base\nclass Made(Base): pass"
TokenIds = list[int]


class Kept(NamedTuple):
    """What a start left in a cache directory: the tokens it gave, and how many units it made."""

    cache: Path
    tokens: TokenIds
    units: int


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), seed=random.randrange(1000))


@pytest.fixture(autouse=True)
def storing(make_plugin: PluginMaker) -> None:
    make_plugin("storing", kind="backends", body=BODY)


def start(
    model: Path, cache: Path, *, compilation: dict[str, Any] | None = None, **settings: Any
) -> tuple[TokenIds, list[bool]]:
    """Start, answer one prompt, stop.

    Returns:
        The tokens, and for each compiled unit whether it came from the cache.
    """
    units: list[bool] = []

    def note(event: Event) -> None:
        if isinstance(event, CompiledUnit):
            units.append(event.cached)

    chosen = {
        "mode": "vllm_compile", "backend": "storing", "cudagraph_mode": "none",
        "cache_dir": cache, **(compilation or {}),
    }  # fmt: skip
    given = {"max_num_batched_tokens": 40, "max_num_seqs": 4, "threads": 1, **settings}
    with LLM(str(model), compilation_config=chosen, on_event=note, **given) as llm:
        tokens = llm.generate("cache", GREEDY)[0].outputs[0].token_ids
    return list(tokens), units


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"cache": tmp_path_factory.mktemp("cache")}


@pytest.fixture
def kept(_shared: dict[str, Any], model: Path, tmp_path: Path, storing: None) -> Kept:
    """A cache directory after one start, which is made once for all tests; and what that gave."""
    if "tokens" not in _shared:
        _shared["tokens"], _shared["units"] = start(model, _shared["cache"])
    cache = shutil.copytree(_shared["cache"], tmp_path / "kept")
    return Kept(cache, _shared["tokens"], len(_shared["units"]))


def artifacts(cache: Path) -> list[Path]:
    return sorted((cache / "artifacts").glob("*.artifact"))


# Case 1: two starts that differ in something that shapes the code


@pytest.mark.parametrize(
    "change",
    [
        {"hf_overrides": {"rms_norm_eps": 0.7}},
        {"compilation": {"compile_sizes": (7,)}},
        {"max_num_batched_tokens": 48},
        {"dtype": "bfloat16"},
    ],
    ids=str,
)
def test_each_of_two_alternating_configurations_gets_its_own_code(
    model: Path, tmp_path: Path, kept: Kept, change: dict[str, Any]
) -> None:
    clean, _ = start(model, tmp_path / "clean", **change)
    other, units = start(model, kept.cache, **change)
    assert other == clean
    assert not all(units)
    assert start(model, kept.cache) == (kept.tokens, [True] * kept.units)


# Case 2: two starts that differ in what doesn't


@pytest.mark.parametrize(
    "change",
    [
        {
            "num_kv_blocks": 40,
            "max_queue": 9,
            "enable_prefix_caching": False,
            "max_num_seqs": 3,
            "max_model_len": 128,
            "seed": 5,
            "optimization_level": 1,
        },
        {"memory_utilization": 0.5, "kv_cache_memory": 2**24, "skip_tokenizer": False},
    ],
    ids=["requests and blocks", "memory"],
)
def test_a_start_that_differs_in_nothing_that_shapes_code_compiles_nothing(
    model: Path,
    tmp_path: Path,
    kept: Kept,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
) -> None:
    monkeypatch.setenv("SOME_VARIABLE", str(random.random()))
    monkeypatch.setenv("ENGINE_PORT", "1234")
    monkeypatch.chdir(tmp_path)
    other_folder = shutil.copytree(model, tmp_path / "copied_model")
    assert start(other_folder, kept.cache, **change) == (kept.tokens, [True] * kept.units)
    assert len(artifacts(kept.cache)) == kept.units


# Case 4: bad artifacts


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-random.randrange(1, 50)] ^= 1 << random.randrange(8)
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "flipped": flip,
    "wrong version": lambda path: path.write_bytes(
        path.read_bytes().replace(b'"format": 1', b'"format": 9', 1)
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_bad_artifact_is_rebuilt_once_with_the_same_tokens_and_one_line(
    model: Path, kept: Kept, damage: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    victim = random.choice(artifacts(kept.cache))
    damage(victim)
    rebuilt, after = start(model, kept.cache)
    assert rebuilt == kept.tokens
    assert sorted(after) == [False] + [True] * (kept.units - 1)
    (line,) = [r.getMessage() for r in caplog.records if "set aside" in r.getMessage()]
    assert str(victim) in line
    assert start(model, kept.cache) == (kept.tokens, [True] * kept.units)
    assert len(CacheFolder(kept.cache).set_aside()) == 1


# Case 5: a directory that moves


def test_a_moved_cache_is_a_hit_and_names_no_old_path(
    model: Path, tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.cache.rename(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    assert start(model, Path("b")) == (kept.tokens, [True] * kept.units)
    assert not kept.cache.exists()
    for path in artifacts(Path("b")):
        assert str(tmp_path.parent).encode() not in path.read_bytes()


# Case 6: a depth that no setting tells

MODEL = """
import os
from engine_model_llama.model import Llama
from engine_model_llama.plugin import LlamaFamily as Base

class Cut(Llama):
    def load_weights(self, weights):
        super().load_weights(weights)
        self.layers = self.layers[: int(os.environ["TINY_DEPTH"])]

class Made(Base):
    def build(self, config, *, dtype, device):
        model = super().build(config, dtype=dtype, device=device)
        model.__class__ = Cut
        return model
"""


@pytest.mark.parametrize("mode", ["vllm_compile", "dynamo_trace_once"])
def test_models_of_different_depth_never_share_an_artifact(
    model: Path,
    tmp_path: Path,
    make_plugin: PluginMaker,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    make_plugin("cut", kind="models", body=MODEL, attributes={"PRIORITY": -1})

    def deep(depth: int, cache: Path) -> tuple[TokenIds, list[bool]]:
        monkeypatch.setenv("TINY_DEPTH", str(depth))
        return start(model, cache, model_impl="cut", compilation={"mode": mode})

    clean = {depth: deep(depth, tmp_path / str(depth))[0] for depth in (1, 2)}
    shared = tmp_path / "shared"
    for depth, hit in ((1, False), (2, False), (1, True), (2, True)):
        tokens, units = deep(depth, shared)
        assert (tokens, set(units)) == (clean[depth], {hit})


# Starting from artifacts alone


def test_a_required_cache_serves_what_it_has_and_compiles_nothing(
    model: Path, tmp_path: Path, kept: Kept
) -> None:
    required = {"require_cache": True}
    assert start(model, kept.cache, compilation=required) == (kept.tokens, [True] * kept.units)
    before = artifacts(kept.cache)
    with pytest.raises(ConfigError) as caught:
        start(model, kept.cache, compilation=required, hf_overrides={"rms_norm_eps": 0.5})
    for expected in ("require_cache: piece 0 [1-40] is not among", str(kept.cache), "hf_overrides"):
        assert expected in str(caught.value)
    with pytest.raises(ConfigError, match=r"piece 0 \[1-40\] is not among .* holds none"):
        start(model, tmp_path / "empty", compilation=required)
    assert artifacts(kept.cache) == before
    assert not artifacts(tmp_path / "empty")


@pytest.mark.parametrize(
    ("compilation", "says"),
    [
        ({"mode": "stock_torch_compile"}, "compile mode stock_torch_compile doesn't take"),
        ({"backend": "eager"}, "backend eager keeps no artifacts"),
        ({"backend": "aot_eager"}, "backend aot_eager keeps no artifacts"),
    ],
    ids=str,
)
def test_what_cannot_come_from_a_cache_is_refused_before_the_weights_are_read(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compilation: dict[str, str],
    says: str,
) -> None:
    monkeypatch.setattr("engine.runtime.engine_core.build_model", None)
    with pytest.raises(ConfigError, match=says):
        start(model, tmp_path, compilation={"require_cache": True, **compilation})


def test_a_downgrade_may_compile_what_is_not_kept(model: Path, kept: Kept) -> None:
    required = {"require_cache": True, "backend": "eager"}
    tokens, _ = start(model, kept.cache, compilation=required, on_downgrade="warn")
    assert tokens == kept.tokens


def test_a_mode_that_compiles_nothing_needs_nothing(model: Path, kept: Kept) -> None:
    required = {"require_cache": True, "mode": "none"}
    assert start(model, kept.cache, compilation=required) == (kept.tokens, [])
