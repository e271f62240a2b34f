"""Copying whole blocks, in Triton: what copy-on-write does before a sequence writes into a block it shared.

A program copies one head of one block, keys and values, a few slots at a time. Nothing is computed, so all that matters
is how bytes move: four warps, 16 bytes a lane and instruction. Which blocks are copied is read on the GPU; the CPU need
not wait for anything.

Programs run in any order, so no block may be copied from and to in one launch: `ops.copy_blocks` refuses such pairs.
"""

from pagedlab.gpu import mode

mode.choose()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from pagedlab.kernels.launch import cache_strides, check_last_dimension, launch  # noqa: E402
from pagedlab.kernels.write import BYTES_A_LANE, WARP_SIZE  # noqa: E402

NUM_WARPS = 4


@triton.jit
def copy_blocks_kernel(
    key_cache,
    value_cache,
    pairs,
    key_block_stride: tl.constexpr,
    key_head_stride: tl.constexpr,
    key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr,
    value_head_stride: tl.constexpr,
    value_slot_stride: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_SLOTS: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """Grid: (num_pairs, num_kv_heads). `pairs` is `[num_pairs, 2]`, dense: a source and its destination."""
    pair = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    source = tl.load(pairs + 2 * pair).to(tl.int64)
    destination = tl.load(pairs + 2 * pair + 1).to(tl.int64)
    key_from = key_cache + source * key_block_stride + head * key_head_stride
    key_to = key_cache + destination * key_block_stride + head * key_head_stride
    value_from = value_cache + source * value_block_stride + head * value_head_stride
    value_to = value_cache + destination * value_block_stride + head * value_head_stride

    dims = tl.arange(0, TILE_DIM)[None, :]
    for start in range(0, BLOCK_SIZE, TILE_SLOTS):
        slots = (start + tl.arange(0, TILE_SLOTS)[:, None]).to(tl.int64)
        there = (slots < BLOCK_SIZE) & (dims < HEAD_DIM)
        key_place = slots * key_slot_stride + dims
        value_place = slots * value_slot_stride + dims
        tl.store(key_to + key_place, tl.load(key_from + key_place, mask=there, other=0.0), mask=there)
        tl.store(value_to + value_place, tl.load(value_from + value_place, mask=there, other=0.0), mask=there)


def copy_blocks(key_cache, value_cache, pairs) -> None:
    """As `ops.copy_blocks`, without its checks. pairs: `[num_pairs, 2]` integers on the cache's device."""
    if len(pairs):
        grid, arguments, options = copy_launch(key_cache, value_cache, pairs)
        launch(copy_blocks_kernel, grid, arguments, **options)


def copy_launch(key_cache, value_cache, pairs) -> tuple[tuple, dict, dict]:
    """`(grid, arguments, options)` of a launch.

    ValueError: a last dimension whose stride is not 1, or shapes that do not fit.
    """
    check_last_dimension(key_cache=key_cache, value_cache=value_cache)
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    pairs = torch.as_tensor(pairs, device=key_cache.device)
    if pairs.shape != (len(pairs), 2) or key_cache.shape != value_cache.shape:
        raise ValueError(
            f"pairs are {list(pairs.shape)}, key_cache {list(key_cache.shape)}, value_cache {list(value_cache.shape)}: "
            "[num_pairs, 2] and two caches of one shape are needed"
        )
    tile_dim = triton.next_power_of_2(head_dim)
    lanes_move = NUM_WARPS * WARP_SIZE * BYTES_A_LANE // key_cache.element_size()  # numbers, with one instruction each
    arguments = dict(
        key_cache=key_cache,
        value_cache=value_cache,
        pairs=pairs.contiguous(),
        **cache_strides(key_cache, value_cache),
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        TILE_SLOTS=max(1, lanes_move // tile_dim),
        TILE_DIM=tile_dim,
    )
    return (len(pairs), num_kv_heads), arguments, {"num_warps": NUM_WARPS}
