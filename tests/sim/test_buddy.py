"""The buddy allocator: by hand on a small pool, and against its rules on random sequences of calls."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from pagedlab.sim.buddy import BuddyAllocator, NotAllocatedError, OutOfSlotsError


def test_splitting_and_merging_by_hand():
    buddy = BuddyAllocator(16)
    a = buddy.allocate(3)  # takes 4: 16 is split to 8 + 8, the lower 8 to 4 + 4
    assert (a, buddy.free_chunks()) == (0, [(4, 4), (8, 8)])
    b = buddy.allocate(4)
    c = buddy.allocate(5)
    assert (b, c) == (4, 8)
    assert buddy.allocated_chunks() == [(0, 4), (4, 4), (8, 8)]
    assert (buddy.num_free, buddy.largest_free) == (0, 0)
    buddy.free(b)
    assert buddy.free_chunks() == [(4, 4)]  # its buddy is taken, and the 8 behind it is not its buddy
    buddy.free(c)
    assert buddy.free_chunks() == [(4, 4), (8, 8)]  # neighbours, but no buddies: no merge
    buddy.free(a)
    assert buddy.free_chunks() == [(0, 16)]


def test_the_smallest_chunk_that_fits_is_used():
    buddy = BuddyAllocator(16)
    small, rest = buddy.allocate(4), buddy.allocate(8)
    assert buddy.free_chunks() == [(4, 4)]
    buddy.free(rest)
    assert buddy.allocate(2) == 4  # from the free 4, not from the free 8
    assert buddy.largest_free == 8
    assert small == 0


def test_of_equal_chunks_the_lowest_is_used():
    buddy = BuddyAllocator(16)
    starts = [buddy.allocate(2) for _ in range(8)]
    assert starts == list(range(0, 16, 2))
    for start in (12, 4, 8):
        buddy.free(start)
    assert [buddy.allocate(2) for _ in range(3)] == [4, 8, 12]


def test_a_pool_of_the_papers_size():
    buddy = BuddyAllocator(15_728)
    assert [size for _, size in buddy.free_chunks()] == [8192, 4096, 2048, 1024, 256, 64, 32, 16]
    assert buddy.largest_possible == 8192
    starts = [buddy.allocate(2048) for _ in range(7)]
    assert len(set(starts)) == 7
    with pytest.raises(OutOfSlotsError, match=r"2048 slots need a free chunk of 2048; the largest free chunk has 1024"):
        buddy.allocate(2048)
    assert buddy.num_free == 15_728 - 7 * 2048


def test_free_slots_in_pieces_do_not_help():
    buddy = BuddyAllocator(8)
    starts = [buddy.allocate(1) for _ in range(8)]
    for start in starts[::2]:
        buddy.free(start)
    with pytest.raises(OutOfSlotsError, match=r"largest free chunk has 1 \(4 of 8 slots are free, in pieces\)"):
        buddy.allocate(2)


def test_freeing_twice_and_freeing_what_never_was():
    buddy = BuddyAllocator(16)
    start = buddy.allocate(4)
    for wrong in (1, 4, 16, -1):
        with pytest.raises(NotAllocatedError, match=f"begins at slot {wrong}"):
            buddy.free(wrong)
    buddy.free(start)
    with pytest.raises(NotAllocatedError, match="begins at slot 0"):
        buddy.free(start)
    assert buddy.free_chunks() == [(0, 16)]


def test_sizes_below_1():
    with pytest.raises(ValueError, match="num_slots is 0"):
        BuddyAllocator(0)
    with pytest.raises(ValueError, match="asked for 0"):
        BuddyAllocator(4).allocate(0)


@given(st.integers(1, 5000))
def test_a_new_pool_is_free_from_end_to_end(num_slots):
    position = 0
    for start, size in BuddyAllocator(num_slots).free_chunks():
        assert start == position
        position += size
    assert position == num_slots


class BuddyRules(RuleBasedStateMachine):
    starts = Bundle("starts")

    @initialize(num_slots=st.integers(1, 200))
    def make(self, num_slots):
        self.buddy = BuddyAllocator(num_slots)
        self.asked = {}  # first slot -> slots asked for
        self.at_first = self.buddy.free_chunks()

    @rule(target=starts, num_slots=st.integers(1, 80))
    def allocate(self, num_slots):
        wanted = 1
        while wanted < num_slots:
            wanted *= 2
        before = self.buddy.free_chunks(), self.buddy.allocated_chunks()
        enough = any(size >= wanted for _, size in before[0])
        try:
            start = self.buddy.allocate(num_slots)
        except OutOfSlotsError:
            assert not enough
            assert (self.buddy.free_chunks(), self.buddy.allocated_chunks()) == before
            return None
        assert enough
        assert start not in self.asked
        self.asked[start] = num_slots
        assert (start, wanted) in self.buddy.allocated_chunks()
        return start

    @rule(start=consumes(starts))
    def free(self, start):
        if start is not None:
            self.buddy.free(start)
            del self.asked[start]

    @rule(start=st.integers(-5, 210))
    def free_what_is_not_allocated(self, start):
        if start not in self.asked:
            before = self.buddy.free_chunks(), self.buddy.allocated_chunks()
            with pytest.raises(NotAllocatedError):
                self.buddy.free(start)
            assert (self.buddy.free_chunks(), self.buddy.allocated_chunks()) == before

    @invariant()
    def every_slot_belongs_to_one_chunk(self):
        free, allocated = self.buddy.free_chunks(), self.buddy.allocated_chunks()
        position = 0
        for start, size in sorted(free + allocated):
            assert start == position, "chunks overlap, or leave a gap"
            assert size & (size - 1) == 0
            assert start % size == 0
            position += size
        assert position == self.buddy.num_slots
        assert [start for start, _ in allocated] == sorted(self.asked)
        assert self.buddy.num_free == sum(size for _, size in free)
        assert self.buddy.largest_free == max([size for _, size in free], default=0)

    @invariant()
    def free_buddies_are_merged(self):
        free = set(self.buddy.free_chunks())
        assert not any((start ^ size, size) in free for start, size in free)

    def teardown(self):
        if hasattr(self, "buddy"):
            for start in self.asked:
                self.buddy.free(start)
            assert self.buddy.free_chunks() == self.at_first


TestBuddyRules = BuddyRules.TestCase
TestBuddyRules.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
