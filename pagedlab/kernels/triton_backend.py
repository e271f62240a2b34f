"""The operations as Triton kernels: compiled for a GPU, or run by Triton's interpreter where there is none.

The interpreter gives a GPU's results at some milliseconds a program. It is there to learn and to test with.

float32, bfloat16 and float16, in caches whose last dimension is dense; anything else is refused. Nothing more is
checked here: `ops.py` has done that.
"""

from pagedlab.errors import PagedLabError
from pagedlab.gpu import mode

mode.choose()

import torch  # noqa: E402


class NoTritonError(PagedLabError, ImportError):
    """Triton is not installed. It is made for Linux."""


try:
    from pagedlab.kernels import copy, decode, merge, prefill, reference, write
    from pagedlab.kernels.launch import launch
except ModuleNotFoundError as error:
    if error.name != "triton":
        raise
    raise NoTritonError(
        "backend='triton' needs the package `triton`, which there is for Linux only. Use backend='cpu' or 'torch'."
    ) from None

TYPES = (torch.float32, torch.bfloat16, torch.float16)

TOKENS_PER_SPLIT = 256
"""Decode splits a long context into parts of this size, whatever the batch: a sequence's result is the same to the last
bit whoever is decoded beside it. Parts are large enough that merging them costs a few percent at most."""

gather_kv = reference.gather_kv  # copying is what torch does as fast


def kv_write(keys, values, key_cache, value_cache, slot_mapping) -> None:
    _check(key_cache)
    write.kv_write(_dense(keys), _dense(values), key_cache, value_cache, slot_mapping)


def copy_blocks(key_cache, value_cache, pairs) -> None:
    _check(key_cache)
    copy.copy_blocks(key_cache, value_cache, pairs)


def paged_decode(q, key_cache, value_cache, block_tables, seq_lens, scale):
    _check(q)
    q, block_tables = _dense(q), _dense(block_tables)
    # Planned for as many tokens as the tables have room for. The lengths stay on the GPU, and nobody waits for them;
    # parts that turn out to be empty cost next to nothing.
    longest = torch.tensor([block_tables.shape[1] * key_cache.shape[2]])
    grid, arguments, options = decode.decode_launch(
        q, key_cache, value_cache, block_tables, longest, scale, tokens_per_split=TOKENS_PER_SPLIT
    )
    arguments["seq_lens"] = seq_lens.contiguous()
    launch(decode.paged_decode_kernel, grid, arguments, **options)
    out, lse = arguments["out"], arguments["lse"]
    return out.to(q.dtype) if lse is None else merge.merge_splits(out, lse, q.dtype)


def paged_prefill(q, key_cache, value_cache, block_tables, seq_lens, query_start_loc, scale):
    _check(q)
    return prefill.paged_prefill(
        _dense(q),
        key_cache,
        value_cache,
        _dense(block_tables),
        seq_lens.contiguous(),
        query_start_loc.contiguous(),
        scale,
    )


def _check(tensor: torch.Tensor) -> None:
    """TypeError: a type that the kernels have no sums for. ValueError: on the CPU, but Triton compiles."""
    if tensor.dtype not in TYPES:
        raise TypeError(f"backend 'triton' takes {', '.join(map(str, TYPES))}, not {tensor.dtype}: use backend='torch'")
    if not tensor.is_cuda and not mode.is_interpreting():
        raise ValueError(
            f"these tensors are on the {tensor.device.type.upper()}, but Triton compiles for a GPU in this process. "
            f"Put them there, use another backend, or start Python with {mode.VARIABLE}=1 to have it interpret."
        )


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it, with its last dimension dense. What is written in place cannot be copied."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
