"""Into how many parts decode splits its sequences: plain arithmetic, checked against its own definition."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.kernels.splits import choose_num_splits, wave_efficiency

batches = st.fixed_dictionaries(
    {
        "num_seqs": st.integers(1, 300),
        "num_kv_heads": st.sampled_from([1, 2, 3, 8, 32]),
        "seq_len": st.integers(0, 20_000),
        "tile": st.sampled_from([16, 64, 256]),
        "num_sms": st.sampled_from([1, 20, 108, 132]),
        "blocks_per_sm": st.integers(1, 5),
    }
)


def parts(batch, splits):
    """Tiles in each split, dealt out as decode does: the same number to each until none are left."""
    tiles = math.ceil(batch["seq_len"] / batch["tile"])
    size = math.ceil(tiles / splits)
    return [max(0, min(size, tiles - size * i)) for i in range(splits)]


@given(batches, st.sampled_from([1, 4, 7]))
def test_no_split_is_without_work_and_the_last_wave_is_full_enough(batch, group_size):
    splits = choose_num_splits(num_heads=batch["num_kv_heads"] * group_size, **batch)
    programs, slots = batch["num_seqs"] * batch["num_kv_heads"], batch["num_sms"] * batch["blocks_per_sm"]
    tiles = math.ceil(batch["seq_len"] / batch["tile"])
    if tiles <= 1 or programs >= 0.8 * slots:
        assert splits == 1
        return
    assert all(parts(batch, splits))

    def efficiency(count):
        waves = math.ceil(programs * count / slots)
        return programs * count / (waves * slots)

    possible = [count for count in range(1, tiles + 1) if all(parts(batch, count))]
    best = max(map(efficiency, possible))
    assert efficiency(splits) >= 0.85 * best
    assert all(efficiency(count) < 0.85 * best for count in possible if count < splits)


@pytest.mark.parametrize(
    ("num_seqs", "num_kv_heads", "seq_len", "right", "why"),
    [
        (1, 8, 64, 1, "one tile"),
        (1, 8, 65, 2, "two tiles, and 16 of 108 programs are better than 8"),
        (1, 8, 0, 1, "nothing to split"),
        (0, 8, 4096, 1, "nobody"),
        (11, 8, 4096, 1, "88 programs are 81 % of 108"),
        (10, 8, 4096, 4, "80 are 74 %, 160 in two waves and 240 in three too; 320 in three are 99 %"),
        (1, 8, 640, 10, "80 of 108; there are no more tiles"),
        (1, 8, 64 * 13, 13, "104 of 108"),
        (1, 8, 64 * 14, 7, "14 would be 112 programs in two waves, 52 % of them; 56 in one wave are 52 % as well"),
    ],
)
def test_worked_by_hand(num_seqs, num_kv_heads, seq_len, right, why):
    assert choose_num_splits(num_seqs, 32, num_kv_heads, seq_len, 64, num_sms=108, blocks_per_sm=1) == right, why


def test_waves():
    assert wave_efficiency(108, 108) == 1
    assert wave_efficiency(110, 108) == 110 / 216
    assert wave_efficiency(54, 108) == 0.5
    for programs, slots in ((0, 108), (5, 0)):
        with pytest.raises(ValueError, match=f"{programs} programs in {slots} slots"):
            wave_efficiency(programs, slots)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (dict(tile=0), "tile is 0"),
        (dict(num_sms=0), "num_sms is 0"),
        (dict(num_kv_heads=0), "num_kv_heads is 0"),
        (dict(blocks_per_sm=0), "blocks_per_sm is 0: a kernel of which no program fits"),
        (dict(seq_len=-1), "1 sequences of -1 tokens"),
        (dict(num_heads=30), "30 query heads cannot share 8 kv heads"),
    ],
)
def test_numbers_that_cannot_be(wrong, words):
    numbers = dict(num_seqs=1, num_heads=32, num_kv_heads=8, seq_len=99, tile=16, num_sms=108, blocks_per_sm=4)
    choose_num_splits(**numbers)
    with pytest.raises(ValueError, match=words):
        choose_num_splits(**{**numbers, **wrong})
