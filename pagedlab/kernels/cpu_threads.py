"""Compiled loops on torch's own threads.

Numba turns Python loops into machine code, and has thread pools of its own to run them on. They are not used here:
torch already keeps a team of OpenMP threads, which stay awake for a moment after each operation, and a second team on
the same cores would wait for the first to fall asleep, dozens of times in every step. One of numba's pools also ends
the process when it is used after a fork, another when two Python threads use it at once. So compiled code asks the same
OpenMP library that torch asks, `GOMP_parallel(function, data, num_threads, 0)`, and `torch.set_num_threads` (or
`OMP_NUM_THREADS`) decides for both.

Work is cut into numbered items. A thread that has finished one takes the next number, so a thread that is held up does
less. Every item is computed from start to end by one thread: results never depend on how many there are.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numba
import numpy as np
import torch
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic

from pagedlab.paths import cache_dir


def arguments_of(name: str, numbers: str, fractions: str = "") -> type[ctypes.Structure]:
    """A C structure: the number of the next item, how many there are, and a kernel's own arguments.

    numbers, fractions: names of int64 and of float64 fields. Addresses are numbers too.
    """
    fields = [(field, ctypes.c_int64) for field in ("next_item", "num_items", *numbers.split())]
    fields += [(field, ctypes.c_double) for field in fractions.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


class Kernel:
    """A function `(arguments *)` that takes items until there are no more. Compiled when it is first run.

    The machine code is kept in `pagedlab.paths.cache_dir()`, so the next process only loads it.
    """

    def __init__(self, function, arguments: type[ctypes.Structure]):
        self.function, self.arguments = function, arguments

    @functools.cached_property
    def compiled(self):
        signature = types.void(types.CPointer(numba.from_dtype(np.dtype(self.arguments))))
        with _one_at_a_time, _said_if_slow(), _place_to_keep_it():
            try:
                return cfunc(signature, cache=True)(self.function)
            except (RuntimeError, OSError):  # nowhere to write
                return cfunc(signature)(self.function)

    def run(self, arguments: ctypes.Structure, num_threads: int) -> None:
        """Let so many threads take items, this one among them. Returns when all are done."""
        if (listening := recorder) and listening[0] == threading.get_ident():
            listening[1].add(self, arguments)
        num_threads = min(num_threads, arguments.num_items)
        if num_threads > 1 and (in_parallel := openmp()):
            in_parallel(self.compiled.address, ctypes.byref(arguments), num_threads, 0)
        elif num_threads > 0:
            self.compiled.ctypes(ctypes.byref(arguments))


recorder = None
"""A thread's number, and what is told of all kernels that this thread runs (`pagedlab.kernels.cpu_recording`)."""


def kernel(arguments: type[ctypes.Structure]):
    """Make a kernel of the function below, which must be one of a module (numba finds it by name)."""
    return lambda function: Kernel(function, arguments)


@functools.cache
def openmp():
    """`GOMP_parallel` of the library that torch itself is linked with, or None: then one thread does all items.

    None also in a forked process: it has only the thread that forked, and the library would wait for the others.
    """
    if _forked:
        return None
    try:
        function = _torch_library().GOMP_parallel  # also looks in what that library is linked with
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


@functools.cache
def _torch_library():
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(folder / name))
    return None


@functools.cache
def barrier() -> int:
    """The address of the function at which the threads of `openmp()` wait for each other; 0 if there is none."""
    try:
        return ctypes.cast(_torch_library().GOMP_barrier, ctypes.c_void_p).value if openmp() else 0
    except AttributeError:
        return 0


_forked = False


def _remember_the_fork():
    global _forked
    _forked = True
    openmp.cache_clear()
    barrier.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remember_the_fork)


@intrinsic
def take(typingctx, arguments):
    """The number of the next item. No two threads get the same."""

    def generate(context, builder, signature, args):
        counter = builder.bitcast(args[0], cgutils.intp_t.as_pointer())
        return builder.atomic_rmw("add", counter, cgutils.intp_t(1), "monotonic")

    return types.int64(arguments), generate


@intrinsic
def pointer(typingctx, address, dtype):
    """An address as a pointer to numbers of this type, for `numba.carray`."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(dtype.dtype)(address, dtype), generate


_one_at_a_time = threading.RLock()


@contextmanager
def _said_if_slow():
    """A line for whoever waits: this is done once, and never again on this machine."""
    timer = threading.Timer(2.0, _say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.cache  # so only the first time
def _say():
    if sys.stderr is not None and sys.stderr.isatty():  # a notebook would keep the line
        print("pagedlab: compiling for this processor, once (up to half a minute)", file=sys.stderr, flush=True)


@contextmanager
def _place_to_keep_it():
    """Numba looks whether a kernel's own file has changed, not those that it calls. So all of them name the folder."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(Path(before or cache_dir() / "numba") / _sources())
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


@functools.cache
def _sources() -> str:
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for file in sorted([*folder.glob("cpu*.py"), *folder.glob("gemm*.py")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
