"""`pagedlab doctor`: what the course needs, whether it is here, and what to do where it is not.

Every finding starts with the word 'ok', 'note' or 'problem', so nothing depends on colour. A note says what is
different here and does no harm.
"""

import json
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pagedlab.course.lab import THIS_PYTHON_FIRST
from pagedlab.course.workspace import Workspace
from pagedlab.paths import cache_dir, home

# The packages a lesson uses directly. Their tested versions stand in constraints.txt.
PACKAGES = (
    "anywidget",
    "gguf",
    "hypothesis",
    "ipykernel",
    "ipywidgets",
    "jupyterlab",
    "matplotlib",
    "numpy",
    "safetensors",
    "tokenizers",
    "torch",
)
PYTHONS = ((3, 10), (3, 13))
# JupyterLab's half of the widgets: folder under labextensions, and the first version that draws ours.
FRONT_ENDS = {"anywidget": (0, 9), "@jupyter-widgets/jupyterlab-manager": (5, 0)}
NEEDED_MEMORY = 2 * 2**30  # the model in float32, its caches, a notebook or two
NEEDED_DISK = {"home": 50 * 2**20, "cache": 300 * 2**20}
REINSTALL = "install the course again (in a checkout: make clean lab)"


@dataclass(frozen=True)
class Finding:
    state: str  # "ok", "note" or "problem"
    what: str
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.state:<8} {self.what}"
        return f"{line}\n{'':<8} -> {self.advice}" if self.advice else line


def run_doctor() -> int:
    """Print every finding as it is made. Returns 1 if there is a problem, else 0."""
    number = 0
    for finding in findings():
        number += finding.state == "problem"
        print(finding, flush=True)
    print()
    if number:
        print(f"{number} problem{'s' if number > 1 else ''} found. Each line marked 'problem' says what to do.")
    else:
        print("No problem found. Start with 'pagedlab lab'.")
    return 1 if number else 0


def findings() -> Iterator[Finding]:
    os.environ.update(THIS_PYTHON_FIRST)
    for check in CHECKS:
        try:
            yield from check()
        except Exception as error:  # a doctor that dies of one illness finds no other
            name = check.__name__.strip("_").replace("_", " ")
            yield Finding("problem", f"{name}: {type(error).__name__}: {error}", REINSTALL)


def _python() -> Iterator[Finding]:
    found = sys.version_info[:2]
    what = f"Python {platform.python_version()} on {platform.system()}: {sys.executable}"
    if PYTHONS[0] <= found <= PYTHONS[1]:
        yield Finding("ok", what)
    else:
        low, high = (".".join(map(str, version)) for version in PYTHONS)
        yield Finding("problem", what, f"use Python {low} to {high}")


def tested_versions() -> dict[str, str]:
    """Package name -> the version constraints.txt has for this Python and system."""
    from packaging.requirements import Requirement

    package = Path(__file__).resolve().parents[1]
    places = (package / "constraints.txt", package.parent / "constraints.txt")  # in a wheel, in a checkout
    text = next(place for place in places if place.is_file()).read_text(encoding="utf-8")
    pins = [Requirement(line) for line in text.splitlines() if line and not line.startswith("#")]
    return {pin.name: str(pin.specifier)[2:] for pin in pins if pin.marker is None or pin.marker.evaluate()}


def _packages() -> Iterator[Finding]:
    tested = tested_versions()
    for name in PACKAGES:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding("problem", f"{name} is not installed", REINSTALL)
            continue
        if version.split("+")[0] == tested[name]:
            yield Finding("ok", f"{name} {version}")
        else:
            yield Finding("note", f"{name} {version} is untested; the course was tested with {tested[name]}")


def _torch() -> Iterator[Finding]:
    try:
        import torch

        product = torch.full((64, 64), 2.0) @ torch.full((64, 64), 3.0)
    except Exception as error:  # a broken library can raise anything on import
        yield Finding("problem", f"torch does not work: {type(error).__name__}: {error}", REINSTALL)
        return
    if not bool((product == 2.0 * 3.0 * 64).all()):
        yield Finding("problem", "torch multiplies wrongly", REINSTALL)
        return
    yield Finding("ok", f"torch multiplies on the CPU with {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        yield Finding("ok", f"GPU: {torch.cuda.get_device_name(0)}")
    else:
        yield Finding("ok", "no GPU here, and none is needed")


def _triton() -> Iterator[Finding]:
    try:
        import triton
    except ImportError:
        if platform.system() == "Linux":
            yield Finding("problem", "triton is not installed; lessons 08-11 need it", REINSTALL)
        else:
            yield Finding(
                "note", "triton is not on this system", "lessons 08-11 need Linux or WSL2; the others run here"
            )
        return
    version, tested = triton.__version__, tested_versions()["triton"]
    if version.split("+")[0] == tested:
        yield Finding("ok", f"triton {version}")
    else:
        yield Finding("note", f"triton {version} is untested; the course was tested with {tested}")
    yield from _triton_on_a_gpu()


def _triton_on_a_gpu() -> Iterator[Finding]:
    """A kernel is started by a piece of C that Triton writes and has compiled. Interpreting needs none of that."""
    import torch

    from pagedlab.gpu import mode

    if not torch.cuda.is_available():
        return
    header = Path(sysconfig.get_paths(scheme=sysconfig.get_default_scheme().replace("local", "prefix"))["include"])
    if os.environ.get(mode.VARIABLE) and mode.is_interpreting():
        yield Finding("note", f"{mode.VARIABLE} is set: kernels are interpreted, not run on the GPU", "unset it")
    elif not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        yield Finding("problem", "Triton needs a C compiler to run kernels on the GPU", "install gcc")
    elif not (header / "Python.h").is_file():
        yield Finding(
            "problem",
            f"Triton needs Python.h to run kernels on the GPU; it is not in {header}",
            "install Python's headers (on Debian and Ubuntu: sudo apt-get install python3-dev)",
        )
    else:
        yield Finding("ok", "Triton can compile for this GPU")


def _model() -> Iterator[Finding]:
    from pagedlab.model import fetch

    path = fetch.model_path()
    if not path.is_file():
        yield Finding("problem", f"the language model is not at {path}", "run: pagedlab fetch")
    elif fetch.is_fetched():
        yield Finding("ok", f"the language model is whole (sha256 checked): {path}")
    else:
        yield Finding("problem", f"the language model is damaged: {path}", "run: pagedlab fetch")


def _widgets() -> Iterator[Finding]:
    from jupyter_core.paths import jupyter_path

    folders = [Path(folder) for folder in jupyter_path("labextensions")]
    for name, wanted in FRONT_ENDS.items():
        found = next((folder / name for folder in folders if (folder / name / "package.json").is_file()), None)
        if found is None:
            yield Finding(
                "problem",
                f"JupyterLab has no {name}; widgets will show an error",
                f"{REINSTALL}, then start JupyterLab anew (looked in {', '.join(map(str, folders))})",
            )
            continue
        version = json.loads((found / "package.json").read_text(encoding="utf-8"))["version"]
        numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        if numbers >= wanted:
            yield Finding("ok", f"widgets' front end {name} {version}")
        else:
            low = ".".join(map(str, wanted))
            yield Finding("problem", f"widgets' front end {name} {version} is older than {low}", REINSTALL)


def _kernel() -> Iterator[Finding]:
    from jupyter_client.kernelspec import KernelSpecManager

    argv = KernelSpecManager().get_kernel_spec("python3").argv
    # Jupyter itself replaces a bare 'python' by the Python it runs on.
    same = argv[0] in ("python", "python3", Path(sys.executable).name)
    if same or Path(argv[0]).absolute() == Path(sys.executable).absolute():
        yield Finding("ok", "notebooks run on this Python")
    else:
        yield Finding(
            "problem",
            f"notebooks would run on another Python: {argv[0]}",
            "remove that kernel (jupyter kernelspec remove python3), or run: python -m ipykernel install --sys-prefix",
        )


def _memory() -> Iterator[Finding]:
    import psutil

    free = psutil.virtual_memory().available
    what = f"{free / 2**30:.1f} GiB of memory free"
    if free >= NEEDED_MEMORY:
        yield Finding("ok", what)
    else:
        yield Finding("problem", f"{what}; the model needs about {NEEDED_MEMORY / 2**30:.0f}", "close other programs")


def _folders() -> Iterator[Finding]:
    for name, folder, variable in (("home", home(), "PAGEDLAB_HOME"), ("cache", cache_dir(), "PAGEDLAB_CACHE")):
        place = folder
        while not place.exists():
            place = place.parent
        advice = f"make it writable, or set {variable} to another folder"
        try:
            # Where the folder is not there yet, its parent must let us make it. Nothing stays behind.
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            yield Finding("problem", f"cannot write to {folder}: {error.strerror}", advice)
            continue
        free, needed = shutil.disk_usage(place).free, NEEDED_DISK[name]
        what = f"{folder} can be written, {free / 2**30:.1f} GiB free"
        if free >= needed:
            yield Finding("ok", what)
        else:
            yield Finding("problem", f"{what}; {needed / 2**20:.0f} MiB are needed", f"make room, or set {variable}")


def _lessons() -> Iterator[Finding]:
    workspace = Workspace()
    number = len(list(workspace.shipped.glob("*.ipynb")))
    if number:
        yield Finding("ok", f"{number} lesson{'s' if number > 1 else ''} in this version of the course")
    else:
        yield Finding("problem", f"no lessons in {workspace.shipped}", REINSTALL)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python,
    _packages,
    _torch,
    _triton,
    _model,
    _widgets,
    _kernel,
    _memory,
    _folders,
    _lessons,
)
