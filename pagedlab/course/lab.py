"""`pagedlab lab`: the learner's lessons in JupyterLab, on this machine only.

JupyterLab runs in this process, so there is one thing to stop and nothing is left behind. It gets settings of its own
in the learner's folder: another JupyterLab of the same user neither sees nor changes them.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from pagedlab.course.workspace import Workspace
from pagedlab.errors import PagedLabError
from pagedlab.paths import cache_dir, home, write_atomic

HOST = "127.0.0.1"
PORT_TRIES = 20
START_PAGE = "00_start_here.ipynb"
START_TIMEOUT_S = 120

# No news over the lesson, no question which kernel to use, code that wraps where the window is narrow, and a widget is
# still drawn when a notebook is reopened.
OVERRIDES = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {
        "autoStartDefaultKernel": True,
        "codeCellConfig": {"lineNumbers": False, "lineWrap": True},
    },
    "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True},
}


# Kernels and widgets of this Python win over others the user has installed. `pagedlab doctor` looks the same way.
THIS_PYTHON_FIRST = {"JUPYTER_PREFER_ENV_PATH": "1"}


class LabError(PagedLabError):
    """JupyterLab cannot be started."""


def run_lab(port: int = 8888, browser: bool = True, fetch: bool = True) -> int:
    """Prepare the learner's folder, get the model, and serve the lessons until Ctrl-C. Returns the exit status.

    `port` is the first one tried; when it is taken the next free one is used.
    """
    workspace = Workspace()
    for line in workspace.prepare().messages():
        print(line)
    if fetch:
        _get_model()
        _compile_ahead()
    listening = take_port(port)
    port = listening.getsockname()[1]
    settings = write_settings(workspace.home)
    token = secrets.token_hex(24)
    os.environ.update(environment(workspace.home, token))
    page = f"/lab/tree/{START_PAGE}" if (workspace.lessons / START_PAGE).is_file() else "/lab"
    # A daemon: it says where the course is once the server answers, and never keeps the process alive.
    threading.Thread(target=_announce, args=(port, page, token), daemon=True).start()
    return _serve(arguments(port, browser, workspace.lessons, settings, page), listening)


def take_port(first: int) -> socket.socket:
    """Listen on `first`, or on the next port nobody listens on. `LabError` after 20 tries.

    From now on the port is ours, so two labs that start at the same moment get two ports. Who connects before the
    server is up waits for it.
    """
    if not 1 <= first <= 65535:
        raise LabError(f"Port {first} does not exist; ports go from 1 to 65535.")
    last = min(first + PORT_TRIES - 1, 65535)
    for port in range(first, last + 1):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if os.name == "posix":  # a port that was closed a moment ago counts as free
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((HOST, port))
            listening.listen(128)
            listening.setblocking(False)  # as the server's event loop needs it
            return listening
        except OSError as error:
            listening.close()
            if isinstance(error, PermissionError):
                raise LabError(f"Port {port} needs special rights; use --port with a number above 1023.") from None
    raise LabError(f"Ports {first} to {last} are all taken. Stop another server, or use --port.")


def write_settings(folder: Path) -> Path:
    """Write JupyterLab's settings for the course; returns the folder they are in."""
    settings = folder / "jupyter" / "settings"
    write_atomic(settings / "overrides.json", json.dumps(OVERRIDES, indent=1).encode())
    return settings


def environment(folder: Path, token: str) -> dict[str, str]:
    """What the server and its kernels find in their environment. The token stands here, not on a command line."""
    return {
        **THIS_PYTHON_FIRST,
        # `pagedlab` works in the lab's own terminals and in cells, also where no environment was activated.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "JUPYTER_TOKEN": token,
        "JUPYTER_CONFIG_DIR": str(folder / "jupyter" / "config"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "jupyter" / "user-settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "jupyter" / "workspaces"),
        # Kernels run in another folder than this process: a relative path would mean something else there.
        "PAGEDLAB_HOME": str(home()),
        "PAGEDLAB_CACHE": str(cache_dir()),
    }


def arguments(port: int, browser: bool, lessons: Path, settings: Path, page: str) -> list[str]:
    """JupyterLab's command line."""
    given = [
        f"--ServerApp.ip={HOST}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.base_url=/",
        f"--ServerApp.root_dir={lessons}",
        "--ServerApp.allow_root=True",  # in a container there may be nobody else; only this machine can connect
        "--ServerApp.answer_yes=True",  # Ctrl-C means stop
        "--ServerApp.log_level=WARN",
        "--LabApp.log_level=WARN",
        f"--LabApp.default_url={page}",
        f"--LabApp.app_settings_dir={settings}",
        "--LabApp.extension_manager=readonly",  # asks no package index
        "--LanguageServerManager.autodetect=False",  # looks for no editors' servers on this machine
        # Not a login shell: that would set PATH anew, without this environment.
        f"--ServerApp.terminado_settings={{'shell_command': [{os.environ.get('SHELL', '/bin/sh')!r}]}}",
    ]
    return given if browser else [*given, "--no-browser"]


def server_url(port: int, page: str, token: str) -> str:
    return f"http://{HOST}:{port}{page}?token={token}"


def wait_until_up(port: int, token: str, timeout_s: float = START_TIMEOUT_S) -> bool:
    """Whether the server answers within `timeout_s` seconds."""
    request = urllib.request.Request(f"http://{HOST}:{port}/api/status", headers={"Authorization": f"token {token}"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy has no way to this machine
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            with direct.open(request, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def _announce(port: int, page: str, token: str) -> None:
    if wait_until_up(port, token):
        print(f"\nThe course is open at\n\n    {server_url(port, page, token)}\n\nCtrl-C stops it.\n", flush=True)
    else:
        print(f"The server has not answered for {START_TIMEOUT_S} s; Ctrl-C stops it.", file=sys.stderr, flush=True)


def _get_model() -> None:
    from pagedlab.model import fetch

    if fetch.is_fetched():
        return
    try:
        fetch.fetch(progress=True)
    except PagedLabError as error:
        print(f"{error}\n\nThe lessons open without the model. Get it later with 'pagedlab fetch'.", file=sys.stderr)


def _compile_ahead() -> None:
    """What the engine runs on, in a process of its own, so that no lesson has to wait for it."""
    nowhere = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with contextlib.suppress(OSError):  # then the first lesson that needs it compiles
        subprocess.Popen([sys.executable, "-m", "pagedlab.engine.warm_up"], **nowhere)


def _serve(argv: list[str], listening: socket.socket) -> int:
    try:
        from jupyter_server.serverapp import ServerApp
        from jupyterlab.labapp import LabApp
    except ImportError as error:
        raise LabError(f"JupyterLab cannot be loaded: {error}. 'pagedlab doctor' says what is missing.") from error

    class Server(ServerApp):
        """Serves on the socket that is there already; its own would be bound a second or two later."""

        def _find_http_port(self):
            pass

        def _bind_http_server_tcp(self):
            self.http_server.add_socket(listening)
            return True

    if all(hasattr(ServerApp, name) for name in ("_find_http_port", "_bind_http_server_tcp")):
        LabApp.serverapp_class = Server
    else:
        listening.close()  # a version of the server that binds in another way: let it
    try:
        LabApp.launch_instance(argv)
    except SystemExit as stop:  # how Jupyter ends when it cannot start
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:  # Ctrl-C before the server has its own answer to it
        pass
    return 0
