"""Builds a tokenizer out of a GGUF file's vocabulary and merges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gguf import TokenType
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from engine.errors import ModelError
from engine_weights_gguf.reader import GGUFFile
from engine_weights_gguf.vocabulary import Vocabulary, read_vocabulary, special_id

_PREFIX = "tokenizer.ggml."
_REMEDY = "pass a folder with the model's tokenizer.json with --tokenizer"
_SPECIAL_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True)
class Splitting:
    """How text is cut before pairs are merged.

    Attributes:
        make: builds the pre-tokenizer.
        normalizer: builds what is applied to the text before it, if anything.
        whole_words: a piece that is a token as it is isn't merged.
        add_bos: the begin token is added unless the file says otherwise.
    """

    make: Callable[[], Any]
    normalizer: Callable[[], Any] | None = None
    whole_words: bool = False
    add_bos: bool = False


def _by_pattern(digits: str) -> Callable[[], Any]:
    """Build the splitting of the GPT-4 kind; the models differ in how they take digits."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _byte_level() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_then_byte_level() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


_LLAMA3 = Splitting(_by_pattern(r"\p{N}{1,3}"), whole_words=True, add_bos=True)
_SPLITTINGS: Mapping[str, Splitting] = {
    "gpt-2": Splitting(_byte_level),
    "smollm": Splitting(_digits_then_byte_level),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": Splitting(_by_pattern(r"\p{N}"), normalizer=normalizers.NFC),
}
"""By `tokenizer.ggml.pre`."""


def build_tokenizer(file: GGUFFile) -> PreTrainedTokenizerFast | None:
    """Return the file's tokenizer with its chat template, or None if it holds no vocabulary.

    Raises:
        ModelError: its kind isn't supported, or its vocabulary is invalid.
    """
    vocabulary = read_vocabulary(file)
    if vocabulary is None:
        return None
    splitting = _splitting(file)
    backend = Tokenizer(_merging(file, vocabulary, splitting))
    if splitting.normalizer is not None:
        backend.normalizer = splitting.normalizer()
    backend.pre_tokenizer = splitting.make()
    backend.decoder = decoders.ByteLevel()
    size = len(vocabulary.texts)
    ids = {name: special_id(file, key, size) for name, key in _SPECIAL_NAMES.items()}
    specials = {name: vocabulary.texts[token] for name, token in ids.items() if token is not None}
    _add_tokens(backend, vocabulary, specials.values())
    _add_ends(backend, file, specials, add_bos=splitting.add_bos)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=file.metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **specials,
    )


def _splitting(file: GGUFFile) -> Splitting:
    kind = file.metadata.get(f"{_PREFIX}model")
    pre = str(file.metadata.get(f"{_PREFIX}pre"))
    if kind != "gpt2":
        raise ModelError(
            f"{file.path}: {_PREFIX}model={kind!r} isn't supported (only byte-level BPE, 'gpt2', "
            f"is); {_REMEDY}"
        )
    if pre not in _SPLITTINGS:
        raise ModelError(
            f"{file.path}: {_PREFIX}pre={pre!r} isn't supported (supported: "
            f"{', '.join(_SPLITTINGS)}); {_REMEDY}"
        )
    return _SPLITTINGS[pre]


def _merging(file: GGUFFile, vocabulary: Vocabulary, splitting: Splitting) -> Any:
    merges = file.metadata.get(f"{_PREFIX}merges", [])
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        return models.BPE(
            vocab={text: token for token, text in enumerate(vocabulary.texts)},
            merges=pairs,
            ignore_merges=splitting.whole_words,
        )
    except Exception as error:  # what the tokenizers library raises has no class of its own
        raise ModelError(
            f"{file.path}: {_PREFIX}merges don't fit its tokens ({error}); {_REMEDY}"
        ) from error


def _add_tokens(backend: Tokenizer, vocabulary: Vocabulary, named: Any) -> None:
    """Have special and user-defined tokens recognised in text."""
    control = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    special = [vocabulary.texts[token] for token in control] + list(named)
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in dict.fromkeys(special)]
    )
    defined = vocabulary.of_type(TokenType.USER_DEFINED)
    backend.add_tokens([AddedToken(vocabulary.texts[t], normalized=False) for t in defined])


def _add_ends(
    backend: Tokenizer, file: GGUFFile, specials: Mapping[str, str], *, add_bos: bool
) -> None:
    """Add the begin and end tokens that the file asks for around a text."""
    before = file.metadata.get(f"{_PREFIX}add_bos_token", add_bos) and specials.get("bos_token")
    after = file.metadata.get(f"{_PREFIX}add_eos_token", False) and specials.get("eos_token")
    ends = [text for text in (before, after) if text]
    if not ends:
        return
    parts = [*([before] if before else []), "$A", *([after] if after else [])]
    backend.post_processor = processors.TemplateProcessing(
        single=parts,
        special_tokens=[(text, backend.token_to_id(text)) for text in dict.fromkeys(ends)],
    )
