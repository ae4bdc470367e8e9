"""How many KV blocks there are, who decided, and what is refused."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runtime.kv_memory import plan_blocks

MIB = 2**20


def config(**fields: object) -> EngineConfig:
    return EngineConfig(**{"max_model_len": 64, "block_size": 16, "max_num_seqs": 4, **fields})


def test_a_number_of_blocks_is_taken_as_it_is() -> None:
    blocks, record = plan_blocks(config(num_kv_blocks=7), 1000, None)
    assert blocks == 7
    assert record.effective.startswith("7 blocks, 96 tokens")


def test_memory_is_divided_into_blocks() -> None:
    blocks, _ = plan_blocks(config(kv_cache_memory="1MiB"), MIB // 10, None)
    assert blocks == 10


def test_measured_memory_decides_where_it_is_measured() -> None:
    blocks, record = plan_blocks(config(), 1000, 12_345)
    assert blocks == 12
    assert "leave free" in record.reason


def test_the_default_never_exceeds_what_all_sequences_together_can_use() -> None:
    blocks, _ = plan_blocks(config(), 1000, None)
    assert blocks == 1 + 4 * 4


def test_the_default_holds_one_whole_context_however_large() -> None:
    blocks, record = plan_blocks(config(max_model_len=4096), 100 * MIB, None)
    assert blocks == 4096 // 16 + 1
    assert not record.degraded


def test_less_than_one_context_is_allowed_and_said() -> None:
    _, record = plan_blocks(config(num_kv_blocks=3), 1000, None)
    assert record.degraded
    assert "less than one whole context of 64 tokens" in record.reason


@pytest.mark.parametrize(("asked", "free"), [(None, 1500), (1999, None), (None, -5)])
def test_a_cache_without_a_usable_block_is_refused_with_the_number_that_fits(
    asked: int | None, free: int | None
) -> None:
    with pytest.raises(ConfigError, match="at least 2000 bytes"):
        plan_blocks(config(kv_cache_memory=asked), 1000, free)
