"""Telling which slip it was: every slip is one, can be told of any kernel, and is found in an answer that has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.course.exercises.l11 import NVIDIA, PROBES, expect_blocks
from pagedlab.course.occupancy_slips import SLIPS, diagnose
from pagedlab.course.promise import Wrong
from pagedlab.gpu.occupancy import LIMITERS, occupancy

NUMBERS = range(len(SLIPS))


def with_slip(slip):
    """An answer that makes this mistake and no other."""

    def answer(registers, shared_bytes, num_warps, target):
        return slip.predicts(occupancy(registers, shared_bytes, num_warps, target)), "registers"

    return answer


@pytest.mark.parametrize("number", NUMBERS)
def test_a_slip_shows_somewhere(number):
    slip = SLIPS[number]
    assert slip.limiter in LIMITERS
    assert any(slip.predicts(occupancy(*probe)) != occupancy(*probe).blocks_per_sm for probe in PROBES)


@given(
    registers=st.integers(1, 255),
    shared_bytes=st.integers(0, 240_000),
    num_warps=st.sampled_from([1, 2, 4, 8, 16, 32]),
    name=st.sampled_from(NVIDIA),
)
def test_every_slip_can_be_told_of_any_kernel(registers, shared_bytes, num_warps, name):
    it = occupancy(registers, shared_bytes, num_warps, name)
    for slip in SLIPS:
        assert slip.predicts(it) >= 0 and slip.says(it).strip() and slip.hint


@pytest.mark.parametrize("number", NUMBERS)
def test_it_is_found_in_an_answer_that_has_it(number):
    slip = SLIPS[number]
    answer = with_slip(slip)
    it = next(one for one in map(lambda probe: occupancy(*probe), PROBES) if slip.predicts(one) != one.blocks_per_sm)
    found = diagnose(answer, it, slip.predicts(it), PROBES)
    # that one, or one that no probe tells from it
    assert all(found.predicts(occupancy(*probe)) == slip.predicts(occupancy(*probe)) for probe in PROBES)
    assert found.limiter == slip.limiter


def test_nothing_is_said_of_what_no_slip_explains():
    it = occupancy(*PROBES[0])
    assert diagnose(lambda *kernel: (5, "registers"), it, 5, PROBES) is None


def test_an_answer_that_is_right_elsewhere_has_no_slip():
    """What is wrong for one kernel by chance as a slip would have it, and right for all the probes."""
    odd = occupancy(201, 0, 2, "sm_75")

    def answer(registers, shared_bytes, num_warps, target):
        it = occupancy(registers, shared_bytes, num_warps, target)
        return it.blocks_per_sm + (it == odd), it.limiter

    wrong = odd.blocks_per_sm + 1
    assert any(slip.predicts(odd) == wrong for slip in SLIPS)
    assert diagnose(answer, odd, wrong, PROBES) is None


def test_an_answer_that_raises_is_still_diagnosed():
    it = occupancy(33, 0, 4, "sm_80")

    def answer(*kernel):
        raise ZeroDivisionError

    assert "units of 256" in diagnose(answer, it, 15, PROBES).says(it)


@pytest.mark.parametrize(
    "returned, says",
    [
        (None, "Two things are asked for"),
        (12, "Two things are asked for"),
        ({"registers": 12}, "Two things are asked for"),
        (("registers", 12), "The number of blocks comes first"),
        ((12.0, "registers"), "this is float"),
        ((True, "registers"), "this is bool"),
        ((12, "regs"), "none of the four names"),
        ((12, 0), "none of the four names"),
        ((12, "warps"), "warps would allow 16 blocks; registers allow 12"),
    ],
)
def test_what_else_comes_back(returned, says):
    with pytest.raises(Wrong, match=says):
        expect_blocks(lambda *kernel: returned, 33, 0, 4, "sm_80")
    expect_blocks(lambda *kernel: (12, "registers"), 33, 0, 4, "sm_80")
