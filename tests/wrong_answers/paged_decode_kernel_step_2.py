"""Wrong kernels for one head along the table: ours, with one thing changed.

What goes wrong here as in the whole kernel is in paged_decode_kernel.py.
"""

from pagedlab.course.altered_kernel import altered
from pagedlab.kernels.decode_steps import paged_decode_kernel_step_2
from tests.corpus import wrong

ONE = "One tile of one head"
TILES = "Several tiles, wherever their blocks lie"
TAIL = "Nothing behind the last token is read"
BATCH = "Every sequence by its own table and length"
GROUPS = "Query heads share a kv head"
STRIDES = "Strides as given, none guessed"
EMPTY = "A sequence without tokens gets zeros"
LARGE = "Large and very negative scores do no harm"
EXACT = "Products and sums are in float32"
FAR = "Large pools"
COMPILES = "It compiles for an A100 (sm_80) and an H100 (sm_90)"


def slip(promise, says, *changes):
    return wrong(promise, says)(altered(paged_decode_kernel_step_2, *changes))


positions_taken_for_slots = slip(ONE, "", ("slots = positions % BLOCK_SIZE", "slots = positions"))
steps_of_one_token = slip(ONE, "token 15 was read 16 times", ("range(0, seq_len, TILE)", "range(0, seq_len)"))
forgets_the_new_maximum = slip(TILES, "only its last tile counts", ("        running_max = new_max\n", ""))
never_rescales = slip(
    TILES, "sum and values both", ("running_sum * shrink +", "running_sum +"), ("acc * shrink +", "acc +")
)
shrinks_the_wrong_way = slip(ONE, "", ("tl.exp(running_max - new_max)", "tl.exp(new_max - running_max)"))
a_maximum_for_each_tile = slip(
    TILES,
    "",
    ("tl.maximum(running_max, tl.max(scores, axis=0))", "tl.max(scores, axis=0)"),
    ("running_sum * shrink +", "running_sum +"),
    ("acc * shrink +", "acc +"),
)
takes_nan_away = slip(
    TAIL,
    "0 * inf",
    ("value_at[:, None] + dims[None, :], mask=mask", "value_at[:, None] + dims[None, :], mask=in_head[None, :]"),
    ("acc = acc * shrink +", "values = tl.where(values == values, values, 0.0)\n        acc = acc * shrink +"),
)
one_length_for_all = slip(BATCH, "", ("tl.load(seq_lens + seq)", "tl.load(seq_lens)"))
groups_in_turn = slip(GROUPS, "kv head", ("head // GROUP_SIZE", "head % (tl.num_programs(1) // GROUP_SIZE)"))
out_by_the_strides_of_q = slip(
    STRIDES,
    "",
    ("out + seq * out_seq_stride + head * out_head_stride", "out + seq * q_seq_stride + head * q_head_stride"),
)
nothing_divided_by_nothing = slip(
    EMPTY, "NaN", ("acc / tl.where(running_sum == 0.0, 1.0, running_sum)", "acc / running_sum")
)
scores_in_float16 = slip(EXACT, "", ("axis=1) * scale,", "axis=1).to(tl.float16) * scale,"))
exp_without_a_maximum = slip(
    LARGE,
    "exp overflows above 88",
    ("new_max = tl.maximum(running_max, tl.max(scores, axis=0))", "new_max = 0.0"),
    ('float("-inf"), 0.0\n', "0.0, 0.0\n"),
)
sixty_four_bits_too_late = slip(
    FAR,
    "before anything is multiplied",
    ("other=0).to(tl.int64)", "other=0)"),
    ("blocks * key_block_stride", "(blocks * key_block_stride).to(tl.int64)"),
    ("blocks * value_block_stride", "(blocks * value_block_stride).to(tl.int64)"),
)
maximum_changes_its_type = slip(COMPILES, "doesn't compile", ('float("-inf"), 0.0\n', 'float("-inf"), 0\n'))
