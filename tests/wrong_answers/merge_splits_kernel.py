"""Plausible wrong answers to `merge_splits_kernel`: a right one, with a line or two as they should not be."""

from pagedlab.gpu import mode

mode.interpret()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from tests.altered_kernel import altered  # noqa: E402
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
adds_them_up = broken(SHARES, "added as they are", ("tl.sum(weights[:, None] * parts, 0) / total", "tl.sum(parts, 0)"))
never_divides = broken(SHARES, "sum to 1", ("parts, 0) / total", "parts, 0)"))
keeps_the_largest = broken(
    SHARES, "largest lse was kept", ("tl.exp2(lse - largest)", "tl.where(lse == largest, 1.0, 0.0)")
)
weighs_by_the_lse = broken(ONE, "", ("weights = tl.exp2(lse - largest)", "weights = tl.where(lse > -1e30, lse, 0.0)"))
first_split_only = broken(SHARES, "Only split 0", ("mask=splits < num_splits", "mask=splits < 1"))
the_last_is_forgotten = broken(
    SHARES, "last split was left out", ("mask=splits < num_splits", "mask=splits < tl.maximum(num_splits - 1, 1)")
)
maximum_over_nothing = broken(ONE, "", ("largest = tl.max(lse, 0)", "largest = tl.max(lse, 1)"))

packed_heads = broken(
    STRIDES,
    "strides",
    ("head * partial_out_head_stride", "head * HEAD_DIM * num_splits"),
)
lse_strides_of_the_outputs = broken(STRIDES, "", ("seq * partial_lse_seq_stride", "seq * partial_out_seq_stride"))
sequence_and_head_swapped = broken(
    STRIDES, "", ("seq, head = tl.program_id(0), tl", "head, seq = tl.program_id(0), tl")
)
writes_where_it_reads = broken(STRIDES, "", ("out + seq * out_seq_stride", "out + seq * partial_out_seq_stride"))
first_head_only = broken(
    STRIDES,
    "never written",
    ("    tl.store(out", "    if head == 0:\n        tl.store(out"),
)
packed_splits = broken(SHARES, "", ("splits[:, None] * partial_out_split_stride", "splits[:, None] * HEAD_DIM"))

padding_counts = broken(
    SIZES,
    "no split was counted",
    ('other=-float("inf")', "other=0.0"),
    ("there = (lse >", "there = (splits < num_splits)[:, None] & (lse >"),
)
padding_is_undefined = broken(SIZES, "", (', other=-float("inf"))', ")"))  # 46
no_mask_for_splits = broken(
    SIZES, "", ('tl.load(lse_row + splits, mask=splits < num_splits, other=-float("inf"))', "tl.load(lse_row + splits)")
)
no_mask_for_head_dim = broken(SIZES, "", ("merged, mask=dims < HEAD_DIM)", "merged)"))  # writes into the next head
at_most_64 = broken(SIZES, "", ("tl.arange(0, SPLITS)", "tl.arange(0, 64)"))  # 29

plain_powers = broken(LARGE, "differences", ("tl.exp2(lse - largest)", "tl.exp2(lse)"))
maximum_never_below_zero = broken(
    LARGE, "rounded to 0", ("largest = tl.max(lse, 0)", "largest = tl.maximum(tl.max(lse, 0), 0.0)")
)  # 20
finite_sentinel = broken(  # 18
    LARGE,
    "rounded to 0",
    ('other=-float("inf")', "other=-5e4"),
    ("there = (lse > -float", "there = (splits < num_splits)[:, None] & (lse > -float"),
)

weight_zero_is_no_protection = broken(EMPTY, "0 * NaN", ('(lse > -float("inf"))[', "(splits < num_splits)["))  # 25
takes_out_nan_only = broken(
    EMPTY,
    "0 * inf",
    ('(lse > -float("inf"))[', "(splits < num_splits)["),
    ("weights[:, None] * parts", "weights[:, None] * tl.where(parts == parts, parts, 0.0)"),
)
empty_counts_as_zero = broken(
    EMPTY,
    "",
    (
        "weights = tl.exp2",
        'lse = tl.where((lse == -float("inf")) & (splits < num_splits), 0.0, lse)\n    weights = tl.exp2',
    ),
)
stops_at_the_first_empty = broken(
    EMPTY,
    "",
    (
        "    weights = tl.exp2(lse - largest)",
        "    gone = tl.cumsum((lse == -float('inf')).to(tl.int32), 0) > 0\n"
        "    weights = tl.where(gone, 0.0, tl.exp2(lse - largest))",
    ),
)

minus_inf_less_minus_inf = broken(
    ALL_EMPTY, "-inf - (-inf)", ('    largest = tl.where(largest == -float("inf"), 0.0, largest)\n', "")
)
zero_by_zero = broken(ALL_EMPTY, "0 / 0", ("    total = tl.where(total == 0.0, 1.0, total)\n", ""))
returns_without_writing = broken(
    ALL_EMPTY,
    "never written",
    ("    tl.store(out", "    if tl.max(lse, 0) > -float('inf'):\n        tl.store(out"),
)

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
a_method_of_numpy = broken(COMPILES, "doesn't compile", ("tl.sum(weights, 0)", "sum([tl.sum(weights, 0)])"))
