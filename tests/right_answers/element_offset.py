"""Right answers to `element_offset` in styles other than ours."""

import functools

import numpy as np
import torch

from tests.corpus import right


@right
def a_sum_of_strides(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    stride_slot = head_dim
    stride_head = block_size * stride_slot
    stride_block = num_kv_heads * stride_head
    return block * stride_block + head * stride_head + slot * stride_slot + dim


@right
def from_the_outside_in(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    steps = ((head, num_kv_heads), (slot, block_size), (dim, head_dim))
    return functools.reduce(lambda offset, step: offset * step[1] + step[0], steps, block)


@right
def asks_torch(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    strides = torch.empty(1, num_kv_heads, block_size, head_dim, device="meta").stride()
    return sum(index * stride for index, stride in zip((block, head, slot, dim), strides, strict=True))


@right
def asks_numpy(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    return np.ravel_multi_index((block, head, slot, dim), (block + 1, num_kv_heads, block_size, head_dim))


@right
def as_a_tensor(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    sizes = torch.tensor([num_kv_heads, block_size, head_dim, 1])
    strides = sizes.flip(0).cumprod(0).flip(0)
    return (torch.tensor([block, head, slot, dim]) * strides).sum()
