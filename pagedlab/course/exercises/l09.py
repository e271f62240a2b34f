"""Lesson 09: paged attention for one new token as a Triton kernel, in three steps."""

import math

import torch

from pagedlab.course.decode_probe import DecodeInputs, expect_decode, tally
from pagedlab.course.kernel_probe import SECONDS, compiled_notes
from pagedlab.course.promise import Exercise, calling, note, promise
from pagedlab.course.tensors import randn


def launches(name: str, *cases):
    """A promise that holds for each of these launches. The simplest come first: a report shows the first that fails."""

    def wrap(holds):
        def all_of_them(answer):
            for case in cases:
                holds(answer, case)

        return promise(name)(all_of_them)

    return wrap


# --- what all three steps have in common ------------------------------------------------------------------------------


def with_scores(inputs: DecodeInputs, shifts, heads=(), short=0) -> DecodeInputs:
    """The first two numbers of queries and keys make the scores of each tile of 16 tokens about one of `shifts`.

    heads: what the scores of each head are multiplied by (1 where it says nothing). short: tokens that the last tile
    has less than 16 (see `tokens`).

    All are multiples of 1/16 and come out exact in float32, whatever the order of a sum. Where they are in the
    thousands, a tile's scores are all the same: an answer in base 2 multiplies them by log2(e), and float32 rounds the
    product there by more than the weights may differ.
    """
    pages = inputs.pages
    inputs.q[:], inputs.keys[:] = 0, torch.where(inputs.keys.isnan(), math.nan, 0)
    inputs.q[..., :2] = 16 / inputs.scale  # a key's first two numbers are then a sixteenth of its score
    for head, factor in enumerate(heads):
        inputs.q[:, head] *= factor
    small = (8 * randn(pages.seed, pages.lens[0])).round().clamp(-24, 24) / 128
    for position in range(pages.lens[0]):
        shift = shifts[position // 16]
        block, slot = pages.where(0, position)
        inputs.keys[block, :, slot, 0] = shift / 16
        inputs.keys[block, :, slot, 1] = small[position] if abs(shift) < 1000 else 0
    inputs.story = f"the scores of its tiles of 16 tokens are about {', '.join(f'{shift:,}' for shift in shifts)}"
    if heads:
        inputs.story += f", times {list(heads)} in its heads"
    return inputs


def tokens(case: dict) -> list[int]:
    """How many there are in a case of `with_scores`."""
    return [16 * len(case["shifts"]) - case.get("short", 0)]


def with_large_products(inputs: DecodeInputs) -> DecodeInputs:
    """Scores that are sums of large numbers, which all but cancel: one more rounding to float16, anywhere, shows."""
    head_dim, seed = inputs.pages.head_dim, inputs.pages.seed
    shape = (*inputs.q.shape[:2], head_dim // 2)
    pairs = 16 + 8 * randn(seed, *shape).abs().clamp(max=3)
    inputs.q[..., 0::2] = pairs.half()
    inputs.q[..., 1::2] = (pairs + randn(seed + 1, *shape) / 40).half()
    written = ~inputs.keys[..., 0].isnan()
    keys = 10 * randn(seed + 2, *inputs.keys.shape[:3], head_dim // 2)
    for half, sign in ((0, 1), (1, -1)):
        inputs.keys[..., half::2] = torch.where(written[..., None], (sign * keys + 0.3).half(), math.nan)
    inputs.story = "queries about 20 and keys about 10: products of hundreds, which all but cancel in the sum"
    return inputs


def with_large_values(inputs: DecodeInputs) -> DecodeInputs:
    """Weights that are all the same, and values whose sum is small beside its parts: float16 can't hold those."""
    pages = inputs.pages
    inputs.q[:] = 0
    for position in range(pages.lens[0]):
        block, slot = pages.where(0, position)
        about = 1000 if position < pages.lens[0] // 2 else -1000
        inputs.values[block, :, slot] += about
    inputs.story = "all scores are 0; values are about 1,000 in the first half, about -1,000 in the second"
    return inputs


LARGE_HINT = (
    "exp overflows above 88 and is 0 below -104. Subtract the largest score so far. What is the largest of nothing "
    'yet? No real score may lie below it: float("-inf").'
)
EXACT_HINT = (
    "Products of float16 numbers are exact in float32, and only there. Convert what you multiply and sum with "
    "`.to(tl.float32)` (tl.dot sums in float32 by itself), keep scores, sums and acc so, and scale the scores, not the "
    "queries."
)

# --- step 1: one head, one block --------------------------------------------------------------------------------------


def one_block(answer, case: dict, hint: str, change=lambda inputs: inputs, **options):
    expect_decode(answer, change(DecodeInputs(head_grid=True, **case)), hint, **options)


@launches(
    "One head over one full block, wherever it lies",
    dict(lens=[16], head_dim=32),  # TILE is not TILE_DIM: sides that were taken for each other don't fit
    dict(lens=[16], seed=3),
    dict(lens=[32], block_size=32, tile=32, head_dim=32),
    dict(lens=[16], scale=0.75),
)
def step_1_full(answer, case):
    one_block(answer, case, "Scores, softmax over the slots, weighted sum of the values: then store it.")


@launches(
    "Each program takes its own sequence and head",
    dict(lens=[16], num_kv_heads=3),
    dict(lens=[16, 16]),
    dict(lens=[16, 16, 16], num_kv_heads=2),
    dict(lens=[16, 16], extra_columns=2),
)
def step_1_programs(answer, case):
    one_block(answer, case, "Program (i, h) takes q[i, h], row i of the table, kv head h of its block, and out[i, h].")


@launches(
    "Slots behind the last token count for nothing",
    dict(lens=[5]),
    dict(lens=[1]),
    dict(lens=[15, 16]),
    dict(lens=[3], block_size=3),
    dict(lens=[2], block_size=3),
    dict(lens=[50], block_size=64, tile=64),
    dict(lens=[5], unused=math.inf),
)
def step_1_tail(answer, case):
    one_block(answer, case, "Slots from seq_len on hold no token, and slots from BLOCK_SIZE on are another head's.")


@launches(
    "Any head size",
    dict(lens=[16], head_dim=80),
    dict(lens=[7], head_dim=24, num_kv_heads=2),
    dict(lens=[9], head_dim=128),
    dict(lens=[9], head_dim=200),
)
def step_1_head_dim(answer, case):
    one_block(answer, case, "TILE_DIM is HEAD_DIM or the next power of two. Mask dims from HEAD_DIM on.")


@launches(
    "Strides as given, none guessed",
    dict(lens=[16, 9], num_kv_heads=2, sliced=["q"]),
    dict(lens=[16, 9], num_kv_heads=2, sliced=["out"]),
    dict(lens=[16, 9], num_kv_heads=2, layout="interleaved"),
    dict(lens=[16, 9], num_kv_heads=2, layout="slots first"),
    dict(lens=[16, 9], num_kv_heads=2, layout="padded values"),
)
def step_1_strides(answer, case):
    one_block(answer, case, "Every tensor goes by its own strides; only the last dimension is one after the other.")


@launches(
    "Large and very negative scores do no harm",
    *(dict(shifts=[shift]) for shift in (0, 400, -400, -110, 4000, -200_000)),
    dict(shifts=[-200_000], short=5),
)
def step_1_large(answer, case):
    one_block(answer, dict(lens=tokens(case)), LARGE_HINT, lambda inputs: with_scores(inputs, **case), explained=False)


@launches(
    "Products and sums are in float32",
    (with_large_products, dict(lens=[16], head_dim=80)),
    (with_large_products, dict(lens=[16], head_dim=24, seed=5)),
    (with_large_values, dict(lens=[16])),
)
def step_1_exact(answer, case):
    change, case = case
    one_block(answer, case, EXACT_HINT, change, explained=False)


# --- step 2: the loop -------------------------------------------------------------------------------------------------


@launches(
    "One tile of one head",
    dict(lens=[16], head_dim=32),
    dict(lens=[16], block_size=4),
    dict(lens=[32], tile=32, head_dim=32),
    dict(lens=[16], scale=0.75),
)
def step_2_one_tile(answer, case):
    one_block(answer, case, "As in step 1. A tile may lie in several blocks: each token asks the table for its own.")


@launches(
    "Several tiles, wherever their blocks lie",
    dict(lens=[48]),
    dict(lens=[32], block_size=32),
    dict(lens=[64], block_size=8, tile=32),
    dict(lens=[128], tile=64),
    dict(lens=[32], block_size=1),
)
def step_2_tiles(answer, case):
    one_block(answer, case, "Position p lies in block p // BLOCK_SIZE of the table, slot p % BLOCK_SIZE.")


TAILS = (
    dict(lens=[17]),
    dict(lens=[31], block_size=3),
    dict(lens=[5], block_size=48, tile=32),
    dict(lens=[70], block_size=16, tile=64),
    dict(lens=[1], block_size=1, tile=64),
    dict(lens=[17], unused=math.inf),
)
TAILS_HINT = "In the last tile, only positions below seq_len count: for the table, the keys, the scores and the values."


@launches("Nothing behind the last token is read", *TAILS)
def step_2_tail(answer, case):
    one_block(answer, case, TAILS_HINT)


BATCH = (
    dict(lens=[3, 40]),
    dict(lens=[40, 3], extra_columns=2),
    dict(lens=[20, 33, 1], block_size=3, extra_columns=1, leftovers=True),
    dict(lens=[19, 35], shared_blocks=1),
    dict(lens=[5, 18], sliced=["block_tables"]),
)
BATCH_HINT = "Row i of the table and seq_lens[i] belong to sequence i; what stands behind its last block means nothing."


@launches("Every sequence by its own table and length", *BATCH)
def step_2_batch(answer, case):
    one_block(answer, case, BATCH_HINT)


@launches(
    "Query heads share a kv head",
    dict(lens=[5], group_size=2, num_kv_heads=2),
    dict(lens=[20], group_size=3, num_kv_heads=3, head_dim=80),
    dict(lens=[3], group_size=5),
    dict(lens=[20], group_size=2, head_dim=200),
)
def step_2_groups(answer, case):
    one_block(answer, case, "Head h reads kv head h // GROUP_SIZE, and its query and its row of out are its own.")


STRIDES = tuple(
    dict(lens=[18, 9], num_kv_heads=2, group_size=2, **layout)
    for layout in (
        dict(sliced=["q"]),
        dict(sliced=["out"]),
        dict(layout="interleaved"),
        dict(layout="slots first"),
        dict(layout="padded values"),
    )
)
STRIDES_HINT = "Every tensor goes by its own strides; only the last dimension is one after the other."


@launches("Strides as given, none guessed", *STRIDES)
def step_2_strides(answer, case):
    one_block(answer, case, STRIDES_HINT)


EMPTY = (dict(lens=[0]), dict(lens=[3, 0]), dict(lens=[0, 17, 0], extra_columns=1))
EMPTY_HINT = "No tokens: nothing is read, and the sum stays 0. 0 / 0 is NaN; zeros must be stored all the same."


@launches("A sequence without tokens gets zeros", *EMPTY)
def step_2_empty(answer, case):
    one_block(answer, case, EMPTY_HINT)


LARGE = tuple(
    dict(shifts=shifts)
    for shifts in (
        [0, 400],
        [400, 0],
        [-400],
        [-110, -120],
        [-400, 0, 4000],
        [-200_000],
        [4000, -200_000, 400],
    )
) + (dict(shifts=[-200_000], short=5),)


@launches("Large and very negative scores do no harm", *LARGE)
def step_2_large(answer, case):
    one_block(answer, dict(lens=tokens(case)), LARGE_HINT, lambda inputs: with_scores(inputs, **case), explained=False)


EXACT = (
    (with_large_products, dict(lens=[40], head_dim=80)),
    (with_large_products, dict(lens=[16], head_dim=24, seed=5)),
    (with_large_values, dict(lens=[272])),
)


@launches("Products and sums are in float32", *EXACT)
def step_2_exact(answer, case):
    change, case = case
    one_block(answer, case, EXACT_HINT, change, explained=False)


FAR = (dict(lens=[20], block_size=1, spare_blocks=40_000, seed=1), dict(lens=[32, 16], first_block=9_000_000))
FAR_HINT = "A block id may be any int32, and an element's place needs 64 bits: `.to(tl.int64)` on the block ids."


@launches("Large pools", *FAR)
def step_2_far(answer, case):
    one_block(answer, case, FAR_HINT, explained=False)


# --- step 3: the group in one product ---------------------------------------------------------------------------------


def whole(answer, case: dict, hint: str, change=lambda inputs: inputs, **options):
    expect_decode(answer, change(DecodeInputs(**case)), hint, **options)


@launches(
    "One tile of one group",
    dict(lens=[32], group_size=4, tile=32, head_dim=64),  # ROWS, TILE and TILE_DIM all differ
    dict(lens=[16, 16, 16], group_size=4, num_kv_heads=2),
    dict(lens=[16], group_size=2, head_dim=32),
    dict(lens=[16], group_size=4, scale=0.75),
)
def group_one_tile(answer, case):
    whole(answer, case, "Rows are query heads: scores = tl.dot(queries, tl.trans(keys)), one maximum and sum a row.")


@launches(
    "Several tiles, wherever their blocks lie",
    dict(lens=[48], group_size=4),
    dict(lens=[64], block_size=8, tile=32, group_size=4),
    dict(lens=[96], block_size=48, group_size=4, tile=32),
    dict(lens=[32], block_size=1, group_size=4),
    dict(lens=[128], tile=64, group_size=4),
)
def group_tiles(answer, case):
    whole(answer, case, "Position p lies in block p // BLOCK_SIZE of the table, slot p % BLOCK_SIZE.")


@launches("Nothing behind the last token is read", *(dict(group_size=4, **case) for case in TAILS))
def group_tail(answer, case):
    whole(answer, case, TAILS_HINT)


@launches("Every sequence by its own table and length", *(dict(group_size=4, **case) for case in BATCH))
def group_batch(answer, case):
    whole(answer, case, BATCH_HINT)


@launches(
    "Groups of any size",
    dict(lens=[5, 9], group_size=3, num_kv_heads=3),
    dict(lens=[5, 9], group_size=1, num_kv_heads=2),
    dict(lens=[20], group_size=5, num_kv_heads=2),
    dict(lens=[5], group_size=8, num_kv_heads=2),
    dict(lens=[20], group_size=17, num_kv_heads=2),
    dict(lens=[5], group_size=24, num_kv_heads=2),
    dict(lens=[5], group_size=40),
)
def group_sizes(answer, case):
    whole(
        answer,
        case,
        "Kv head k has query head k * GROUP_SIZE and the GROUP_SIZE - 1 after it. The other rows fill up the tile.",
    )


@launches(
    "Programs in any order",
    dict(lens=[5, 9], group_size=4, num_kv_heads=3),
    dict(lens=[5, 9], group_size=3, num_kv_heads=2),
)
def group_order(answer, case):
    whole(answer, case, "A program stores its own rows only: those below GROUP_SIZE.", order="reversed")


@launches(
    "Any head size",
    dict(lens=[20], head_dim=80, group_size=4),
    dict(lens=[7], head_dim=24, num_kv_heads=2, group_size=4),
    dict(lens=[20], head_dim=64, group_size=3, num_kv_heads=3),
    dict(lens=[9], head_dim=128, group_size=4),
    dict(lens=[9], head_dim=200, group_size=4),
)
def group_head_dim(answer, case):
    whole(answer, case, "TILE_DIM is HEAD_DIM or the next power of two. Mask dims from HEAD_DIM on.")


@launches("Strides as given, none guessed", *STRIDES)
def group_strides(answer, case):
    whole(answer, case, STRIDES_HINT)


@launches("A sequence without tokens gets zeros", *(dict(group_size=4, **case) for case in EMPTY))
def group_empty(answer, case):
    whole(answer, case, EMPTY_HINT)


@launches("Large and very negative scores do no harm", *LARGE, dict(shifts=[-400], heads=[1, 0, -1, 1]))
def group_large(answer, case):
    inputs = dict(lens=tokens(case), group_size=4)
    whole(answer, inputs, LARGE_HINT, lambda inputs: with_scores(inputs, **case), explained=False)


@launches("Products and sums are in float32", *EXACT)
def group_exact(answer, case):
    change, case = case
    whole(answer, dict(group_size=4, **case), EXACT_HINT, change, explained=False)


@launches("Large pools", *(dict(group_size=4, **case) for case in FAR))
def group_far(answer, case):
    whole(answer, case, FAR_HINT, explained=False)


# --- all three: a compiler reads it too -------------------------------------------------------------------------------


def compiles(answer, lens=(100, 30), **case):
    """What a usual layer needs: heads of 128 numbers, blocks of 16, tiles of 64."""
    note(f"Right on all {tally['right']} launches.")
    inputs = DecodeInputs(lens, head_dim=128, tile=64, num_kv_heads=8, **case)
    compiled_notes(answer, inputs.arguments(), call=calling(inputs.told()), num_warps=4, num_stages=3)


COMPILES = "It compiles for an A100 (sm_80) and an H100 (sm_90)"


@promise(COMPILES, of_right_answers=True)
def one_head_compiles(answer):
    compiles(answer, lens=[60, 30], head_grid=True, block_size=64)


@promise(COMPILES, of_right_answers=True)
def head_compiles(answer):
    compiles(answer, head_grid=True, group_size=4)


@promise(COMPILES, of_right_answers=True)
def group_compiles(answer):
    compiles(answer, group_size=4)


EXERCISES = (
    Exercise(
        id="paged_decode_kernel_step_1",
        title="One head over one block",
        kind="kernel",
        reference="pagedlab.kernels.decode_steps:paged_decode_kernel_step_1",
        promises=(
            step_1_full,
            step_1_programs,
            step_1_tail,
            step_1_head_dim,
            step_1_strides,
            step_1_exact,
            step_1_large,
            one_head_compiles,
        ),
        hints=(
            "Which program am I? tl.program_id(0) is the sequence, tl.program_id(1) the head. Load the sequence's "
            "length, and its first block from the table: tl.load(block_tables + seq * table_stride).",
            "A tile of keys is a matrix of pointers, slots down and dims across: key_cache + block * key_block_stride "
            "+ head * key_head_stride + slots[:, None] * key_slot_stride + dims[None, :]. Its mask is a matrix too: "
            "stored[:, None] & in_head[None, :].",
            "scores = tl.sum(query[None, :] * keys, axis=1) * scale, with both in float32. Slots without a token get "
            "-inf by tl.where. Then probs = tl.exp(scores - tl.max(scores, axis=0)).",
            "The values come like the keys, by their own strides, masked, with other=0.0. The result is "
            "tl.sum(probs[:, None] * values, axis=0) / tl.sum(probs, axis=0); tl.store masks dims below HEAD_DIM.",
        ),
        seconds=SECONDS,
    ),
    Exercise(
        id="paged_decode_kernel_step_2",
        title="Along the table",
        kind="kernel",
        reference="pagedlab.kernels.decode_steps:paged_decode_kernel_step_2",
        promises=(
            step_2_one_tile,
            step_2_tiles,
            step_2_tail,
            step_2_batch,
            step_2_groups,
            step_2_strides,
            step_2_empty,
            step_2_exact,
            step_2_large,
            step_2_far,
            head_compiles,
        ),
        hints=(
            "for start in range(0, seq_len, TILE): positions = start + tl.arange(0, TILE). Everything else of step 1 "
            "moves into the loop, with positions < seq_len as the mask.",
            "Each token asks the table for its own block: blocks = tl.load(block_tables + seq * table_stride + "
            "positions // BLOCK_SIZE, mask=stored, other=0).to(tl.int64). Its slot is positions % BLOCK_SIZE. Then "
            "the place of a key is blocks * key_block_stride + ..., one number a token.",
            "Before the loop: running_max = -inf, running_sum = 0, acc = zeros of [TILE_DIM]. In it: new_max = "
            "tl.maximum(running_max, tl.max(scores, axis=0)), shrink = tl.exp(running_max - new_max), probs = "
            "tl.exp(scores - new_max).",
            "running_sum = running_sum * shrink + tl.sum(probs, axis=0), and acc = acc * shrink + tl.sum(probs[:, "
            "None] * values, axis=0). Behind the loop, divide once: by 1 where running_sum is 0.",
        ),
        seconds=SECONDS,
    ),
    Exercise(
        id="paged_decode_kernel",
        title="A group of heads in one product",
        kind="kernel",
        reference="pagedlab.kernels.decode_steps:paged_decode_kernel_step_3",
        promises=(
            group_one_tile,
            group_tiles,
            group_tail,
            group_batch,
            group_sizes,
            group_order,
            group_head_dim,
            group_strides,
            group_empty,
            group_exact,
            group_large,
            group_far,
            group_compiles,
        ),
        hints=(
            "rows = tl.arange(0, ROWS); heads = kv_head * GROUP_SIZE + rows. Only rows below GROUP_SIZE are heads of "
            "this program: mask the others when you load the queries and when you store.",
            "queries is [ROWS, TILE_DIM] and keys is [TILE, TILE_DIM], both as they were loaded, in float16: "
            "scores = tl.dot(queries, tl.trans(keys)) * scale is [ROWS, TILE], in float32.",
            "Now every row has a running_max and a running_sum of its own, [ROWS], and acc is [ROWS, TILE_DIM]. "
            "tl.max(scores, axis=1), and [:, None] where a row's number meets a matrix.",
            "tl.dot wants one type on both sides: acc * shrink[:, None] + tl.dot(probs.to(values.dtype), values).",
        ),
        seconds=SECONDS,
    ),
)
