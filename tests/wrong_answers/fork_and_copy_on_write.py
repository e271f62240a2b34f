"""Plausible wrong answers to `fork_and_copy_on_write`: a right one, and classes that differ from it in one thing."""

import copy

from pagedlab.cache.table import BlockTable
from tests.corpus import wrong

SAME = "A fork has the same blocks and the same tokens"
HOLDER = "A fork is one more holder of each block"
FIRST = "The first writer into a shared block copies it"
FULL = "A full last block is not copied"
LAST = "The last holder writes in place"
READS = "Each keeps reading what it had"
COUNTED = "A copy gives up one hold of the old block"
NOTHING = "Without a free block: OutOfBlocksError, and nothing has changed"
BACK = "Every block comes back, once"


class Right(BlockTable):
    def fork(self, allocator):
        allocator.share(self.blocks)
        child = type(self)(self.block_size)
        child.blocks, child.num_tokens = list(self.blocks), self.num_tokens
        return child

    def copy_on_write(self, allocator):
        if not self.due(allocator):
            return []
        old = self.blocks[-1]
        [new] = allocator.allocate(1)
        allocator.free([old])
        self.blocks[-1] = new
        return [(old, new)]

    def due(self, allocator):
        return self.num_tokens % self.block_size > 0 and allocator.ref_count(self.blocks[-1]) > 1


# --- fork ---


@wrong(SAME, "where one writes, the other grows")
class OneListForBoth(Right):
    def fork(self, allocator):
        allocator.share(self.blocks)
        child = type(self)(self.block_size)
        child.blocks, child.num_tokens = self.blocks, self.num_tokens
        return child


@wrong(SAME, "the parent's own list of blocks")
class ShallowCopy(Right):
    def fork(self, allocator):
        allocator.share(self.blocks)
        return copy.copy(self)


@wrong(SAME, "the parent itself")
class ReturnsItself(Right):
    def fork(self, allocator):
        allocator.share(self.blocks)
        return self


@wrong(SAME, "has 0 tokens")
class ForgetsTheTokens(Right):
    def fork(self, allocator):
        child = super().fork(allocator)
        child.num_tokens = 0
        return child


@wrong(SAME, "this is None")
class ReturnsNothing(Right):
    def fork(self, allocator):
        super().fork(allocator)


@wrong(SAME, "a table like its parent; this is BlockTable")
class ForksIntoAPlainTable(Right):
    def fork(self, allocator):
        allocator.share(self.blocks)
        child = BlockTable(self.block_size)
        child.blocks, child.num_tokens = list(self.blocks), self.num_tokens
        return child


@wrong(SAME, "A fork copies nothing")
class OnlyFullBlocks(Right):
    """The rest is to be computed again."""

    def fork(self, allocator):
        child = type(self)(self.block_size)
        child.blocks = self.blocks[: self.num_tokens // self.block_size]
        child.num_tokens = len(child.blocks) * self.block_size
        allocator.share(child.blocks)
        return child


@wrong(SAME, "A fork copies nothing and takes nothing")
class CopiesAtOnce(Right):
    """A last block of its own from the start, as if the child were about to write."""

    def fork(self, allocator):
        child = super().fork(allocator)
        child.copy_on_write(allocator)
        return child


@wrong(SAME, "ValueError")
class AppendsItsWay(Right):
    """Lets append_tokens take new blocks, then replaces them."""

    def fork(self, allocator):
        child = type(self)(self.block_size)
        child.blocks = list(self.blocks)
        child.append_tokens(-self.num_tokens, allocator)
        return child


@wrong(HOLDER, "has ref count 1; its holders are 2: A, B")
class NobodyIsTold(Right):
    def fork(self, allocator):
        child = type(self)(self.block_size)
        child.blocks, child.num_tokens = list(self.blocks), self.num_tokens
        return child


@wrong(HOLDER, "has ref count 1")
class SharesTheLastBlockOnly(Right):
    """It is the only one that will ever be written to."""

    def fork(self, allocator):
        child = type(self)(self.block_size)
        child.blocks, child.num_tokens = list(self.blocks), self.num_tokens
        allocator.share(self.blocks[-1:])
        return child


@wrong(HOLDER, "has ref count 3")
class BothAreHolders(Right):
    def fork(self, allocator):
        allocator.share(self.blocks)
        child = super().fork(allocator)
        return child


# --- copy_on_write ---


@wrong(FIRST, "no copy is reported")
class NeverCopies(Right):
    def copy_on_write(self, allocator):
        return []


@wrong(FIRST, "The copy is made by others")
class CopiesInSilence(Right):
    """The case of NVIDIA and others: the block is there, its contents are not."""

    def copy_on_write(self, allocator):
        super().copy_on_write(allocator)
        return []


@wrong(FIRST, "that would copy the new block over the old one")
class PairTurnedRound(Right):
    def copy_on_write(self, allocator):
        return [(new, old) for old, new in super().copy_on_write(allocator)]


@wrong(FIRST, "The pair goes into a list")
class APairWithoutItsList(Right):
    def copy_on_write(self, allocator):
        pairs = super().copy_on_write(allocator)
        return pairs[0] if pairs else []


@wrong(FIRST, "allocate(1) returns a list with one number in it")
class AListForABlock(Right):
    def copy_on_write(self, allocator):
        if not self.due(allocator):
            return []
        old, new = self.blocks[-1], allocator.allocate(1)
        allocator.free([old])
        self.blocks[-1] = new
        return [(old, new)]


@wrong(FULL, "Also when there is nothing to copy: return []")
class NothingIsNone(Right):
    def copy_on_write(self, allocator):
        return super().copy_on_write(allocator) or None


@wrong(FIRST, "copies, where one block is written to")
class CopiesEveryBlock(Right):
    def copy_on_write(self, allocator):
        if not self.due(allocator):
            return []
        old, self.blocks = self.blocks, allocator.allocate(len(self.blocks))
        allocator.free(old)
        return list(zip(old, self.blocks, strict=True))


@wrong(FIRST, "still has block")
class ForgetsTheTable(Right):
    def copy_on_write(self, allocator):
        if not self.due(allocator):
            return []
        [new] = allocator.allocate(1)
        return [(self.blocks[-1], new)]


@wrong(FIRST, "only block")
class PutsTheNewOneBehind(Right):
    def copy_on_write(self, allocator):
        if not self.due(allocator):
            return []
        [new] = allocator.allocate(1)
        self.blocks.append(new)
        return [(self.blocks[-2], new)]


@wrong(FIRST, "no copy is reported")
class ThreeHoldersOrMore(Right):
    def due(self, allocator):
        return self.num_tokens % self.block_size > 0 and allocator.ref_count(self.blocks[-1]) > 2


@wrong(FIRST, "no copy is reported")
class FiveHoldersAreACrowd(Right):
    """So many read the block that it is taken for one that nobody writes to."""

    def due(self, allocator):
        return super().due(allocator) and allocator.ref_count(self.blocks[-1]) <= 4


@wrong(FIRST, "no copy is reported")
class SixteenHoldersAreACrowd(Right):
    def due(self, allocator):
        return super().due(allocator) and allocator.ref_count(self.blocks[-1]) <= 16


@wrong(FULL, "full, so its next token goes into a new one")
class CopiesFullBlocksToo(Right):
    def due(self, allocator):
        return bool(self.blocks) and allocator.ref_count(self.blocks[-1]) > 1


@wrong(FULL, "An empty one has no last block")
class TrustsThereIsABlock(Right):
    def due(self, allocator):
        return allocator.ref_count(self.blocks[-1]) > 1 and self.num_tokens % self.block_size > 0


@wrong(LAST, "alone holds block")
class AlwaysCopies(Right):
    def due(self, allocator):
        return self.num_tokens % self.block_size > 0


@wrong(LAST, "alone holds block")
class RemembersThatItShared(Right):
    """A flag that fork sets, and nobody takes back."""

    shared = False

    def fork(self, allocator):
        child = super().fork(allocator)
        self.shared = child.shared = True
        return child

    def due(self, allocator):
        return self.shared and self.num_tokens % self.block_size > 0


@wrong(LAST, "alone holds block")
class KeepsItsHold(Right):
    """The old block is never given up, so the last holder takes it for shared."""

    def copy_on_write(self, allocator):
        if not self.due(allocator):
            return []
        old = self.blocks[-1]
        self.blocks[-1:] = allocator.allocate(1)
        return [(old, self.blocks[-1])]


@wrong(FIRST, "could not be done: DoubleFreeError")
class GivesUpBothHolds(Right):
    def copy_on_write(self, allocator):
        pairs = super().copy_on_write(allocator)
        for old, _ in pairs:
            allocator.free([old])
            allocator.free([old])
        return pairs


@wrong(NOTHING, "has lost a holder")
class FreesFirst(Right):
    def copy_on_write(self, allocator):
        if not self.due(allocator):
            return []
        old = self.blocks[-1]
        allocator.free([old])
        self.blocks[-1:] = allocator.allocate(1)
        return [(old, self.blocks[-1])]


@wrong(NOTHING, "The call failed, and B's blocks went from")
class TakesItOutFirst(Right):
    def copy_on_write(self, allocator):
        if not self.due(allocator):
            return []
        old = self.blocks.pop()
        self.blocks += allocator.allocate(1)
        allocator.free([old])
        return [(old, self.blocks[-1])]


@wrong(NOTHING, "nothing was raised")
class WritesInPlaceIfItMust(Right):
    def copy_on_write(self, allocator):
        return super().copy_on_write(allocator) if allocator.num_free else []
