"""What a step costs, counted in function calls: exact, whatever else the machine is doing."""

import gc
import sys

import pytest

from benchmarks.scheduler import OUTPUT, Load


def calls_of_steps(num_running, num_blocks, prefix_cache) -> int:
    """Calls of Python and C functions, and resumptions of generators, in as many steps as replace every request."""
    load = Load(num_running, num_blocks, prefix_cache)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # whoever wants to be told of a collection is called by it
    sys.setprofile(count)
    try:
        for _ in range(OUTPUT):
            assert load.step() == num_running
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_step_costs_the_same_in_any_pool(prefix_cache):
    assert calls_of_steps(32, 200, prefix_cache) == calls_of_steps(32, 50_000, prefix_cache)


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_step_costs_in_proportion_to_those_who_run(prefix_cache):
    few, many = (calls_of_steps(num_running, 2000, prefix_cache) for num_running in (32, 256))
    assert many <= 8 * few * 1.02
