"""The block allocator: by example, then against a model that keeps a list of holders per block."""

import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pagedlab.cache.allocator import (
    Allocator,
    BlockAllocator,
    BlockNotInUseError,
    DoubleFreeError,
    DuplicateBlockError,
    OutOfBlocksError,
    UnknownBlockError,
)
from pagedlab.errors import PagedLabError


def books(allocator):
    """Everything the allocator knows, the order of the free list included."""
    return allocator.free_blocks, [allocator.ref_count(block) for block in range(allocator.num_blocks)]


def test_by_hand():
    allocator = BlockAllocator(4)
    assert (allocator.num_free, allocator.free_blocks) == (4, (0, 1, 2, 3))
    assert allocator.allocate(3) == [0, 1, 2]
    allocator.share([1, 2])
    allocator.free([0, 1])
    assert books(allocator) == ((0, 3), [0, 1, 2, 0])
    allocator.free([2])
    allocator.free([1])
    allocator.free([2])
    assert allocator.allocate(2) == [2, 1], "the block freed last is handed out first"
    assert isinstance(allocator, Allocator)


def test_nothing_is_something_one_can_ask_for():
    allocator = BlockAllocator(1)
    assert allocator.allocate(0) == []
    allocator.share([])
    allocator.free([])
    assert books(allocator) == ((0,), [0])
    assert allocator.allocate(1) == [0]
    assert allocator.allocate(0) == [], "also when the pool is empty"


def test_whole_numbers_of_any_make():
    allocator = BlockAllocator(np.int32(8))
    blocks = allocator.allocate(np.int64(3))
    assert all(type(block) is int for block in blocks)
    allocator.share(np.array(blocks))
    allocator.free(block for block in blocks)
    assert allocator.ref_count(np.uint8(blocks[0])) == 1


@pytest.mark.parametrize("wrong", [2.0, "2", True, None, np.float32(1), [1]])
def test_other_things_are_refused_by_type(wrong):
    allocator = BlockAllocator(4)
    allocator.allocate(2)
    before = books(allocator)
    calls = [
        lambda: BlockAllocator(wrong),
        lambda: allocator.allocate(wrong),
        lambda: allocator.free([0, wrong]),
        lambda: allocator.share([0, wrong]),
        lambda: allocator.ref_count(wrong),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="whole number"):
            call()
    assert books(allocator) == before


def test_a_pool_has_at_least_one_block():
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"num_blocks is {wrong}"):
            BlockAllocator(wrong)
    with pytest.raises(ValueError, match="n is -1"):
        BlockAllocator(1).allocate(-1)


FAILURES = {
    "one too many": (lambda a: a.allocate(3), OutOfBlocksError, ["3 blocks asked for", "2 of 6 are free"]),
    "far too many": (lambda a: a.allocate(10**30), OutOfBlocksError, [f"Free {10**30 - 2} more"]),
    "freed already": (lambda a: a.free([0, 4]), DoubleFreeError, ["block 4"]),
    "never allocated": (lambda a: a.free([5]), DoubleFreeError, ["block 5"]),
    "a free one shared": (lambda a: a.share([0, 5]), BlockNotInUseError, ["block 5"]),
    "past the end": (lambda a: a.free([0, 6]), UnknownBlockError, ["no block 6", "0 to 5"]),
    "below the start": (lambda a: a.share([0, -1]), UnknownBlockError, ["no block -1"]),
    "far past the end": (lambda a: a.ref_count(10**30), UnknownBlockError, [str(10**30)]),
    "twice in one free": (lambda a: a.free([0, 1, 0]), DuplicateBlockError, ["block 0"]),
    "twice in one share": (lambda a: a.share([1, 1]), DuplicateBlockError, ["block 1"]),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_call_says_the_numbers_and_changes_nothing(name):
    call, error, words = FAILURES[name]
    allocator = BlockAllocator(6)
    allocator.allocate(5)
    allocator.share([0, 1])
    allocator.free([4])
    before = books(allocator)
    with pytest.raises(error) as caught:
        call(allocator)
    assert isinstance(caught.value, PagedLabError)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert books(allocator) == before


def test_a_double_free_is_not_called_sharing():
    allocator = BlockAllocator(2)
    with pytest.raises(BlockNotInUseError) as caught:
        allocator.share([0])
    assert not isinstance(caught.value, DoubleFreeError)


@settings(max_examples=60, stateful_step_count=30, deadline=None)
class AgainstAModel(RuleBasedStateMachine):
    """The model: a list of holders, each a set of blocks. Ref counts and free blocks follow from it."""

    @initialize(num_blocks=st.integers(1, 8))
    def start(self, num_blocks):
        self.allocator = BlockAllocator(num_blocks)
        self.holders = []

    def counts(self):
        return Counter(block for holder in self.holders for block in holder)

    def fails(self, error, call):
        before = books(self.allocator)
        with pytest.raises(error):
            call()
        assert books(self.allocator) == before

    @rule(n=st.integers(0, 9))
    def allocate(self, n):
        free = self.allocator.num_blocks - len(self.counts())
        if n > free:
            return self.fails(OutOfBlocksError, lambda: self.allocator.allocate(n))
        promised = self.allocator.free_blocks[:n]
        blocks = self.allocator.allocate(n)
        assert tuple(blocks) == promised
        assert len(set(blocks)) == n
        assert not set(blocks) & set(self.counts())
        self.holders.append(set(blocks))

    @rule(data=st.data())
    def share(self, data):
        blocks = data.draw(st.lists(st.integers(-1, self.allocator.num_blocks), max_size=4))
        error = self.what_is_wrong(blocks)
        if error:
            return self.fails(error, lambda: self.allocator.share(blocks))
        self.allocator.share(blocks)
        self.holders.append(set(blocks))

    @rule(data=st.data())
    def free_some_of_a_holder(self, data):
        holder = data.draw(st.sampled_from(self.holders)) if self.holders else set()
        blocks = data.draw(st.permutations(sorted(holder)))[: data.draw(st.integers(0, len(holder)))]
        self.allocator.free(blocks)
        holder -= set(blocks)

    @rule(data=st.data())
    def free_anything(self, data):
        blocks = data.draw(st.lists(st.integers(-1, self.allocator.num_blocks), max_size=4))
        error = self.what_is_wrong(blocks)
        if error:
            self.fails((error, DoubleFreeError), lambda: self.allocator.free(blocks))

    def what_is_wrong(self, blocks):
        if any(not 0 <= block < self.allocator.num_blocks for block in blocks):
            return UnknownBlockError
        if len(set(blocks)) < len(blocks):
            return DuplicateBlockError
        if set(blocks) - set(self.counts()):
            return BlockNotInUseError

    @invariant()
    def the_books_agree(self):
        free, ref_counts = books(self.allocator)
        counts = self.counts()
        assert ref_counts == [counts[block] for block in range(self.allocator.num_blocks)]
        assert sorted(free) == [block for block in range(self.allocator.num_blocks) if counts[block] == 0]
        assert self.allocator.num_free == len(free)


TestAgainstAModel = AgainstAModel.TestCase


def test_it_needs_no_torch():
    code = "import sys, pagedlab.cache.allocator, pagedlab.cache.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
