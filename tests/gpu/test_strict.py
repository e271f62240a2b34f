import threading

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.gpu import interpreter as hands
from pagedlab.gpu import mode
from pagedlab.gpu.strict import DividedByZero, KernelError, OutOfBounds, TileAsCondition, is_on, strict

pytestmark = pytest.mark.skipif(not mode.is_interpreting(), reason="watches the interpreter")


@triton.jit
def copy_kernel(source, target, n, TILE: tl.constexpr):
    offsets = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = offsets < n
    tl.store(target + offsets, tl.load(source + offsets, mask=mask, other=0), mask=mask)


@triton.jit
def load_all(source, offsets):
    return tl.load(source + offsets)


@triton.jit
def copy_without_mask(source, target, n, TILE: tl.constexpr):
    offsets = tl.program_id(0) * TILE + tl.arange(0, TILE)
    numbers = load_all(source, offsets)
    tl.store(target + offsets, numbers, mask=offsets < n)


@triton.jit
def store_without_mask(source, target, n, TILE: tl.constexpr):
    offsets = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(target + offsets, tl.load(source + offsets, mask=offsets < n))


@triton.jit
def order_kernel(target, count):
    row = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    turn = tl.load(count)
    tl.store(target + row, turn)
    tl.store(count, turn + 1)


def numbers(n=10):
    return torch.arange(n, dtype=torch.float32), torch.full((n,), -1.0)


def test_a_right_kernel_gives_the_same():
    source, target = numbers()
    with strict():
        copy_kernel[(3,)](source, target, 10, TILE=4)
    assert torch.equal(source, target)


def test_reading_behind_the_end_names_argument_element_program_and_line():
    source, target = numbers()
    with strict(), pytest.raises(KernelError) as caught:
        copy_without_mask[(3,)](source, target, 10, TILE=4)
    error = caught.value
    assert isinstance(error.original, OutOfBounds) and error.__cause__ is error.original
    assert (error.original.argument, error.original.element) == ("source", 10)
    assert error.program == (2, 0, 0)
    assert error.line.function == "load_all" and error.line.text == "return tl.load(source + offsets)"
    assert "element 10 of source, whose last one is 9 (shape [10])" in str(error)
    assert "2 of 4 lanes" in str(error) and f"line {error.line.number} of load_all" in str(error)


def test_writing_behind_the_end():
    source, target = numbers()
    with strict(), pytest.raises(KernelError, match="writes element 10 of target"):
        store_without_mask[(3,)](source, target, 10, TILE=4)


@triton.jit
def offset_kernel(source, target, offset):
    tl.store(target, tl.load(source + offset))


def test_in_front_of_a_tensor():
    source, target = numbers()
    with strict(), pytest.raises(KernelError, match="reads 1 element in front of source, a tensor of shape"):
        offset_kernel[(1,)](source, target, -1)


def test_between_the_elements_of_a_view():
    every = torch.arange(24.0).view(4, 6)
    view, target = every[:, 1:3], torch.zeros(1)
    with strict():
        offset_kernel[(1,)](view, target, 6)
        assert target.item() == 7
        with pytest.raises(KernelError, match="element 2 of source, which lies between its own: .* strides \\[6, 1\\]"):
            offset_kernel[(1,)](view, target, 2)
        with pytest.raises(KernelError, match="whose last one is 19"):
            offset_kernel[(1,)](view, target, 20)


def test_a_neighbour_in_the_same_storage_is_outside():
    both = torch.arange(20.0)
    with strict(), pytest.raises(KernelError, match="element 10 of source"):
        offset_kernel[(1,)](both[:10], both[10:], 10)


def test_two_arguments_may_be_the_same_tensor():
    source, _ = numbers()
    with strict():
        copy_kernel[(3,)](source, source, 10, TILE=4)
        with pytest.raises(KernelError, match="writes element 10 of target"):
            store_without_mask[(3,)](source, source, 10, TILE=4)


def test_an_empty_tensor_has_no_element():
    with strict(), pytest.raises(KernelError, match="element 0 of source, whose last one is -1"):
        offset_kernel[(1,)](torch.zeros(0), torch.zeros(1), 0)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_which_offsets_a_view_owns(data):
    view = torch.arange(data.draw(st.integers(1, 4)) * 60).view(-1, 3, 4, 5)
    for dim in range(4):
        size = view.shape[dim]
        start = data.draw(st.integers(0, size - 1))
        view = view.narrow(dim, start, data.draw(st.integers(1, size - start)))
        if data.draw(st.booleans()):
            view = view[(slice(None),) * dim + (slice(None, None, 2),)]
    view = view.permute(data.draw(st.permutations(range(4))))
    argument = hands.Argument("x", tl.pointer_type(tl.int64), view)
    offsets = np.arange(-3, 250)
    addresses = (view.data_ptr() + 8 * offsets).astype(np.uint64)
    assert np.array_equal(argument.offsets(addresses), offsets)
    own = set((view - view.flatten()[0]).flatten().tolist())
    assert argument.owns(offsets).tolist() == [offset in own for offset in offsets.tolist()]


@triton.jit
def undefined_kernel(source, target, n, TILE: tl.constexpr):
    offsets = tl.arange(0, TILE)
    tl.store(target + offsets, tl.load(source + offsets, mask=offsets < n))


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8])
def test_lanes_that_are_not_loaded_hold_anything(kind):
    source, target = torch.ones(8, dtype=kind), torch.zeros(8, dtype=kind)
    undefined_kernel[(1,)](source, target, 5, TILE=8)
    assert target.tolist() == [1] * 5 + [0] * 3  # what hides the mistake
    with strict():
        undefined_kernel[(1,)](source, target, 5, TILE=8)
    assert target[:5].tolist() == [1] * 5
    if kind.is_floating_point:
        assert target[5:].isnan().all()
    else:
        assert target[5:].tolist() == [torch.iinfo(kind).max] * 3


@triton.jit
def scalar_other_kernel(source, target, n):
    tl.store(target, tl.load(source, mask=n > 0, other=0.0))


def test_an_other_of_zero_counts_for_a_single_number_too():
    target = torch.ones(1)
    with strict():
        scalar_other_kernel[(1,)](torch.ones(1), target, 0)
    assert target.item() == 0


@triton.jit
def masked_twice_kernel(source, target, n, TILE: tl.constexpr):
    offsets = tl.arange(0, TILE)
    mask = (offsets < n) & (n > 3)  # the interpreter makes numbers of it, not bools
    tl.store(target + offsets, tl.load(source + offsets, mask=mask, other=0.0), mask=mask)


def test_a_mask_of_numbers_is_a_mask():
    source, target = numbers(5)
    with strict():
        masked_twice_kernel[(1,)](source, target, 3, TILE=8)
        assert target.tolist() == [-1] * 5
        masked_twice_kernel[(1,)](source, target, 5, TILE=8)
        assert target.tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(KernelError, match="1 of 8 lanes|element 5 of source"):
            masked_twice_kernel[(1,)](source, target, 6, TILE=8)


@triton.jit
def divide_kernel(target, a, b):
    tl.store(target, a // b)
    tl.store(target + 1, a % b)


def test_an_integer_divided_by_zero():
    target = torch.zeros(2, dtype=torch.int32)
    with strict():
        divide_kernel[(1,)](target, -7, 2)
        assert target.tolist() == [-3, -1]  # towards zero, as on a GPU
        with pytest.raises(KernelError, match="an integer // 0") as caught:
            divide_kernel[(1,)](target, 1, 0)
    assert isinstance(caught.value.original, DividedByZero)


@triton.jit
def condition_kernel(target, n, TILE: tl.constexpr):
    offsets = tl.arange(0, TILE)
    mask = (offsets < n) and (offsets != 2)
    if n > 3:
        tl.store(target + offsets, 1.0, mask=mask)


def test_a_tile_is_no_condition():
    target = torch.zeros(8)
    condition_kernel[(1,)](target, 5, TILE=8)
    assert target.tolist() == [1, 1, 0, 1, 1, 1, 1, 1]  # the first half of the mask was lost
    with strict(), pytest.raises(KernelError, match="a tile of 8 numbers was used as one condition") as caught:
        condition_kernel[(1,)](target, 5, TILE=8)
    assert isinstance(caught.value.original, TileAsCondition)
    condition_kernel[(1,)](target, 5, TILE=8)  # as before


@triton.jit
def nan_kernel(source, target):
    largest = tl.load(source)
    rest = largest - largest
    tl.store(target, tl.where(largest == float("-inf"), 0.0, rest))


def test_a_nan_is_no_error_but_its_birth_is_known():
    source, target = torch.tensor([-torch.inf]), torch.ones(1)
    with strict() as strictness:
        nan_kernel[(1,)](source, target)
    assert target.item() == 0
    assert strictness.first_nan.text == "rest = largest - largest"
    with strict() as strictness:
        nan_kernel[(1,)](torch.ones(1), target)
    assert strictness.first_nan is None


def turns(**options):
    target, count = torch.zeros(6, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with strict(**options):
        order_kernel[(2, 3)](target, count)
    return target.tolist()


def test_orders():
    assert turns() == [0, 1, 2, 3, 4, 5]
    assert turns(order="reversed") == [5, 4, 3, 2, 1, 0]
    shuffled = turns(order="shuffled", seed=1)
    assert sorted(shuffled) == [0, 1, 2, 3, 4, 5] and shuffled != turns(order="shuffled", seed=2)
    assert shuffled == turns(order="shuffled", seed=1)
    with pytest.raises(ValueError, match="'in order', 'reversed', 'shuffled'"), strict(order="any"):
        pass
    assert not is_on()


def test_strict_in_strict():
    with strict(order="reversed"):
        assert turns() == [0, 1, 2, 3, 4, 5]
        target, count = torch.zeros(6, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        order_kernel[(2, 3)](target, count)
        assert target.tolist() == [5, 4, 3, 2, 1, 0]
        assert is_on()
    assert not is_on()


def whole_interpreter():
    executor = hands.interpreter.GridExecutor
    return {
        "builder": dict(vars(hands.builder), grid_idx=None, grid_dim=None),
        "executor": dict(vars(executor)),
        "module": {name: vars(hands.interpreter)[name] for name in ("_implicit_cvt", "_patch_lang_tensor")},
        "tensor": {name: vars(tl.tensor).get(name) for name in ("__bool__", "__index__", "T")},
        "errors": np.geterr(),
    }


def test_everything_is_put_back_after_an_error_too():
    source, target = numbers()
    copy_kernel[(3,)](source, target, 10, TILE=4)
    before = whole_interpreter()
    with strict():
        copy_kernel[(3,)](source, target, 10, TILE=4)
        assert whole_interpreter() != before
    assert whole_interpreter() == before
    for kernel in (copy_without_mask, store_without_mask):
        with pytest.raises(KernelError), strict(), strict("shuffled"):
            kernel[(3,)](source, target, 10, TILE=4)
        assert whole_interpreter() == before
    with pytest.raises(ZeroDivisionError), strict():
        raise ZeroDivisionError
    assert whole_interpreter() == before


def test_errors_of_the_kernels_own_and_of_the_launch():
    @triton.jit
    def raising_kernel(target):
        tl.store(target, tl.arange(0, 3))

    with strict():
        with pytest.raises(KernelError, match="ValueError: arange's range must be a power of 2") as caught:
            raising_kernel[(1,)](torch.zeros(3))
        assert caught.value.line.text == "tl.store(target, tl.arange(0, 3))"
        with pytest.raises(TypeError, match="missing"):
            raising_kernel[(1,)]()


@triton.jit
def calls_itself(number):
    return calls_itself(number + 1)


@triton.jit
def calls_for_ever(target):
    tl.store(target, calls_itself(0))


def test_a_helper_that_calls_itself_ends_soon_and_harms_nothing():
    source, target = numbers()
    with pytest.raises(KernelError, match="calls_itself.*\n.*recursion") as caught, strict():
        calls_for_ever[(1,)](target)
    assert isinstance(caught.value.original, RecursionError)
    with pytest.raises(hands.interpreter.InterpreterError) as caught:
        calls_for_ever[(1,)](target)
    assert len(str(caught.value)) < 500
    copy_kernel[(3,)](source, target, 10, TILE=4)
    assert torch.equal(source, target)


def test_a_second_thread_waits():
    seen = []

    def other():
        with strict("reversed"):
            seen.append(turns())

    thread = threading.Thread(target=other)
    with strict():
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not seen
    thread.join(20)
    assert seen == [[0, 1, 2, 3, 4, 5]] and not is_on()


@triton.jit
def compare_kernel(number, out, TILE: tl.constexpr):
    lanes = tl.arange(0, TILE)
    tl.store(out + lanes, tl.where((lanes < 3) & (tl.load(number) > 0.5), 1, 0))


@pytest.mark.parametrize("number, ones", [(1.0, 3), (0.25, 0)])
def test_a_comparison_of_scalars_joins_a_mask(number, ones):
    out = torch.full((4,), 7)
    compare_kernel[(1,)](torch.tensor([number]), out, TILE=4)  # without strict() too
    assert out.tolist() == [1] * ones + [0] * (4 - ones)
