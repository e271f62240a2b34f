"""Right answers to `write_kv` in styles other than ours."""

import torch

from tests.corpus import right


@right
def token_by_token(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            block, place = divmod(int(slot), block_size)
            key_cache[block, :, place] = keys[token]
            value_cache[block, :, place] = values[token]


@right
def all_at_once(keys, values, key_cache, value_cache, slot_mapping):
    slots = torch.as_tensor(slot_mapping, dtype=torch.long)
    stored = slots != -1
    blocks = torch.div(slots[stored], key_cache.size(2), rounding_mode="floor")
    places = slots[stored].remainder(key_cache.size(2))
    key_cache[blocks, :, places] = keys[stored]
    value_cache[blocks, :, places] = values[stored]
    return key_cache, value_cache


@right
def through_a_token_major_view(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for cache, new in zip((key_cache, value_cache), (keys, values), strict=True):
        slots_first = cache.permute(0, 2, 1, 3)  # a view: writing into it writes into the cache
        for tensor, slot in zip(new, list(slot_mapping), strict=True):
            if slot != -1:
                slots_first[slot // block_size][slot % block_size].copy_(tensor)


@right
def number_by_number(keys, values, key_cache, value_cache, slot_mapping):
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    flat_keys, flat_values = key_cache.view(-1), value_cache.view(-1)
    for token, slot in enumerate(slot_mapping):
        for head in range(num_kv_heads):
            if slot < 0:
                continue
            block, place = int(slot) // block_size, int(slot) % block_size
            at = ((block * num_kv_heads + head) * block_size + place) * head_dim
            flat_keys[at : at + head_dim] = keys[token, head]
            flat_values[at : at + head_dim] = values[token, head]


@right
def with_index_put(keys, values, key_cache, value_cache, slot_mapping):
    pairs = [(token, int(slot)) for token, slot in enumerate(slot_mapping) if int(slot) >= 0]
    if not pairs:
        return
    tokens, slots = torch.tensor(pairs).unbind(1)
    for cache, new in ((key_cache, keys), (value_cache, values)):
        swapped = cache.transpose(1, 2)
        swapped.index_put_((slots // cache.shape[2], slots % cache.shape[2]), new[tokens])


@right
def backwards(keys, values, key_cache, value_cache, slot_mapping):
    slots = slot_mapping.tolist() if isinstance(slot_mapping, torch.Tensor) else slot_mapping
    for token in reversed(range(len(slots))):
        if slots[token] + 1:
            at = slots[token] // key_cache.shape[2], slice(None), slots[token] % key_cache.shape[2]
            key_cache[at], value_cache[at] = keys[token], values[token]
