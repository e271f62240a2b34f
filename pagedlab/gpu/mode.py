"""Whether Triton compiles kernels for a GPU or interprets them on the CPU.

Triton decides that once, when it is imported: with TRITON_INTERPRET=1 in the environment, every `@triton.jit` of the
process, those of Triton's own library too, makes a function that the interpreter runs. So the choice has to come before
`import triton`, and one process has one mode. To compile while a notebook interprets takes a second process; that is
what `pagedlab.gpu.compiled` does.
"""

import os
import sys

from pagedlab.errors import PagedLabError

VARIABLE = "TRITON_INTERPRET"


class ModeError(PagedLabError, ValueError):
    """Triton was imported in the other mode, and cannot change any more."""


def interpret() -> None:
    """From now on Triton interprets in this process. Call it before `import triton`; again does no harm.

    Raises ModeError if Triton is here already and compiles.
    """
    if _imported() and not _library_interprets():
        raise ModeError(
            "Triton was imported before and compiles for a GPU; a process cannot change that. Restart the kernel "
            "and run first: `from pagedlab.gpu import mode; mode.interpret()`, then `import triton`."
        )
    os.environ[VARIABLE] = "1"


def choose() -> None:
    """Interpret where there is no GPU. To be called before `import triton`.

    Leaves everything as it is if there is a GPU, if TRITON_INTERPRET is set already, or if Triton has been imported.
    """
    if _imported() or os.environ.get(VARIABLE):
        return
    import torch

    if not torch.cuda.is_available():  # true for AMD's too
        interpret()


def is_interpreting() -> bool:
    """Whether Triton interprets in this process; before it is imported, whether it would."""
    if _imported():
        return _library_interprets()
    return os.environ.get(VARIABLE, "").lower() in ("1", "true", "on", "yes", "y")  # what Triton takes for yes


def _imported() -> bool:
    return "triton.language" in sys.modules


def _library_interprets() -> bool:
    """What became of the functions that Triton's own library defines with `@triton.jit`."""
    return type(sys.modules["triton.language"].cdiv).__name__ == "InterpretedFunction"
