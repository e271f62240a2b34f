"""A real JupyterLab in a real browser: start one, open a notebook, run cells, look at what is shown.

Nothing here knows about a particular widget. Everything stays on 127.0.0.1, in folders made for the test.
"""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, urlsplit

import axe_playwright_python
import nbformat
from playwright.sync_api import Error, Locator, sync_playwright

CHROMIUM_FLAGS = [
    "--disable-gpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--metrics-recording-only",
    "--force-color-profile=srgb",
]

# JupyterLab asks about news, and asks for a kernel, unless told not to.
QUIET_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {"autoStartDefaultKernel": True},
}


class LabServer:
    """A JupyterLab on a free port of 127.0.0.1, with settings and data of its own.

    `home` holds everything the server and its kernels write. By default JupyterLab itself serves `home/notebooks`.
    `command` runs something else that serves JupyterLab: it is given `--port`, and must print its address and token.
    """

    def __init__(self, home: Path, command: list[str] | None = None, env: dict[str, str] | None = None):
        self.home = home
        self.notebooks = home / "notebooks"
        self.notebooks.mkdir(parents=True, exist_ok=True)
        self._port = _free_port()
        self._log_path = home / "server.log"
        if command:
            self._command = command
            self.url = self.token = ""  # as printed
        else:
            self._command = [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1"),
                *("--ServerApp.port_retries=0", f"--ServerApp.root_dir={self.notebooks}"),
                *(["--allow-root"] if _is_root() else []),
            ]
            self.url, self.token = f"http://127.0.0.1:{self._port}", secrets.token_hex(16)
        private = {
            name: str(home / name.lower())
            for name in (
                *("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"),
                *("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"),
            )
        }
        self._env = {**os.environ, **private, "JUPYTER_TOKEN": self.token, "PYTHONUNBUFFERED": "1", **(env or {})}

    def __enter__(self) -> "LabServer":
        with self._log_path.open("wb") as log:
            # A process group of its own, so that ending it ends nothing else. The server ends its kernels when it ends.
            self._process = subprocess.Popen(
                [*self._command, f"--port={self._port}"],
                env=self._env,
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self._wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(timeout=15)

    def _wait_until_up(self, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with code {self._process.returncode}:\n{self.log()[-3000:]}")
            printed = re.search(r"(http://127\.0\.0\.1:\d+)/\S*\?token=(\w+)", self.log())
            if not self.url and printed:
                self.url, self.token = printed.groups()
            try:
                if self.url:
                    self.call("GET", "/api/status")
                    return
            except OSError:
                pass  # not listening yet
            time.sleep(0.2)
        raise RuntimeError(f"no answer from port {self._port} after {seconds:.0f} s:\n{self.log()[-3000:]}")

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def call(self, method: str, path: str, body: object = None) -> object:
        """One request to the server's own interface; the answer from JSON, or None."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def set_setting(self, plugin: str, values: dict) -> None:
        """What the settings editor would save. Pages see it when they are loaded next."""
        self.call("PUT", f"/lab/api/settings/{quote(plugin, safe='@')}", {"raw": json.dumps(values)})

    def be_quiet(self) -> None:
        for plugin, values in QUIET_SETTINGS.items():
            self.set_setting(plugin, values)

    def set_theme(self, theme: str) -> None:
        """`theme` is "light" or "dark"."""
        self.set_setting("@jupyterlab/apputils-extension:themes", {"theme": f"JupyterLab {theme.title()}"})

    def write_notebook(self, name: str, cells: list[str]) -> None:
        """A notebook of code cells, not yet run."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        nbformat.write(notebook, self.notebooks / name)

    def end_session(self, name: str) -> None:
        """Shut the kernel of one notebook down."""
        for session in self.call("GET", "/api/sessions"):
            if session["path"] == name:
                self.call("DELETE", f"/api/sessions/{session['id']}")


_CELLS = ".jp-Notebook .jp-Cell"


class NoBrowser(Exception):
    """Neither the system's Chromium nor playwright's own could be started."""


class Browser:
    """Chromium without a window. `context` is playwright's, with a fresh profile that is thrown away."""

    def __init__(self, profile: Path):
        self._profile = profile

    def __enter__(self) -> "Browser":
        self._playwright = sync_playwright().start()
        tried = []
        flags = [*CHROMIUM_FLAGS, *(["--no-sandbox"] if _is_root() else [])]
        for path in [*_system_browsers(), None]:
            try:
                self.context = self._playwright.chromium.launch_persistent_context(
                    self._profile,
                    executable_path=path,
                    headless=True,
                    args=flags,
                    viewport={"width": 1280, "height": 1000},
                    locale="en-US",
                    timezone_id="UTC",
                )
                return self
            except Error as error:
                tried.append(f"{path or 'the browser that playwright installs'}: {str(error).splitlines()[0]}")
        self._playwright.stop()
        raise NoBrowser("no browser could be started; tried\n  " + "\n  ".join(tried))

    def __exit__(self, *_) -> None:
        self.context.close()
        self._playwright.stop()


class NotebookPage:
    """One notebook open in JupyterLab, used the way a learner does: by clicking and typing."""

    def __init__(self, server: LabServer, browser: Browser):
        self.server = server
        self.name = ""
        self.page = browser.context.new_page()
        self.page.set_default_timeout(20_000)
        self.errors: list[str] = []  # what the browser's console shows in red
        self.left_the_machine: list[str] = []  # addresses that were asked for and are not on 127.0.0.1
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._note_request)

    def _note_request(self, request) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.hostname != "127.0.0.1":
            self.left_the_machine.append(request.url)

    def open(self, name: str) -> None:
        """Open a notebook of the served folder and wait until its kernel is ready."""
        self.name = name
        try:
            self.server.call("GET", f"/api/contents/{quote(name)}?content=0")
        except urllib.error.HTTPError as error:
            raise FileNotFoundError(f"the server has no {name}: {error}") from None
        # `reset` forgets which tabs were open. The status bar is what to wait for: the toolbar says idle too early.
        self.page.goto(f"{self.server.url}/lab/tree/{quote(name)}?token={self.server.token}&reset")
        self.page.locator(_CELLS).first.wait_for(timeout=60_000)
        self.wait_idle()

    def wait_idle(self, seconds: float = 60) -> None:
        self.page.wait_for_function(
            "() => /\\| Idle/.test(document.querySelector('#jp-main-statusbar')?.textContent || '')",
            timeout=1000 * seconds,
        )

    def run_all(self, seconds: float = 60) -> None:
        """The menu's Run All Cells; returns when the last cell has run. A cell that stops the run is an error."""
        # Stored outputs come with numbers, which would look as if the cells had run.
        self._menu("Edit", "^Clear Outputs of All Cells")
        self._menu("Run", "^Run All Cells")
        self.page.wait_for_function(
            """() => {
              const cells = [...document.querySelectorAll('.jp-Notebook .jp-CodeCell')];
              const prompts = cells.map((cell) => cell.querySelector('.jp-InputPrompt')?.textContent || '');
              const stopped = document.querySelector('.jp-Notebook [data-mime-type="application/vnd.jupyter.error"]');
              const done = (prompt) => /\\[\\d+\\]/.test(prompt);
              const waiting = prompts.some((prompt) => prompt.includes('*'));
              return !waiting && (stopped ? prompts.some(done) : prompts.every(done));
            }""",
            timeout=1000 * seconds,
        )
        self.wait_idle(seconds)
        prompts = self.page.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt").all_text_contents()
        if not all(re.search(r"\[\d+\]", prompt) for prompt in prompts):
            errors = self.page.locator('.jp-Notebook [data-mime-type="application/vnd.jupyter.error"]')
            raise AssertionError(f"the run stopped early:\n{errors.last.inner_text()}")

    def _menu(self, menu: str, entry: str) -> None:
        self.page.get_by_role("menuitem", name=menu, exact=True).click()
        self.page.get_by_role("menuitem", name=re.compile(entry)).click()

    def cells(self) -> list[str]:
        """The source of every cell, top to bottom."""
        return self.page.locator(f"{_CELLS} .cm-content").all_inner_texts()

    def evaluate(self, code: str, seconds: float = 30) -> str:
        """Run `code` in a new last cell and return what the cell printed; the cell is taken away again."""
        cell = self.run_new_cell(code, seconds)
        text = "\n".join(cell.locator(".jp-OutputArea-output pre").all_inner_texts()).strip()
        self.remove_last_cell()
        return text

    def run_new_cell(self, code: str, seconds: float = 30) -> Locator:
        """Add a cell at the end, run `code` in it, and return its place on the page."""
        cells = self.page.locator(_CELLS)
        place = cells.count()
        self.page.locator(".jp-Notebook-footer").click()
        cell = cells.nth(place)
        cell.locator(".cm-content").click()
        self.page.keyboard.insert_text(code)
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(
            "(prompt) => /\\[\\d+\\]/.test(prompt.textContent)",
            arg=cell.locator(".jp-InputPrompt").element_handle(),
            timeout=1000 * seconds,
        )
        self.wait_idle(seconds)
        return cell

    def remove_last_cell(self) -> None:
        left = self.page.locator(_CELLS).count() - 1
        self.page.locator(_CELLS).nth(left).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("d")
        self.page.keyboard.press("d")
        self.page.wait_for_function(f"(left) => document.querySelectorAll('{_CELLS}').length === left", arg=left)

    def save(self) -> None:
        """The File menu's Save Notebook; returns when the tab no longer says that something is unsaved."""
        self._menu("File", "^Save Notebook(?! As)")
        self.page.locator(".lm-DockPanel-tabBar .lm-TabBar-tab.jp-mod-dirty").wait_for(state="detached")

    def screenshot(self, name: str, folder: Path, locator: Locator | None = None) -> Path:
        """A picture of the page, or of one part of it; into `PAGEDLAB_SCREENSHOTS` if that is set."""
        folder = Path(os.environ.get("PAGEDLAB_SCREENSHOTS") or folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.png"
        (locator or self.page).screenshot(path=path, animations="disabled")
        return path

    def accessibility_problems(self, selector: str) -> list[str]:
        """What axe-core finds wrong inside `selector`, one line each."""
        script = Path(axe_playwright_python.__file__).with_name("axe.min.js")
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.add_script_tag(path=script)
        found = self.page.evaluate("async (selector) => (await axe.run(selector)).violations", selector)
        return [
            f"{rule['id']} ({rule['impact']}): {rule['help']}: {node['html'][:200]}"
            for rule in found
            for node in rule["nodes"]
        ]

    def close(self) -> None:
        self.page.close()
        self.server.end_session(self.name)


def _system_browsers() -> list[str]:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return [path for path in map(shutil.which, names) if path]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
