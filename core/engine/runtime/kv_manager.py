"""Which blocks a sequence owns, and what of them others may share."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from engine.runtime.block_pool import BlockPool
from engine.runtime.sequence import Sequence
from engine.runtime.step import Row


class KVManager:
    """Gives sequences blocks of a pool, shared ones where the prefix cache has them.

    Args:
        pool: nobody else takes blocks from it.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._refused: tuple[Sequence | None, int] = None, 0
        """Who was refused last, and how many sequences ran then."""

    def admit(self, sequence: Sequence, running: int, coming: Collection[bytes]) -> bool:
        """Give a sequence blocks for all its tokens, so that its prompt never runs short.

        Args:
            sequence: owns no blocks yet; `num_computed_tokens` becomes what the cache had.
            running: sequences that own blocks. Each of them, and the new one, must be able to
                grow by a block afterwards, so that nobody is preempted soon for this admission.
            coming: hashes of the blocks that are being computed in this very step. A sequence
                that could share the next one waits a step for it instead of computing it again.

        Returns:
            False when it has to wait; nothing has changed then.
        """
        pool, size = self._pool, self._pool.block_size
        # The search below is only worth its time when a sequence gave up its blocks since.
        if self.still_refused(sequence, running):
            return False
        reusable = sequence.num_reusable_blocks(size)
        shared = pool.lookup(sequence.block_hash(index, size) for index in range(reusable))
        if coming and len(shared) < reusable and sequence.block_hash(len(shared), size) in coming:
            return False
        count = pool.blocks_for(sequence.num_tokens) - len(shared)
        reserve = running + 1 if running else 0
        if count + pool.count_unowned(shared) + reserve > pool.num_free:
            self._refused = sequence, running
            return False
        self._refused = None, 0
        pool.share(shared)
        expected = pool.blocks_for(sequence.max_length) - len(shared)
        after = shared[-1] if shared else None
        sequence.block_ids = shared + pool.allocate(count, after=after, expected=expected)
        sequence.num_computed_tokens = len(shared) * size
        return True

    def still_refused(self, sequence: Sequence, running: int) -> bool:
        """Say whether a sequence was refused before and nobody gave up blocks since."""
        refused, then_running = self._refused
        return refused is sequence and running >= then_running

    def grow(self, sequence: Sequence) -> None:
        """Give a sequence one more block; one must be free."""
        blocks = sequence.block_ids
        expected = self._pool.blocks_for(sequence.max_length) - len(blocks)
        blocks += self._pool.allocate(1, after=blocks[-1], expected=expected)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's blocks; what they hold can be found until they are needed.

        `block_ids` stays as it is: a step that was scheduled before may still run. That does no
        harm, because a new owner's step comes later and writes before it reads.
        """
        self._pool.release(sequence.block_ids)

    def filled_by(self, row: Row) -> Iterator[tuple[int, bytes]]:
        """Yield id and content hash of the blocks that a row completes, if they are to be kept."""
        if not self._pool.enable_prefix_caching:
            return
        sequence, size = row.sequence, self._pool.block_size
        first = sequence.num_computed_tokens
        for index in range(first // size, (first + row.num_tokens) // size):
            yield sequence.block_ids[index], sequence.block_hash(index, size)

    def publish(self, row: Row) -> None:
        """Let others find the blocks that a row has completed."""
        size = self._pool.block_size
        if row.sequence.num_computed_tokens % size + row.num_tokens >= size:
            for block, digest in self.filled_by(row):
                self._pool.publish(block, digest)
