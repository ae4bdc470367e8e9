"""The tokenizer built from a GGUF file: the demo's known encodings, and each way of splitting."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]  # untyped library
from gguf import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode

from engine.errors import ModelError
from engine_weights_gguf.loader import GGUFWeights
from engine_weights_gguf.reader import GGUFFile

from .conftest import Draft, add_vocabulary

END, BEGIN, TOOL = "<|endoftext|>", "<|begin|>", "<tool>"
BYTE_LETTERS: dict[int, str] = bytes_to_unicode()
CORPUS = [
    "The quick brown fox doesn't jump; it'll've been 1234567890 days, we're SURE it's 3.14!",
    "def f(x):\n    return x  # café déjà vu\r\n\tIT'S 'S\n\n\n   end   ",
    "naïve Ångström Å 東京都 العربية ٣٤٥ ½ ⅓ Ⅳ x² 🦜🏽👩‍👩‍👧 é",
] * 4


@pytest.fixture(scope="module")
def tokenizer(demo: Path) -> PreTrainedTokenizerFast:
    made: PreTrainedTokenizerFast = GGUFWeights().tokenizer(demo)
    return made


# The demo's: encodings of llama.cpp and of the model's own tokenizer.json.
KNOWN = {
    "Hello, we can use": [19556, 28, 392, 416, 722],
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
    "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
    "  multiple   spaces": [216, 2701, 256, 5600],
    "\n": [198],
    " ½": [216, 16738],
    "<|im_start|>user\nhi<|im_end|>": [1, 4093, 198, 6004, 2],
}


@pytest.mark.parametrize("text", KNOWN)
def test_the_demo_encodes_known_texts(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer(text).input_ids == KNOWN[text]
    assert tokenizer.decode(KNOWN[text]) == text


@pytest.fixture(scope="module")
def by_definition(demo: Path) -> Callable[[str], list[int]]:
    """Byte-level BPE of the demo's vocabulary, written down from its definition."""
    metadata = GGUFFile(demo).metadata
    ids = {text: token for token, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {merge: rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    words = regex.compile(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    )

    def merged(word: str) -> list[str]:
        parts = [BYTE_LETTERS[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = [ranks.get(f"{a} {b}", len(ranks)) for a, b in itertools.pairwise(parts)]
            best = min(pairs)
            if best == len(ranks):
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return parts

    def encode(text: str) -> list[int]:
        pieces = [piece for piece in regex.split(r"(\p{N})", text) if piece]
        found = [word for piece in pieces for word in words.findall(piece)]
        return [ids[part] for word in found for part in merged(word)]

    return encode


@pytest.fixture(scope="module")
def spellable(demo: Path) -> Callable[[str], bool]:
    """Whether the demo's vocabulary, which lacks some bytes, can spell a text."""
    tokens = set(GGUFFile(demo).metadata["tokenizer.ggml.tokens"])
    lacking = {byte for byte, letter in BYTE_LETTERS.items() if letter not in tokens}
    return lambda text: lacking.isdisjoint(text.encode())


PIECES = (
    *("a", "B", "é", "the", "'s", "'LL", "_", "!", "?!", "東京", "🦜🏽", "👩\u200d👩\u200d👧"),
    *("1", "23", "½", "٣٤٥", "Ⅳ", "²"),
    *(" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u0301"),
)
TEXTS = st.one_of(st.text(max_size=30), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_the_demo_encodes_any_text_by_the_definition_and_gets_it_back(
    tokenizer: PreTrainedTokenizerFast,
    by_definition: Callable[[str], list[int]],
    spellable: Callable[[str], bool],
    text: str,
) -> None:
    if spellable(text):
        ids = tokenizer(text).input_ids
        assert ids == by_definition(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", [" ½", "٣٤٥ ok", "1234", "🦜🏽 x 👩‍👩‍👧", "x² + 1", " ٣", "a 1"])
def test_digits_of_every_script_stand_alone(
    tokenizer: PreTrainedTokenizerFast, by_definition: Callable[[str], list[int]], text: str
) -> None:
    assert tokenizer(text).input_ids == by_definition(text)


def test_the_demos_special_tokens_and_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 2
    assert tokenizer.unk_token_id == 0
    assert len(tokenizer) == 49152
    assert tokenizer("hi").input_ids[0] != tokenizer.bos_token_id, "none is added"
    messages = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer(text).input_ids
    assert ids.count(1) == 3
    assert str(tokenizer.decode(ids, skip_special_tokens=True)).startswith("system\nYou are")


def test_the_demo_ends_at_both_of_its_end_tokens(
    demo: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    loader = GGUFWeights()
    config = loader.config(demo)
    assert loader.end_token_ids(demo, config, tokenizer) == [0, 2]
    assert loader.end_token_ids(demo, config, None) == [0, 2]


def test_the_demos_tokenizer_is_built_in_under_two_seconds(demo: Path) -> None:
    start = time.perf_counter()
    GGUFWeights().tokenizer(demo)
    assert time.perf_counter() - start < 2


# Other ways of splitting, compared with transformers' tokenizers of the same vocabulary.


def train(pattern: str, added: Sequence[str] = (END, BEGIN, TOOL)) -> tuple[list[str], list[str]]:
    """Train a byte-level vocabulary of all bytes and some merges; return tokens and merges."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    vocab = backend.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    merges = json.loads(backend.to_str())["model"]["merges"]
    assert len(merges) > 40
    return tokens, [" ".join(pair) for pair in merges]


WORDS = r"\p{L}+|\p{N}+|\s+|[^\s\p{L}\p{N}]+"
TYPES = {
    END: TokenType.CONTROL,
    BEGIN: TokenType.CONTROL,
    TOOL: TokenType.USER_DEFINED,
}


def built(
    path: Path, tokens: list[str], merges: list[str], **values: Any
) -> PreTrainedTokenizerFast:
    draft = Draft("llama")
    pre = values.pop("pre")
    ids = {"eos_token_id": 0, "bos_token_id": 1}
    add_vocabulary(draft, tokens, merges, pre=pre, types=TYPES, **ids)
    draft.values.update({f"tokenizer.{key}": value for key, value in values.items()})
    made = GGUFWeights().tokenizer(draft.write(path / "t.gguf"))
    assert isinstance(made, PreTrainedTokenizerFast)
    return made


def assert_like(ours: PreTrainedTokenizerFast, theirs: Any, texts: Sequence[str]) -> None:
    for text in texts:
        expected = theirs(text, add_special_tokens=False).input_ids
        assert ours(text, add_special_tokens=False).input_ids == expected, text


SAMPLES = [
    *CORPUS[:3],
    "12345 ٣٤٥٦ x²",
    "I'LL we'Ve\u00a0don't",
    "a\n\n b\r\n  c   ",
    "e\u0301 ﬁ Å",
    "  x",
    "(hello) -- world!!\n",
    f"{END}a{TOOL}b",
]


def pairs(merges: Sequence[str]) -> Any:
    return [tuple(merge.split(" ")) for merge in merges]


def test_gpt2_splitting_is_that_of_transformers(tmp_path: Path) -> None:
    tokens, merges = train(WORDS)
    vocab = {text: i for i, text in enumerate(tokens)}
    theirs: Any = GPT2Tokenizer(vocab=vocab, merges=pairs(merges))
    theirs.add_tokens([TOOL])
    assert_like(built(tmp_path, tokens, merges, pre="gpt-2"), theirs, SAMPLES)


def test_qwen2_splitting_is_that_of_transformers(tmp_path: Path) -> None:
    tokens, merges = train(WORDS)
    vocab = {text: i for i, text in enumerate(tokens)}
    theirs: Any = Qwen2Tokenizer(vocab=vocab, merges=pairs(merges))
    theirs.add_tokens([TOOL])
    assert_like(built(tmp_path, tokens, merges, pre="qwen2"), theirs, SAMPLES)


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3"])
def test_llama3_splitting_is_that_of_transformers(tmp_path: Path, pre: str) -> None:
    tokens, merges = train(WORDS)
    converter = TikTokenConverter()
    backend = Tokenizer(
        models.BPE(
            vocab={text: i for i, text in enumerate(tokens)},
            merges=pairs(merges),
            ignore_merges=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(converter.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END, BEGIN])
    backend.add_tokens([TOOL])
    theirs: Any = PreTrainedTokenizerFast(tokenizer_object=backend)
    ours = built(tmp_path, tokens, merges, pre=pre)
    assert_like(ours, theirs, SAMPLES)
    assert ours("hi").input_ids[0] == ours.bos_token_id, "its files leave it unsaid"


def test_a_whole_word_that_no_merge_makes_is_one_token_for_llama3_only(tmp_path: Path) -> None:
    tokens, merges = train(WORDS, (END, BEGIN, TOOL, "zqzqzq"))
    word = tokens.index("zqzqzq")
    llama3 = built(tmp_path, tokens, merges, pre="llama-bpe")
    assert llama3("zqzqzq", add_special_tokens=False).input_ids == [word]
    assert word not in built(tmp_path, tokens, merges, pre="qwen2")("zqzqzq").input_ids


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "smollm"])
def test_a_vocabulary_of_all_bytes_gets_any_text_back(
    every_byte: dict[str, PreTrainedTokenizerFast], pre: str, text: str
) -> None:
    ids = every_byte[pre](text, add_special_tokens=False).input_ids
    assert every_byte[pre].decode(ids) == text


@pytest.fixture(scope="module")
def every_byte(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PreTrainedTokenizerFast]:
    tokens, merges = train(WORDS)
    folder = tmp_path_factory.mktemp("gguf")
    return {pre: built(folder, tokens, merges, pre=pre) for pre in ("gpt-2", "llama-bpe", "smollm")}


@pytest.mark.parametrize(
    ("values", "before", "after"),
    [
        ({}, [], []),
        ({"ggml.add_bos_token": True}, [1], []),
        ({"ggml.add_eos_token": True}, [], [0]),
        ({"ggml.add_bos_token": True, "ggml.add_eos_token": True}, [1], [0]),
    ],
)
def test_begin_and_end_tokens_are_added_as_the_file_says(
    tmp_path: Path, values: dict[str, bool], before: list[int], after: list[int]
) -> None:
    tokens, merges = train(WORDS)
    made = built(tmp_path, tokens, merges, pre="gpt-2", **values)
    middle = made("fox", add_special_tokens=False).input_ids
    assert made("fox").input_ids == [*before, *middle, *after]


def test_user_defined_tokens_are_kept_when_special_ones_are_skipped(tmp_path: Path) -> None:
    tokens, merges = train(WORDS)
    made = built(tmp_path, tokens, merges, pre="gpt-2")
    ids = made(f"a{TOOL}b{END}").input_ids
    assert ids.count(tokens.index(TOOL)) == ids.count(tokens.index(END)) == 1
    assert made.decode(ids, skip_special_tokens=True) == f"a{TOOL}b"


def test_a_file_without_a_vocabulary_has_no_tokenizer(tmp_path: Path) -> None:
    assert GGUFWeights().tokenizer(Draft("llama").write(tmp_path / "t.gguf")) is None


# What isn't supported, and the sentence that says so.


def refusal(path: Path, changes: dict[str, Any]) -> str:
    tokens, merges = train(WORDS)
    draft = Draft("llama")
    add_vocabulary(draft, tokens, merges, pre="gpt-2", types=TYPES, eos_token_id=0)
    draft.values.update(changes)
    file = draft.write(path / "t.gguf")
    with pytest.raises(ModelError) as caught:
        GGUFWeights().tokenizer(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model='llama' isn't supported"),
        ({"tokenizer.ggml.pre": "tekken"}, "tokenizer.ggml.pre='tekken' isn't supported"),
        ({"tokenizer.ggml.merges": ["no such"]}, "tokenizer.ggml.merges don't fit its tokens"),
        ({"tokenizer.ggml.merges": ["a"]}, "tokenizer.ggml.merges don't fit its tokens"),
    ],
)
def test_an_unsupported_tokenizer_says_to_pass_another(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    text = refusal(tmp_path, changes)
    assert said in text
    assert "with --tokenizer" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.eos_token_id": 9999}, "tokenizer.ggml.eos_token_id=9999 is no id"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "its vocabulary is inconsistent"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "its vocabulary is inconsistent"),
    ],
)
def test_an_inconsistent_vocabulary_is_named(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(tmp_path, changes)
