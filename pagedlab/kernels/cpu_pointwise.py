"""The model's small operations as compiled loops, each one pass over its rows where torch makes three to eight.

In a decode step the matrices are small enough for these to count: at 32 rows of the course's model they took a third of
the time. Results are rounded to the tensors' type wherever the plain torch form in `pagedlab.model.pointwise` rounds.

All tensors: float32 or bfloat16, one type a call, contiguous unless a stride is asked for. Items are rows.
"""

import numpy as np
import torch
from numba import carray

from pagedlab.kernels.cpu_numbers import READABLE, compiled, compiled_sum, exp, read, write
from pagedlab.kernels.cpu_threads import arguments_of, kernel, pointer, take

__all__ = ["READABLE", "add_norm", "rotate_", "silu_mul"]

ANY = 1 << 60
ALONE = 1 << 15
"""So many numbers one thread does before another has even woken up."""

AddNorm = arguments_of("AddNorm", "hidden update weight normed width", "eps")
Rotation = arguments_of("Rotation", "heads token_stride num_heads head_dim cos sin")
Gating = arguments_of("Gating", "gate_up out width")
Rows = arguments_of("Rows", "rows width chosen")


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
def gate_row(gate, up, out):
    for i in range(len(out)):
        x = read(gate[i])
        write(out, i, x / (np.float32(1) + exp(min(-x, np.float32(88)))))
        write(out, i, read(out[i]) * read(up[i]))


@compiled
def gate_rows(arguments, dtype):
    a = carray(arguments, 1)[0]
    gate_up, out = carray(pointer(a.gate_up, dtype), (ANY,)), carray(pointer(a.out, dtype), (ANY,))
    while True:
        item = take(arguments)
        if item >= a.num_items:
            break
        start, width = 2 * item * a.width, a.width
        gate, up = gate_up[start : start + width], gate_up[start + width : start + 2 * width]
        gate_row(gate, up, out[item * width : (item + 1) * width])


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


def silu_mul(gate_up):
    """silu(gate) * up, for gate and up side by side: `[num_tokens, 2 * width]` to `[num_tokens, width]`."""
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(num_tokens, width)
    arguments = Gating(0, num_tokens, gate_up.data_ptr(), out.data_ptr(), width)
    (gate_float32 if gate_up.dtype == torch.float32 else gate_bfloat16).run(arguments, _threads(gate_up))
    return out


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


@kernel(Gating)
def gate_float32(arguments):
    gate_rows(arguments, np.float32)


@kernel(Gating)
def gate_bfloat16(arguments):
    gate_rows(arguments, np.uint16)
