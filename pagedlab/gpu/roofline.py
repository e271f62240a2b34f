"""How fast attention could be at best on a GPU: by the bytes it must move and by the products it must form.

Whichever takes longer is the floor. The name is from Williams, Waterman and Patterson, "Roofline" (CACM 2009,
https://doi.org/10.1145/1498765.1498785): FLOP/s against FLOP per byte is a slope, limited by memory, and then a roof.
The intensity where the two meet is the `ridge`.
"""

import numbers
from collections.abc import Iterator
from typing import NamedTuple

from pagedlab.gpu.gpus import GPU, find

LATENCY = 700e-9
"""Seconds from asking memory to having the bytes, while it is busy. An assumption: no vendor states one, and it depends
on the load. With 600 or 800 ns, what follows from it is a seventh less or more."""

TABLE_ENTRY_BYTES = 4


class Roofline(NamedTuple):
    """What one call of attention takes at least."""

    bytes: int
    """To and from memory."""
    flops: int
    intensity: float
    """flops / bytes."""
    seconds: float
    """The floor: no kernel is faster, and a real one is slower."""
    bound: str
    """"memory" or "compute": which of the two the floor comes from."""


def decode_roofline(
    num_seqs: int,
    seq_len: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    bytes_per_element: int,
    gpu: str | GPU,
    *,
    block_size: int | None = None,
) -> Roofline:
    """One layer of decoding: one new token for each of num_seqs sequences of seq_len tokens.

    Bytes: keys and values once for each kv head (not for each query head), the queries, the output; with a `block_size`
    also the block table, 4 bytes a block. FLOPs: q.k and p.v, two for each number of each key and value, for each query
    head; the softmax is not counted. ValueError for numbers below 1, or heads that cannot share the kv heads.
    """
    num_seqs, seq_len, num_heads, num_kv_heads, head_dim, bytes_per_element = _checked(
        num_seqs=num_seqs,
        seq_len=seq_len,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        bytes_per_element=bytes_per_element,
    )
    keys_and_values = 2 * seq_len * num_kv_heads * head_dim * bytes_per_element
    q_and_out = 2 * num_heads * head_dim * bytes_per_element
    table = 0
    if block_size is not None:
        (block_size,) = _checked(block_size=block_size)
        table = -(-seq_len // block_size) * TABLE_ENTRY_BYTES
    flops = 2 * 2 * seq_len * num_heads * head_dim
    return _floor(num_seqs * (keys_and_values + q_and_out + table), num_seqs * flops, find(gpu))


def prefill_roofline(
    num_new: int,
    seq_len: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    bytes_per_element: int,
    gpu: str | GPU,
) -> Roofline:
    """One layer of prefill: the last num_new of seq_len tokens attend, each to those before it and itself.

    Bytes as if keys and values were read once; a kernel reads them again for each tile of queries, mostly from L2.
    """
    num_new, seq_len, num_heads, num_kv_heads, head_dim, bytes_per_element = _checked(
        num_new=num_new,
        seq_len=seq_len,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        bytes_per_element=bytes_per_element,
    )
    if num_new > seq_len:
        raise ValueError(f"{num_new} new tokens are more than the {seq_len} tokens of the sequence")
    pairs = num_new * (seq_len - num_new) + num_new * (num_new + 1) // 2
    size = (2 * seq_len * num_kv_heads + 2 * num_new * num_heads) * head_dim * bytes_per_element
    return _floor(size, 2 * 2 * pairs * num_heads * head_dim, find(gpu))


def ridge(gpu: str | GPU) -> float:
    """FLOP per byte above which a kernel on this GPU waits for its tensor cores, and below for its memory."""
    gpu = find(gpu)
    return gpu.fp16_flops / gpu.memory_bandwidth


def bytes_in_flight(gpu: str | GPU, latency: float = LATENCY) -> float:
    """Bytes that each multiprocessor must have asked for, and not yet got, to keep memory busy all the time.

    Little's law: what is under way = bandwidth x latency (J. D. C. Little, "A Proof for the Queuing Formula
    L = lambda W", 1961). `latency` in seconds.
    """
    gpu = find(gpu)
    if not latency > 0:
        raise ValueError(f"latency is {latency!r} seconds; it is more than 0")
    return gpu.memory_bandwidth * latency / gpu.num_sms


def tile_bytes(tile: int, head_dim: int, bytes_per_element: int) -> int:
    """Keys and values of `tile` tokens, one kv head."""
    tile, head_dim, bytes_per_element = _checked(tile=tile, head_dim=head_dim, bytes_per_element=bytes_per_element)
    return 2 * tile * head_dim * bytes_per_element


def tiles_in_flight(
    gpu: str | GPU, tile: int, head_dim: int, bytes_per_element: int, latency: float = LATENCY
) -> float:
    """`bytes_in_flight` in tiles of keys and values: how many each multiprocessor must have under way."""
    return bytes_in_flight(gpu, latency) / tile_bytes(tile, head_dim, bytes_per_element)


def _floor(size: int, flops: int, gpu: GPU) -> Roofline:
    moving, computing = size / gpu.memory_bandwidth, flops / gpu.fp16_flops
    return Roofline(size, flops, flops / size, max(moving, computing), "memory" if moving >= computing else "compute")


def _checked(**given: int) -> Iterator[int]:
    """The same numbers as Python's, which never wrap around."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
    heads, kv_heads = given.get("num_heads", 1), given.get("num_kv_heads", 1)
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} kv heads equally")
    return map(int, given.values())
