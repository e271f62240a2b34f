"""`pagedlab lab`: a real JupyterLab is started, asked, and stopped again."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import nbformat
import psutil
import pytest

from pagedlab.course import lab
from pagedlab.course.lab import LabError, take_port

# The command as a learner runs it, with lessons of the test's own.
LAUNCH = (
    "import sys, pathlib; from pagedlab import cli; from pagedlab.course import workspace\n"
    "workspace.shipped_lessons = lambda: pathlib.Path(sys.argv[1])\n"
    "sys.exit(cli.main(sys.argv[2:]))"
)
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def taken(port):
    with socket.socket() as server:
        server.bind((lab.HOST, port))
        server.listen()
        yield server.getsockname()[1]


def run_of_free_ports(count):
    """The first of `count` neighbouring ports nobody uses."""
    for first in range(20_000 + os.getpid() % 10_000, 60_000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, probe in enumerate(sockets):
                probe.bind((lab.HOST, first + offset))
            return first
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
    raise AssertionError("no free ports")


def test_a_free_port_is_used_as_it_is_and_a_taken_one_gives_the_next():
    first = run_of_free_ports(3)
    with take_port(first) as listening:
        assert listening.getsockname() == (lab.HOST, first)
    with taken(first), taken(first + 1), take_port(first) as listening:
        assert listening.getsockname() == (lab.HOST, first + 2)


def test_a_port_is_ours_at_once_and_whoever_connects_waits():
    first = run_of_free_ports(2)
    with take_port(first) as one, take_port(first) as other:
        assert (one.getsockname()[1], other.getsockname()[1]) == (first, first + 1)
        with socket.create_connection((lab.HOST, first), timeout=5):
            pass


def test_too_many_taken_ports_are_an_error(monkeypatch):
    monkeypatch.setattr(lab, "PORT_TRIES", 2)
    first = run_of_free_ports(2)
    with taken(first), taken(first + 1), pytest.raises(LabError, match=f"{first} to {first + 1} are all taken"):
        take_port(first)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_does_not_exist(port):
    with pytest.raises(LabError, match="from 1 to 65535"):
        take_port(port)


def test_relative_folders_are_made_absolute_for_the_kernels(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAGEDLAB_HOME", "mine")
    monkeypatch.setenv("PAGEDLAB_CACHE", "cache")
    found = lab.environment(tmp_path / "mine", "t")
    assert found["PAGEDLAB_HOME"] == str(tmp_path / "mine") and found["PAGEDLAB_CACHE"] == str(tmp_path / "cache")


class Lab:
    """A running `pagedlab lab`."""

    def __init__(self, folder, port, wait=True):
        (folder / "shipped").mkdir(exist_ok=True)
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1)")])
        nbformat.write(notebook, folder / "shipped" / "00_start_here.ipynb")
        command = [sys.executable, "-c", LAUNCH, str(folder / "shipped"), "lab", "--no-browser", "--no-fetch"]
        self.log = folder / f"log-{port}-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=folder,
            env={**os.environ, "PAGEDLAB_HOME": "home"},  # relative on purpose
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
        )
        if wait:
            self.wait()

    def wait(self):
        deadline = time.monotonic() + 60
        while not (found := re.search(r"^ +http://127\.0\.0\.1:(\d+)(/\S+)\?token=(\w+)$", self.said(), re.MULTILINE)):
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.1)
        self.port, self.page, self.token = int(found[1]), found[2], found[3]

    def said(self):
        return self.log.read_text()

    def open(self, path, token=None, method="GET", data=None):
        headers = {"Authorization": f"token {token or self.token}"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers=headers, method=method, data=data
        )
        with DIRECT.open(request, timeout=30) as answer:
            return answer.geturl(), answer.read()

    def get(self, path):
        return json.loads(self.open(path)[1])

    def stop(self, with_signal):
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        return self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    server = Lab(tmp_path_factory.mktemp("lab"), run_of_free_ports(4))
    yield server
    server.stop(signal.SIGTERM)


def test_the_start_page_of_the_learners_copy_is_served(running):
    assert running.page == "/lab/tree/00_start_here.ipynb"
    assert [item["name"] for item in running.get("/api/contents")["content"]] == ["00_start_here.ipynb"]
    url, page = running.open("/")
    assert url.split("?")[0].endswith("/lab/tree/00_start_here.ipynb") and b"JupyterLab" in page


def test_nobody_gets_in_without_the_token(running):
    with pytest.raises(urllib.error.HTTPError) as refused:
        running.open("/api/contents", token="wrong")
    assert refused.value.code == 403
    command_lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in command_lines if running.token in line]


def test_only_this_machine_is_listened_to(running):
    listening = [c for c in psutil.Process(running.process.pid).net_connections("tcp") if c.status == "LISTEN"]
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}


def test_settings_of_the_course_are_in_force(running):
    for plugin, wanted in lab.OVERRIDES.items():
        properties = running.get(f"/lab/api/settings/{plugin}")["schema"]["properties"]
        for name, value in wanted.items():
            assert properties[name]["default"] == value, f"{plugin} {name}"


def test_a_second_lab_takes_the_next_port_and_ctrl_c_stops_it_and_its_kernels(running, tmp_path):
    second = Lab(tmp_path, running.port)
    try:
        assert second.port > running.port
        second.open("/api/kernels", method="POST", data=b'{"name": "python3"}')
        kernels = psutil.Process(second.process.pid).children(recursive=True)
        assert kernels
        kernel_environment = kernels[-1].environ()
        assert kernel_environment["PAGEDLAB_HOME"] == str(tmp_path / "home")
    finally:
        status = second.stop(signal.SIGINT)
    assert status == 0, second.said()
    assert "Traceback" not in second.said()
    assert psutil.wait_procs(kernels, timeout=10)[1] == [], "a kernel outlives its server"


def test_labs_that_start_at_the_same_moment_get_a_port_each(tmp_path):
    first, labs = run_of_free_ports(4), []
    try:
        labs += [Lab(tmp_path, first, wait=False) for _ in range(2)]
        for each in labs:
            each.wait()
            assert each.get("/api/status")["started"]
        assert {each.port for each in labs} == {first, first + 1}
    finally:
        for each in labs:
            each.stop(signal.SIGTERM)
