"""The inner loops of attention, each over rows of float32 that lie close together.

They are short and without conditions, so that the compiler can do 8 or 16 numbers at a time. Where a loop takes four
rows at once, that is to read or write its result once instead of four times; the caller fills up to a multiple of 4
with zeros.
"""

import numpy as np
from numba import njit

from pagedlab.kernels.cpu_numbers import compiled, compiled_sum, exp, prefetch, read


@compiled_sum
def read_rows(source, start, stride, count, rows):
    """rows[t] = the numbers at source[start + t * stride], for t < count. Behind them zeros, up to a multiple of 4."""
    for t in range(count):
        row = rows[t]
        stored = source[start + t * stride : start + t * stride + len(row)]
        for d in range(len(row)):
            row[d] = read(stored[d])
    for t in range(count, round_up(count)):
        rows[t, :] = 0


@compiled
def fetch_rows(source, start, stride, count, length):
    """Ask for the same rows to be brought from memory, and don't wait for them."""
    line = 64 // source.itemsize
    for t in range(count):
        for d in range(0, length, line):
            prefetch(source, start + t * stride + d)


@compiled
def round_up(count):
    return (count + 3) // 4 * 4


@compiled_sum
def score_by_rows(query, keys, count, scale, scores):
    """scores[t] = scale * (query . keys[t]). Best for one query: keys are used as they come."""
    for t in range(0, count, 4):
        k0, k1, k2, k3 = keys[t], keys[t + 1], keys[t + 2], keys[t + 3]
        s0 = s1 = s2 = s3 = np.float32(0)
        for d in range(len(query)):
            s0 += query[d] * k0[d]
            s1 += query[d] * k1[d]
            s2 += query[d] * k2[d]
            s3 += query[d] * k3[d]
        scores[t], scores[t + 1], scores[t + 2], scores[t + 3] = s0 * scale, s1 * scale, s2 * scale, s3 * scale


@compiled_sum
def score_by_columns(query, columns, scale, scores):
    """The same with keys transposed, columns[d, t]: for many queries, worth the transposing."""
    scores[:] = 0
    for d in range(0, len(query), 4):
        k0, k1, k2, k3 = columns[d], columns[d + 1], columns[d + 2], columns[d + 3]
        q0, q1, q2, q3 = query[d] * scale, query[d + 1] * scale, query[d + 2] * scale, query[d + 3] * scale
        for t in range(len(scores)):
            scores[t] += (q0 * k0[t] + q1 * k1[t]) + (q2 * k2[t] + q3 * k3[t])


@njit(error_model="numpy", fastmath={"contract", "reassoc", "nsz", "nnan"})
def largest(numbers):
    found = numbers[0]
    for number in numbers:
        found = max(found, number)
    return found


@compiled_sum
def to_weights(scores, maximum):
    """Scores become e ** (score - maximum). Returns their sum."""
    total = np.float32(0)
    for t in range(len(scores)):
        scores[t] = exp(scores[t] - maximum)
        total += scores[t]
    return total


@compiled_sum
def add_values(weights, values, count, total):
    """total += the sum of weights[t] * values[t]."""
    for t in range(0, count, 4):
        v0, v1, v2, v3 = values[t], values[t + 1], values[t + 2], values[t + 3]
        w0, w1, w2, w3 = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
        for d in range(len(total)):
            total[d] += (w0 * v0[d] + w1 * v1[d]) + (w2 * v2[d] + w3 * v3[d])
