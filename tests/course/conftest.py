"""Counts how many of the known-wrong answers the checks reject, and prints the rate at the end of the run."""

import pytest

KILLS: list[tuple[str, str, bool]] = []


@pytest.fixture
def kills():
    return KILLS


def pytest_terminal_summary(terminalreporter):
    if not KILLS:
        return
    terminalreporter.section("wrong answers rejected")
    for exercise in dict.fromkeys(exercise for exercise, _, _ in KILLS):
        mine = [killed for name, _, killed in KILLS if name == exercise]
        terminalreporter.line(f"{exercise:<28} {sum(mine):>3} of {len(mine)}")
    killed = sum(killed for _, _, killed in KILLS)
    terminalreporter.line(f"kill rate {killed / len(KILLS):.0%} ({killed} of {len(KILLS)})")
