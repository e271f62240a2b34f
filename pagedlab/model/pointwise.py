"""The small operations between the matrix products: norm, rotation, gate, choice.

Each is written here in plain torch, to be read, and this form runs for any dtype and device. For float32 and bfloat16
on the CPU the same is done by a compiled loop (`pagedlab.kernels.cpu_pointwise`) where numba works: one pass over the
numbers instead of three to eight. Both forms round at the same places.
"""

import functools

import torch
import torch.nn.functional as F

from pagedlab.kernels import ops


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale every row of `x` to a mean square of 1, then by `weight`. Computed in float32. `[num_tokens, width]`."""
    if compiled := _compiled(x, weight):
        return compiled.add_norm(x, None, weight, eps)
    x32 = x.float()
    x32 = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return weight * x32.to(x.dtype)


def add_and_norm(hidden: torch.Tensor, update: torch.Tensor | None, weight: torch.Tensor, eps: float):
    """`hidden + update`, and the RMSNorm of that. `hidden` may be overwritten: use what is returned in its place."""
    if update is None:
        return hidden, rms_norm(hidden, weight, eps)
    if compiled := _compiled(hidden, update, weight):
        return hidden, compiled.add_norm(hidden, update, weight, eps)
    hidden = hidden + update
    return hidden, rms_norm(hidden, weight, eps)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn pair i of every head, dimensions i and i + head_dim / 2, by its token's angle i. Computed in float32.

    heads: `[num_tokens, num_heads, head_dim]`, may be overwritten: use what is returned in its place.
    cos, sin: `[num_tokens, head_dim / 2]`, float32.
    """
    side_by_side = heads.stride()[1:] == (heads.shape[2], 1)
    if side_by_side and (compiled := _compiled(cos, sin)) and heads.dtype in compiled.READABLE:
        return compiled.rotate_(heads, cos, sin)
    cos, sin = cos[:, None], sin[:, None]  # the same for all heads
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(heads.dtype)


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` for both side by side: `[num_tokens, 2 * width]` to `[num_tokens, width]`. Always in torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def largest(rows: torch.Tensor) -> torch.Tensor:
    """The index of each row's largest number, the first of equal ones; -1 for a row with NaN. `[num_rows, width]`."""
    if rows.numel() and (compiled := _compiled(rows)):
        return compiled.largest(rows)
    numbers, indices = rows.max(dim=-1)
    return indices.where(~numbers.isnan(), -1)


def _compiled(x: torch.Tensor, *others: torch.Tensor):
    """The module of compiled forms if they can read all of these, which are of one dtype on one device; else None."""
    loops = _loops(ops.AUTO)
    if not loops or not x.is_cpu or x.dtype not in loops.READABLE or not x.is_contiguous() or x.requires_grad:
        return None
    for other in others:
        if other.dtype != x.dtype or not other.is_contiguous():
            return None
    return loops


@functools.cache
def _loops(auto: str | None):
    if ops.resolve(auto or "auto").__name__ != ops.BACKENDS["cpu"]:
        return None
    from pagedlab.kernels import cpu_pointwise

    return cpu_pointwise
