"""The block table: where each token of one sequence lies in the pool.

The tokens of a sequence are numbered 0, 1, 2, ... ("positions"). Position p belongs to logical block `p // block_size`;
the table says which block of the pool that is, and `p % block_size` is the place inside it. Seen as one long row, the
pool has `num_blocks * block_size` slots, and position p lies in

    slot = block_table[p // block_size] * block_size + p % block_size

Only the last block can be partly empty, so a sequence wastes at most `block_size - 1` slots.

Sequences that begin alike can hold the same blocks: `fork` makes a second table of them. Full blocks are never written
again and stay shared for good. A block that is still being filled is another matter: whoever writes into it first takes
a copy for itself (`copy_on_write`), and the last one left with the original writes in place.

Sources: Kwon et al., the vLLM paper, sections 4.3 and 4.4 and Figures 6 and 8 (arXiv:2309.06180).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import Allocator, whole_number
from pagedlab.errors import PagedLabError

if TYPE_CHECKING:
    import torch


def slot_mapping(block_table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """The slots of positions `start` to `end - 1`, in order.

    block_table: the physical block of each logical block; a list or a 1-D tensor, -1 where there is none.
    ValueError: a range that runs backwards or begins below 0. IndexError: a position without a block.
    """
    start, end = whole_number("start", start), whole_number("end", end)
    block_size = whole_number("block_size", block_size, at_least=1)
    if not 0 <= start <= end:
        raise ValueError(f"positions {start} to {end}: a range needs 0 <= start <= end")
    if end == start:
        return []
    if end > len(block_table) * block_size:
        raise IndexError(
            f"position {end - 1} has no block: the table's {len(block_table)} blocks of {block_size} slots are room "
            f"for {len(block_table) * block_size} tokens"
        )
    slots = []
    for position in range(start, end):
        block = whole_number("an entry of the block table", block_table[position // block_size])
        if block < 0:
            raise IndexError(f"position {position}: entry {position // block_size} of the table is {block}, no block")
        slots.append(block * block_size + position % block_size)
    return slots


class SharedBlockError(PagedLabError):
    """A token would be written into a block that somebody else holds too. Nothing was changed."""

    def __init__(self, block: int, holders: int, position: int):
        super().__init__(block, holders, position)
        self.block, self.holders, self.position = block, holders, position

    def __str__(self):
        return (
            f"position {self.position} would be written into block {self.block}, which has {self.holders} holders: the "
            f"others would read it as theirs. Nothing was changed. Call copy_on_write(allocator) before append_tokens."
        )


class BlockTable:
    """The blocks of one sequence, in the order of its tokens.

    `num_tokens` counts the tokens that have a slot. A token gets its slot first and its key and value after, so while a
    step runs the newest of them are not written yet.
    """

    def __init__(self, block_size: int):
        self.block_size = whole_number("block_size", block_size, at_least=1)
        self.blocks: list[int] = []
        self.num_tokens = 0

    @property
    def capacity(self) -> int:
        """Slots in the blocks of this sequence, used or not."""
        return len(self.blocks) * self.block_size

    def append_tokens(self, n: int, allocator: Allocator) -> list[int]:
        """Give the next `n` tokens a slot each. Returns the blocks that had to be allocated, often none.

        An error of the allocator (`OutOfBlocksError`) leaves the table as it was, and so does SharedBlockError: the
        first of these tokens would go into a block with another holder; `copy_on_write` comes first.
        """
        n = whole_number("n", n, at_least=0)
        if n > 0 and self._writes_into_a_shared_block(allocator):
            shared = self.blocks[-1]
            raise SharedBlockError(shared, holders=allocator.ref_count(shared), position=self.num_tokens)
        missing = blocks_needed(self.num_tokens + n, self.block_size) - len(self.blocks)
        if n > 0 and self.num_tokens < self.capacity and hasattr(allocator, "forget"):
            self._forgotten_by(allocator, missing)
        new_blocks = list(allocator.allocate(missing)) if missing > 0 else []
        if len(new_blocks) != max(missing, 0):
            raise ValueError(f"the allocator was asked for {missing} blocks and gave {len(new_blocks)}: {new_blocks}")
        self.blocks += new_blocks
        self.num_tokens += n
        return new_blocks

    def truncate(self, num_tokens: int, allocator: Allocator) -> list[int]:
        """Keep the first `num_tokens` tokens; free, last one first, and return the blocks that no longer hold any."""
        num_tokens = whole_number("num_tokens", num_tokens, at_least=0)
        if num_tokens > self.num_tokens:
            raise ValueError(f"cannot keep {num_tokens} tokens of a table that has {self.num_tokens}")
        num_kept = blocks_needed(num_tokens, self.block_size)
        dropped = self.blocks[num_kept:][::-1]
        if dropped:
            allocator.free(dropped)
        del self.blocks[num_kept:]
        self.num_tokens = num_tokens
        return dropped

    def free(self, allocator: Allocator) -> None:
        """Give every block back and start over. Doing it again is harmless: an empty table has nothing to free."""
        self.truncate(0, allocator)

    def fork(self, allocator: Allocator) -> "BlockTable":
        """A second table with the same tokens in the same blocks, each of which gets one more holder."""
        allocator.share(self.blocks)
        child = type(self)(self.block_size)
        child.blocks, child.num_tokens = list(self.blocks), self.num_tokens
        return child

    def copy_on_write(self, allocator: Allocator) -> list[tuple[int, int]]:
        """Make the next token's place this sequence's own. Returns the (source, destination) blocks to copy: 0 or 1.

        Only the books change here. The contents must be copied (`PagedKVCache.copy_blocks`) before the token is
        written. OutOfBlocksError: there is no block for the copy; the table is as it was.
        """
        if not self._writes_into_a_shared_block(allocator):
            return []
        shared, (own,) = self.blocks[-1], allocator.allocate(1)
        allocator.free([shared])
        self.blocks[-1] = own
        return [(shared, own)]

    def blocks_to_append(self, n: int, allocator: Allocator) -> int:
        """How many free blocks `copy_on_write` and `append_tokens(n)` are going to take together. 0 for no tokens."""
        n = whole_number("n", n, at_least=0)
        if n == 0:
            return 0
        missing = blocks_needed(self.num_tokens + n, self.block_size) - len(self.blocks)
        return missing + self._writes_into_a_shared_block(allocator)

    def adopt(self, blocks: Iterable[int], num_tokens: int) -> None:
        """An empty table starts with `num_tokens` tokens in these blocks. It becomes their holder in place of whoever
        allocated or shared them for it: a cache that found them, or a swap that filled them."""
        blocks = [whole_number("a block id", block, at_least=0) for block in blocks]
        num_tokens = whole_number("num_tokens", num_tokens, at_least=0)
        if self.blocks:
            raise ValueError(f"the table has {len(self.blocks)} blocks already; only an empty one can adopt others")
        if len(blocks) != blocks_needed(num_tokens, self.block_size):
            raise ValueError(
                f"{num_tokens} tokens take {blocks_needed(num_tokens, self.block_size)} blocks of {self.block_size} "
                f"slots, not {len(blocks)}"
            )
        self.blocks, self.num_tokens = blocks, num_tokens

    def _forgotten_by(self, cache: Allocator, missing: int) -> None:
        """After `truncate` the last block may be one that a prefix cache knows by what it held. Now it gets new tokens.

        If the call is going to fail, it stays known: nothing may change then.
        """
        if missing <= cache.num_free:
            cache.forget(self.blocks[-1])

    def _writes_into_a_shared_block(self, allocator: Allocator) -> bool:
        """Would the next token go into a block that another sequence holds too?"""
        if self.num_tokens == self.capacity:
            return False  # it goes into a new block
        ref_count = getattr(allocator, "ref_count", None)  # an allocator that does not count cannot share
        return ref_count is not None and ref_count(self.blocks[-1]) > 1

    def slot(self, position: int) -> int:
        """The slot of one position. IndexError: the sequence has no such position yet."""
        position = whole_number("position", position)
        if not 0 <= position < self.num_tokens:
            raise IndexError(f"position {position} of a sequence with {self.num_tokens} tokens")
        return self.blocks[position // self.block_size] * self.block_size + position % self.block_size

    def slot_mapping(self, start: int, end: int) -> list[int]:
        """The slots of positions `start` to `end - 1`, all of which must exist."""
        if end > self.num_tokens:
            raise IndexError(f"positions {start} to {end - 1} of a sequence with {self.num_tokens} tokens")
        return slot_mapping(self.blocks, start, end, self.block_size)

    def __repr__(self):
        return f"BlockTable({self.blocks}, {self.num_tokens} tokens, {self.capacity} slots)"


def padded(tables: Iterable["BlockTable | Sequence[int]"]) -> "torch.Tensor":
    """The tables of a batch as one int32 tensor, `[num_seqs, max_blocks]`; short rows end in -1.

    Takes block tables or plain lists of blocks. -1 is nobody's block, so an entry that is read by mistake stands out.
    """
    import torch

    rows = [list(getattr(table, "blocks", table)) for table in tables]
    width = max((len(row) for row in rows), default=0)
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.int32).reshape(len(rows), width)
