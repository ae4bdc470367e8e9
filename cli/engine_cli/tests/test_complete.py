"""`engine complete`, here and on a server, and the speed that a terminal shows."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from engine.testing.tiny import write_tiny_model
from engine_cli.answering import LiveAnswer, Piece

from .test_chat_with_a_server import Server, server

Engine = Callable[..., Any]
__all__ = ["server"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("model")))


def run(engine: Engine, model: str, command: str, *more: str) -> Any:
    here = ["-m", model, "-O0", "--device", "cpu", "--threads", "1", "--num-kv-blocks", "99"]
    return engine(command, "ab", *here, "--temperature", "0", "--max-tokens", "8", *more)


def test_it_prints_what_generate_prints(engine: Engine, model: str) -> None:
    outcome = run(engine, model, "complete")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == run(engine, model, "generate", "--quiet").out
    assert outcome.out.strip()


def test_a_server_continues_the_text(engine: Engine, server: Server) -> None:
    server.path, server.piece = "/v1/completions", lambda text: {"text": text}
    outcome = engine("complete", "ab", "--url", server.url, "-m", "mine", "--temperature", "0")
    assert (outcome.code, outcome.out) == (0, "".join(server.pieces) + "\n")
    (asked,) = server.asked
    assert (asked["prompt"], asked["model"], asked["stream"]) == ("ab", "mine", True)


def test_a_setting_of_an_engine_has_no_effect_on_a_server(engine: Engine, server: Server) -> None:
    outcome = engine("complete", "ab", "--url", server.url, "--dtype", "float32")
    assert outcome.code == 2
    assert "--dtype has no effect with --url" in outcome.err


def test_standard_input_is_read(
    engine: Engine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.path, server.piece = "/v1/completions", lambda text: {"text": text}
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert engine("complete", "-", "--url", server.url).code == 0
    assert server.asked[0]["prompt"] == "from a pipe"


def shown(pieces: Iterator[Piece], monkeypatch: pytest.MonkeyPatch) -> tuple[LiveAnswer, str]:
    times = iter(range(100))
    monkeypatch.setattr("engine_cli.answering.perf_counter", lambda: float(next(times)))
    console = Console(file=io.StringIO(), width=20)
    answer = LiveAnswer(console)
    for piece in pieces:
        answer.add(piece)
    printed = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above
    return answer, printed


def test_whole_rows_are_printed_for_good_and_the_last_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "one two three four five six seven\neight [bold]nine"
    answer, printed = shown((Piece(letter, 1) for letter in text), monkeypatch)
    assert printed == "one two three four \nfive six seven\n"
    assert answer.text == text
    console = Console(file=io.StringIO(), width=40)
    console.print(answer.render())
    assert "eight [bold]nine" in console.file.getvalue()  # type: ignore[attr-defined]  # likewise


def test_the_speed_leaves_the_prompt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, _ = shown(iter([Piece("a", 1), Piece("b", 2), Piece("c", 2)]), monkeypatch)
    # The clock was read once, at the first piece; now it stands one second later.
    assert answer.speed() == "5 tokens, 4.0 tok/s"
    remote, _ = shown(iter([Piece("a", 1, exact=False), Piece("b", 1, exact=False)]), monkeypatch)
    assert remote.speed() == "about 2 tokens, about 1.0 tok/s"
