"""Attention in parts: however the tokens are cut up, merging gives attention over all of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.attention import merge_partials, partial_attention


def parts_of(q, keys, values, cuts, scale=1.0):
    """partial_attention over each stretch of tokens between two cuts."""
    for start, end in zip([0, *cuts], [*cuts, keys.shape[-2]], strict=True):
        visible = torch.ones(*q.shape[:-1], end - start, dtype=torch.bool)
        yield partial_attention(q, keys[..., start:end, :], values[..., start:end, :], visible, scale)


def random_case(seed, num_tokens, spread=1.0, head_dim=4, rows=3):
    generator = torch.Generator().manual_seed(seed)
    q, keys, values = (torch.randn(2, n, head_dim, generator=generator) for n in (rows, num_tokens, num_tokens))
    return q * spread, keys, values


def exact(q, keys, values):
    scores = q.double() @ keys.double().transpose(-1, -2)
    return torch.softmax(scores, -1) @ values.double(), torch.logsumexp(scores, -1)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.sampled_from([0.1, 1, 30]), st.data())
def test_any_cut_gives_the_whole(seed, num_tokens, spread, data):
    case = random_case(seed, num_tokens, spread)
    cuts = sorted(data.draw(st.lists(st.integers(0, num_tokens), max_size=6)))  # equal cuts make empty parts
    parts = data.draw(st.permutations(list(parts_of(*case, cuts))))
    out, lse = parts[0]
    for part in parts[1:]:
        out, lse = merge_partials(out, lse, *part)
    right_out, right_lse = exact(*case)
    torch.testing.assert_close(out.double(), right_out, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(lse.double(), right_lse, atol=1e-4, rtol=1e-5)


def test_by_hand():
    """Scores 0 and log 3 are weights 1 and 3: a quarter of 8 and three quarters of 4."""
    out, lse = merge_partials(torch.tensor([8.0]), torch.tensor(0.0), torch.tensor([4.0]), torch.tensor(math.log(3.0)))
    assert out.item() == pytest.approx(5.0)
    assert lse.item() == pytest.approx(math.log(4.0))


def test_an_empty_part_counts_for_nothing_whatever_it_holds():
    out, lse = torch.tensor([[1.0, -2.0]]), torch.tensor([-3.0])
    empty = torch.full((1, 2), torch.nan), torch.tensor([-math.inf])
    for merged_out, merged_lse in (merge_partials(out, lse, *empty), merge_partials(*empty, out, lse)):
        assert torch.equal(merged_out, out)
        assert torch.equal(merged_lse, lse)


def test_two_empty_parts_are_empty():
    empty = torch.full((3, 2), torch.nan), torch.full((3,), -math.inf)
    out, lse = merge_partials(*empty, *empty)
    assert torch.equal(out, torch.zeros(3, 2))
    assert torch.equal(lse, torch.full((3,), -math.inf))


@pytest.mark.parametrize("score", [-1e30, -5e4, -200.0, 0.0, 200.0, 1e30])
def test_scores_of_any_size(score):
    """Far below or above what exp can take, and far from any stand-in for infinity."""
    q, keys = torch.tensor([[1.0]]), torch.tensor([[score], [score]])
    values = torch.tensor([[2.0], [4.0]])
    parts = list(parts_of(q, keys, values, [1]))
    out, lse = merge_partials(*parts[0], *parts[1])
    assert out.item() == pytest.approx(3.0)
    assert lse.item() == pytest.approx(score + math.log(2), rel=1e-6)


def test_what_no_row_sees_may_hold_anything():
    q, keys, values = random_case(0, 5)
    visible = torch.ones(2, 3, 5, dtype=torch.bool).tril(2)
    visible[..., 3:] = False
    right = partial_attention(q, keys[:, :3], values[:, :3], visible[..., :3], 0.5)
    for poison in (torch.nan, math.inf, -math.inf):
        keys[:, 3:], values[:, 3:] = poison, poison
        for mine, expected in zip(partial_attention(q, keys, values, visible, 0.5), right, strict=True):
            torch.testing.assert_close(mine, expected)


def test_a_row_that_sees_nothing():
    q, keys, values = random_case(0, 4)
    visible = torch.ones(2, 3, 4, dtype=torch.bool)
    visible[:, 1] = False
    out, lse = partial_attention(q, keys, values, visible, 1.0)
    assert torch.equal(out[:, 1], torch.zeros(2, 4)) and (lse[:, 1] == -math.inf).all()
    assert torch.isfinite(out).all() and torch.isfinite(lse[:, [0, 2]]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_in_are_summed_in_float32(dtype):
    case = tuple(tensor.to(dtype) for tensor in random_case(3, 300))
    ((out, lse),) = parts_of(*case, [])
    assert out.dtype == lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), exact(*case)[0], atol=2e-6, rtol=1e-5)
