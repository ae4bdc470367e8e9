"""Counts the tokens of one HTTP request."""

from __future__ import annotations

from engine.request import RequestOutput
from engine_server.responses import PromptTokensDetails, Usage


class UsageCount:
    """Sums over prompts and choices; a prompt counts once, however many choices it has."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completion = 0

    def add(self, prompt: int, output: RequestOutput) -> None:
        """Count what is new of one prompt."""
        for choice in output.outputs:
            self._completion += len(choice.token_ids)
        if prompt not in self._prompts or output.finished:
            self._prompts[prompt] = (len(output.prompt_token_ids), output.num_cached_tokens)

    def usage(self) -> Usage:
        """Return the counts so far."""
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=self._completion,
            total_tokens=prompt + self._completion,
            prompt_tokens_details=PromptTokensDetails(
                sum(cached for _, cached in self._prompts.values())
            ),
        )
