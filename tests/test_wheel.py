"""What `pip install` gives: lessons and widgets are in the wheel, and `pagedlab lab` serves them with no checkout."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    (found,) = folder.glob("pagedlab-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A new environment with the wheel in it; its dependencies are those of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    # Behind the new packages, and without the files that make a checkout importable.
    (packages / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def names(wheel):
    return set(zipfile.ZipFile(wheel).namelist())


def test_every_lesson_and_static_file_is_in_the_wheel(wheel):
    lessons = sorted((ROOT / "lessons").glob("*.ipynb"))
    assert lessons
    assert {f"pagedlab/lessons/{path.name}" for path in lessons} <= names(wheel)
    static = [path for path in (ROOT / "pagedlab").rglob("*") if path.suffix in (".js", ".css", ".svg", ".json")]
    assert {str(path.relative_to(ROOT)) for path in static} <= names(wheel)
    assert "pagedlab/constraints.txt" in names(wheel)


def test_nothing_else_is_in_the_wheel(wheel):
    for name in names(wheel):
        assert name.startswith(("pagedlab/", "pagedlab-")), name
        assert not re.search(r"solutions|tests|__pycache__|\.ipynb_checkpoints|SOLUTION", name), name
    for lesson in (name for name in names(wheel) if name.endswith(".ipynb")):
        assert b"NotImplementedError" in zipfile.ZipFile(wheel).read(lesson), f"{lesson} has no exercise left to do"


def test_an_installed_course_serves_its_lessons_from_an_empty_folder(installed, tmp_path):
    base = Path(sys.prefix) / "share" / "jupyter"
    env = {
        **os.environ,
        "PAGEDLAB_HOME": str(tmp_path / "home"),
        "PAGEDLAB_CACHE": str(tmp_path / "cache"),
        # JupyterLab's own files lie in the environment the dependencies come from.
        "JUPYTER_PATH": str(base),
        "JUPYTERLAB_DIR": str(base / "lab"),
    }
    env.pop("PYTHONPATH", None)
    (tmp_path / "empty").mkdir()
    command = [str(installed / "venv" / "bin" / "pagedlab"), "lab", "--no-browser", "--no-fetch", "--port", "18888"]
    log = tmp_path / "log"
    with log.open("w") as output:
        server = subprocess.Popen(command, cwd=tmp_path / "empty", env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"(http://127\.0\.0\.1:\d+)/lab\S*\?token=(\w+)", log.read_text())):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        address, token = found.groups()

        def get(path):
            request = urllib.request.Request(address + path, headers={"Authorization": f"token {token}"})
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
                return json.load(answer)

        assert get("/api/status")["kernels"] == 0
        shown = {item["name"] for item in get("/api/contents")["content"]}
        assert shown == {path.name for path in (ROOT / "lessons").glob("*.ipynb")}
        news = get("/lab/api/settings/@jupyterlab/apputils-extension:notification")
        assert news["schema"]["properties"]["fetchNews"]["default"] == "false"
        first = get(f"/api/contents/{sorted(shown)[0]}")["content"]
        assert first["cells"][0]["source"].startswith("# ")
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)
    where = [str(installed / "venv" / "bin" / "python"), "-c", "import pagedlab; print(pagedlab.__file__)"]
    imported = subprocess.run(where, capture_output=True, text=True, cwd=tmp_path, env=env, check=True).stdout
    assert imported.startswith(str(installed)), "the checkout was imported, not the wheel"
