"""Kernels that ran once, and run again without Python between them: on a GPU this is called a CUDA graph.

A decode step is some three hundred kernels. Before each, Python makes room for its result, fills in its arguments and
wakes the threads: about ten microseconds, together a quarter of a step with one sequence. But the next step with as
many sequences calls the same kernels in the same order, and if everything lies where it lay, with the same arguments.
So a step is recorded when it first runs. After that, new numbers are copied to where the old ones were, and all threads
walk through the list of kernels by themselves; at a barrier they wait until the last one has finished.

Recorded is what `cpu_threads.Kernel` runs. What torch computes is not, so a recording with such a thing in it is void.
"""

import contextlib
import threading
from collections.abc import Callable

import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic
from torch.utils._python_dispatch import TorchDispatchMode

from pagedlab.kernels import cpu_threads
from pagedlab.kernels.cpu_threads import arguments_of, kernel, pointer

Playing = arguments_of("Playing", "calls num_calls barrier")

LINE = 64
"""Bytes that a processor fetches together. What two threads write should not share them."""
CHUNK = 1 << 20


class Workspace:
    """Memory for what kernels hand to each other, in two halves: while one is filled anew, the other one can be read.

    Recordings that are played one at a time can share one.
    """

    def __init__(self):
        self._halves: tuple[list[torch.Tensor], ...] = [], []
        self._half = self._chunk = self._used = 0

    def turn(self) -> None:
        """Go on in the other half, from its beginning. What lies there is given up."""
        self._half, self._chunk, self._used = 1 - self._half, 0, 0

    def take(self, shape, dtype: torch.dtype) -> torch.Tensor:
        num_bytes = -(-dtype.itemsize * shape.numel() // LINE) * LINE
        chunks = self._halves[self._half]
        while self._chunk < len(chunks) and self._used + num_bytes > len(chunks[self._chunk]):
            self._chunk, self._used = self._chunk + 1, 0
        if self._chunk == len(chunks):
            chunks.append(torch.empty(max(CHUNK, num_bytes), dtype=torch.uint8))
        taken = chunks[self._chunk][self._used :][: dtype.itemsize * shape.numel()]
        self._used += num_bytes
        return taken.view(dtype).view(shape)


class Recording:
    """Parts of a list of kernels, in the order in which they ran."""

    def __init__(self, workspace: Workspace):
        self._workspace = workspace  # kept, as long as there are addresses into it
        self._calls: list[tuple[int, bytes]] = []
        self._ends: list[int] = []
        self.result: torch.Tensor | None = None

    def cut(self) -> None:
        """A part ends here. What is computed in a part may be used in it and in the next one, but not later."""
        self._ends.append(len(self._calls))
        self._workspace.turn()

    def add(self, run: "cpu_threads.Kernel", arguments) -> None:
        self._calls.append((run.compiled.address, bytes(arguments)))

    def close(self) -> None:
        self.cut()
        words = [-(-len(arguments) // LINE) * (LINE // 8) for _, arguments in self._calls]
        starts = np.concatenate([[0], np.cumsum(words, dtype=np.int64)]).astype(np.int64)
        self._arguments = np.zeros(starts[-1] + LINE // 8, dtype=np.int64)
        for (_, arguments), start in zip(self._calls, starts[:-1], strict=True):
            self._arguments[start : start + len(arguments) // 8] = np.frombuffer(arguments, dtype=np.int64)
        self._counters = starts[:-1]
        addresses = [address for address, _ in self._calls]
        self._list = np.stack([addresses, self._arguments.ctypes.data + 8 * starts[:-1]], axis=1).astype(np.int64)
        first = [0, *self._ends[:-1]]
        self._parts = [
            Playing(0, 0, self._list.ctypes.data + 16 * start, end - start)
            for start, end in zip(first, self._ends, strict=True)
        ]
        self._calls = []

    def play(self, between: Callable[[], None]) -> torch.Tensor:
        """Run it again; `between` is called between the parts and may raise. Returns where the result lies."""
        self._arguments[self._counters] = 0  # the first item is the next one again, everywhere
        threads, barrier = torch.get_num_threads(), cpu_threads.barrier()
        threads, barrier = (threads, barrier) if threads > 1 and barrier else (1, 0)
        for index, part in enumerate(self._parts):
            if index:
                between()
            part.num_items, part.barrier = threads, barrier
            play.run(part, threads)
        return self.result


def record(workspace: Workspace, function: Callable[[Recording], torch.Tensor]) -> Recording | None:
    """Run `function`, which may `cut` the recording it is given. None: not all of it was kernels, or another thread
    is recording; whatever was computed is not to be used then.

    All that torch allocates meanwhile lies in the workspace.
    """
    if not _one_at_a_time.acquire(blocking=False):
        return None
    try:
        recording, watching = Recording(workspace), _Watching(workspace)
        workspace.turn()
        cpu_threads.recorder = threading.get_ident(), recording
        with watching, contextlib.suppress(_NotRecordableError):
            recording.result = function(recording)
            recording.close()
            return recording
        return None
    finally:
        cpu_threads.recorder = None
        _one_at_a_time.release()


_one_at_a_time = threading.Lock()


class _NotRecordableError(Exception):
    """Torch was asked to compute something."""


class _Watching(TorchDispatchMode):
    """Sees what torch is asked to do. Results are moved to the workspace, views are harmless, and whole numbers may be
    looked at: lengths, of which the caller knows how they decide what is run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import its compiler here: a second, and 110 MB

    def __init__(self, workspace: Workspace):
        super().__init__()
        self._workspace = workspace

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in _ALLOCATING and result.is_contiguous():
            return self._workspace.take(result.shape, result.dtype)
        if function.is_view or function in _LOOKING and args[0].dtype == torch.int64:
            return result
        raise _NotRecordableError(str(function))


_ALLOCATING = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default, torch.ops.aten.new_empty.default}
_LOOKING = {torch.ops.aten.max.default, torch.ops.aten._local_scalar_dense.default}


@intrinsic
def call(typing_context, function, argument):
    """Call the function at an address."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@kernel(Playing)
def play(arguments):
    """Every thread runs all of this. Items of one kernel are shared out as ever, by their number."""
    part = carray(arguments, 1)[0]
    calls = carray(pointer(part.calls, np.int64), (2 * part.num_calls,))
    for index in range(part.num_calls):
        if index and part.barrier:
            call(part.barrier, 0)
        call(calls[2 * index], calls[2 * index + 1])
