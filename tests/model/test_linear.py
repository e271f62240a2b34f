import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.model import linear
from pagedlab.model.linear import Linear, can_pack

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 16, 33]),
    in_features=st.integers(1, 200),
    out_features=st.integers(1, 200),
    seed=st.integers(0, 2**31),
)
def test_packed_is_plain(dtype, rows, in_features, out_features, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_features, in_features, generator=generator).to(dtype)
    x = torch.randn(rows, in_features, generator=generator).to(dtype)
    exact = F.linear(x.double(), weight.double())
    fast, plain = Linear(weight), Linear(weight, fast=False)
    assert fast.packed == can_pack(dtype) and not plain.packed
    error = 1e-4 if dtype == torch.float32 else 0.02 * in_features**0.5
    for layer in (fast, plain):
        y = layer(x)
        assert y.dtype == dtype and y.shape == (rows, out_features)
        assert (y.double() - exact).abs().max() < error
        assert (layer.in_features, layer.out_features) == (in_features, out_features)


def test_a_slice_and_a_transpose_are_packed_right():
    weight = torch.randn(64, 64)
    x = torch.randn(8, 200)[:, ::2][:, :64]  # not contiguous
    for view in (weight.t(), weight[::2]):
        torch.testing.assert_close(Linear(view)(x), F.linear(x, view), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("breakage", ["missing", "refuses", "wrong"])
def test_without_the_private_operators_the_plain_path_is_taken(monkeypatch, breakage):
    def missing(*args):
        raise AttributeError("no such operator")

    def refuses(*args):
        raise RuntimeError("unsupported")

    def wrong(x, packed):
        return torch.zeros(x.shape[0], 48)

    if breakage == "wrong":
        monkeypatch.setattr(linear, "_multiply_packed", wrong)
    else:
        monkeypatch.setattr(linear, "_pack", {"missing": missing, "refuses": refuses}[breakage])
    can_pack.cache_clear()
    try:
        weight, x = torch.randn(5, 7), torch.randn(2, 7)
        layer = Linear(weight)
        assert not layer.packed
        assert torch.equal(layer(x), F.linear(x, weight))
    finally:
        can_pack.cache_clear()


def test_only_one_form_of_the_weight_is_kept():
    weight = torch.randn(32, 32)
    layer = Linear(weight)
    held = [value for value in vars(layer).values() if isinstance(value, torch.Tensor)]
    assert len(held) == 1
    assert (held[0] is weight) == (not layer.packed)
