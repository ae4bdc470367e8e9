"""How many KV blocks there are, who decided, and what is refused."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runtime.kv_memory import plan_blocks
from engine.runtime.memory import MemoryUse

MIB = 2**20


def measured(free: int, total: int = 100_000) -> MemoryUse:
    """A device of which so many bytes are free for the cache, weights having the rest."""
    return MemoryUse(total, 0.5, elsewhere=0, weights=total // 2 - free, activations=0)


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
    blocks, record = plan_blocks(config(), 1000, measured(12_345))
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
    memory = None if free is None else measured(free)
    with pytest.raises(ConfigError, match="at least 2000 bytes"):
        plan_blocks(config(kv_cache_memory=asked), 1000, memory)


def test_a_full_device_is_refused_with_the_share_that_would_do() -> None:
    memory = MemoryUse(
        1000 * MIB,
        0.5,
        elsewhere=90 * MIB,
        weights=300 * MIB,
        activations=100 * MIB,
        graphs=40 * MIB,
    )
    assert memory.free == -30 * MIB
    with pytest.raises(ConfigError, match=r"weights 300 MiB.*graphs 40 MiB.*to 0\.55"):
        plan_blocks(config(), 10 * MIB, memory)
    enough = MemoryUse(
        1000 * MIB,
        0.55,
        elsewhere=90 * MIB,
        weights=300 * MIB,
        activations=100 * MIB,
        graphs=40 * MIB,
    )
    assert plan_blocks(config(), 10 * MIB, enough)[0] == 2


def test_a_device_that_can_never_hold_it_is_refused_with_other_remedies() -> None:
    memory = MemoryUse(1000 * MIB, 0.9, elsewhere=0, weights=995 * MIB, activations=0)
    with pytest.raises(ConfigError, match="free the device"):
        plan_blocks(config(), 10 * MIB, memory)


def test_more_than_the_device_has_is_refused_with_what_it_has() -> None:
    memory = MemoryUse(1000 * MIB, 0.5, elsewhere=0, weights=300 * MIB, activations=100 * MIB)
    with pytest.raises(ConfigError, match=r"600 MiB of 1000 MiB are left; .* at most 60 blocks"):
        plan_blocks(config(num_kv_blocks=61), 10 * MIB, memory)
    assert plan_blocks(config(num_kv_blocks=60), 10 * MIB, memory)[0] == 60


def test_the_table_adds_up() -> None:
    memory = MemoryUse(1000, 0.9, elsewhere=50, weights=300, activations=100, graphs=40, cache=400)
    assert memory.free == 10
    settings = [record.setting for record in memory.records()]
    assert settings == [
        f"memory.{name}"
        for name in ("elsewhere", "weights", "activations", "graphs", "kv_cache", "free")
    ]
    assert len(memory.table().splitlines()) == 6
