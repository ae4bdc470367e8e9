"""Any built-in plugin may be missing: the rest works, or one sentence says what is lacking."""

from __future__ import annotations

import pytest

from engine import LLM, EngineError, Registry, SamplingParams
from engine.testing.tiny import write_tiny_model

BUILT_INS = [f"{claim.kind}/{claim.name}" for claim in Registry(blocked=()).claims()]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


def start(model: str) -> LLM:
    return LLM(model=model, optimization_level=0)


def run(model: str) -> tuple[list[int], str]:
    """Return the tokens that the model makes, or why it doesn't start."""
    try:
        with start(model) as llm:
            return llm.generate("hello", GREEDY)[0].outputs[0].token_ids, ""
    except EngineError as error:
        return [], str(error)


@pytest.fixture(scope="module")
def plain(tiny_model: str) -> tuple[set[str], list[int]]:
    """The plugins in force when none is missing, and the tokens that they make."""
    with start(tiny_model) as llm:
        tokens = llm.generate("hello", GREEDY)[0].outputs[0].token_ids
        config = llm.resolution.config
    chosen = config.compilation_config
    in_force = {
        f"attention/{config.attention}",
        f"backends/{chosen.backend}",
        f"compile_modes/{chosen.mode}",
        f"cudagraph_modes/{chosen.cudagraph_mode}",
        f"models/{config.model_impl}",
        f"presets/{config.preset}",
        f"weights/{config.load_format}",
    }
    return in_force, tokens


@pytest.mark.parametrize("missing", BUILT_INS)
def test_the_engine_without_one_of_its_plugins(
    missing: str,
    tiny_model: str,
    plain: tuple[set[str], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_force, tokens = plain
    monkeypatch.setenv("ENGINE_BLOCK_PLUGINS", missing)
    made, sentence = run(tiny_model)
    if sentence:
        assert missing in in_force
        assert missing.partition("/")[2] in sentence
        assert "\n" not in sentence
    else:
        assert made == tokens
