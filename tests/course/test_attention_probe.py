"""The probe that tells which slots an answer to `paged_attention` has read."""

import pytest
import torch
from hypothesis import given, settings

from pagedlab.course.attention_probe import expect_attention, explain, weights_read
from pagedlab.course.paged_inputs import PagedInputs, paged_inputs
from pagedlab.course.promise import Wrong
from pagedlab.course.tensors import randn
from pagedlab.kernels.ops import paged_decode


def queries(pages, group):
    return randn(pages.seed, pages.num_seqs, pages.num_kv_heads * group, pages.head_dim)


@settings(max_examples=40, deadline=None)
@given(paged_inputs())
def test_weights_are_the_softmax_of_each_sequences_own_scores(pages):
    q = queries(pages, 2)
    weights = weights_read(paged_decode, pages, q)
    for sequence, length in enumerate(pages.lens):
        for head in range(q.shape[1]):
            left = weights[sequence, head].clone()
            keys = pages.keys[sequence][head // 2]
            wanted = torch.softmax(keys @ q[sequence, head] / pages.head_dim**0.5, 0)
            for position in range(length):
                place = (head // 2, *pages.where(sequence, position))
                assert left[place] == pytest.approx(float(wanted[position]), abs=1e-5)
                left[place] = 0
            assert not left.any()  # nothing else was read


@settings(max_examples=40, deadline=None)
@given(paged_inputs())
def test_a_right_answer_is_not_accused(pages):
    expect_attention(paged_decode, pages, queries(pages, 3), "")
    explain(paged_decode, pages, queries(pages, 3), "")


def test_the_slot_that_was_read_by_mistake_is_named():
    pages = PagedInputs([3, 2], block_size=2, head_dim=4)

    def swaps_the_tables(q, keys, values, block_tables, seq_lens):
        return paged_decode(q, keys, values, block_tables.flip(0), seq_lens.clamp(max=2))

    block, slot = pages.where(1, 0)
    with pytest.raises(Wrong) as told:
        expect_attention(swaps_the_tables, pages, queries(pages, 1), "")
    assert (
        f"block {min(block, pages.tables[1][0])} slot {slot} was read, which holds token 0 of B" in told.value.message
    )
    assert f"A's block table is {pages.tables[0]}" in told.value.hint
    assert "<svg" in told.value.picture


def test_an_answer_that_fails_on_the_probe_is_told_by_its_numbers():
    pages = PagedInputs([3], block_size=2, head_dim=4)

    def knows_one_head_dim(q, keys, values, block_tables, seq_lens):
        return paged_decode(q, keys, values, block_tables, seq_lens).reshape(1, 1, 4) + 1

    with pytest.raises(Wrong, match="The numbers are wrong"):
        expect_attention(knows_one_head_dim, pages, queries(pages, 1), "")


def test_an_index_behind_the_table_is_told_with_the_number_of_blocks():
    pages = PagedInputs([4], block_size=2, head_dim=4)

    def asks_for_one_block_more(q, keys, values, block_tables, seq_lens):
        return [block_tables[0, index] for index in range(3)]

    with pytest.raises(Wrong, match="out of range") as told:
        expect_attention(asks_for_one_block_more, pages, queries(pages, 1), "")
    assert "4 tokens in blocks of 2: that is 2 blocks" in told.value.hint
    assert f"its block table is {pages.tables[0]}" in told.value.example
    with pytest.raises(IndexError):  # with groups it may be about heads: the caller knows more
        expect_attention(asks_for_one_block_more, pages, queries(pages, 2), "")


@pytest.mark.parametrize("factor", [0.3, 1.4])
def test_scores_off_by_one_factor_are_recognised(factor):
    pages = PagedInputs([5], block_size=2, head_dim=4)

    def scaled(q, *rest):
        return paged_decode(q * factor, *rest)

    with pytest.raises(Wrong, match="by the same factor"):
        expect_attention(scaled, pages, queries(pages, 1), "")


def test_what_was_carried_over_from_another_sequence_is_suspected():
    pages = PagedInputs([2, 2], block_size=2, head_dim=4)

    def mixes_both(q, *rest):
        out = paged_decode(q, *rest)
        return torch.stack([out[0], (out[0] + out[1]) / 2])

    with pytest.raises(Wrong, match="B, head 0: block .* holds token 0 of A") as told:
        expect_attention(mixes_both, pages, queries(pages, 1), "")
    assert "something of A's carried over into B" in told.value.hint
