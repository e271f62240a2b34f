"""Wrong kernels for one head over one block: ours, with one thing changed.

What goes wrong here as in the whole kernel is in paged_decode_kernel.py.
"""

from pagedlab.course.altered_kernel import altered
from pagedlab.kernels.decode_steps import paged_decode_kernel_step_1
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


indexes_a_pointer = slip(FULL, "no [index]", ("tl.load(seq_lens + seq)", "seq_lens[seq]"))
sums_along_the_wrong_side = slip(FULL, "the side that axis names", ("axis=1) * scale", "axis=0) * scale"))
a_row_to_one_place = slip(
    FULL, "one pointer", ("out_head_stride + dims, result, mask=in_head)", "out_head_stride, result)")
)
scale_worked_out = slip(FULL, "not by `scale`", ("axis=1) * scale", "axis=1) * (1 / HEAD_DIM**0.5)"))
rows_of_the_table_one_wide = slip(PROGRAMS, "", ("block_tables + seq * table_stride", "block_tables + seq"))
program_ids_the_other_way_round = slip(
    PROGRAMS, "", ("seq, head = tl.program_id(0), tl.program_id(1)", "seq, head = tl.program_id(1), tl.program_id(0)")
)
no_mask_for_the_scores = slip(
    TAIL,
    "sum to",
    (
        'tl.where(stored, tl.sum(query[None, :] * keys, axis=1) * scale, float("-inf"))',
        "tl.sum(query[None, :] * keys, axis=1) * scale",
    ),
)
the_whole_block_counts = slip(
    TAIL, "behind A's last token", ("stored, in_head = slots < seq_len", "stored, in_head = slots < TILE")
)
tiles_as_wide_as_heads = slip(HEAD_DIM, "power of two", ("tl.arange(0, TILE_DIM)", "tl.arange(0, HEAD_DIM)"))
queries_taken_for_packed = slip(STRIDES, "q may be a slice", ("head * q_head_stride", "head * HEAD_DIM"))
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
a_number_of_the_notebook = slip(
    COMPILES,
    "a plain number",
    ("@triton.jit\n", 'NOTHING = float("-inf")\n\n\n@triton.jit\n'),
    ('* scale, float("-inf"))', "* scale, NOTHING)"),
)
