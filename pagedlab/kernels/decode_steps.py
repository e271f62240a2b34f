"""Paged attention for one new token, as a Triton kernel in three steps: the smallest that works, then less is assumed.

These are kernels to read, without what `decode.py` adds (splits, windows, sinks). All three take the same arguments:

    out, q          [num_seqs, num_heads, head_dim]
    key_cache,      [num_blocks, num_kv_heads, block_size, head_dim], each with its own strides
    value_cache
    block_tables    [num_seqs, max_blocks], int32; anything may stand behind a sequence's last block
    seq_lens        [num_seqs], int32; slots behind the last token may hold anything, NaN too

Strides count elements; the last dimension is contiguous. TILE is how many tokens are read at once, TILE_DIM how many
numbers of a head: HEAD_DIM or the next power of two, for a tile's sides must be powers of two. Sums are in float32.
"""

from pagedlab.gpu import mode

mode.choose()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402


@triton.jit
def paged_decode_kernel_step_1(
    out, q, key_cache, value_cache, block_tables, seq_lens,
    scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    HEAD_DIM: tl.constexpr, TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """One head over one block: 1 <= seq_len <= block_size <= TILE, and head h reads kv head h.

    Grid (num_seqs, num_heads).
    """
    seq, head = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(seq_lens + seq)
    block = tl.load(block_tables + seq * table_stride).to(tl.int64)
    slots, dims = tl.arange(0, TILE), tl.arange(0, TILE_DIM)
    stored, in_head = slots < seq_len, dims < HEAD_DIM
    mask = stored[:, None] & in_head[None, :]

    query = tl.load(q + seq * q_seq_stride + head * q_head_stride + dims, mask=in_head, other=0.0).to(tl.float32)
    key_at = block * key_block_stride + head * key_head_stride + slots * key_slot_stride
    keys = tl.load(key_cache + key_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    scores = tl.where(stored, tl.sum(query[None, :] * keys, axis=1) * scale, float("-inf"))
    probs = tl.exp(scores - tl.max(scores, axis=0))

    value_at = block * value_block_stride + head * value_head_stride + slots * value_slot_stride
    values = tl.load(value_cache + value_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    result = tl.sum(probs[:, None] * values, axis=0) / tl.sum(probs, axis=0)
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, result, mask=in_head)


@triton.jit
def paged_decode_kernel_step_2(
    out, q, key_cache, value_cache, block_tables, seq_lens,
    scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """One head over any number of blocks, a tile of tokens at a time. Grid (num_seqs, num_heads)."""
    seq, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // GROUP_SIZE
    seq_len = tl.load(seq_lens + seq)
    dims = tl.arange(0, TILE_DIM)
    in_head = dims < HEAD_DIM
    query = tl.load(q + seq * q_seq_stride + head * q_head_stride + dims, mask=in_head, other=0.0).to(tl.float32)

    running_max, running_sum = float("-inf"), 0.0
    acc = tl.zeros([TILE_DIM], dtype=tl.float32)
    for start in range(0, seq_len, TILE):
        positions = start + tl.arange(0, TILE)
        stored = positions < seq_len
        mask = stored[:, None] & in_head[None, :]
        table = block_tables + seq * table_stride
        blocks = tl.load(table + positions // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
        slots = positions % BLOCK_SIZE

        key_at = blocks * key_block_stride + kv_head * key_head_stride + slots * key_slot_stride
        keys = tl.load(key_cache + key_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(stored, tl.sum(query[None, :] * keys, axis=1) * scale, float("-inf"))

        new_max = tl.maximum(running_max, tl.max(scores, axis=0))
        shrink, probs = tl.exp(running_max - new_max), tl.exp(scores - new_max)
        value_at = blocks * value_block_stride + kv_head * value_head_stride + slots * value_slot_stride
        values = tl.load(value_cache + value_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        running_sum = running_sum * shrink + tl.sum(probs, axis=0)
        acc = acc * shrink + tl.sum(probs[:, None] * values, axis=0)
        running_max = new_max

    result = acc / tl.where(running_sum == 0.0, 1.0, running_sum)  # a sequence without tokens gets zeros
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, result, mask=in_head)


@triton.jit
def paged_decode_kernel_step_3(
    out, q, key_cache, value_cache, block_tables, seq_lens,
    scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """All query heads of one kv head at once, as the rows of a matrix. Grid (num_seqs, num_kv_heads).

    ROWS is GROUP_SIZE or more, a power of two from 16 up.
    """
    seq, kv_head = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(seq_lens + seq)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, TILE_DIM)
    in_head = dims < HEAD_DIM
    heads = kv_head * GROUP_SIZE + rows
    row_mask = (rows < GROUP_SIZE)[:, None] & in_head[None, :]
    query_at = seq * q_seq_stride + heads[:, None] * q_head_stride + dims[None, :]
    queries = tl.load(q + query_at, mask=row_mask, other=0.0)

    running_max = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    running_sum = tl.zeros([ROWS], dtype=tl.float32)
    acc = tl.zeros([ROWS, TILE_DIM], dtype=tl.float32)
    for start in range(0, seq_len, TILE):
        positions = start + tl.arange(0, TILE)
        stored = positions < seq_len
        mask = stored[:, None] & in_head[None, :]
        table = block_tables + seq * table_stride
        blocks = tl.load(table + positions // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
        slots = positions % BLOCK_SIZE

        key_at = blocks * key_block_stride + kv_head * key_head_stride + slots * key_slot_stride
        keys = tl.load(key_cache + key_at[:, None] + dims[None, :], mask=mask, other=0.0)
        scores = tl.where(stored[None, :], tl.dot(queries, tl.trans(keys)) * scale, float("-inf"))

        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        shrink, probs = tl.exp(running_max - new_max), tl.exp(scores - new_max[:, None])
        value_at = blocks * value_block_stride + kv_head * value_head_stride + slots * value_slot_stride
        values = tl.load(value_cache + value_at[:, None] + dims[None, :], mask=mask, other=0.0)
        running_sum = running_sum * shrink + tl.sum(probs, axis=1)
        acc = acc * shrink[:, None] + tl.dot(probs.to(values.dtype), values)
        running_max = new_max

    result = acc / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]
    out_at = seq * out_seq_stride + heads[:, None] * out_head_stride + dims[None, :]
    tl.store(out + out_at, result, mask=row_mask)
