"""An engine in a process of its own that stays alive, and what is measured from outside while it works.

Parent and child talk in lines of JSON over pipes: one request, one answer. So several engines are ready at the same
time and can take turns: what slows the machine for a minute slows them all.
"""

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from pagedlab.errors import PagedLabError

WORKER = Path(__file__).parent / "worker.py"


class PeerFailedError(PagedLabError):
    """A child process ended, or said that it could not do what it was asked."""


class Run(NamedTuple):
    seconds: float
    outputs: list[list[int]]
    cpu_seconds: float  # processor time of the child and its own children
    foreign_share: float  # of the machine's processor time, used by others meanwhile
    peak_bytes: int  # largest resident size since the start, summed over the same


class Engine:
    """A running child. `start_seconds` is from the process's start to its first token."""

    def __init__(self, name: str, python: Path, options: dict, environment: dict[str, str], log: Path):
        self.name, self.peak_bytes = name, 0
        self._log = log
        started = time.perf_counter()
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                [str(python), str(WORKER), json.dumps({"engine": name, **options})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | environment,
                text=True,
            )
        self._tree = psutil.Process(self._process.pid)
        self._stopped = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        self.versions = self._answer()["versions"]
        self.start_seconds = time.perf_counter() - started

    def run(self, requests) -> Run:
        """Generate for all requests, which arrive together. The child's own clock counts, without the pipe."""
        machine, own = machine_seconds(), self._cpu_seconds()
        began = time.perf_counter()
        answer = self._ask(
            {"prompts": [request.prompt_ids for request in requests], "max_tokens": [r.max_tokens for r in requests]}
        )
        available = (time.perf_counter() - began) * (psutil.cpu_count() or 1)
        own = self._cpu_seconds() - own
        foreign = machine_seconds() - machine - own
        lengths = [len(output) for output in answer["outputs"]]
        wanted = [request.max_tokens for request in requests]
        if lengths != wanted:
            raise PeerFailedError(f"{self.name} gave {lengths} tokens; expected {wanted}")
        share = min(max(foreign / available, 0.0), 1.0)
        return Run(answer["seconds"], answer["outputs"], own, share, self.peak_bytes)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the child and its own children; by force if it does not want to."""
        self._stopped.set()
        family = self._family()
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for process in family[1:]:
            try:
                process.kill()
            except psutil.Error:
                pass

    def _ask(self, message: dict) -> dict:
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended; reading says so
        return self._answer()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            self.stop()
            said = self._log.read_text(errors="replace").strip().splitlines()[-4:]
            lines = "".join(f"\n    {line}" for line in said)
            raise PeerFailedError(f"{self.name}: {answer['error']}{lines}")
        return answer

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._tree, *self._tree.children(recursive=True)]
        except psutil.Error:
            return [self._tree]

    def _sample(self) -> None:
        while not self._stopped.wait(0.2):
            self.peak_bytes = max(self.peak_bytes, self._sum(lambda process: process.memory_info().rss))

    def _cpu_seconds(self) -> float:
        return self._sum(lambda process: process.cpu_times().user + process.cpu_times().system)

    def _sum(self, measure) -> float:
        total = 0
        for process in self._family():
            try:
                total += measure(process)
            except psutil.Error:
                pass  # it has just ended
        return total


def machine_seconds() -> float:
    """Processor seconds used by everyone since the machine started."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


def wait_until_quiet(seconds: float, share: float = 0.05) -> float:
    """Wait until others use less than `share` of the machine over one second, at most `seconds`. Returns the share."""
    end = time.perf_counter() + seconds
    while True:
        before, began = machine_seconds(), time.perf_counter()
        time.sleep(1.0)
        used = (machine_seconds() - before) / (time.perf_counter() - began) / (psutil.cpu_count() or 1)
        if used < share or time.perf_counter() >= end:
            return used
