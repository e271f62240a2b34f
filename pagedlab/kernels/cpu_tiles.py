"""Attention of a chunk of queries as two matrix products: `scores = q @ keys.T`, and `out = weights @ values`.

An item of work is up to `MOST_QUERIES` rows, neighbouring tokens of one sequence with all query heads of one KV head.
For each `KEYS` tokens of the context, keys and values are gathered from their blocks and packed once for all the rows,
in the form that `gemm_tile` reads. Then 12 rows at a time go through both products, with the softmax in between; sums
are scaled when a larger score is found, as in `cpu.py`. Keys that none of the 12 may see are left out.

Products of bfloat16 have float32 sums, and weights are rounded to bfloat16 for the second, as in FlashAttention. What a
row may not see has weight 0, and adding 0 changes nothing: a row's result is the same to the last bit whatever rows
come with it. Only for processors that have the tile (`gemm.works`).

Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning" (2023), section 3.
"""

import numpy as np
from numba import carray

from pagedlab.kernels.cpu_lanes import (
    LANES,
    add,
    address_of,
    copy,
    exp_of,
    keep,
    larger,
    largest_of,
    load,
    multiply_add,
    pair_up,
    splat,
    store,
    sum_of,
    transpose_words,
)
from pagedlab.kernels.cpu_numbers import compiled, exp
from pagedlab.kernels.cpu_pages import ANY, Pages, write_row
from pagedlab.kernels.cpu_threads import kernel, pointer, take
from pagedlab.kernels.gemm_tile import COLUMNS, MOST_ROWS, STEP_BYTES, bfloat16_sums_tile, float32_tile

KEYS = 128
MOST_QUERIES = 16 * MOST_ROWS
WORD = 4  # bytes: one float32 or a pair of bfloat16, what a step of the tile takes from a row


@compiled
def multiply(tile, rows, x, x_stride, weight, steps, panel_steps, panels, out, out_stride):
    """float32 `out[:rows] = x[:rows] @ weight`, of which the first `steps` are used. Addresses; strides in bytes."""
    for panel in range(panels):
        here, next_panel = weight + panel * panel_steps * STEP_BYTES, weight + (panel + 1) * panel_steps * STEP_BYTES
        to = out + panel * COLUMNS * WORD
        tile(rows, x, x_stride, here, steps, to, out_stride, COLUMNS, next_panel, STEP_BYTES)


@compiled
def copy_rows(source, start, stride, count, head_dim, rows, first, width):
    """Rows `first` and on = `count` rows of `head_dim` numbers, from source[start] on, `stride` numbers apart."""
    if stride == head_dim and head_dim == width:
        count, head_dim = 1, count * head_dim
    for t in range(count):
        copy(source, start + t * stride, head_dim, rows, (first + t) * width)


@compiled
def gather(cache, to_block, to_head, to_token, pages, table, first, count, rows, width):
    """Tokens `first` and on of a sequence, from wherever its blocks lie, as rows; zeros behind the last."""
    done = 0
    while done < count:
        entry, offset = divmod(first + done, pages.block_size)
        here = min(pages.block_size - offset, count - done)
        start = table[entry] * to_block + to_head + offset * to_token
        copy_rows(cache, start, to_token, here, pages.head_dim, rows, done, width)
        done += here
    rows[count * width :] = 0


@compiled
def pack_keys(rows, count, width, packed):
    """A panel is 32 keys; a step is one word of each. Both arrays are seen as float32, whatever the words mean."""
    steps = width * rows.itemsize // WORD
    words, packed = rows.view(np.float32), packed.view(np.float32)
    for first in range(0, count, LANES):
        panel, column = divmod(first, COLUMNS)
        for step in range(0, steps, LANES):
            to = (panel * steps + step) * COLUMNS + column
            transpose_words(words, first * steps + step, steps, packed, to, COLUMNS)


@compiled
def pack_values(rows, count, width, packed):
    """A panel is 32 numbers of each value; a step is that of one token, or of two as pairs."""
    tokens = WORD // rows.itemsize
    for panel in range(width // COLUMNS):
        for first in range(0, count, tokens):
            at, to = first * width + panel * COLUMNS, (panel * KEYS + first) * COLUMNS
            if tokens == 2:
                pair_up(rows, at, width, packed, to)
            else:
                store(packed, to, load(rows, at))
                store(packed, to + LANES, load(rows, at + LANES))


@compiled
def weigh(scores, row, visible, columns, scale, maximum, weights):
    """A row's scores become weights e ** (score * scale - the largest so far). Returns that, and the weights' sum."""
    nothing, zero, scale = splat(np.float32(-np.inf)), splat(np.float32(0)), splat(scale)
    highest, total = splat(maximum), splat(np.float32(0))
    start = row * KEYS
    for t in range(0, columns, LANES):
        score = keep(multiply_add(load(scores, start + t), scale, zero), visible - t, nothing)
        store(scores, start + t, score)
        highest = larger(highest, score)
    maximum = largest_of(highest)
    shift = splat(-maximum)
    for t in range(0, columns, LANES):
        weight = exp_of(add(load(scores, start + t), shift))
        store(weights, start + t, weight)
        total = add(total, weight)
    return maximum, sum_of(total)


@compiled
def prefill(arguments, dtype, tile):
    pages = carray(arguments, 1)[0]
    q, out = carray(pointer(pages.q, dtype), (ANY,)), carray(pointer(pages.out, dtype), (ANY,))
    key_cache, value_cache = carray(pointer(pages.keys, dtype), (ANY,)), carray(pointer(pages.values, dtype), (ANY,))
    starts, tiles = carray(pointer(pages.starts, np.int64), (ANY,)), carray(pointer(pages.tiles, np.int64), (ANY,))
    tables = carray(pointer(pages.tables, np.int64), (ANY,))
    group_size, head_dim, scale = pages.num_heads // pages.num_kv_heads, pages.head_dim, np.float32(pages.scale)
    width = (head_dim + COLUMNS - 1) // COLUMNS * COLUMNS  # of rows, padded with zeros
    most_rows = pages.tile_tokens * group_size
    queries, rows = np.zeros(most_rows * width, dtype), np.zeros(KEYS * width, dtype)
    keys, values = np.empty(KEYS * width, dtype), np.empty(KEYS * width, dtype)
    scores, weights = np.empty(MOST_ROWS * KEYS, np.float32), np.empty(MOST_ROWS * KEYS, dtype)
    value_sums, new_sums = np.empty(most_rows * width, np.float32), np.empty(MOST_ROWS * width, np.float32)
    maxima, weight_sums = np.empty(most_rows, np.float32), np.empty(most_rows, np.float32)
    shrinks = np.empty(MOST_ROWS, np.float32)
    row_bytes, weight_bytes = width * q.itemsize, KEYS * q.itemsize
    steps, panels = row_bytes // WORD, width // COLUMNS  # of a product with the keys; with the values
    at_queries, at_keys, at_values = address_of(queries), address_of(keys), address_of(values)
    at_scores, at_weights, at_new = address_of(scores), address_of(weights), address_of(new_sums)

    while True:
        item = take(arguments)
        if item >= pages.num_items:
            break
        item, kv_head = divmod(item, pages.num_kv_heads)
        seq, token, position = tiles[3 * item], tiles[3 * item + 1], tiles[3 * item + 2]  # those of its first query
        num_tokens = min(pages.tile_tokens, starts[seq + 1] - token)
        num_rows, head = num_tokens * group_size, kv_head * group_size
        table = tables[seq * pages.table_row : (seq + 1) * pages.table_row]
        for i in range(num_tokens):
            start = (token + i) * pages.q_token + head * pages.q_head
            copy_rows(q, start, pages.q_head, group_size, head_dim, queries, i * group_size, width)
        value_sums[:], weight_sums[:], maxima[:] = 0, 0, -np.inf
        for first in range(0, position + num_tokens, KEYS):
            count = min(KEYS, position + num_tokens - first)
            to_head = kv_head * pages.key_head
            gather(key_cache, pages.key_block, to_head, pages.key_token, pages, table, first, count, rows, width)
            pack_keys(rows, count, width, keys)
            to_head = kv_head * pages.value_head
            gather(value_cache, pages.value_block, to_head, pages.value_token, pages, table, first, count, rows, width)
            pack_values(rows, KEYS, width, values)
            for row in range(0, num_rows, MOST_ROWS):
                together = min(MOST_ROWS, num_rows - row)
                last = position + (row + together - 1) // group_size  # its position: the others see less
                panels_seen = (min(count, last + 1 - first) + COLUMNS - 1) // COLUMNS
                if panels_seen <= 0:
                    continue
                columns = panels_seen * COLUMNS
                x = at_queries + row * row_bytes
                multiply(tile, together, x, row_bytes, at_keys, steps, steps, panels_seen, at_scores, KEYS * WORD)
                for i in range(together):
                    visible = min(count, position + (row + i) // group_size + 1 - first)
                    old = maxima[row + i]
                    maxima[row + i], weight_sum = weigh(scores, i, visible, columns, scale, old, weights)
                    shrinks[i] = exp(old - maxima[row + i])
                    weight_sums[row + i] = weight_sums[row + i] * shrinks[i] + weight_sum
                used, all_steps = columns * q.itemsize // WORD, KEYS * q.itemsize // WORD
                multiply(
                    tile, together, at_weights, weight_bytes, at_values, used, all_steps, panels, at_new, width * WORD
                )
                for i in range(together):
                    shrink = splat(shrinks[i])
                    for d in range(0, width, LANES):
                        to = (row + i) * width + d
                        store(value_sums, to, multiply_add(load(value_sums, to), shrink, load(new_sums, i * width + d)))
        for i in range(num_tokens):
            for g in range(group_size):
                to, row = (token + i) * pages.num_heads + head + g, i * group_size + g
                write_row(out, to * head_dim, head_dim, value_sums, row * width, weight_sums[row])


@kernel(Pages)
def prefill_float32(arguments):
    prefill(arguments, np.float32, float32_tile)


@kernel(Pages)
def prefill_bfloat16(arguments):
    prefill(arguments, np.uint16, bfloat16_sums_tile)
