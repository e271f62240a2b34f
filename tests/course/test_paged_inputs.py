"""Paged inputs are hostile, consistent, and can tell where a number came from."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.course.paged_inputs import PagedInputs, distinct_numbers, marked_nans, nan_mark, paged_inputs
from pagedlab.kernels.ops import gather_kv


@settings(max_examples=50)
@given(pages=paged_inputs(num_seqs=(0, 3)))
def test_what_a_sequence_stored_can_be_gathered(pages):
    for row, length in enumerate(pages.lens):
        keys, values = gather_kv(pages.key_cache, pages.value_cache, pages.block_tables[row], length)
        assert torch.equal(keys, pages.keys[row]) and torch.equal(values, pages.values[row])
        assert pages.tables[row] == [block for block in pages.block_tables[row].tolist() if block >= 0]
    stored = sum(pages.lens) * pages.num_kv_heads * pages.head_dim
    assert int((~pages.key_cache.isnan()).sum()) == int((~pages.value_cache.isnan()).sum()) == stored
    assert pages.key_cache[0].isnan().all()
    used = [block for table in pages.tables for block in table]
    assert len(set(used)) == len(used) and 0 not in used


@settings(max_examples=30)
@given(pages=paged_inputs(num_seqs=(1, 3), min_len=1), data=st.data())
def test_every_number_tells_where_it_lies(pages, data):
    sequence = data.draw(st.integers(0, pages.num_seqs - 1))
    position = data.draw(st.integers(0, pages.lens[sequence] - 1))
    head = data.draw(st.integers(0, pages.num_kv_heads - 1))
    block, slot = pages.where(sequence, position)
    for kind, numbers in (("key", pages.keys), ("value", pages.values)):
        number = numbers[sequence][head, position, 1]
        assert pages.find(number) == (kind, block, head, slot, 1)
        told = f"{pages.told_where(sequence, position)} (the {kind} of token {position} of {'ABC'[sequence]}"
        assert pages.whose(number).startswith(told)


def test_an_empty_slot_tells_where_it_lies():
    pages = PagedInputs([3], block_size=2, num_kv_heads=2, head_dim=5)
    for cache in (pages.key_cache, pages.value_cache):
        copied = torch.cat([cache[1:2], cache[:1]]).flatten()  # as a gather would
        assert pages.whose(copied[-1]) == "block 0 slot 1, a slot nobody wrote (NaN)"
    assert pages.whose(math.nan) == "a slot nobody wrote (NaN)"
    assert pages.whose(0.0) == "a zero"
    assert "no number of the pool" in pages.whose(17.5)


def test_marks_are_nan_and_come_back():
    marks = marked_nans((3, 4))
    assert marks.isnan().all()
    assert [nan_mark(float(mark)) for mark in marks.flatten()] == list(range(12))
    assert nan_mark(math.nan) is None


def test_numbers_differ_and_are_centred():
    numbers = distinct_numbers((7, 11), seed=1)
    assert len(numbers.unique()) == 77 and 0 not in numbers
    assert -2 <= numbers.min() and numbers.max() <= 2 and abs(float(numbers.mean())) < 0.05
    assert distinct_numbers((0, 3), seed=1).shape == (0, 3)


def test_in_words():
    pages = PagedInputs([1, 0], block_size=1, num_kv_heads=3)
    assert repr(pages).startswith("blocks of 1 slot, 3 kv heads, head_dim 2; A: 1 token, its block table is [")
    assert "<svg" in pages.picture(problem=1)


@settings(max_examples=40)
@given(
    block_size=st.sampled_from([1, 2, 3]),
    lens=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    shared=st.integers(0, 3),
)
def test_shared_blocks_are_the_same_in_tables_and_tokens(block_size, lens, shared):
    pages = PagedInputs(lens, block_size, shared_blocks=shared)
    for row, length in enumerate(lens):
        same = min(shared, lens[0] // block_size, length // block_size)
        assert pages.tables[row][:same] == pages.tables[0][:same]
        keys, values = gather_kv(pages.key_cache, pages.value_cache, pages.block_tables[row], length)
        assert torch.equal(keys, pages.keys[row]) and torch.equal(values, pages.values[row])
        if row:  # all else is its own
            assert not set(pages.tables[row][same:]) & {block for table in pages.tables[:row] for block in table}


def test_a_shared_token_has_two_owners():
    pages = PagedInputs([3, 2], block_size=2, shared_blocks=1)
    block, other = pages.tables[0]
    assert pages.tables[1] == [block]
    assert pages.owner(block, 1) == "token 1 of A and B" and pages.owner(other, 0) == "token 2 of A"
    assert "<svg" in pages.picture(problem=block)


@settings(max_examples=40)
@given(lens=st.lists(st.integers(0, 7), min_size=1, max_size=3), extra=st.integers(1, 2))
def test_leftovers_are_blocks_of_the_pool_that_are_not_ones_own(lens, extra):
    pages = PagedInputs(lens, block_size=2, extra_columns=extra, leftovers=True)
    for table, row in zip(pages.tables, pages.block_tables.tolist(), strict=True):
        assert row[: len(table)] == table
        behind = row[len(table) :]
        assert behind and all(0 <= block < pages.num_blocks and block not in table for block in behind)
        assert f"its block table is {table}, behind it stands {behind}" in pages.told()
