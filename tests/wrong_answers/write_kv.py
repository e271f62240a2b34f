"""Plausible wrong answers to `write_kv`."""

import torch

from tests.corpus import wrong

ONE = "One token goes to its slot"
MANY = "Every token goes to its own slot"
REST = "All other slots stay as they are"
SKIP = "A token with slot -1 is not stored"
TENSOR = "Slots may come as a tensor, and there may be none"


@wrong(SKIP, "the last one of the pool")
def lets_minus_one_through(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        key_cache[slot // block_size, :, slot % block_size] = keys[token]
        value_cache[slot // block_size, :, slot % block_size] = values[token]


@wrong(SKIP, "the last one of the pool")
def all_at_once_with_minus_one(keys, values, key_cache, value_cache, slot_mapping):
    slots = torch.as_tensor(slot_mapping, dtype=torch.long)
    block_size = key_cache.shape[2]
    key_cache[slots // block_size, :, slots % block_size] = keys
    value_cache[slots // block_size, :, slots % block_size] = values


@wrong(SKIP, "Block 0")
def rounds_towards_zero(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        block = int(slot / block_size)
        place = int(slot) - block * block_size
        key_cache[block, :, place] = keys[token]
        value_cache[block, :, place] = values[token]


@wrong(SKIP, "means: don't store this token")
def refuses_minus_one(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot < 0:
            raise ValueError(f"slot {slot}")
        key_cache[slot // block_size, :, slot % block_size] = keys[token]
        value_cache[slot // block_size, :, slot % block_size] = values[token]


@wrong(SKIP)
def stops_at_minus_one(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot < 0:
            break
        key_cache[slot // block_size, :, slot % block_size] = keys[token]
        value_cache[slot // block_size, :, slot % block_size] = values[token]


@wrong(SKIP)
def drops_slots_but_not_tokens(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot for slot in slot_mapping if slot >= 0):
        key_cache[slot // block_size, :, slot % block_size] = keys[token]
        value_cache[slot // block_size, :, slot % block_size] = values[token]


@wrong(SKIP, "Block 0 slot 0")
def sends_minus_one_to_slot_zero(keys, values, key_cache, value_cache, slot_mapping):
    slots = torch.as_tensor(slot_mapping, dtype=torch.long).clamp(min=0)
    block_size = key_cache.shape[2]
    key_cache[slots // block_size, :, slots % block_size] = keys
    value_cache[slots // block_size, :, slots % block_size] = values


@wrong(SKIP)
def keeps_minus_one_in_the_keys_only(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot // block_size, :, slot % block_size] = keys[token]
        value_cache[slot // block_size, :, slot % block_size] = values[token]


@wrong(ONE, "there is the key of new token 0")
def stores_the_keys_twice(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot // block_size, :, slot % block_size] = keys[token]
            value_cache[slot // block_size, :, slot % block_size] = keys[token]


@wrong(ONE, "A token leaves a key and a value")
def forgets_the_values(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot // block_size, :, slot % block_size] = keys[token]


@wrong(ONE, "Keys go into key_cache")
def swaps_the_caches(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            value_cache[slot // block_size, :, slot % block_size] = keys[token]
            key_cache[slot // block_size, :, slot % block_size] = values[token]


@wrong(ONE)
def swaps_block_and_place(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot % block_size, :, slot // block_size % block_size] = keys[token]
            value_cache[slot % block_size, :, slot // block_size % block_size] = values[token]


@wrong(ONE)
def takes_the_slot_for_a_block(keys, values, key_cache, value_cache, slot_mapping):
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot, :, 0] = keys[token]
            value_cache[slot, :, 0] = values[token]


@wrong(ONE)
def mistakes_heads_for_slots(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot // block_size, :, slot % block_size] = keys[token]
            value_cache[slot // block_size, :, slot % block_size] = values[token]


@wrong(ONE, "Nothing was written")
def writes_into_a_copy(keys, values, key_cache, value_cache, slot_mapping):
    num_kv_heads, head_dim = keys.shape[1:]
    for cache, new in ((key_cache, keys), (value_cache, values)):
        flat = cache.transpose(1, 2).contiguous().view(-1, num_kv_heads, head_dim)
        for token, slot in enumerate(slot_mapping):
            if slot >= 0:
                flat[slot] = new[token]


@wrong(ONE, "Nothing was written")
def indexes_twice(keys, values, key_cache, value_cache, slot_mapping):
    slots = torch.as_tensor(slot_mapping, dtype=torch.long)
    kept = slots >= 0
    blocks, places = slots[kept] // key_cache.shape[2], slots[kept] % key_cache.shape[2]
    key_cache[blocks][:, :, places] = keys[kept].transpose(0, 1)[None]
    value_cache[blocks][:, :, places] = values[kept].transpose(0, 1)[None]


@wrong(ONE, "Nothing was written")
def returns_new_caches(keys, values, key_cache, value_cache, slot_mapping):
    key_cache, value_cache, block_size = key_cache.clone(), value_cache.clone(), key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot // block_size, :, slot % block_size] = keys[token]
            value_cache[slot // block_size, :, slot % block_size] = values[token]
    return key_cache, value_cache


@wrong(ONE)
def views_slots_across_heads(keys, values, key_cache, value_cache, slot_mapping):
    num_kv_heads, head_dim = keys.shape[1:]
    for cache, new in ((key_cache, keys), (value_cache, values)):
        flat = cache.view(-1, num_kv_heads, head_dim)  # right for token-major only
        for token, slot in enumerate(slot_mapping):
            if slot >= 0:
                flat[slot] = new[token]


@wrong(MANY, "new token 1")
def writes_the_first_token_everywhere(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for slot in slot_mapping:
        if slot >= 0:
            key_cache[slot // block_size, :, slot % block_size] = keys[0]
            value_cache[slot // block_size, :, slot % block_size] = values[0]


@wrong(MANY)
def writes_in_one_piece(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    first = next((slot for slot in slot_mapping if slot >= 0), None)
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            where = min(first + token, key_cache.shape[0] * block_size - 1)
            key_cache[where // block_size, :, where % block_size] = keys[token]
            value_cache[where // block_size, :, where % block_size] = values[token]


@wrong(REST, "was overwritten")
def clears_the_block_first(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    blocks = {int(slot) // block_size for slot in slot_mapping if slot >= 0}
    for cache, new in ((key_cache, keys), (value_cache, values)):
        for block in blocks:
            cache[block] = 0
        for token, slot in enumerate(slot_mapping):
            if slot >= 0:
                cache[slot // block_size, :, slot % block_size] = new[token]


@wrong(REST, "was overwritten")
def cleans_up_the_nans(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for cache, new in ((key_cache, keys), (value_cache, values)):
        cache.nan_to_num_(0.0)
        for token, slot in enumerate(slot_mapping):
            if slot >= 0:
                cache[slot // block_size, :, slot % block_size] = new[token]


@wrong(ONE, "belong to the caller")
def empties_what_it_was_given(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot // block_size, :, slot % block_size] = keys[token]
            value_cache[slot // block_size, :, slot % block_size] = values[token]
    keys.zero_()
    values.zero_()


@wrong(TENSOR)
def only_lists(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    tokens = [token for token in range(len(keys)) if slot_mapping[token] != -1]
    if slot_mapping == [] or not tokens:
        return
    for token in tokens:
        block, place = divmod(slot_mapping.copy()[token], block_size)
        key_cache[block, :, place] = keys[token]
        value_cache[block, :, place] = values[token]


@wrong(TENSOR)
def needs_a_token(keys, values, key_cache, value_cache, slot_mapping):
    slots = torch.as_tensor(slot_mapping, dtype=torch.long)
    if slots.max() < 0:
        return
    block_size, kept = key_cache.shape[2], slots >= 0
    key_cache[slots[kept] // block_size, :, slots[kept] % block_size] = keys[kept]
    value_cache[slots[kept] // block_size, :, slots[kept] % block_size] = values[kept]


@wrong(MANY, ".reshape")
def views_the_new_tokens(keys, values, key_cache, value_cache, slot_mapping):
    """Right for tokens in one piece, but the model turns them from heads first."""
    block_size, (num_tokens, num_kv_heads, head_dim) = key_cache.shape[2], keys.shape
    for cache, new in ((key_cache, keys), (value_cache, values)):
        rows = new.view(num_tokens, num_kv_heads * head_dim)
        for token, slot in enumerate(slot_mapping):
            if slot >= 0:
                cache[slot // block_size, :, slot % block_size] = rows[token].view(num_kv_heads, head_dim)


@wrong(ONE, "changed the slot mapping")
def eats_the_slots(keys, values, key_cache, value_cache, slot_mapping):
    block_size, token = key_cache.shape[2], 0
    if isinstance(slot_mapping, torch.Tensor):
        slot_mapping = slot_mapping.tolist()
    while slot_mapping:
        slot = slot_mapping.pop(0)
        if slot >= 0:
            key_cache[slot // block_size, :, slot % block_size] = keys[token]
            value_cache[slot // block_size, :, slot % block_size] = values[token]
        token += 1


@wrong(SKIP, "changed the slot mapping")
def removes_minus_one(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    tokens = [token for token, slot in enumerate(slot_mapping) if slot >= 0]
    if isinstance(slot_mapping, torch.Tensor):
        slot_mapping = slot_mapping.tolist()
    while -1 in slot_mapping:
        slot_mapping.remove(-1)
    for token, slot in zip(tokens, slot_mapping, strict=True):
        key_cache[slot // block_size, :, slot % block_size] = keys[token]
        value_cache[slot // block_size, :, slot % block_size] = values[token]


@wrong(SKIP, "the last one of the pool")
def skips_in_lists_only(keys, values, key_cache, value_cache, slot_mapping):
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if isinstance(slot, int) and slot < 0:
            continue
        key_cache[slot // block_size, :, slot % block_size] = keys[token]
        value_cache[slot // block_size, :, slot % block_size] = values[token]
