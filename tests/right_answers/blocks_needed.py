"""Right answers to `blocks_needed` in styles other than ours."""

import math

import torch

from tests.corpus import right


@right
def float_and_ceil(num_tokens, block_size):
    return math.ceil(num_tokens / block_size)


@right
def upside_down_floor(num_tokens, block_size):
    return -(-num_tokens // block_size)


@right
def quotient_and_remainder(num_tokens, block_size):
    full, rest = divmod(num_tokens, block_size)
    return full + (rest > 0)


@right
def recursion(num_tokens, block_size):
    return 0 if num_tokens <= 0 else 1 + recursion(num_tokens - block_size, block_size)


@right
def fills_block_after_block(num_tokens, block_size):
    blocks = 0
    while blocks * block_size < num_tokens:
        blocks += 1
    return blocks


@right
def counts_the_first_slots(num_tokens, block_size):
    return len(range(0, num_tokens, block_size))


@right
def a_tensor_of_one_number(num_tokens, block_size):
    return (torch.tensor(num_tokens) + block_size - 1) // block_size
