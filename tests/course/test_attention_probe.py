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
