"""Right answers to `gather_kv` in styles other than ours."""

import torch

from tests.corpus import right


@right
def token_by_token(key_cache, value_cache, block_table, num_tokens):
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    keys = torch.empty(num_kv_heads, num_tokens, head_dim, dtype=key_cache.dtype)
    values = torch.empty_like(keys)
    for position in range(num_tokens):
        block, place = block_table[position // block_size], position % block_size
        keys[:, position] = key_cache[block, :, place]
        values[:, position] = value_cache[block, :, place]
    return keys, values


@right
def whole_blocks_cut_off(key_cache, value_cache, block_table, num_tokens):
    block_size = key_cache.shape[2]
    blocks = torch.as_tensor(block_table)[: -(-num_tokens // block_size)].long()
    return tuple(
        cache.index_select(0, blocks).permute(1, 0, 2, 3).flatten(1, 2)[:, :num_tokens]
        for cache in (key_cache, value_cache)
    )


@right
def slices_joined(key_cache, value_cache, block_table, num_tokens):
    block_size = key_cache.shape[2]
    parts = [(key_cache[0, :, :0], value_cache[0, :, :0])]
    for entry, first in enumerate(range(0, num_tokens, block_size)):
        here = min(block_size, num_tokens - first)
        block = int(block_table[entry])
        parts.append((key_cache[block][:, :here], value_cache[block][:, :here]))
    keys, values = zip(*parts, strict=True)
    return torch.cat(keys, 1), torch.cat(values, 1)


@right
def by_slot(key_cache, value_cache, block_table, num_tokens):
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    slots = [int(block_table[p // block_size]) * block_size + p % block_size for p in range(num_tokens)]
    slots = torch.tensor(slots, dtype=torch.long)
    return [
        cache.transpose(1, 2).reshape(-1, num_kv_heads, head_dim)[slots].transpose(0, 1)
        for cache in (key_cache, value_cache)
    ]


@right
def all_at_once(key_cache, value_cache, block_table, num_tokens):
    positions = torch.arange(num_tokens)
    table = torch.as_tensor(block_table, dtype=torch.long)
    at = table[positions // key_cache.size(2)], slice(None), positions % key_cache.size(2)
    return torch.stack([key_cache[at], value_cache[at]]).transpose(1, 2).unbind(0)
