"""Where things are kept, and how a file is written so that a crash never leaves half of it.

A learner's own state (lessons, answers, backups) lives in one folder, `PAGEDLAB_HOME` or `~/pagedlab`.
What can be fetched or made again (the model) lives in another, `PAGEDLAB_CACHE` or the user's cache folder.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def home() -> Path:
    """The learner's folder. Not created here: reading must not leave a trace."""
    return Path(os.environ.get("PAGEDLAB_HOME") or Path.home() / "pagedlab").expanduser().resolve()


def cache_dir() -> Path:
    """The folder for files that can be fetched again. Not created here."""
    from platformdirs import user_cache_path

    return Path(os.environ.get("PAGEDLAB_CACHE") or user_cache_path("pagedlab")).expanduser().resolve()


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path`: readers see the old file or the new one, never a part of either."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _written(path, data) as scratch:
        os.replace(scratch, path)


def create_atomic(path: Path, data: bytes) -> bool:
    """Make `path` with `data` in it, all or nothing. False when something is already there; it is left alone."""
    with _written(path, data) as scratch:
        try:
            os.link(scratch, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if os.path.lexists(path):
                return False
            os.rename(scratch, path)
        return True


@contextmanager
def _written(path: Path, data: bytes) -> Iterator[str]:
    """`data` in a scratch file beside `path`, on disk and complete; gone at the end unless it was moved away."""
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield scratch
    finally:
        Path(scratch).unlink(missing_ok=True)
