"""What the checks of Triton kernels have in common: running an answer strictly, and compiling it for real GPUs."""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from time import monotonic

from pagedlab.course.promise import TimeUp, Wrong, calling, note
from pagedlab.course.words import error_text

TARGETS = ("sm_80", "sm_90")
"""A100 and H100: what every kernel of the course must compile for."""

SECONDS = 30.0
"""For an exercise that asks for a kernel. Its launches take about 5 of them, and compiling 3, on a machine at rest."""

LAUNCH_SECONDS = 6.0  # one launch of a check takes 0.1 s, so this one is stuck

COMPILING = "The interpreter is Python and forgives much. A compiler has to know every type and shape beforehand."

SLOW = (
    "A compiler spreads a tile over registers, number by number. Tiles with three dimensions, or many large ones at a "
    "time, make a very long program: tl.dot sums without one. If the machine was just busy, check again."
)

MISTAKES = {  # by the name of the strict interpreter's error, or by words of the error that it runs into
    "OutOfBounds": (
        "It {said}.",
        "A GPU would not say so: it reads or overwrites what lies there. Which lanes must be off, and which offset is "
        "wrong?",
    ),
    "DividedByZero": ("It divides {said}.", "A GPU gives some number and goes on. Which length or count can be 0?"),
    "TileAsCondition": ("It decides for a whole tile at once: {said}", "A mask or `tl.where` decides lane by lane."),
    "overflow": (
        "A product or sum has outgrown 32 bits: {said}.",
        "In a large pool, block * stride passes 2**31. `.to(tl.int64)` on the block's number, before the product.",
    ),
    "cannot be block type if pointer argument is not a block": (
        "A tile goes to one pointer: {said}.",
        "Each lane needs its own place: a pointer plus a tile of offsets, as for the load.",
    ),
    "range must be a power of 2": (
        "A tile's side must be a power of 2: {said}.",
        "Take the size that is given as one (TILE_DIM, say), and mask what lies beyond.",
    ),
    "must be of type tl.constexpr": (
        "A tile's size must be known when the kernel is compiled: {said}.",
        "A `tl.constexpr` is known by then. A number that comes with the launch is not.",
    ),
    "`_semantic` argument must be provided": (
        "A function of Triton's was called by a bare name, which the interpreter does not see.",
        "`import triton.language as tl`, and `tl.load`, `tl.store`, ... instead of `from triton.language import *`.",
    ),
    "Input shapes should have": (
        "A GPU can't multiply tiles this small: {said}",
        "The inner dimension of `tl.dot` is at least 16 on every NVIDIA GPU. The tile of tokens is one of them.",
    ),
}


def run_kernel(answer, grid: Sequence[int], arguments: dict, call: str, **options) -> None:
    """Launch an answer under the strict interpreter, and tell well what goes wrong in it.

    call: how a learner would write the launch, with what must be known of the inputs. options: num_warps, num_stages.
    """
    from pagedlab.gpu.strict import strict
    from pagedlab.kernels.launch import launch

    with telling(calling(call)), strict(), at_most(LAUNCH_SECONDS):
        launch(answer, grid, arguments, **options)


@contextlib.contextmanager
def telling(call: str, in_words=None) -> Iterator[None]:
    """What goes wrong in a strict launch becomes a `Wrong`; a stub's NotImplementedError goes on as it is.

    in_words: makes the `Wrong` of a `KernelError`, if the exercise knows more than `told` does.
    """
    from pagedlab.gpu.strict import KernelError
    from pagedlab.kernels.launch import LaunchError

    try:
        yield
    except LaunchError as error:
        hint = "Arguments are known by their names. Keep those of the exercise; you may leave some out."
        raise Wrong(str(error), call, hint) from None
    except KernelError as error:
        if isinstance(error.original, NotImplementedError):  # the answer may be a stub
            raise error.original from None
        raise (in_words(error) if in_words else told(error, call)) from error.original


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Let the alarm of the check, if there is one, ring earlier."""
    left, started = signal.getitimer(signal.ITIMER_REAL)[0], monotonic()
    if left <= seconds:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, max(0.01, left - (monotonic() - started)))


def told(error, call: str) -> Wrong:
    """The interpreter's error in words; its line too, since within Triton's own functions nobody else knows it."""
    original, said = error.original, str(error.original) or type(error.original).__name__
    where = f"line {error.line.number}: {error.line.text}" if error.line else ""
    for sign, (message, hint) in MISTAKES.items():
        if sign == type(original).__name__ or (isinstance(original, (AssertionError, ValueError)) and sign in said):
            return Wrong(message.format(said=said), f"{call}\nin program {error.program}", hint, where=where)
    return Wrong(f"Your answer raised {error_text(original)}", call, where=where)


def compiled_notes(answer, arguments: dict, call: str, targets: Sequence[str] = TARGETS, **options) -> list:
    """Compile an answer for GPUs that aren't there, and note what came out, in a line a target. Returns the records.

    A kernel that a target's compiler refuses is wrong. One that spills or loads in small pieces is right, and slow: the
    note says so, and what to do about it.
    """
    from pagedlab.gpu.compiled import CompileError, compile_many

    calling(call)
    try:
        records = compile_many([(answer, arguments, target, options) for target in targets])
    except CompileError as error:
        raise Wrong(f"It runs, but it doesn't compile. {error}", call, COMPILING) from None
    except TimeUp:
        raise Wrong("It runs, but the compiler was still at work when the time was over.", call, SLOW) from None
    for record in records:
        note(f"On {record.summary()}")
        for advice in record.advice():
            note(advice)
    return records
