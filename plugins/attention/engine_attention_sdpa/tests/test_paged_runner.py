"""The runner of tests hands out blocks as it says; otherwise tests would prove little."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from engine.testing.paged import PagedRunner, attention_inputs
from engine.testing.reference import build_like, random_reference
from engine_attention_sdpa.attention import SdpaAttention
from engine_model_llama.plugin import LlamaFamily

CONFIG = LlamaConfig(
    vocab_size=30,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=64,
)


def runner(*, shuffle: int | None = None, padding: int = 0) -> PagedRunner:
    model = build_like(LlamaFamily(), random_reference(CONFIG))
    return PagedRunner(
        model, SdpaAttention(), num_blocks=9, block_size=4, shuffle=shuffle, padding=padding
    )


def test_blocks_are_handed_out_in_order_or_shuffled_and_never_the_reserved_one() -> None:
    plain, shuffled = runner(), runner(shuffle=1)
    for one in (plain, shuffled):
        one.forward([("a", [1] * 9), ("b", [2] * 20)])
    assert plain.tables == {"a": [1, 2, 3], "b": [4, 5, 6, 7, 8]}
    handed_out = shuffled.tables["a"] + shuffled.tables["b"]
    assert sorted(handed_out) == list(range(1, 9)) != handed_out


def test_a_full_cache_is_an_error_and_a_released_sequence_makes_room() -> None:
    one = runner()
    one.forward([("a", [1] * 32)])
    with pytest.raises(RuntimeError, match="1 blocks needed, 0 are free"):
        one.forward([("b", [1])])
    one.release("a")
    assert [rows.shape for rows in one.forward([("c", [1, 2]), ("d", [3])])] == [(2, 16), (1, 16)]


def test_padded_rows_change_nothing() -> None:
    plain = runner().logits([("a", [3, 4, 5]), ("b", [6])])
    padded = runner(padding=5).logits([("a", [3, 4, 5]), ("b", [6])])
    for one, other in zip(plain, padded, strict=True):
        torch.testing.assert_close(one, other)


def test_inputs_describe_the_step_on_the_host_and_on_the_device() -> None:
    inputs = attention_inputs([2, 1], [6, 3], [[5, 2], [7]], 4, padding=2)
    assert inputs.slots.tolist() == [2 * 4 + 0, 2 * 4 + 1, 7 * 4 + 2, -1, -1]
    assert inputs.query_start.tolist() == [0, 2, 3, 3, 3]
    assert inputs.seq_lens.tolist() == [6, 3, 0, 0]
    assert inputs.block_tables.tolist() == [[5, 2], [7, 0], [0, 0], [0, 0]]
    assert inputs.host_query_start.tolist() == [0, 2, 3]
    assert inputs.host_seq_lens.tolist() == [6, 3]
    assert inputs.host_block_tables.tolist() == [[5, 2], [7, 0]]
    assert (inputs.shape.num_tokens, inputs.shape.num_reqs, inputs.shape.max_query_len) == (3, 2, 2)
