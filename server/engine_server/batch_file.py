"""OpenAI batch files: requests in, one line each, and answers out, which an interrupt may cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ConfigError

URLS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses")
_SHOWN = 10
_OK = 200


@dataclass(frozen=True)
class BatchRequest:
    """One line of a batch file.

    Attributes:
        custom_id: the author's name of the request.
        url: the endpoint.
        body: as it would be posted.
    """

    custom_id: str
    url: str
    body: dict[str, Any]


def read_requests(path: Path) -> list[BatchRequest]:
    """Read a whole batch file.

    Raises:
        ConfigError: it can't be read, or lines aren't requests; names each by its number.
    """
    requests: list[BatchRequest] = []
    problems: list[str] = []
    seen: dict[str, int] = {}
    for number, line in _lines(path):
        found = _read(line)
        if isinstance(found, str):
            problems.append(f"line {number}: {found}")
            continue
        if (first := seen.setdefault(found.custom_id, number)) != number:
            problems.append(f"line {number}: custom_id {found.custom_id!r} is that of line {first}")
        requests.append(found)
    if problems:
        shown = [f"{path}: {problem}" for problem in problems[:_SHOWN]]
        more = [f"{path}: and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise ConfigError("\n".join([*shown, *more]))
    if not requests:
        raise ConfigError(f"{path}: holds no request; write one JSON object per line")
    return requests


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from None
    # Not splitlines(), which also cuts at separators that JSON allows inside a text.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _read(line: str) -> BatchRequest | str:
    """Return a request, or what is wrong with it."""
    try:
        content = json.loads(line)
    except ValueError as error:
        return f"is no JSON ({error})"
    if not isinstance(content, dict):
        return "is no JSON object"
    custom_id, url, body = (content.get(name) for name in ("custom_id", "url", "body"))
    if not isinstance(custom_id, str) or not custom_id:
        return "needs a custom_id, a text of its own"
    if (method := content.get("method", "POST")) != "POST":
        return f"method must be POST, not {method!r}"
    if url not in URLS:
        return f"url {url!r} is unknown; use {', '.join(URLS)}"
    if not isinstance(body, dict):
        return "needs a body, a JSON object"
    if body.get("stream"):
        return "body.stream must be left out: a batch is answered whole"
    return BatchRequest(custom_id, url, body)


class AnswerFile:
    """Answers of a batch, to which more are added; what an interrupt cut in half is dropped.

    Attributes:
        done: the requests that are answered.
        failed: how many answers are errors.

    Args:
        path: the file; made when it doesn't exist.

    Raises:
        ConfigError: it can't be opened, or holds something else than answers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[str] = set()
        self.failed = 0
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"{path}: can't be written: {error.strerror}") from None
        self._file.truncate(self._whole())

    def _whole(self) -> int:
        """Note the answers that are there; return where the last whole line ends."""
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                self._note(json.loads(line))
            except (ValueError, KeyError, TypeError):
                self._file.close()
                raise ConfigError(
                    f"{self.path}: line {number} is no answer of a batch; name another --output"
                ) from None
            end += len(line)
        return end

    def add(self, answer: dict[str, Any]) -> None:
        """Write one answer; it is in the file when this returns."""
        self._file.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self._note(answer)

    def _note(self, answer: dict[str, Any]) -> None:
        self.failed += answer["response"]["status_code"] != _OK
        self.done.add(answer["custom_id"])

    def close(self) -> None:
        """Close the file."""
        self._file.close()
