"""`pytest` also runs every notebook of `lessons/` and `solutions/` and compares what it prints with what it stores.

nbval does the comparing. Here each notebook gets a learner's folder of its own, new and empty, so that no test sees or
touches a real learner's work. The fetched model is shared: `PAGEDLAB_CACHE` stays as it is.

The summary's last lines are made here too, where they also see what ran side by side (`-n 2`): how many of the
known-wrong answers were rejected, and, loudly, that there was no browser.
"""

import os
import tempfile
from pathlib import Path

import pytest


def pytest_configure(config):
    if getattr(config.option, "nbval", False) and not config.option.nbval_sanitize_with:
        config.option.nbval_sanitize_with = str(Path(__file__).parent / "tests" / "nbval.cfg")


def pytest_terminal_summary(terminalreporter):
    missing = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    missing = [reason for reason in missing if "no browser:" in reason]
    if missing:
        terminalreporter.section("BROWSER TESTS DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(missing)} skipped: {missing[0]}")
        terminalreporter.line("Install Chromium with the system's package manager, or run: playwright install chromium")
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    found = [value for report in reports for name, value in report.user_properties if name == "wrong answer"]
    if not found:
        return
    terminalreporter.section("wrong answers rejected")
    for exercise in sorted({exercise for exercise, _ in found}):
        rejected = [was for name, was in found if name == exercise]
        terminalreporter.line(f"{exercise:<20} {sum(rejected):>3} of {len(rejected)}")
    killed = sum(was for _, was in found)
    terminalreporter.line(f"kill rate {killed / len(found):.0%} ({killed} of {len(found)})")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    notebook = item.parent
    if type(notebook).__name__ != "IPyNbFile" or notebook.kernel is not None:
        return (yield)
    # The kernel starts while the notebook's first cell is set up, and takes the environment as it is then.
    scratch = tempfile.TemporaryDirectory(prefix="pagedlab-nbval-")
    item.config.add_cleanup(scratch.cleanup)
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in (("PAGEDLAB_HOME", "home"), ("IPYTHONDIR", "ipython")):
            folder = Path(scratch.name, name)
            folder.mkdir()
            patch.setitem(os.environ, variable, str(folder))
        return (yield)
