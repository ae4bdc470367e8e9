"""Outputs fit what was asked of them, beside others that are free; bad demands are refused."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from engine import LLM, RequestError, SamplingParams, StructuredOutputs
from engine.grammars import Grammar, Matcher
from engine.registry import Registry
from engine.request import EngineRequest
from engine.runtime.grammar_masks import GrammarMasks
from engine.runtime.grammar_queue import GrammarQueue, Grammars
from engine.runtime.sequence import Sequence
from engine.testing.tiny import byte_tokenizer, write_tiny_model

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = write_tiny_model(tmp_path_factory.mktemp("model"))
    settings: dict[str, Any] = {"optimization_level": 0, "device": "cpu", "threads": 1}
    with LLM(str(model), num_kv_blocks=100, **settings) as made:
        yield made


def text(llm: LLM, prompt: str = "say", **asked: Any) -> str:
    params = SamplingParams(max_tokens=200, temperature=2.0, structured_outputs=asked["asked"])
    output = llm.generate(prompt, params, progress=False)[0].outputs[0]
    assert output.finish_reason == "stop"
    return output.text


def test_every_kind_of_demand_is_met(llm: LLM) -> None:
    assert text(llm, asked=StructuredOutputs(choice=["yes", "no"])) in ("yes", "no")
    assert text(llm, asked=StructuredOutputs(regex="[0-9]{4}")).isdecimal()
    assert set(json.loads(text(llm, asked=StructuredOutputs(json=SCHEMA)))) == {"ok"}
    assert text(llm, asked=StructuredOutputs(grammar='root ::= "a" "b"')) == "ab"


def test_a_free_neighbour_keeps_its_tokens(llm: LLM) -> None:
    free = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    held = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputs(regex="[a-z]{9}"))
    alone = llm.generate("hello", free, progress=False)[0].outputs[0]
    both = llm.generate(["x", "hello", "y"], [held, free, held], progress=False)
    assert both[1].outputs[0].token_ids == alone.token_ids
    assert all(r.outputs[0].text.islower() and len(r.outputs[0].text) == 9 for r in both[::2])


def test_n_completions_go_their_own_ways(llm: LLM) -> None:
    asked = StructuredOutputs(regex="[a-z]{12}")
    params = SamplingParams(n=4, max_tokens=20, seed=1, structured_outputs=asked)
    texts = {o.text for o in llm.generate("go", params, progress=False)[0].outputs}
    assert len(texts) == 4
    assert {len(one) for one in texts} == {12}


def test_a_preempted_sequence_goes_on_where_it_was(tmp_path: Any) -> None:
    model = write_tiny_model(tmp_path / "model")
    asked = SamplingParams(
        max_tokens=60, seed=7, structured_outputs=StructuredOutputs(regex="([a-f]{10},){5}")
    )
    settings: dict[str, Any] = {"optimization_level": 0, "device": "cpu", "threads": 1}
    settings["max_model_len"] = 128
    texts = []
    for blocks in (100, 11):
        with LLM(str(model), num_kv_blocks=blocks, **settings) as made:
            results = made.generate(["one", "two", "three"], asked, progress=False)
            texts.append([r.outputs[0].text for r in results])
            preempted = made.core.stats().preemptions
    assert preempted
    assert texts[0] == texts[1]


def test_a_bad_demand_is_refused_and_the_engine_goes_on(llm: LLM) -> None:
    with pytest.raises(RequestError, match="unclosed"):
        text(llm, asked=StructuredOutputs(regex="(a"))
    assert text(llm, asked=StructuredOutputs(choice=["fine"])) == "fine"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "exactly one of"),
        ({"regex": "a", "choice": ["b"]}, "not regex and choice"),
        ({"json": "{"}, "must be a JSON schema"),
        ({"json": "[1]"}, "must be a JSON schema"),
        ({"choice": []}, "1 to"),
        ({"choice": [""]}, "non-empty strings"),
        ({"regex": ""}, "non-empty string"),
    ],
    ids=str,
)
def test_what_no_demand_is_names_the_field(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        StructuredOutputs(**given)
    assert str(caught.value.param).startswith("structured_outputs")


@pytest.mark.parametrize("more", [{"ignore_eos": True}, {"min_tokens": 1}], ids=str)
def test_nothing_else_may_forbid_the_end(more: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="left out with structured_outputs"):
        SamplingParams(structured_outputs=StructuredOutputs(json_object=True), **more)


def test_equal_schemas_are_compiled_once() -> None:
    grammars = Grammars("auto", Registry(), byte_tokenizer(), vocab_size=300, end_token_ids=[2])
    same = [StructuredOutputs(json=SCHEMA), StructuredOutputs(json=json.dumps(SCHEMA))]
    first, second = (grammars.compile(asked) for asked in same)
    assert first is second
    assert first.result(10)
    grammars.close()


class _Slow:
    """Compiles when it is told to."""

    def __init__(self) -> None:
        self.future: Future[Grammar] = Future()

    def compile(self, asked: StructuredOutputs) -> Future[Grammar]:
        return self.future


class _Only(Matcher):
    """Allows one token; fails when it is told to."""

    def __init__(self, token: int) -> None:
        self.token, self.fails = token, False
        self.seen: list[int] = []

    def accept(self, token_ids: Any) -> None:
        if self.fails:
            raise RequestError("no further")
        self.seen += token_ids


class _OnlyGrammar(Grammar):
    def __init__(self, token: int) -> None:
        self.made = _Only(token)

    def matcher(self) -> Matcher:
        return self.made


class _Fill:
    """Stands for a library whose matchers are `_Only`."""

    def fill(self, matchers: Any) -> Any:
        mask = np.zeros((len(matchers), 4), np.int32)
        for row, matcher in enumerate(matchers):
            word = 1 << (matcher.token % 32)
            mask[row, matcher.token // 32] = np.uint32(word).astype(np.int32)
        return mask


def request(name: str, prompt: list[int]) -> EngineRequest:
    return EngineRequest(request_id=name, prompt_token_ids=prompt, params=SamplingParams())


def test_a_request_is_held_while_its_grammar_is_compiled() -> None:
    slow: Any = _Slow()
    queue, asked = GrammarQueue(slow), StructuredOutputs(json_object=True)
    queue.add(request("a", [1]), asked)
    assert queue.ready() == []
    assert len(queue) == 1
    grammar = _OnlyGrammar(1)
    threading.Timer(0.01, slow.future.set_result, [grammar]).start()
    queue.wait(10)
    ((held, compiled),) = queue.ready()
    assert (held.request_id, compiled, len(queue)) == ("a", grammar, 0)


def test_a_request_can_leave_while_its_grammar_is_compiled() -> None:
    queue = GrammarQueue(_Slow())  # type: ignore[arg-type]  # what it needs of Grammars
    queue.add(request("a", [1]), StructuredOutputs(json_object=True))
    assert queue.drop("a")
    assert not queue.drop("a")
    assert len(queue) == 0


def test_a_library_that_fails_is_a_refusal() -> None:
    slow: Any = _Slow()
    queue = GrammarQueue(slow)
    queue.add(request("a", [1]), StructuredOutputs(json_object=True))
    slow.future.set_exception(ZeroDivisionError("oh"))
    ((_, error),) = queue.ready()
    assert isinstance(error, RequestError)
    assert "ZeroDivisionError: oh" in str(error)


@pytest.mark.parametrize("token", [0, 7, 31, 32, 63, 99])
def test_only_allowed_tokens_are_left(token: int) -> None:
    masks = GrammarMasks(_Fill(), 100, torch.device("cpu"))  # type: ignore[arg-type]  # likewise
    sequences = [Sequence(request(name, [5])) for name in "abc"]
    masks.start("b", _OnlyGrammar(token))
    assert [masks.constrains(name) for name in "abc"] == [False, True, False]
    logits = torch.randn(3, 104)
    before = logits.clone()
    after, errors = masks.apply(logits, sequences)
    assert errors == {}
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert torch.equal(after[1, :100].isfinite().nonzero().flatten(), torch.tensor([token]))
    assert after[1, token] == before[1, token]
    masks.forget("b")
    assert torch.equal(masks.apply(before.clone(), sequences)[0], before)


def test_a_matcher_sees_each_token_once_and_its_failure_is_its_own() -> None:
    masks = GrammarMasks(_Fill(), 100, torch.device("cpu"))  # type: ignore[arg-type]  # likewise
    sequence, grammar = Sequence(request("a", [5, 6])), _OnlyGrammar(3)
    masks.start("a", grammar)
    for token in (11, 12, 13):
        masks.apply(torch.zeros(1, 100), [sequence])
        sequence.append(token)
    assert grammar.made.seen == [11, 12]
    grammar.made.fails = True
    logits, errors = masks.apply(torch.zeros(1, 100), [sequence])
    assert errors == {"a": "no further"}
    assert not any(math.isinf(x) for x in logits.flatten().tolist())
    masks.forget("a")
    assert masks.apply(torch.zeros(1, 100), [sequence])[1] == {}


def test_what_is_refused_after_its_grammar_was_compiled_ends_the_call(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm._frontend.__class__, "check", lambda *_: None)
    params = SamplingParams(structured_outputs=StructuredOutputs(regex="a"))
    with pytest.raises(RequestError, match="don't fit the context"):
        llm.generate("x" * 400, params, progress=False)
    assert not llm.core.has_work
    assert text(llm, asked=StructuredOutputs(choice=["fine"])) == "fine"


STRANGER = """
import numpy as np
from engine.errors import RequestError
from engine.grammars import Grammar, GrammarPlugin as Base, Matcher

class Made(Base):
    def load(self, tokenizer, *, vocab_size, end_token_ids):
        self.tokenizer, self.end = tokenizer, end_token_ids[0]
    def compile(self, asked):
        if asked.kind != "choice":
            raise RequestError("only choices", param="structured_outputs." + asked.kind)
        return Only(list(self.tokenizer(asked.choice[0]).input_ids) + [self.end])
    def fill(self, matchers, mask):
        mask[:] = 0
        for row, matcher in enumerate(matchers):
            token = matcher.left[0]
            mask[row].view(np.uint32)[token // 32] = 1 << (token % 32)

class Only(Grammar):
    def __init__(self, tokens):
        self.tokens = tokens
    def matcher(self):
        return Left(self.tokens)

class Left(Matcher):
    def __init__(self, tokens):
        self.left = tokens
    def accept(self, token_ids):
        self.left = self.left[len(token_ids):]
"""


def test_a_strangers_library_is_used_when_it_is_named(tmp_path: Any, make_plugin: Any) -> None:
    make_plugin("first_only", kind="grammars", body=STRANGER)
    model = write_tiny_model(tmp_path / "model")
    settings: dict[str, Any] = {"optimization_level": 0, "device": "cpu", "threads": 1}
    with LLM(str(model), num_kv_blocks=50, grammar="first_only", **settings) as made:
        assert text(made, asked=StructuredOutputs(choice=["über", "other"])) == "über"
        with pytest.raises(RequestError, match="only choices"):
            text(made, asked=StructuredOutputs(regex="a"))


def test_a_library_that_isnt_installed_is_said(tmp_path: Any) -> None:
    model = write_tiny_model(tmp_path / "model")
    settings: dict[str, Any] = {"optimization_level": 0, "device": "cpu", "threads": 1}
    with (
        LLM(str(model), num_kv_blocks=50, grammar="nothing", **settings) as made,
        pytest.raises(RequestError, match=r"unknown grammar library 'nothing'.*llguidance"),
    ):
        text(made, asked=StructuredOutputs(regex="a"))
