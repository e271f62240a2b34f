"""Pools made to catch mistakes: blocks in random order, NaN wherever no token was written, tables that are too wide."""

import importlib.util
import random
from dataclasses import dataclass

import torch

from pagedlab.cache.accounting import blocks_needed
from pagedlab.gpu import mode
from pagedlab.kernels import ops


def available_backends() -> list[str]:
    """The names of `ops.BACKENDS`, without "triton" where it is not installed, or compiles for a GPU."""
    interprets = importlib.util.find_spec("triton") is not None and mode.is_interpreting()
    return [name for name in ops.BACKENDS if name != "triton" or interprets]


@dataclass
class Pages:
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_tables: torch.Tensor  # int32 [num_seqs, max_blocks]
    seq_lens: torch.Tensor  # int32 [num_seqs]
    keys: list[torch.Tensor]  # per sequence, [num_kv_heads, num_tokens, head_dim]
    values: list[torch.Tensor]

    def attention_args(self):
        return self.key_cache, self.value_cache, self.block_tables, self.seq_lens


def make_pages(
    seq_lens,
    num_kv_heads=2,
    block_size=4,
    head_dim=8,
    dtype=torch.float32,
    seed=0,
    spare_blocks=3,
    extra_columns=2,
    interleaved=False,
    token_major=False,
    padding=-1,
    spread=1.0,
):
    """Sequences of these lengths, filled with numbers centred on zero. Block 0 is nobody's, and NaN like all the rest.

    interleaved: keys and values alternate in one storage, `[num_blocks, 2, ...]`. token_major: the storage is
    `[num_blocks, block_size, num_kv_heads, head_dim]`, seen through a transpose.
    """
    generator = torch.Generator().manual_seed(seed)
    needed = [blocks_needed(length, block_size) for length in seq_lens]
    num_blocks = 1 + sum(needed) + spare_blocks
    inner = (block_size, num_kv_heads, head_dim) if token_major else (num_kv_heads, block_size, head_dim)
    if interleaved:
        caches = torch.full((num_blocks, 2, *inner), torch.nan, dtype=dtype).unbind(1)
    else:
        caches = [torch.full((num_blocks, *inner), torch.nan, dtype=dtype) for _ in range(2)]
    if token_major:
        caches = [cache.transpose(1, 2) for cache in caches]

    order = list(range(1, num_blocks))
    random.Random(seed).shuffle(order)
    tables = torch.full((len(seq_lens), max(needed, default=0) + extra_columns), padding, dtype=torch.int32)
    contents = ([], [])
    for row, (length, count) in enumerate(zip(seq_lens, needed, strict=True)):
        blocks, order = order[:count], order[count:]
        tables[row, :count] = torch.tensor(blocks, dtype=torch.int32)
        for cache, content in zip(caches, contents, strict=True):
            tokens = (torch.randn(num_kv_heads, length, head_dim, generator=generator) * spread).to(dtype)
            content.append(tokens)
            for position in range(length):
                cache[blocks[position // block_size], :, position % block_size] = tokens[:, position]
    return Pages(*caches, tables, torch.tensor(seq_lens, dtype=torch.int32), *contents)


def random_queries(*shape, dtype=torch.float32, seed=1, spread=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


def dense(q, keys, values, scale=None):
    """Softmax attention in float64, straight from the definition: q `[num_heads, num_new, head_dim]`, causal."""
    q, keys, values = q.double(), keys.double(), values.double()
    num_heads, num_new, head_dim = q.shape
    num_kv_heads, num_tokens, _ = keys.shape
    out = torch.zeros_like(q)
    for head in range(num_heads):
        kv_head = head * num_kv_heads // num_heads
        for new in range(num_new):
            last = num_tokens - num_new + new + 1
            if last > 0:
                scores = keys[kv_head, :last] @ q[head, new] * (head_dim**-0.5 if scale is None else scale)
                out[head, new] = torch.softmax(scores, 0) @ values[kv_head, :last]
    return out


def dense_decode(q, pages, scale=None):
    """The right answer of paged_decode, `[num_seqs, num_heads, head_dim]` in float64."""
    rows = [
        dense(q[i, :, None], keys, values, scale)[:, 0]
        for i, (keys, values) in enumerate(zip(pages.keys, pages.values, strict=True))
    ]
    return torch.stack(rows) if rows else q.double()
