"""The inner loops of attention, over tiles of float32 that lie close together.

A tile holds `TILE_TOKENS` rows, one after the other in a one-dimensional array, each padded with zeros to `width`
numbers (`padded`). Rows behind the last token are zeros too, and their scores -inf: so no loop has to stop early, and
what lies in unwritten slots is never touched.

Each loop keeps four or eight sums at once: a processor can begin the next addition before the last one is finished,
unless it needs its result.
"""

import numpy as np

from pagedlab.kernels.cpu_lanes import LANES, add, load, multiply_add, splat, store, sum_of
from pagedlab.kernels.cpu_numbers import compiled, compiled_max, compiled_sum, exp, prefetch, read

TILE_TOKENS = 64


@compiled
def padded(head_dim):
    """The width of a row: whole steps of the loops below."""
    return (head_dim + 2 * LANES - 1) // (2 * LANES) * (2 * LANES)


@compiled
def read_rows(source, start, stride, count, head_dim, rows, first, width):
    """Rows `first` and on = `count` rows of `head_dim` numbers, from source[start] on, `stride` numbers apart."""
    whole = head_dim // LANES * LANES
    for t in range(count):
        at, to = start + t * stride, (first + t) * width
        for d in range(0, whole, LANES):
            store(rows, to + d, load(source, at + d))
        for d in range(whole, head_dim):
            rows[to + d] = read(source[at + d])


@compiled
def fetch_rows(source, start, stride, count, head_dim):
    """Ask for rows to be brought from memory, and don't wait for them."""
    for t in range(count):
        for d in range(0, head_dim, 64 // source.itemsize):
            prefetch(source, start + t * stride + d)


@compiled
def transpose(rows, width, head_dim, columns):
    """columns[d * TILE_TOKENS + t] = rows[t * width + d]"""
    for d in range(head_dim):
        column = columns[d * TILE_TOKENS : (d + 1) * TILE_TOKENS]
        for t in range(TILE_TOKENS):
            column[t] = rows[t * width + d]


@compiled
def score_by_rows(queries, query, keys, count, width, scores):
    """scores[t] = the query's row . row t of the keys. For one query: keys are used as they come."""
    for t in range(0, count, 4):
        k0, k1, k2, k3 = t * width, (t + 1) * width, (t + 2) * width, (t + 3) * width
        s0 = s1 = s2 = s3 = splat(np.float32(0))
        for d in range(0, width, LANES):
            q = load(queries, query + d)
            s0 = multiply_add(q, load(keys, k0 + d), s0)
            s1 = multiply_add(q, load(keys, k1 + d), s1)
            s2 = multiply_add(q, load(keys, k2 + d), s2)
            s3 = multiply_add(q, load(keys, k3 + d), s3)
        scores[t], scores[t + 1], scores[t + 2], scores[t + 3] = sum_of(s0), sum_of(s1), sum_of(s2), sum_of(s3)


@compiled
def score_by_columns(queries, query, columns, width, scores):
    """The same for all tokens of a tile at once, with keys transposed: worth the transposing for many queries."""
    s0 = s1 = s2 = s3 = r0 = r1 = r2 = r3 = splat(np.float32(0))
    for d in range(0, width, 2):
        q, column = splat(queries[query + d]), d * TILE_TOKENS
        s0 = multiply_add(q, load(columns, column), s0)
        s1 = multiply_add(q, load(columns, column + LANES), s1)
        s2 = multiply_add(q, load(columns, column + 2 * LANES), s2)
        s3 = multiply_add(q, load(columns, column + 3 * LANES), s3)
        q, column = splat(queries[query + d + 1]), (d + 1) * TILE_TOKENS
        r0 = multiply_add(q, load(columns, column), r0)
        r1 = multiply_add(q, load(columns, column + LANES), r1)
        r2 = multiply_add(q, load(columns, column + 2 * LANES), r2)
        r3 = multiply_add(q, load(columns, column + 3 * LANES), r3)
    store(scores, 0, add(s0, r0))
    store(scores, LANES, add(s1, r1))
    store(scores, 2 * LANES, add(s2, r2))
    store(scores, 3 * LANES, add(s3, r3))


@compiled_max
def largest(scores):
    found = scores[0]
    for t in range(TILE_TOKENS):
        found = max(found, scores[t])
    return found


@compiled_sum
def to_weights(scores, maximum):
    """Scores become e ** (score - maximum). Returns their sum."""
    total = np.float32(0)
    for t in range(TILE_TOKENS):
        scores[t] = exp(scores[t] - maximum)
        total += scores[t]
    return total


@compiled
def add_values(weights, values, count, width, sums, row, shrink):
    """One row of sums = itself * shrink + the sum of weights[t] * row t of the values."""
    zero, shrink = splat(np.float32(0)), splat(shrink)
    for d in range(0, width, 2 * LANES):
        s0 = multiply_add(load(sums, row + d), shrink, zero)
        s1 = multiply_add(load(sums, row + d + LANES), shrink, zero)
        r0 = r1 = zero
        for t in range(0, count, 2):
            weight, v = splat(weights[t]), t * width + d
            s0 = multiply_add(weight, load(values, v), s0)
            s1 = multiply_add(weight, load(values, v + LANES), s1)
            weight, v = splat(weights[t + 1]), (t + 1) * width + d
            r0 = multiply_add(weight, load(values, v), r0)
            r1 = multiply_add(weight, load(values, v + LANES), r1)
        store(sums, row + d, add(s0, r0))
        store(sums, row + d + LANES, add(s1, r1))
