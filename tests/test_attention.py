import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.attention import attend, attention

shapes = st.fixed_dictionaries(
    {
        "num_kv_heads": st.integers(1, 3),
        "group_size": st.sampled_from([1, 3, 4]),
        "num_stored": st.integers(0, 20),
        "num_new": st.integers(1, 9),
        "head_dim": st.sampled_from([1, 2, 8, 64]),
        "seed": st.integers(0, 2**31),
    }
)


def random_qkv(num_kv_heads, group_size, num_stored, num_new, head_dim, seed, dtype=torch.float32, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    num_tokens = num_stored + num_new

    def random(*shape):
        return (torch.randn(*shape, generator=generator) * spread).to(dtype)

    q = random(num_kv_heads * group_size, num_new, head_dim)
    return q, random(num_kv_heads, num_tokens, head_dim), random(num_kv_heads, num_tokens, head_dim)


def by_torch(q, keys, values, scale=None):
    num_new, num_tokens = q.shape[1], keys.shape[1]
    visible = torch.ones(num_new, num_tokens, dtype=torch.bool).tril(num_tokens - num_new)
    out = F.scaled_dot_product_attention(
        q[None], keys[None], values[None], attn_mask=visible, scale=scale, enable_gqa=True
    )
    return out[0]


@settings(max_examples=80, deadline=None)
@given(shapes)
def test_attention_is_torchs_own(shape):
    q, keys, values = random_qkv(**shape)
    torch.testing.assert_close(attention(q, keys, values), by_torch(q, keys, values), atol=2e-6, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(shapes, st.data())
def test_a_prompt_in_two_chunks_is_the_prompt_at_once(shape, data):
    q, keys, values = random_qkv(**shape)
    num_new, num_tokens = q.shape[1], keys.shape[1]
    cut = data.draw(st.integers(0, num_new - 1), label="cut")
    whole = attention(q, keys, values)
    end_of_first = num_tokens - num_new + cut
    if cut:
        first = attention(q[:, :cut], keys[:, :end_of_first], values[:, :end_of_first])
        torch.testing.assert_close(first, whole[:, :cut], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(attention(q[:, cut:], keys, values), whole[:, cut:], atol=2e-6, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(shapes)
def test_attend_is_attention_of_the_last_token(shape):
    q, keys, values = random_qkv(**shape)
    expected = attention(q, keys, values)[:, -1]
    torch.testing.assert_close(attend(q[:, -1], keys, values), expected, atol=2e-6, rtol=1e-5)


def test_no_query_sees_a_later_token():
    q, keys, values = random_qkv(2, 3, 4, 5, 8, seed=1)
    before = attention(q, keys, values)
    keys[:, 6:], values[:, 6:] = 1e3, -1e3  # positions 6, 7, 8: seen by queries 2, 3, 4 (positions 6, 7, 8) only
    after = attention(q, keys, values)
    torch.testing.assert_close(after[:, :2], before[:, :2])
    assert not torch.allclose(after[:, 2:], before[:, 2:])


def test_query_heads_of_a_group_read_their_own_kv_head():
    q, keys, values = random_qkv(2, 3, 4, 1, 8, seed=2)
    values[0], values[1] = 10.0, 20.0
    for out in (attend(q[:, 0], keys, values), attention(q, keys, values)[:, 0]):
        torch.testing.assert_close(out[:3], torch.full((3, 8), 10.0))
        torch.testing.assert_close(out[3:], torch.full((3, 8), 20.0))


def test_scale():
    q, keys, values = random_qkv(1, 4, 3, 2, 8, seed=3)
    torch.testing.assert_close(attention(q, keys, values, scale=0.5), by_torch(q, keys, values, scale=0.5))


def test_large_scores_stay_finite():
    q, keys, values = random_qkv(1, 2, 30, 3, 64, seed=4, spread=100.0)
    assert attention(q, keys, values).isfinite().all()
    assert attend(q[:, -1], keys, values).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_single(dtype):
    q, keys, values = random_qkv(3, 3, 40, 6, 64, seed=5, dtype=dtype)
    exact = attention(q.float(), keys.float(), values.float())
    out = attention(q, keys, values)
    assert out.dtype == dtype
    assert (out.float() - exact).abs().max() < 0.02
    assert (attend(q[:, -1], keys, values).float() - exact[:, -1]).abs().max() < 0.02


def test_attending_to_one_token_returns_its_value():
    q, keys, values = random_qkv(2, 1, 0, 1, 8, seed=6)
    torch.testing.assert_close(attend(q[:, 0], keys, values), values[:, 0])


def test_what_does_not_fit_together_is_refused():
    q, keys, values = random_qkv(2, 3, 4, 2, 8, seed=7)
    with pytest.raises(ValueError, match="5 query heads cannot share 2 kv heads"):
        attention(q[:5], keys, values)
    with pytest.raises(ValueError, match="5 query heads cannot share 2 kv heads"):
        attend(q[:5, 0], keys, values)
    with pytest.raises(ValueError, match="2 query tokens but only 1 positions"):
        attention(q, keys[:, :1], values[:, :1])
    with pytest.raises(ValueError, match="must be equal"):
        attention(q, keys, values[:, 1:])
    with pytest.raises(ValueError, match="must be equal"):
        attend(q[:, 0], keys, values[:, 1:])


def test_attend_written_out_by_hand():
    q = torch.tensor([[1.0, 0.0]])
    keys = torch.tensor([[[0.0, 5.0], [math.log(3) * math.sqrt(2), 5.0]]])  # scores 0 and log 3: weights 1/4 and 3/4
    values = torch.tensor([[[4.0, 0.0], [0.0, 8.0]]])
    torch.testing.assert_close(attend(q, keys, values), torch.tensor([[1.0, 6.0]]))
