"""The compiled small operations against their plain torch forms, and when the plain form must be taken."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.kernels import ops
from pagedlab.model import pointwise

DTYPES = {torch.float32: dict(atol=1e-6, rtol=2e-6), torch.bfloat16: dict(atol=1e-6, rtol=1.6e-2)}
# bfloat16 is rounded twice, 2 ** -8 each: a sum that differs in its last bit may take both the other way

numbers = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(list(DTYPES)),
        "num_tokens": st.sampled_from([1, 2, 7, 40, 600]),
        "width": st.sampled_from([1, 2, 5, 16, 33, 64, 576]),
        "spread": st.sampled_from([1e-3, 1.0, 30.0]),
        "seed": st.integers(0, 10**6),
    }
)


def draw(*shape, dtype, seed, spread=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


@pytest.fixture
def plain(monkeypatch):
    """`plain(function, ...)`: what the torch form returns for copies of the arguments."""

    def call(function, *args):
        args = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
        with monkeypatch.context() as patch:
            patch.setattr(ops, "AUTO", "torch")
            return function(*args)

    return call


@pytest.fixture(autouse=True)
def numba_works():
    assert ops.resolve("auto").__name__ == ops.BACKENDS["cpu"]  # else these tests compare torch with itself


fixtures_are_stateless = settings(max_examples=60, deadline=None, suppress_health_check=["function_scoped_fixture"])


@fixtures_are_stateless
@given(numbers)
def test_add_and_norm(plain, case):
    width, dtype = case["width"], case["dtype"]
    hidden = draw(case["num_tokens"], width, dtype=dtype, seed=case["seed"], spread=case["spread"])
    update = draw(case["num_tokens"], width, dtype=dtype, seed=case["seed"] + 1)
    weight = draw(width, dtype=dtype, seed=case["seed"] + 2)
    right_sum, right_norm = plain(pointwise.add_and_norm, hidden, update, weight, 1e-5)
    torch.testing.assert_close(pointwise.rms_norm(right_sum, weight, 1e-5), right_norm, **DTYPES[dtype])
    total, normed = pointwise.add_and_norm(hidden, update, weight, 1e-5)
    assert torch.equal(total, right_sum)
    torch.testing.assert_close(normed, right_norm, **DTYPES[dtype])


@fixtures_are_stateless
@given(numbers, st.integers(1, 5), st.integers(0, 3))
def test_rotate_leaves_the_other_heads_alone(plain, case, num_heads, num_others):
    half, dtype, num_tokens = case["width"], case["dtype"], case["num_tokens"]
    heads = draw(num_tokens, num_heads + num_others, 2 * half, dtype=dtype, seed=case["seed"], spread=case["spread"])
    angles = draw(num_tokens, half, dtype=torch.float32, seed=case["seed"] + 1, spread=100.0)
    before = heads.clone()
    right = plain(pointwise.rotate, heads[:, :num_heads], angles.cos(), angles.sin())
    rotated = pointwise.rotate(heads[:, :num_heads], angles.cos(), angles.sin())
    torch.testing.assert_close(rotated, right, atol=1e-6 * case["spread"], rtol=DTYPES[dtype]["rtol"])
    assert torch.equal(heads[:, num_heads:], before[:, num_heads:])


@fixtures_are_stateless
@given(numbers, st.booleans())
def test_largest_is_the_first_of_equal_ones(case, few_values):
    rows = draw(case["num_tokens"], case["width"], dtype=case["dtype"], seed=case["seed"], spread=case["spread"])
    rows = rows.round() if few_values else rows
    for chosen, row in zip(pointwise.largest(rows).tolist(), rows.tolist(), strict=True):
        assert chosen == row.index(max(row))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 511, 512, 513, 2000])
@pytest.mark.parametrize("nan", [torch.nan, -torch.nan])
def test_largest_says_where_a_nan_is(dtype, width, nan):
    rows = torch.full((4, width), -torch.inf, dtype=dtype)
    rows[1, -1] = torch.inf
    rows[2, width // 2] = nan
    rows[3] = torch.tensor([-0.0, 0.0, -1.0] * width)[:width]
    assert pointwise.largest(rows).tolist() == [0, width - 1, -1, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_at_the_edges(plain, dtype):
    edges = torch.tensor([0.0, -0.0, 88.0, -88.0, 200.0, -200.0, 1e30, -1e30, torch.inf, torch.nan, 1e-38]).to(dtype)
    rows = torch.stack([edges, torch.full_like(edges, 3e38), torch.zeros_like(edges)])
    weight = torch.ones_like(edges)
    right = plain(pointwise.rms_norm, rows, weight, 1e-5)
    torch.testing.assert_close(pointwise.rms_norm(rows, weight, 1e-5), right, equal_nan=True)


def test_a_row_does_not_depend_on_its_company():
    rows = draw(300, 576, dtype=torch.float32, seed=0)
    weight = draw(576, dtype=torch.float32, seed=1)
    assert torch.equal(pointwise.rms_norm(rows, weight, 1e-5)[7:8], pointwise.rms_norm(rows[7:8].clone(), weight, 1e-5))


@pytest.mark.parametrize("change", [torch.Tensor.half, torch.Tensor.double, lambda x: x.T.contiguous().T])
def test_what_the_compiled_form_cannot_read_takes_the_plain_one(plain, change):
    rows, weight = change(draw(3, 8, dtype=torch.float32, seed=0)), change(torch.ones(8)[None])[0]
    assert torch.equal(pointwise.rms_norm(rows, weight, 1e-5), plain(pointwise.rms_norm, rows, weight, 1e-5))
    assert torch.equal(pointwise.largest(rows), plain(pointwise.largest, rows))
    heads = change(draw(3, 8, dtype=torch.float32, seed=1)).view(3, 1, 8)
    cos, sin = torch.rand(3, 4), torch.rand(3, 4)
    right = plain(pointwise.rotate, heads, cos, sin)
    assert torch.equal(pointwise.rotate(heads, cos, sin), right)


def test_gradients_still_flow():
    x = torch.randn(2, 8, requires_grad=True)
    pointwise.rms_norm(x, torch.ones(8), 1e-5).sum().backward()
    assert x.grad is not None
