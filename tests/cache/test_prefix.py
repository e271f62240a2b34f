"""The prefix cache: by example, then against a model that knows every holder, every name and the order of use."""

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import (
    Allocator,
    BlockAllocator,
    BlockNotInUseError,
    DoubleFreeError,
    DuplicateBlockError,
    OutOfBlocksError,
    UnknownBlockError,
)
from pagedlab.cache.prefix import AlreadyPublishedError, NotHeldError, PrefixCache, prefix_hash_chain
from pagedlab.cache.table import BlockTable, SharedBlockError
from pagedlab.errors import PagedLabError


def books(cache):
    """All that the cache and the allocator inside know, orders included."""
    counts = [(cache.ref_count(block), cache.allocator.ref_count(block)) for block in range(cache.num_blocks)]
    return cache.allocator.free_blocks, cache.cached_free_blocks, counts, cache.contents()


def stored(cache, token_ids, block_size=4):
    """A sequence that was computed and is still held: its table and its hashes."""
    hashes = prefix_hash_chain(token_ids, block_size)
    table = BlockTable(block_size)
    table.append_tokens(len(token_ids), cache)
    for block, block_hash in zip(table.blocks, hashes, strict=False):
        cache.publish(block, block_hash)
    return table, hashes


def test_by_hand():
    cache = PrefixCache(BlockAllocator(6))
    assert isinstance(cache, Allocator) and cache.num_blocks == 6
    table, hashes = stored(cache, range(10))  # two full blocks and a half
    assert [cache.ref_count(block) for block in table.blocks] == [1, 1, 1]
    assert cache.contents() == dict(zip(hashes, [0, 1], strict=True))
    table.free(cache)
    assert (cache.num_free, cache.num_cached_free, cache.cached_free_blocks) == (6, 2, (1, 0))
    assert cache.lookup(hashes) == [0, 1]
    assert (cache.num_free, cache.num_cached_free, cache.ref_count(0)) == (4, 0, 1)
    assert cache.lookup(prefix_hash_chain([*range(4), *range(4)], 4)) == [0]
    assert cache.ref_count(0) == 2
    assert (cache.num_hits, cache.num_queries, cache.hit_rate) == (3, 4, 0.75)


def test_memory_comes_from_the_free_and_then_from_the_least_recently_used():
    cache = PrefixCache(BlockAllocator(6))
    old, old_hashes = stored(cache, range(8))
    new, new_hashes = stored(cache, range(10, 18))
    old.free(cache)
    new.free(cache)
    assert cache.free_blocks == (4, 5, 1, 0, 3, 2)
    assert cache.allocate(2) == [4, 5] and cache.num_cached_free == 4
    assert cache.allocate(3) == [1, 0, 3]
    assert set(cache.contents()) == {new_hashes[0]}  # the names went with the contents
    assert cache.lookup(old_hashes) == [] and cache.lookup(new_hashes) == [2]


def test_a_hit_cannot_be_evicted_by_the_allocation_that_follows():
    cache = PrefixCache(BlockAllocator(4))
    table, hashes = stored(cache, range(16))
    table.free(cache)
    assert cache.lookup(hashes[:2]) == [0, 1]
    with pytest.raises(OutOfBlocksError, match="3 blocks asked for, 2 of 4 are free"):
        cache.allocate(3)
    assert cache.lookup(hashes[2:]) == [2, 3], "a failed call evicts nothing"
    cache.free([3, 2])
    assert cache.allocate(2) == [3, 2]
    assert [cache.ref_count(block) for block in range(4)] == [1, 1, 1, 1]


def test_use_makes_young():
    cache = PrefixCache(BlockAllocator(4))
    hashes = []
    for start in range(0, 16, 4):
        table, own = stored(cache, range(start, start + 4))
        hashes += own
        table.free(cache)
    assert cache.cached_free_blocks == (0, 1, 2, 3)
    cache.free(cache.lookup(hashes[:1]))
    cache.lookup([b"never seen", hashes[1]])  # a miss moves nothing, also where a later hash is known
    assert cache.cached_free_blocks == (1, 2, 3, 0)


def test_a_block_in_use_by_two_stays_until_both_have_left():
    cache = PrefixCache(BlockAllocator(2))
    table, hashes = stored(cache, range(8))
    assert cache.lookup(hashes) == [0, 1]
    table.free(cache)
    assert (cache.num_free, cache.num_cached_free) == (0, 0)
    cache.free([1, 0])
    assert cache.cached_free_blocks == (1, 0)
    with pytest.raises(DoubleFreeError):
        cache.free([0])


def test_a_twin_stays_what_it_is():
    cache = PrefixCache(BlockAllocator(3))
    first, hashes = stored(cache, range(4))
    second, _ = stored(cache, range(4))
    assert cache.contents() == {hashes[0]: 0}
    second.free(cache)
    assert (cache.num_cached_free, cache.allocator.ref_count(1)) == (0, 0), "nobody knows the younger one"
    first.free(cache)
    assert cache.lookup(hashes) == [0]


def test_published_twice_under_its_own_name():
    cache = PrefixCache(BlockAllocator(1))
    table, hashes = stored(cache, range(4))
    before = books(cache)
    cache.publish(0, hashes[0])
    assert books(cache) == before


def test_evicted_contents_can_be_published_again_elsewhere():
    cache = PrefixCache(BlockAllocator(2))
    table, hashes = stored(cache, range(4))
    table.free(cache)
    cache.allocate(2)
    assert cache.contents() == {}
    cache.publish(1, hashes[0])
    assert cache.lookup(hashes) == [1]


def test_reset_forgets_but_takes_nothing_away():
    cache = PrefixCache(BlockAllocator(6))
    gone, gone_hashes = stored(cache, range(8))
    held, held_hashes = stored(cache, range(10, 18))
    gone.free(cache)
    cache.reset()
    cache.reset()
    assert (cache.num_free, cache.num_cached_free, cache.contents()) == (4, 0, {})
    assert cache.lookup(gone_hashes) == cache.lookup(held_hashes) == []
    assert [cache.ref_count(block) for block in held.blocks] == [1, 1]
    held.free(cache)
    assert cache.allocator.num_free == cache.num_free == 6


FAILURES = {
    "too many": (lambda c: c.allocate(5), OutOfBlocksError, "5 blocks asked for, 4 of 6 are free"),
    "below nothing": (lambda c: c.allocate(-1), ValueError, "n is -1"),
    "no number": (lambda c: c.allocate(2.0), TypeError, "whole number"),
    "a cached-free one freed": (lambda c: c.free([2, 1]), DoubleFreeError, "block 1 is free already"),
    "a free one freed": (lambda c: c.free([2, 5]), DoubleFreeError, "block 5 is free already"),
    "a cached-free one shared": (lambda c: c.share([2, 0]), BlockNotInUseError, "block 0 is free"),
    "a free one shared": (lambda c: c.share([2, 5]), BlockNotInUseError, "block 5 is free"),
    "twice in one free": (lambda c: c.free([2, 2]), DuplicateBlockError, "block 2 is named twice"),
    "twice in one share": (lambda c: c.share([2, 2]), DuplicateBlockError, "block 2 is named twice"),
    "past the end": (lambda c: c.free([2, 6]), UnknownBlockError, "no block 6"),
    "freed by a fraction": (lambda c: c.free([2.0]), TypeError, "whole number"),
    "a free one published": (lambda c: c.publish(5, b"h"), NotHeldError, "block 5 is free: its contents"),
    "a cached-free one published": (lambda c: c.publish(0, b"h"), NotHeldError, "block 0 is free: its contents"),
    "published past the end": (lambda c: c.publish(6, b"h"), UnknownBlockError, "no block 6"),
    "a second name": (lambda c: c.publish(2, b"h"), AlreadyPublishedError, "block 2 is published under another"),
    "another's name": (lambda c: c.publish(2, c.names[0]), AlreadyPublishedError, "block 2"),
    "a name that is no hash": (lambda c: c.publish(3, 17), TypeError, "a block's hash is bytes"),
    "no name": (lambda c: c.publish(3, None), TypeError, "a block's hash is bytes"),
    "asked by a number": (lambda c: c.lookup([c.names[0], 17]), TypeError, "a block's hash is bytes"),
    "asked by one hash": (lambda c: c.lookup(c.names[0]), TypeError, "a block's hash is bytes"),
    "asked twice at once": (lambda c: c.lookup([c.names[0]] * 2), DuplicateBlockError, "block 0"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_call_says_why_and_changes_nothing(name):
    call, error, words = FAILURES[name]
    cache = PrefixCache(BlockAllocator(6))
    gone, cache.names = stored(cache, range(8))  # blocks 0 and 1
    stored(cache, range(10, 16))  # block 2, published, and block 3, which is half full
    gone.free(cache)
    before, asked = books(cache), cache.num_queries
    with pytest.raises(error, match=words) as caught:
        call(cache)
    assert books(cache) == before and cache.num_queries == asked
    if isinstance(caught.value, PagedLabError):
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_nothing_is_something_one_can_ask_for():
    cache = PrefixCache(BlockAllocator(1))
    cache.share([])
    cache.free([])
    assert (cache.allocate(0), cache.lookup([]), cache.hit_rate) == ([], [], 0.0)


def test_numbers_of_any_make():
    cache = PrefixCache(BlockAllocator(4))
    blocks = np.array(cache.allocate(np.int64(2)))
    cache.publish(blocks[0], b"h")
    cache.share(blocks)
    cache.free(blocks)
    cache.free(iter(blocks))
    assert cache.cached_free_blocks == (0,) and type(cache.cached_free_blocks[0]) is int


def test_an_allocator_of_only_the_verbs_will_do():
    class First:
        """Hands out the oldest free block first, and shows nothing of itself."""

        def __init__(self, num_blocks):
            self._queue, self._counts = list(range(num_blocks)), [0] * num_blocks

        num_free = property(lambda self: len(self._queue))

        def allocate(self, n):
            blocks, self._queue = self._queue[:n], self._queue[n:]
            self.share(blocks)
            return tuple(blocks)

        def share(self, blocks):
            for block in blocks:
                self._counts[block] += 1

        def free(self, blocks):
            for block in blocks:
                self._counts[block] -= 1
                self._queue += [block] * (self._counts[block] == 0)

        def ref_count(self, block):
            return self._counts[block]

    cache = PrefixCache(First(4))
    table, hashes = stored(cache, range(16))
    table.free(cache)
    assert (cache.num_blocks, cache.num_free) == (4, 4)
    assert cache.allocate(1) == [3] and cache.lookup(hashes) == [0, 1, 2]


@settings(max_examples=80, stateful_step_count=40, deadline=None)
class AgainstAModel(RuleBasedStateMachine):
    """Sequences that begin alike come, find each other's blocks, grow, fork, publish and go.

    The model: each sequence's tokens; for each block what it holds, NaN where nothing was written since it was handed
    out; and the list of free published blocks, oldest first.
    """

    @initialize(num_blocks=st.integers(2, 12), block_size=st.sampled_from([1, 2, 3, 16]))
    def start(self, num_blocks, block_size):
        self.cache, self.size = PrefixCache(BlockAllocator(num_blocks)), block_size
        self.memory = [[float("nan")] * block_size for _ in range(num_blocks)]
        self.sequences = []  # (table, tokens)
        self.names = {}  # published block -> the tokens from the beginning to its end
        self.order = []  # free published blocks, least recently used first

    def held(self):
        return Counter(block for table, _ in self.sequences for block in table.blocks)

    def taken(self, blocks):
        """Blocks that were handed out: a published one among them is the oldest there was."""
        for block in blocks:
            self.memory[block] = [float("nan")] * self.size
            if block in self.names:
                assert block == self.order.pop(0), "the least recently used goes first"
                del self.names[block]

    def write(self, table, tokens, end):
        for position in range(end, len(tokens)):
            slot = table.slot(position)
            assert table.blocks[position // self.size] not in self.names, "what is published is not written"
            self.memory[slot // self.size][slot % self.size] = tokens[position]

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=40))
    def arrive(self, tokens):
        tokens = tokens[: 4 * self.size]
        hashes = prefix_hash_chain(tokens, self.size)[: (len(tokens) - 1) // self.size]
        found = self.cache.lookup(hashes)
        named = set(map(tuple, self.names.values()))
        right = next(
            i for i in range(len(hashes) + 1) if tuple(tokens[: (i + 1) * self.size]) not in named or i == len(hashes)
        )
        assert len(found) == right, "the longest prefix, no more and no less"
        self.order = [block for block in self.order if block not in found]
        table = BlockTable(self.size)
        table.adopt(found, len(found) * self.size)
        missing = blocks_needed(len(tokens), self.size) - len(found)
        if missing > self.cache.num_free:
            before = books(self.cache)
            with pytest.raises(OutOfBlocksError):
                table.append_tokens(len(tokens) - table.num_tokens, self.cache)
            assert books(self.cache) == before
            self.leave(table)
            return
        self.taken(table.append_tokens(len(tokens) - table.num_tokens, self.cache))
        self.sequences.append((table, list(tokens)))
        self.write(table, tokens, len(found) * self.size)

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 9))
    def publish(self, which):
        table, tokens = self.sequences[which % len(self.sequences)]
        hashes = prefix_hash_chain(tokens, self.size)
        for i, (block, block_hash) in enumerate(zip(table.blocks, hashes, strict=False)):
            before = books(self.cache)
            self.cache.publish(block, block_hash)
            prefix = tokens[: (i + 1) * self.size]
            if prefix in self.names.values():  # a twin
                assert books(self.cache) == before
            else:
                self.names[block] = prefix

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 9), token=st.integers(0, 1))
    def decode(self, which, token):
        table, tokens = self.sequences[which % len(self.sequences)]
        if table.blocks_to_append(1, self.cache) > self.cache.num_free:
            return
        pairs = table.copy_on_write(self.cache)
        for source, destination in pairs:
            self.taken([destination])
            self.memory[destination] = list(self.memory[source])
        self.taken(table.append_tokens(1, self.cache))
        tokens.append(token)
        self.write(table, tokens, len(tokens) - 1)

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 9))
    def fork(self, which):
        table, tokens = self.sequences[which % len(self.sequences)]
        self.sequences.append((table.fork(self.cache), list(tokens)))

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 9))
    def finish(self, which):
        self.leave(self.sequences.pop(which % len(self.sequences))[0])

    def leave(self, table):
        blocks = table.blocks[::-1]
        table.free(self.cache)
        held = self.held()
        self.order += [block for block in blocks if block in self.names and not held[block]]

    @rule(data=st.data())
    def ask_for_nonsense(self, data):
        held, blocks = self.held(), range(self.cache.num_blocks)
        unheld = [block for block in blocks if not held[block]]
        before = books(self.cache)
        if unheld:
            block = data.draw(st.sampled_from(unheld))
            for call, error in (
                (lambda: self.cache.free([block]), DoubleFreeError),
                (lambda: self.cache.share([block]), BlockNotInUseError),
                (lambda: self.cache.publish(block, b"h"), NotHeldError),
            ):
                with pytest.raises(error):
                    call()
        with pytest.raises(OutOfBlocksError):
            self.cache.allocate(len(unheld) + 1)
        assert books(self.cache) == before

    @precondition(lambda self: self.names)
    @rule()
    def reset(self):
        self.cache.reset()
        self.names, self.order = {}, []

    @invariant()
    def everyone_reads_their_own_tokens(self):
        for table, tokens in self.sequences:
            slots = table.slot_mapping(0, table.num_tokens)
            assert [self.memory[slot // self.size][slot % self.size] for slot in slots] == tokens

    @invariant()
    def the_books_agree(self):
        held, blocks = self.held(), range(self.cache.num_blocks)
        assert [self.cache.ref_count(block) for block in blocks] == [held[block] for block in blocks]
        inside = [held[block] + (block in self.names) for block in blocks]
        assert [self.cache.allocator.ref_count(block) for block in blocks] == inside
        assert self.cache.num_free == sum(not held[block] for block in blocks)
        assert list(self.cache.cached_free_blocks) == self.order
        assert sorted([*self.cache.free_blocks, *held]) == list(blocks)

    @invariant()
    def a_name_leads_to_what_it_says(self):
        chains = {prefix_hash_chain(prefix, self.size)[-1]: block for block, prefix in self.names.items()}
        assert self.cache.contents() == chains
        for block, prefix in self.names.items():
            assert self.memory[block] == prefix[-self.size :]


TestAgainstAModel = AgainstAModel.TestCase


def test_a_block_that_is_written_again_is_no_longer_found():
    cache, table = PrefixCache(BlockAllocator(3)), BlockTable(4)
    table.append_tokens(8, cache)
    hashes = prefix_hash_chain([1] * 8, 4)
    for block, block_hash in zip(table.blocks, hashes, strict=True):
        cache.publish(block, block_hash)
    fork = table.fork(cache)
    table.truncate(6, cache)
    with pytest.raises(SharedBlockError):
        table.append_tokens(1, cache)
    assert cache.contents() == dict(zip(hashes, fork.blocks, strict=True))  # the fork has all 8 tokens
    fork.free(cache)
    (taken,) = cache.allocate(1)
    with pytest.raises(OutOfBlocksError):
        table.append_tokens(3, cache)  # one too many: nothing changes, and the block holds what it held
    assert len(cache.contents()) == 2
    assert table.append_tokens(2, cache) == []
    assert cache.contents() == {hashes[0]: table.blocks[0]}
    table.free(cache)
    cache.free([taken])
    found = cache.lookup(hashes)
    assert len(found) == 1 and cache.num_free == 2 and cache.num_cached_free == 0
