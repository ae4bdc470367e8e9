"""The offline API: what it takes, what it gives, what it says when it can't."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import LLM, CompilationConfig, CompilationMode, CUDAGraphMode, SamplingParams
from engine.config import EngineConfig
from engine.errors import ConfigError, RequestError
from engine.testing.tiny import write_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
OFF = CompilationConfig(mode=CompilationMode.NONE, cudagraph_mode=CUDAGraphMode.NONE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(model=str(folder), compilation_config=OFF, threads=1) as engine:
        yield engine


def test_constants_strings_and_a_whole_configuration_make_the_same_engine(
    llm: LLM, folder: Path
) -> None:
    spelled = {"mode": "NONE", "cudagraph_mode": "none"}
    config = EngineConfig(model=str(folder), threads=1, compilation_config=spelled)
    with LLM(engine_config=config) as other:
        assert other.resolution.config == llm.resolution.config
        texts = [engine.generate("x", GREEDY)[0].outputs[0].text for engine in (llm, other)]
    assert texts[0] == texts[1]


def test_results_come_in_the_order_of_the_prompts_with_their_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (5, 2, 7)]
    results = llm.generate(["one", "two", "three"], params)
    assert [r.prompt for r in results] == ["one", "two", "three"]
    assert [len(r.outputs[0].token_ids) for r in results] == [5, 2, 7]
    assert all(r.finished and r.outputs[0].finish_reason == "length" for r in results)


def test_text_and_its_ids_are_the_same_prompt(llm: LLM) -> None:
    ids = list(llm.tokenizer("hello").input_ids)
    by_text, by_ids = llm.generate("hello", GREEDY), llm.generate(ids, GREEDY)
    assert by_text[0].outputs[0].token_ids == by_ids[0].outputs[0].token_ids
    assert by_ids[0].prompt is None


def test_a_stream_joins_to_the_whole_and_can_be_left(llm: LLM) -> None:
    whole = llm.generate("stream", GREEDY)[0].outputs[0]
    news = list(llm.stream("stream", GREEDY))
    assert "".join(n.outputs[0].text for n in news) == whole.text
    assert [t for n in news for t in n.outputs[0].token_ids] == whole.token_ids
    assert [n.finished for n in news] == [False] * (len(news) - 1) + [True]
    left = llm.stream("stream", SamplingParams(max_tokens=200, ignore_eos=True))
    next(left)
    left.close()  # type: ignore[attr-defined]  # it is a generator
    stats = llm.core.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.num_free_blocks == stats.num_blocks


def test_chat_goes_through_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    result = llm.chat(messages, GREEDY)[0]
    assert llm.tokenizer.decode(result.prompt_token_ids) == "user: hi\nassistant: "
    both = llm.chat([messages, [*messages, *messages]], GREEDY)
    assert both[0].outputs[0].token_ids == result.outputs[0].token_ids
    assert both[1].prompt_token_ids != result.prompt_token_ids
    streamed = "".join(n.outputs[0].text for n in llm.stream_chat(messages, GREEDY))
    assert streamed == result.outputs[0].text


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ([], None, "non-empty list"),
        (["a", ""], None, "must not be empty"),
        (["a"], [GREEDY, GREEDY], "2 for 1 prompts"),
        ("a", SamplingParams(max_tokens=10_000), "maximum context length is 256"),
        (3, None, "must be a text, token ids"),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(
    llm: LLM, prompts: object, params: object, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompts, params)  # type: ignore[arg-type]  # wrong on purpose
    assert llm.generate("still fine", GREEDY)[0].finished


def test_settings_are_given_one_way_only(folder: Path) -> None:
    with pytest.raises(ConfigError, match="engine_config and model"):
        LLM(str(folder), engine_config=EngineConfig())
    with pytest.raises(ConfigError, match="max_model_length: no such setting"):
        LLM(str(folder), max_model_length=3)


def test_two_engines_in_one_process_do_not_see_each_other(llm: LLM, folder: Path) -> None:
    before = llm.generate("both", GREEDY)[0].outputs[0].token_ids
    with LLM(str(folder), compilation_config=OFF, block_size=4, max_num_seqs=2) as other:
        assert other.generate("both", GREEDY)[0].outputs[0].token_ids == before
        assert other.resolution.config.block_size == 4
    assert llm.resolution.config.block_size == 16
    assert llm.generate("both", GREEDY)[0].outputs[0].token_ids == before


def test_a_closed_engine_says_so(folder: Path) -> None:
    engine = LLM(str(folder), compilation_config=OFF)
    engine.close()
    engine.close()
    with pytest.raises(RequestError, match="closed"):
        engine.generate("x")


def test_a_step_that_fails_ends_its_requests_and_leaves_the_engine_usable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(str(folder), compilation_config=OFF) as engine:
        runner = engine.core._runner
        real, calls = runner.launch, []

        def launch(step: object, after: object = None) -> object:
            calls.append(step)
            if len(calls) == 3:
                raise MemoryError("planted")
            return real(step, after)  # type: ignore[arg-type]  # as it came

        monkeypatch.setattr(runner, "launch", launch)
        failed = engine.generate("x", GREEDY)[0]
        assert failed.outputs[0].finish_reason == "error"
        assert failed.error is not None
        assert "planted" in failed.error
        assert engine.generate("x", GREEDY)[0].outputs[0].finish_reason == "length"
        stats = engine.core.stats()
        assert stats.num_free_blocks == stats.num_blocks
        assert stats.finished == {"error": 1, "length": 1}
