"""An engine in this process whose answers are known beforehand, for tests of the server."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

from engine.config import EngineConfig
from engine.errors import EngineDeadError, EngineError, QueueFullError
from engine.ledger import StartupLedger
from engine.request import CompletionOutput, EngineStats, Logprob, RequestOutput
from engine.resolution import Record, Resolution
from engine.runtime.frontend import Frontend
from engine.sampling_params import SamplingParams

MAX_MODEL_LEN = 512
NUM_BLOCKS = 1000
TEMPLATE = (
    "{% if mood is defined %}[{{ mood }}]{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'assistant' and loop.first %}"
    "{{ raise_exception('the user speaks first') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token for each byte, and an end token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"eos_token": "<|end|>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.chat_template = TEMPLATE
    return fast


class ScriptedStream:
    """What one request makes, token by token."""

    def __init__(
        self, engine: ScriptedEngine, prompt: tuple[str | None, list[int]], params: SamplingParams
    ) -> None:
        self.engine, self.params = engine, params
        self.prompt, self.ids = prompt
        self.queue: asyncio.Queue[RequestOutput | EngineError] = asyncio.Queue()
        self.finished = self.released = False
        engine.free_blocks -= 1
        engine.live.add(self)
        self.task = asyncio.create_task(self._make())

    async def _make(self) -> None:
        await self.engine.may_start.wait()
        replies = [self.engine.reply(self.ids, index) for index in range(self.params.n)]
        limit = self.params.max_tokens
        ends = ["stop"] * len(replies)
        if limit is not None:
            ends = ["length" if len(reply) > limit else "stop" for reply in replies]
            replies = [reply[:limit] for reply in replies]
        texts = [DecodeStream(skip_special_tokens=True) for _ in replies]
        for position in range(max(1, *map(len, replies))):
            if self.engine.pace:
                await asyncio.sleep(self.engine.pace)
            outputs = [
                self._output(index, reply, position, texts[index], ends[index])
                for index, reply in enumerate(replies)
                if position < max(1, len(reply))
            ]
            if position == self.engine.fail_at:
                outputs = [CompletionOutput(0, finish_reason="error")]
            self._put(position, outputs, finished=position + 1 >= max(map(len, replies)))
            if position + 1 == self.engine.pause_after:
                await self.engine.may_go_on.wait()

    def _output(
        self, index: int, reply: list[int], position: int, text: DecodeStream, end: str
    ) -> CompletionOutput:
        token_ids = reply[position : position + 1]
        tokenizer = byte_tokenizer().backend_tokenizer
        pieces = [text.step(tokenizer, token) or "" for token in token_ids]
        return CompletionOutput(
            index,
            "".join(pieces),
            token_ids,
            self._logprobs(token_ids, self.params.logprobs),
            end if position + 1 >= len(reply) else None,
        )

    @staticmethod
    def _logprobs(token_ids: list[int], count: int | None) -> Any:
        if count is None:
            return None
        return [
            [Logprob(t, -0.5, 1), *(Logprob((t + k) % 256, -0.5 - k, 1 + k) for k in range(count))]
            for t in token_ids
        ]

    def _put(self, position: int, outputs: list[CompletionOutput], *, finished: bool) -> None:
        prompt_logprobs = None
        if self.params.prompt_logprobs is not None and position == 0:
            prompt_logprobs = [
                None,
                *self._logprobs(self.ids[1:], self.params.prompt_logprobs),
            ]
        failed = any(o.finish_reason == "error" for o in outputs)
        self.queue.put_nowait(
            RequestOutput(
                "id",
                self.prompt,
                self.ids,
                outputs,
                finished,
                prompt_logprobs,
                num_cached_tokens=self.engine.cached,
                queue_seconds=0.03,
                error="the step failed: out of luck" if failed else None,
                embedding=self.engine.vector(self.ids) if self.params.pooling else None,
            )
        )

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        item = await self.queue.get()
        if isinstance(item, EngineError):
            self.finished = True
            raise item
        self.finished = item.finished
        if self.finished:
            self.release()
        return item

    def release(self) -> None:
        """Give the block back, once."""
        if not self.released:
            self.released = True
            self.engine.free_blocks += 1
            self.engine.live.discard(self)

    async def aclose(self) -> None:
        """End the request if it still runs."""
        await asyncio.sleep(0)  # as the real one, it may have to wait
        if not self.finished:
            self.finished = True
            self.engine.aborted += 1
        self.task.cancel()
        self.release()


@dataclass(eq=False)
class ScriptedEngine:
    """An engine in this process; `reply` says what it answers."""

    text: str | None = None
    hold: bool = False
    pace: float = 0.0
    pause_after: int = -1
    fail_at: int = -1
    queue_limit: int = 100_000
    cached: int = 0
    with_tokenizer: bool = True
    template: str | None = None
    pooling: str | None = None
    model_name: str = "scripted"
    max_model_len: int = MAX_MODEL_LEN
    free_blocks: int = NUM_BLOCKS
    aborted: int = 0
    submitted: list[SamplingParams] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer: Any = byte_tokenizer() if self.with_tokenizer else None
        if self.template is not None:
            self.tokenizer = copy.deepcopy(self.tokenizer)
            self.tokenizer.chat_template = self.template
        self.resolution = Resolution(
            EngineConfig(), (Record("dtype", "", "float32", "device", "exact"),)
        )
        self.frontend = Frontend(
            self.tokenizer,
            max_model_len=self.max_model_len,
            kv_tokens=10_000,
            vocab_size=257,
            end_token_ids=(256,),
        )
        self.live: set[ScriptedStream] = set()
        self.may_start, self.may_go_on = asyncio.Event(), asyncio.Event()
        if not self.hold:
            self.may_start.set()
        self.died = asyncio.Event()
        self.closed = False

    def reply(self, prompt: list[int], index: int) -> list[int]:
        """Return the tokens of one choice: the text, or its own one for each prompt."""
        text = self.text
        if text is None:
            draw = random.Random(f"{prompt} {index}")  # noqa: S311 - no secret
            text = "".join(draw.choices('abc é€😀\n\u2028"\\', k=draw.randint(3, 30)))
        return list(byte_tokenizer()(text).input_ids)

    def vector(self, prompt: list[int]) -> list[float]:
        """Return the vector of a prompt: its own, and exact in 32 bits."""
        return [len(prompt) / 2, -0.25, prompt[0] / 256]

    async def submit(self, prompt: str | list[int], params: SamplingParams) -> ScriptedStream:
        """Start a request."""
        if not self.alive:
            raise EngineDeadError("the engine process has ended")
        text, ids = self.frontend.encode(prompt)
        self.frontend.check(ids, params)
        if len(self.live) >= self.queue_limit:
            raise QueueFullError("the queue is full; try again later")
        self.submitted.append(params)
        return ScriptedStream(self, (text, ids), params)

    async def run_with_tokenizer(self, work: Callable[[Any], Any], size: int) -> Any:
        """Return what the work makes of the tokenizer, at once."""
        return work(self.tokenizer)

    async def stats(self) -> EngineStats:
        """Return counters, some of them made up."""
        if not self.alive:
            raise EngineDeadError("the engine process has ended")
        return EngineStats(
            num_running=len(self.live),
            num_blocks=NUM_BLOCKS,
            num_free_blocks=self.free_blocks,
            generation_tokens=12,
            steps={"none|eager|8|no graphs": 3},
            finished={"stop": 2},
            startup=StartupLedger(
                seconds=4.5,
                phases={"load": 1.5, "compile": 2.5},
                compile_mode="vllm_compile",
                compile_phases={"trace": 2.0},
                cache_hits=3,
            ),
        )

    @property
    def alive(self) -> bool:
        """Whether it can serve."""
        return not self.died.is_set()

    async def wait_dead(self) -> None:
        """Wait until it has died."""
        await self.died.wait()

    def die(self, why: str = "the engine process ended unexpectedly (exit -9)") -> None:
        """Die as a process does: running requests end with an error."""
        self.died.set()
        for stream in list(self.live):
            stream.task.cancel()
            stream.queue.put_nowait(EngineDeadError(why))

    async def close(self) -> None:
        """Stop it."""
        self.closed = True
        self.die("the engine was shut down")
