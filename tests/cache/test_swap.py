"""Swap space: what is carried out comes back as it was, wherever it is put."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedlab.cache.allocator import BlockAllocator, DoubleFreeError, OutOfBlocksError
from pagedlab.cache.paged import PagedKVCache
from pagedlab.cache.swap import SwapBooks, SwapSpace
from pagedlab.cache.table import BlockTable


def pool_of(num_blocks, block_size=4, dtype=torch.float32):
    pool = PagedKVCache(2, num_blocks, 3, block_size, 5, dtype)
    pool.poison(range(num_blocks))
    return pool


def fill(pool, block, value):
    for layer in range(pool.num_layers):
        pool.key_cache(layer)[block] = value + layer
        pool.value_cache(layer)[block] = -value - layer


def holds(pool, block, value):
    layers = range(pool.num_layers)
    return all(
        (pool.key_cache(i)[block] == value + i).all() and (pool.value_cache(i)[block] == -value - i).all()
        for i in layers
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_out_and_back_to_other_blocks(dtype):
    pool = pool_of(6, dtype=dtype)
    swap = SwapSpace(pool, 3)
    for block in (4, 1):
        fill(pool, block, 10 * block)
    away = swap.allocate(2)
    swap.swap_out(zip([4, 1], away, strict=True))
    pool.poison([4, 1])
    swap.swap_in(zip(away, [0, 4], strict=True))
    swap.free(away)
    assert holds(pool, 0, 40) and holds(pool, 4, 10)
    assert all(pool.key_cache(0)[block].isnan().all() for block in (1, 2, 3, 5))
    assert (swap.num_free, swap.num_swapped_out, swap.num_swapped_in) == (3, 2, 2)
    assert swap.nbytes == 3 * pool.bytes_per_block


@pytest.mark.parametrize("make", [SwapBooks, lambda n: SwapSpace(pool_of(2), n)])
def test_the_books(make):
    swap = make(3)
    assert swap.can_hold(3) and not swap.can_hold(4)
    blocks = swap.allocate(2)
    assert swap.can_hold(1) and not swap.can_hold(2) and swap.num_free == 1
    with pytest.raises(OutOfBlocksError, match="2 blocks asked for, 1 of 3 are free"):
        swap.allocate(2)
    swap.free(blocks)
    with pytest.raises(DoubleFreeError):
        swap.free(blocks)
    assert swap.num_free == 3


@pytest.mark.parametrize("make", [SwapBooks, lambda n: SwapSpace(pool_of(2), n)])
def test_no_swap_space(make):
    swap = make(0)
    assert swap.can_hold(0) and not swap.can_hold(1) and swap.num_free == 0
    assert swap.allocate(0) == []
    swap.free([])
    swap.swap_out([])
    swap.swap_in([])
    with pytest.raises(OutOfBlocksError, match="1 block asked for, 0 of 0"):
        swap.allocate(1)
    with pytest.raises(ValueError, match="swap space of 0 blocks"):
        swap.free([0])
    for wrong, error in ((-1, ValueError), (1.0, TypeError)):
        with pytest.raises(error, match="num_(cpu_)?blocks"):
            make(wrong)


def test_a_space_without_blocks_copies_nothing():
    swap = SwapSpace(pool_of(2), 0)
    assert swap.nbytes == 0
    for move in (swap.swap_out, swap.swap_in):
        with pytest.raises(ValueError, match="num_cpu_blocks >= 1"):
            move([(0, 0)])


@pytest.mark.parametrize(
    ("pairs", "error", "words"),
    [
        ([(0, 0), (2, 1)], IndexError, "no block 2: the pool has blocks 0 to 1"),
        ([(0, 0), (1, 3)], IndexError, "no block 3: the pool has blocks 0 to 2"),
        ([(0, 1), (1, 1)], ValueError, "named twice"),
        ([(0.0, 1)], TypeError, "whole number"),
    ],
)
def test_pairs_that_cannot_be_are_refused_and_nothing_is_copied(pairs, error, words):
    pool = pool_of(2)
    swap = SwapSpace(pool, 3)
    swap.cpu.poison(range(3))
    for block in range(2):
        fill(pool, block, 5)
    with pytest.raises(error, match=words):
        swap.swap_out(pairs)
    assert swap.cpu.key_cache(0).isnan().all() and swap.num_swapped_out == 0


def test_blocks_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="2 layers x 3 kv heads x 4 slots x 5 torch.float32 cannot be copied into"):
        pool_of(2, dtype=torch.bfloat16).copy_from(pool_of(2), [(0, 0)])


def test_poison():
    pool = pool_of(3)
    for block in range(3):
        fill(pool, block, 5)
    pool.poison([])
    pool.poison([2, 0])
    assert holds(pool, 1, 5)
    assert all(pool.value_cache(1)[block].isnan().all() and pool.key_cache(0)[block].isnan().all() for block in (0, 2))
    with pytest.raises(IndexError, match="no block 3"):
        pool.poison([1, 3])
    assert holds(pool, 1, 5)


def test_a_device_that_is_not_there_is_not_called_too_little_memory():
    assert PagedKVCache(1, 1, 1, 1, 1, device="cpu").device == torch.device("cpu")
    with pytest.raises(RuntimeError, match="nowhere"):
        PagedKVCache(1, 1, 1, 1, 1, device="nowhere")


@settings(max_examples=40, stateful_step_count=30, deadline=None)
class Preempted(RuleBasedStateMachine):
    """Sequences come, are carried out and back, and go. Each must always find its own contents."""

    @initialize(num_blocks=st.integers(1, 8), num_cpu=st.integers(0, 8), block_size=st.sampled_from([1, 2, 3, 16]))
    def start(self, num_blocks, num_cpu, block_size):
        self.pool, self.allocator = pool_of(num_blocks, block_size), BlockAllocator(num_blocks)
        self.swap, self.num_cpu = SwapSpace(self.pool, num_cpu), num_cpu
        self.running, self.swapped, self.next = [], [], 1  # (table, values) and (blocks, num_tokens, values)

    def free(self, table):
        blocks = list(table.blocks)
        table.free(self.allocator)
        self.pool.poison(blocks)

    @rule(n=st.integers(1, 60))
    def arrive(self, n):
        table = BlockTable(self.pool.block_size)
        if table.blocks_to_append(n, self.allocator) > self.allocator.num_free:
            return
        table.append_tokens(n, self.allocator)
        values = list(range(self.next, self.next + len(table.blocks)))
        self.next += len(values)
        for block, value in zip(table.blocks, values, strict=True):
            fill(self.pool, block, value)
        self.running.append((table, values))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def out(self, which):
        table, values = self.running.pop(which % len(self.running))
        if self.swap.can_hold(len(table.blocks)):
            away = self.swap.allocate(len(table.blocks))
            self.swap.swap_out(zip(table.blocks, away, strict=True))
            self.swapped.append((away, table.num_tokens, values))
        self.free(table)

    @precondition(lambda self: self.swapped)
    @rule(which=st.integers(0, 9))
    def back(self, which):
        away, num_tokens, values = self.swapped[which % len(self.swapped)]
        if len(away) > self.allocator.num_free:
            return
        blocks, table = self.allocator.allocate(len(away)), BlockTable(self.pool.block_size)
        self.swap.swap_in(zip(away, blocks, strict=True))
        self.swap.free(away)
        if self.swap.cpu:
            self.swap.cpu.poison(away)
        table.adopt(blocks, num_tokens)
        self.swapped.remove((away, num_tokens, values))
        self.running.append((table, values))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def finish(self, which):
        self.free(self.running.pop(which % len(self.running))[0])

    @invariant()
    def contents_are_theirs(self):
        for table, values in self.running:
            assert all(holds(self.pool, block, value) for block, value in zip(table.blocks, values, strict=True))

    @invariant()
    def nothing_is_lost(self):
        in_use = sum(len(table.blocks) for table, _ in self.running)
        assert self.allocator.num_free == self.allocator.num_blocks - in_use
        assert self.swap.num_free == self.num_cpu - sum(len(away) for away, _, _ in self.swapped)


TestPreempted = Preempted.TestCase
