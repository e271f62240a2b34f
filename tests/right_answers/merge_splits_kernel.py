"""Right answers to `merge_splits_kernel` in styles other than ours."""

from pagedlab.gpu import mode

mode.interpret()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from tests.corpus import right  # noqa: E402

LOG_2 = tl.constexpr(0.6931471805599453)


@right
@triton.jit
def one_tile(
    out,
    partial_out,
    partial_lse,
    out_seq_stride,
    out_head_stride,
    partial_out_seq_stride,
    partial_out_head_stride,
    partial_out_split_stride,
    partial_lse_seq_stride,
    partial_lse_head_stride,
    num_splits,
    SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    seq, head = tl.program_id(0), tl.program_id(1)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, TILE_DIM)
    lse = tl.load(
        partial_lse + seq * partial_lse_seq_stride + head * partial_lse_head_stride + splits,
        mask=splits < num_splits,
        other=-float("inf"),
    )
    largest = tl.max(lse, 0)
    weights = tl.exp2(lse - tl.where(largest == -float("inf"), 0.0, largest))
    total = tl.sum(weights, 0)
    offsets = splits[None, :] * partial_out_split_stride + dims[:, None]  # a split is a column
    rows = tl.load(
        partial_out + seq * partial_out_seq_stride + head * partial_out_head_stride + offsets,
        mask=(lse > -float("inf"))[None, :] & (dims < HEAD_DIM)[:, None],
        other=0.0,
    )
    merged = tl.sum(weights[None, :] * rows, 1) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, merged, mask=dims < HEAD_DIM)


@right
@triton.jit
def split_by_split(
    out,
    partial_out,
    partial_lse,
    out_seq_stride,
    out_head_stride,
    partial_out_seq_stride,
    partial_out_head_stride,
    partial_out_split_stride,
    partial_lse_seq_stride,
    partial_lse_head_stride,
    num_splits,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    seq, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    partial_out += seq * partial_out_seq_stride + head * partial_out_head_stride
    partial_lse += seq * partial_lse_seq_stride + head * partial_lse_head_stride
    dims = tl.arange(0, TILE_DIM)
    running_max = -float("inf")
    running_sum = 0.0
    acc = tl.zeros([TILE_DIM], tl.float32)
    for split in range(num_splits):
        lse = tl.load(partial_lse + split)
        there = (dims < HEAD_DIM) & (lse > -float("inf"))  # a tile and a number
        row = tl.load(partial_out + split * partial_out_split_stride + dims, mask=there, other=0.0)
        new_max = tl.maximum(running_max, lse)
        if new_max > -float("inf"):
            shrink, weight = tl.exp2(running_max - new_max), tl.exp2(lse - new_max)
            acc = acc * shrink + weight * row
            running_sum = running_sum * shrink + weight
            running_max = new_max
    if running_sum > 0.0:
        acc = acc / running_sum
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, acc, mask=dims < HEAD_DIM)


@right
@triton.jit
def natural_logarithms_and_a_cleaned_tile(
    partial_lse,
    partial_out,
    out,
    num_splits: tl.constexpr,
    SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
    partial_lse_seq_stride: tl.constexpr,
    partial_lse_head_stride: tl.constexpr,
    partial_out_seq_stride: tl.constexpr,
    partial_out_head_stride: tl.constexpr,
    partial_out_split_stride: tl.constexpr,
    out_seq_stride: tl.constexpr,
    out_head_stride: tl.constexpr,
):
    seq, head = tl.program_id(0), tl.program_id(1)
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, TILE_DIM)
    is_split, is_dim = splits < num_splits, dims < HEAD_DIM
    lse = tl.load(partial_lse + seq * partial_lse_seq_stride + head * partial_lse_head_stride + splits, mask=is_split)
    empty = (lse == -float("inf")) | (splits >= num_splits)
    lse = tl.where(empty, -1e30, lse) * LOG_2
    weights = tl.where(empty, 0.0, tl.exp(lse - tl.max(lse, 0)))
    start = partial_out + seq * partial_out_seq_stride + head * partial_out_head_stride
    rows = tl.load(
        start + splits[:, None] * partial_out_split_stride + dims[None, :], mask=is_split[:, None] & is_dim[None, :]
    )
    rows = tl.where(empty[:, None], 0.0, rows)
    total = tl.sum(weights, 0)
    shares = weights / tl.maximum(total, 1e-20)
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, tl.sum(shares[:, None] * rows, 0), mask=is_dim)


@triton.jit
def safe_largest(lse):
    largest = tl.max(lse, 0)
    return tl.where(largest == -float("inf"), 0.0, largest)


@right
@triton.jit
def two_passes_and_a_helper(
    out,
    partial_out,
    partial_lse,
    out_seq_stride,
    out_head_stride,
    partial_out_seq_stride,
    partial_out_head_stride,
    partial_out_split_stride,
    partial_lse_seq_stride,
    partial_lse_head_stride,
    num_splits,
    SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    seq, head, splits, dims = tl.program_id(0), tl.program_id(1), tl.arange(0, SPLITS), tl.arange(0, TILE_DIM)
    lse_row = partial_lse + seq * partial_lse_seq_stride + head * partial_lse_head_stride
    lse = tl.load(lse_row + splits, mask=splits < num_splits, other=-float("inf"))
    largest = safe_largest(lse)
    log_total = largest + tl.log2(tl.sum(tl.exp2(lse - largest), 0))
    acc = tl.zeros([TILE_DIM], tl.float32)
    for split in range(0, num_splits):
        lse_one = tl.load(lse_row + split)
        share = tl.where(lse_one == -float("inf"), 0.0, tl.exp2(lse_one - log_total))
        where = partial_out + seq * partial_out_seq_stride + head * partial_out_head_stride
        row = tl.load(where + split * partial_out_split_stride + dims, mask=dims < HEAD_DIM, other=0.0)
        acc += share * tl.where(lse_one == -float("inf"), 0.0, row)
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, acc.to(out.dtype.element_ty), dims < HEAD_DIM)
