"""What was compiled once is kept, in the folder for what can be made again: one file a compilation.

The name of a file says what it is the result of: the kernel's text and that of its helpers, the constants they use,
the kinds of arguments, the target, the options, and the version of Triton. So an entry is never out of date.
"""

import gzip
import hashlib
import json
import zlib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from pagedlab.gpu import carry
from pagedlab.paths import cache_dir, write_atomic

FORMAT = 2
"""To be raised when the answers of `compile_child` change."""

MOST = 500
"""Files that are kept. The oldest make room; each has some 20 KB."""


def folder() -> Path:
    return cache_dir() / "compiled"


def key(kernel, how: str) -> str:
    """The name for a kernel that is compiled in this way."""
    said = [FORMAT, version("triton"), how]
    for one in carry.reach(kernel):
        constants = {name: _constant(value) for name, value in carry.scope(one).items()}
        first = carry.function(one).__code__.co_firstlineno  # the answer has line numbers
        said.append([carry.function(one).__qualname__, carry.source(one), first, carry.options(one), constants])
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def _constant(value) -> str:
    """What a compiler can see of a global; a kernel stands for itself, and of other things the name is enough."""
    value = value.value if type(value).__name__ == "constexpr" else value
    if value is None or isinstance(value, int | float | str | tuple) or type(value).__name__ == "dtype":
        return repr(value)
    return type(value).__name__


def get(name: str) -> dict | None:
    """What was kept under this name. None for nothing, and for what can't be read."""
    path = folder() / f"{name}.gz"
    try:
        answer = json.loads(gzip.decompress(path.read_bytes()))
        with suppress(OSError):
            path.touch()  # used, so not old
        return answer if isinstance(answer, dict) and "assembly" in answer else None
    except (OSError, ValueError, EOFError, zlib.error):
        return None


def put(name: str, answer: dict) -> None:
    """Keep it. A cache that can't be written to is no reason to stop: it will be compiled again."""
    with suppress(OSError):
        write_atomic(folder() / f"{name}.gz", gzip.compress(json.dumps(answer).encode(), 6, mtime=0))
        _make_room()


def _make_room() -> None:
    files = {}
    for path in folder().glob("*.gz"):
        with suppress(OSError):  # another process makes room too
            files[path] = path.stat().st_mtime
    for path in sorted(files, key=files.get)[: max(0, len(files) - MOST)]:
        path.unlink(missing_ok=True)
