"""Kernels get what their parameters name."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

from pagedlab.gpu import mode  # noqa: E402
from pagedlab.kernels.launch import LaunchError, check_last_dimension, launch, select  # noqa: E402

pytestmark = pytest.mark.skipif(not mode.is_interpreting(), reason="the tensors are on the CPU")


@triton.jit
def add_kernel(out, x, num_tokens, TILE: tl.constexpr):
    offsets = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = offsets < num_tokens
    tl.store(out + offsets, tl.load(x + offsets, mask=mask, other=0.0) + 1.0, mask=mask)


@triton.jit
def fewer_in_another_order_kernel(TILE: tl.constexpr, x, out, num_tokens: tl.constexpr, step=2.0):
    offsets = tl.arange(0, TILE)
    mask = offsets < num_tokens
    tl.store(out + offsets, tl.load(x + offsets, mask=mask, other=0.0) + step, mask=mask)


def some_arguments(num_tokens=6):
    return {"out": torch.zeros(8), "x": torch.arange(8.0), "num_tokens": num_tokens, "TILE": 4, "unused": None}


def test_by_name():
    arguments = some_arguments()
    launch(add_kernel, (2,), arguments, num_warps=4, num_stages=3)
    assert arguments["out"].tolist() == [1, 2, 3, 4, 5, 6, 0, 0]


def test_fewer_names_another_order_other_constants_and_defaults():
    arguments = {**some_arguments(3), "TILE": 8}
    launch(fewer_in_another_order_kernel, (1, 1), arguments)
    assert arguments["out"].tolist() == [2, 3, 4, 0, 0, 0, 0, 0]
    launch(fewer_in_another_order_kernel, (1,), {**arguments, "step": 5.0})
    assert arguments["out"].tolist() == [5, 6, 7, 0, 0, 0, 0, 0]
    assert list(select(fewer_in_another_order_kernel, arguments)) == ["TILE", "x", "out", "num_tokens"]


def test_an_unknown_name_is_told_with_those_there_are():
    arguments = some_arguments()
    del arguments["x"]
    with pytest.raises(LaunchError, match="add_kernel asks for x. It can have: TILE, num_tokens, out, unused"):
        launch(add_kernel, (2,), arguments)
    assert not arguments["out"].any()


@pytest.mark.parametrize(
    "decorator",
    [
        triton.heuristics({"TILE": lambda arguments: 4}),
        triton.autotune([triton.Config({"TILE": 4})], key=["num_tokens"]),
    ],
)
def test_a_decorator_that_chooses_numbers_is_told(decorator):
    with pytest.raises(LaunchError, match="has a decorator above @triton.jit .*: leave that decorator out"):
        launch(decorator(add_kernel), (2,), some_arguments())


def test_what_is_no_kernel():
    def plain(out):
        pass

    with pytest.raises(LaunchError, match="plain.* is not a kernel: decorate the function with @triton.jit"):
        launch(plain, (1,), some_arguments())


def test_several_threads():
    """The interpreter's programs take their numbers from one place: in step with another thread, they mix them up."""
    batches = [{**some_arguments(4 * n), "out": torch.zeros(4 * n), "x": torch.arange(4.0 * n)} for n in (10, 40, 20)]
    grids = [(len(one["x"]) // 4,) for one in batches]
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(launch, add_kernel, *job) for job in zip(grids, batches, strict=True)]:
            done.result()
    for one in batches:
        assert torch.equal(one["out"], one["x"] + 1)


@pytest.mark.parametrize("grid", [(0,), (2, 0), (0, 3, 1)])
def test_a_grid_of_nothing(grid):
    arguments = some_arguments()
    launch(add_kernel, grid, arguments)
    assert not arguments["out"].any()


def test_the_last_dimension():
    check_last_dimension(a=torch.zeros(3, 4), b=torch.zeros(4, 2, 3).transpose(0, 1), one=torch.zeros(4, 3)[:, ::3])
    with pytest.raises(LaunchError, match=r"the last dimension of q has stride 3: .* `q.contiguous\(\)` has them so"):
        check_last_dimension(k=torch.zeros(4), q=torch.zeros(4, 3).T)
