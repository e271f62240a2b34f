"""What a kernel touches: run it in Triton's interpreter and write down every load and store.

    traced = trace(add_kernel, (2,), {"x": x, "y": y, "out": out, "n": 6, "TILE": 4})

runs the kernel as a launch would, and gives, for 6 numbers in tiles of 4:

    traced.grid                    (2, 1, 1)
    traced.source                  ["@triton.jit", "def add_kernel(x, y, out, n, TILE: tl.constexpr):", ...]
    traced.programs[1].pid         (1, 0, 0)
    traced.programs[1].events      [Access("load", "x", elements=[4, 5], lanes=4, line=4, step=0),
                                    Access("load", "y", elements=[4, 5], lanes=4, line=4, step=0),
                                    Access("store", "out", elements=[4, 5], lanes=4, line=5, step=0)]

In a kernel with a loop, every access says which iteration it belongs to, and `variables` holds what the watched locals
were at the end of each:

    program.num_steps              3 iterations
    program.variables              [{"running_max": array([0.4, 1.2]), "running_sum": ...}, {...}, {...}]
    program.blocks("key_cache", key_cache.stride(0))
                                   [[], [7], [2], [9], []]: before the loop, three iterations, after it

The kernel is taken as it is. Loads and stores are seen in the interpreter; loops, and what locals hold, by Python's own
way of following a program line by line (`sys.settrace`). Both are as before when `trace` returns, after an error too.
Inside `strict()` the run is strict as well.

Everything in a trace is plain data: it pickles, and `as_dict()` gives what JSON can hold.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pagedlab.errors import PagedLabError
from pagedlab.gpu.interpreter import (
    ONE_AT_A_TIME,
    Argument,
    Patches,
    addresses,
    argument_of,
    builder,
    interpreter,
    name_arguments,
    only_interpreting,
)


@dataclass(frozen=True)
class Access:
    """One load or store of one program.

    kind: "load" or "store" (atomics are stores). tensor: the argument's name.
    elements: int64, the lanes that are on, in order; each the distance from the argument's element 0, in elements.
    lanes: how many there are, those that are off too. shape: of the tile. line: counted from 1 in `Trace.source`;
    if a helper did it, the line that called the helper. step: 0 before the loop, i in its i-th iteration,
    `num_steps + 1` after it.
    """

    kind: str
    tensor: str
    elements: np.ndarray
    lanes: int
    shape: tuple[int, ...]
    line: int
    step: int


@dataclass
class ProgramTrace:
    """What one program did. num_steps: iterations of its outermost loop (of all of them, if one follows the other)."""

    pid: tuple[int, int, int]
    events: list[Access] = field(default_factory=list)
    variables: list[dict[str, np.ndarray]] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        return len(self.variables)

    def at(self, step: int) -> list[Access]:
        return [event for event in self.events if event.step == step]

    def blocks(self, argument: str, block_stride: int) -> list[list[int]]:
        """For each step, 0 to num_steps + 1, the physical blocks of a cache that it touched, in rising order."""
        touched: list[set[int]] = [set() for _ in range(self.num_steps + 2)]
        for event in self.events:
            if event.tensor == argument:
                touched[event.step].update((event.elements // block_stride).tolist())
        return [sorted(blocks) for blocks in touched]


@dataclass
class TensorFacts:
    """An argument as it lay in memory: shape and strides (in elements), and bytes of an element."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


@dataclass
class Trace:
    """kernel: its name. source: its lines. first_line: the number of source[0] in its file or cell.

    programs: those that were asked for, in the order in which they ran. tensors: facts of each tensor argument.
    """

    kernel: str
    grid: tuple[int, int, int]
    source: list[str]
    first_line: int
    programs: list[ProgramTrace]
    tensors: dict[str, TensorFacts]

    def program(self, *pid: int) -> ProgramTrace:
        """`program(2)` and `program(2, 0, 0)` are the same."""
        pid = (*pid, 0, 0)[:3]
        for one in self.programs:
            if one.pid == pid:
                return one
        raise PagedLabError(f"program {pid} was not traced; the grid is {self.grid}")

    def without_text(self) -> "Trace":
        """The same, but it shows no line of the kernel: for one that somebody is to write."""
        return replace(self, source=[])

    def as_dict(self) -> dict:
        """Lists, numbers and strings only. NaN and inf of the watched locals stay floats."""
        return {
            "kernel": self.kernel,
            "grid": list(self.grid),
            "source": self.source,
            "first_line": self.first_line,
            "tensors": {name: vars(facts) for name, facts in self.tensors.items()},
            "programs": [
                {
                    "pid": list(one.pid),
                    "events": [{**vars(event), "elements": event.elements.tolist()} for event in one.events],
                    "variables": [{name: value.tolist() for name, value in step.items()} for step in one.variables],
                }
                for one in self.programs
            ],
        }


def trace(
    kernel,
    grid: Sequence[int],
    arguments: dict[str, object],
    programs: Iterable[int | Sequence[int]] | None = None,
    watch: Sequence[str] = ("running_max", "running_sum"),
) -> Trace:
    """Launch an interpreted kernel and note what it touches.

    arguments: by parameter name; the kernel gets those it asks for. programs: the program ids to trace, numbers or
    tuples; None for all. All programs run in any case. watch: locals to keep at the end of each loop iteration.
    Raises PagedLabError for a kernel that isn't interpreted or an argument that is missing, and whatever the launch
    raises.
    """
    only_interpreting("trace()")
    if not isinstance(kernel, interpreter.InterpretedFunction):
        raise PagedLabError(f"trace takes a kernel (a function under @triton.jit), not {type(kernel).__name__}")
    needed = {name: parameter.default for name, parameter in inspect.signature(kernel.fn).parameters.items()}
    missing = [name for name, default in needed.items() if name not in arguments and default is inspect.Parameter.empty]
    if missing:
        raise PagedLabError(f"{kernel.__name__} asks for {', '.join(missing)}; there are {', '.join(arguments)}")
    grid = tuple(int(n) for n in grid)
    recorder = _Recorder(kernel, programs, watch)
    with ONE_AT_A_TIME, Patches() as patches:
        recorder.install(patches)
        kernel[grid](**{name: arguments[name] for name in needed if name in arguments})
    return Trace(
        kernel=kernel.__name__,
        grid=(*grid, 1, 1, 1)[:3],
        source=recorder.source,
        first_line=recorder.first_line,
        programs=recorder.programs,
        tensors=recorder.tensors,
    )


class _Recorder:
    def __init__(self, kernel, programs, watch):
        self.code = kernel.rewrite().__code__
        lines, self.first_line = inspect.getsourcelines(kernel.fn)
        self.source = textwrap.dedent("".join(lines)).splitlines()
        self.loops = _loops(self.source)
        self.wanted = None if programs is None else {_pid(one) for one in programs}
        self.watch = tuple(watch)
        self.programs: list[ProgramTrace] = []
        self.tensors: dict[str, TensorFacts] = {}
        self.current: ProgramTrace | None = None
        self.line, self.step, self.in_body = 0, 0, False

    def install(self, patches: Patches) -> None:
        load, store = builder.create_masked_load, builder.create_masked_store
        rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas
        set_index = builder.set_grid_idx

        def masked_load(pointers, mask, *rest, **options):
            result = load(pointers, mask, *rest, **options)
            self.access("load", pointers, mask.data)
            return result

        def masked_store(pointers, value, mask, *rest, **options):
            result = store(pointers, value, mask, *rest, **options)
            self.access("store", pointers, mask.data)
            return result

        def atomic_rmw(operation, pointers, value, mask, *rest, **options):
            result = rmw(operation, pointers, value, mask, *rest, **options)
            self.access("store", pointers, mask.data)
            return result

        def atomic_cas(pointers, *rest, **options):
            result = cas(pointers, *rest, **options)
            self.access("store", pointers, np.ones(pointers.data.shape, dtype=bool))
            return result

        def set_grid_idx(x, y, z):
            set_index(x, y, z)
            self.begin(builder.grid_idx)

        patches.set(builder, "create_masked_load", masked_load)
        patches.set(builder, "create_masked_store", masked_store)
        patches.set(builder, "create_atomic_rmw", atomic_rmw)
        patches.set(builder, "create_atomic_cas", atomic_cas)
        patches.set(builder, "set_grid_idx", set_grid_idx)
        name_arguments(patches, self.launched)
        patches.callback(sys.settrace, sys.gettrace())
        sys.settrace(self.called)

    def launched(self, arguments: dict[str, Argument]) -> None:
        self.tensors = {name: TensorFacts(one.shape, one.strides, one.itemsize) for name, one in arguments.items()}

    def begin(self, pid: tuple[int, int, int]) -> None:
        self.current, self.step, self.in_body = None, 0, False
        if self.wanted is None or pid in self.wanted:
            self.current = ProgramTrace(pid)
            self.programs.append(self.current)

    def access(self, kind: str, pointers, mask: np.ndarray) -> None:
        argument = argument_of(pointers)
        if self.current is None or argument is None:
            return
        shape = pointers.data.shape
        elements = argument.offsets(addresses(pointers, mask))
        event = Access(kind, argument.argument, elements, pointers.data.size, shape, self.line, self.step)
        self.current.events.append(event)

    def called(self, frame, event, _):
        """Python calls this for every function that is called; lines are followed in the kernel only."""
        return self.followed if self.current is not None and frame.f_code is self.code else None

    def followed(self, frame, event, _):
        if event == "line":
            self.line = frame.f_lineno - self.first_line + 1
            self.moved(self.loops.get(self.line), frame)
        elif event == "return" and self.in_body:
            self.end_iteration(frame)
        return self.followed

    def moved(self, place: str | None, frame) -> None:
        """The kernel is about to run a line: in the head of an outermost loop, in its body, or outside."""
        if place == "body":
            if not self.in_body:
                self.in_body, self.step = True, self.current.num_steps + 1
            return
        if self.in_body:
            self.end_iteration(frame)
        if place is None and self.current.num_steps:
            self.step = self.current.num_steps + 1

    def end_iteration(self, frame) -> None:
        self.in_body = False
        local = frame.f_locals
        values = {name: _value(local[name]) for name in self.watch if name in local}
        self.current.variables.append({name: value for name, value in values.items() if value is not None})


def _pid(program) -> tuple[int, int, int]:
    pid = tuple(program) if isinstance(program, (tuple, list)) else (program,)
    return (*(int(i) for i in pid), 0, 0)[:3]


def _value(thing) -> np.ndarray | None:
    """A copy of what a kernel's local holds, if that is numbers. A scalar has shape ()."""
    data = getattr(getattr(thing, "handle", None), "data", thing)
    if isinstance(data, (bool, int, float)):
        return np.array(data)
    if not isinstance(data, np.ndarray):
        return None
    return data.copy().reshape(()) if not getattr(thing, "shape", data.shape) else data.copy()


def _loops(source: list[str]) -> dict[int, str]:
    """For each line of an outermost loop, counted from 1, whether it is in its "head" or in its "body"."""
    places: dict[int, str] = {}

    def visit(node):
        if isinstance(node, (ast.For, ast.While)):
            first = node.body[0].lineno
            for number in range(node.lineno, node.end_lineno + 1):
                places[number] = "head" if number < first else "body"
        else:
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(ast.parse("\n".join(source)))
    return places
