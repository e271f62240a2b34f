"""A kernel compiled for a GPU that need not be there: registers, shared memory, and what its instructions do.

Triton brings the compilers for NVIDIA's and AMD's GPUs along, and NVIDIA's disassembler. They run in a process of their
own (`compile_jobs.py`), and what they made is kept on disk (`compile_cache.py`), so each is compiled once.

What can't be learned this way is time. But registers and shared memory say how many blocks share a multiprocessor,
spills and narrow loads are lost time on any GPU, and a missing tensor-core instruction is too.
"""

import functools
import linecache
import numbers
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pagedlab.errors import PagedLabError
from pagedlab.gpu import assembly, carry, compile_cache, compile_errors, compile_jobs, compiled_report
from pagedlab.gpu.compile_jobs import Job
from pagedlab.gpu.occupancy import Occupancy, occupancy
from pagedlab.gpu.specialize import Pointer, Special, specialize
from pagedlab.gpu.targets import Target, find

__all__ = ["CompileError", "CompiledKernel", "Pointer", "compile_kernel", "compile_many"]


class CompileError(PagedLabError):
    """The kernel can't be had for this target. The message has the compiler's reason, and the line if it named one."""

    def __init__(self, message: str, line: str = "", line_number: int | None = None, compiled=None):
        super().__init__(message)
        self.line = line
        self.line_number = line_number
        self.compiled = compiled
        """What came out nevertheless, if it compiles but would not start: see its figures."""


@dataclass(frozen=True, repr=False)
class CompiledKernel:
    """What the compiler made of a kernel, for one target and one kind of arguments."""

    name: str
    target: Target
    num_warps: int
    num_stages: int
    registers: int
    """Of one thread. AMD: vector registers, those of the matrix cores included."""
    spill_bytes: int
    """Of local memory (NVIDIA: the stack, AMD: scratch) that each thread has because registers ran out."""
    shared_bytes: int
    """Of shared memory for each block."""
    assembly: str
    """The machine code as text, with the source's line numbers: NVIDIA's SASS, AMD's assembly."""
    ptx: str
    """What NVIDIA's assembler made it from; "" for AMD."""
    file: str = field(default="", compare=False)
    """That the kernel was written in, as the assembly names it."""
    lines: tuple[str, ...] = field(default=(), compare=False)
    """Of that file or cell."""
    source: str = field(default="", compare=False)
    """The kernel's own text, and that of the helpers it calls."""

    @property
    def sass(self) -> str:
        return self.assembly

    @functools.cached_property
    def instructions(self) -> assembly.Instructions:
        return assembly.count(self.assembly, self.target.backend)

    @property
    def occupancy(self) -> Occupancy:
        return occupancy(self.registers, self.shared_bytes, self.num_warps, self.target)

    def summary(self) -> str:
        """In one line, the target first."""
        found = self.instructions
        spill = f"{self.spill_bytes:,} B spilled" if self.spill_bytes else "no spill"
        blocks = _count(self.occupancy.blocks_per_sm, "block")
        parts = [_count(self.registers, "register"), spill, f"{self.shared_bytes:,} B shared", f"{blocks} per SM"]
        for number, thing in (
            (found.async_copies_16b, "async copy"),
            (found.loads_16b, "load"),
            (found.stores_16b, "store"),
        ):
            if number:
                parts.append(f"{_count(number, thing)} of 16 bytes")
        narrow = found.other_loads + found.other_async_copies
        if narrow:
            parts.append(f"{_count(narrow, 'narrower load')}")
        if found.other_stores:
            parts.append(f"{_count(found.other_stores, 'narrower store')}")
        parts += [f"{number:,} {kind}" for kind, number in found.tensor_cores.items()]
        return f"{self.target.name}: {', '.join(parts)}"

    def line(self, access: assembly.MemoryAccess) -> str:
        """The source of an access; "" where that is not known."""
        if os.path.basename(access.file) != os.path.basename(self.file):  # a helper from somewhere else
            return linecache.getline(access.file, access.line).strip()
        return self.lines[access.line - 1].strip() if 0 < access.line <= len(self.lines) else ""

    def without_text(self) -> "CompiledKernel":
        """The same, but it shows no line of the kernel: for one that somebody is to write."""
        return replace(self, lines=(), source="")

    def advice(self) -> list[str]:
        """What costs time on any GPU and could be otherwise, in a sentence each."""
        return compiled_report.advice(self)

    def __repr__(self) -> str:
        return f"<{self.name}, {self.summary()}>"

    def _repr_html_(self) -> str:
        return compiled_report.html(self)


def compile_kernel(
    kernel, arguments: dict[str, object], target: str | Target = "sm_80", *, hints: bool = True, **options
) -> CompiledKernel:
    """Compile a `@triton.jit` kernel, in either mode, as a launch with these arguments would.

    arguments: name to value, as for `launch`: the kernel takes what it names. Of tensors only the type and the address
    matter; `Pointer("float16")` stands for one. options: num_warps, num_stages, maxnreg (most registers a thread may
    have; NVIDIA only). hints: tell the compiler what a launch does: which numbers and addresses 16 divides, and which
    numbers are 1. Without, it knows only types.

    Raises CompileError if that can't be, PagedLabError for a target that is not known and for missing arguments.
    """
    return compile_many([(kernel, arguments, target, options)], hints=hints)[0]


def compile_many(
    jobs: Iterable[Sequence],
    *,
    hints: bool = True,
    keep_errors: bool = False,
    done: Callable[[int, object], None] = lambda number, result: None,
) -> list:
    """Several at once, which saves most of a second for each. jobs: (kernel, arguments, target, options) each, where
    the last two may be left out. Returns the CompiledKernels in order.

    keep_errors: a CompileError stands in the list, in the place of what it is about; else the first one is raised.
    done: called with (index, result) as each is ready.
    """
    wanted = [_request(*job, hints=hints) for job in jobs]
    results: list = [None] * len(wanted)

    def finish(number: int, made: dict) -> None:
        result = _result(wanted[number], made)
        if isinstance(result, CompileError) and not keep_errors:
            raise result
        results[number] = result
        done(number, result)

    new = []
    for number, request in enumerate(wanted):
        made = compile_cache.get(request.key)
        if made is None:
            new.append(number)
        else:
            finish(number, made)
    kernels = list({id(wanted[number].kernel): wanted[number].kernel for number in new}.values())
    places = {id(kernel): place for place, kernel in enumerate(kernels)}
    carried = [carry.dump(kernel, by_value=True) for kernel in kernels]
    todo = [
        Job(places[id(request.kernel)], request.target, request.special, request.options)
        for request in (wanted[number] for number in new)
    ]
    for place, made in compile_jobs.run(carried, todo):
        if "error" not in made:
            compile_cache.put(wanted[new[place]].key, made)
        finish(new[place], made)
    return results


OPTIONS = {
    "cuda": ("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion"),
    "hip": ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack", "enable_fp_fusion"),
}
"""What can be chosen for a compilation, by the target's backend."""


@dataclass(frozen=True)
class _Request:
    kernel: object
    target: Target
    special: Special
    options: dict[str, object]

    @functools.cached_property
    def key(self) -> str:
        special = self.special
        constants = {place: _identity(value) for place, value in special.constants.items()}
        how = [self.target.name, special.types, constants, special.facts, sorted(self.options.items())]
        return compile_cache.key(self.kernel, repr(how))


def _request(kernel, arguments, target="sm_80", options=None, *, hints: bool) -> _Request:
    if not carry.is_kernel(kernel):
        raise PagedLabError(f"{kernel!r} {carry.no_kernel(kernel)}")
    target = find(target)
    options = {name: value for name, value in (options or {}).items() if value is not None}
    known = OPTIONS[target.backend]
    for name, value in options.items():
        if name not in known:
            raise PagedLabError(f"{target.name} has no option {name}. There are {', '.join(known)}.")
        if not isinstance(value, numbers.Integral) or value < 0:
            raise PagedLabError(f"{name} must be a whole number, not {value!r}")
        options[name] = int(value)  # numpy's are whole numbers too
    return _Request(kernel, target, specialize(kernel, arguments, target, hints), options)


def _identity(value) -> object:
    return compile_cache.key(value, "") if carry.is_kernel(value) else value


def _result(request: _Request, made: dict):
    if "error" in made:
        return _error(request, made["error"])
    target = request.target
    registers, spill_bytes = assembly.resources(made["usage"], made["assembly"], target.backend)
    compiled = CompiledKernel(
        carry.function(request.kernel).__name__,
        target,
        made["num_warps"],
        made["num_stages"],
        registers,
        spill_bytes,
        made["shared_bytes"],
        made["assembly"],
        made["ptx"],
        made["file"],
        tuple(carry.text(request.kernel).splitlines()),
        "\n".join(carry.source(one) for one in carry.reach(request.kernel)),
    )
    return _does_not_start(compiled, made) or compiled


def _does_not_start(compiled: CompiledKernel, made: dict) -> CompileError | None:
    """Limits that are only looked at when a kernel is launched: Triton compiles what no GPU of the target can run."""
    target = compiled.target
    if compiled.shared_bytes > target.max_shared_per_block:
        problem = (
            f"it needs {compiled.shared_bytes:,} bytes of shared memory for a block, and {target.name} has at most "
            f"{target.max_shared_per_block:,}. A smaller tile or a lower num_stages needs less"
        )
    elif compiled.num_warps > target.max_warps_per_block:
        problem = f"it has {compiled.num_warps} warps in a block, and {target.name} takes {target.max_warps_per_block}"
    elif made["tensor_memory_columns"] > 512:
        problem = (
            f"it needs {made['tensor_memory_columns']} columns of tensor memory, and a multiprocessor has 512. Fewer "
            "rows or a smaller head need less"
        )
    else:
        return None
    return CompileError(
        f"{compiled.name} compiles for {target.name} but can't start there: {problem}.", compiled=compiled
    )


def _error(request: _Request, error: dict) -> CompileError:
    name = carry.function(request.kernel).__name__
    where = ""
    if error["line_number"] is not None:
        inside = f" of {error['function']}" if error["function"] not in ("", name) else ""
        where = f" Line {error['line_number']}{inside}: `{error['line']}`"
    message = (
        f"{name} does not compile for {request.target.name}: {compile_errors.explain(error, request.target)}{where}"
    )
    return CompileError(message, error["line"], error["line_number"])


def _count(number: int, thing: str) -> str:
    plural = thing[:-1] + "ies" if thing.endswith("y") else thing + "s"
    return f"{number:,} {thing if number == 1 else plural}"
