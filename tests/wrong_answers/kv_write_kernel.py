"""Plausible wrong answers to `kv_write_kernel`. The numbers are those of the traps that real kernels fell into."""

import triton
import triton.language as tl

from pagedlab.course.altered_kernel import altered
from tests.corpus import wrong

ONE = "One token goes to its slot"
ALL = "Every head of every token"
POWER = "A head_dim that is no power of 2, and nothing beside it changes"
SKIP = "Slot -1 is skipped, slot 0 is not"
WHERE = "Wherever the tensors lie"
FAR = "A pool of more than 2**31 numbers"
ONCE = "A program moves one head of one token, once"
COMPILES = "It compiles for A100 and H100"


@triton.jit
def kernel(
    keys,
    values,
    key_cache,
    value_cache,
    slot_mapping,
    keys_token_stride,
    keys_head_stride,
    values_token_stride,
    values_head_stride,
    key_block_stride,
    key_head_stride,
    key_slot_stride,
    value_block_stride,
    value_head_stride,
    value_slot_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """The right one, which the others change."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping + token)
    if slot >= 0:
        block = (slot // BLOCK_SIZE).to(tl.int64)
        place = slot % BLOCK_SIZE
        dims = tl.arange(0, TILE_DIM)
        mask = dims < HEAD_DIM
        key = tl.load(keys + token * keys_token_stride + head * keys_head_stride + dims, mask=mask)
        value = tl.load(values + token * values_token_stride + head * values_head_stride + dims, mask=mask)
        key_target = key_cache + block * key_block_stride + head * key_head_stride + place * key_slot_stride
        value_target = value_cache + block * value_block_stride + head * value_head_stride + place * value_slot_stride
        tl.store(key_target + dims, key, mask=mask)
        tl.store(value_target + dims, value, mask=mask)


def changed(promise, says, *changes):
    return wrong(promise, says)(altered(kernel, *changes))


# Trap 10: towards zero, -1 is block 0, offset -1: in front of the cache, or in the slot before a head's first.
lets_minus_one_through = changed(SKIP, "in front of key_cache", ("if slot >= 0:", "if True:"))
clamps_minus_one = changed(
    SKIP, "Block 0 slot 0", ("    if slot >= 0:", "    slot = tl.maximum(slot, 0)\n    if True:")
)
skips_slot_0 = changed(SKIP, "Only the program that has slot -1", ("if slot >= 0:", "if slot > 0:"))

# Trap 1: block * stride in 32 bits.
widens_the_product = changed(
    FAR,
    "wraps around",
    ("(slot // BLOCK_SIZE).to(tl.int64)", "slot // BLOCK_SIZE"),
    ("block * key_block_stride", "(block * key_block_stride).to(tl.int64)"),
    ("block * value_block_stride", "(block * value_block_stride).to(tl.int64)"),
)

# Trap 4: a block's number kept in fewer bits than a pool needs. float32 is whole up to 2**24.
divides_with_a_slash = changed(FAR, "The block is another one", ("slot // BLOCK_SIZE", "slot / BLOCK_SIZE"))

# Masks.
masks_loads_only = changed(
    POWER,
    "Which lanes must be off",
    ("tl.store(key_target + dims, key, mask=mask)", "tl.store(key_target + dims, key)"),
    ("tl.store(value_target + dims, value, mask=mask)", "tl.store(value_target + dims, value)"),
)
masks_stores_only = changed(
    POWER,
    "of keys",
    ("+ head * keys_head_stride + dims, mask=mask)", "+ head * keys_head_stride + dims)"),
)
tile_of_head_dim = changed(POWER, "power of 2", ("tl.arange(0, TILE_DIM)", "tl.arange(0, HEAD_DIM)"))
tile_of_256 = changed(POWER, "256 of 320 numbers", ("tl.arange(0, TILE_DIM)", "tl.arange(0, 256)"))
mask_is_one_short = changed(ONE, "1 of 2 numbers were stored", ("dims < HEAD_DIM", "dims < HEAD_DIM - 1"))

# Addresses.
one_pointer_for_a_tile = changed(
    ONE, "Each lane needs its own place", ("tl.store(key_target + dims, key", "tl.store(key_target, key")
)
slot_as_block = changed(ONE, "Start from the address", ("(slot // BLOCK_SIZE).to(tl.int64)", "slot.to(tl.int64)"))
grid_the_other_way = changed(
    ALL,
    "tl.program_id(0) is the token",
    ("token = tl.program_id(0)", "token = tl.program_id(1)"),
    ("head = tl.program_id(1)", "head = tl.program_id(0)"),
)
stores_the_key_twice = changed(
    ONE, "Keys go into key_cache", ("tl.store(value_target + dims, value", "tl.store(value_target + dims, key")
)

# Trap 5: strides that were worked out instead of asked for.
value_cache_by_the_keys_strides = changed(
    WHERE,
    "value_cache",
    ("block * value_block_stride", "block * key_block_stride"),
    ("head * value_head_stride", "head * key_head_stride"),
    ("place * value_slot_stride", "place * key_slot_stride"),
)
block_stride_worked_out = changed(
    WHERE,
    "strides",
    ("block * key_block_stride", "block * (BLOCK_SIZE * HEAD_DIM * tl.num_programs(1))"),
    ("block * value_block_stride", "block * (BLOCK_SIZE * HEAD_DIM * tl.num_programs(1))"),
)

# Work.
loops_over_all_heads = changed(
    ONCE,
    "nothing to loop over",
    ("    head = tl.program_id(1)\n", ""),
    ("    if slot >= 0:", "    for head in range(tl.num_programs(1) * (slot >= 0).to(tl.int32)):"),
)


@wrong(COMPILES, "doesn't compile")
@triton.jit
def python_inside(
    keys,
    values,
    key_cache,
    value_cache,
    slot_mapping,
    keys_token_stride,
    keys_head_stride,
    values_token_stride,
    values_head_stride,
    key_block_stride,
    key_head_stride,
    key_slot_stride,
    value_block_stride,
    value_head_stride,
    value_slot_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slot_mapping + token)
    if slot >= 0:
        block, place = (slot // BLOCK_SIZE).to(tl.int64), slot % BLOCK_SIZE
        dims = tl.arange(0, TILE_DIM)
        mask = dims < HEAD_DIM
        moves = [
            (
                keys + token * keys_token_stride + head * keys_head_stride,
                key_cache + block * key_block_stride + head * key_head_stride + place * key_slot_stride,
            ),
            (
                values + token * values_token_stride + head * values_head_stride,
                value_cache + block * value_block_stride + head * value_head_stride + place * value_slot_stride,
            ),
        ]
        for source, target in moves:
            tl.store(target + dims, tl.load(source + dims, mask=mask), mask=mask)
