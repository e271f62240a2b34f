"""Layouts: our arithmetic is what torch does with the same shapes; no two numbers share a place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.cache.layout import (
    LINE_BYTES,
    element_offset,
    heads_first,
    pieces,
    split_keys,
    token_major,
    touched,
)

NUM_BLOCKS = 3
SIZES = {"num_kv_heads": st.integers(1, 4), "block_size": st.sampled_from([1, 2, 3, 16])}


def places(num_kv_heads, block_size, head_dim):
    ranges = map(range, (NUM_BLOCKS, num_kv_heads, block_size, head_dim))
    return torch.cartesian_prod(*(torch.tensor(list(r)) for r in ranges)).reshape(-1, 4).tolist()


@given(**SIZES, head_dim=st.integers(1, 5))
def test_element_offset_is_where_torch_puts_it(num_kv_heads, block_size, head_dim):
    cache = torch.arange(NUM_BLOCKS * num_kv_heads * block_size * head_dim)
    cache = cache.view(NUM_BLOCKS, num_kv_heads, block_size, head_dim)
    layout = heads_first(num_kv_heads, block_size, head_dim)
    assert layout.strides == cache.stride()
    for place in places(num_kv_heads, block_size, head_dim):
        offset = element_offset(*place, num_kv_heads, block_size, head_dim)
        assert offset == layout.offset(*place) == cache[tuple(place)]


@given(**SIZES, head_dim=st.integers(1, 5))
def test_token_major_is_where_torch_puts_it(num_kv_heads, block_size, head_dim):
    cache = torch.arange(NUM_BLOCKS * block_size * num_kv_heads * head_dim)
    cache = cache.view(NUM_BLOCKS, block_size, num_kv_heads, head_dim)
    layout = token_major(num_kv_heads, block_size, head_dim)
    assert layout.strides == cache.stride()
    for block, head, slot, dim in places(num_kv_heads, block_size, head_dim):
        assert layout.offset(block, head, slot, dim) == cache[block, slot, head, dim]


@given(**SIZES, bytes_per_element=st.sampled_from([2, 4]), num_pieces=st.integers(1, 3))
def test_split_keys_are_where_torch_puts_them(num_kv_heads, block_size, bytes_per_element, num_pieces):
    x = 16 // bytes_per_element
    cache = torch.arange(NUM_BLOCKS * num_kv_heads * num_pieces * block_size * x)
    cache = cache.view(NUM_BLOCKS, num_kv_heads, num_pieces, block_size, x)
    layout = split_keys(num_kv_heads, block_size, num_pieces * x, bytes_per_element)
    assert layout.strides == cache.stride()
    for block, head, slot, dim in places(num_kv_heads, block_size, num_pieces * x):
        assert layout.offset(block, head, slot, dim) == cache[block, head, dim // x, slot, dim % x]


def test_offsets_do_not_wrap():
    # Block 3,000,000 of Llama-3.1-8B's shape: past 2**31, where 32 bits turn negative (vllm-project/vllm#47671).
    assert element_offset(3_000_000, 7, 15, 127, 8, 16, 128) == 49_152_016_383


@pytest.mark.parametrize("head_dim, bytes_per_element", [(12, 2), (64, 3), (6, 4)])
def test_keys_that_cannot_be_split(head_dim, bytes_per_element):
    with pytest.raises(ValueError, match=f"head_dim is {head_dim}"):
        split_keys(2, 16, head_dim, bytes_per_element)


def test_what_is_touched():
    assert touched([0, 15, 16, 40], bytes_per_element=2) == [0, 1, 2]
    assert touched([0, 15, 16, 40, 64], bytes_per_element=2, unit=LINE_BYTES) == [0, 1]
    assert touched([], bytes_per_element=4) == []


def test_pieces():
    assert (pieces([]), pieces([3, 4, 5]), pieces([9, 3, 4, 5, 7])) == (0, 1, 3)


@given(layout=st.sampled_from([heads_first, token_major, split_keys]), num_kv_heads=st.integers(1, 4))
def test_every_place_once(layout, num_kv_heads):
    layout = layout(num_kv_heads, 4, 16)
    offsets = [layout.offset(*place) for place in places(num_kv_heads, 4, 16)]
    assert sorted(offsets) == list(range(len(offsets)))
