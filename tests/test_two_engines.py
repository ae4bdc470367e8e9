"""Engines of one process share nothing: operators to split at, passes, options, configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import LLM, CompilationConfig, EngineConfig, SamplingParams
from engine.testing.tiny import write_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def start(folder: Path, **compilation: Any) -> LLM:
    chosen = {"mode": "vllm_compile", "backend": "eager", **compilation}
    return LLM(
        str(folder),
        threads=1,
        optimization_level=0,
        compilation_config=CompilationConfig(**chosen),
    )


def tokens(llm: LLM) -> list[int]:
    return llm.generate([[5, 6, 7]], GREEDY, progress=False)[0].outputs[0].token_ids


def test_a_second_engine_sees_nothing_of_the_first(folder: Path) -> None:
    defaults = EngineConfig(), CompilationConfig()
    with start(folder) as alone:
        pieces, expected = alone.core.ledger.pieces, tokens(alone)
    assert pieces > 1
    with start(folder, splitting_ops=(), passes=("+noop_elimination",)) as first:
        assert first.core.ledger.pieces == 1
        assert "noop_elimination" in first.core.ledger.passes
        with start(folder) as second:
            assert second.core.ledger.pieces == pieces
            assert "noop_elimination" not in second.core.ledger.passes
            for _ in range(2):
                assert tokens(second) == expected
                assert tokens(first) == expected
            assert second.resolution.config.compilation_config.splitting_ops is None
        assert tokens(first) == expected
    with start(folder) as third:
        assert (third.core.ledger.pieces, tokens(third)) == (pieces, expected)
    assert defaults == (EngineConfig(), CompilationConfig())


def test_options_stay_with_their_engine(folder: Path) -> None:
    options: dict[str, Any] = {"mode": "stock_torch_compile", "mode_options": {"fullgraph": False}}
    with start(folder, **options) as first, start(folder, mode="stock_torch_compile") as second:
        assert first.resolution.config.compilation_config.mode_options == {"fullgraph": False}
        assert second.resolution.config.compilation_config.mode_options == {}
        assert tokens(first) == tokens(second)
