"""The model's small operations as compiled loops, each one pass over its rows where torch makes three to eight.

In a decode step the matrices are small enough for these to count: at 32 rows of the course's model they took a third of
the time. Results are rounded to the tensors' type wherever the plain torch form in `pagedlab.model.pointwise` rounds.

All tensors: float32 or bfloat16, one type a call, contiguous unless a stride is asked for. Items are rows.
"""

import numpy as np
import torch
from numba import carray

from pagedlab.kernels.cpu_numbers import (
    READABLE,
    bits_to_float,
    compiled,
    compiled_sum,
    float_to_bits,
    read,
    write,
)
from pagedlab.kernels.cpu_pages import ANY
from pagedlab.kernels.cpu_threads import arguments_of, kernel, pointer, take

__all__ = ["READABLE", "add_norm", "largest", "rotate_"]

ALONE = 1 << 15
"""So many numbers one thread does before another has even woken up."""

AddNorm = arguments_of("AddNorm", "hidden update weight normed width", "eps")
Rotation = arguments_of("Rotation", "heads token_stride num_heads head_dim cos sin")
Rows = arguments_of("Rows", "rows stride width chosen")

SEARCHED = 512
"""So many numbers of a row are looked through at once: their largest first, and only in the best ones where it is."""


@compiled
def add(row, other):
    for i in range(len(row)):
        write(row, i, read(row[i]) + read(other[i]))


@compiled_sum
def sum_of_squares(row):
    total = np.float32(0)
    for i in range(len(row)):
        number = read(row[i])
        total += number * number
    return total


@compiled
def scale_row(row, factor, weight, out):
    for i in range(len(row)):
        write(out, i, read(row[i]) * factor)
        write(out, i, read(out[i]) * read(weight[i]))


@compiled
def add_norm_rows(arguments, dtype):
    a = carray(arguments, 1)[0]
    hidden, update = carray(pointer(a.hidden, dtype), (ANY,)), carray(pointer(a.update, dtype), (ANY,))
    normed, weight = carray(pointer(a.normed, dtype), (ANY,)), carray(pointer(a.weight, dtype), (a.width,))
    while True:
        item = take(arguments)
        if item >= a.num_items:
            break
        start, end = item * a.width, (item + 1) * a.width
        row = hidden[start:end]
        if a.update:
            add(row, update[start:end])
        mean_square = sum_of_squares(row) / np.float32(a.width)
        factor = np.float32(1) / np.sqrt(mean_square + np.float32(a.eps))
        scale_row(row, factor, weight, normed[start:end])


@compiled
def rotate_head(head, cos, sin):
    half = len(cos)
    first, second = head[:half], head[half:]
    for i in range(half):
        x, y = read(first[i]), read(second[i])
        write(first, i, x * cos[i] - y * sin[i])
        write(second, i, y * cos[i] + x * sin[i])


@compiled
def rotate_rows(arguments, dtype):
    a = carray(arguments, 1)[0]
    heads, half = carray(pointer(a.heads, dtype), (ANY,)), a.head_dim // 2
    cos, sin = carray(pointer(a.cos, np.float32), (ANY,)), carray(pointer(a.sin, np.float32), (ANY,))
    while True:
        item = take(arguments)
        if item >= a.num_items:
            break
        token_cos, token_sin = cos[item * half : (item + 1) * half], sin[item * half : (item + 1) * half]
        for head in range(a.num_heads):
            start = item * a.token_stride + head * a.head_dim
            rotate_head(heads[start : start + a.head_dim], token_cos, token_sin)


@compiled
def ordered_bits(number):
    """A float32's bits as an integer that is larger for a larger number: integers are compared without exceptions.

    NaN comes out above infinity or below minus infinity.
    """
    return flip(float_to_bits(number))


@compiled
def flip(bits):
    """All bits but the sign, if the sign is negative: it was written as size and sign. Twice is as it was."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@compiled
def first_largest(row):
    """The index of the largest number of a row, the first of equal ones. -1: there is a NaN."""
    best, best_start, lowest, highest = np.float32(-np.inf), 0, np.int32(0), np.int32(0)
    for start in range(0, len(row), SEARCHED):
        part = row[start : start + SEARCHED]
        low = high = ordered_bits(read(part[0]))
        for i in range(len(part)):
            bits = ordered_bits(read(part[i]))
            low, high = min(low, bits), max(high, bits)
        lowest, highest = min(lowest, low), max(highest, high)
        if bits_to_float(flip(high)) > best:
            best, best_start = bits_to_float(flip(high)), start
    if lowest < ordered_bits(np.float32(-np.inf)) or highest > ordered_bits(np.float32(np.inf)):
        return -1
    for i in range(best_start, len(row)):
        if read(row[i]) == best:
            return i
    return 0  # not reached


@compiled
def choose_rows(arguments, dtype):
    a = carray(arguments, 1)[0]
    rows, chosen = carray(pointer(a.rows, dtype), (ANY,)), carray(pointer(a.chosen, np.int64), (ANY,))
    while True:
        item = take(arguments)
        if item >= a.num_items:
            break
        chosen[item] = first_largest(rows[item * a.stride : item * a.stride + a.width])


def add_norm(hidden, update, weight, eps):
    """hidden += update, in place, unless update is None; returns hidden's RMSNorm. All `[num_tokens, width]`."""
    normed = torch.empty_like(hidden)
    address = 0 if update is None else update.data_ptr()
    arguments = AddNorm(
        0, hidden.shape[0], hidden.data_ptr(), address, weight.data_ptr(), normed.data_ptr(), hidden.shape[1], eps
    )
    (add_norm_float32 if hidden.dtype == torch.float32 else add_norm_bfloat16).run(arguments, _threads(hidden))
    return normed


def rotate_(heads, cos, sin):
    """Rotate `heads`, `[num_tokens, num_heads, head_dim]`, in place; the first stride is free. Returns them."""
    num_tokens, num_heads, head_dim = heads.shape
    arguments = Rotation(
        0, num_tokens, heads.data_ptr(), heads.stride(0), num_heads, head_dim, cos.data_ptr(), sin.data_ptr()
    )
    (rotate_float32 if heads.dtype == torch.float32 else rotate_bfloat16).run(arguments, _threads(heads))
    return heads


def largest(rows):
    """The index of each row's largest number, the first of equal ones; -1 for a row with NaN. `[num_rows, width]`."""
    chosen = torch.empty(rows.shape[0], dtype=torch.int64)
    arguments = Rows(0, rows.shape[0], rows.data_ptr(), rows.stride(0), rows.shape[1], chosen.data_ptr())
    (choose_float32 if rows.dtype == torch.float32 else choose_bfloat16).run(arguments, _threads(rows))
    return chosen


def _threads(tensor) -> int:
    return torch.get_num_threads() if tensor.numel() > ALONE else 1


@kernel(AddNorm)
def add_norm_float32(arguments):
    add_norm_rows(arguments, np.float32)


@kernel(AddNorm)
def add_norm_bfloat16(arguments):
    add_norm_rows(arguments, np.uint16)


@kernel(Rotation)
def rotate_float32(arguments):
    rotate_rows(arguments, np.float32)


@kernel(Rotation)
def rotate_bfloat16(arguments):
    rotate_rows(arguments, np.uint16)


@kernel(Rows)
def choose_float32(arguments):
    choose_rows(arguments, np.float32)


@kernel(Rows)
def choose_bfloat16(arguments):
    choose_rows(arguments, np.uint16)
