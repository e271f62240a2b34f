"""The layouts of a paged cache: at which place of the memory a number lies, and what a group of threads would fetch.

Memory is one long row. A tensor of several dimensions is a rule that gives each of its numbers a place in that row: its
*offset*, counted in numbers from the start. The last dimension lies side by side; a step in any other dimension jumps
over everything that is to its right. That jump is the dimension's *stride*.

Three rules for the keys of a paged cache, all of which hold the same numbers:

    heads first     [num_blocks, num_kv_heads, block_size, head_dim]                 ours; FlashInfer calls it HND
    token major     [num_blocks, block_size, num_kv_heads, head_dim]                 NHD; most of vLLM's backends
    split keys      [num_blocks, num_kv_heads, head_dim / x, block_size, x]          vLLM's first kernel, keys only

In the third, x numbers make 16 bytes, and the same 16 bytes of neighbouring tokens lie side by side.

Sources: the shapes of the third from the design page of vLLM's first paged attention kernel
(docs.vllm.ai/en/latest/design/paged_attention.html); sectors of 32 bytes, lines of 128 and warps of 32 threads from
NVIDIA's CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

SECTOR_BYTES = 32  # the least that a GPU's memory hands over
LINE_BYTES = 128  # a line of its caches: four sectors


def element_offset(
    block: int, head: int, slot: int, dim: int, num_kv_heads: int, block_size: int, head_dim: int
) -> int:
    """Where number `dim` of a key lies in `[num_blocks, num_kv_heads, block_size, head_dim]`, counted in numbers.

    How many blocks there are does not matter: nothing jumps over all of them. The coordinates are not checked; one that
    is too large gives the place of another number.
    """
    return ((block * num_kv_heads + head) * block_size + slot) * head_dim + dim


@dataclass(frozen=True)
class Axis:
    """One dimension of a layout. It counts `of` ("block", "head", "slot" or "dim") in steps of `step`."""

    of: str
    size: int | None  # None: as many as there are blocks
    step: int = 1

    def index(self, coordinate: int) -> int:
        index = coordinate // self.step
        return index if self.size is None else index % self.size


@dataclass(frozen=True)
class Layout:
    """A rule for where numbers lie: its dimensions, outermost first."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """For each dimension, how far apart two neighbours are, in numbers."""
        return tuple(prod(axis.size for axis in self.axes[i + 1 :]) for i in range(len(self.axes)))

    def offset(self, block: int, head: int, slot: int, dim: int) -> int:
        """Where the number lies, in numbers from the start."""
        coordinates = {"block": block, "head": head, "slot": slot, "dim": dim}
        places = zip(self.axes, self.strides, strict=True)
        return sum(axis.index(coordinates[axis.of]) * stride for axis, stride in places)

    def __str__(self):
        return f"{self.name} {list(self.strides)}"


def heads_first(num_kv_heads: int, block_size: int, head_dim: int) -> Layout:
    """`[num_blocks, num_kv_heads, block_size, head_dim]`."""
    axes = Axis("block", None), Axis("head", num_kv_heads), Axis("slot", block_size), Axis("dim", head_dim)
    return Layout("heads first", axes)


def token_major(num_kv_heads: int, block_size: int, head_dim: int) -> Layout:
    """`[num_blocks, block_size, num_kv_heads, head_dim]`."""
    axes = Axis("block", None), Axis("slot", block_size), Axis("head", num_kv_heads), Axis("dim", head_dim)
    return Layout("token major", axes)


def split_keys(num_kv_heads: int, block_size: int, head_dim: int, bytes_per_element: int = 2) -> Layout:
    """`[num_blocks, num_kv_heads, head_dim / x, block_size, x]`, where x numbers take 16 bytes.

    ValueError: 16 bytes do not hold a whole number of elements, or head_dim is no multiple of x.
    """
    x, rest = divmod(16, bytes_per_element)
    if rest or head_dim % x:
        raise ValueError(
            f"head_dim is {head_dim}, and 16 bytes hold {16 / bytes_per_element:g} numbers of {bytes_per_element} "
            f"bytes. Keys can be split only where that is a whole number and head_dim a multiple of it."
        )
    pieces = Axis("dim", head_dim // x, step=x)
    axes = Axis("block", None), Axis("head", num_kv_heads), pieces, Axis("slot", block_size), Axis("dim", x)
    return Layout("split keys", axes)


def touched(offsets: Iterable[int], bytes_per_element: int, unit: int = SECTOR_BYTES) -> list[int]:
    """The units of memory (sectors, or lines with `unit=LINE_BYTES`) that numbers at these offsets lie in, in order.

    The cache is taken to start at the beginning of a unit.
    """
    return sorted({offset * bytes_per_element // unit for offset in offsets})


def pieces(offsets: Iterable[int]) -> int:
    """How many unbroken runs these offsets form."""
    offsets = set(offsets)
    return sum(offset - 1 not in offsets for offset in offsets)
