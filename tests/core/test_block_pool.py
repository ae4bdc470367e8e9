"""KV blocks: who owns them, what is found again, what is evicted first, where they lie."""

from __future__ import annotations

import random
from collections.abc import Sequence as Ids
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.request import EngineRequest
from engine.runtime.block_pool import BlockPool
from engine.runtime.free_runs import FreeRuns
from engine.runtime.sequence import Sequence
from engine.sampling_params import SamplingParams

SIZE = 4


def sequence_of(token_ids: Ids[int]) -> Sequence:
    return Sequence(
        EngineRequest(
            request_id="r", prompt_token_ids=list(token_ids), params=SamplingParams(max_tokens=1)
        )
    )


def hashes(token_ids: Ids[int]) -> list[bytes]:
    sequence = sequence_of(token_ids)
    return [sequence.block_hash(index, SIZE) for index in range(len(token_ids) // SIZE)]


def random_ids(count: int) -> list[int]:
    return [random.randrange(100_000) for _ in range(count)]


def store(pool: BlockPool, token_ids: Ids[int], expected: int = 0) -> list[int]:
    """Own blocks for full blocks of tokens and let others find them."""
    digests = hashes(token_ids)
    blocks = pool.allocate(len(digests), expected=expected)
    for block, digest in zip(blocks, digests, strict=True):
        pool.publish(block, digest)
    return blocks


def pieces(blocks: Ids[int]) -> int:
    return 1 + sum(b != a + 1 for a, b in pairwise(blocks))


# Ownership


def test_every_block_but_the_reserved_one_can_be_owned_once() -> None:
    pool = BlockPool(10, SIZE, enable_prefix_caching=True)
    assert (pool.capacity, pool.num_free) == (9, 9)
    assert sorted(pool.allocate(4) + pool.allocate(5)) == list(range(1, 10))
    assert pool.num_free == 0
    with pytest.raises(RuntimeError, match="1 blocks wanted, 0 are free"):
        pool.allocate(1)


def test_a_shared_block_is_free_when_its_last_owner_gives_it_up() -> None:
    pool = BlockPool(10, SIZE, enable_prefix_caching=True)
    blocks = store(pool, random_ids(2 * SIZE))
    pool.share(blocks)
    assert [pool.owners(block) for block in blocks] == [2, 2]
    pool.release(blocks)
    assert pool.num_free == 7
    pool.release(blocks)
    assert pool.num_free == 9
    with pytest.raises(RuntimeError, match="nobody owns it"):
        pool.release(blocks)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 16), (0, 16), (8, 0)])
def test_a_pool_that_holds_nothing_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match=f"num_blocks={num_blocks}, block_size={block_size}"):
        BlockPool(num_blocks, block_size, enable_prefix_caching=True)


def test_tokens_take_as_many_blocks_as_hold_them() -> None:
    pool = BlockPool(10, SIZE, enable_prefix_caching=False)
    assert [pool.blocks_for(n) for n in (1, SIZE, SIZE + 1, 3 * SIZE)] == [1, 1, 2, 3]


# Content


def test_a_prefix_is_found_up_to_the_first_block_that_differs() -> None:
    pool = BlockPool(20, SIZE, enable_prefix_caching=True)
    ids = random_ids(5 * SIZE)
    blocks = store(pool, ids)
    other = list(ids)
    other[3 * SIZE] += 1
    assert pool.lookup(hashes(ids)) == blocks
    assert pool.lookup(hashes(other)) == blocks[:3]
    assert pool.lookup(hashes(random_ids(2 * SIZE))) == []


def test_equal_blocks_behind_different_prefixes_are_different() -> None:
    same = random_ids(SIZE)
    one, two = hashes([1] * SIZE + same), hashes([2] * SIZE + same)
    assert one[1] != two[1]
    assert hashes(same + same)[0] != hashes(same + same)[1]


def test_hashes_are_the_same_when_tokens_come_one_by_one() -> None:
    ids = random_ids(6 * SIZE)
    growing = sequence_of(ids[:1])
    for position, token in enumerate(ids[1:], start=1):
        growing.append(token)
        if (position + 1) % SIZE == 0 and random.random() < 0.5:
            growing.block_hash(position // SIZE, SIZE)
    assert [growing.block_hash(index, SIZE) for index in range(6)] == hashes(ids)


def test_a_freed_block_is_found_until_it_is_needed() -> None:
    pool = BlockPool(9, SIZE, enable_prefix_caching=True)
    ids = random_ids(3 * SIZE)
    blocks = store(pool, ids)
    pool.release(blocks)
    assert pool.lookup(hashes(ids)) == blocks
    pool.allocate(5)  # the unused ones suffice
    assert pool.lookup(hashes(ids)) == blocks
    pool.allocate(1)
    assert pool.lookup(hashes(ids)) == blocks[:2]


def test_of_a_chain_the_tail_is_evicted_before_what_it_continues() -> None:
    pool = BlockPool(9, SIZE, enable_prefix_caching=True)
    ids = random_ids(8 * SIZE)
    pool.release(store(pool, ids))
    for remaining in range(7, -1, -1):
        pool.allocate(1)
        assert len(pool.lookup(hashes(ids))) == remaining


def test_the_least_recently_owned_chain_is_evicted_first() -> None:
    pool = BlockPool(7, SIZE, enable_prefix_caching=True)
    chains = [random_ids(2 * SIZE) for _ in range(3)]
    for blocks in [store(pool, ids) for ids in chains]:
        pool.release(blocks)
    again = pool.lookup(hashes(chains[0]))
    pool.share(again)
    pool.release(again)
    pool.allocate(2)
    assert [len(pool.lookup(hashes(ids))) for ids in chains] == [2, 0, 2]
    pool.allocate(2)
    assert [len(pool.lookup(hashes(ids))) for ids in chains] == [2, 0, 0]


def test_an_owned_block_is_never_evicted() -> None:
    pool = BlockPool(7, SIZE, enable_prefix_caching=True)
    kept, freed = random_ids(2 * SIZE), random_ids(4 * SIZE)
    blocks = store(pool, kept)
    pool.release(store(pool, freed))
    assert not set(pool.allocate(4)) & set(blocks)
    assert pool.lookup(hashes(kept)) == blocks
    assert pool.lookup(hashes(freed)) == []


def test_the_first_block_of_a_content_stays_the_one_that_is_found() -> None:
    pool = BlockPool(9, SIZE, enable_prefix_caching=True)
    ids = random_ids(2 * SIZE)
    first, second = store(pool, ids), store(pool, ids)
    assert pool.lookup(hashes(ids)) == first
    pool.release(second)
    pool.release(first)
    assert pool.lookup(hashes(ids)) == first
    assert pool.num_free == 8


def test_nothing_is_found_when_prefix_caching_is_off() -> None:
    pool = BlockPool(9, SIZE, enable_prefix_caching=False)
    ids = random_ids(2 * SIZE)
    pool.release(store(pool, ids))
    assert pool.lookup(hashes(ids)) == []
    assert sorted(pool.allocate(8)) == list(range(1, 9))


# Place


def test_sequences_that_grow_side_by_side_stay_in_one_piece() -> None:
    pool = BlockPool(200, SIZE, enable_prefix_caching=True)
    lengths = [(random.randint(1, 6), random.randint(8, 16)) for _ in range(10)]
    tables = [pool.allocate(start, expected=end) for start, end in lengths]
    for _ in range(16):
        for table, (_, end) in zip(tables, lengths, strict=True):
            if len(table) < end:
                table += pool.allocate(1, after=table[-1], expected=end - len(table))
    assert [pieces(table) for table in tables] == [1] * 10


def test_a_sequence_of_unknown_length_gets_half_of_the_room() -> None:
    pool = BlockPool(101, SIZE, enable_prefix_caching=True)
    first = pool.allocate(2, expected=10_000)
    second = pool.allocate(2, expected=10_000)
    for table in (first, second):
        for _ in range(20):
            table += pool.allocate(1, after=table[-1], expected=10_000)
    assert [pieces(first), pieces(second)] == [1, 1]


def test_a_sequence_continues_right_after_a_shared_prefix() -> None:
    pool = BlockPool(50, SIZE, enable_prefix_caching=True)
    prefix = store(pool, random_ids(3 * SIZE), expected=9)
    own = pool.allocate(4, after=prefix[-1], expected=6)
    assert pieces(prefix + own) == 1
    beside = pool.allocate(4, after=prefix[-1], expected=6)
    assert pieces(beside) == 1


def test_growth_takes_any_block_when_the_next_one_is_owned() -> None:
    pool = BlockPool(6, SIZE, enable_prefix_caching=False)
    blocks = pool.allocate(5)
    pool.release(blocks[3:])
    assert pool.allocate(1, after=blocks[0])[0] in blocks[3:]
    assert len(pool.allocate(1, after=blocks[0])) == 1


def test_blocks_come_in_pieces_when_no_run_is_long_enough() -> None:
    pool = BlockPool(10, SIZE, enable_prefix_caching=False)
    pool.allocate(9)
    pool.release([2, 3, 6, 9])
    taken = pool.allocate(4)
    assert sorted(taken) == [2, 3, 6, 9]
    assert pieces(taken) == 3


def test_freed_neighbours_become_one_piece_in_any_order() -> None:
    pool = BlockPool(34, SIZE, enable_prefix_caching=False)
    blocks = pool.allocate(33)
    random.shuffle(blocks)
    for block in blocks:
        pool.release([block])
    assert pieces(pool.allocate(33)) == 1


def test_a_full_cache_still_has_room_for_a_sequence_in_one_piece() -> None:
    pool = BlockPool(640, SIZE, enable_prefix_caching=True)
    tables = [store(pool, random_ids(9 * SIZE)) for _ in range(71)]
    for table in tables:
        pool.release(table)
    table = pool.allocate(6, expected=18)
    for _ in range(12):
        table += pool.allocate(1, after=table[-1], expected=18 - len(table))
    assert pieces(table) == 1


@settings(deadline=None)
@given(st.data())
def test_free_runs_are_the_maximal_runs_of_a_set(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    runs, free = FreeRuns(1, count), set(range(1, count + 1))
    for _ in range(data.draw(st.integers(0, 60))):
        owned = sorted(set(range(1, count + 1)) - free)
        if owned and (not free or data.draw(st.booleans())):
            block = data.draw(st.sampled_from(owned))
            runs.add(block)
            free.add(block)
        else:
            start, length = runs.longest()
            offset = data.draw(st.integers(0, length - 1))
            taken = list(runs.take(start, offset, data.draw(st.integers(1, length - offset))))
            assert free.issuperset(taken)
            free.difference_update(taken)
        starts = {block for block in free if block - 1 not in free}
        assert {block for block in range(count + 2) if runs.length_at(block)} == starts
        for start in starts:
            length = runs.length_at(start)
            assert free.issuperset(range(start, start + length))
            assert start + length not in free
        assert len(runs) == len(free)
    if not free:
        with pytest.raises(IndexError, match="empty"):
            runs.longest()


# Everything together


class PoolMachine(RuleBasedStateMachine):
    """Random owners against a model that counts them."""

    owned = Bundle("owned")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, SIZE, enable_prefix_caching=True)
        self.count = [0] * 12
        self.content: dict[int, bytes] = {}

    def own(self, blocks: list[int]) -> None:
        for block in blocks:
            self.count[block] += 1

    # Two different tokens make prefixes meet often.
    @rule(
        target=owned, ids=st.lists(st.integers(0, 1), min_size=1, max_size=5), known=st.booleans()
    )
    def start(self, ids: list[int], known: bool) -> list[int]:
        digests = hashes([token for token in ids for _ in range(SIZE)])
        shared = self.pool.lookup(digests)
        for block, digest in zip(shared, digests, strict=False):
            assert self.content[block] == digest
        missing = len(digests) - len(shared)
        if missing + self.pool.count_unowned(shared) > self.pool.num_free:
            return []
        self.pool.share(shared)
        self.own(shared)
        fresh = self.pool.allocate(
            missing, after=shared[-1] if shared else None, expected=missing + 2 * known
        )
        assert all(self.count[block] == 0 for block in fresh)
        self.own(fresh)
        for block in fresh:
            self.content.pop(block, None)
        for block, digest in zip(fresh, digests[len(shared) :], strict=True):
            self.content[block] = digest
            self.pool.publish(block, digest)
        return shared + fresh

    @rule(blocks=consumes(owned))
    def end(self, blocks: list[int]) -> None:
        for block in blocks:
            self.count[block] -= 1
        self.pool.release(blocks)

    @invariant()
    def owners_and_free_blocks_add_up(self) -> None:
        assert [self.pool.owners(block) for block in range(12)] == self.count
        assert self.pool.num_free == sum(not count for count in self.count[1:])
        assert self.count[0] == 0


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
