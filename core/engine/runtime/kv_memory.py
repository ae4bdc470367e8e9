"""How many KV blocks fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engine.attention import AttentionPlugin, AttentionSpec
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.records import Record
from engine.runtime.memory import MemoryUse, human

_CPU_DEFAULT = 1 << 30
"""Bytes of KV cache on the CPU unless more is asked for; memory is only taken when used."""


def bytes_per_block(
    attention: AttentionPlugin,
    specs: Sequence[AttentionSpec],
    block_size: int,
    dtype: torch.dtype,
) -> int:
    """Return the bytes that one block takes in all layers together."""
    return sum(
        (
            math.prod(attention.cache_shape(spec, 2, block_size))
            - math.prod(attention.cache_shape(spec, 1, block_size))
        )
        * dtype.itemsize
        for spec in specs
    )


def plan_blocks(
    config: EngineConfig, block_bytes: int, memory: MemoryUse | None
) -> tuple[int, Record]:
    """Decide the number of KV blocks, the reserved one included.

    Args:
        config: effective settings.
        block_bytes: bytes of one block over all layers.
        memory: what was measured; None where it isn't (the CPU), so that a default applies.

    Raises:
        ConfigError: not even one request of one block fits, or more was asked for than there is;
            says how much would fit.
    """
    context_blocks = -(-(config.max_model_len or 1) // config.block_size) + 1
    if config.num_kv_blocks is not None:
        blocks, reason = config.num_kv_blocks, "asked for"
        asked = f"{blocks} blocks"
    elif config.kv_cache_memory is not None:
        blocks, reason = config.kv_cache_memory // block_bytes, "asked for"
        asked = f"{config.kv_cache_memory} bytes"
    elif memory is not None:
        blocks = memory.free // block_bytes
        reason, asked = "what weights, activations and graphs leave free", ""
    else:
        # One whole context must always fit; beyond that a default that a laptop can bear.
        blocks = max(_CPU_DEFAULT // block_bytes, context_blocks)
        reason, asked = "1 GiB, or one whole context if that is more", ""
        blocks = min(blocks, 1 + config.max_num_seqs * (context_blocks - 1))
    if blocks < 2:
        room = f": {memory.why_not(2 * block_bytes)}" if memory is not None and not asked else ""
        raise ConfigError(
            f"KV cache: {max(blocks, 0)} block(s) of {block_bytes} bytes fit, 2 is the least; give "
            f"it at least {2 * block_bytes} bytes (--kv-cache-memory){room}"
        )
    if memory is not None and blocks * block_bytes > memory.total - memory.spent:
        raise ConfigError(
            f"KV cache: {asked} were asked for, but {human(memory.total - memory.spent)} of "
            f"{human(memory.total)} are left; ask for at most "
            f"{(memory.total - memory.spent) // block_bytes} blocks"
        )
    tokens = (blocks - 1) * config.block_size
    effective = f"{blocks} blocks, {tokens} tokens, {blocks * block_bytes / 2**20:.0f} MiB"
    remedy = ""
    if tokens < (config.max_model_len or 0):
        reason += f"; less than one whole context of {config.max_model_len} tokens"
        remedy = "raise --kv-cache-memory or lower --max-model-len to serve the whole context"
    return blocks, Record("kv_cache", asked, effective, "memory", reason, remedy)
