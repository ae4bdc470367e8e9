"""Puts the pieces of an answer together, for a client that wants it whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import PositionLogprobs
from engine_server.results import Results
from engine_server.usage import UsageCount


@dataclass
class Choice:
    """One finished choice."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class Prompt:
    """One prompt and its choices."""

    text: str | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs | None] | None = None
    choices: list[Choice] = field(default_factory=list)


async def gather(results: Results, *, prompts: int, n: int) -> tuple[list[Prompt], UsageCount]:
    """Read everything.

    Args:
        results: of one HTTP request.
        prompts: how many it has.
        n: choices of each.

    Raises:
        ApiError: the engine refused, failed or died.
    """
    gathered = [Prompt(choices=[Choice() for _ in range(n)]) for _ in range(prompts)]
    pieces: list[list[list[str]]] = [[[] for _ in range(n)] for _ in range(prompts)]
    usage = UsageCount()
    async for index, output in results:
        prompt = gathered[index]
        prompt.text, prompt.token_ids = output.prompt, output.prompt_token_ids
        prompt.logprobs = output.prompt_logprobs or prompt.logprobs
        usage.add(index, output)
        for new in output.outputs:
            choice = prompt.choices[new.index]
            pieces[index][new.index].append(new.text)
            choice.token_ids += new.token_ids
            choice.logprobs += new.logprobs or []
            choice.finish_reason = new.finish_reason or choice.finish_reason
            if new.stop_reason is not None:
                choice.stop_reason = new.stop_reason
    for prompt, texts in zip(gathered, pieces, strict=True):
        for choice, text in zip(prompt.choices, texts, strict=True):
            choice.text = "".join(text)
    return gathered, usage
