"""Storing new keys and values, in Triton: each token's go into its slot.

A program moves one head of one token: `head_dim` numbers of the key, and as many of the value. That is a few hundred
bytes, so one warp of 32 lanes does it, and each lane moves 16 bytes at a time, the most that one instruction can.

Slot -1 skips a token. It has to be asked for before anything is computed from it: Triton divides toward zero, as C
does, so -1 would become block 0, offset -1, which is memory in front of the cache.

Addresses are counted in 64 bits. A block id times a block's stride soon passes 2**31, and would wrap.
"""

from pagedlab.gpu import mode

mode.choose()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from pagedlab.kernels.launch import cache_strides, check_last_dimension, launch  # noqa: E402

WARP_SIZE, BYTES_A_LANE = 32, 16


@triton.jit
def kv_write_kernel(
    keys,
    values,
    key_cache,
    value_cache,
    slot_mapping,
    keys_token_stride,
    keys_head_stride,
    values_token_stride,
    values_head_stride,
    key_block_stride: tl.constexpr,
    key_head_stride: tl.constexpr,
    key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr,
    value_head_stride: tl.constexpr,
    value_slot_stride: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """Grid: (num_tokens, num_kv_heads). Keys and values may be strided; head_dim is dense everywhere."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        block = slot // BLOCK_SIZE
        offset = slot % BLOCK_SIZE
        dims = tl.arange(0, TILE_DIM)
        there = dims < HEAD_DIM
        key = tl.load(keys + token * keys_token_stride + head * keys_head_stride + dims, mask=there, other=0.0)
        value = tl.load(values + token * values_token_stride + head * values_head_stride + dims, mask=there, other=0.0)
        key_slot = key_cache + block * key_block_stride + head * key_head_stride + offset * key_slot_stride
        value_slot = value_cache + block * value_block_stride + head * value_head_stride + offset * value_slot_stride
        tl.store(key_slot + dims, key, mask=there)
        tl.store(value_slot + dims, value, mask=there)


def kv_write(keys, values, key_cache, value_cache, slot_mapping, kernel=kv_write_kernel) -> None:
    """As `ops.kv_write`, without its checks. kernel: yours, if it takes its arguments by the names above.

    slot_mapping: `[num_tokens]` integers, a list or a tensor on the cache's device.
    ValueError: a last dimension whose stride is not 1, or shapes that do not fit.
    """
    if len(keys):
        grid, arguments, options = write_launch(keys, values, key_cache, value_cache, slot_mapping)
        launch(kernel, grid, arguments, **options)


def write_launch(keys, values, key_cache, value_cache, slot_mapping) -> tuple[tuple, dict, dict]:
    """`(grid, arguments, options)` of a launch: what `launch` takes, and what a compilation can be described with."""
    check_last_dimension(keys=keys, values=values, key_cache=key_cache, value_cache=value_cache)
    num_tokens, num_kv_heads, head_dim = keys.shape
    slot_mapping = torch.as_tensor(slot_mapping, device=key_cache.device)
    if values.shape != keys.shape or slot_mapping.shape != (num_tokens,):
        raise ValueError(
            f"keys are {list(keys.shape)}, values {list(values.shape)}, slot_mapping {list(slot_mapping.shape)}: each "
            "token has a key, a value and a slot"
        )
    if key_cache.shape != value_cache.shape or key_cache.shape[1::2] != keys.shape[1:]:
        raise ValueError(
            f"key_cache is {list(key_cache.shape)}, value_cache {list(value_cache.shape)}: keys of {list(keys.shape)} "
            f"need [num_blocks, {num_kv_heads}, block_size, {head_dim}]"
        )
    arguments = dict(
        keys=keys,
        values=values,
        key_cache=key_cache,
        value_cache=value_cache,
        slot_mapping=slot_mapping.contiguous(),
        keys_token_stride=keys.stride(0),
        keys_head_stride=keys.stride(1),
        values_token_stride=values.stride(0),
        values_head_stride=values.stride(1),
        **cache_strides(key_cache, value_cache),
        BLOCK_SIZE=key_cache.shape[2],
        HEAD_DIM=head_dim,
        TILE_DIM=tile_of_a_warp(head_dim, keys.element_size()),
    )
    return (num_tokens, num_kv_heads), arguments, {"num_warps": 1}


def tile_of_a_warp(head_dim: int, bytes_per_element: int) -> int:
    """The smallest power of 2 that holds `head_dim` and gives each of 32 lanes 16 bytes.

    Triton spreads a tile evenly: 128 numbers of 2 bytes would be 8 bytes a lane, and twice as many instructions. With
    a tile of 256, sixteen lanes move 16 bytes each and the mask turns the others off.
    """
    return max(triton.next_power_of_2(head_dim), WARP_SIZE * BYTES_A_LANE // bytes_per_element)
