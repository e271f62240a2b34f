"""Answers that hang, crash, eat memory, exit or leave things behind: the caller lives on and nothing is left."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

from pagedlab.course import sandbox
from pagedlab.course.answer import pack
from pagedlab.course.sandbox import Limits, judge_safely

SHORT = Limits(seconds=3, memory=2**28)


@pytest.fixture(autouse=True)
def quick_end(monkeypatch):
    monkeypatch.setattr(sandbox, "GRACE", 0.5)


def judge(answer, limits=SHORT):
    return judge_safely("blocks_needed", pack(answer), limits)


def right(n, b):
    return -(-n // b)


def descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def sleepers() -> set[int]:
    """Whatever runs `sleep`, whoever its parent is by now."""
    return {
        one.pid
        for one in psutil.process_iter(["name", "status"])
        if one.info["name"] == "sleep" and one.info["status"] != "zombie"
    }


def open_files() -> int:
    return psutil.Process().num_fds()


def loops(n, b):
    while True:
        pass


def loops_in_c(n, b):
    import itertools

    return sum(itertools.count())


def sleeps(n, b):
    time.sleep(1e6)


def swallows_everything(n, b):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass


def swallows_once(n, b):
    try:
        while True:
            pass
    except BaseException:
        return -(-n // b)


def ignores_the_alarm(n, b):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    while True:
        pass


def prints_for_ever(n, b):
    while True:
        print("x" * 10_000)


@pytest.mark.parametrize(
    "answer", [loops, loops_in_c, sleeps, swallows_everything, swallows_once, ignores_the_alarm, prints_for_ever]
)
def test_an_answer_that_never_ends_is_stopped(answer):
    started = time.monotonic()
    (failure,) = judge(answer).failures
    assert "still running" in failure.message
    # The call; where the answer had to be killed, the inputs of the promise, which is all that was heard of it.
    # Which inputs is chance: an answer that swallows its end goes on to the next ones.
    assert re.fullmatch(r"blocks_needed\(\d+, \d+\)|num_tokens = \d+, block_size = \d+", failure.example)
    assert failure.name == "There is room for every token"
    assert len(failure.printed) <= sandbox.PRINTED + 1
    assert time.monotonic() - started < 60


def exits(n, b):
    sys.exit(3)


def raises_keyboard_interrupt(n, b):
    raise KeyboardInterrupt


def recurses(n, b):
    return recurses(n, b)


def exits_at_once(n, b):
    os._exit(7)


def crashes(n, b):
    os.kill(os.getpid(), signal.SIGSEGV)


def closes_everything(n, b):
    os.closerange(0, 1000)
    return n


def breaks_python(n, b):
    import builtins

    builtins.isinstance = None
    return n


def kills_the_server(n, b):
    os.kill(os.getppid(), signal.SIGKILL)
    return n


def asks_for_a_huge_tensor(n, b):
    import torch

    return torch.empty(10**12)


def asks_for_a_huge_list(n, b):
    return [0] * 10**10


kept = []


def keeps_more_and_more(n, b):
    while True:
        kept.append(bytearray(2**24))


@pytest.mark.parametrize(
    "answer, says",
    [
        (exits, "raised SystemExit: 3"),
        (raises_keyboard_interrupt, "raised KeyboardInterrupt"),
        (recurses, "raised RecursionError"),
        (exits_at_once, "ended the whole process (exit code 7)"),
        (crashes, "ended the whole process (signal SIGSEGV)"),
        (closes_everything, "ended the whole process"),
        (breaks_python, ""),
        (kills_the_server, ""),
        (asks_for_a_huge_tensor, "more memory than a check allows"),
        (asks_for_a_huge_list, "more memory than a check allows"),
        (keeps_more_and_more, "more memory than a check allows"),
    ],
)
def test_an_answer_that_breaks_things_is_a_failure_and_the_next_check_works(answer, says):
    verdict = judge(answer, Limits(seconds=8, memory=2**28))
    assert says in verdict.failures[0].message and verdict.failures[0].example
    assert judge(right, Limits()).failures == []


def starts_a_process(n, b):
    subprocess.Popen(["sleep", "1000"])
    return n + 1


def forks(n, b):
    if os.fork() == 0:
        time.sleep(1000)
    return n + 1


def leaves_a_thread(n, b):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return n + 1


def forks_and_goes(n, b):
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)


@pytest.mark.parametrize("answer", [starts_a_process, forks, leaves_a_thread, forks_and_goes])
def test_nothing_is_left_behind(answer):
    judge(right)
    before, files = descendants(), open_files()
    others = sleepers()
    assert judge(answer).failures
    deadline = time.monotonic() + 10
    while (descendants() != before or not sleepers() <= others) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert descendants() == before
    assert sleepers() <= others
    assert open_files() == files


def loaded(what):
    if what == "for ever":
        time.sleep(1000)
    elif what == "never":
        os._exit(3)
    raise ValueError("not here")


class Loaded:
    """Does something when it is unpacked."""

    def __init__(self, what):
        self.what = what

    def __reduce__(self):
        return loaded, (self.what,)


@pytest.mark.parametrize(
    "what, says", [("for ever", "still running"), ("never", "exit code 3"), ("raises", "can't be loaded again")]
)
def test_an_answer_that_cannot_be_loaded_is_a_failure(what, says):
    (failure,) = judge(Loaded(what)).failures
    assert says in failure.message and failure.name == sandbox.ALONE


def closes_stdout(n, b):
    sys.stdout.close()
    return -(-n // b)


def has_no_stdout(n, b):
    sys.stdout = sys.stderr = None
    return -(-n // b)


def writes_bytes(n, b):
    sys.stdout.buffer.write(b"\xff")
    sys.stderr.write("\ud800")
    return -(-n // b)


def goes_away(n, b):
    os.chdir("/")
    return -(-n // b)


def seeds(n, b):
    import random

    import numpy
    import torch

    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    return -(-n // b)


def sets_alarm_handler(n, b):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return -(-n // b)


@pytest.mark.parametrize(
    "answer",
    [closes_stdout, has_no_stdout, writes_bytes, goes_away, seeds, sets_alarm_handler],
    ids=lambda f: f.__name__,
)
def test_right_answers_with_odd_manners_pass(answer):
    assert judge(answer, Limits()).failures == []


def shouts(n, b):
    print("日本 <b>")
    print("\x1b[31mred", file=sys.stderr)
    sys.stdout.buffer.write(b"\xff")
    return n + 1


def test_what_is_printed_is_told_in_plain_text():
    (failure,) = judge(shouts, Limits()).failures
    assert failure.printed == "日本 <b>\n\\x1b[31mred\n\ufffd"


def test_a_limit_already_in_force_is_never_raised(monkeypatch):
    resource = pytest.importorskip("resource")
    infinity, was_set = resource.RLIM_INFINITY, []
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: was_set.append(limits))
    for in_force in [(infinity, infinity), (50, infinity), (infinity, 50), (50, 60), (500, 600)]:
        monkeypatch.setattr(resource, "getrlimit", lambda which, now=in_force: now)
        assert sandbox._lower(resource.RLIMIT_AS, 100) == in_force
    assert was_set == [(100, infinity), (50, infinity), (50, 50), (50, 60), (100, 600)]


INTERRUPTED = """
import os, signal, threading, time
import psutil
from pagedlab.course.answer import pack
from pagedlab.course.sandbox import judge_safely, Limits

os.setpgid(0, 0)
def loops(n, b):
    while True:
        try:
            time.sleep(100)
        except BaseException:
            pass
def right(n, b):
    return -(-n // b)

def interrupt_when_busy():
    # as an interrupt button does it: the whole group gets the signal
    {wait}
    os.killpg(0, signal.SIGINT)

threading.Thread(target=interrupt_when_busy).start()
try:
    judge_safely("blocks_needed", pack(loops), Limits(seconds=30))
except KeyboardInterrupt:
    print("interrupted")
time.sleep(0.5)
print(judge_safely("blocks_needed", pack(right)).failures)
print(len(psutil.Process().children(recursive=True)) <= 2)
"""
WAITS = {
    "while the answer runs": "while len(psutil.Process().children(recursive=True)) < 3: time.sleep(0.05)",
    "while the server loads": "time.sleep(0.3)",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_an_interrupt_gives_the_prompt_back(wait):
    script = INTERRUPTED.format(wait=wait)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["interrupted", "[]", "True"], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_kernel_takes_the_child_with_it():
    script = """
    import time
    from pagedlab.course.answer import pack
    from pagedlab.course.sandbox import judge_safely, Limits
    def loops(n, b):
        while True:
            try:
                time.sleep(100)
            except BaseException:
                pass
    judge_safely("blocks_needed", pack(loops), Limits(seconds=1000))
    """
    kernel = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    deadline = time.monotonic() + 60
    while len(psutil.Process(kernel.pid).children(recursive=True)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    family = psutil.Process(kernel.pid).children(recursive=True)
    kernel.kill()
    kernel.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert len(family) >= 3 and not alive


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "print('once')\nfrom pagedlab import check\n"
        "def stub(n, b):\n    raise NotImplementedError\n"
        "check('blocks_needed', lambda n, b: -(-n // b))\ncheck('blocks_needed', stub)\n"
    )
    environment = os.environ | {"PAGEDLAB_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert not done.returncode, done.stderr
    assert done.stdout.count("once") == 1 and "passed" in done.stdout and "not attempted" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", "home"}  # nothing of ours beside the learner's
