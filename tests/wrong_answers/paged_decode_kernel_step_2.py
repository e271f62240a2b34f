"""Wrong kernels for one head along the table: ours, with one thing changed."""

from pagedlab.kernels.decode_steps import paged_decode_kernel_step_2
from tests.altered_kernel import altered
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
ignores_the_table = slip(
    ONE, "", ("tl.load(table + positions // BLOCK_SIZE, mask=stored, other=0)", "(positions // BLOCK_SIZE)")
)
never_rescales = slip(
    TILES, "sum and values both", ("running_sum * shrink +", "running_sum +"), ("acc * shrink +", "acc +")
)
rescales_the_sum_only = slip(TILES, "sum and values both", ("acc * shrink +", "acc +"))
shrinks_the_wrong_way = slip(ONE, "", ("tl.exp(running_max - new_max)", "tl.exp(new_max - running_max)"))
a_maximum_for_each_tile = slip(
    TILES,
    "",
    ("tl.maximum(running_max, tl.max(scores, axis=0))", "tl.max(scores, axis=0)"),
    ("running_sum * shrink +", "running_sum +"),
    ("acc * shrink +", "acc +"),
)
whole_tiles_only = slip(TAIL, "not read", ("range(0, seq_len, TILE)", "range(0, seq_len // TILE * TILE, TILE)"))
takes_nan_away = slip(
    TAIL,
    "0 * inf",
    ("value_at[:, None] + dims[None, :], mask=mask", "value_at[:, None] + dims[None, :], mask=in_head[None, :]"),
    ("acc = acc * shrink +", "values = tl.where(values == values, values, 0.0)\n        acc = acc * shrink +"),
)
table_read_behind_its_end = slip(
    TAIL, "of block_tables", ("positions // BLOCK_SIZE, mask=stored, other=0)", "positions // BLOCK_SIZE)")
)
dead_lanes_weigh_something = slip(TAIL, "sum to", ('axis=1) * scale, float("-inf"))', "axis=1) * scale, 0.0)"))
one_length_for_all = slip(BATCH, "", ("tl.load(seq_lens + seq)", "tl.load(seq_lens)"))
the_table_is_packed = slip(BATCH, "", ("seq * table_stride", "seq * ((seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE)"))
groups_in_turn = slip(GROUPS, "kv head", ("head // GROUP_SIZE", "head % (tl.num_programs(1) // GROUP_SIZE)"))
block_stride_from_the_heads = slip(
    STRIDES, "key_cache", ("blocks * key_block_stride", "blocks * (tl.num_programs(1) // GROUP_SIZE * key_head_stride)")
)
out_by_the_strides_of_q = slip(
    STRIDES,
    "",
    ("out + seq * out_seq_stride + head * out_head_stride", "out + seq * q_seq_stride + head * q_head_stride"),
)
nothing_divided_by_nothing = slip(
    EMPTY, "NaN", ("acc / tl.where(running_sum == 0.0, 1.0, running_sum)", "acc / running_sum")
)
leaves_before_it_stores = slip(
    EMPTY,
    "never written",
    (
        "    dims = tl.arange(0, TILE_DIM)\n",
        "    if seq_len == 0:\n        return\n    dims = tl.arange(0, TILE_DIM)\n",
    ),
)
starts_at_zero = slip(LARGE, "largest of nothing", ('float("-inf"), 0.0\n', "0.0, 0.0\n"))
scores_in_float16 = slip(EXACT, "", ("axis=1) * scale,", "axis=1).to(tl.float16) * scale,"))
exp_without_a_maximum = slip(
    LARGE,
    "exp overflows above 88",
    ("new_max = tl.maximum(running_max, tl.max(scores, axis=0))", "new_max = 0.0"),
    ('float("-inf"), 0.0\n', "0.0, 0.0\n"),
)
queries_scaled_in_float16 = slip(
    EXACT,
    "scale the scores",
    ("mask=in_head, other=0.0).to(tl.float32)", "mask=in_head, other=0.0)\n    query = (query * scale).to(tl.float16)"),
    ("query[None, :] * keys, axis=1) * scale", "query[None, :] * keys, axis=1)"),
)
block_ids_stay_32_bits = slip(FAR, "to(tl.int64)", ("other=0).to(tl.int64)", "other=0)"))
maximum_changes_its_type = slip(COMPILES, "doesn't compile", ('float("-inf"), 0.0\n', 'float("-inf"), 0\n'))
