"""The results of the splits of each sequence become one: the second kernel of split decode.

A split leaves its output, normalised, and the logarithm to base 2 of its sum of exponentials (LSE). Its share of the
whole is exp2(lse), so the whole is a softmax over the splits, weighing their outputs. Base 2 because that is what a GPU
computes; `merge_partials` of `pagedlab.attention` is the same sum for two parts in natural logarithms.

The sums run over chunks of a fixed number of splits, in order. Empty splits behind the last add zeros to them, so a
sequence's bits do not depend on how many splits its neighbours in the batch need.
"""

from pagedlab.gpu import mode

mode.choose()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from pagedlab.kernels.launch import check_last_dimension, launch  # noqa: E402

CHUNK = 8
"""Splits read at a time. With 4 warps and a head_dim of 128 that takes 32 registers: a full multiprocessor."""


@triton.jit
def merge_splits_kernel(
    out, partial_out, partial_lse,
    out_seq_stride, out_head_stride,
    partial_out_seq_stride, partial_out_head_stride, partial_out_split_stride,
    partial_lse_seq_stride, partial_lse_head_stride,
    num_splits,
    SPLITS: tl.constexpr,  # num_splits or more, a power of 2
    CHUNK: tl.constexpr,
    HEAD_DIM: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """One program: the splits of one sequence and query head."""
    seq, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, TILE_DIM)
    partial_out += seq * partial_out_seq_stride + head * partial_out_head_stride + dims[None, :]
    partial_lse += seq * partial_lse_seq_stride + head * partial_lse_head_stride

    # A maximum is the same in any order and number. An empty split's LSE is -inf, and so is that of no tokens at all.
    all_splits = tl.arange(0, SPLITS)
    lse_max = tl.max(tl.load(partial_lse + all_splits, mask=all_splits < num_splits, other=-float("inf")), 0)
    safe_max = tl.where(lse_max == -float("inf"), 0.0, lse_max)  # to subtract: -inf minus -inf is NaN

    total = 0.0
    acc = tl.zeros([TILE_DIM], tl.float32)
    for start in range(0, num_splits, CHUNK):
        splits = start + tl.arange(0, CHUNK)
        is_split = splits < num_splits
        lse = tl.load(partial_lse + splits, mask=is_split, other=-float("inf"))
        weights = tl.exp2(lse - safe_max)
        # An empty split's weight is 0, but nobody wrote its output, and 0 times NaN is NaN: leave it where it is.
        mask = (lse != -float("inf"))[:, None] & (dims < HEAD_DIM)[None, :]
        parts = tl.load(partial_out + splits.to(tl.int64)[:, None] * partial_out_split_stride, mask=mask, other=0.0)
        acc += tl.sum(weights[:, None] * parts, 0)
        total += tl.sum(weights, 0)

    acc = acc / tl.where(total == 0.0, 1.0, total)  # zeros for a sequence of no tokens
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, acc.to(out.dtype.element_ty), dims < HEAD_DIM)


def merge_splits(partial_out: torch.Tensor, partial_lse: torch.Tensor, dtype=torch.float32, kernel=merge_splits_kernel):
    """partial_out `[num_seqs, num_heads, num_splits, head_dim]`, partial_lse `[num_seqs, num_heads, num_splits]`, both
    float32, lse to base 2, -inf for an empty split. Returns `[num_seqs, num_heads, head_dim]` of `dtype`.
    """
    grid, arguments, options = merge_launch(partial_out, partial_lse, dtype)
    launch(kernel, grid, arguments, **options)
    return arguments["out"].to(dtype)


def merge_launch(partial_out: torch.Tensor, partial_lse: torch.Tensor, dtype=torch.float32):
    """(grid, arguments, options) of the merge; the result comes in `arguments["out"]`."""
    num_seqs, num_heads, num_splits, head_dim = partial_out.shape
    if partial_lse.shape != partial_out.shape[:3]:
        raise ValueError(
            f"partial_lse is {list(partial_lse.shape)}; partial_out {list(partial_out.shape)} needs "
            f"{list(partial_out.shape[:3])}"
        )
    if partial_out.dtype != torch.float32 or partial_lse.dtype != torch.float32:
        raise TypeError(f"parts are {partial_out.dtype} and {partial_lse.dtype}; they are kept in float32")
    check_last_dimension(partial_out=partial_out, partial_lse=partial_lse)
    # The interpreter cuts float32 to bfloat16 instead of rounding: let torch do that.
    kept = torch.float32 if mode.is_interpreting() and dtype == torch.bfloat16 else dtype
    out = torch.empty((num_seqs, num_heads, head_dim), dtype=kept, device=partial_out.device)
    arguments = {
        "out": out,
        "partial_out": partial_out,
        "partial_lse": partial_lse,
        "out_seq_stride": out.stride(0),
        "out_head_stride": out.stride(1),
        "partial_out_seq_stride": partial_out.stride(0),
        "partial_out_head_stride": partial_out.stride(1),
        "partial_out_split_stride": partial_out.stride(2),
        "partial_lse_seq_stride": partial_lse.stride(0),
        "partial_lse_head_stride": partial_lse.stride(1),
        "num_splits": num_splits,
        "SPLITS": triton.next_power_of_2(num_splits),
        "CHUNK": CHUNK,
        "HEAD_DIM": head_dim,
        "TILE_DIM": triton.next_power_of_2(head_dim),
    }
    return (num_seqs, num_heads), arguments, {"num_warps": 4}
