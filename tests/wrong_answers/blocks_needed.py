"""Plausible wrong answers to `blocks_needed`."""

import math

from tests.corpus import wrong

ROOM = "There is room for every token"
SPARE = "Not one block more than needed"


@wrong(ROOM, "can't fit in 0 blocks")
def rounds_down(num_tokens, block_size):
    return num_tokens // block_size


@wrong(SPARE, "would do for 0 tokens")
def always_one_more(num_tokens, block_size):
    return num_tokens // block_size + 1


@wrong(SPARE)
def adds_a_whole_block_before_dividing(num_tokens, block_size):
    return (num_tokens + block_size) // block_size


@wrong(ROOM)
def rounds_to_nearest(num_tokens, block_size):
    return round(num_tokens / block_size)


@wrong(ROOM, "float")
def leaves_a_fraction(num_tokens, block_size):
    return num_tokens / block_size


@wrong(ROOM, "float")
def rounds_up_but_stays_a_float(num_tokens, block_size):
    return float(math.ceil(num_tokens / block_size))


@wrong(ROOM)
def knows_only_blocks_of_16(num_tokens, block_size):
    return -(-num_tokens // 16)


@wrong(ROOM)
def swaps_the_arguments(num_tokens, block_size):
    return -(-block_size // max(num_tokens, 1))


@wrong(SPARE)
def at_least_one_block(num_tokens, block_size):
    return max(1, -(-num_tokens // block_size))


@wrong(ROOM, "Nothing was returned")
def forgets_to_return(num_tokens, block_size):
    blocks = -(-num_tokens // block_size)  # noqa: F841


@wrong(ROOM, "ZeroDivisionError")
def divides_by_one_less(num_tokens, block_size):
    return num_tokens // (block_size - 1)


@wrong(SPARE)
def one_slot_a_block(num_tokens, block_size):
    return num_tokens


@wrong(ROOM, "still running")
def counts_down_by_the_wrong_thing(num_tokens, block_size):
    blocks = 0
    while blocks * block_size < num_tokens or blocks == 0:
        blocks += 0
    return blocks


@wrong(ROOM, "can't be called as the exercise says")
def takes_one_argument(num_tokens):
    return -(-num_tokens // 16)


seen = []


@wrong(SPARE)
def remembers_the_last_call(num_tokens, block_size):
    seen.append(num_tokens)
    return -(-max(seen) // block_size)
