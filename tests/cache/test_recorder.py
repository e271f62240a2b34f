"""The recorder: it changes nothing, forgets nothing, and works with allocators that know only their verbs."""

import itertools
import pickle
from collections import deque
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.cache.allocator import Allocator, BlockAllocator, DoubleFreeError, OutOfBlocksError
from pagedlab.cache.paged import PagedKVCache, PagedSequence
from pagedlab.cache.prefix import PrefixCache, prefix_hash_chain
from pagedlab.cache.recorder import Recorder
from pagedlab.cache.table import BlockTable
from pagedlab.errors import PagedLabError
from pagedlab.model.generate import generate
from pagedlab.model.tiny import tiny_llama


class OnlyVerbs:
    """A learner's allocator: the five verbs and nothing else to look at."""

    def __init__(self, num_blocks):
        self._inner = BlockAllocator(num_blocks)

    @property
    def num_free(self):
        return self._inner.num_free

    def allocate(self, n):
        return self._inner.allocate(n)

    def share(self, blocks):
        self._inner.share(blocks)

    def free(self, blocks):
        self._inner.free(blocks)

    def ref_count(self, block):
        return self._inner.ref_count(block)


def test_a_story():
    recorder = Recorder(BlockAllocator(4), block_size=2)
    assert isinstance(recorder, Allocator)
    blocks = recorder.allocate(2)
    recorder.share([1])
    recorder.free(blocks)
    with pytest.raises(DoubleFreeError):
        recorder.free([0])
    assert (recorder.num_free, recorder.ref_count(1), recorder.num_blocks, recorder.free_blocks) == (3, 1, 4, (0, 2, 3))

    assert [step.verb for step in recorder.steps] == ["start", "allocate", "share", "free", "free"]
    assert [step.index for step in recorder.steps] == [0, 1, 2, 3, 4]
    assert [step.state.ref_counts for step in recorder.steps] == [
        (0, 0, 0, 0),
        (1, 1, 0, 0),
        (1, 2, 0, 0),
        (0, 1, 0, 0),
        (0, 1, 0, 0),
    ]
    assert [step.state.free_blocks for step in recorder.steps[2:]] == [(2, 3), (0, 2, 3), (0, 2, 3)]
    start, allocated, shared, freed, failed = recorder.steps
    assert (allocated.taken, shared.shared, freed.returned, failed.returned) == ((0, 1), (1,), (0, 1), ())
    assert freed.error is None and failed.error.startswith("DoubleFreeError: block 0 is free already")
    assert start.caption == "A pool of 4 blocks."
    assert allocated.caption == "allocate(2) gives blocks 0 and 1."
    assert shared.caption == "share([1]) adds a holder to block 1."
    assert freed.caption == "free([0, 1]): block 0 is free now."
    assert failed.caption.startswith("free([0]) raises DoubleFreeError: block 0")


def test_tables_and_their_words():
    recorder = Recorder(BlockAllocator(3), block_size=4)
    a = recorder.table("A", texts=["The", " cat", " sat"])
    assert a.append_tokens(3, recorder) == [0]
    a.texts += [" on", " the"]
    a.append_tokens(2, recorder)
    a.append_tokens(1, recorder)
    with pytest.raises(OutOfBlocksError):
        recorder.table("B").append_tokens(9, recorder)
    assert (a.blocks, a.num_tokens, a.capacity, a.slot(4)) == ([0, 1], 6, 8, 4)
    a.free(recorder)
    a.free(recorder)

    steps = recorder.steps
    assert [(step.verb, step.sequence) for step in steps[1:]] == [
        ("append", "A"),
        ("append", "A"),
        ("append", "A"),
        ("append", "B"),
        ("release", "A"),
        ("release", "A"),
    ]
    assert steps[1].state.sequences[0].texts == ("The", " cat", " sat")
    assert steps[3].state.sequences[0].texts == ("The", " cat", " sat", " on", " the", "")
    assert [step.caption for step in steps[1:4]] == [
        "A appends 3 tokens. allocate(1) gives block 0.",
        "A appends 2 tokens. allocate(1) gives block 1.",
        "A appends 1 token.",
    ]
    assert steps[4].caption.startswith("B appends 9 tokens. allocate(3) raises OutOfBlocksError: 3 blocks asked for, 1")
    assert steps[4].state.sequences[1].blocks == ()
    assert steps[5].caption == "A gives its blocks back. free([1, 0]): blocks 1 and 0 are free now."
    assert steps[5].state.sequences[0].blocks == () and steps[3].state.sequences[0].blocks == (0, 1)
    assert [step.state.num_free for step in steps] == [3, 2, 1, 1, 1, 3, 3]


def test_a_caption_names_a_few_blocks_of_many():
    recorder = Recorder(BlockAllocator(300), block_size=4)
    recorder.free(recorder.allocate(300))
    assert recorder.steps[1].caption == "allocate(300) gives blocks 0, 1, 2, 3, 4, 5, 6, 7 and 292 more."
    assert recorder.steps[2].caption == (
        "free([0, 1, 2, 3, 4, 5, 6, 7, ...]): blocks 0, 1, 2, 3, 4, 5, 6, 7 and 292 more are free now."
    )
    assert recorder.steps[2].returned == tuple(range(300))


def test_several_calls_can_be_one_step():
    """A fork and a copy-on-write, as a widget will show them."""
    recorder = Recorder(BlockAllocator(4), block_size=4)
    a = recorder.table("A")
    a.append_tokens(6, recorder)
    with recorder.step("fork", "B", "B is forked from A"):
        recorder.share(a.blocks)
        b = BlockTable(4)
        b.blocks, b.num_tokens = list(a.blocks), a.num_tokens
        recorder.table("B", b)
    with recorder.step("copy on write", "B", "B is about to write into a shared block"):
        new = recorder.allocate(1)
        recorder.copied([(1, new[0])])
        recorder.free([1])
        b.blocks[1] = new[0]
    with recorder.step("note", title="Both go on"):
        pass
    fork, write, note = recorder.steps[-3:]
    assert fork.state.holders(1) == ("A", "B") and fork.state.ref_counts == (2, 2, 0, 0)
    assert write.state.holders(1) == ("A",) and write.state.ref_counts == (2, 1, 1, 0)
    assert (write.taken, write.copies, write.returned) == ((2,), ((1, 2),), (1,))
    assert [call.verb for call in write.calls] == ["allocate", "free"]
    assert write.caption == (
        "B is about to write into a shared block. allocate(1) gives block 2. free([1]): no block becomes free. "
        "Block 1 is copied to block 2."
    )
    assert (note.caption, note.calls, note.state) == ("Both go on.", (), write.state)


def test_a_real_generation():
    """The words of the text, as they came, and the same text as without a recorder."""
    model, prompt = tiny_llama(), [5, 6, 7, 8, 9]
    config = model.config
    expected = generate(model, prompt, 6)
    recorder = Recorder(BlockAllocator(8), block_size=4)
    table = recorder.table("A", texts=map(str, prompt))
    pool = PagedKVCache(config.num_hidden_layers, 8, config.num_key_value_heads, 4, config.head_dim)
    sequence = PagedSequence(pool, recorder, table)
    assert generate(model, prompt, 6, sequence, on_token=lambda token: table.texts.append(str(token))) == expected
    last = recorder.steps[-1].state.sequences[0]
    assert last.texts == tuple(map(str, prompt + expected[:-1]))
    assert [step.taken for step in recorder.steps[1:]] == [(0, 1), (), (), (), (2,), ()]
    sequence.free()
    assert recorder.steps[-1].verb == "release" and recorder.num_free == 8


def test_an_allocator_with_only_the_verbs():
    recorder = Recorder(OnlyVerbs(4), block_size=4)
    blocks = recorder.allocate(3)
    recorder.share(blocks[:1])
    recorder.free(blocks)
    state = recorder.steps[-1].state
    assert (state.num_blocks, state.ref_counts, state.free_blocks) == (4, (1, 0, 0, 0), (1, 2, 3))
    assert not state.free_order_known and state.num_free == 3


def test_a_private_list_is_not_taken_for_an_order():
    """A learner's own `free_blocks` is often a list that hands out from its end."""

    class Stack(OnlyVerbs):
        def __init__(self, num_blocks):
            super().__init__(num_blocks)
            self.free_blocks = list(range(num_blocks))

    state = Recorder(Stack(3)).steps[-1].state
    assert state.free_blocks == (0, 1, 2) and not state.free_order_known


def test_an_allocator_that_cannot_answer():
    """What it does not tell is worked out from the calls; looking never raises."""

    class Half(OnlyVerbs):
        num_free = property(lambda self: 1 / 0)

        def ref_count(self, block):
            raise NotImplementedError

    recorder = Recorder(Half(3), num_blocks=3)
    recorder.share(recorder.allocate(2))
    recorder.free([0])
    state = recorder.steps[-1].state
    assert (state.ref_counts, state.free_blocks, state.num_free) == ((1, 2, 0), (2,), None)
    with pytest.raises(ZeroDivisionError):
        recorder.num_free  # noqa: B018 (the caller's own question is passed on as it is)


def test_a_broken_allocator_is_shown_as_it_is():
    """It hands out block 0 twice: two sequences hold it, and its count says 1."""

    class Broken(OnlyVerbs):
        def allocate(self, n):
            super().allocate(n)
            return list(range(n))

    recorder = Recorder(Broken(4), block_size=4)
    for name in "AB":
        recorder.table(name).append_tokens(2, recorder)
    state = recorder.steps[-1].state
    assert state.holders(0) == ("A", "B")
    assert (state.ref_counts, state.num_free) == ((1, 1, 0, 0), 2)


def test_answers_that_make_no_sense_are_recorded_too():
    class Odd(OnlyVerbs):
        def allocate(self, n):
            return {0: None, 1: [99, -1, "x"], 2: "ab"}[n]

    recorder = Recorder(Odd(2))
    for n in (0, 1, 2):
        recorder.allocate(n)
    with pytest.raises(KeyError):
        recorder.allocate(3)
    with pytest.raises(TypeError):
        recorder.free(7)
    results = [step.calls[0].result for step in recorder.steps[1:]]
    assert results == [None, (99, -1, "x"), "ab", None, None]
    assert recorder.steps[2].taken == (99, -1)
    assert recorder.steps[1].caption == "allocate(0) gives None."
    assert recorder.steps[-1].caption.startswith("free(7) raises TypeError")
    assert recorder.steps[-1].state.ref_counts == (0, 0)


def test_blocks_that_can_be_read_only_once():
    recorder = Recorder(BlockAllocator(4))
    blocks = recorder.allocate(3)
    recorder.share(iter(blocks))
    recorder.free(block for block in blocks[:2])
    assert [step.calls[0].argument for step in recorder.steps[2:]] == [(0, 1, 2), (0, 1)]
    assert recorder.steps[-1].state.ref_counts == (1, 1, 2, 0)


def test_an_interrupted_step_is_recorded():
    recorder = Recorder(BlockAllocator(4), block_size=4)
    with pytest.raises(KeyboardInterrupt):
        with recorder.step("fork", "B", "B is forked from A"):
            recorder.allocate(1)
            raise KeyboardInterrupt
    assert recorder.steps[-1].error == "KeyboardInterrupt"
    assert recorder.steps[-1].caption == "B is forked from A. allocate(1) gives block 0. It raises KeyboardInterrupt."
    recorder.allocate(1)
    assert recorder.steps[-1].verb == "allocate"


def test_steps_do_not_change_and_travel():
    recorder = Recorder(BlockAllocator(4), block_size=2)
    table = recorder.table("A")
    table.append_tokens(3, recorder)
    steps = recorder.steps
    copy = pickle.loads(pickle.dumps(steps))
    table.append_tokens(3, recorder)
    table.free(recorder)
    assert steps == copy and len(steps) == 2
    with pytest.raises(FrozenInstanceError):
        steps[0].caption = "something else"


def test_names_and_sizes_that_are_missing_or_taken():
    recorder = Recorder(BlockAllocator(4))
    with pytest.raises(ValueError, match="needs a block size"):
        recorder.table("A")
    recorder.table("A", BlockTable(8))
    assert recorder.block_size == 8
    with pytest.raises(ValueError, match="there is a sequence 'A' already"):
        recorder.table("A")


@pytest.mark.parametrize("used", [0, 1, 2, 3, 4])
def test_a_pool_in_use_whose_size_nobody_says_is_refused_whichever_blocks_those_are(used):
    for order in itertools.permutations(range(4)):
        allocator = OnlyVerbs(4)
        allocator.allocate(4)
        allocator.free(list(order))
        allocator.allocate(used)
        if used == 0:
            assert Recorder(allocator).num_blocks == 4
            continue
        with pytest.raises(ValueError, match=r"it is in use already, and \d blocks are free.*num_blocks=\.\.\."):
            Recorder(allocator)
        assert Recorder(allocator, num_blocks=4).steps[0].state.num_blocks == 4


class OtherTypes(OnlyVerbs):
    """Right, but with numpy's integers, in other collections than a list."""

    def __init__(self, num_blocks, collection):
        super().__init__(num_blocks)
        self._collection = collection

    num_blocks = property(lambda self: np.int64(self._inner.num_blocks))
    num_free = property(lambda self: np.int64(self._inner.num_free))
    free_blocks = property(lambda self: tuple(map(np.int64, self._inner.free_blocks)))

    def allocate(self, n):
        return self._collection([np.int64(block) for block in super().allocate(n)])

    def ref_count(self, block):
        return np.int64(super().ref_count(block))


@pytest.mark.parametrize("collection", [list, tuple, deque, np.array, torch.tensor])
def test_integers_and_collections_of_any_kind_are_recorded_as_plain_ones(collection):
    def play(allocator):
        recorder = Recorder(allocator, block_size=2)
        table = recorder.table("A")
        table.append_tokens(3, recorder)
        recorder.share(table.blocks)
        recorder.free(recorder.allocate(1))
        table.free()
        return recorder.steps

    steps = play(OtherTypes(4, collection))
    assert steps == play(BlockAllocator(4))
    assert "gives blocks 0 and 1" in steps[1].caption
    states = [step.state for step in steps]
    numbers = [number for state in states for number in (*state.ref_counts, *state.free_blocks, state.num_free)]
    numbers += [number for step in steps for number in (*step.taken, *step.shared, *step.returned)]
    numbers += [block for state in states for sequence in state.sequences for block in sequence.blocks]
    assert {type(number) for number in numbers} == {int}


@pytest.mark.parametrize("left", [None, 7, "no table"])
def test_a_table_that_breaks_hides_no_error_and_takes_no_block(left):
    class Breaking(BlockTable):
        def append_tokens(self, n, allocator):
            self.blocks = left
            del self.num_tokens
            raise ValueError("what went wrong")

    recorder = Recorder(BlockAllocator(4), block_size=2)
    table = recorder.table("A", Breaking(2))
    recorder.table("B").append_tokens(2)
    with pytest.raises(ValueError, match="what went wrong"):
        table.append_tokens(3)
    assert recorder.steps[-1].error == "ValueError: what went wrong"
    assert recorder.allocate(2) == [1, 2]
    state = recorder.steps[-1].state
    assert state.num_free == 1 and [sequence.blocks for sequence in state.sequences] == [(), (0,)]


def test_an_error_without_readable_words_goes_on_to_the_caller():
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError

    class Failing(OnlyVerbs):
        def allocate(self, n):
            raise Unspeakable

    recorder = Recorder(Failing(4))
    with pytest.raises(Unspeakable):
        recorder.allocate(1)
    assert recorder.steps[-1].caption == "allocate(1) raises Unspeakable."


def test_large_pools_are_asked_about_what_moved_only():
    class Counting(OnlyVerbs):
        asked = 0

        def ref_count(self, block):
            self.asked += 1
            return super().ref_count(block)

    allocator = Counting(10_000)
    recorder = Recorder(allocator, num_blocks=10_000)
    recorder.share(recorder.allocate(3))
    assert allocator.asked == 6
    assert recorder.steps[-1].state.ref_counts[:4] == (2, 2, 2, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([BlockAllocator, OnlyVerbs]),
    st.lists(
        st.tuples(st.just("allocate"), st.integers(0, 4))
        | st.tuples(st.sampled_from(["share", "free"]), st.lists(st.integers(0, 6), max_size=3)),
        max_size=15,
    ),
)
def test_whatever_happens_the_last_state_is_the_allocators(make, calls):
    recorder, twin = Recorder(make(6)), BlockAllocator(6)
    for verb, argument in calls:
        outcomes = []
        for allocator in (recorder, twin):
            try:
                outcomes.append(getattr(allocator, verb)(argument))
            except PagedLabError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        state = recorder.steps[-1].state
        assert state.ref_counts == tuple(map(twin.ref_count, range(6)))
        assert set(state.free_blocks) == set(twin.free_blocks)
        assert state.num_free == twin.num_free
        assert not state.free_order_known or state.free_blocks == twin.free_blocks
    assert len(recorder.steps) == 1 + len(calls)


def test_a_fork_and_a_copy_on_write_are_one_step_each():
    recorder = Recorder(BlockAllocator(6), block_size=4)
    a = recorder.table("A", texts=["one", "two", "three", "four", "five", "six"])
    a.append_tokens(6, recorder)
    b = a.fork(recorder, name="B")
    a2 = a.fork(recorder)
    assert (b.name, a2.name, a.fork().name) == ("B", "A2", "A3")
    assert b.copy_on_write(recorder) == [(1, 2)]
    b.texts.append("other")
    b.append_tokens(1, recorder)
    last = recorder.steps[-1]
    assert [sequence.texts[-1] for sequence in last.state.sequences[:2]] == ["six", "other"]
    start, append, fork, _, _, write, _ = recorder.steps
    assert [(step.verb, step.sequence) for step in (fork, write)] == [("fork", "B"), ("copy on write", "B")]
    assert fork.shared == (0, 1) and fork.state.holders(1) == ("A", "B")
    assert fork.caption == "B is forked from A. share([0, 1]) adds a holder to blocks 0 and 1."
    assert (write.copies, write.taken, write.returned) == (((1, 2),), (2,), (1,))
    assert write.caption == (
        "B is about to write into a block it shares. allocate(1) gives block 2. free([1]): no block becomes free. "
        "Block 1 is copied to block 2."
    )


def test_a_copy_on_write_with_nothing_to_do_is_no_step_and_a_failed_one_is():
    recorder = Recorder(BlockAllocator(1), block_size=4)
    a = recorder.table("A")
    a.append_tokens(2)
    assert a.copy_on_write() == [] and len(recorder.steps) == 2
    b = a.fork()
    with pytest.raises(OutOfBlocksError):
        b.copy_on_write()
    failed = recorder.steps[-1]
    assert failed.verb == "copy on write" and failed.error.startswith("OutOfBlocksError") and failed.copies == ()
    assert failed.state.holders(0) == ("A", "A2")


def test_a_table_without_these_verbs_is_no_step():
    class Plain:
        blocks, num_tokens = [], 0

    recorder = Recorder(BlockAllocator(1), block_size=4)
    table = recorder.table("A", Plain())
    for verb in (table.fork, table.copy_on_write):
        with pytest.raises(AttributeError):
            verb()
    assert len(recorder.steps) == 1


def test_hits_misses_and_what_the_cache_keeps():
    recorder = Recorder(PrefixCache(BlockAllocator(3)), block_size=2)
    hashes = prefix_hash_chain([1, 2, 3, 4], 2)
    a = recorder.table("A")
    a.append_tokens(4, recorder)
    for block, block_hash in zip(a.blocks, hashes, strict=True):
        recorder.publish(block, block_hash)
    a.free(recorder)
    b = recorder.table("B")
    b.adopt(recorder.lookup(hashes[:1]), 2)
    assert recorder.lookup(iter(prefix_hash_chain([5, 6], 2))) == []
    b.append_tokens(4, recorder)
    with pytest.raises(TypeError):
        recorder.lookup([7])
    steps = recorder.steps[1:]
    assert [step.verb for step in steps] == [
        *("append", "publish", "publish", "release", "hit", "adopt", "miss", "append", "lookup"),
    ]
    assert [step.caption for step in steps[2:8]] == [
        "publish(1) tells the cache what block 1 holds.",
        "A gives its blocks back. free([1, 0]): blocks 1 and 0 are free now. "
        "The cache still knows what blocks 1 and 0 held.",
        "lookup(1 hash) finds block 0.",
        "B starts with block 0.",
        "lookup(1 hash) finds nothing.",
        "B appends 4 tokens. allocate(2) gives blocks 2 and 1. What block 1 held is evicted from the cache.",
    ]
    assert [step.state.cached_blocks for step in steps] == [(), (), (), (1, 0), (1,), (1,), (1,), (), ()]
    assert steps[3].state.ref_counts == (0, 0, 0) and steps[3].state.free_blocks == (2, 1, 0)
    assert (steps[4].shared, steps[4].state.ref_counts) == ((0,), (1, 0, 0))
    assert steps[-1].error.startswith("TypeError: a block's hash is bytes")
    assert pickle.loads(pickle.dumps(recorder.steps)) == recorder.steps


def test_a_recorded_allocator_has_a_cache_only_if_it_had_one():
    assert not hasattr(Recorder(BlockAllocator(1)), "lookup")
    assert hasattr(Recorder(PrefixCache(BlockAllocator(1))), "lookup")
