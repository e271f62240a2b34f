"""The five operations in plain torch: what every faster version is compared with.

Nothing is checked here: `ops.py` has done that, and has made tables, lengths and slots int64 tensors.

Attention reads the pool a tile at a time. A tile is as many whole blocks as make up `TILE_TOKENS` tokens, or one block
if that is larger. Each tile's result is merged into what came before, so no sequence is ever copied out of the pool as
a whole. Where tiles begin depends on the sequence alone: its result does not depend on who shares the batch, or on
where its blocks lie.

Caches are `[num_blocks, num_kv_heads, block_size, head_dim]`, with any strides.
"""

import math

import torch

from pagedlab.attention import merge_partials, partial_attention
from pagedlab.cache.accounting import blocks_needed

TILE_TOKENS = 128


def kv_write(keys, values, key_cache, value_cache, slot_mapping) -> None:
    block_size = key_cache.shape[2]
    wanted = slot_mapping >= 0
    if not wanted.all():
        keys, values, slot_mapping = keys[wanted], values[wanted], slot_mapping[wanted]
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    key_cache[blocks, :, offsets] = keys  # one [num_kv_heads, head_dim] per token
    value_cache[blocks, :, offsets] = values


def gather_kv(key_cache, value_cache, block_table, num_tokens):
    block_size = key_cache.shape[2]
    positions = torch.arange(num_tokens, device=block_table.device)
    blocks, offsets = block_table[positions // block_size], positions % block_size
    return tuple(cache[blocks, :, offsets].transpose(0, 1).contiguous() for cache in (key_cache, value_cache))


def copy_blocks(key_cache, value_cache, pairs) -> None:
    sources, destinations = pairs.unbind(1)
    key_cache[destinations] = key_cache[sources]
    value_cache[destinations] = value_cache[sources]


def paged_decode(q, key_cache, value_cache, block_tables, seq_lens, scale):
    num_seqs, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = key_cache.shape
    group_size = num_heads // num_kv_heads
    rows = q.reshape(num_seqs, num_kv_heads, group_size, head_dim)  # the queries that read the same kv head

    out, lse = _nothing_seen(rows)
    for start, end in _tiles(max(seq_lens.tolist(), default=0), block_size):
        active = (seq_lens > start).nonzero().squeeze(1)
        keys, values = _read_tile(key_cache, value_cache, block_tables[active], start, end)
        visible = torch.arange(start, end, device=q.device) < seq_lens[active, None]
        visible = visible[:, None, None].expand(-1, num_kv_heads, group_size, -1)
        part = partial_attention(rows[active], keys, values, visible, scale)
        out[active], lse[active] = merge_partials(out[active], lse[active], *part)
    return out.reshape(num_seqs, num_heads, head_dim).to(q.dtype)


def paged_prefill(q, key_cache, value_cache, block_tables, seq_lens, query_start_loc, scale):
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    bounds = query_start_loc.tolist()
    for index, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(bounds[index], bounds[index + 1])
        out[rows] = _prefill_one(q[rows], key_cache, value_cache, block_tables[index], seq_len, scale)
    return out


def _prefill_one(q, key_cache, value_cache, block_table, seq_len, scale):
    """One sequence: q `[num_new, num_heads, head_dim]`, block_table `[max_blocks]`, seq_len a number."""
    num_new, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = key_cache.shape
    group_size = num_heads // num_kv_heads
    rows = q.transpose(0, 1).reshape(num_kv_heads, group_size, num_new, head_dim)
    first_position = seq_len - num_new
    positions = torch.arange(first_position, seq_len, device=q.device)  # of the queries

    out, lse = _nothing_seen(rows)
    for start, end in _tiles(seq_len if num_new else 0, block_size):
        late = slice(max(0, start - first_position), num_new)  # earlier queries see nothing of this tile
        keys, values = _read_tile(key_cache, value_cache, block_table[None], start, end)
        visible = torch.arange(start, end, device=q.device) <= positions[late, None]
        visible = visible.repeat(group_size, 1).expand(num_kv_heads, -1, -1)
        late_rows = rows[:, :, late].flatten(1, 2)
        part_out, part_lse = partial_attention(late_rows, keys[0], values[0], visible, scale)
        part = part_out.unflatten(1, (group_size, -1)), part_lse.unflatten(1, (group_size, -1))
        out[:, :, late], lse[:, :, late] = merge_partials(out[:, :, late], lse[:, :, late], *part)
    return out.view(num_heads, num_new, head_dim).transpose(0, 1)


def _nothing_seen(rows):
    """Attention over no tokens, to which every tile is added: zeros, with the weight of nothing."""
    out = torch.zeros_like(rows, dtype=torch.promote_types(rows.dtype, torch.float32))
    return out, out.new_full(rows.shape[:-1], -math.inf)


def _tiles(num_tokens, block_size):
    """(first token, one past the last) of each tile. All are whole blocks; the last may be shorter than the others."""
    size = block_size * max(1, TILE_TOKENS // block_size)
    capacity = block_size * blocks_needed(num_tokens, block_size)
    return [(start, min(start + size, capacity)) for start in range(0, num_tokens, size)]


def _read_tile(key_cache, value_cache, block_tables, start, end):
    """Keys and values of tokens `start` to `end - 1`: `[num_seqs, num_kv_heads, end - start, head_dim]` each.

    A sequence may end earlier. Its table then says -1 or anything; some block is read in its place, and masked later.
    """
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    blocks = block_tables[:, start // block_size : end // block_size]
    blocks = blocks.clamp(0, key_cache.shape[0] - 1)
    shape = (len(blocks), num_kv_heads, end - start, head_dim)
    return tuple(cache[blocks].transpose(1, 2).reshape(shape) for cache in (key_cache, value_cache))
