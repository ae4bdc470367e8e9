"""Who owns which block of the paged KV cache, and what unowned blocks still hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.runtime.free_runs import FreeRuns

_ROOM = 32
"""Blocks of growth, at most, that a place for a sequence is cleared for."""


class BlockPool:
    """Hands out KV blocks, counts who uses them and remembers what they hold.

    A block is reserved (block 0), owned (by one or more sequences), reusable (owned by nobody,
    its content can be found by its hash) or unused. Reusable blocks are evicted when the unused
    ones don't suffice, the one least recently owned first, and of a chain the last one first.

    Blocks are placed for attention that reads consecutive blocks in one piece: a sequence grows
    into the block after its last one where it can, and starts where there is room to grow.

    Args:
        num_blocks: blocks in the cache, the reserved one included; at least 2.
        block_size: tokens in a block.
        enable_prefix_caching: remember the content of full blocks.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError(
                f"num_blocks={num_blocks}, block_size={block_size}: at least 2 blocks of 1 token"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        # What may be evicted ahead of need for the sake of neighbouring blocks is a small share
        # of the cache, in a small pool nothing. Simulated with a full cache and 16 requests of
        # mixed lengths at a time: 9 of 10 sequences lie in one piece, without it 4 of 10.
        self._room = min(_ROOM, num_blocks // 32)
        self._early_evictions = num_blocks // 16
        self._owners = [0] * num_blocks
        self._unused = FreeRuns(1, num_blocks - 1)
        self._reusable: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def capacity(self) -> int:
        """Blocks that can be owned at the same time."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns, those with reusable content included."""
        return len(self._unused) + len(self._reusable)

    def owners(self, block: int) -> int:
        """Return how many sequences own a block."""
        return self._owners[block]

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def lookup(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the blocks that hold a prefix, up to the first that is missing.

        They aren't owned yet: `share` them before anything is allocated.
        """
        found: list[int] = []
        if self.enable_prefix_caching:
            for digest in hashes:
                block = self._block_of.get(digest)
                if block is None:
                    break
                found.append(block)
        return found

    def count_unowned(self, blocks: Iterable[int]) -> int:
        """Return how many of the blocks would leave the free ones if they were shared."""
        owners = self._owners
        return sum(1 for block in blocks if not owners[block])

    def share(self, blocks: Iterable[int]) -> None:
        """Own blocks that `lookup` found, beside whoever owns them already."""
        for block in blocks:
            if not self._owners[block]:
                del self._reusable[block]
            self._owners[block] += 1

    def allocate(self, count: int, *, after: int | None = None, expected: int = 0) -> list[int]:
        """Own blocks whose content is undefined.

        Args:
            count: how many.
            after: the block that they continue; the ids right after it are preferred.
            expected: how many blocks are likely to be wanted in all, these included.

        Returns:
            Block ids, in as few runs of consecutive ids as can be found cheaply.

        Raises:
            RuntimeError: fewer are free; the caller must ask first.
        """
        if count > self.num_free:
            raise RuntimeError(f"{count} blocks wanted, {self.num_free} are free")
        if not count:
            return []
        while len(self._unused) < count:
            self._evict()
        if after is not None and self._unused.length_at(after + 1) >= count:
            blocks = list(self._unused.take(after + 1, 0, count))
        else:
            blocks = self._place(count, max(expected - count, 0))
        for block in blocks:
            self._owners[block] = 1
        return blocks

    def _place(self, count: int, growth: int) -> list[int]:
        """Take blocks where `growth` more can follow, and away from where others will grow."""
        self._make_run(count + min(growth, self._room))
        blocks: list[int] = []
        while len(blocks) < count:
            start, length = self._unused.longest()
            wanted = min(count - len(blocks), length)
            slack = length - wanted
            # Room for growth behind, all else before: a sequence that ends right before this
            # run grows into it. When there isn't enough for both they get half each.
            offset = slack - growth if growth <= slack else slack // 2
            blocks += self._unused.take(start, offset, wanted)
        return blocks

    def _make_run(self, length: int) -> None:
        """Evict a few blocks if that could make a run of this length."""
        for _ in range(min(2 * length, self._early_evictions)):
            if not self._reusable or self._unused.longest()[1] >= length:
                return
            self._evict()

    def _evict(self) -> None:
        block, _ = self._reusable.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        self._unused.add(block)

    def publish(self, block: int, digest: bytes) -> None:
        """Make the content of an owned, full block findable; the first block of a content wins."""
        if self.enable_prefix_caching and digest not in self._block_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest

    def release(self, blocks: Sequence[int]) -> None:
        """Give up a sequence's blocks, in the order of its tokens.

        Raises:
            RuntimeError: one of them isn't owned.
        """
        # The tail first, so that it is evicted before what it continues.
        for block in reversed(blocks):
            owners = self._owners[block] - 1
            if owners < 0:
                raise RuntimeError(f"block {block} is released, but nobody owns it")
            self._owners[block] = owners
            if owners:
                continue
            if block in self._hash_of:
                self._reusable[block] = None
            else:
                self._unused.add(block)
