"""The text and the bytes of single tokens, as log-probabilities name them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from engine.errors import RequestError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText:
    r"""Looks tokens up, each once.

    A token's text alone isn't always text: a character may be spread over several tokens. Such a
    token is written `bytes:\xe2\x98`, as OpenAI's API does.

    Args:
        tokenizer: a transformers fast tokenizer, or None; then ids are written `token_id:5`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bytes_of = _bytes_reader(tokenizer)
        self._known: dict[int, tuple[str, bytes]] = {}

    def text(self, token_id: int) -> str:
        """Return what stands for the token in an answer."""
        return self._look_up(token_id)[0]

    def utf8(self, token_id: int) -> bytes:
        """Return the bytes that the token adds to the text; none without a tokenizer."""
        return self._look_up(token_id)[1]

    def join(self, token_ids: list[int]) -> str:
        """Return the text of many tokens, special tokens included.

        Raises:
            RequestError: there is no tokenizer.
        """
        if self._tokenizer is None:
            raise RequestError("this model is served without a tokenizer")
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def _look_up(self, token_id: int) -> tuple[str, bytes]:
        if (known := self._known.get(token_id)) is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def _read(self, token_id: int) -> tuple[str, bytes]:
        if self._tokenizer is None:
            return f"token_id:{token_id}", b""
        data = self._bytes_of(token_id)
        try:
            return data.decode(), data
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data


def _bytes_reader(tokenizer: Any) -> Callable[[int], bytes]:
    """Return the function that reads a token's bytes, by how the tokenizer spells tokens."""
    if tokenizer is None:
        return lambda _: b""
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    spelled = tokenizer.convert_ids_to_tokens
    decoder = tokenizer.backend_tokenizer.decoder
    state = json.loads(decoder.__getstate__()) if decoder is not None else {}
    byte_level = "ByteLevel" in {state.get("type"), *(d["type"] for d in state.get("decoders", []))}
    table = _byte_level_alphabet() if byte_level else {}

    def read(token_id: int) -> bytes:
        if token_id in added:
            return str(added[token_id]).encode()
        token = spelled(token_id)
        if token is None:  # a row of the embedding that no token uses
            return b""
        if byte_level:
            return b"".join(table.get(char) or char.encode() for char in token)
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return str(token).replace("\u2581", " ").encode()

    return read


def _byte_level_alphabet() -> dict[str, bytes]:
    """Return the letter that stands for each byte in byte-level vocabularies (GPT-2, 2019).

    Printable bytes stand for themselves; the others take the letters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): bytes([byte]) for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(0x100 + i): bytes([byte]) for i, byte in enumerate(others)}
