"""Right answers to `kv_write_kernel`, in other styles than ours."""

import triton
import triton.language as tl

from tests.corpus import right


@right
@triton.jit
def with_a_mask_instead_of_an_if(
    keys,
    values,
    key_cache,
    value_cache,
    slot_mapping,
    keys_token_stride,
    keys_head_stride,
    values_token_stride,
    values_head_stride,
    key_block_stride,
    key_head_stride,
    key_slot_stride,
    value_block_stride,
    value_head_stride,
    value_slot_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    dims = tl.arange(0, TILE_DIM)
    mask = (dims < HEAD_DIM) & (slot >= 0)
    key = tl.load(keys + token * keys_token_stride + head * keys_head_stride + dims, mask=mask, other=0.0)
    value = tl.load(values + token * values_token_stride + head * values_head_stride + dims, mask=mask, other=0.0)
    key_at = block * key_block_stride + head * key_head_stride + place * key_slot_stride + dims
    value_at = block * value_block_stride + head * value_head_stride + place * value_slot_stride + dims
    tl.store(key_cache + key_at, key, mask=mask)
    tl.store(value_cache + value_at, value, mask=mask)


@triton.jit
def move(source, target, HEAD_DIM: tl.constexpr, TILE_DIM: tl.constexpr):
    dims = tl.arange(0, TILE_DIM)
    tl.store(target + dims, tl.load(source + dims, mask=dims < HEAD_DIM), mask=dims < HEAD_DIM)


@right
@triton.jit
def with_a_helper_and_an_early_return(
    slot_mapping,
    keys,
    key_cache,
    values,
    value_cache,
    keys_token_stride: tl.constexpr,
    keys_head_stride: tl.constexpr,
    values_token_stride: tl.constexpr,
    values_head_stride: tl.constexpr,
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
    token = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping + token)
    if slot < 0:
        return
    block = tl.cast(slot // BLOCK_SIZE, tl.int64)
    place = slot - block * BLOCK_SIZE
    key_cache += block * key_block_stride + head * key_head_stride + place * key_slot_stride
    value_cache += block * value_block_stride + head * value_head_stride + place * value_slot_stride
    keys += token * keys_token_stride + head * keys_head_stride
    values += token * values_token_stride + head * values_head_stride
    move(keys, key_cache, HEAD_DIM, TILE_DIM)
    move(values, value_cache, HEAD_DIM, TILE_DIM)


@right
@triton.jit
def in_two_dimensions(
    keys,
    values,
    key_cache,
    value_cache,
    slot_mapping,
    keys_token_stride,
    keys_head_stride,
    values_token_stride,
    values_head_stride,
    key_block_stride,
    key_head_stride,
    key_slot_stride,
    value_block_stride,
    value_head_stride,
    value_slot_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """Keys first, values second; stores in another order than loads."""
    head = tl.program_id(axis=1).to(tl.int64)
    token = tl.program_id(axis=0).to(tl.int64)
    dims = tl.arange(0, TILE_DIM)[None, :]
    mask = dims < HEAD_DIM
    slot = tl.load(slot_mapping + token).to(tl.int64)
    key = tl.load(keys + (token * keys_token_stride + head * keys_head_stride + dims), mask)
    value = tl.load(values + (token * values_token_stride + head * values_head_stride + dims), mask)
    if slot != -1:
        place = slot % BLOCK_SIZE
        block = (slot - place) // BLOCK_SIZE
        tl.store(
            value_cache + block * value_block_stride + place * value_slot_stride + head * value_head_stride + dims,
            value,
            mask,
        )
        tl.store(
            key_cache + block * key_block_stride + place * key_slot_stride + head * key_head_stride + dims, key, mask
        )


@right
@triton.jit
def in_pieces_of_eight(
    keys,
    values,
    key_cache,
    value_cache,
    slot_mapping,
    keys_token_stride,
    keys_head_stride,
    values_token_stride,
    values_head_stride,
    key_block_stride,
    key_head_stride,
    key_slot_stride,
    value_block_stride,
    value_head_stride,
    value_slot_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Without TILE_DIM: a loop over pieces of a head."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        for first in tl.static_range(0, HEAD_DIM, 8):
            dims = first + tl.arange(0, 8)
            inside = dims < HEAD_DIM
            key = tl.load(keys + token * keys_token_stride + head * keys_head_stride + dims, mask=inside)
            value = tl.load(values + token * values_token_stride + head * values_head_stride + dims, mask=inside)
            block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZE
            tl.store(
                key_cache + block * key_block_stride + head * key_head_stride + place * key_slot_stride + dims,
                key,
                mask=inside,
            )
            tl.store(
                value_cache + block * value_block_stride + head * value_head_stride + place * value_slot_stride + dims,
                value,
                mask=inside,
            )
