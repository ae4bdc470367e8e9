"""`engine bench serve` against the project's own server, and against ones that answer otherwise."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from engine import ConfigError, EngineError
from engine.testing.scripted_engine import ScriptedEngine
from engine_cli.main import main
from engine_server.app import build_app
from engine_server.config import ServerConfig
from engine_server.state import ServerState
from engine_tools.bench.figures import Figure
from engine_tools.bench.prompts import arrival_times
from engine_tools.bench.results import Result
from engine_tools.bench.serve import Load, bench_serve

# With the text given, each answer is cut at output_len.
LONG = "abcdefghij" * 10


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Run an application behind a real socket; yields its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, ws="none", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@contextmanager
def own_server(**fields: Any) -> Iterator[tuple[str, ScriptedEngine]]:
    """Run the project's server on an engine whose answers are known."""
    state, engine = ServerState(ServerConfig()), ScriptedEngine(**fields)
    state.ready(engine)
    with served(build_app(state)) as url:
        yield url, engine


def figures_of(result: Result) -> dict[str, Figure]:
    return {figure.name: figure for figure in result.figures}


def load(url: str, **fields: Any) -> Load:
    return Load(url, **{"input_len": 4, "output_len": 5, "vocab_size": 200, **fields})


def test_every_request_is_answered_and_timed() -> None:
    with own_server(text=LONG, pace=0.002) as (url, engine):
        result = bench_serve(load(url, num_prompts=6, repeats=2))
    figures = figures_of(result)
    assert result.notes == ("12 of 12 requests were answered",)
    assert result.failures == {}
    assert result.settings == {"url": url, "model": "scripted"}
    assert len(engine.submitted) == 13  # one to warm up
    assert {(p.max_tokens, p.temperature, p.ignore_eos) for p in engine.submitted} == {(5, 0, True)}
    for name in ("TTFT", "ITL", "TPOT", "end to end", "waited before it was sent"):
        assert [*figures[name].percentiles] == ["p50", "p90", "p99"]
        assert len(figures[name].rounds) == 2
    # The engine sleeps 2 ms before each of five tokens.
    assert figures["end to end"].minimum >= 10
    assert figures["TTFT"].minimum >= 2
    ratio = figures["output tokens"].median / figures["requests"].median
    assert ratio == pytest.approx(5)
    ratio = figures["total tokens"].median / figures["requests"].median
    assert ratio == pytest.approx(9)


def test_requests_arrive_at_their_rate_and_wait_for_a_free_place() -> None:
    with own_server(text=LONG, pace=0.004) as (url, _):
        slow = bench_serve(load(url, num_prompts=8, request_rate=100.0, warm_up=0))
        narrow = bench_serve(load(url, num_prompts=8, max_concurrency=1, warm_up=0))
    # One at a time, the last waits for seven answers of 20 ms each.
    assert figures_of(narrow)["waited before it was sent"].percentiles["p99"] > 100
    assert figures_of(narrow)["requests"].median < 50
    # No answer is complete before its request has arrived.
    assert figures_of(slow)["requests"].median < 8 / arrival_times(8, 100.0, seed=0)[-1]


def test_what_fails_is_counted_with_its_reason() -> None:
    with own_server(text=LONG) as (url, _):
        result = bench_serve(load(url, num_prompts=3, input_len=600, warm_up=0))
    [(reason, count)] = result.failures.items()
    assert count == 3
    assert reason.startswith("HTTP 400: This model's maximum context length is 512 tokens")
    assert [figure.median for figure in result.figures] == [0.0, 0.0, 0.0]
    assert result.notes == ("0 of 3 requests were answered",)


def test_an_error_within_a_stream_is_a_failure() -> None:
    with own_server(text=LONG, fail_at=2) as (url, _):
        result = bench_serve(load(url, num_prompts=2, warm_up=0))
    assert result.failures == {"the step failed: out of luck": 2}


def test_a_dataset_is_sent_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "hello", "output_len": 3}, {"prompt": [1, 2, 3]}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with own_server(text=LONG) as (url, engine):
        result = bench_serve(load(url, num_prompts=2, dataset=file))
        with pytest.raises(ConfigError, match="it has 2 prompts; lower --num-prompts=3"):
            bench_serve(load(url, num_prompts=3, dataset=file))
    assert sorted(params.max_tokens or 0 for params in engine.submitted) == [3, 3, 5]
    assert result.notes[-1] == "the prompts of the dataset may be in the server's prefix cache"


def peer(frames: list[str], *, status: int = 200) -> FastAPI:
    """Make a server that answers each completion with these frames."""
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"data": [{"id": "peer"}]})

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        assert (await request.json())["stream_options"] == {"include_usage": True}

        async def stream() -> AsyncIterator[str]:
            for frame in frames:
                yield f"data: {frame}\n\n"

        return StreamingResponse(stream(), status, media_type="text/event-stream")

    return app


def chunk(text: str = "", finish: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return json.dumps({"choices": [choice], **more})


def usage(tokens: int) -> str:
    counts = {"completion_tokens": tokens, "prompt_tokens": 4}
    return json.dumps({"choices": [], "usage": counts})


@pytest.mark.parametrize(
    ("frames", "tokens", "note"),
    [
        # As vLLM does: several tokens in a chunk, tokens without a text, the usage at the end.
        ([chunk("ab"), chunk(), chunk("c", "length"), usage(5), "[DONE]"], 5, None),
        ([chunk("a"), chunk("b"), chunk("", "length"), "[DONE]"], 2, "counted as chunks"),
        ([chunk("a", usage=None), chunk("b", "stop")], 2, "counted as chunks"),
        ([chunk("", "length"), usage(5), "[DONE]"], 5, None),
    ],
)
def test_other_servers_answers_are_understood(
    frames: list[str], tokens: int, note: str | None
) -> None:
    with served(peer(frames)) as url:
        result = bench_serve(load(f"{url}/v1/", num_prompts=2))
    assert result.failures == {}
    figures = figures_of(result)
    assert figures["output tokens"].median / figures["requests"].median == pytest.approx(tokens)
    assert (note is None) == (len(result.notes) == 1)
    assert note is None or note in result.notes[1]


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([chunk("a")], "the stream ended before the answer did"),
        ([chunk("", "stop"), usage(0), "[DONE]"], "the answer had no tokens"),
        (["{"], "a chunk that isn't one of the completions API"),
        ([json.dumps({"choices": ["a"]})], "a chunk that isn't one of the completions API"),
        ([json.dumps({"error": "full"})], "full"),
    ],
)
def test_a_broken_answer_is_a_failure(frames: list[str], says: str) -> None:
    with served(peer(frames)) as url:
        result = bench_serve(load(url, num_prompts=1, warm_up=0))
        with pytest.raises(EngineError, match="the warm-up request failed: "):
            bench_serve(load(url, num_prompts=1))
    [(reason, _)] = result.failures.items()
    assert says in reason


def test_an_answer_that_takes_too_long_is_a_failure() -> None:
    with own_server(hold=True) as (url, _):
        result = bench_serve(load(url, num_prompts=2, warm_up=0, timeout=0.2, model="scripted"))
    assert result.failures == {"no whole answer within 0.2 s": 2}


def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(EngineError, match="is a server running there"):
        bench_serve(load("127.0.0.1:9"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(["bench", "serve", *arguments])
        return code, *capsys.readouterr()

    return command


def test_the_command_prints_a_table_and_writes_json(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    sizes = ("--num-prompts", "3", "--input-len", "4", "--output-len", "5", "--vocab-size", "200")
    with own_server(text=LONG) as (url, _):
        code, out, err = run("--url", url, *sizes, "--json", str(file), "--api-key", "secret")
        bad, shown, _ = run("--url", url, "--num-prompts", "2", "--input-len", "600", "--warm-up=0")
    assert (code, err) == (0, "warm-up\nround 1 of 1: 3 requests\n")
    assert "3 of 3 requests were answered" in out
    written = json.loads(file.read_text())
    assert "secret" not in file.read_text()
    assert written["workload"]["request_rate"] == "inf"
    assert "TTFT" in [figure["name"] for figure in written["figures"]]
    assert bad == 1
    assert "failed requests" in shown


def test_a_server_that_says_nothing_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(EngineError, match="Timeout; is a server running there"):
            bench_serve(load(url, timeout=0.1))


def test_a_key_that_no_header_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="--api-key: it has characters"):
        bench_serve(load("127.0.0.1:9"), api_key="schlüssel")


@pytest.mark.parametrize("flag", ["--request-rate", "--timeout"])
def test_nan_is_no_rate_and_no_time(run: Callable[..., tuple[int, str, str]], flag: str) -> None:
    code, _, err = run(flag, "nan")
    assert code == 2
    assert f"Invalid value for '{flag}': nan is no number" in err


def test_a_server_that_takes_no_token_ids_is_sent_text() -> None:
    app, seen = peer([chunk("a", "length"), usage(1), "[DONE]"]), []

    @app.middleware("http")
    async def note(request: Request, proceed: Callable[[Request], Any]) -> Any:
        if request.method == "POST":
            seen.append((await request.json())["prompt"])
        return await proceed(request)

    with served(app) as url:
        bench_serve(load(url, num_prompts=2, prompts="text", warm_up=0))
    assert len(set(seen)) == 2
    assert {len(prompt.split(" ")) for prompt in seen} == {4}
