"""Small tokenizers of the common kinds, made in an instant."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
_UNKNOWN = "<unk>"
TEXTS = (
    "the cat sat on the mat",
    "grüße aus köln",
    "数学と言語",
    "🙂 emoji 👩\u200d🚀",
    "\ufffd ok",
)


def fast_tokenizer(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """Return transformers' tokenizer over a backend, with two special tokens and an added one."""
    backend.add_special_tokens(list(_SPECIAL.values()))
    backend.add_tokens(["<added>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **_SPECIAL)


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer as of GPT-2, Llama 3, Qwen, SmolLM: tokens are bytes, joined."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    return fast_tokenizer(backend)


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer as of Llama 2 and Mistral: marked spaces, and bytes for what is rare."""
    words = [_UNKNOWN, *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "▁the", "▁cat", "s", "at", "▁▁", "é", "\ufffd", "▁数", "学"]
    vocab = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token=_UNKNOWN))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return fast_tokenizer(backend)


def id_of(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return the id of a token of the vocabulary.

    Raises:
        KeyError: there is none.
    """
    found = tokenizer.backend_tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(token)
    return found
