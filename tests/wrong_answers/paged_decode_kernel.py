"""Wrong kernels for paged decode: ours, with one thing changed.

Those made by `trap` restate what has gone wrong in real kernels (the reports are named). They are right on the inputs
that come to mind first: tests/course/test_naive_decode.py shows it. The others are a learner's slips.
"""

from pagedlab.course.altered_kernel import altered
from pagedlab.kernels.decode_steps import paged_decode_kernel_step_3
from tests.corpus import wrong

ONE = "One tile of one group"
TILES = "Several tiles, wherever their blocks lie"
TAIL = "Nothing behind the last token is read"
BATCH = "Every sequence by its own table and length"
GROUPS = "Groups of any size"
ORDER = "Programs in any order"
HEAD_DIM = "Any head size"
STRIDES = "Strides as given, none guessed"
EMPTY = "A sequence without tokens gets zeros"
LARGE = "Large and very negative scores do no harm"
EXACT = "Products and sums are in float32"
FAR = "Large pools"


def slip(promise, says, *changes):
    return wrong(promise, says)(altered(paged_decode_kernel_step_3, *changes))


def trap(number, reports, promise, says, *changes):
    """number: as in tests/cases/test_kernel_cases.py."""
    kernel = slip(promise, says, *changes)
    kernel.trap = (number, reports)
    return kernel


# --- addressing -------------------------------------------------------------------------------------------------------

block_ids_stay_32_bits = trap(
    1, "vllm-project/vllm#47671, ROCm/aiter#4427", FAR, "to(tl.int64)", ("other=0).to(tl.int64)", "other=0)")
)
block_ids_in_16_bits = trap(
    4,
    "ROCm/ATOM#702, flashinfer-ai/flashinfer#3130",
    FAR,
    "in front of key_cache",
    ("other=0).to(tl.int64)", "other=0).to(tl.int16).to(tl.int64)"),
)
block_stride_from_the_heads = trap(
    5,
    "ROCm/aiter#3498",
    STRIDES,
    "key_cache",
    ("blocks * key_block_stride", "blocks * (tl.num_programs(1) * key_head_stride)"),
)
slots_lie_one_behind_the_other = trap(
    5,
    "vllm-project/vllm#32417",
    STRIDES,
    "slots, kv_heads, head_dim]",
    ("slots * value_slot_stride", "slots * HEAD_DIM"),
)
values_by_the_strides_of_the_keys = trap(
    5,
    "flashinfer-ai/flashinfer#3647",
    STRIDES,
    "value_cache",
    (
        "blocks * value_block_stride + kv_head * value_head_stride + slots * value_slot_stride",
        "blocks * key_block_stride + kv_head * key_head_stride + slots * key_slot_stride",
    ),
)
queries_taken_for_packed = trap(
    6,
    "sgl-project/sglang#31667",
    STRIDES,
    "q may be a slice",
    ("seq * q_seq_stride", "seq * (tl.num_programs(1) * GROUP_SIZE * HEAD_DIM)"),
)
out_goes_by_the_strides_of_q = trap(
    6,
    "vllm-project/vllm#32417",
    STRIDES,
    "",
    ("seq * out_seq_stride + heads[:, None] * out_head_stride", "seq * q_seq_stride + heads[:, None] * q_head_stride"),
)
table_read_behind_its_end = trap(
    8,
    "vllm-project/vllm#53658, vllm-project/vllm#48257",
    TAIL,
    "of block_tables",
    ("positions // BLOCK_SIZE, mask=stored, other=0)", "positions // BLOCK_SIZE)"),
)
rows_of_the_table_as_long_as_needed = trap(
    51,
    "meta-pytorch/attention-gym#189",
    BATCH,
    "",
    ("seq * table_stride", "seq * ((seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE)"),
)

# --- masks and lengths ------------------------------------------------------------------------------------------------

the_table_says_how_long = trap(
    9,
    "microsoft/onnxruntime#32391, sgl-project/sglang#1782",
    TAIL,
    "behind A's last token",
    ("seq_len = tl.load(seq_lens + seq)", "seq_len = table_stride * BLOCK_SIZE"),
)
masks_the_scores_only = trap(
    13,
    "vllm-project/vllm#936, Dao-AILab/flash-attention#1745",
    TAIL,
    "0 * NaN",
    ("value_at[:, None] + dims[None, :], mask=mask", "value_at[:, None] + dims[None, :], mask=in_head[None, :]"),
)
adds_minus_infinity = trap(
    14,
    "deepbeepmeep/Wan2GP#1628",
    TAIL,
    "NaN + (-inf)",
    ("key_at[:, None] + dims[None, :], mask=mask", "key_at[:, None] + dims[None, :], mask=in_head[None, :]"),
    (
        'tl.where(stored[None, :], tl.dot(queries, tl.trans(keys)) * scale, float("-inf"))',
        'tl.dot(queries, tl.trans(keys)) * scale + tl.where(stored, 0.0, float("-inf"))[None, :]',
    ),
)
reads_whole_blocks = trap(
    17,
    "flashinfer-ai/flashinfer#3716, pytorch/pytorch#160861",
    TAIL,
    "behind A's last token",
    ("stored = positions < seq_len", "stored = positions < (seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE * BLOCK_SIZE"),
)
whole_tiles_only = trap(
    22,
    "flashinfer-ai/flashinfer#725",
    TAIL,
    "was not read",
    ("range(0, seq_len, TILE)", "range(0, seq_len // TILE * TILE, TILE)"),
)
a_finite_number_for_minus_infinity = trap(
    18,
    "flashinfer-ai/flashinfer#4450",
    LARGE,
    "largest of nothing",
    ('tl.full([ROWS], float("-inf")', "tl.full([ROWS], -5e4"),
    ('* scale, float("-inf"))', "* scale, -5e4)"),
)
every_column_of_the_table = trap(
    19,
    "pegainfer-project/pegainfer#21, ROCm/aiter#2505",
    EMPTY,
    "NaN",
    ("range(0, seq_len, TILE)", "range(0, table_stride * BLOCK_SIZE, TILE)"),
)
largest_is_zero_or_more = trap(
    20,
    "the softmax step of several serving engines",
    LARGE,
    "largest of nothing",
    ('tl.full([ROWS], float("-inf")', "tl.full([ROWS], 0.0"),
)
nothing_divided_by_nothing = trap(
    21,
    "sgl-project/sglang#22688, sgl-project/sglang#1469",
    EMPTY,
    "NaN",
    ("acc / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]", "acc / running_sum[:, None]"),
)
leaves_before_it_stores = trap(
    26,
    "pytorch/pytorch#194167",
    EMPTY,
    "never written",
    (
        "    rows, dims = tl.arange(0, ROWS), tl.arange(0, TILE_DIM)\n",
        "    if seq_len == 0:\n        return\n    rows, dims = tl.arange(0, ROWS), tl.arange(0, TILE_DIM)\n",
    ),
)

# --- shapes -----------------------------------------------------------------------------------------------------------

as_many_rows_as_heads = trap(
    32,
    "vllm-project/vllm#18100",
    GROUPS,
    "power of two",
    ("rows, dims = tl.arange(0, ROWS)", "rows, dims = tl.arange(0, GROUP_SIZE)"),
    ("tl.full([ROWS]", "tl.full([GROUP_SIZE]"),
    ("tl.zeros([ROWS],", "tl.zeros([GROUP_SIZE],"),
    ("tl.zeros([ROWS, TILE_DIM]", "tl.zeros([GROUP_SIZE, TILE_DIM]"),
)
sixteen_rows_are_enough = trap(
    33,
    "vllm-project/vllm#23424",
    GROUPS,
    "never written",
    ("rows, dims = tl.arange(0, ROWS)", "rows, dims = tl.arange(0, 16)"),
    ("tl.full([ROWS]", "tl.full([16]"),
    ("tl.zeros([ROWS],", "tl.zeros([16],"),
    ("tl.zeros([ROWS, TILE_DIM]", "tl.zeros([16, TILE_DIM]"),
)
rows_of_other_kv_heads = trap(
    34,
    "vllm-project/vllm#40792, FlashML-org/FreeToken#177",
    ORDER,
    "the last one wins",
    ("(rows < GROUP_SIZE)[:, None]", "(heads < tl.num_programs(1) * GROUP_SIZE)[:, None]"),
)
every_head_fills_its_tile = trap(
    37, "vllm-project/vllm#4127", HEAD_DIM, "HEAD_DIM", ("in_head = dims < HEAD_DIM", "in_head = dims < TILE_DIM")
)
a_block_is_a_tile = trap(
    38,
    "vllm-project/vllm#41339, ROCm/aiter#2190",
    TILES,
    "at least 16",
    ("range(0, seq_len, TILE)", "range(0, seq_len, BLOCK_SIZE)"),
    ("start + tl.arange(0, TILE)", "start + tl.arange(0, BLOCK_SIZE)"),
)

# --- numbers ----------------------------------------------------------------------------------------------------------

queries_scaled_in_float16 = trap(
    41,
    "ROCm/aotriton#43, hao-ai-lab/FastVideo#1730",
    EXACT,
    "scale the scores",
    (
        "queries = tl.load(q + query_at, mask=row_mask, other=0.0)",
        "queries = (tl.load(q + query_at, mask=row_mask, other=0.0) * scale).to(tl.float16)",
    ),
    ("tl.dot(queries, tl.trans(keys)) * scale", "tl.dot(queries, tl.trans(keys))"),
)
loads_without_other = trap(
    46,
    "triton-lang/triton#9917, vllm-project/vllm#9014",
    TAIL,
    "without `other`",
    ("value_at[:, None] + dims[None, :], mask=mask, other=0.0)", "value_at[:, None] + dims[None, :], mask=mask)"),
)

# --- a learner's slips ------------------------------------------------------------------------------------------------

forgets_to_scale = slip(
    ONE, "not scaled", ("tl.dot(queries, tl.trans(keys)) * scale", "tl.dot(queries, tl.trans(keys))")
)
one_maximum_for_all_rows = slip(
    LARGE, "no token had any weight", ("tl.max(scores, axis=1)", "tl.max(tl.max(scores, axis=1), axis=0)")
)
keys_of_the_first_kv_head = slip(ONE, "the key of token 0 was never read", ("kv_head * key_head_stride", "0"))
keys_not_transposed = slip(ONE, "can't multiply these", ("tl.trans(keys)", "keys"))
two_types_in_one_product = slip(ONE, "dtype", ("probs.to(values.dtype)", "probs"))
acc_in_float16 = slip(
    EXACT,
    "keep scores, sums and acc",
    ("tl.zeros([ROWS, TILE_DIM], dtype=tl.float32)", "tl.zeros([ROWS, TILE_DIM], dtype=tl.float16)"),
    (
        "acc = acc * shrink[:, None] + tl.dot(probs.to(values.dtype), values)",
        "acc = (acc * shrink[:, None] + tl.dot(probs.to(values.dtype), values)).to(tl.float16)",
    ),
)
