"""The arithmetic of a KV cache, on numbers that can be looked up or worked out by hand."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.cache.accounting import (
    LiveRequest,
    Waste,
    blocks_needed,
    kv_bytes_per_token,
    num_kv_slots,
    waste_breakdown,
)
from pagedlab.model.config import KNOWN_MODELS

GIB = 2**30


@pytest.mark.parametrize(
    ("num_tokens", "block_size", "blocks"),
    [(0, 16, 0), (1, 16, 1), (15, 16, 1), (16, 16, 1), (17, 16, 2), (7, 4, 2), (8, 4, 2), (9, 4, 3), (5, 1, 5)],
)
def test_blocks_needed(num_tokens, block_size, blocks):
    assert blocks_needed(num_tokens, block_size) == blocks


@given(st.integers(0, 10**20), st.integers(1, 10**6))
def test_blocks_are_enough_and_not_one_too_many(num_tokens, block_size):
    blocks = blocks_needed(num_tokens, block_size)
    assert blocks * block_size >= num_tokens
    assert (blocks - 1) * block_size < num_tokens


@pytest.mark.parametrize(("num_tokens", "block_size", "number"), [(-1, 16, "-1"), (5, 0, "0"), (5, -3, "-3")])
def test_blocks_needed_refuses_nonsense(num_tokens, block_size, number):
    with pytest.raises(ValueError, match=number):
        blocks_needed(num_tokens, block_size)


@pytest.mark.parametrize(
    ("model", "bytes_per_element", "expected"),
    [
        ("OPT-13B", 2, 819_200),  # the vLLM paper, section 3
        ("OPT-175B", 2, 4_718_592),
        ("SmolLM2-135M", 4, 46_080),
        ("Llama-3.1-8B", 2, 131_072),  # 8 key/value heads for 32 query heads
        ("Llama-3.1-70B", 2, 327_680),
    ],
)
def test_kv_bytes_per_token(model, bytes_per_element, expected):
    assert kv_bytes_per_token(KNOWN_MODELS[model], bytes_per_element) == expected


def test_kv_bytes_per_token_takes_anything_with_the_three_numbers():
    config = SimpleNamespace(num_hidden_layers=3, num_key_value_heads=5, head_dim=7)
    assert kv_bytes_per_token(config, 2) == 2 * 3 * 5 * 7 * 2
    with pytest.raises(ValueError, match="bytes_per_element is 0"):
        kv_bytes_per_token(config, 0)


def test_num_kv_slots_gives_table_1_of_the_paper():
    assert num_kv_slots(12 * GIB, 819_200) == 15_728
    assert num_kv_slots(264 * GIB, 4_718_592) == 60_074
    assert num_kv_slots(0, 819_200) == 0
    for arguments in ((-1, 10), (10, 0)):
        with pytest.raises(ValueError):
            num_kv_slots(*arguments)


def test_waste_breakdown_by_hand():
    # Two requests in a pool of 100 slots: 40 set aside for the first, 30 for the second.
    requests = [LiveRequest(num_tokens=5, final_tokens=12, reserved_slots=40), LiveRequest(30, 30, 30)]
    waste = waste_breakdown(requests, 100)
    assert waste == Waste(token_states=35, reserved=7, internal=28, external=30)
    assert waste.shares() == (0.35, 0.07, 0.28, 0.30)
    assert waste_breakdown([], 100) == (0, 0, 0, 100)


@st.composite
def live_requests(draw):
    num_tokens, more, unused = (draw(st.integers(0, 3000)) for _ in range(3))
    return LiveRequest(num_tokens, num_tokens + more, num_tokens + more + unused)


@given(st.lists(live_requests(), max_size=20), st.integers(0, 5000))
def test_every_slot_is_counted_once(requests, free):
    num_slots = sum(request.reserved_slots for request in requests) + free
    waste = waste_breakdown(iter(requests), num_slots)
    assert sum(waste) == num_slots
    assert min(waste) >= 0
    assert waste.external == free
    if num_slots:
        assert sum(waste.shares()) == pytest.approx(1)


def test_impossible_requests_are_refused_with_the_numbers():
    for numbers in ((-1, 5, 5), (6, 5, 10), (1, 11, 10)):
        with pytest.raises(ValueError, match=f"num_tokens={numbers[0]}, final_tokens={numbers[1]}"):
            LiveRequest(*numbers)
    with pytest.raises(ValueError, match="own 30 slots, but the pool has only 29"):
        waste_breakdown([LiveRequest(1, 1, 30)], 29)
    with pytest.raises(ValueError, match="0 slots"):
        waste_breakdown([], 0).shares()


def test_it_needs_no_torch():
    code = "import sys, pagedlab.cache.accounting; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
