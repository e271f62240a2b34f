"""What `strict` and `trace` have in common: a hand inside Triton's interpreter.

The interpreter runs a kernel as Python, one program after the other, and does every operation with numpy through one
object, `interpreter_builder`. Whoever puts another function in the place of one of its methods sees every load, store
and product of every kernel. `Patches` does that, and takes it back.

A pointer is a bare address to the interpreter. `name_arguments` gives it a memory: a pointer that was computed from
argument `key_cache` says so (`Argument`), whatever it points to.
"""

import contextlib
import inspect
import sys
import threading
import types
from dataclasses import dataclass

import numpy as np

from pagedlab.errors import PagedLabError
from pagedlab.gpu import mode

mode.choose()
import triton.language as tl  # noqa: E402  (after the choice of a mode)
from triton.runtime import interpreter  # noqa: E402

builder = interpreter.interpreter_builder

ONE_AT_A_TIME = threading.RLock()
"""Held while a kernel is interpreted: which program runs is one variable for all threads, and with another's number a
kernel reads and writes anywhere."""


def _mend_comparisons() -> None:
    """The interpreter spreads a comparison of scalars over a tile as numbers of their type, which `&` then refuses.

    For a GPU it compiles. So a tile of yes or no it is, from the import of this module on.
    """
    splat = builder.create_splat

    def create_splat(shape, scalar):
        made = splat(shape, scalar)
        if np.asarray(scalar.data).dtype == bool:
            made.data = made.data.astype(bool)
        return made

    builder.create_splat = create_splat


def _mend_errors() -> None:
    """The interpreter wraps an error once for every call on its way, quoting what was quoted before.

    The quotes double each time. A helper that calls itself would fill all memory with backslashes; so wrap once.
    """

    def call(helper, *args, **kwargs):  # as Triton's own, but for the first `except`
        interpreter._patch_lang(helper.fn)
        function = helper.rewrite()
        try:
            return function(*args, **kwargs)
        except interpreter.InterpreterError:
            raise
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.InterpretedFunction.__call__ = call


_mend_comparisons()
_mend_errors()


class Patches(contextlib.ExitStack):
    """Attributes that are replaced until the end of a `with`, the last one put back first, after an error too."""

    def set(self, owner, name: str, value) -> None:
        own = vars(owner)
        self.callback(setattr, owner, name, own[name]) if name in own else self.callback(delattr, owner, name)
        setattr(owner, name, value)


class Argument(tl.pointer_type):
    """The type of a pointer into one tensor argument. It outlives all arithmetic on the pointer.

    name: the parameter's. start: the address of its element 0. shape, strides (in elements) and itemsize (in bytes) as
    torch has them. An element's *offset* is its distance from element 0, counted in elements.
    """

    def __init__(self, name: str, plain: tl.pointer_type, tensor):
        super().__init__(plain.element_ty, plain.address_space, plain.const)
        self.argument = name
        self.start, self.itemsize = tensor.data_ptr(), tensor.element_size()
        self.shape, self.strides = tuple(tensor.shape), tuple(tensor.stride())
        empty = 0 in self.shape
        self.last = -1 if empty else sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        self.dense = tensor.numel() == self.last + 1

    def offsets(self, addresses: np.ndarray) -> np.ndarray:
        """int64 element offsets of addresses; negative in front of the tensor."""
        return (addresses.astype(np.int64) - self.start) // self.itemsize

    def owns(self, offsets: np.ndarray) -> np.ndarray:
        """Whether an offset is one of the tensor's elements. In a view, the elements between its own are not."""
        inside = (offsets >= 0) & (offsets <= self.last)
        if not self.dense:
            rest = np.where(inside, offsets, 0)
            for step, n in sorted(zip(self.strides, self.shape, strict=True), reverse=True):
                if step and n > 1:
                    rest = rest - np.minimum(rest // step, n - 1) * step
            inside &= rest == 0
        return inside


def argument_of(pointers) -> Argument | None:
    """The argument that pointers (a handle of the interpreter's) were computed from."""
    return pointers.dtype if isinstance(pointers.dtype, Argument) else None


def addresses(pointers, mask) -> np.ndarray:
    """Where the lanes that are on point to. A mask may be a tile of numbers, or one for all lanes."""
    return pointers.data[np.broadcast_to(np.asarray(mask, dtype=bool), pointers.data.shape)]


def name_arguments(patches: Patches, on_launch=lambda arguments: None) -> None:
    """From now on pointers carry their `Argument`. `on_launch({name: Argument})` is called when a kernel begins."""
    names: dict[int, tuple[str, object]] = {}  # by id; the tensor is kept, so that its id stays its own
    arguments: dict[str, Argument] = {}
    init, convert = interpreter.GridExecutor._init_args_hst, interpreter._implicit_cvt

    def init_arguments(executor, args, kwargs):
        args, kwargs = init(executor, args, kwargs)
        names.clear()
        arguments.clear()
        for name, value in inspect.getcallargs(executor.fn, *args, **kwargs).items():
            for tensor in _tensors(value):
                names[id(tensor)] = name, tensor
        return args, kwargs

    def implicit_convert(value):
        converted = convert(value)
        if id(value) in names and isinstance(getattr(converted, "handle", None), interpreter.TensorHandle):
            name, tensor = names[id(value)]
            converted.handle.dtype = arguments[name] = Argument(name, converted.handle.dtype, tensor)
        return converted

    set_grid = builder.set_grid_dim

    def set_grid_dim(*grid):
        on_launch(dict(arguments))
        set_grid(*grid)

    patches.set(interpreter.GridExecutor, "_init_args_hst", init_arguments)
    patches.set(interpreter, "_implicit_cvt", implicit_convert)
    patches.set(builder, "set_grid_dim", set_grid_dim)


def _tensors(value):
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)
    elif hasattr(value, "data_ptr"):
        yield value
    elif hasattr(value, "base"):  # a tensor descriptor
        yield from _tensors(value.base)


@dataclass(frozen=True)
class Line:
    """A line of a kernel's source: its number in the file or cell, its text, and the kernel's or helper's name."""

    number: int
    text: str
    function: str

    def __str__(self) -> str:
        return f"line {self.number} of {self.function}: {self.text}"


def is_kernel_code(code: types.CodeType) -> bool:
    """Whether code is a kernel, or a helper of one: not Triton's own library, which is interpreted in the same way."""
    return code in _codes()


def _codes() -> set[types.CodeType]:
    rewritten = interpreter.InterpretedFunction.rewritten_fn
    if _KNOWN[0] != len(rewritten):
        own = [fn for raw, fn in list(rewritten.items()) if not str(raw.__module__).startswith("triton.")]
        _KNOWN[:] = len(rewritten), {fn.__code__ for fn in own}
    return _KNOWN[1]


_KNOWN: list = [0, set()]  # how many functions there were, and their code


def line_of(frame: types.FrameType, number: int | None = None) -> Line:
    import linecache

    number = number or frame.f_lineno
    text = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).strip()
    return Line(number, text, frame.f_code.co_name)


def current_line() -> Line | None:
    """The line that the running kernel, or its helper, is at."""
    frame = sys._getframe(1)
    while frame is not None and not is_kernel_code(frame.f_code):
        frame = frame.f_back
    return None if frame is None else line_of(frame)


def line_of_error(error: BaseException) -> Line | None:
    """The innermost line of a kernel on the way to an error."""
    found, seen = None, set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        step = error.__traceback__
        while step is not None:
            if is_kernel_code(step.tb_frame.f_code):
                found = line_of(step.tb_frame, step.tb_lineno)
            step = step.tb_next
        error = error.__cause__
    return found


def original(error: BaseException) -> BaseException:
    """What was raised in the kernel. The interpreter hands it on as InterpreterError(repr), once for each call."""
    while isinstance(error, interpreter.InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def only_interpreting(what: str) -> None:
    if not mode.is_interpreting():
        raise PagedLabError(
            f"{what} watches Triton's interpreter, but Triton compiles in this process. In a new one, run first: "
            f"`from pagedlab.gpu import mode; mode.interpret()`."
        )
