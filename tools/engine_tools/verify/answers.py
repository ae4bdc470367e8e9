"""What an engine answers to a workload, with the probabilities that it gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine import LLM, RequestOutput, SamplingParams
from engine_tools.verify.workload import Batch


@dataclass(frozen=True)
class Answer:
    """One prompt's answer.

    Attributes:
        tokens: greedy, as the engine answers when nobody asks for probabilities.
        checked: greedy, as it answers when somebody does.
        logprobs: of `checked`.
        margins: by how much the likeliest token of each position is ahead of the next.
        prompt_logprobs: of the prompt's tokens, the first left out.
        error: why the sequence failed; empty if it didn't.
    """

    tokens: tuple[int, ...]
    checked: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    prompt_logprobs: tuple[float, ...]
    error: str = ""


Answers = Mapping[str, Sequence[Answer]]
"""The answers of each batch, by its name."""


def answer(llm: LLM, batch: Batch) -> list[Answer]:
    """Answer a batch twice: plainly, as a server does, and with log-probabilities."""
    plain = _generate(llm, batch, logprobs=False)
    told = _generate(llm, batch, logprobs=True)
    return [_answer(a, b) for a, b in zip(plain, told, strict=True)]


def _generate(llm: LLM, batch: Batch, *, logprobs: bool) -> list[RequestOutput]:
    params = [
        SamplingParams(
            temperature=0,
            max_tokens=new,
            ignore_eos=True,
            logprobs=2 if logprobs else None,
            prompt_logprobs=0 if logprobs else None,
        )
        for new in batch.new
    ]
    return llm.generate([list(prompt) for prompt in batch.prompts], params, progress=False)


def _answer(plain: RequestOutput, told: RequestOutput) -> Answer:
    output = told.outputs[0]
    positions = output.logprobs or []
    return Answer(
        tokens=tuple(plain.outputs[0].token_ids),
        checked=tuple(output.token_ids),
        logprobs=tuple(position[0].logprob for position in positions),
        margins=tuple(position[1].logprob - position[2].logprob for position in positions),
        prompt_logprobs=tuple(p[0].logprob for p in told.prompt_logprobs or () if p),
        error=plain.error or told.error or "",
    )
