"""Run an answer where it can do no harm: in a process of its own, with a clock and a memory limit.

Processes are forked from a small server that has torch and Hypothesis loaded already, so that a check starts in
milliseconds and an endless loop, a crash or a memory hog ends with the child, never with the notebook's kernel.
"""

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from dataclasses import dataclass

from pagedlab.course.answer import PackedAnswer, rewritten, unpack
from pagedlab.course.exercises import find
from pagedlab.course.promise import Exercise, Failure, Judge, TimeUp, Verdict
from pagedlab.course.words import error_text
from pagedlab.gpu import mode
from pagedlab.paths import cache_dir

GRACE = 3.0  # how long a child may take to say so before it is ended
START = 120.0  # how long a child may take to load what it needs, which is no fault of the answer
PATIENCE = 1.0  # what an exercise's seconds are multiplied with, on a machine that has other work to do
MEMORY = 2 * 2**30  # bytes on top of what the child has at its start; not enforced on macOS
PRINTED = 2_000  # characters of the answer's own output that are kept

ALONE = "It works alone, in a fresh notebook"  # the promise that every answer makes


@dataclass(frozen=True)
class Limits:
    seconds: float = Exercise.seconds
    memory: int = MEMORY


def judge_safely(exercise_id: str, packed: PackedAnswer, limits: Limits | None = None) -> Verdict:
    """Judge a packed answer in a child process. Never raises for what the answer does.

    Without `limits`, those of the exercise.
    """
    limits = limits or Limits(find(exercise_id).seconds * PATIENCE)
    context = _server()
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, exercise_id, packed, limits), daemon=True)
    try:
        with _main_left_alone():
            child.start()
        theirs.close()
        return _listen(ours, child, limits)
    finally:
        _end(child)
        ours.close()


def warm_up() -> None:
    """Start the server in the background, so that a learner's first check doesn't wait for torch."""
    _server()


def _listen(pipe, child, limits: Limits) -> Verdict:
    """Follow what the child says about its work, until it has a verdict or has had its time."""
    name, example = "", ""  # the promise and the inputs it is at
    deadline = time.monotonic() + START
    try:
        while pipe.poll(max(0.0, deadline - time.monotonic())):
            kind, content = pipe.recv()
            if kind == "ready":
                name = ALONE  # the answer is being loaded
                deadline = time.monotonic() + limits.seconds + GRACE
            elif kind == "trying":
                name, example = content
            elif kind == "verdict":
                return Verdict.from_dict(content)
            elif name:  # the answer has run, so it may have broken what the check stands on
                hint = "Does it change something that Python itself needs? If not, please report this."
                said = f"The check could not go on: {content.strip().splitlines()[-1]}"
                return Verdict(failures=[Failure(name, said, example, hint)])
            else:
                raise RuntimeError(f"the check itself failed, please report it:\n{content}")
    except (EOFError, OSError):  # the child is gone, perhaps in the middle of a word
        child.join(GRACE)
        ended = f"Your answer ended the whole process ({_exit(child.exitcode)})."
        return Verdict(failures=[Failure(name, ended, example, "Does it call exit, or ask for very much memory?")])
    if not name:
        raise RuntimeError(f"the check did not start within {START:.0f} seconds")
    stopped = f"Your answer was still running after {limits.seconds:.0f} seconds, so it was stopped."
    return Verdict(failures=[Failure(name, stopped, example, "Which loop never reaches its end?")])


def _exit(code: int | None) -> str:
    try:
        return f"signal {signal.Signals(-code).name}"
    except (TypeError, ValueError):
        return f"exit code {code}"


def _end(child) -> None:
    """End the child and every process it has left behind."""
    if child.pid is None:  # never started
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.join()
    child.close()


def _server():
    """The context to start children from. Its server is running when this returns."""
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    if sys.platform == "linux":  # elsewhere a process that has loaded torch may not be forked safely
        context.set_forkserver_preload(["pagedlab.course.preload"])
    # Interrupting a notebook interrupts its whole group of processes. The server must outlive that even while it loads.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


@contextlib.contextmanager
def _main_left_alone():
    """Keep the child from importing the script that called us: it would run the learner's whole file again."""
    main = vars(sys.modules["__main__"])
    before = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(before)


def _child(pipe, exercise_id: str, packed: PackedAnswer, limits: Limits) -> None:
    import traceback

    os.setpgid(0, 0)  # a group of its own, so that what the answer starts can be ended with it
    threading.Thread(target=_end_with_the_kernel, daemon=True).start()
    try:
        with _quiet() as printed:
            verdict = _judge(pipe, exercise_id, packed, limits, printed)
            pipe.send(("verdict", verdict.as_dict()))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
    time.sleep(GRACE)  # the parent ends the whole group now; had this process gone first, it would miss the others


def _end_with_the_kernel() -> None:
    """A kernel that is restarted in the middle of a check can't end its children any more."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the alarm is for the main thread
    multiprocessing.parent_process().join()
    os.killpg(0, signal.SIGKILL)


def _judge(pipe, exercise_id, packed, limits, printed) -> Verdict:
    mode.interpret()  # for a kernel; with a GPU too
    exercise = find(exercise_id)
    import torch
    from hypothesis.configuration import set_hypothesis_home_dir

    from pagedlab.kernels import ops

    torch.set_num_threads(1)  # the same sums in the same order on every machine
    ops.AUTO = "torch"  # the form that learners read, and no time of theirs goes into compiling
    set_hypothesis_home_dir(cache_dir() / "hypothesis")  # not in the folder of the notebook
    warnings.simplefilter("ignore")  # Python shows each only once, so whether a report has it would be chance
    judge = Judge(
        packed.written,
        seconds=limits.seconds,
        printed=printed,
        trying=lambda name, example: pipe.send(("trying", (name, example))),
    )
    pipe.send(("ready", None))
    with _limited(limits), _alarm(limits.seconds):
        try:
            answer = unpack(packed.payload)
        except TimeUp:
            return Verdict(failures=[Failure(ALONE, "Loading your answer again was still running when time was up.")])
        except Exception as error:
            return Verdict(failures=[Failure(ALONE, f"Your answer can't be loaded again: {error_text(error)}")])
        judge.written = {**packed.written, **rewritten(answer, packed.written)}
        return judge.judge(exercise, answer)


@contextlib.contextmanager
def _alarm(seconds: float):
    def ring(*_):
        raise TimeUp

    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM, signal.SIGINT])
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Kept(io.RawIOBase):
    """Takes everything that is printed and keeps the first of it: an endless loop may print for ever."""

    def __init__(self):
        self.first = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.first += bytes(data[: max(0, 4 * PRINTED + 4 - len(self.first))])
        return len(data)


@contextlib.contextmanager
def _quiet():
    """Keep what the answer prints away from the notebook; yields a function that returns and forgets it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    before = sys.stdout, sys.stderr
    kept = file = None

    def printed() -> str:
        nonlocal kept, file
        with contextlib.suppress(ValueError):  # closed by the answer
            if file:
                file.flush()
        said = bytes(kept.first).decode("utf-8", "replace") if kept else ""
        kept = _Kept()
        file = io.TextIOWrapper(io.BufferedWriter(kept), "utf-8", "backslashreplace", write_through=True)
        sys.stdout = sys.stderr = file
        return said if len(said) <= PRINTED else said[:PRINTED] + "…"

    printed()
    try:
        yield printed
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _limited(limits: Limits):
    """A limit on memory; and one on the processor's time, which ends an endless loop in C when the kernel has gone."""
    import resource

    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _lower(resource.RLIMIT_CPU, int(used + 8 * (limits.seconds + GRACE)))  # 8: an answer may use several threads
    _lower(resource.RLIMIT_CORE, 0)
    if sys.platform != "linux":
        yield
        return
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = _lower(resource.RLIMIT_AS, now + limits.memory)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)  # room to write the verdict


def _lower(which: int, limit: int) -> tuple[int, int]:
    """Set a soft limit, never above one that is in force already; returns what was in force."""
    import resource

    soft, hard = resource.getrlimit(which)
    in_force = [value for value in (soft, hard) if value != resource.RLIM_INFINITY]
    resource.setrlimit(which, (min([limit, *in_force]), hard))
    return soft, hard
