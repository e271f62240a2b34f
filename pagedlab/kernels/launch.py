"""Launching a kernel by its parameters' names.

What a kernel may ask for is one dictionary, name to value, and the kernel takes what it names: a kernel with fewer
features names fewer arguments, in any order, and marks any of the numbers `tl.constexpr` or not. A compilation takes
the same dictionary, so the two are described once.
"""

import contextlib
import importlib
import inspect

import torch

from pagedlab.errors import PagedLabError
from pagedlab.gpu import carry, mode


class LaunchError(PagedLabError, ValueError):
    """A kernel asks for something there is not, or a tensor's shape or strides do not suit it."""


def launch(kernel, grid, arguments: dict[str, object], **options) -> None:
    """Run `kernel` for every program of `grid`, with those of `arguments` that it names.

    kernel: a `@triton.jit` function. grid: one to three numbers of programs. options: num_warps, num_stages.
    """
    if 0 in grid:
        return  # a GPU refuses a grid of nothing
    named = select(kernel, arguments)
    with _one_at_a_time() if mode.is_interpreting() else _device_of(named.values()):
        kernel[tuple(grid)](**named, **options)


def select(kernel, arguments: dict[str, object]) -> dict[str, object]:
    """The arguments that the kernel's parameters ask for, in their order. One with a default may be missing."""
    if not carry.is_kernel(kernel):
        raise LaunchError(f"{kernel!r} {carry.no_kernel(kernel)}")
    function = carry.function(kernel)
    parameters = inspect.signature(function).parameters.values()
    unknown = [p.name for p in parameters if p.name not in arguments and p.default is p.empty]
    if unknown:
        raise LaunchError(
            f"{function.__name__} asks for {', '.join(unknown)}. It can have: {', '.join(sorted(arguments))}"
        )
    return {p.name: arguments[p.name] for p in parameters if p.name in arguments}


def check_last_dimension(**tensors: torch.Tensor) -> None:
    """Kernels read a head's numbers one after the other: any strides will do but the last, which must be 1."""
    for name, tensor in tensors.items():
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise LaunchError(
                f"the last dimension of {name} has stride {tensor.stride(-1)}: the kernels need the numbers of a head "
                f"side by side. `{name}.contiguous()` has them so"
            )


def cache_strides(key_cache, value_cache) -> dict[str, int]:
    """Strides of two `[num_blocks, num_kv_heads, block_size, head_dim]` caches, in elements, by the kernels' names."""
    names = ("block_stride", "head_stride", "slot_stride")
    return {
        f"{which}_{name}": stride
        for which, cache in (("key", key_cache), ("value", value_cache))
        for name, stride in zip(names, cache.stride()[:3], strict=True)
    }


def _one_at_a_time():
    """The interpreter knows no threads; and the module mends mistakes of the interpreter's."""
    return importlib.import_module("pagedlab.gpu.interpreter").ONE_AT_A_TIME


def _device_of(values):
    """The GPU that the tensors are on becomes the current one, which is where Triton launches."""
    devices = [value.device for value in values if isinstance(value, torch.Tensor) and value.is_cuda]
    return torch.cuda.device(devices[0]) if devices else contextlib.nullcontext()
