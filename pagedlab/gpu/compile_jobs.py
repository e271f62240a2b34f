"""Compilations to be done, handed to a process of their own, which Triton compiles in.

One process does many, one after the other. It gets the kernels as bytes (`carry.py`), a fresh folder for Triton's own
cache, no TRITON_INTERPRET, and a clock. If it dies of one compilation, another one goes on with the rest.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pagedlab
from pagedlab.gpu import carry, mode
from pagedlab.gpu.specialize import Special
from pagedlab.gpu.targets import Target

SECONDS = 60.0
"""How long one compilation may take; most take about one second."""

START = 60.0
"""How long the process may take to begin."""


@dataclass(frozen=True)
class Job:
    """kernel: its number among the kernels."""

    kernel: int
    target: Target
    special: Special
    options: dict[str, object] = field(default_factory=dict)


def run(kernels: list[bytes], jobs: list[Job], seconds: float = SECONDS) -> Iterator[tuple[int, dict]]:
    """Do the jobs; yields (its index, the answer) as each is done. See `compile_child` for the answers.

    Whatever ends this generator ends the process.
    """
    todo = list(enumerate(jobs))
    while todo:
        for number, answer in _one_process(kernels, todo, seconds):
            yield number, answer
            todo = [one for one in todo if one[0] != number]


def _one_process(kernels, todo, seconds) -> Iterator[tuple[int, dict]]:
    """Answers until all are there, or the process ended over one; that one's answer then says so, and is the last."""
    with tempfile.TemporaryDirectory(prefix="pagedlab-compile-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        path = [os.path.abspath(entry) for entry in sys.path]
        packed = [(number, carry.dump(job, by_value=True)) for number, job in todo]
        (folder / "jobs").write_bytes(carry.dump((path, kernels, packed)))
        with open(folder / "errors", "wb") as errors, _process(folder, errors) as process:
            left, printed = dict(todo), 0
            for line in _lines(process.stdout, seconds):
                answer = json.loads(line)
                number = answer.pop("number")
                if number is None:  # it has begun
                    continue
                del left[number]
                if "error" in answer:  # some reasons are only printed
                    answer["error"]["printed"] = _from(folder / "errors", printed)
                printed = (folder / "errors").stat().st_size
                yield number, answer
                if not left:
                    return
            if process.poll() is None:  # the end of its output comes a moment before its own
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
            code = process.poll()
            said = _from(folder / "errors", printed)
        if code is None:
            kind, message = "TimeoutError", f"it was still compiling after {seconds:.0f} seconds"
        else:
            kind, message = "Crash", f"the compiler's process ended ({_exit(code)})\n{said}"
        yield next(iter(left)), {"error": {"type": kind, "message": message, "line": "", "line_number": None}}


def _from(path: Path, start: int) -> str:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(20_000).decode(errors="replace").strip()


@contextlib.contextmanager
def _process(folder: Path, errors):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {
        mode.VARIABLE: "0",
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TMPDIR": str(folder),  # what the assembler leaves behind when it is stopped goes with the folder
        "PYTHONPATH": str(Path(pagedlab.__file__).resolve().parents[1]),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pagedlab.gpu.compile_child", str(folder)],
        stdin=subprocess.PIPE,  # never written to: its end tells the process that we are gone
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd=folder,  # a learner's folder may have a file that is called like a module
        env=environment,
        start_new_session=True,  # so that it can be ended with all that it started
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _lines(stream, seconds: float) -> Iterator[bytes]:
    """Lines as they come, until the end or until there was none for so long; the first may take START."""
    rest, deadline = b"", time.monotonic() + START
    while True:
        wait = deadline - time.monotonic()
        if wait <= 0 or not select.select([stream], [], [], wait)[0]:
            return
        read = os.read(stream.fileno(), 2**16)
        if not read:
            return
        rest += read
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line
            deadline = time.monotonic() + seconds


def _exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
