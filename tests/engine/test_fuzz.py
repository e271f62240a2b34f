"""Two thousand random episodes; `benchmarks/fuzz.py` plays more. See `episodes.py` for what can happen in one."""

from collections import Counter

import pytest

from tests.engine.episodes import play

EPISODES = 2000
PARTS = 20
EVENTS = [
    "preempted",
    "swapped in",
    "copies",
    "interrupted",
    "aborted",
    "forked",
    "branched",
    "rejected",
    "cached tokens",
]


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_breaks_and_every_output_is_right(part):
    happened = Counter()
    for number in range(part, EPISODES, PARTS):
        happened += play(number)
    assert happened["episodes"] == EPISODES // PARTS
    # An episode in which nothing goes wrong tests nothing: all of it must have happened in these hundred.
    for event in EVENTS:
        assert happened[event] > 0, f"{event}: never, in {dict(happened)}"
