"""The operations as compiled loops over the blocks: `reference.py`'s algorithm with nothing between it and the numbers.

An item of work is one KV head of one sequence, with the query heads that share it: keys and values are read from the
pool once for the whole group, a tile of tokens at a time, into a small float32 buffer that stays in the processor's
first cache. Each tile updates three things a query: the largest score so far, the sum of the weights, and the weighted
sum of the values. When the largest grows, what was summed before is scaled down to it.

Tiles begin at multiples of `TILE_TOKENS` whatever the block size, and a long context is cut into pieces of
`PIECE_TOKENS` whatever the number of threads. So a query's result depends on its sequence alone: to the last bit the
same for any block size, any order of blocks, any neighbours in the batch, any chunks of a prompt.

Chunks of a prompt take another way where the processor has the instructions for it: see `cpu_tiles.py`.

float32 and bfloat16 on the CPU; for everything else, and where numba is missing, `reference.py` does the work. Nothing
is checked here: `ops.py` has done that.
"""

import numpy as np
import torch
from numba import carray

from pagedlab.kernels import cpu_tiles, gemm, reference
from pagedlab.kernels.cpu_loops import (
    TILE_TOKENS,
    add_values,
    fetch_rows,
    largest,
    padded,
    read_rows,
    score_by_columns,
    score_by_rows,
    to_weights,
    transpose,
)
from pagedlab.kernels.cpu_numbers import READABLE, compiled, exp
from pagedlab.kernels.cpu_pages import ANY, Pages, write_row
from pagedlab.kernels.cpu_threads import arguments_of, kernel, pointer, take

PIECE_TOKENS = 8 * TILE_TOKENS
TILE_QUERIES = 16
TILES_A_THREAD = 4  # at least, if there is so much to do: a thread that is held up leaves them to others

gather_kv, copy_blocks = reference.gather_kv, reference.copy_blocks  # copying is what torch does as fast

Writing = arguments_of(
    "Writing",
    "keys key_token key_head  values value_token value_head  slots  num_kv_heads head_dim block_size "
    "key_cache to_key_block to_key_head to_key_token  value_cache to_value_block to_value_head to_value_token",
)


@compiled
def read_tile(pages, dtype, seq, kv_head, first, count, keys, values, width):
    """Tokens `first` to `first + count - 1` of a sequence, from wherever its blocks lie, as rows of float32."""
    key_cache, value_cache = carray(pointer(pages.keys, dtype), (ANY,)), carray(pointer(pages.values, dtype), (ANY,))
    table = carray(pointer(pages.tables, np.int64), (ANY,))[seq * pages.table_row : (seq + 1) * pages.table_row]
    head_dim = pages.head_dim
    done = 0
    while done < count:
        entry, offset = divmod(first + done, pages.block_size)
        here = min(pages.block_size - offset, count - done)
        key = table[entry] * pages.key_block + kv_head * pages.key_head + offset * pages.key_token
        value = table[entry] * pages.value_block + kv_head * pages.value_head + offset * pages.value_token
        read_rows(key_cache, key, pages.key_token, here, head_dim, keys, done, width)
        read_rows(value_cache, value, pages.value_token, here, head_dim, values, done, width)
        done += here
    keys[count * width :], values[count * width :] = 0, 0


@compiled
def fetch_tile(pages, dtype, seq, kv_head, first, end):
    """Ask for the tile of tokens that begins with `first`: memory is slow, and can work while we sum."""
    key_cache, value_cache = carray(pointer(pages.keys, dtype), (ANY,)), carray(pointer(pages.values, dtype), (ANY,))
    table = carray(pointer(pages.tables, np.int64), (ANY,))[seq * pages.table_row : (seq + 1) * pages.table_row]
    end = min(end, first + TILE_TOKENS)
    while first < end:
        entry, offset = divmod(first, pages.block_size)
        here = min(pages.block_size - offset, end - first)
        key = table[entry] * pages.key_block + kv_head * pages.key_head + offset * pages.key_token
        value = table[entry] * pages.value_block + kv_head * pages.value_head + offset * pages.value_token
        fetch_rows(key_cache, key, pages.key_token, here, pages.head_dim)
        fetch_rows(value_cache, value, pages.value_token, here, pages.head_dim)
        first += here


@compiled
def see_tile(scores, values, count, width, row, maxima, weight_sums, value_sums):
    """Add `count` scored tokens to what one query, the row, has seen."""
    scores[count:] = -np.inf
    old, new = maxima[row], max(maxima[row], largest(scores))
    shrink = exp(old - new)  # what was summed before was relative to the old maximum
    maxima[row] = new
    weight_sums[row] = weight_sums[row] * shrink + to_weights(scores, new)
    add_values(scores, values, count, width, value_sums, row * width, shrink)


@compiled
def piece_of(item, pages, lens):
    """An item of `decode`: the sequence, the KV head, and the first and last + 1 of the tokens to look at."""
    item, piece = divmod(item, pages.num_pieces)
    seq, kv_head = divmod(item, pages.num_kv_heads)
    return seq, kv_head, piece * PIECE_TOKENS, min((piece + 1) * PIECE_TOKENS, lens[seq])


@compiled
def decode(arguments, dtype):
    """Items are pieces of the context of one KV head of one sequence; all query heads of the group go together."""
    pages = carray(arguments, 1)[0]
    q, out = carray(pointer(pages.q, dtype), (ANY,)), carray(pointer(pages.out, dtype), (ANY,))
    lens = carray(pointer(pages.lens, np.int64), (ANY,))
    parts = carray(pointer(pages.parts, np.float32), (ANY,))
    part_lse = carray(pointer(pages.part_lse, np.float32), (ANY,))
    group_size, head_dim = pages.num_heads // pages.num_kv_heads, pages.head_dim
    width = padded(head_dim)
    keys, values = np.zeros(TILE_TOKENS * width, np.float32), np.zeros(TILE_TOKENS * width, np.float32)
    queries, value_sums = np.zeros(group_size * width, np.float32), np.empty(group_size * width, np.float32)
    maxima, weight_sums = np.empty(group_size, np.float32), np.empty(group_size, np.float32)
    scores = np.empty(TILE_TOKENS, np.float32)
    scale = np.float32(pages.scale)

    while True:
        item = take(arguments)
        if item >= pages.num_items:
            break
        seq, kv_head, start, end = piece_of(item, pages, lens)
        if start >= end and start > 0:
            continue
        head = kv_head * group_size
        read_rows(q, seq * pages.q_token + head * pages.q_head, pages.q_head, group_size, head_dim, queries, 0, width)
        queries *= scale
        value_sums[:], weight_sums[:], maxima[:] = 0, 0, -np.inf
        for first in range(start, end, TILE_TOKENS):
            count = min(TILE_TOKENS, end - first)
            read_tile(pages, dtype, seq, kv_head, first, count, keys, values, width)
            if first + count < end:
                fetch_tile(pages, dtype, seq, kv_head, first + count, end)
            elif pages.next_item < pages.num_items:  # probably ours; if another thread takes it, it is that much nearer
                next_seq, next_head, next_start, next_end = piece_of(pages.next_item, pages, lens)
                fetch_tile(pages, dtype, next_seq, next_head, next_start, next_end)
            for row in range(group_size):
                score_by_rows(queries, row * width, keys, count, width, scores)
                see_tile(scores, values, count, width, row, maxima, weight_sums, value_sums)
        for row in range(group_size):
            to = seq * pages.num_heads + head + row
            if lens[seq] <= PIECE_TOKENS:
                write_row(out, to * head_dim, head_dim, value_sums, row * width, weight_sums[row])
            else:
                to = to * pages.num_pieces + start // PIECE_TOKENS
                write_row(parts, to * head_dim, head_dim, value_sums, row * width, weight_sums[row])
                part_lse[to] = maxima[row] + np.log(weight_sums[row])


@compiled
def merge(arguments, dtype):
    """Items are query heads: the pieces of a long context become one result, each by its share of the weights."""
    pages = carray(arguments, 1)[0]
    out, lens = carray(pointer(pages.out, dtype), (ANY,)), carray(pointer(pages.lens, np.int64), (ANY,))
    parts = carray(pointer(pages.parts, np.float32), (ANY,))
    part_lse = carray(pointer(pages.part_lse, np.float32), (ANY,))
    value_sum = np.empty(pages.head_dim, np.float32)
    while True:
        item = take(arguments)
        if item >= pages.num_items:
            break
        num_pieces = (lens[item // pages.num_heads] + PIECE_TOKENS - 1) // PIECE_TOKENS
        if num_pieces < 2:
            continue
        first = item * pages.num_pieces
        maximum = part_lse[first : first + num_pieces].max()
        value_sum[:], weight_sum = 0, np.float32(0)
        for piece in range(first, first + num_pieces):
            weight = exp(part_lse[piece] - maximum)
            weight_sum += weight
            for d in range(len(value_sum)):
                value_sum[d] += weight * parts[piece * pages.head_dim + d]
        write_row(out, item * pages.head_dim, pages.head_dim, value_sum, 0, weight_sum)


@compiled
def prefill(arguments, dtype):
    """Items are up to `TILE_QUERIES` neighbouring tokens of one KV head of one sequence, each with its group."""
    pages = carray(arguments, 1)[0]
    q, out = carray(pointer(pages.q, dtype), (ANY,)), carray(pointer(pages.out, dtype), (ANY,))
    starts, tiles = carray(pointer(pages.starts, np.int64), (ANY,)), carray(pointer(pages.tiles, np.int64), (ANY,))
    group_size, head_dim = pages.num_heads // pages.num_kv_heads, pages.head_dim
    width, num_rows = padded(head_dim), TILE_QUERIES * group_size
    keys, values = np.zeros(TILE_TOKENS * width, np.float32), np.zeros(TILE_TOKENS * width, np.float32)
    columns = np.zeros(TILE_TOKENS * width, np.float32)
    queries, value_sums = np.zeros(num_rows * width, np.float32), np.empty(num_rows * width, np.float32)
    maxima, weight_sums = np.empty(num_rows, np.float32), np.empty(num_rows, np.float32)
    scores = np.empty(TILE_TOKENS, np.float32)
    scale = np.float32(pages.scale)

    while True:
        item = take(arguments)
        if item >= pages.num_items:
            break
        item, kv_head = divmod(item, pages.num_kv_heads)
        seq, token, position = tiles[3 * item], tiles[3 * item + 1], tiles[3 * item + 2]  # those of its first query
        num_tokens = min(TILE_QUERIES, starts[seq + 1] - token)
        head = kv_head * group_size
        for i in range(num_tokens):
            start = (token + i) * pages.q_token + head * pages.q_head
            read_rows(q, start, pages.q_head, group_size, head_dim, queries, i * group_size, width)
        queries *= scale
        value_sums[:], weight_sums[:], maxima[:] = 0, 0, -np.inf
        end = position + num_tokens
        for first in range(0, end, TILE_TOKENS):
            count = min(TILE_TOKENS, end - first)
            read_tile(pages, dtype, seq, kv_head, first, count, keys, values, width)
            fetch_tile(pages, dtype, seq, kv_head, first + count, end)
            transpose(keys, width, head_dim, columns)
            for i in range(max(0, first - position), num_tokens):
                visible = min(count, position + i - first + 1)
                for row in range(i * group_size, (i + 1) * group_size):
                    score_by_columns(queries, row * width, columns, width, scores)
                    see_tile(scores, values, visible, width, row, maxima, weight_sums, value_sums)
        for i in range(num_tokens):
            for g in range(group_size):
                to, row = (token + i) * pages.num_heads + head + g, i * group_size + g
                write_row(out, to * head_dim, head_dim, value_sums, row * width, weight_sums[row])


@compiled
def write_tokens(arguments, dtype):
    """Items are tokens: each key and value goes into its slot, unless that is -1."""
    a = carray(arguments, 1)[0]
    keys, values = carray(pointer(a.keys, dtype), (ANY,)), carray(pointer(a.values, dtype), (ANY,))
    key_cache, value_cache = carray(pointer(a.key_cache, dtype), (ANY,)), carray(pointer(a.value_cache, dtype), (ANY,))
    slots = carray(pointer(a.slots, np.int64), (ANY,))
    while True:
        token = take(arguments)
        if token >= a.num_items:
            break
        if slots[token] < 0:
            continue
        block, offset = divmod(slots[token], a.block_size)
        for head in range(a.num_kv_heads):
            to = block * a.to_key_block + head * a.to_key_head + offset * a.to_key_token
            start = token * a.key_token + head * a.key_head
            key_cache[to : to + a.head_dim] = keys[start : start + a.head_dim]
            to = block * a.to_value_block + head * a.to_value_head + offset * a.to_value_token
            start = token * a.value_token + head * a.value_head
            value_cache[to : to + a.head_dim] = values[start : start + a.head_dim]


@kernel(Pages)
def decode_float32(arguments):
    decode(arguments, np.float32)


@kernel(Pages)
def decode_bfloat16(arguments):
    decode(arguments, np.uint16)


@kernel(Pages)
def merge_float32(arguments):
    merge(arguments, np.float32)


@kernel(Pages)
def merge_bfloat16(arguments):
    merge(arguments, np.uint16)


@kernel(Pages)
def prefill_float32(arguments):
    prefill(arguments, np.float32)


@kernel(Pages)
def prefill_bfloat16(arguments):
    prefill(arguments, np.uint16)


@kernel(Writing)
def write_float32(arguments):
    write_tokens(arguments, np.float32)


@kernel(Writing)
def write_bfloat16(arguments):
    write_tokens(arguments, np.uint16)


def readable(x, y) -> bool:
    """Whether these tensors are what the kernels read: on the CPU, a dtype they know, the last dimension dense."""
    return x.is_cpu and x.dtype in READABLE and y.dtype in READABLE and x.stride(-1) == y.stride(-1) == 1


def kv_write(keys, values, key_cache, value_cache, slot_mapping) -> None:
    if not (readable(keys, values) and readable(key_cache, value_cache)):
        return reference.kv_write(keys, values, key_cache, value_cache, slot_mapping)
    num_tokens, num_kv_heads, head_dim = keys.shape
    slots = slot_mapping.long().contiguous()
    key_token, key_head, _ = keys.stride()
    value_token, value_head, _ = values.stride()
    to_key_block, to_key_head, to_key_token, _ = key_cache.stride()
    to_value_block, to_value_head, to_value_token, _ = value_cache.stride()
    # fmt: off
    arguments = Writing(
        0, num_tokens, keys.data_ptr(), key_token, key_head, values.data_ptr(), value_token, value_head,
        slots.data_ptr(), num_kv_heads, head_dim, key_cache.shape[2],
        key_cache.data_ptr(), to_key_block, to_key_head, to_key_token,
        value_cache.data_ptr(), to_value_block, to_value_head, to_value_token,
    )
    # fmt: on
    chosen = write_float32 if keys.dtype == torch.float32 else write_bfloat16
    chosen.run(arguments, torch.get_num_threads() if num_tokens >= 16 else 1)


def paged_decode(q, key_cache, value_cache, block_tables, seq_lens, scale):
    if not readable(key_cache, value_cache):
        return reference.paged_decode(q, key_cache, value_cache, block_tables, seq_lens, scale)
    num_seqs, num_heads, _ = q.shape
    pages, out, _used = _pages(q, key_cache, value_cache, block_tables, seq_lens, scale)
    longest = block_tables.shape[1] * pages.block_size
    if longest > PIECE_TOKENS:  # else there is one piece, and no need to look
        longest = int(seq_lens.max())
    pages.num_pieces = max(1, -(-longest // PIECE_TOKENS))
    pages.num_items = num_seqs * pages.num_kv_heads * pages.num_pieces
    if pages.num_pieces > 1:
        part_lse = torch.empty(num_seqs, num_heads, pages.num_pieces)
        parts = torch.empty(num_seqs, num_heads, pages.num_pieces, pages.head_dim)
        pages.part_lse, pages.parts = part_lse.data_ptr(), parts.data_ptr()
    plain = q.dtype == torch.float32
    (decode_float32 if plain else decode_bfloat16).run(pages, torch.get_num_threads())
    if pages.num_pieces > 1:
        pages.next_item, pages.num_items = 0, num_seqs * num_heads
        (merge_float32 if plain else merge_bfloat16).run(pages, 1)
    return out


def paged_prefill(q, key_cache, value_cache, block_tables, seq_lens, query_start_loc, scale):
    if not readable(key_cache, value_cache):
        return reference.paged_prefill(q, key_cache, value_cache, block_tables, seq_lens, query_start_loc, scale)
    pages, out, _used = _pages(q, key_cache, value_cache, block_tables, seq_lens, scale)
    starts, bounds = query_start_loc.long().contiguous(), query_start_loc.tolist()
    with_tiles, plain, threads = gemm.works(q.dtype), q.dtype == torch.float32, torch.get_num_threads()
    if with_tiles:
        share = q.shape[0] * pages.num_kv_heads // (threads * TILES_A_THREAD)
        most = max(1, cpu_tiles.MOST_QUERIES * pages.num_kv_heads // pages.num_heads)
        pages.tile_tokens = min(max(share, TILE_QUERIES), most)
        chosen = cpu_tiles.prefill_float32 if plain else cpu_tiles.prefill_bfloat16
    else:
        pages.tile_tokens, chosen = TILE_QUERIES, prefill_float32 if plain else prefill_bfloat16
    tiles = [
        (seq, token, length - end + token)
        for seq, (start, end, length) in enumerate(zip(bounds[:-1], bounds[1:], seq_lens.tolist(), strict=True))
        for token in range(start, end, pages.tile_tokens)
    ]
    tiles.sort(key=lambda tile: -tile[2])  # the latest positions first: they have the most to look at
    tiles = torch.tensor(tiles, dtype=torch.int64)
    pages.starts, pages.tiles, pages.num_items = starts.data_ptr(), tiles.data_ptr(), len(tiles) * pages.num_kv_heads
    chosen.run(pages, threads)
    return out


def _pages(q, key_cache, value_cache, block_tables, seq_lens, scale):
    """What decode and prefill have in common: the arguments, the result to fill, and what must stay alive meanwhile."""
    q = q if q.stride(-1) == 1 else q.contiguous()
    tables, lens = block_tables.long().contiguous(), seq_lens.long().contiguous()
    out = torch.empty(q.shape, dtype=q.dtype)
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    key_block, key_head, key_token, _ = key_cache.stride()
    value_block, value_head, value_token, _ = value_cache.stride()
    q_token, q_head, _ = q.stride()
    # fmt: off
    pages = Pages(
        0, 0, key_cache.data_ptr(), key_block, key_head, key_token,
        value_cache.data_ptr(), value_block, value_head, value_token,
        block_size, head_dim, num_kv_heads, tables.data_ptr(), tables.shape[1], lens.data_ptr(),
        q.data_ptr(), q_token, q_head, out.data_ptr(), q.shape[1],
    )
    # fmt: on
    pages.scale = scale
    return pages, out, (q, tables, lens)


def try_out() -> None:
    """Compile and run next to nothing. Raises whatever stands in the way."""
    items = Nothing(num_items=3)
    take_them_all.run(items, torch.get_num_threads())
    assert items.next_item > items.num_items


Nothing = arguments_of("Nothing", "")


@kernel(Nothing)
def take_them_all(arguments):
    while take(arguments) < carray(arguments, 1)[0].num_items:
        pass
