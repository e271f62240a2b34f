"""Right kernels for paged decode in styles other than ours."""

from pagedlab.gpu import mode

mode.choose()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from tests.corpus import right  # noqa: E402

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def place(blocks, head, slots, block_stride, head_stride, slot_stride):
    """Where tokens begin in a cache, in elements."""
    return blocks * block_stride + head * head_stride + slots * slot_stride


@right
@triton.jit
def base_two_with_a_helper_and_runtime_strides(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride, key_head_stride, key_slot_stride, value_block_stride, value_head_stride, value_slot_stride,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    seq, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    seq_len = tl.load(seq_lens + seq)
    row, dim = tl.arange(0, ROWS), tl.arange(0, TILE_DIM)
    on = (row < GROUP_SIZE)[:, None] & (dim < HEAD_DIM)[None, :]
    head = kv_head * GROUP_SIZE + row
    query = tl.load(q + seq * q_seq_stride + head[:, None] * q_head_stride + dim[None, :], mask=on, other=0.0)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, TILE_DIM], tl.float32)
    for tile in range(tl.cdiv(seq_len, TILE)):
        token = tile * TILE + tl.arange(0, TILE)
        valid = token < seq_len
        block = tl.load(block_tables + seq * table_stride + token // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        at = place(block, kv_head, token % BLOCK_SIZE, key_block_stride, key_head_stride, key_slot_stride)
        k = tl.load(
            key_cache + at[None, :] + dim[:, None], mask=valid[None, :] & (dim < HEAD_DIM)[:, None], other=0.0
        )  # [TILE_DIM, TILE]: transposed by the load
        s = tl.dot(query, k) * (scale * LOG2E)
        s = tl.where(valid[None, :], s, float("-inf"))
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        at = place(block, kv_head, token % BLOCK_SIZE, value_block_stride, value_head_stride, value_slot_stride)
        v = tl.load(
            value_cache + at[:, None] + dim[None, :], mask=valid[:, None] & (dim < HEAD_DIM)[None, :], other=0.0
        )
        alpha = tl.exp2(m - new)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m = new
    acc = tl.where(total[:, None] > 0, acc / tl.maximum(total, 1e-30)[:, None], 0.0)
    tl.store(out + seq * out_seq_stride + head[:, None] * out_head_stride + dim[None, :], acc.to(tl.float16), mask=on)


@right
@triton.jit
def a_block_at_a_time(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """One entry of the table a step, and a tile of its own making: BLOCK_SIZE slots, filled up to a power of two."""
    WIDE: tl.constexpr = triton.next_power_of_2(BLOCK_SIZE) if BLOCK_SIZE > 16 else 16
    seq, kv_head = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(seq_lens + seq)
    rows, dims, slots = tl.arange(0, ROWS), tl.arange(0, TILE_DIM), tl.arange(0, WIDE)
    row_mask = (rows[:, None] < GROUP_SIZE) & (dims[None, :] < HEAD_DIM)
    heads = (kv_head * GROUP_SIZE + rows)[:, None]
    queries = tl.load(q + seq * q_seq_stride + heads * q_head_stride + dims[None, :], mask=row_mask, other=0.0)
    running_max = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    running_sum = tl.zeros([ROWS], dtype=tl.float32)
    acc = tl.zeros([ROWS, TILE_DIM], dtype=tl.float32)
    for column in range(0, (seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE):
        block = tl.load(block_tables + seq * table_stride + column).to(tl.int64)
        stored = (slots < BLOCK_SIZE) & (column * BLOCK_SIZE + slots < seq_len)
        mask = stored[:, None] & (dims[None, :] < HEAD_DIM)
        key_tile = key_cache + block * key_block_stride + kv_head * key_head_stride
        keys = tl.load(key_tile + slots[:, None] * key_slot_stride + dims[None, :], mask=mask, other=0.0)
        value_tile = value_cache + block * value_block_stride + kv_head * value_head_stride
        values = tl.load(value_tile + slots[:, None] * value_slot_stride + dims[None, :], mask=mask, other=0.0)
        scores = tl.dot(queries, keys.T) * scale + tl.where(stored, 0.0, float("-inf"))[None, :]
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        probs = tl.exp(scores - new_max[:, None])
        shrink = tl.exp(running_max - new_max)
        running_sum = running_sum * shrink + tl.sum(probs, axis=1)
        acc = acc * shrink[:, None] + tl.dot(probs.to(tl.float16), values)
        running_max = new_max
    if seq_len > 0:
        acc = acc / running_sum[:, None]
    tl.store(out + seq * out_seq_stride + heads * out_head_stride + dims[None, :], acc, mask=row_mask)


@right
@triton.jit
def from_the_last_tile_to_the_first(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride: tl.constexpr, q_head_stride: tl.constexpr,
    out_seq_stride: tl.constexpr, out_head_stride: tl.constexpr, table_stride: tl.constexpr,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """One tile too many, all masked, so the maximum needs a safe copy. Results of tiles are merged by their lse."""
    seq, kv_head = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(seq_lens + seq)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, TILE_DIM)
    heads = kv_head * GROUP_SIZE + rows
    row_mask = (rows < GROUP_SIZE)[:, None] & (dims < HEAD_DIM)[None, :]
    queries = tl.load(
        q + seq * q_seq_stride + heads[:, None] * q_head_stride + dims[None, :], mask=row_mask, other=0.0
    ).to(tl.float32)
    result, lse = tl.zeros([ROWS, TILE_DIM], dtype=tl.float32), tl.full([ROWS], float("-inf"), dtype=tl.float32)
    last = (seq_len + TILE - 1) // TILE
    for back in range(0, last + 1):
        positions = (last - back) * TILE + tl.arange(0, TILE)  # the first of these tiles is behind the end
        stored = positions < seq_len
        blocks = tl.load(block_tables + seq * table_stride + positions // BLOCK_SIZE, mask=stored, other=0)
        blocks = blocks.to(tl.int64)
        slots = positions % BLOCK_SIZE
        mask = stored[:, None] & (dims < HEAD_DIM)[None, :]
        key_at = blocks * key_block_stride + kv_head * key_head_stride + slots * key_slot_stride
        value_at = blocks * value_block_stride + kv_head * value_head_stride + slots * value_slot_stride
        keys = tl.load(key_cache + key_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        values = tl.load(value_cache + value_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(stored[None, :], scores, float("-inf"))
        both = tl.maximum(lse, tl.max(scores, axis=1))
        safe = tl.where(both == float("-inf"), 0.0, both)
        probs, before = tl.exp(scores - safe[:, None]), tl.exp(lse - safe)
        total = before + tl.sum(probs, axis=1)
        whole = tl.where(total == 0.0, 1.0, total)
        result = (result * before[:, None] + tl.dot(probs, values, input_precision="ieee")) / whole[:, None]
        lse = tl.where(total == 0.0, float("-inf"), safe + tl.log(whole))
    tl.store(out + seq * out_seq_stride + heads[:, None] * out_head_stride + dims[None, :], result, mask=row_mask)


@right
@triton.jit
def two_passes_without_tl_dot(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """Head by head: the maximum first, then the sums. The keys are read twice, and nothing is ever rescaled."""
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq_len = tl.load(seq_lens + seq)
    dims = tl.arange(0, TILE_DIM)
    in_head = dims < HEAD_DIM
    table = block_tables + seq * table_stride
    for row in range(0, GROUP_SIZE):
        head = kv_head * GROUP_SIZE + row
        query = tl.load(q + seq * q_seq_stride + head * q_head_stride + dims, mask=in_head, other=0.0).to(tl.float32)
        largest = float("-inf")
        for start in range(0, seq_len, TILE):
            positions = start + tl.arange(0, TILE)
            stored = positions < seq_len
            blocks = tl.load(table + positions // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
            at = blocks * key_block_stride + kv_head * key_head_stride + positions % BLOCK_SIZE * key_slot_stride
            keys = tl.load(key_cache + at[:, None] + dims[None, :], mask=stored[:, None] & in_head[None, :], other=0.0)
            scores = tl.where(stored, tl.sum(query[None, :] * keys.to(tl.float32), axis=1), float("-inf"))
            largest = tl.maximum(largest, tl.max(scores, axis=0))
        total, mixed = 0.0, tl.zeros([TILE_DIM], dtype=tl.float32)
        for start in range(0, seq_len, TILE):
            positions = start + tl.arange(0, TILE)
            stored = positions < seq_len
            mask = stored[:, None] & in_head[None, :]
            blocks = tl.load(table + positions // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
            at = blocks * key_block_stride + kv_head * key_head_stride + positions % BLOCK_SIZE * key_slot_stride
            keys = tl.load(key_cache + at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
            at = blocks * value_block_stride + kv_head * value_head_stride + positions % BLOCK_SIZE * value_slot_stride
            values = tl.load(value_cache + at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
            scores = tl.sum(query[None, :] * keys, axis=1)
            probs = tl.where(stored, tl.exp((scores - largest) * scale), 0.0)
            total += tl.sum(probs, axis=0)
            mixed += tl.sum(probs[:, None] * values, axis=0)
        mixed = mixed / tl.where(total == 0.0, 1.0, total)
        tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, mixed, mask=in_head)
