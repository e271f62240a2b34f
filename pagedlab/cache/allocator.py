"""The block allocator: which blocks of the pool are free, and how many holders each of the others has.

A block is a number from 0 to `num_blocks - 1`. The allocator never touches keys or values; it only does the books.
Two lists are all of it: the free list, and a reference count per block. The rule that ties them together: a block is in
the free list exactly when its count is 0.

The free list is a stack. The block freed last is handed out first, while it may still be warm in the processor's cache,
and both ends of its life cost the same however large the pool is.

Source: Kwon et al., the vLLM paper, sections 4.2 and 4.4 (arXiv:2309.06180).
"""

import operator
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from pagedlab.errors import PagedLabError


@runtime_checkable
class Allocator(Protocol):
    """What block tables, caches and widgets ask of an allocator. Your own fits wherever `BlockAllocator` does."""

    @property
    def num_free(self) -> int: ...

    def allocate(self, n: int) -> list[int]: ...

    def share(self, blocks: Iterable[int]) -> None: ...

    def free(self, blocks: Iterable[int]) -> None: ...

    def ref_count(self, block: int) -> int: ...


class BlockAllocator:
    """Hands out the blocks of a pool and takes them back. All of them are free at first.

    Every call either does all it was asked or raises and changes nothing, the order of the free list included. Its cost
    is proportional to the number of blocks it is about. Calls must not overlap: threads need a lock of their own.
    """

    def __init__(self, num_blocks: int):
        self.num_blocks = whole_number("num_blocks", num_blocks, at_least=1)
        self._free = list(reversed(range(self.num_blocks)))  # the next block to hand out is the last one
        self._ref_counts = [0] * self.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def free_blocks(self) -> tuple[int, ...]:
        """The free list, in the order in which its blocks will be handed out."""
        return tuple(reversed(self._free))

    def ref_count(self, block: int) -> int:
        """How many holders the block has; 0 means free. UnknownBlockError: there is no such block."""
        return self._ref_counts[self._known(block)]

    def allocate(self, n: int) -> list[int]:
        """Take `n` free blocks; the caller is their only holder. `n` may be 0.

        OutOfBlocksError: fewer than `n` are free. None is taken then.
        """
        n = whole_number("n", n, at_least=0)
        if n > self.num_free:
            raise OutOfBlocksError(asked=n, free=self.num_free, total=self.num_blocks)
        blocks = [self._free.pop() for _ in range(n)]
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each of these blocks.

        BlockNotInUseError: one of them is free. UnknownBlockError, DuplicateBlockError: as in `free`.
        """
        blocks = self._all_known(blocks)
        for block in blocks:
            if self._ref_counts[block] == 0:
                raise BlockNotInUseError(block)
        for block in blocks:
            self._ref_counts[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """One holder fewer for each of these blocks. A block that loses its last holder joins the free list.

        DoubleFreeError: one of them is free already. UnknownBlockError: there is no such block. DuplicateBlockError:
        a block is named twice; one call speaks for one holder, who holds a block once.
        """
        blocks = self._all_known(blocks)
        for block in blocks:
            if self._ref_counts[block] == 0:
                raise DoubleFreeError(block)
        for block in blocks:
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free.append(block)

    def _known(self, block: int) -> int:
        block = whole_number("a block id", block)
        if not 0 <= block < self.num_blocks:
            raise UnknownBlockError(block, self.num_blocks)
        return block

    def _all_known(self, blocks: Iterable[int]) -> list[int]:
        """Every check on the ids happens here, before anything changes."""
        known = [self._known(block) for block in blocks]
        seen = set()
        for block in known:
            if block in seen:
                raise DuplicateBlockError(block)
            seen.add(block)
        return known


def whole_number(name: str, value: int, at_least: int | None = None) -> int:
    """`value` as a Python int. TypeError for 2.0, "2" and True, which tend to be slips; ValueError if too small."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # takes numpy's integers as well
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} is {number}; it must be at least {at_least}")
    return number


class OutOfBlocksError(PagedLabError):
    """More blocks asked for than are free. None was taken."""

    def __init__(self, asked: int, free: int, total: int):
        super().__init__(asked, free, total)
        self.asked, self.free, self.total = asked, free, total

    def __str__(self):
        return (
            f"{self.asked} {'block' if self.asked == 1 else 'blocks'} asked for, {self.free} of {self.total} are free. "
            f"None was taken. Free {self.asked - self.free} more first, or use a larger pool."
        )


class BlockNotInUseError(PagedLabError):
    """A free block was named where only a block in use makes sense. Nothing was changed."""

    def __init__(self, block: int):
        super().__init__(block)
        self.block = block

    def __str__(self):
        return f"block {self.block} is free, so nobody can share it. Nothing was changed. Allocate it first."


class DoubleFreeError(BlockNotInUseError):
    """A block was freed more often than it was allocated and shared. Nothing was changed."""

    def __str__(self):
        return (
            f"block {self.block} is free already: all its holders have freed it. Nothing was changed. "
            f"A holder frees a block once; another holder must share() it first."
        )


class UnknownBlockError(PagedLabError):
    """No block of the pool has this number. Nothing was changed."""

    def __init__(self, block: int, num_blocks: int):
        super().__init__(block, num_blocks)
        self.block, self.num_blocks = block, num_blocks

    def __str__(self):
        return f"there is no block {self.block}: the pool has blocks 0 to {self.num_blocks - 1}. Nothing was changed."


class DuplicateBlockError(PagedLabError):
    """One call named the same block twice. Nothing was changed."""

    def __init__(self, block: int):
        super().__init__(block)
        self.block = block

    def __str__(self):
        return f"block {self.block} is named twice in one call. Nothing was changed. Name each block once."
