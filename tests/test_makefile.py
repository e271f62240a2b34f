"""When `make` sets up the environment and when it leaves it alone. Both Pythons here are scripts that note calls."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

# Stands for the system's Python: makes environments, unless the test says that it cannot.
SYSTEM_PYTHON = """#!/bin/sh
case "$*" in
  *version_info*) [ -z "$TOO_OLD" ] ;;
  *ensurepip*) [ -z "$NO_VENV" ] ;;
  "-m venv --clear .venv")
    rm -rf .venv; mkdir -p .venv/bin; cp "$VENV_PYTHON" .venv/bin/python; echo made >> "$CALLS" ;;
esac
"""
TESTS = ["run -m pagedlab fetch", "run -m pagedlab.engine.warm_up", "run -m pytest -n 2"]

# Stands for the environment's Python: says whether it imports this folder's pagedlab, and notes what it is to run.
VENV_PYTHON = """#!/bin/sh
case "$*" in
  "-c ") ;;
  *samefile*) [ -z "$IMPORTS_ANOTHER" ] ;;
  "-m pip install"*) [ -z "$NO_NETWORK" ] && echo "pip $*" | sed 's/-m pip.*constraints.txt//' >> "$CALLS" ;;
  *) echo "run $*" >> "$CALLS" ;;
esac
"""


class Checkout:
    def __init__(self, folder):
        self.folder = folder / "checkout"
        self.folder.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.folder)
        self.calls = folder / "calls"
        for name, text in (("python", SYSTEM_PYTHON), ("venv-python", VENV_PYTHON)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
            "CALLS": str(self.calls),
            "VENV_PYTHON": str(folder / "venv-python"),
        }
        self.python = folder / "python"

    def make(self, *targets, **env):
        """(what was called, exit status, everything printed)"""
        self.calls.write_text("")
        command = ["make", *targets, f"PYTHON={self.python}"]
        run = subprocess.run(command, cwd=self.folder, env={**self.env, **env}, capture_output=True, text=True)
        return self.calls.read_text().splitlines(), run.returncode, run.stdout + run.stderr


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_the_first_lab_sets_up_and_the_second_only_starts(checkout):
    assert checkout.make("lab")[0] == ["made", "pip  -e .", "run -m pagedlab lab"]
    assert checkout.make("lab")[0] == ["run -m pagedlab lab"]


def test_tests_need_more_than_the_lab_and_the_lab_no_more_than_the_tests(checkout):
    checkout.make("lab")
    assert checkout.make("test")[0] == ["pip  -e .[dev]", *TESTS]
    assert checkout.make("test")[0] == TESTS
    assert checkout.make("lab")[0] == ["run -m pagedlab lab"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed_again(checkout, name):
    checkout.make("lab")
    with (checkout.folder / name).open("a") as file:
        file.write("# another line\n")
    assert checkout.make("lab")[0] == ["pip  -e .", "run -m pagedlab lab"]


def test_a_touched_file_with_the_same_text_changes_nothing(checkout):
    checkout.make("lab")
    os.utime(checkout.folder / "pyproject.toml", (2e9, 2e9))
    assert checkout.make("lab")[0] == ["run -m pagedlab lab"]


def test_a_moved_checkout_gets_a_new_environment(checkout):
    checkout.make("lab")
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    assert checkout.make("lab")[0] == ["made", "pip  -e .", "run -m pagedlab lab"]


def test_an_environment_whose_python_is_gone_is_made_again(checkout):
    checkout.make("lab")
    (checkout.folder / ".venv/bin/python").unlink()
    assert checkout.make("lab")[0] == ["made", "pip  -e .", "run -m pagedlab lab"]


def test_an_environment_that_imports_another_pagedlab_is_installed_into_again(checkout):
    checkout.make("lab")
    assert checkout.make("lab", IMPORTS_ANOTHER="1")[0] == ["pip  -e .", "run -m pagedlab lab"]


def test_an_environment_made_by_hand_is_used_not_removed(checkout):
    (checkout.folder / ".venv/bin").mkdir(parents=True)
    shutil.copy(checkout.env["VENV_PYTHON"], checkout.folder / ".venv/bin/python")
    (checkout.folder / ".venv/mine").write_text("keep me")
    assert checkout.make("lab")[0] == ["pip  -e .", "run -m pagedlab lab"]
    assert (checkout.folder / ".venv/mine").exists()


def test_a_failed_installation_is_tried_again(checkout):
    calls, status, _ = checkout.make("lab", NO_NETWORK="1")
    assert status != 0 and calls == ["made"]
    assert checkout.make("lab")[0] == ["pip  -e .", "run -m pagedlab lab"]


@pytest.mark.parametrize(
    "trouble, message", [("TOO_OLD", "not a Python from 3.10 to 3.13"), ("NO_VENV", "apt-get install python3-venv")]
)
def test_a_python_that_cannot_make_the_environment(checkout, trouble, message):
    calls, status, printed = checkout.make("lab", **{trouble: "1"})
    assert status != 0 and calls == [] and message in printed


def test_help_is_the_default_and_sets_nothing_up(checkout):
    calls, status, printed = checkout.make()
    assert status == 0 and calls == [] and "make lab" in printed and not (checkout.folder / ".venv").exists()
