"""The block table: positions to slots, all-or-nothing growth, and never more than one block half empty."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import BlockAllocator, OutOfBlocksError
from pagedlab.cache.table import BlockTable, SharedBlockError, padded, slot_mapping


def test_figure_6_of_the_vllm_paper():
    """Blocks of 4, a prompt of 7 tokens: 2 blocks; the third comes with the second token that is generated."""
    allocator, table = BlockAllocator(8), BlockTable(block_size=4)
    assert len(table.append_tokens(7, allocator)) == 2
    assert table.append_tokens(1, allocator) == []
    assert len(table.append_tokens(1, allocator)) == 1
    assert (table.num_tokens, table.capacity) == (9, 12)


def test_slots_by_hand():
    assert slot_mapping([7, 3, 9], 0, 6, block_size=2) == [14, 15, 6, 7, 18, 19]
    assert slot_mapping([5, 2, 8], 37, 38, block_size=16) == [8 * 16 + 5]
    assert slot_mapping([7, 3], 3, 3, block_size=2) == []
    assert slot_mapping([], 0, 0, block_size=2) == []
    assert slot_mapping(torch.tensor([7, 3, -1]), 1, 4, block_size=2) == [15, 6, 7]
    assert slot_mapping((4, 0), np.int64(0), 2, block_size=1) == [4, 0]


@given(st.permutations(range(20)), st.integers(1, 7), st.data())
def test_slots_of_any_range(blocks, block_size, data):
    end = data.draw(st.integers(0, 20 * block_size))
    start = data.draw(st.integers(0, end))
    slots = slot_mapping(blocks, start, end, block_size)
    assert [slot // block_size for slot in slots] == [blocks[p // block_size] for p in range(start, end)]
    assert [slot % block_size for slot in slots] == [p % block_size for p in range(start, end)]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([7, 3], 0, 5, 2), IndexError, "position 4 has no block: the table's 2 blocks of 2 slots are room for 4"),
        (([], 0, 1, 2), IndexError, "position 0 has no block"),
        (([7, -1], 1, 3, 2), IndexError, "position 2: entry 1 of the table is -1"),
        (([7, 3], -1, 2, 2), ValueError, "positions -1 to 2"),
        (([7, 3], 3, 2, 2), ValueError, "positions 3 to 2"),
        (([7, 3], 0, 2, 0), ValueError, "block_size is 0"),
        (([7, 3], 0.0, 2, 2), TypeError, "start must be a whole number"),
    ],
)
def test_ranges_without_slots_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        slot_mapping(*arguments)


def test_a_table_knows_how_many_tokens_it_has():
    allocator, table = BlockAllocator(8), BlockTable(4)
    table.append_tokens(5, allocator)
    assert table.slot(4) == table.blocks[1] * 4
    assert table.slot_mapping(0, 5) == [table.slot(position) for position in range(5)]
    for call in (lambda: table.slot(5), lambda: table.slot(-1), lambda: table.slot_mapping(3, 6)):
        with pytest.raises(IndexError, match="5 tokens"):  # there is a slot, but no token in it
            call()
    assert repr(table) == "BlockTable([0, 1], 5 tokens, 8 slots)"


def test_a_pool_that_is_too_small_changes_nothing():
    allocator, table = BlockAllocator(3), BlockTable(4)
    table.append_tokens(6, allocator)
    with pytest.raises(OutOfBlocksError, match="2 blocks asked for, 1 of 3 are free"):
        table.append_tokens(7, allocator)
    assert (table.blocks, table.num_tokens, allocator.free_blocks) == ([0, 1], 6, (2,))
    assert table.append_tokens(6, allocator) == [2]


def test_an_allocator_that_gives_the_wrong_number_is_caught():
    class Short(BlockAllocator):
        def allocate(self, n):
            return super().allocate(n)[:-1]

    table = BlockTable(4)
    with pytest.raises(ValueError, match="asked for 2 blocks and gave 1"):
        table.append_tokens(5, Short(8))
    assert (table.blocks, table.num_tokens) == ([], 0)


def test_truncate_and_free():
    allocator, table = BlockAllocator(8), BlockTable(4)
    table.append_tokens(13, allocator)
    with pytest.raises(ValueError, match="keep 14 tokens of a table that has 13"):
        table.truncate(14, allocator)
    assert table.truncate(12, allocator) == [3]
    assert table.truncate(5, allocator) == [2]
    assert table.truncate(5, allocator) == []
    assert (table.blocks, table.num_tokens, allocator.num_free) == ([0, 1], 5, 6)
    table.free(allocator)
    table.free(allocator)  # a finished sequence may be freed again, as by an abort that comes too late
    assert (table.blocks, table.num_tokens, table.capacity, allocator.num_free) == ([], 0, 0, 8)


def test_a_free_that_fails_keeps_the_table():
    class Broken(BlockAllocator):
        def free(self, blocks):
            raise OSError("no")

    allocator, table = Broken(4), BlockTable(4)
    table.append_tokens(5, allocator)
    with pytest.raises(OSError):
        table.free(allocator)
    assert (table.blocks, table.num_tokens) == ([0, 1], 5)


@pytest.mark.parametrize("wrong", [0, -4])
def test_a_block_has_at_least_one_slot(wrong):
    with pytest.raises(ValueError, match=f"block_size is {wrong}"):
        BlockTable(wrong)


def test_figure_8_of_the_vllm_paper():
    """Two samples of one prompt: the first to write copies the block they share, the second writes in place."""
    allocator, a1 = BlockAllocator(8), BlockTable(4)
    a1.append_tokens(7, allocator)
    a2 = a1.fork(allocator)
    assert (a2.blocks, a2.num_tokens, type(a2)) == ([0, 1], 7, BlockTable)
    assert [allocator.ref_count(block) for block in a1.blocks] == [2, 2]
    assert (a1.blocks_to_append(1, allocator), a2.blocks_to_append(1, allocator)) == (1, 1)
    assert a1.copy_on_write(allocator) == [(1, 2)]
    assert (a1.blocks, a2.blocks, a1.num_tokens) == ([0, 2], [0, 1], 7)
    assert [allocator.ref_count(block) for block in (0, 1, 2)] == [2, 1, 1]
    assert a2.copy_on_write(allocator) == [] and a2.blocks_to_append(1, allocator) == 0
    assert a1.append_tokens(1, allocator) == a2.append_tokens(1, allocator) == []
    assert a1.copy_on_write(allocator) == []  # the last block is full: the next token goes into a new one
    assert (a1.append_tokens(1, allocator), a2.append_tokens(1, allocator)) == ([3], [4])


def test_a_fork_goes_its_own_way():
    allocator, parent = BlockAllocator(8), BlockTable(2)
    parent.append_tokens(4, allocator)
    child = parent.fork(allocator)
    child.append_tokens(1, allocator)
    assert (parent.blocks, child.blocks) == ([0, 1], [0, 1, 2])
    parent.free(allocator)
    assert child.slot_mapping(0, 5) == [0, 1, 2, 3, 4]
    child.free(allocator)
    assert allocator.num_free == 8
    assert BlockTable(2).fork(allocator).blocks == []


def test_a_shared_block_is_not_written():
    allocator, parent = BlockAllocator(3), BlockTable(4)
    parent.append_tokens(5, allocator)
    child = parent.fork(allocator)
    with pytest.raises(SharedBlockError, match=r"position 5 would be written into block 1, which has 2 holders"):
        child.append_tokens(1, allocator)
    assert (child.blocks, child.num_tokens, allocator.num_free) == ([0, 1], 5, 1)
    assert child.append_tokens(0, allocator) == []  # nothing is written
    assert child.blocks_to_append(0, allocator) == 0
    parent.free(allocator)
    assert child.append_tokens(1, allocator) == []  # the last holder


def test_no_block_for_the_copy():
    allocator, parent = BlockAllocator(2), BlockTable(4)
    parent.append_tokens(5, allocator)
    child = parent.fork(allocator)
    with pytest.raises(OutOfBlocksError, match="1 block asked for, 0 of 2 are free"):
        child.copy_on_write(allocator)
    assert child.blocks == [0, 1] and [allocator.ref_count(block) for block in (0, 1)] == [2, 2]


def test_a_block_that_was_cut_back_is_copied_too():
    allocator, parent = BlockAllocator(4), BlockTable(4)
    parent.append_tokens(8, allocator)
    child = parent.fork(allocator)
    child.truncate(6, allocator)
    assert child.copy_on_write(allocator) == [(1, 2)]
    assert parent.blocks == [0, 1] and parent.copy_on_write(allocator) == []


def test_an_allocator_that_does_not_count_still_does_for_one_sequence():
    class Bump:
        next = 0

        def allocate(self, n):
            self.next += n
            return list(range(self.next - n, self.next))

    table, allocator = BlockTable(4), Bump()
    table.append_tokens(5, allocator)
    assert (table.blocks_to_append(4, allocator), table.copy_on_write(allocator)) == (1, [])
    assert table.append_tokens(4, allocator) == [2]


def test_a_table_adopts_blocks():
    allocator, table = BlockAllocator(4), BlockTable(4)
    table.adopt(np.array(allocator.allocate(2)), 8)
    assert table.append_tokens(1, allocator) == [2]
    with pytest.raises(ValueError, match="has 3 blocks already"):
        table.adopt([3], 4)
    empty = BlockTable(4)
    with pytest.raises(ValueError, match="5 tokens take 2 blocks of 4 slots, not 1"):
        empty.adopt([3], 5)
    with pytest.raises(TypeError, match="a block id must be a whole number"):
        empty.adopt([None], 4)
    assert (empty.blocks, empty.num_tokens) == ([], 0)
    empty.adopt([], 0)


@settings(max_examples=50, stateful_step_count=30, deadline=None)
class AWorkload(RuleBasedStateMachine):
    """Sequences come, grow, shrink and go. Between any two steps the tables and the allocator must agree."""

    @initialize(num_blocks=st.integers(1, 12), block_size=st.sampled_from([1, 2, 3, 16]))
    def start(self, num_blocks, block_size):
        self.allocator, self.block_size = BlockAllocator(num_blocks), block_size
        self.tables = [BlockTable(block_size) for _ in range(3)]

    @rule(which=st.integers(0, 2), n=st.integers(0, 40))
    def append(self, which, n):
        table = self.tables[which]
        before = (list(table.blocks), table.num_tokens, self.allocator.free_blocks)
        try:
            new = table.append_tokens(n, self.allocator)
        except OutOfBlocksError as error:
            assert error.asked > error.free
            assert (table.blocks, table.num_tokens, self.allocator.free_blocks) == before
        else:
            assert table.blocks == before[0] + new, "earlier blocks stay where they are"
            assert table.num_tokens == before[1] + n

    @rule(which=st.integers(0, 2), part=st.floats(0, 1))
    def truncate(self, which, part):
        table = self.tables[which]
        kept = table.blocks[: blocks_needed(int(table.num_tokens * part), self.block_size)]
        table.truncate(int(table.num_tokens * part), self.allocator)
        assert table.blocks == kept

    @rule(which=st.integers(0, 2))
    def free(self, which):
        self.tables[which].free(self.allocator)

    @invariant()
    def at_most_block_size_minus_1_slots_are_unused(self):
        for table in self.tables:
            assert 0 <= table.capacity - table.num_tokens < self.block_size

    @invariant()
    def every_block_is_in_one_place(self):
        held = [block for table in self.tables for block in table.blocks]
        assert sorted([*held, *self.allocator.free_blocks]) == list(range(self.allocator.num_blocks))

    @invariant()
    def no_two_tokens_share_a_slot(self):
        slots = [slot for table in self.tables for slot in table.slot_mapping(0, table.num_tokens)]
        assert len(set(slots)) == len(slots)


TestAWorkload = AWorkload.TestCase


@settings(max_examples=60, stateful_step_count=40, deadline=None)
class AFamily(RuleBasedStateMachine):
    """Sequences fork, write, are cut back and go. The model: each one's own list of tokens.

    The pool's memory is a list per block. A block that is handed out is filled with NaN, which equals nothing.
    """

    @initialize(num_blocks=st.integers(1, 14), block_size=st.sampled_from([1, 2, 3, 16]))
    def start(self, num_blocks, block_size):
        self.allocator, self.block_size = BlockAllocator(num_blocks), block_size
        self.memory = [[float("nan")] * block_size for _ in range(num_blocks)]
        self.sequences = [(BlockTable(block_size), [])]
        self.next_token = 0

    def books(self, table):
        counts = [self.allocator.ref_count(block) for block in range(self.allocator.num_blocks)]
        return list(table.blocks), table.num_tokens, self.allocator.free_blocks, counts

    @rule(which=st.integers(0, 9), n=st.integers(1, 20))
    def write(self, which, n):
        table, tokens = self.sequences[which % len(self.sequences)]
        needed, before = table.blocks_to_append(n, self.allocator), self.books(table)
        if needed > self.allocator.num_free:
            with pytest.raises(OutOfBlocksError):
                table.copy_on_write(self.allocator)
                copied = self.books(table)
                try:
                    table.append_tokens(n, self.allocator)
                except OutOfBlocksError:
                    assert self.books(table) == copied
                    self.copy(before[0], table.blocks)  # it has its own block now, and that one must be filled
                    raise
            return
        pairs = table.copy_on_write(self.allocator)
        assert len(pairs) <= 1
        for source, destination in pairs:
            assert before[0][-1] == source and table.blocks[-1] == destination
        self.copy(before[0], table.blocks)
        new = table.append_tokens(n, self.allocator)
        assert len(pairs) + len(new) == needed == len(before[2]) - self.allocator.num_free
        for block in new:
            self.memory[block] = [float("nan")] * self.block_size
        for slot in table.slot_mapping(len(tokens), len(tokens) + n):
            self.memory[slot // self.block_size][slot % self.block_size] = self.next_token
            tokens.append(self.next_token)
            self.next_token += 1

    def copy(self, old, new):
        for source, destination in zip(old, new, strict=False):
            if source != destination:
                self.memory[destination] = list(self.memory[source])

    @rule(which=st.integers(0, 9))
    def forget_to_copy(self, which):
        table, tokens = self.sequences[which % len(self.sequences)]
        if table.num_tokens < table.capacity and self.allocator.ref_count(table.blocks[-1]) > 1:
            before = self.books(table)
            with pytest.raises(SharedBlockError):
                table.append_tokens(1, self.allocator)
            assert self.books(table) == before

    @rule(which=st.integers(0, 9))
    def fork(self, which):
        table, tokens = self.sequences[which % len(self.sequences)]
        self.sequences.append((table.fork(self.allocator), list(tokens)))

    @rule(which=st.integers(0, 9), part=st.floats(0, 1))
    def truncate(self, which, part):
        table, tokens = self.sequences[which % len(self.sequences)]
        del tokens[int(len(tokens) * part) :]
        table.truncate(len(tokens), self.allocator)

    @rule(which=st.integers(0, 9))
    def free(self, which):
        table, _ = self.sequences.pop(which % len(self.sequences))
        table.free(self.allocator)
        if not self.sequences:
            self.sequences = [(table, [])]

    @invariant()
    def everyone_reads_their_own_tokens(self):
        for table, tokens in self.sequences:
            slots = table.slot_mapping(0, table.num_tokens)
            assert [self.memory[slot // self.block_size][slot % self.block_size] for slot in slots] == tokens

    @invariant()
    def a_block_has_as_many_holders_as_tables_with_it(self):
        held = Counter(block for table, _ in self.sequences for block in table.blocks)
        blocks = range(self.allocator.num_blocks)
        assert [self.allocator.ref_count(block) for block in blocks] == [held[block] for block in blocks]


TestAFamily = AFamily.TestCase


def test_padded():
    allocator, table = BlockAllocator(8), BlockTable(4)
    table.append_tokens(9, allocator)
    batch = padded([table, [5], []])
    assert batch.dtype == torch.int32
    assert batch.tolist() == [[0, 1, 2], [5, -1, -1], [-1, -1, -1]]
    assert padded([]).shape == (0, 0)
    assert padded([[], BlockTable(4)]).shape == (2, 0)


@pytest.mark.parametrize("table", [[1.7], "12", [None], [True], torch.tensor([1.0])])
def test_entries_that_are_no_whole_numbers(table):
    with pytest.raises(TypeError, match="an entry of the block table must be a whole number"):
        slot_mapping(table, 0, 1, 16)
