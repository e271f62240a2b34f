"""What the decode and the prefill kernel cannot do, told before they are launched."""

import math

import torch

from pagedlab.kernels.launch import LaunchError


def check_attention(q, key_cache, value_cache, tile: int, window: int, softcap: float, sinks) -> None:
    """q `[.., num_heads, head_dim]`, the caches as everywhere; the choices are those of `decode.decode_launch`."""
    if key_cache.shape != value_cache.shape or key_cache.shape[3] != q.shape[2]:
        raise ValueError(
            f"q is {list(q.shape)}, key_cache {list(key_cache.shape)}, value_cache {list(value_cache.shape)}: the "
            "caches need the same shape, and q's head_dim"
        )
    if tile < 16 or tile & (tile - 1):
        raise ValueError(f"tile is {tile}; it must be a power of 2 and at least 16, or tl.dot refuses it")
    num_heads, num_kv_heads, block_size = q.shape[1], key_cache.shape[1], key_cache.shape[2]
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32) or not q.dtype == key_cache.dtype:
        raise TypeError(
            f"q is {q.dtype}, the cache {key_cache.dtype}: this kernel sums in float32 and takes float16, bfloat16 or "
            f"float32, the same for both. backend='torch' takes float64"
        )
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} kv heads equally")
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if block_size * cache.stride(2) >= 2**31:
            raise LaunchError(
                f"the slots of a block of {name} are {cache.stride(2)} elements apart and there are {block_size}: "
                f"inside a block the kernel counts in 32 bits. Lay the cache out block by block"
            )
    if window < 0 or not 0 <= softcap < math.inf:
        raise ValueError(
            f"window is {window} and softcap {softcap}: both are finite, neither can be negative, and 0 is none"
        )
    if sinks is not None and (sinks.shape != (num_heads,) or not sinks.is_contiguous()):
        raise ValueError(f"sinks are {list(sinks.shape)}: a contiguous [{num_heads}] is needed, one a query head")
