"""Wrong kernels for one head over one block: ours, with one thing changed."""

from pagedlab.kernels.decode_steps import paged_decode_kernel_step_1
from tests.altered_kernel import altered
from tests.corpus import wrong

FULL = "One head over one full block, wherever it lies"
PROGRAMS = "Each program takes its own sequence and head"
TAIL = "Slots behind the last token count for nothing"
HEAD_DIM = "Any head size"
STRIDES = "Strides as given, none guessed"
LARGE = "Large and very negative scores do no harm"
EXACT = "Products and sums are in float32"
COMPILES = "It compiles for an A100 (sm_80) and an H100 (sm_90)"


def slip(promise, says, *changes):
    return wrong(promise, says)(altered(paged_decode_kernel_step_1, *changes))


ignores_the_table = slip(
    FULL,
    "a slot that nobody wrote",
    ("tl.load(block_tables + seq * table_stride).to(tl.int64)", "seq.to(tl.int64)"),
)
forgets_to_scale = slip(FULL, "not scaled", ("axis=1) * scale", "axis=1)"))
scale_worked_out = slip(FULL, "not by `scale`", ("axis=1) * scale", "axis=1) * (1 / HEAD_DIM**0.5)"))
forgets_to_divide = slip(FULL, "sum to", (" / tl.sum(probs, axis=0)", ""))
powers_of_two = slip(FULL, "powers of 2", ("tl.exp(scores", "tl.exp2(scores"))
rows_of_the_table_one_wide = slip(PROGRAMS, "", ("block_tables + seq * table_stride", "block_tables + seq"))
always_the_first_kv_head = slip(
    PROGRAMS,
    "kv head 0",
    ("head * key_head_stride", "0 * key_head_stride"),
    ("head * value_head_stride", "0 * value_head_stride"),
)
program_ids_the_other_way_round = slip(
    PROGRAMS, "", ("seq, head = tl.program_id(0), tl.program_id(1)", "seq, head = tl.program_id(1), tl.program_id(0)")
)
masks_the_scores_only = slip(
    TAIL,
    "0 * NaN",
    ("value_at[:, None] + dims[None, :], mask=mask", "value_at[:, None] + dims[None, :], mask=in_head[None, :]"),
)
no_mask_for_the_scores = slip(
    TAIL,
    "sum to",
    (
        'tl.where(stored, tl.sum(query[None, :] * keys, axis=1) * scale, float("-inf"))',
        "tl.sum(query[None, :] * keys, axis=1) * scale",
    ),
)
minus_infinity_is_added = slip(
    TAIL,
    "NaN + (-inf)",
    ("key_at[:, None] + dims[None, :], mask=mask", "key_at[:, None] + dims[None, :], mask=in_head[None, :]"),
    (
        'tl.where(stored, tl.sum(query[None, :] * keys, axis=1) * scale, float("-inf"))',
        'tl.sum(query[None, :] * keys, axis=1) * scale + tl.where(stored, 0.0, float("-inf"))',
    ),
)
the_whole_block_counts = slip(
    TAIL, "behind A's last token", ("stored, in_head = slots < seq_len", "stored, in_head = slots < TILE")
)
loads_without_other = slip(
    TAIL,
    "without `other`",
    ("value_at[:, None] + dims[None, :], mask=mask, other=0.0", "value_at[:, None] + dims[None, :], mask=mask"),
)
every_head_fills_its_tile = slip(HEAD_DIM, "HEAD_DIM", ("dims < HEAD_DIM", "dims < TILE_DIM"))
heads_of_128_at_most = slip(HEAD_DIM, "", ("tl.arange(0, TILE_DIM)", "tl.arange(0, 128)"))
tiles_as_wide_as_heads = slip(HEAD_DIM, "power of two", ("tl.arange(0, TILE_DIM)", "tl.arange(0, HEAD_DIM)"))
queries_taken_for_packed = slip(STRIDES, "q may be a slice", ("head * q_head_stride", "head * HEAD_DIM"))
values_by_the_strides_of_the_keys = slip(
    STRIDES,
    "value_cache",
    (
        "block * value_block_stride + head * value_head_stride + slots * value_slot_stride",
        "block * key_block_stride + head * key_head_stride + slots * key_slot_stride",
    ),
)
exp_without_a_maximum = slip(LARGE, "exp overflows above 88", ("scores - tl.max(scores, axis=0)", "scores"))
empty_slots_in_the_maximum = slip(
    LARGE, "", ("tl.max(scores, axis=0)", "tl.max(tl.where(stored, scores, 0.0), axis=0)")
)
products_in_float16 = slip(
    EXACT,
    "float32",
    ("mask=in_head, other=0.0).to(tl.float32)", "mask=in_head, other=0.0)"),
    (
        "key_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)",
        "key_at[:, None] + dims[None, :], mask=mask, other=0.0)",
    ),
)
values_summed_in_float16 = slip(
    EXACT, "", ("tl.sum(probs[:, None] * values, axis=0)", "tl.sum((probs[:, None] * values).to(tl.float16), axis=0)")
)
queries_scaled_in_float16 = slip(
    EXACT,
    "scale the scores",
    ("mask=in_head, other=0.0).to(tl.float32)", "mask=in_head, other=0.0)\n    query = (query * scale).to(tl.float16)"),
    ("query[None, :] * keys, axis=1) * scale", "query[None, :] * keys, axis=1)"),
)
a_number_of_the_notebook = slip(
    COMPILES,
    "a plain number",
    ("@triton.jit\n", 'NOTHING = float("-inf")\n\n\n@triton.jit\n'),
    ('* scale, float("-inf"))', "* scale, NOTHING)"),
)
