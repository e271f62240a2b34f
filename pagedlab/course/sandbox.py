"""Run an answer where it can do no harm: in a process of its own, with a clock and a memory limit.

Processes are forked from a small server that has torch and Hypothesis loaded already, so that a check starts in
milliseconds and an endless loop, a crash or a memory hog ends with the child, never with the notebook's kernel.
"""

import contextlib
import importlib
import io
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass

from pagedlab.course.answer import PackedAnswer, unpack
from pagedlab.course.promise import Failure, Judge, TimeUp, Verdict
from pagedlab.paths import cache_dir

SECONDS = 8.0  # when an answer counts as stuck; new inputs stop earlier (see Judge)
GRACE = 3.0  # how long a child may take to say so before it is ended
MEMORY = 2 * 2**30  # bytes on top of what the child has at its start; not enforced on macOS
PRINTED = 2_000  # characters of the answer's own output that are kept


@dataclass(frozen=True)
class Limits:
    seconds: float = SECONDS
    memory: int = MEMORY


def judge_safely(exercise_id: str, packed: PackedAnswer, limits: Limits = Limits()) -> Verdict:
    """Judge a packed answer in a child process. Never raises for what the answer does."""
    context = _server()
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, exercise_id, packed, limits), daemon=True)
    with _main_left_alone():
        child.start()
    theirs.close()
    at = ""
    try:
        while ours.poll(limits.seconds + GRACE):
            kind, content = ours.recv()
            if kind == "promise":
                at = content
            elif kind == "verdict":
                return Verdict.from_dict(content)
            else:
                raise RuntimeError(f"the check itself failed, please report it:\n{content}")
        stopped = f"Your answer was still running after {limits.seconds:.0f} seconds, so it was stopped."
        return Verdict(failures=[Failure(at, stopped, hint="Which loop never reaches its end?")])
    except EOFError:
        child.join(GRACE)
        ended = f"Your answer ended the whole process (exit code {child.exitcode})."
        return Verdict(failures=[Failure(at, ended, hint="Does it call exit, or ask for very much memory?")])
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        ours.close()


def warm_up() -> None:
    """Start the server in the background, so that a learner's first check doesn't wait for torch."""
    from multiprocessing import forkserver

    _server()
    forkserver.ensure_running()


def _server():
    context = multiprocessing.get_context("forkserver")
    if sys.platform == "linux":  # elsewhere a process that has loaded torch may not be forked safely
        context.set_forkserver_preload(["pagedlab.course.preload"])
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

    try:
        with _quiet() as printed:
            _limit_memory(limits.memory)
            pipe.send(("verdict", _judge(pipe, exercise_id, packed, limits, printed).as_dict()))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))


def _judge(pipe, exercise_id, packed, limits, printed) -> Verdict:
    exercise = importlib.import_module("pagedlab.course.exercises").find(exercise_id)
    import torch
    from hypothesis.configuration import set_hypothesis_home_dir

    torch.set_num_threads(1)  # the same sums in the same order on every machine
    set_hypothesis_home_dir(cache_dir() / "hypothesis")  # not in the folder of the notebook
    judge = Judge(
        packed.written,
        patience=limits.seconds * 2 / 3,
        printed=printed,
        begin=lambda promise: pipe.send(("promise", promise.name)),
    )
    answer = unpack(packed.payload)
    with _alarm(limits.seconds):
        return judge.judge(exercise, answer)


@contextlib.contextmanager
def _alarm(seconds: float):
    def ring(*_):
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _quiet():
    """Keep what the answer prints away from the notebook; yields a function that returns and forgets it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    text = io.StringIO()

    def printed() -> str:
        said = text.getvalue()
        text.seek(0)
        text.truncate()
        return said if len(said) <= PRINTED else said[:PRINTED] + "…"

    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield printed


def _limit_memory(extra: int) -> None:
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, now + extra))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
