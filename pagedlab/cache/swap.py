"""Swap space: a second pool in the computer's main memory, for the blocks of requests that had to leave the first.

A preempted request can be computed again, or it can be carried out and back:

    out   swap_space.allocate(n), copy the table's blocks there, free the table
    in    allocate blocks of the first pool, copy back, swap_space.free, and the table adopts its new blocks

The copies must be made before a freed block gets a new owner who writes to it: first all that goes out, then what comes
in, then copies inside the pool, then the model.

Source: the vLLM paper, section 4.5 (arXiv:2309.06180).
"""

from collections.abc import Iterable

from pagedlab.cache.allocator import BlockAllocator, OutOfBlocksError, whole_number


class SwapBooks:
    """The books of a swap space without its memory: for simulations. It may have no blocks at all."""

    def __init__(self, num_blocks: int):
        self.num_blocks = whole_number("num_blocks", num_blocks, at_least=0)
        self._allocator = BlockAllocator(self.num_blocks) if self.num_blocks else None
        self.num_swapped_out = 0
        """Blocks carried out so far."""
        self.num_swapped_in = 0
        """Blocks carried back so far."""

    @property
    def num_free(self) -> int:
        return self._allocator.num_free if self._allocator else 0

    def can_hold(self, n: int) -> bool:
        """Is there room for `n` more blocks?"""
        return n <= self.num_free

    def allocate(self, n: int) -> list[int]:
        """Take `n` blocks of the swap space. OutOfBlocksError: fewer are free; none is taken."""
        if self._allocator is None:
            if whole_number("n", n, at_least=0) > 0:
                raise OutOfBlocksError(asked=n, free=0, total=0)
            return []
        return self._allocator.allocate(n)

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks of the swap space back. Errors: as `BlockAllocator.free`."""
        blocks = list(blocks)
        if blocks and self._allocator is None:
            raise ValueError(f"blocks {blocks} were given back to a swap space of 0 blocks")
        if self._allocator:
            self._allocator.free(blocks)

    def swap_out(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Carry blocks out: `pairs` of (block of the pool, block of the swap space)."""
        self.num_swapped_out += len(list(pairs))

    def swap_in(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Carry blocks back: `pairs` of (block of the swap space, block of the pool)."""
        self.num_swapped_in += len(list(pairs))


class SwapSpace(SwapBooks):
    """Main memory for `num_cpu_blocks` blocks like those of `pool`, a `pagedlab.cache.paged.PagedKVCache`."""

    def __init__(self, pool, num_cpu_blocks: int):
        num_cpu_blocks = whole_number("num_cpu_blocks", num_cpu_blocks, at_least=0)
        self.pool = pool
        shape = pool.num_kv_heads, pool.block_size, pool.head_dim
        # The memory before its books: of too many blocks the pool says how large they are.
        self.cpu = type(pool)(pool.num_layers, num_cpu_blocks, *shape, pool.dtype) if num_cpu_blocks else None
        super().__init__(num_cpu_blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of main memory reserved."""
        return self.cpu.nbytes if self.cpu else 0

    def swap_out(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks out in all layers: `pairs` of (block of the pool, block of the swap space)."""
        pairs = list(pairs)
        if pairs:
            self._cpu_pool().copy_from(self.pool, pairs)
        super().swap_out(pairs)

    def swap_in(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks back in all layers: `pairs` of (block of the swap space, block of the pool)."""
        pairs = list(pairs)
        if pairs:
            self.pool.copy_from(self._cpu_pool(), pairs)
        super().swap_in(pairs)

    def _cpu_pool(self):
        if self.cpu is None:
            raise ValueError("a swap space of 0 blocks holds nothing to copy. Make it with num_cpu_blocks >= 1.")
        return self.cpu
