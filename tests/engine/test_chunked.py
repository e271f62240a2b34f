import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.engine.chunked import chunked_prefill, whole_prompts

WANTED = st.lists(st.one_of(st.just(1), st.integers(0, 40)), max_size=12)


def test_decodes_first_then_prompts_in_order():
    assert chunked_prefill([5, 1, 9, 1], 8) == [5, 1, 1, 1]
    assert chunked_prefill([5, 1, 9, 1], 4) == [2, 1, 0, 1]
    assert chunked_prefill([5, 1, 9, 1], 1) == [0, 1, 0, 0]


def test_whole_prompts_or_nothing():
    assert whole_prompts([5, 1, 9, 1], 8) == [5, 1, 0, 1]
    assert whole_prompts([9, 1, 5], 8) == [0, 1, 0]  # nobody overtakes the long one
    assert whole_prompts([5, 1, 9, 1], 16) == [5, 1, 9, 1]


@given(WANTED, st.integers(0, 200))
def test_promises_of_both(wanted, budget):
    before = list(wanted)
    for split in (chunked_prefill, whole_prompts):
        shares = split(wanted, budget)
        assert wanted == before and shares is not wanted
        assert all(0 <= share <= most for share, most in zip(shares, wanted, strict=True))
        assert sum(shares) <= budget
        num_decodes = wanted.count(1)
        served = sum(share for share, most in zip(shares, wanted, strict=True) if most == 1)
        assert served == min(num_decodes, budget)


@given(WANTED, st.integers(0, 200))
def test_chunks_leave_nothing_over(wanted, budget):
    shares = chunked_prefill(wanted, budget)
    assert sum(shares) == min(budget, sum(wanted))
    prompts = [(share, most) for share, most in zip(shares, wanted, strict=True) if most > 1]
    short = [share < most for share, most in prompts]
    first = short.index(True) if True in short else len(short)
    assert all(share == 0 for share, _ in prompts[first + 1 :])  # who comes later gets nothing before those are done


@given(WANTED, st.integers(0, 200))
def test_whole_prompts_are_whole_and_in_order(wanted, budget):
    shares = whole_prompts(wanted, budget)
    assert all(share in (0, most) for share, most in zip(shares, wanted, strict=True))
    served = [share == most for share, most in zip(shares, wanted, strict=True) if most > 1]
    assert served == sorted(served, reverse=True)


@pytest.mark.parametrize("split", [chunked_prefill, whole_prompts])
def test_negative_counts(split):
    assert split([], 0) == []
    with pytest.raises(ValueError, match="cannot be negative.*a budget of -1"):
        split([1], -1)
    with pytest.raises(ValueError, match=r"cannot be negative: \[2, -3\]"):
        split([2, -3], 4)
