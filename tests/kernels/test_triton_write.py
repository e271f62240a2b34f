"""Writing and copying in Triton, by the interpreter: the same bytes as torch puts there, and none anywhere else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from pagedlab.gpu import mode  # noqa: E402

if not mode.is_interpreting():
    pytest.skip("these tests interpret; `pytest -m gpu` runs those that compile", allow_module_level=True)

from pagedlab.gpu.strict import strict  # noqa: E402
from pagedlab.kernels import copy, reference, write  # noqa: E402
from pagedlab.kernels.launch import LaunchError  # noqa: E402
from tests.kernels.pages import random_queries  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

layouts = st.fixed_dictionaries(
    {
        "num_kv_heads": st.integers(1, 3),
        "block_size": st.sampled_from([1, 3, 12, 16, 130]),
        "head_dim": st.sampled_from([1, 7, 64, 80, 128, 300]),
        "dtype": st.sampled_from(DTYPES),
        "interleaved": st.booleans(),
        "token_major": st.booleans(),
    }
)


def make_caches(num_blocks, num_kv_heads, block_size, head_dim, dtype, interleaved, token_major):
    """Two caches with a margin of blocks before and behind: all NaN, and the storage to see what was touched."""
    inner = (block_size, num_kv_heads, head_dim) if token_major else (num_kv_heads, block_size, head_dim)
    storage = torch.full((num_blocks + 2, 2, *inner), torch.nan, dtype=dtype)
    if not interleaved:
        storage = storage.transpose(0, 1).contiguous().transpose(0, 1)
    caches = [storage[1:-1, which] for which in range(2)]
    return storage, [cache.transpose(1, 2) for cache in caches] if token_major else caches


def assert_same(mine, right):
    torch.testing.assert_close(mine, right, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=40, deadline=None)
@given(layouts, st.integers(0, 6), st.integers(0, 10**6), st.booleans())
def test_a_write_is_the_references(layout, num_tokens, seed, fused):
    generator = torch.Generator().manual_seed(seed)
    num_kv_heads, block_size, head_dim, dtype = (
        layout[name] for name in ("num_kv_heads", "block_size", "head_dim", "dtype")
    )
    slots = torch.randperm(5 * block_size, generator=generator)[:num_tokens]
    slots = torch.cat([slots, slots.new_tensor([-1])])[torch.randperm(len(slots) + 1, generator=generator)]
    width = 2 * num_kv_heads if fused else num_kv_heads  # keys and values as slices of one projection
    new = torch.randn(2, len(slots), width, head_dim, generator=generator).to(dtype)
    keys, values = (new[0].split(num_kv_heads, 1) if fused else new)[:2]

    storage, caches = make_caches(5, **layout)
    expected, others = make_caches(5, **layout)
    write.kv_write(keys, values, *caches, slots)
    reference.kv_write(keys, values, *others, slots)
    assert_same(storage, expected)


def test_keys_and_values_may_lie_differently():
    """Each cache has strides of its own."""
    new, shape = random_queries(5, 3, 8), (4, 3, 2, 8)
    keys, values = torch.zeros(shape), torch.zeros(2, 4, 3, 20).permute(1, 2, 0, 3)[..., :8]
    assert keys.shape == values.shape
    assert all(a != b for a, b in zip(keys.stride()[:3], values.stride()[:3], strict=True))
    expected = keys.clone(), values.clone()
    for kernels, caches in ((write, (keys, values)), (reference, expected)):
        kernels.kv_write(new, 2 * new, *caches, torch.tensor([7, -1, 2, 1, 6]))
    for kernels, caches in ((copy, (keys, values)), (reference, expected)):
        kernels.copy_blocks(*caches, torch.tensor([[0, 2], [3, 1]]))
    assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])


def test_slots_may_be_a_list_or_32_bits():
    new = random_queries(3, 2, 8)
    for slots in ([5, -1, 0], torch.tensor([5, -1, 0], dtype=torch.int32)):
        cache = torch.zeros(2, 2, 4, 8)
        write.kv_write(new, new, cache, cache.clone(), slots)
        assert torch.equal(cache[1, :, 1], new[0]) and torch.equal(cache[0, :, 0], new[2])
        assert cache.ne(0).any(-1).sum() == 4


def test_trap_10_a_skipped_token_touches_no_memory():
    """Not even with NaN for keys, or in a cache without a block before the first."""
    storage, caches = make_caches(2, 1, 4, 8, torch.float32, True, False)
    nothing = torch.full((2, 1, 8), 3.0)
    write.kv_write(nothing, nothing, *caches, [-1, -1])
    assert storage.isnan().all()


@settings(max_examples=30, deadline=None)
@given(layouts, st.integers(0, 3), st.integers(0, 10**6))
def test_a_copy_is_the_references(layout, num_pairs, seed):
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randperm(7, generator=generator)
    sources = blocks[:3][torch.randint(3, (num_pairs,), generator=generator)]  # one may go to several places
    pairs = torch.stack([sources, blocks[3 : 3 + num_pairs]], 1)
    storage, caches = make_caches(7, **layout)
    storage.copy_(torch.randn(storage.shape, generator=generator))
    expected, others = make_caches(7, **layout)
    expected.copy_(storage)
    copy.copy_blocks(*caches, pairs)
    reference.copy_blocks(*others, pairs)
    assert_same(storage, expected)


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_as_strict_as_a_gpu(order):
    """Nothing outside of a tensor is touched, nothing overflows, lanes that are off hold anything, in any order."""
    layout = dict(num_kv_heads=2, block_size=3, head_dim=20, dtype=torch.float16, interleaved=True, token_major=True)
    storage, caches = make_caches(6, **layout)
    expected, others = make_caches(6, **layout)
    keys, values = random_queries(4, 4, 20, dtype=torch.float16).split(2, 1)
    slots, pairs = torch.tensor([-1, 17, 0, 4]), torch.tensor([[0, 3], [5, 2], [0, 4]])
    with strict(order=order):
        write.kv_write(keys, values, *caches, slots)
        copy.copy_blocks(*caches, pairs)
    reference.kv_write(keys, values, *others, slots)
    reference.copy_blocks(*others, pairs)
    assert_same(storage, expected)


def test_numbers_that_do_not_lie_side_by_side_are_refused():
    new, cache = random_queries(1, 2, 8), torch.zeros(4, 2, 8, 4).transpose(2, 3)
    with pytest.raises(LaunchError, match="the last dimension of key_cache has stride 4"):
        write.kv_write(new, new, cache, cache, [0])
    with pytest.raises(LaunchError, match="the last dimension of key_cache has stride 4"):
        copy.copy_blocks(cache, cache, torch.tensor([[0, 1]]))
    assert not cache.any()


def test_every_lane_of_a_warp_moves_16_bytes():
    assert write.tile_of_a_warp(128, 2) == 256  # 32 lanes of 8 numbers; the mask turns half of them off
    assert write.tile_of_a_warp(128, 4) == 128
    assert write.tile_of_a_warp(300, 2) == 512
    keys = torch.zeros(5, 3, 80, dtype=torch.float16)
    cache = torch.zeros(2, 3, 16, 80, dtype=torch.float16)
    grid, arguments, options = write.write_launch(keys, keys, cache, cache, [0, 1, 2, 3, -1])
    assert grid == (5, 3) and options == {"num_warps": 1}
    assert arguments["HEAD_DIM"] == 80 and arguments["TILE_DIM"] == 256 and arguments["key_block_stride"] == 3 * 16 * 80


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(slot_mapping=[0, 5]), r"slot_mapping \[2\]: each token has a key, a value and a slot"),
        (dict(values=torch.zeros(2, 2, 8)), r"values \[2, 2, 8\]"),
        (dict(value_cache=torch.zeros(3, 1, 4, 8)), r"need \[num_blocks, 2, block_size, 8\]"),
        (dict(key_cache=torch.zeros(3, 2, 4, 16), value_cache=torch.zeros(3, 2, 4, 16)), "need"),
    ],
)
def test_shapes_that_do_not_fit_are_not_launched(change, words):
    caches = {name: torch.zeros(3, 2, 4, 8) for name in ("key_cache", "value_cache")}
    tensors = dict(keys=torch.ones(3, 2, 8), values=torch.ones(3, 2, 8), **caches, slot_mapping=[0, 5, 11]) | change
    with pytest.raises(ValueError, match=words):
        write.kv_write(**tensors)
    assert not tensors["key_cache"].any() and not tensors["value_cache"].any()


def test_pairs_are_pairs():
    caches = torch.zeros(2, 3, 2, 4, 8).unbind(0)
    with pytest.raises(ValueError, match=r"pairs are \[2\].*\[num_pairs, 2\]"):
        copy.copy_blocks(*caches, [0, 1])
