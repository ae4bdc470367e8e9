"""The engine behind its process boundary: streams, aborts, refusals, death and shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engine import AsyncEngine, EngineConfig, EngineDeadError, QueueFullError, SamplingParams
from engine.errors import EngineError, ModelError, RequestError
from engine.events import PhaseFinished
from engine.testing.tiny import write_tiny_model

Body = Callable[[AsyncEngine], Awaitable[None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), max_model_len=4096)


def serve(model: Path, body: Body, **settings: Any) -> None:
    """Run `body` against an engine, and see that the process is gone afterwards."""

    async def main() -> None:
        config = EngineConfig(
            model=str(model), optimization_level=0, device="cpu", threads=1, **settings
        )
        engine = await AsyncEngine.start(config)
        try:
            await body(engine)
        finally:
            await engine.close()
        assert not engine.alive

    asyncio.run(main())


async def collect(engine: AsyncEngine, prompt: Any, **params: Any) -> tuple[str, list[int], Any]:
    stream = await engine.submit(prompt, SamplingParams(**params))
    text, ids, reason = "", [], None
    async for news in stream:
        for output in news.outputs:
            text += output.text
            ids += output.token_ids
            reason = output.finish_reason or reason
    return text, ids, reason


async def settled(engine: AsyncEngine, free: int) -> None:
    """Wait until as many blocks are free as at the start; fails after some seconds."""
    for _ in range(100):
        stats = await engine.stats()
        if stats.num_free_blocks == free and not stats.num_running + stats.num_waiting:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{stats} still holds blocks")


def test_streams_of_many_requests_end_and_give_their_blocks_back(model: Path) -> None:
    async def body(engine: AsyncEngine) -> None:
        free = (await engine.stats()).num_free_blocks
        results = await asyncio.gather(
            *(
                collect(engine, f"number {n}", max_tokens=9, ignore_eos=True, temperature=0)
                for n in range(8)
            )
        )
        assert all(len(ids) == 9 and reason == "length" for _, ids, reason in results)
        alone = await collect(engine, "number 3", max_tokens=9, ignore_eos=True, temperature=0)
        assert alone == results[3]
        await settled(engine, free)
        stats = await engine.stats()
        assert stats.generation_tokens == 81
        assert stats.finished == {"length": 9}
        # 9 tokens take 9 steps; the eight requests share theirs, more or less.
        assert 18 <= sum(stats.steps.values()) <= 81

    serve(model, body)


def test_a_seeded_request_repeats_itself_beside_others(model: Path) -> None:
    async def body(engine: AsyncEngine) -> None:
        ask = {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0}
        alone = await collect(engine, "seeded", seed=7, **ask)
        crowd = await asyncio.gather(
            *(collect(engine, f"other {n}", **ask) for n in range(3)),
            collect(engine, "seeded", seed=7, **ask),
            collect(engine, "seeded", seed=8, **ask),
        )
        assert crowd[3] == alone
        assert crowd[4] != alone

    serve(model, body)


def test_a_closed_stream_frees_its_blocks_wherever_it_was(model: Path) -> None:
    async def body(engine: AsyncEngine) -> None:
        free = (await engine.stats()).num_free_blocks
        for turn in range(30):
            params = SamplingParams(max_tokens=3000, ignore_eos=True)
            stream = await engine.submit(f"turn {turn}", params)
            for _ in range(turn % 3):
                await anext(stream)
            await stream.aclose()
        await settled(engine, free)

    serve(model, body)


def test_n_choices_of_one_prompt_differ_and_repeat_as_a_set(model: Path) -> None:
    async def body(engine: AsyncEngine) -> None:
        async def choices() -> list[list[int]]:
            params = SamplingParams(n=3, max_tokens=10, seed=1, ignore_eos=True)
            ids: list[list[int]] = [[], [], []]
            async for news in await engine.submit("choose", params):
                for output in news.outputs:
                    ids[output.index] += output.token_ids
            return ids

        first = await choices()
        assert len({tuple(ids) for ids in first}) == 3
        assert await choices() == first

    serve(model, body)


def test_what_is_refused_disturbs_nobody(model: Path) -> None:
    async def body(engine: AsyncEngine) -> None:
        with pytest.raises(RequestError, match="maximum context length is 4096"):
            await engine.submit([5] * 5000, SamplingParams())
        with pytest.raises(RequestError, match="empty"):
            await engine.submit("", SamplingParams())
        stream = await engine.submit("long", SamplingParams(max_tokens=3000), request_id="one")
        with pytest.raises(RequestError, match="already running"):
            await engine.submit("long", SamplingParams(), request_id="one")
        await stream.aclose()
        assert (await collect(engine, "fine", max_tokens=3, ignore_eos=True))[2] == "length"

    serve(model, body)


def test_a_full_queue_refuses_before_anything_is_streamed(model: Path) -> None:
    async def body(engine: AsyncEngine) -> None:
        params = SamplingParams(max_tokens=3000, ignore_eos=True)
        streams = [await engine.submit("x", params) for _ in range(3)]
        with pytest.raises(QueueFullError, match="--max-queue"):
            await engine.submit("x", params)
        for stream in streams:
            await stream.aclose()
        assert (await collect(engine, "fine", max_tokens=3, ignore_eos=True))[2] == "length"

    serve(model, body, max_num_seqs=1, max_queue=2)


def test_a_killed_engine_process_ends_every_stream_with_an_error(model: Path) -> None:
    async def body(engine: AsyncEngine) -> None:
        stream = await engine.submit("x", SamplingParams(max_tokens=3000, ignore_eos=True))
        await anext(stream)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="ended unexpectedly"):
            async for _ in stream:
                pass
        await asyncio.wait_for(engine.wait_dead(), 10)
        assert not engine.alive
        with pytest.raises(EngineDeadError):
            await engine.submit("x", SamplingParams())
        with pytest.raises(EngineDeadError):
            await engine.stats()

    serve(model, body)


def test_closing_ends_running_requests_with_an_error(model: Path) -> None:
    async def body(engine: AsyncEngine) -> None:
        stream = await engine.submit("x", SamplingParams(max_tokens=3000, ignore_eos=True))
        await anext(stream)
        await engine.close()
        with pytest.raises(EngineDeadError, match="shut down"):
            async for _ in stream:
                pass

    serve(model, body)


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"model": "/nowhere/at/all"}, ModelError, "/nowhere/at/all"),
        ({"max_model_len": 5000}, EngineError, "max_model_len=5000"),
        ({"num_kv_blocks": 2, "block_size": 4096, "dtype": "bfloat16"}, None, ""),
    ],
)
def test_a_start_that_fails_raises_the_sentence_and_leaves_no_process(
    model: Path, settings: dict[str, Any], kind: type[Exception] | None, message: str
) -> None:
    async def start() -> None:
        config = EngineConfig(**{"model": str(model), "optimization_level": 0, **settings})
        engine = await AsyncEngine.start(config)
        await engine.close()

    if kind is None:
        asyncio.run(start())
        return
    with pytest.raises(kind) as caught:
        asyncio.run(start())
    assert message in str(caught.value)


def test_the_phases_of_the_start_are_reported(model: Path) -> None:
    phases: list[str] = []

    async def start() -> None:
        config = EngineConfig(model=str(model), optimization_level=0)
        engine = await AsyncEngine.start(
            config,
            on_event=lambda e: phases.append(e.phase) if isinstance(e, PhaseFinished) else None,
        )
        await engine.close()

    asyncio.run(start())
    assert phases == ["plugins", "load", "compile", "capture"]
