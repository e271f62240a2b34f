"""Plausible wrong answers to `merge_splits_kernel`: a right one, with a line or two as they should not be."""

from pagedlab.gpu import mode

mode.interpret()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from pagedlab.course.altered_kernel import altered  # noqa: E402
from tests.corpus import wrong  # noqa: E402

ONE = "A single split comes out as it is"
SHARES = "Each split counts by its share"
STRIDES = "Every sequence and head has its own, by the strides"
SIZES = "Any number of splits, any head_dim"
LARGE = "Large and very negative lse do no harm"
EMPTY = "An empty split counts for nothing, whatever it holds"
ALL_EMPTY = "Without any tokens the result is zeros"
COMPILES = "It compiles for an A100 and an H100"


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def merge(
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
    lse_row = partial_lse + seq * partial_lse_seq_stride + head * partial_lse_head_stride
    lse = tl.load(lse_row + splits, mask=splits < num_splits, other=-float("inf"))
    largest = tl.max(lse, 0)
    largest = tl.where(largest == -float("inf"), 0.0, largest)
    weights = tl.exp2(lse - largest)
    total = tl.sum(weights, 0)
    total = tl.where(total == 0.0, 1.0, total)
    rows = partial_out + seq * partial_out_seq_stride + head * partial_out_head_stride
    rows += splits[:, None] * partial_out_split_stride + dims[None, :]
    there = (lse > -float("inf"))[:, None] & (dims < HEAD_DIM)[None, :]
    parts = tl.load(rows, mask=there, other=0.0)
    merged = tl.sum(weights[:, None] * parts, 0) / total
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, merged, mask=dims < HEAD_DIM)


def broken(promise, says, *changes):
    return wrong(promise, says)(altered(merge, *changes))


# One slip each; the numbers are those of the list of traps that real kernels fell into.
base_e = broken(SHARES, "natural logarithms", ("tl.exp2(lse - largest)", "tl.exp(lse - largest)"))  # 27
equal_weights = broken(SHARES, "same weight", ("tl.exp2(lse - largest)", "tl.where(lse > -1e30, 1.0, 0.0)"))
never_divides = broken(SHARES, "sum to 1", ("parts, 0) / total", "parts, 0)"))
sums_up_and_never_rescales = broken(
    SHARES,
    "not rescaled",
    ("    total = tl.sum(weights, 0)\n", "    total = tl.sum(tl.exp2(lse - tl.associative_scan(lse, 0, larger)), 0)\n"),
)

packed = broken(
    SHARES,
    "",
    ("head * partial_out_head_stride", "head * HEAD_DIM * num_splits"),
    ("splits[:, None] * partial_out_split_stride", "splits[:, None] * HEAD_DIM"),
)
sequence_and_head_swapped = broken(
    STRIDES, "", ("seq, head = tl.program_id(0), tl", "head, seq = tl.program_id(0), tl")
)
all_heads_read_the_first = broken(STRIDES, "outputs of head 0", (" + head * partial_out_head_stride", ""))

padding_counts = broken(
    SIZES,
    "no split was counted",
    ('other=-float("inf")', "other=0.0"),
    ("there = (lse >", "there = (splits < num_splits)[:, None] & (lse >"),
)
padding_is_undefined = broken(SIZES, "", (', other=-float("inf"))', ")"))  # 46
no_mask_for_head_dim = broken(SIZES, "", ("merged, mask=dims < HEAD_DIM)", "merged)"))  # writes into the next head
tile_of_num_splits = broken(ONE, "known when", ("tl.arange(0, SPLITS)", "tl.arange(0, num_splits)"))
at_most_64 = broken(SIZES, "", ("tl.arange(0, SPLITS)", "tl.arange(0, 64)"))  # 29

plain_powers = broken(LARGE, "differences", ("tl.exp2(lse - largest)", "tl.exp2(lse)"))
maximum_never_below_zero = broken(
    LARGE, "rounded to 0", ("largest = tl.max(lse, 0)", "largest = tl.maximum(tl.max(lse, 0), 0.0)")
)  # 20

weight_zero_is_no_protection = broken(EMPTY, "0 * NaN", ('(lse > -float("inf"))[', "(splits < num_splits)["))  # 25
takes_out_nan_only = broken(
    EMPTY,
    "0 * inf",
    ('(lse > -float("inf"))[', "(splits < num_splits)["),
    ("weights[:, None] * parts", "weights[:, None] * tl.where(parts == parts, parts, 0.0)"),
)

minus_inf_less_minus_inf = broken(
    ALL_EMPTY, "-inf - (-inf)", ('    largest = tl.where(largest == -float("inf"), 0.0, largest)\n', "")
)
zero_by_zero = broken(ALL_EMPTY, "0 / 0", ("    total = tl.where(total == 0.0, 1.0, total)\n", ""))

loop_begins_with_whole_numbers = broken(
    COMPILES,
    "doesn't compile",
    (
        "    total = tl.sum(weights, 0)\n",
        "    total = 0\n"
        "    for split in range(num_splits):\n"
        "        total += tl.sum(tl.where(splits == split, weights, 0.0), 0)\n",
    ),
)
