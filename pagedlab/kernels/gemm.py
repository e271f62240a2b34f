"""`x @ weight.T` on the CPU, for weights that are used again and again: packed once, read from memory at full speed.

A packed weight is cut into panels of 32 rows (columns of the result), and a panel is laid out as `gemm_tile` reads it:
for each step along the inner dimension the 32 numbers it needs, next to each other. Threads take panels.

    float32   [panels, in_features, 32]
    bfloat16  [panels, in_features / 2, 32, 2]      a step is a pair of neighbours

One packed form serves every number of rows, from a decode step's one to a prompt's hundreds. Sums are float32.
"""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F

ITEMS_A_THREAD = 2  # so that a thread that is held up leaves a part of its share to others
PANELS_AN_ITEM = 16  # at most. Many, as neighbours are read faster: while one panel is used, the next is on its way
ALONE = 1 << 16  # a weight of so many numbers is done before a second thread has started


@dataclass(frozen=True)
class Packed:
    """A weight in panels. `gated`: of two weights, half of each panel's columns from either (see `pack_gated`)."""

    panels: torch.Tensor
    in_features: int
    out_features: int
    gated: bool


@functools.cache
def works(dtype: torch.dtype) -> bool:
    """Whether this processor has the instructions, and torch's threads can be used, for this dtype."""
    needed = {torch.float32: {"avx512f"}, torch.bfloat16: {"avx512f", "avx512bw", "avx512vl", "avx512bf16"}}.get(dtype)
    if needed is None:
        return False
    try:
        from llvmlite.binding import get_host_cpu_features
    except ImportError:
        return False
    features = get_host_cpu_features()  # of the processor, and what the system lets programs use of it
    return all(features.get(feature) for feature in needed) and _agrees(dtype)


def packable(weight: torch.Tensor) -> bool:
    """Whether `pack` takes this weight. bfloat16 is multiplied in pairs, so its inner dimension has to be even."""
    return weight.is_cpu and works(weight.dtype) and (weight.dtype == torch.float32 or weight.shape[1] % 2 == 0)


def pack(weight: torch.Tensor) -> Packed:
    """weight: `[out_features, in_features]`, float32 or bfloat16; left as it is."""
    out_features, in_features = weight.shape
    return Packed(_panels(weight, _code().COLUMNS), in_features, out_features, gated=False)


def pack_gated(gate: torch.Tensor, up: torch.Tensor) -> Packed:
    """Two weights of one shape `[out_features, in_features]`, for `silu(x @ gate.T) * (x @ up.T)` in one product."""
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(f"gate is {tuple(gate.shape)} {gate.dtype}, up is {tuple(up.shape)} {up.dtype}: one of a kind")
    out_features, in_features = gate.shape
    panels = torch.cat([_panels(weight, _code().LANES) for weight in (gate, up)], dim=-1)
    return Packed(panels, in_features, out_features, gated=True)


def multiply(x: torch.Tensor, packed: Packed) -> torch.Tensor:
    """x: `[..., in_features]`, of the weight's dtype, any strides. Returns `[..., out_features]`. No gradients.

    A row's result is the same to the last bit whatever rows come with it, and for any number of threads.
    """
    panels = packed.panels
    if x.dtype != panels.dtype or not x.is_cpu or x.shape[-1] != packed.in_features:
        raise ValueError(
            f"x is {tuple(x.shape)} {x.dtype} on {x.device}; "
            f"this weight takes [..., {packed.in_features}] {panels.dtype} on the cpu"
        )
    if x.dim() != 2:
        return multiply(x.reshape(-1, packed.in_features), packed).view(*x.shape[:-1], packed.out_features)
    if x.stride(1) != 1:
        x = x.contiguous()
    out = x.new_empty(x.shape[0], packed.out_features)
    if out.numel():
        _fill(out, x, packed)
    return out


def rows(packed: Packed, indices: torch.Tensor) -> torch.Tensor:
    """Rows of a weight that is not gated, `[num_indices, in_features]`: its panels hold them all, only elsewhere."""
    num_panels, steps, _ = packed.panels.shape
    columns = _code().COLUMNS
    panels = packed.panels.view(num_panels, steps, columns, -1)
    return panels[indices // columns, :, indices % columns].reshape(len(indices), packed.in_features)


def _fill(out: torch.Tensor, x: torch.Tensor, packed: Packed) -> None:
    """Both `[rows, ...]`, each row's numbers side by side."""
    panels, rows, size = packed.panels, x.shape[0], x.element_size()
    num_panels, steps, _ = panels.shape
    threads = torch.get_num_threads() if panels.numel() > ALONE else 1
    tiles = -(-rows // _code().MOST_ROWS)  # rows are spread evenly: 13 are 7 and 6
    arguments = _code().Product(
        next_item=0,
        num_items=max(min(threads * ITEMS_A_THREAD, num_panels), num_panels // PANELS_AN_ITEM),
        panels=num_panels,
        tiles=tiles,
        short_rows=rows // tiles,
        long_tiles=rows % tiles,
        x=x.data_ptr(),
        x_stride=x.stride(0) * size,
        weight=panels.data_ptr(),
        steps=steps,
        out=out.data_ptr(),
        out_stride=out.stride(0) * size,
        out_columns=packed.out_features,
    )
    _product(x.dtype, packed.gated).run(arguments, threads)


def _panels(weight: torch.Tensor, width: int) -> torch.Tensor:
    """`[out_features, in_features]` to `[panels, steps, width x numbers a step]`; what the last panel lacks is zero."""
    weight = F.pad(weight, (0, 0, 0, -len(weight) % width)).contiguous()
    if weight.storage_offset() * weight.element_size() % 4:
        weight = weight.clone()
    steps = weight.view(torch.float32)  # whatever its bits mean: 4 bytes that stay together
    return steps.view(len(weight) // width, width, -1).transpose(1, 2).contiguous().view(weight.dtype)


@functools.cache
def _code():
    from pagedlab.kernels import gemm_tile  # needs numba

    return gemm_tile


@functools.cache
def _product(dtype: torch.dtype, gated: bool):
    kinds = {torch.float32: ("float32_product", "gated_float32_product")}
    kinds[torch.bfloat16] = ("bfloat16_product", "gated_bfloat16_product")
    return getattr(_code(), kinds[dtype][gated])


def _agrees(dtype: torch.dtype) -> bool:
    """One small product, compared with torch's. Compiling it, or finding it on disk, is what takes the time."""
    weight = torch.linspace(-1, 1, 48 * 32).view(48, 32).to(dtype)
    x = torch.linspace(-1, 1, 3 * 32).view(3, 32).to(dtype)
    try:
        from pagedlab.kernels.cpu_threads import openmp

        if openmp() is None:  # one thread against all of oneDNN's
            return False
        result = multiply(x, pack(weight))
    except Exception:  # numba is missing, broken, or of a kind that cannot compile this: the plain path does the work
        return False
    return torch.allclose(result.float(), F.linear(x, weight).float(), rtol=0.02, atol=0.02)
