"""Plausible wrong answers to `element_offset`."""

import numpy as np
import torch

from tests.corpus import wrong

DIM = "The cache begins at 0, and a key's numbers lie side by side"
SLOT = "The next slot is one key further"
HEAD = "The next kv head is all slots further"
BLOCK = "The next block is all kv heads further"
ALL = "All together, where torch has it"
LARGE = "Also in a large pool"


@wrong(SLOT, "token-major")
def token_major(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return ((block * block_size + slot) * num_kv_heads + head) * head_dim + dim


@wrong(DIM, "bytes of float32")
def in_bytes(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return 4 * (((block * num_kv_heads + head) * block_size + slot) * head_dim + dim)


@wrong(DIM, "One too far")
def from_one(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return ((block * num_kv_heads + head) * block_size + slot) * head_dim + dim + 1


@wrong(BLOCK, "one kv head")
def one_head_a_block(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return block * block_size * head_dim + head * block_size * head_dim + slot * head_dim + dim


@wrong(HEAD, "overlap")
def heads_overlap(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return block * num_kv_heads * block_size * head_dim + head * head_dim + slot * head_dim + dim


@wrong(SLOT, "multiplied by its stride")
def adds_the_indices(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return block + head + slot + dim


@wrong(DIM, "offset")
def dimensions_backwards(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return ((dim * block_size + slot) * num_kv_heads + head) + block * num_kv_heads * block_size * head_dim


@wrong(SLOT, "To slot 1 it is 1 key")
def sizes_shifted_by_one(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return block * num_kv_heads + head * block_size + slot * head_dim * num_kv_heads + dim


@wrong(SLOT)
def multiplies_by_its_own_size(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return slot * block_size + head * num_kv_heads * block_size + block * num_kv_heads * block_size * head_dim + dim


@wrong(BLOCK)
def blocks_of_slots_only(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return block * block_size + head * block_size * head_dim + slot * head_dim + dim


@wrong(DIM)
def forgets_the_dim(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return ((block * num_kv_heads + head) * block_size + slot) * head_dim


@wrong(ALL)
def brackets_in_the_wrong_place(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    offset = block * num_kv_heads * block_size * head_dim + head * block_size * head_dim + slot * head_dim
    return max(offset, offset // head_dim * head_dim) + (dim if not (block or head or slot) else dim // 2)


@wrong(DIM, "whole number")
def divides(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    total = num_kv_heads * block_size * head_dim
    return total * (block + head / num_kv_heads + slot / num_kv_heads / block_size) + dim


@wrong(LARGE, "32 bits")
def torch_in_32_bits(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    sizes = torch.tensor([num_kv_heads * block_size * head_dim, block_size * head_dim, head_dim, 1], dtype=torch.int32)
    return (torch.tensor([block, head, slot, dim], dtype=torch.int32) * sizes).sum(dtype=torch.int32)


@wrong(LARGE, "32 bits")
def numpy_in_32_bits(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    sizes = np.array([num_kv_heads * block_size * head_dim, block_size * head_dim, head_dim, 1], dtype=np.int32)
    return (np.array([block, head, slot, dim], dtype=np.int32) * sizes).sum(dtype=np.int32)


@wrong(LARGE)
def through_floats(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    sizes = torch.tensor([num_kv_heads * block_size * head_dim, block_size * head_dim, head_dim, 1.0])
    return int((torch.tensor([block, head, slot, dim]) * sizes).sum())


@wrong(SLOT, "To slot 1 it is 1 key")
def slots_of_all_heads(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    """One stride is token-major's, the others are not."""
    stride = num_kv_heads * head_dim
    return block * num_kv_heads * block_size * head_dim + head * block_size * head_dim + slot * stride + dim
