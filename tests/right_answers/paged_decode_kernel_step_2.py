"""Right kernels for one head along the table in styles other than ours."""

from pagedlab.gpu import mode

mode.choose()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from tests.corpus import right  # noqa: E402


@triton.jit
def load_tokens(cache, blocks, slots, head, block_stride, head_stride, slot_stride, dims, mask):
    """A tile of one kv head's tokens, [TILE, TILE_DIM], in float32; zeros where the mask is off."""
    at = blocks * block_stride + head * head_stride + slots * slot_stride
    return tl.load(cache + at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)


@right
@triton.jit
def with_a_helper_that_loads(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride, key_head_stride, key_slot_stride, value_block_stride, value_head_stride, value_slot_stride,
    GROUP_SIZE, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    seq, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(seq_lens + seq)
    dims = tl.arange(0, TILE_DIM)
    query = tl.load(q + seq * q_seq_stride + head * q_head_stride + dims, mask=dims < HEAD_DIM, other=0.0)
    query = query.to(tl.float32) * scale * 1.4426950408889634
    largest = tl.full([1], float("-inf"), dtype=tl.float32)
    total = tl.zeros([1], dtype=tl.float32)
    mixed = tl.zeros([TILE_DIM], dtype=tl.float32)
    start = 0
    while start < length:
        positions = start + tl.arange(0, TILE)
        stored = positions < length
        mask = stored[:, None] & (dims < HEAD_DIM)[None, :]
        blocks = tl.load(block_tables + seq * table_stride + positions // BLOCK_SIZE, mask=stored, other=0)
        blocks, slots, kv_head = blocks.to(tl.int64), positions % BLOCK_SIZE, head // GROUP_SIZE
        keys = load_tokens(
            key_cache, blocks, slots, kv_head, key_block_stride, key_head_stride, key_slot_stride, dims, mask
        )
        scores = tl.where(stored, tl.sum(keys * query[None, :], axis=1), float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=0))
        weights, shrink = tl.exp2(scores - new), tl.exp2(largest - new)
        values = load_tokens(
            value_cache, blocks, slots, kv_head, value_block_stride, value_head_stride, value_slot_stride, dims, mask
        )
        mixed = mixed * shrink + tl.sum(weights[:, None] * values, axis=0)
        total = total * shrink + tl.sum(weights, axis=0)
        largest = new
        start += TILE
    mixed = tl.where(total > 0, mixed / total, 0.0)
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, mixed, mask=dims < HEAD_DIM)


@right
@triton.jit
def a_block_at_a_time(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """One entry of the table a step."""
    WIDE: tl.constexpr = triton.next_power_of_2(BLOCK_SIZE)
    seq, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // GROUP_SIZE
    left = tl.load(seq_lens + seq)
    entry = block_tables + seq * table_stride
    slots, dims = tl.arange(0, WIDE), tl.arange(0, TILE_DIM)
    in_head = dims < HEAD_DIM
    query = tl.load(q + seq * q_seq_stride + head * q_head_stride + dims, mask=in_head, other=0.0).to(tl.float32)
    running_max, running_sum = float("-inf"), 0.0
    acc = tl.zeros([TILE_DIM], dtype=tl.float32)
    while left > 0:
        block = tl.load(entry).to(tl.int64)
        stored = (slots < left) & (slots < BLOCK_SIZE)
        mask = stored[:, None] & in_head[None, :]
        keys = key_cache + block * key_block_stride + kv_head * key_head_stride
        keys = tl.load(keys + slots[:, None] * key_slot_stride + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        values = value_cache + block * value_block_stride + kv_head * value_head_stride
        values = tl.load(values + slots[:, None] * value_slot_stride + dims[None, :], mask=mask, other=0.0)
        scores = tl.where(stored, tl.sum(query[None, :] * keys, axis=1) * scale, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=0))
        probs, shrink = tl.exp(scores - new_max), tl.exp(running_max - new_max)
        running_sum = running_sum * shrink + tl.sum(probs, axis=0)
        acc = acc * shrink + tl.sum(probs[:, None] * values.to(tl.float32), axis=0)
        running_max = new_max
        entry += 1
        left -= BLOCK_SIZE
    if running_sum > 0.0:
        acc = acc / running_sum
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, acc, mask=in_head)


@right
@triton.jit
def divides_in_every_step(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """Merges each tile's result by its lse, as in exercise 5.1."""
    seq, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // GROUP_SIZE
    seq_len = tl.load(seq_lens + seq)
    dims = tl.arange(0, TILE_DIM)
    in_head = dims < HEAD_DIM
    query = tl.load(q + seq * q_seq_stride + head * q_head_stride + dims, mask=in_head, other=0.0).to(tl.float32)
    lse, result = float("-inf"), tl.zeros([TILE_DIM], dtype=tl.float32)
    for tile in range(0, tl.cdiv(seq_len, TILE)):
        positions = tile * TILE + tl.arange(0, TILE)
        stored = positions < seq_len
        mask = stored[:, None] & in_head[None, :]
        blocks = tl.load(block_tables + seq * table_stride + positions // BLOCK_SIZE, mask=stored, other=0)
        blocks, slots = blocks.to(tl.int64)[:, None], (positions % BLOCK_SIZE)[:, None]
        keys = key_cache + kv_head * key_head_stride + blocks * key_block_stride + slots * key_slot_stride
        keys = tl.load(keys + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        values = value_cache + kv_head * value_head_stride + blocks * value_block_stride + slots * value_slot_stride
        values = tl.load(values + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(stored, tl.sum(query[None, :] * keys, axis=1) * scale, float("-inf"))
        top = tl.max(scores, axis=0)
        probs = tl.exp(scores - top)
        part, part_lse = tl.sum(probs[:, None] * values, axis=0) / tl.sum(probs, axis=0), top + tl.log(tl.sum(probs, 0))
        larger = tl.maximum(lse, part_lse)
        both = larger + tl.log(tl.exp(lse - larger) + tl.exp(part_lse - larger))
        result = result * tl.exp(lse - both) + part * tl.exp(part_lse - both)
        lse = both
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, result, mask=in_head)
