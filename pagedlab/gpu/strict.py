"""Triton's interpreter, made as strict as a GPU, and stricter: `with strict(): kernel[grid](...)`.

A kernel that runs in the interpreter can still be wrong on a GPU. Inside `strict()` these are errors, told with the
argument, the element, the program and the line of the kernel:

- a load or store outside of the tensor it was aimed at, or between the elements of a view. A GPU checks nothing: it
  reads somebody else's memory, or stops the whole process;
- an int32 that overflows: block * stride wraps around to another address;
- an integer divided by zero: the interpreter goes on with any number;
- `tl.dot` over fewer than 16 numbers (32 of 8 bits): it does not compile for NVIDIA's GPUs;
- `if`, `while`, `and`, `or`, `not` with a tile: it does not compile, or means something else.

A masked load without `other` gives NaN (or the largest integer) in the lanes that are off: on a GPU they hold anything,
and the interpreter's 0 hides that.

`order="reversed"` or `"shuffled"` runs the programs of the grid in another order. A GPU has no order. Whoever relies on
one gets other results.

Arithmetic on floats stays as it is on a GPU: NaN and inf are no errors, and numpy's warnings are off. Where the first
NaN was made can be asked for: `with strict() as strictness: ...; strictness.first_nan`.

Everything is as before at the end of the `with`, after an error too. One thread at a time: a second one waits. `strict`
in `strict` is fine; the inner order holds inside. Kernels must be interpreted (`mode.interpret()`).

The rule for `tl.dot` is `min_dot_size` of Triton's NVIDIA backend. Overflow checks are Triton's own, as with
`debug=True`.
"""

import contextlib
import dataclasses
import random
import sys
from collections.abc import Iterator

import numpy as np

from pagedlab.errors import PagedLabError
from pagedlab.gpu.interpreter import (
    ONE_AT_A_TIME,
    Line,
    Patches,
    addresses,
    argument_of,
    builder,
    current_line,
    interpreter,
    is_kernel_code,
    line_of_error,
    name_arguments,
    only_interpreting,
    original,
)

ORDERS = ("in order", "reversed", "shuffled")


class KernelError(PagedLabError):
    """A kernel failed under `strict`.

    original: what was raised in it (`OutOfBounds`, AssertionError, ...); also `__cause__` in the end.
    line: the `Line` of the kernel where it was. program: the program that was running, (x, y, z).
    """

    def __init__(self, original: BaseException, line: Line | None, program: tuple[int, int, int]):
        self.original, self.line, self.program = original, line, program
        at = f"{line}\n" if line else ""
        said = str(original) or type(original).__name__
        if not isinstance(original, (KernelMistake, AssertionError)):
            said = f"{type(original).__name__}: {said}"
        super().__init__(f"{at}in program {program}: {said}")


class KernelMistake(Exception):
    """Base of what only a strict interpreter raises."""


class OutOfBounds(KernelMistake, IndexError):
    """argument: the name, or None. element: the first wrong offset from the argument's element 0."""

    def __init__(self, message: str, argument: str | None, element: int | None):
        super().__init__(message)
        self.argument, self.element = argument, element


class DividedByZero(KernelMistake, ZeroDivisionError):
    pass


class TileAsCondition(KernelMistake, TypeError):
    pass


@dataclasses.dataclass
class Strictness:
    """What `with strict() as strictness` has seen. first_nan: where a NaN was first made of numbers that were none."""

    order: str
    seed: int
    first_nan: Line | None = None


_ACTIVE: list[Strictness] = []  # the innermost is the last


def is_on() -> bool:
    return bool(_ACTIVE)


@contextlib.contextmanager
def strict(order: str = "in order", seed: int = 0) -> Iterator[Strictness]:
    """Kernels launched inside are run strictly; what fails is a `KernelError`. See the module's text.

    order: "in order", "reversed" or "shuffled" (by `seed`).
    """
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; it can be one of {', '.join(map(repr, ORDERS))}")
    only_interpreting("strict()")
    with ONE_AT_A_TIME, Patches() as patches:
        if not _ACTIVE:
            _install(patches)
        _ACTIVE.append(Strictness(order, seed))
        patches.callback(_ACTIVE.pop)
        yield _ACTIVE[-1]


def _install(patches: Patches) -> None:
    patches.set(builder, "options", dataclasses.replace(builder.options, debug=True))
    patches.set(builder, "codegen_fns", {**builder.codegen_fns, "min_dot_size": _min_dot_size})
    name_arguments(patches)
    _check_accesses(patches)
    _check_divisions(patches)
    _check_conditions(patches)
    _order_programs(patches)
    _tell_errors(patches)


def _min_dot_size(left, right) -> tuple[int, int, int]:
    """The least M, N and K of a `tl.dot`."""
    return (1, 1, 32 if left.scalar.primitive_bitwidth == 8 else 16)


def _check_accesses(patches: Patches) -> None:
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def masked_load(pointers, mask, other, *rest, **options):
        check_bounds("load", pointers, mask.data)
        if other is None:
            other = _undefined(pointers)
        return load(pointers, mask, other, *rest, **options)

    def masked_store(pointers, value, mask, *rest, **options):
        check_bounds("store", pointers, mask.data)
        return store(pointers, value, mask, *rest, **options)

    def atomic_rmw(operation, pointers, value, mask, *rest, **options):
        check_bounds("store", pointers, mask.data)
        return rmw(operation, pointers, value, mask, *rest, **options)

    def atomic_cas(pointers, *rest, **options):
        check_bounds("store", pointers, np.ones(pointers.data.shape, dtype=bool))
        return cas(pointers, *rest, **options)

    patches.set(builder, "create_masked_load", masked_load)
    patches.set(builder, "create_masked_store", masked_store)
    patches.set(builder, "create_atomic_rmw", atomic_rmw)
    patches.set(builder, "create_atomic_cas", atomic_cas)


def check_bounds(kind: str, pointers, mask: np.ndarray) -> None:
    """Raises OutOfBounds if a lane that is on points outside of the tensor that its pointer was computed from."""
    argument = argument_of(pointers)
    targets = addresses(pointers, mask)
    if not targets.size:
        return
    does = "reads" if kind == "load" else "writes"
    if argument is None:
        raise OutOfBounds(f"{does} through a pointer that does not come from a tensor argument", None, None)
    offsets = argument.offsets(targets)
    owned = argument.owns(offsets)
    if owned.all():
        return
    name, wrong = argument.argument, offsets[~owned]
    element, shape = int(wrong[0]), list(argument.shape)
    lanes = f" ({wrong.size:,} of {pointers.data.size:,} lanes are outside)" if wrong.size > 1 else ""
    if element < 0:
        where = f"{-element:,} element{'s' * (element < -1)} in front of {name}, a tensor of shape {shape}"
    elif element > argument.last:
        where = f"element {element:,} of {name}, whose last one is {argument.last:,} (shape {shape})"
    else:
        where = (
            f"element {element:,} of {name}, which lies between its own: {name} is a view of shape {shape} with "
            f"strides {list(argument.strides)}"
        )
    raise OutOfBounds(f"{does} {where}{lanes}", name, element)


def _undefined(pointers):
    """What a lane that was not loaded holds: anything. So, something that is noticed."""
    dtype = pointers.get_element_ty()
    kind = interpreter._get_np_dtype(dtype)
    if dtype.is_floating() and kind.kind == "f":
        filler = np.nan
    elif dtype.is_floating():  # bfloat16 and float8 are kept as their bits
        filler = 0x7FC0 if kind.itemsize == 2 else 0x7F
    else:
        filler = True if kind.kind == "b" else np.iinfo(kind).max
    return interpreter.TensorHandle(np.full(pointers.data.shape, filler, dtype=kind), dtype)


def _check_divisions(patches: Patches) -> None:
    def checked(method, sign):
        def divide(left, right):
            if not right.data.all():
                raise DividedByZero(f"an integer {sign} 0")
            return method(left, right)

        return divide

    for name, sign in (("create_sdiv", "//"), ("create_udiv", "//"), ("create_srem", "%"), ("create_urem", "%")):
        patches.set(builder, name, checked(getattr(builder, name), sign))


def _check_conditions(patches: Patches) -> None:
    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor, scope):
        patch(tensor, scope)
        plain = tensor.__bool__

        def as_condition(self):
            asking = sys._getframe(1)
            if asking.f_globals.get("__name__") == "triton.language.semantic":
                return True  # it means "is there one": `other.handle if other else None`, where other may be 0
            if self.handle.data.size != 1 and is_kernel_code(asking.f_code):
                raise TileAsCondition(
                    f"a tile of {self.handle.data.size:,} numbers was used as one condition (by if, while, and, or, "
                    f"not). Use a mask, `tl.where`, `&`, `|` or `~`."
                )
            return plain(self)

        scope.set_attr(tensor, "__bool__", as_condition)

    patches.set(interpreter, "_patch_lang_tensor", patch_tensor)


def _order_programs(patches: Patches) -> None:
    """The interpreter goes through the grid in order; each program is given the place of another one."""
    set_grid, set_index = builder.set_grid_dim, builder.set_grid_idx
    places: list[int] = []

    def set_grid_dim(*grid):
        set_grid(*grid)
        places[:] = range(int(np.prod(grid)))
        if _ACTIVE[-1].order == "reversed":
            places.reverse()
        elif _ACTIVE[-1].order == "shuffled":
            random.Random(_ACTIVE[-1].seed).shuffle(places)

    def set_grid_idx(x, y, z):
        _, ny, nz = builder.grid_dim
        place = places[(x * ny + y) * nz + z]
        set_index(place // (ny * nz), place // nz % ny, place % nz)

    patches.set(builder, "set_grid_dim", set_grid_dim)
    patches.set(builder, "set_grid_idx", set_grid_idx)


def _tell_errors(patches: Patches) -> None:
    run = interpreter.GridExecutor.__call__

    def nan_made(error, flag):
        if _ACTIVE[-1].first_nan is None:
            _ACTIVE[-1].first_nan = current_line()

    def call(executor, *args, **kwargs):
        try:
            with np.errstate(all="ignore", invalid="call", call=nan_made):
                return run(executor, *args, **kwargs)
        except interpreter.InterpreterError as error:
            first = original(error)
            raise KernelError(first, line_of_error(error), builder.grid_idx) from first

    patches.set(interpreter.GridExecutor, "__call__", call)
