"""The roofline: against counting by hand, and against what must hold whatever the shape."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.errors import PagedLabError
from pagedlab.gpu.gpus import GPUS
from pagedlab.gpu.roofline import (
    bytes_in_flight,
    decode_roofline,
    prefill_roofline,
    ridge,
    tile_bytes,
    tiles_in_flight,
)

SIZES = {
    "seq_len": st.integers(1, 5000),
    "num_kv_heads": st.integers(1, 8),
    "group": st.integers(1, 8),
    "head_dim": st.sampled_from([64, 80, 128]),
    "width": st.sampled_from([1, 2, 4]),
    "gpu": st.sampled_from(sorted(GPUS)),
}


def test_by_hand():
    """Llama-3.1-8B, 16 sequences of 4,096 tokens, float16."""
    got = decode_roofline(16, 4096, 32, 8, 128, 2, "H200")
    keys_and_values = 16 * 4096 * 2 * 8 * 128 * 2
    assert got.bytes == keys_and_values + 16 * 2 * 32 * 128 * 2 == 268_697_600
    assert got.flops == 16 * 4096 * 32 * 128 * 4 == 1_073_741_824
    assert got.intensity == pytest.approx(3.996, abs=1e-3)
    assert got.seconds == pytest.approx(268_697_600 / 4.8e12)
    assert got.bound == "memory"


def test_block_table():
    without = decode_roofline(3, 33, 4, 2, 64, 2, "A100")
    assert decode_roofline(3, 33, 4, 2, 64, 2, "A100", block_size=16).bytes == without.bytes + 3 * 3 * 4


@given(num_seqs=st.integers(1, 64), **SIZES)
def test_batching_does_not_change_the_intensity_of_decode(num_seqs, seq_len, num_kv_heads, group, head_dim, width, gpu):
    rest = (seq_len, num_kv_heads * group, num_kv_heads, head_dim, width, gpu)
    one, many = decode_roofline(1, *rest), decode_roofline(num_seqs, *rest)
    assert many.intensity == pytest.approx(one.intensity)
    assert many.seconds == pytest.approx(num_seqs * one.seconds)
    assert many.bound == one.bound
    assert one.intensity < 2 * group / width  # what it comes close to when the sequence is long


@given(num_seqs=st.integers(1, 64), **SIZES)
def test_the_floor_is_the_slower_of_both(num_seqs, seq_len, num_kv_heads, group, head_dim, width, gpu):
    got = decode_roofline(num_seqs, seq_len, num_kv_heads * group, num_kv_heads, head_dim, width, gpu)
    moving, computing = got.bytes / GPUS[gpu].memory_bandwidth, got.flops / GPUS[gpu].fp16_flops
    assert got.seconds == max(moving, computing)
    assert (got.bound == "memory") == (got.intensity <= ridge(gpu) * (1 + 1e-12))
    assert got.intensity == got.flops / got.bytes


@given(**SIZES)
def test_prefill_of_one_token_is_decode(seq_len, num_kv_heads, group, head_dim, width, gpu):
    rest = (seq_len, num_kv_heads * group, num_kv_heads, head_dim, width, gpu)
    assert prefill_roofline(1, *rest) == decode_roofline(1, *rest)


@given(num_new=st.integers(1, 40), before=st.integers(0, 40))
def test_prefill_counts_the_pairs_that_attention_looks_at(num_new, before):
    pairs = sum(1 for i in range(num_new) for j in range(before + num_new) if j <= before + i)
    assert prefill_roofline(num_new, before + num_new, 6, 2, 64, 2, "A100").flops == pairs * 6 * 64 * 4


def test_prefill_reaches_the_roof_and_decode_does_not():
    for gpu in GPUS:
        assert prefill_roofline(4096, 4096, 32, 8, 128, 2, gpu).bound == "compute"
        assert decode_roofline(256, 4096, 32, 8, 128, 2, gpu).bound == "memory"


def test_ridge():
    assert ridge("A100") == pytest.approx(153, abs=0.5)
    assert ridge("H100") == pytest.approx(295, abs=0.5)


def test_littles_law():
    assert bytes_in_flight("A100", 600e-9) == pytest.approx(2.039e12 * 600e-9 / 108)
    assert bytes_in_flight("H200", 800e-9) == pytest.approx(2 * bytes_in_flight("H200", 400e-9))
    assert tile_bytes(64, 128, 2) == 32_768
    assert tiles_in_flight("A100", 64, 128, 2, 600e-9) == pytest.approx(bytes_in_flight("A100", 600e-9) / 32_768)
    for gpu in GPUS:  # one or two tiles of 64 tokens on a multiprocessor are enough everywhere
        assert tiles_in_flight(gpu, 64, 128, 2) < 2


@pytest.mark.parametrize(
    "bad",
    [(0, 4, 4, 2, 64, 2), (1, 0, 4, 2, 64, 2), (1, 4, 4, 2, 64, 0.5), (1, 4, 4, 2, -64, 2), (True, 4, 4, 2, 64, 2)],
)
def test_numbers_that_make_no_sense(bad):
    with pytest.raises(ValueError, match="must be a whole number of at least 1"):
        decode_roofline(*bad, "A100")


def test_numbers_of_numpy_do_not_wrap_around():
    shape = 64, 131_072, 64, 8, 128, 2
    assert decode_roofline(*map(np.int32, shape), "A100") == decode_roofline(*shape, "A100")


@pytest.mark.parametrize("latency", [0, -1.0, math.nan])
def test_a_latency_is_more_than_nothing(latency):
    with pytest.raises(ValueError, match="it is more than 0"):
        bytes_in_flight("A100", latency)


def test_other_errors():
    with pytest.raises(ValueError, match="5 query heads cannot share 2 kv heads"):
        decode_roofline(1, 4, 5, 2, 64, 2, "A100")
    with pytest.raises(ValueError, match="block_size"):
        decode_roofline(1, 4, 4, 2, 64, 2, "A100", block_size=0)
    with pytest.raises(ValueError, match="9 new tokens are more than the 8"):
        prefill_roofline(9, 8, 4, 2, 64, 2, "A100")
    with pytest.raises(PagedLabError, match="H200"):
        decode_roofline(1, 4, 4, 2, 64, 2, "H300")
