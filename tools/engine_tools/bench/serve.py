"""Drives a server with requests that arrive as those of many users do."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from engine.errors import ConfigError, EngineError
from engine_tools.bench.client import Exchange, base_url, complete, first_model, succeeded
from engine_tools.bench.figures import Figure, distribution
from engine_tools.bench.machine import client_facts
from engine_tools.bench.prompts import Ask, arrival_times, random_asks, random_texts, read_dataset
from engine_tools.bench.results import Result


@dataclass(frozen=True)
class Load:
    """What a server is driven with.

    Attributes:
        url: of the server, with or without `/v1`.
        model: the served name; the server's first when None.
        num_prompts: requests of each repeat.
        input_len, output_len: tokens.
        request_rate: requests per second on average; infinite for all at once.
        max_concurrency: requests that may be open at once; None for no limit.
        prompts: what random ones are made of: `ids` or `text`.
        dataset: a file of prompts instead of random ones.
        vocab_size: random token ids are below it.
        seed: of prompts and arrivals.
        repeats: how often it is measured.
        warm_up: requests that are sent before.
        ignore_eos: ask for just `output_len` tokens; an extension that not every server takes.
        timeout: seconds that one answer may take.
    """

    url: str
    model: str | None = None
    num_prompts: int = 100
    input_len: int = 128
    output_len: int = 128
    request_rate: float = float("inf")
    max_concurrency: int | None = None
    prompts: str = "ids"
    dataset: Path | None = None
    vocab_size: int = 1000
    seed: int = 0
    repeats: int = 1
    warm_up: int = 1
    ignore_eos: bool = True
    timeout: float = 600.0


@dataclass(frozen=True)
class Round:
    """One repeat.

    Attributes:
        exchanges: every request, answered or not.
        seconds: from the first arrival until the last answer was complete.
    """

    exchanges: list[Exchange]
    seconds: float


def bench_serve(
    load: Load,
    *,
    api_key: str | None = None,
    progress: Callable[[str], None] = lambda _line: None,
) -> Result:
    """Send requests and time their answers.

    Args:
        load: what is sent, and where.
        api_key: sent as a bearer token; it isn't part of the result.
        progress: is told what is being done.

    Raises:
        ConfigError: the dataset, the address or the key is unusable.
        EngineError: the server can't be reached, or refuses the first request.
    """
    asks = _asks(load)
    if api_key and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError("--api-key: it has characters that no HTTP header may have")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        model, rounds = asyncio.run(_drive(load, asks, headers, progress))
    except httpx.InvalidURL as error:
        raise ConfigError(f"--url={load.url}: {error}") from error
    shown = asdict(load) | {"dataset": str(load.dataset) if load.dataset else None}
    shown["request_rate"] = str(load.request_rate)  # JSON has no infinity
    place = {name: shown.pop(name) for name in ("url", "model")}
    return Result(
        kind="serve",
        machine=client_facts(),
        settings={**place, "model": model},
        workload=shown,
        figures=tuple(_figures(rounds)),
        notes=tuple(_notes(load, rounds)),
        failures=dict(
            Counter(x.error for each in rounds for x in each.exchanges if x.error).most_common()
        ),
    )


def _asks(load: Load) -> Iterator[Ask]:
    """Return what is asked, the warm-up's first; a dataset starts again in each repeat."""
    if load.dataset is None and load.prompts == "text":
        return random_texts(load.input_len, load.output_len, load.seed)
    if load.dataset is None:
        return random_asks(load.input_len, load.output_len, load.vocab_size, load.seed)
    read = read_dataset(load.dataset, load.output_len)
    if len(read) < max(load.num_prompts, load.warm_up):
        raise ConfigError(
            f"--dataset={load.dataset}: it has {len(read)} prompts; lower --num-prompts"
            f"={load.num_prompts} (and --warm-up={load.warm_up}) to that, or add some"
        )
    first = read[: load.num_prompts]
    return iter([*read[: load.warm_up], *first * load.repeats])


async def _drive(
    load: Load, asks: Iterator[Ask], headers: dict[str, str], progress: Callable[[str], None]
) -> tuple[str, list[Round]]:
    # Waiting for a connection would be the client's own limit; the answer has its own.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=base_url(load.url), headers=headers, timeout=httpx.Timeout(None), limits=limits
    ) as client:
        model = load.model or await first_model(client, load.timeout)
        body: dict[str, Any] = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            **({"ignore_eos": True} if load.ignore_eos else {}),
        }
        for ask in islice(asks, load.warm_up):
            progress("warm-up")
            exchange = Exchange()
            await complete(client, ask, body, exchange, load.timeout)
            if exchange.error:
                raise EngineError(f"--url={load.url}: the warm-up request failed: {exchange.error}")
        rounds = []
        for number in range(load.repeats):
            progress(f"round {number + 1} of {load.repeats}: {load.num_prompts} requests")
            chosen = list(islice(asks, load.num_prompts))
            times = arrival_times(len(chosen), load.request_rate, load.seed + number)
            rounds.append(await _round(client, load, body, chosen, times))
    return model, rounds


async def _round(
    client: httpx.AsyncClient,
    load: Load,
    body: dict[str, Any],
    asks: Sequence[Ask],
    times: Sequence[float],
) -> Round:
    places: AbstractAsyncContextManager[Any] = (
        asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else nullcontext()
    )
    begun = time.perf_counter()

    async def one(ask: Ask, due: float) -> Exchange:
        exchange = Exchange(due=begun + due)
        await asyncio.sleep(exchange.due - time.perf_counter())
        async with places:
            await complete(client, ask, body, exchange, load.timeout)
        return exchange

    waiting = [one(ask, due) for ask, due in zip(asks, times, strict=True)]
    exchanges = await asyncio.gather(*waiting)
    return Round(exchanges, time.perf_counter() - begun)


def _figures(rounds: Sequence[Round]) -> Iterator[Figure]:
    def ms(name: str, read: Callable[[Exchange], Sequence[float]]) -> Figure | None:
        samples = [
            [1e3 * value for x in succeeded(each.exchanges) for value in read(x)] for each in rounds
        ]
        return distribution(name, "ms", samples)

    timed = (
        ms("TTFT", lambda x: [x.ttft]),
        ms("ITL", lambda x: x.itl),
        ms("TPOT", lambda x: [] if x.tpot is None else [x.tpot]),
        ms("end to end", lambda x: [x.e2e]),
        ms("waited before it was sent", lambda x: [x.sent - x.due]),
    )
    yield from (figure for figure in timed if figure is not None)

    def rate(name: str, unit: str, count: Callable[[Exchange], int]) -> Figure:
        sums = (sum(map(count, succeeded(each.exchanges))) / each.seconds for each in rounds)
        return Figure(name, f"{unit}/s", tuple(sums))

    yield rate("requests", "requests", lambda _: 1)
    yield rate("output tokens", "tokens", lambda x: x.output_tokens)
    if all(x.prompt_tokens is not None for each in rounds for x in succeeded(each.exchanges)):
        yield rate("total tokens", "tokens", lambda x: x.output_tokens + int(x.prompt_tokens or 0))


def _notes(load: Load, rounds: Sequence[Round]) -> Iterator[str]:
    everything = [x for each in rounds for x in each.exchanges]
    answered = succeeded(everything)
    yield f"{len(answered)} of {len(everything)} requests were answered"
    if uncounted := sum(not x.counted for x in answered):
        yield f"{uncounted} answers had no usage: their tokens are counted as chunks"
    if load.dataset is None and (
        short := sum(x.output_tokens != load.output_len for x in answered)
    ):
        yield f"{short} answers don't have the {load.output_len} tokens that were asked for"
    if load.dataset is not None:
        yield "the prompts of the dataset may be in the server's prefix cache"
