"""Right kernels for one head over one block in styles other than ours."""

from pagedlab.gpu import mode

mode.choose()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from tests.corpus import right  # noqa: E402


@triton.jit
def softmax(scores):
    probs = tl.exp(scores - tl.max(scores, axis=0))
    return probs / tl.sum(probs, axis=0)


@right
@triton.jit
def with_a_helper_and_runtime_strides(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride, key_head_stride, key_slot_stride, value_block_stride, value_head_stride, value_slot_stride,
    HEAD_DIM: tl.constexpr, TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    i, h = tl.program_id(axis=0), tl.program_id(axis=1)
    n = tl.load(seq_lens + i)
    block = tl.load(block_tables + i * table_stride)
    dims, slots = tl.arange(0, TILE_DIM), tl.arange(0, TILE)
    key_cache += block * key_block_stride + h * key_head_stride
    value_cache += block * value_block_stride + h * value_head_stride
    mask = (slots < n)[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(q + i * q_seq_stride + h * q_head_stride + dims, mask=dims < HEAD_DIM, other=0)
    keys = tl.load(key_cache + slots[:, None] * key_slot_stride + dims[None, :], mask=mask, other=0)
    values = tl.load(value_cache + slots[:, None] * value_slot_stride + dims[None, :], mask=mask, other=0)
    scores = tl.sum(query.to(tl.float32)[None, :] * keys, axis=1) * scale
    weights = softmax(tl.where(slots < n, scores, -float("inf")))
    result = tl.sum(weights[:, None] * values, axis=0)
    tl.store(out + i * out_seq_stride + h * out_head_stride + dims, result.to(tl.float16), mask=dims < HEAD_DIM)


@right
@triton.jit
def slot_by_slot(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    HEAD_DIM: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """The online softmax of lesson 05, one token a step."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    block = tl.load(block_tables + seq * table_stride).to(tl.int64)
    dims = tl.arange(0, TILE_DIM)
    on = dims < HEAD_DIM
    query = tl.load(q + seq * q_seq_stride + head * q_head_stride + dims, mask=on, other=0.0).to(tl.float32) * scale
    largest, total = float("-inf"), 0.0
    mixed = tl.zeros([TILE_DIM], dtype=tl.float32)
    for slot in range(0, tl.load(seq_lens + seq)):
        key_at = block * key_block_stride + head * key_head_stride + slot * key_slot_stride
        key = tl.load(key_cache + key_at + dims, mask=on, other=0.0).to(tl.float32)
        value_at = block * value_block_stride + head * value_head_stride + slot * value_slot_stride
        value = tl.load(value_cache + value_at + dims, mask=on, other=0.0).to(tl.float32)
        score = tl.sum(query * key, axis=0)
        new = tl.maximum(largest, score)
        total = total * tl.exp(largest - new) + tl.exp(score - new)
        mixed = mixed * tl.exp(largest - new) + tl.exp(score - new) * value
        largest = new
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, mixed / total, mask=on)


@right
@triton.jit
def as_a_product_of_matrices_in_base_two(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    HEAD_DIM: tl.constexpr, TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """One row of 16 is the query. Unused slots read the first one, and weigh nothing."""
    seq, head = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(seq_lens + seq)
    block = tl.load(block_tables + seq * table_stride).to(tl.int64)
    slots, dims, rows = tl.arange(0, TILE), tl.arange(0, TILE_DIM), tl.arange(0, 16)
    stored = slots < seq_len
    nearest = tl.where(stored, slots, 0)[:, None]
    in_head = (dims < HEAD_DIM)[None, :]
    first = (rows == 0)[:, None] & in_head
    queries = tl.load(q + seq * q_seq_stride + head * q_head_stride + dims[None, :] + 0 * rows[:, None], first, 0.0)
    key_at = block * key_block_stride + head * key_head_stride
    keys = tl.load(key_cache + key_at + nearest * key_slot_stride + dims[None, :], in_head, 0.0)
    scores = tl.dot(queries, tl.trans(keys)) * (scale * 1.4426950408889634)
    scores = tl.where(stored[None, :], scores, float("-inf"))
    probs = tl.exp2(scores - tl.max(scores, axis=1, keep_dims=True))
    value_at = block * value_block_stride + head * value_head_stride
    values = tl.load(value_cache + value_at + nearest * value_slot_stride + dims[None, :], in_head, 0.0)
    results = tl.dot(probs.to(tl.float16), values) / tl.sum(probs, axis=1, keep_dims=True)
    out_at = seq * out_seq_stride + head * out_head_stride + dims[None, :] + 0 * rows[:, None]
    tl.store(out + out_at, results, mask=first)
