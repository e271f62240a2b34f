"""Plausible wrong answers to `gather_kv`."""

import torch

from tests.corpus import wrong

BLOCK = "The tokens of one block"
ALL = "Every token from its own block and slot"
PADDED = "Entries behind the last block do not show in the result"
LIST = "The table may be a list"
NONE = "No tokens: two empty tensors"
STAYS = "The table stays as it was"


def gathered(cache, blocks, places):
    return cache[blocks, :, places].transpose(0, 1)


def whole_blocks(cache, blocks):
    """[num_kv_heads, len(blocks) * block_size, head_dim]"""
    return cache[blocks].transpose(0, 1).flatten(1, 2)


def blocks_and_places(key_cache, block_table, num_tokens):
    positions, block_size = torch.arange(num_tokens), key_cache.shape[2]
    return torch.as_tensor(block_table).long()[positions // block_size], positions % block_size


@wrong(ALL, "read was")
def ignores_the_table(key_cache, value_cache, block_table, num_tokens):
    first, block_size = int(block_table[0]) if num_tokens else 0, key_cache.shape[2]
    positions = torch.arange(num_tokens)
    blocks = (first + positions // block_size) % len(key_cache)
    return gathered(key_cache, blocks, positions % block_size), gathered(value_cache, blocks, positions % block_size)


@wrong(BLOCK, "a slot nobody wrote")
def takes_the_position_for_the_pool(key_cache, value_cache, block_table, num_tokens):
    positions, block_size = torch.arange(num_tokens), key_cache.shape[2]
    blocks = positions // block_size
    return gathered(key_cache, blocks, positions % block_size), gathered(value_cache, blocks, positions % block_size)


@wrong(ALL, "read was")
def sorts_the_blocks(key_cache, value_cache, block_table, num_tokens):
    needed = -(-num_tokens // key_cache.shape[2])
    blocks = torch.as_tensor(block_table).long()[:needed].sort().values
    return whole_blocks(key_cache, blocks)[:, :num_tokens], whole_blocks(value_cache, blocks)[:, :num_tokens]


@wrong(BLOCK, "Whole blocks came back")
def gives_whole_blocks(key_cache, value_cache, block_table, num_tokens):
    blocks = torch.as_tensor(block_table).long()[: -(-num_tokens // key_cache.shape[2])]
    return whole_blocks(key_cache, blocks), whole_blocks(value_cache, blocks)


@wrong(BLOCK, "has changed the pool")
def cleans_the_pool(key_cache, value_cache, block_table, num_tokens):
    blocks, places = blocks_and_places(key_cache, block_table, num_tokens)
    result = gathered(key_cache, blocks, places).clone(), gathered(value_cache, blocks, places).clone()
    key_cache.nan_to_num_()
    value_cache.nan_to_num_()
    return result


@wrong(BLOCK, "Tokens came first")
def tokens_first(key_cache, value_cache, block_table, num_tokens):
    blocks, places = blocks_and_places(key_cache, block_table, num_tokens)
    return key_cache[blocks, :, places], value_cache[blocks, :, places]


@wrong(ALL, "read was")
def reshapes_without_transposing(key_cache, value_cache, block_table, num_tokens):
    needed = -(-num_tokens // key_cache.shape[2])
    blocks = torch.as_tensor(block_table).long()[:needed]
    shape = key_cache.shape[1], -1, key_cache.shape[3]
    if not needed:
        return tuple(cache.new_empty(shape[0], 0, shape[2]) for cache in (key_cache, value_cache))
    return tuple(cache[blocks].reshape(shape)[:, :num_tokens] for cache in (key_cache, value_cache))


@wrong(BLOCK, "four dimensions")
def does_not_join(key_cache, value_cache, block_table, num_tokens):
    blocks = torch.as_tensor(block_table).long()[: -(-num_tokens // key_cache.shape[2])]
    return key_cache[blocks], value_cache[blocks]


@wrong(BLOCK, "the key of")
def keys_twice(key_cache, value_cache, block_table, num_tokens):
    blocks, places = blocks_and_places(key_cache, block_table, num_tokens)
    return gathered(key_cache, blocks, places), gathered(key_cache, blocks, places)


@wrong(BLOCK, "the value of")
def values_first(key_cache, value_cache, block_table, num_tokens):
    blocks, places = blocks_and_places(key_cache, block_table, num_tokens)
    return gathered(value_cache, blocks, places), gathered(key_cache, blocks, places)


@wrong(BLOCK, "Two tensors were expected")
def keys_only(key_cache, value_cache, block_table, num_tokens):
    blocks, places = blocks_and_places(key_cache, block_table, num_tokens)
    return gathered(key_cache, blocks, places)


@wrong(ALL)
def only_full_blocks(key_cache, value_cache, block_table, num_tokens):
    full = max(num_tokens // key_cache.shape[2], 1)
    blocks = torch.as_tensor(block_table).long()[:full]
    return whole_blocks(key_cache, blocks)[:, :num_tokens], whole_blocks(value_cache, blocks)[:, :num_tokens]


@wrong(BLOCK, "slot")
def one_slot_late(key_cache, value_cache, block_table, num_tokens):
    blocks, places = blocks_and_places(key_cache, block_table, num_tokens)
    places = (places + 1) % key_cache.shape[2]
    return gathered(key_cache, blocks, places), gathered(value_cache, blocks, places)


@wrong(BLOCK, "kv head")
def first_head_for_all(key_cache, value_cache, block_table, num_tokens):
    blocks, places = blocks_and_places(key_cache, block_table, num_tokens)
    heads = key_cache.shape[1]
    return tuple(gathered(c, blocks, places)[:1].expand(heads, -1, -1) for c in (key_cache, value_cache))


@wrong(PADDED)
def takes_the_end_of_the_table(key_cache, value_cache, block_table, num_tokens):
    needed = -(-num_tokens // key_cache.shape[2])
    table = torch.as_tensor(block_table).long()
    blocks = table[len(table) - needed :]
    return whole_blocks(key_cache, blocks)[:, :num_tokens], whole_blocks(value_cache, blocks)[:, :num_tokens]


@wrong(PADDED, "Whole blocks came back")
def follows_every_entry(key_cache, value_cache, block_table, num_tokens):
    blocks = torch.as_tensor(block_table).long()
    extra = len(blocks) - -(-num_tokens // key_cache.shape[2])
    end = num_tokens if extra <= 0 else len(blocks) * key_cache.shape[2]
    return whole_blocks(key_cache, blocks)[:, :end], whole_blocks(value_cache, blocks)[:, :end]


@wrong(PADDED, "AssertionError")
def wants_an_exact_table(key_cache, value_cache, block_table, num_tokens):
    assert len(block_table) == -(-num_tokens // key_cache.shape[2])
    blocks, places = blocks_and_places(key_cache, block_table, num_tokens)
    return gathered(key_cache, blocks, places), gathered(value_cache, blocks, places)


@wrong(PADDED)
def does_not_expect_padding(key_cache, value_cache, block_table, num_tokens):
    keys = torch.cat([key_cache[block] for block in block_table] or [key_cache[0, :, :0]], dim=1)
    values = torch.cat([value_cache[block] for block in block_table] or [value_cache[0, :, :0]], dim=1)
    first = num_tokens - keys.shape[1] if len(block_table) and block_table[-1] < 0 else 0
    return keys[:, first:][:, :num_tokens], values[:, first:][:, :num_tokens]


@wrong(LIST)
def tensors_only(key_cache, value_cache, block_table, num_tokens):
    positions, block_size = torch.arange(num_tokens), key_cache.shape[2]
    blocks, places = block_table[positions // block_size].long(), positions % block_size
    return gathered(key_cache, blocks, places), gathered(value_cache, blocks, places)


@wrong(NONE)
def joins_nothing(key_cache, value_cache, block_table, num_tokens):
    block_size = key_cache.shape[2]
    parts = []
    for position in range(num_tokens):
        block, place = int(block_table[position // block_size]), position % block_size
        parts.append((key_cache[block, :, place], value_cache[block, :, place]))
    return torch.stack([key for key, _ in parts], dim=1), torch.stack([value for _, value in parts], dim=1)


@wrong(BLOCK, "not a tensor")
def a_list_of_keys(key_cache, value_cache, block_table, num_tokens):
    block_size = key_cache.shape[2]
    keys, values = [], []
    for position in range(num_tokens):
        block, place = int(block_table[position // block_size]), position % block_size
        keys.append(key_cache[block, :, place])
        values.append(value_cache[block, :, place])
    return keys, values


@wrong(STAYS, "changed the block table")
def empties_the_table(key_cache, value_cache, block_table, num_tokens):
    blocks, places = blocks_and_places(key_cache, block_table, num_tokens)
    if isinstance(block_table, list):
        block_table.clear()
    return gathered(key_cache, blocks, places), gathered(value_cache, blocks, places)


@wrong(STAYS, "changed the block table")
def clamps_the_table_in_place(key_cache, value_cache, block_table, num_tokens):
    if isinstance(block_table, torch.Tensor):
        block_table.clamp_(min=0)
    blocks, places = blocks_and_places(key_cache, block_table, num_tokens)
    return gathered(key_cache, blocks, places), gathered(value_cache, blocks, places)
