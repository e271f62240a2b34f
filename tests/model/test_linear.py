import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.kernels import gemm
from pagedlab.model import linear
from pagedlab.model.linear import GatedLinear, Linear, can_pack

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


KINDS = ["tiles", "onednn", "plain", True, False]


def works(kind, weight):
    """The kind that `fast=kind` stands for on this machine."""
    able = {"tiles": gemm.packable(weight), "onednn": can_pack(weight.dtype), "plain": True}
    wanted = {True: ["tiles", "onednn", "plain"], False: ["plain"]}.get(kind, [kind, "plain"])
    return next(name for name in wanted if able[name])


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 16, 33]),
    in_features=st.integers(1, 200),
    out_features=st.integers(1, 200),
    seed=st.integers(0, 2**31),
)
def test_all_kinds_are_plain(dtype, rows, in_features, out_features, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_features, in_features, generator=generator).to(dtype)
    x = torch.randn(rows, in_features, generator=generator).to(dtype)
    exact = F.linear(x.double(), weight.double())
    error = 1e-4 if dtype == torch.float32 else 0.02 * in_features**0.5
    for kind in KINDS:
        layer = Linear(weight, kind)
        assert layer.kind == works(kind, weight) and layer.packed == (layer.kind != "plain")
        y = layer(x)
        assert y.dtype == dtype and y.shape == (rows, out_features)
        assert (y.double() - exact).abs().max() < error
        assert (layer.in_features, layer.out_features) == (in_features, out_features)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(48, 32), (5, 7), (96, 64)])
def test_gated_is_gate_and_up(dtype, kind, shape):
    gate, up = (torch.randn(shape).to(dtype) / shape[1] ** 0.5 for _ in range(2))
    layer = GatedLinear(gate, up, kind)
    assert (layer.out_features, layer.in_features) == shape
    assert layer.packed == Linear(gate, kind).packed
    x = torch.randn(13, shape[1]).to(dtype)
    exact = F.silu(F.linear(x.double(), gate.double())) * F.linear(x.double(), up.double())
    error = 1e-5 if dtype == torch.float32 else 0.04
    torch.testing.assert_close(layer(x).double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=error)


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="fast='blas'.*'tiles', 'onednn', 'plain'"):
        Linear(torch.zeros(4, 4), "blas")


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
    monkeypatch.setattr(gemm, "packable", lambda weight: False)
    can_pack.cache_clear()
    try:
        weight, x = torch.randn(5, 7), torch.randn(2, 7)
        layer = Linear(weight)
        assert not layer.packed
        assert torch.equal(layer(x), F.linear(x, weight))
    finally:
        can_pack.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_only_one_form_of_the_weight_is_kept(kind):
    weight = torch.randn(32, 32)
    layer = Linear(weight, kind)
    held = layer.weight.panels if layer.kind == "tiles" else layer.weight
    assert isinstance(held, torch.Tensor) and held.nbytes == weight.nbytes
    assert [name for name, value in vars(layer).items() if isinstance(value, torch.Tensor | gemm.Packed)] == ["weight"]
    assert (held is weight) == (not layer.packed)
