"""What a server is asked: random token ids, or the prompts of a file."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import ConfigError


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        prompt: text or token ids.
        output_len: tokens that are asked for.
    """

    prompt: str | Sequence[int]
    output_len: int


class _Line(msgspec.Struct, forbid_unknown_fields=False):
    prompt: str | list[int]
    output_len: int | None = None


def random_asks(input_len: int, output_len: int, vocab_size: int, seed: int) -> Iterator[Ask]:
    """Yield prompts of random tokens without end; none comes twice."""
    draw = random.Random(seed)  # noqa: S311 - any tokens do, the same each time
    while True:
        yield Ask(draw.choices(range(vocab_size), k=input_len), output_len)


def random_texts(input_len: int, output_len: int, seed: int) -> Iterator[Ask]:
    """Yield random letters with blanks between, without end, for servers that take no token ids.

    Most tokenizers make one token of each; the server's usage says how many it were.
    """
    draw = random.Random(seed)  # noqa: S311 - any letters do, the same each time
    while True:
        yield Ask(" ".join(draw.choices(string.ascii_lowercase, k=input_len)), output_len)


def read_dataset(path: Path, output_len: int) -> list[Ask]:
    """Read a file with one JSON object a line: `prompt`, and `output_len` if it differs.

    Args:
        path: the file.
        output_len: of lines that don't say.

    Raises:
        ConfigError: the file or a line is unusable; says which and why.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--dataset={path}: can't be read ({error.strerror})") from error
    asks = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"--dataset={path}, line {number}: {error}; "
                'write {"prompt": TEXT or [IDS], "output_len": N}'
            ) from error
        length = output_len if read.output_len is None else read.output_len
        if not read.prompt or length < 1:
            raise ConfigError(
                f"--dataset={path}, line {number}: prompt must not be empty, output_len at least 1"
            )
        asks.append(Ask(read.prompt, length))
    if not asks:
        raise ConfigError(f"--dataset={path}: it has no prompts")
    return asks


def arrival_times(count: int, rate: float, seed: int) -> list[float]:
    """Return when requests arrive: a Poisson process whose first request comes at once.

    Args:
        count: of requests.
        rate: requests per second on average; infinite for all at once.
        seed: of the process.

    Returns:
        Seconds from the beginning, ascending.
    """
    if rate == float("inf"):
        return [0.0] * count
    import numpy as np

    gaps = np.random.default_rng(seed).exponential(1 / rate, count - 1)
    times: Any = np.concatenate([[0.0], np.cumsum(gaps)])
    return [float(time) for time in times]
