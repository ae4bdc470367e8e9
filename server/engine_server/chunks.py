"""Turns what is new into the chunks of a stream.

Most tokens have nothing but their text to tell; for these, everything but the text was rendered
when the choice began.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from engine.request import CompletionOutput, RequestOutput
from engine_server import sse
from engine_server.job import Job
from engine_server.logprobs import CompletionLogprobsWriter
from engine_server.usage import UsageCount


@dataclass
class ChoiceState:
    """A choice that is being streamed.

    Attributes:
        index: as the client counts choices.
        frame: up to what is new: `data: {…,"choices":[{"index":0,`.
        before: `frame` and the bytes before a text.
        logprobs: where the log-probabilities of completions go on.
    """

    index: int
    frame: bytes
    before: bytes
    logprobs: CompletionLogprobsWriter | None = None


class ChunkWriter(ABC):
    """Renders the chunks of one HTTP request.

    Args:
        job: what is answered.
    """

    BEFORE_TEXT: bytes
    """Between the choice's index and its text."""
    AFTER_TEXT: bytes
    """What closes the text's place."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tokens = job.serving.tokens
        self._usage = UsageCount()
        self._choices: dict[int, ChoiceState] = {}
        head = {
            "id": job.id,
            "object": job.kind,
            "created": job.created,
            "model": job.model,
            "system_fingerprint": job.serving.fingerprint,
        }
        self._head = b"data: " + sse.encode(head)[:-1]
        body = job.body
        self._tail = b',"usage":null' if body.include_usage else b""
        self._after = self.AFTER_TEXT + b',"logprobs":null,"finish_reason":null}]'
        self._after += self._tail + b"}\n\n"
        self._text_only = not (
            job.params.logprobs is not None or body.return_token_ids or body.continuous_usage
        )

    def render(self, prompt: int, output: RequestOutput) -> bytes:
        """Return the chunks for what is new of one prompt; none when there is nothing to tell."""
        self._usage.add(prompt, output)
        frames = b""
        for new in output.outputs:
            index = prompt * self._job.params.n + new.index
            choice = self._choices.get(index)
            if choice is None:
                choice = self._begin(index)
                frames += self.opening(choice, output)
            if self._text_only and new.finish_reason is None:
                if new.text:
                    frames += choice.before + sse.encode_text(new.text) + self._after
            elif new.token_ids or new.text or new.finish_reason:
                frames += self.everything(choice, new)
        return frames

    def usage(self) -> bytes:
        """Return the last chunk, which has the token counts and no choices."""
        usage = sse.encode(self._usage.usage())
        return self._head + b',"choices":[],"usage":' + usage + b"}\n\n"

    @abstractmethod
    def opening(self, choice: ChoiceState, output: RequestOutput) -> bytes:
        """Return the chunks that come before a choice's first token."""

    @abstractmethod
    def logprobs(self, choice: ChoiceState, new: CompletionOutput) -> bytes:
        """Return the log-probabilities of the new tokens, as JSON."""

    @abstractmethod
    def place(self, text: str) -> bytes:
        """Return the member that holds the text, as JSON."""

    def chunk(self, choice: ChoiceState, place: bytes, logprobs: bytes, more: bytes = b"") -> bytes:
        """Return one chunk.

        Args:
            choice: whose.
            place: the member that holds the text.
            logprobs: JSON.
            more: further members, each with a comma before it; must have `finish_reason`.
        """
        tail = self._tail
        if self._job.body.continuous_usage:
            tail = b',"usage":' + sse.encode(self._usage.usage())
        return choice.frame + place + b',"logprobs":' + logprobs + more + b"}]" + tail + b"}\n\n"

    def _begin(self, index: int) -> ChoiceState:
        frame = self._head + b',"choices":[{"index":%d,' % index
        self._choices[index] = state = ChoiceState(index, frame, frame + self.BEFORE_TEXT)
        return state

    def everything(self, choice: ChoiceState, new: CompletionOutput) -> bytes:
        """Return the chunk for what is new of a choice, when that may be more than text."""
        logprobs = b"null" if not new.logprobs else self.logprobs(choice, new)
        more = b',"finish_reason":' + sse.encode(new.finish_reason)
        if new.finish_reason is not None:
            more += b',"stop_reason":' + sse.encode(new.stop_reason)
        if self._job.body.return_token_ids:
            more += b',"token_ids":' + sse.encode(new.token_ids)
        return self.chunk(choice, self.place(new.text), logprobs, more)
