"""What `chat` and `complete` share: a model here or on a server, and an answer as it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from engine.settings import Settings
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress

if TYPE_CHECKING:
    from rich.console import Console

    from engine import LLM

NOT_FOR_ONE_TEXT = ("n", "logprobs", "prompt_logprobs")
"""Sampling parameters that make more than one text."""


class Piece(NamedTuple):
    """A part of an answer.

    Attributes:
        text: what is new.
        tokens: how many tokens it was made of.
        exact: whether that is known; a server's chunk is taken for one token.
    """

    text: str
    tokens: int
    exact: bool = True


def remote_options() -> list[click.Option]:
    """Return the flags for a model on a server."""
    return [
        click.Option(["--url"], help="Use the model of the server at this address instead."),
        click.Option(
            ["--api-key"], envvar="ENGINE_API_KEY", help="For --url. [env: ENGINE_API_KEY]"
        ),
    ]


def only_model(context: click.Context, sources: Sources) -> str | None:
    """Return the model that the command line names, and refuse flags that can't reach a server.

    What the environment and a file say is about engines started here.

    Raises:
        UsageError: a setting was given that a server wouldn't see.
    """
    said = sources.layers[0]
    for name, spelled in said.spelled.items():
        if name != "model":
            raise click.UsageError(f"{spelled} has no effect with --url; drop one", context)
    return said.values.get("model")


@contextmanager
def local_model(settings: Settings, *, quiet: bool, verbose: bool) -> Iterator[LLM]:
    """Start an engine in this process and show how."""
    from engine import LLM

    with StartupProgress(sys.stderr, verbose=verbose, quiet=quiet) as progress:
        llm = LLM(engine_config=settings, on_event=progress)
    with llm:
        yield llm


def pieces_of(stream: Iterable[Any]) -> Iterator[Piece]:
    """Yield the pieces of an engine's own stream."""
    for news in stream:
        for output in news.outputs:
            yield Piece(output.text, len(output.token_ids))


def say(pieces: Iterable[Piece]) -> str:
    """Print an answer as it comes, on a terminal with its speed below; return it whole."""
    show = _say_live if sys.stdout.isatty() else _say_plainly
    return show(pieces)


def _say_plainly(pieces: Iterable[Piece]) -> str:
    said = []
    for piece in pieces:
        said.append(piece.text)
        click.echo(piece.text, nl=False)
        sys.stdout.flush()
    click.echo()
    return "".join(said)


def _say_live(pieces: Iterable[Piece]) -> str:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout, highlight=False)
    answer = LiveAnswer(console)
    with Live(console=console, refresh_per_second=8, get_renderable=answer.render):
        for piece in pieces:
            answer.add(piece)
    return answer.text


class LiveAnswer:
    """An answer that grows: whole rows are printed for good, the last one stands above its speed.

    Args:
        console: where it is drawn.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = 0.0
        self._row = ""
        self._tokens, self._exact = 0, True
        self.text = ""

    def add(self, piece: Piece) -> None:
        """Take a piece in."""
        from rich.text import Text

        # The first piece ends the prompt's computation, which is no part of the speed.
        self._begun = self._begun or perf_counter()
        self.text += piece.text
        self._tokens += piece.tokens
        self._exact = self._exact and piece.exact
        rows = Text(self._row + piece.text).wrap(self._console, self._console.width)
        for row in rows[:-1]:
            self._console.print(row, markup=False, soft_wrap=True)
        self._row = rows[-1].plain if rows else ""

    def render(self) -> Any:
        """Return the last row and the speed."""
        from rich.console import Group
        from rich.text import Text

        return Group(Text(self._row), Text(self.speed(), style="dim"))

    def speed(self) -> str:
        """Return tokens so far and tokens a second after the first piece."""
        seconds = perf_counter() - self._begun if self._begun else 0.0
        about = "" if self._exact else "about "
        rate = f", {about}{(self._tokens - 1) / seconds:.1f} tok/s" if seconds > 0 else ""
        return f"{about}{self._tokens} tokens{rate}"
