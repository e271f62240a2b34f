"""Plausible wrong answers to `block_allocator`: a right one, and classes that differ from it in one thing."""

from collections import defaultdict

from pagedlab.cache.allocator import (
    BlockNotInUseError,
    DoubleFreeError,
    DuplicateBlockError,
    OutOfBlocksError,
    UnknownBlockError,
)
from tests.corpus import wrong

OWNER = "A block goes to one owner"
AGAIN = "A block that was freed can be used again"
FREE = "num_free counts the blocks nobody holds"
ALL = "Too few free blocks: OutOfBlocksError, and none is taken"
COUNTS = "ref_count counts the holders of a block"
LAST = "A shared block is free when its last holder lets go"
DOUBLE = "Freeing a free block is a DoubleFreeError"
SHARE_FREE = "Sharing a free block is a BlockNotInUseError"
UNKNOWN = "A block that the pool doesn't have is an UnknownBlockError"
DUPLICATE = "A block named twice in one call is a DuplicateBlockError"
NOTHING = "A refused call changes nothing"
NUMBERS = "An error names the numbers"
TWO = "Two allocators know nothing of each other"
HUNDRED = "Also in a pool of 100 blocks"
STAY = "The lists it is given stay as they were"
LISTS = "A list belongs to the caller, who may change it"


class Right:
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.free_blocks = list(range(num_blocks))
        self.holders = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_blocks)

    def ref_count(self, block):
        if not 0 <= block < self.num_blocks:
            raise UnknownBlockError(block, self.num_blocks)
        return self.holders[block]

    def allocate(self, n):
        if n > len(self.free_blocks):
            raise OutOfBlocksError(n, len(self.free_blocks), self.num_blocks)
        return self.take(n)

    def take(self, n):
        blocks = [self.free_blocks.pop() for _ in range(n)]
        for block in blocks:
            self.holders[block] = 1
        return blocks

    def share(self, blocks):
        self.look(blocks, BlockNotInUseError)
        for block in blocks:
            self.holders[block] += 1

    def free(self, blocks):
        self.look(blocks, DoubleFreeError)
        for block in blocks:
            self.drop(block)

    def drop(self, block):
        self.holders[block] -= 1
        if self.holders[block] == 0:
            self.free_blocks.append(block)

    def look(self, blocks, error):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise error(block)
        if len(set(blocks)) < len(blocks):
            raise DuplicateBlockError(next(block for block in blocks if blocks.count(block) > 1))


# --- handing out ---


@wrong(OWNER, "given to two owners")
class NeverTakesOffTheList(Right):
    def take(self, n):
        blocks = self.free_blocks[:n]
        for block in blocks:
            self.holders[block] = 1
        return blocks


@wrong(OWNER, "the pool has blocks 0 to")
class CountsFromOne(Right):
    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.free_blocks = list(range(1, num_blocks + 1))
        self.holders = [0] * (num_blocks + 1)


@wrong(OWNER, "exactly n are free")
class RefusesTheLastBlock(Right):
    def allocate(self, n):
        if n >= len(self.free_blocks):
            raise OutOfBlocksError(n, len(self.free_blocks), self.num_blocks)
        return self.take(n)


@wrong(OWNER, "this is of type int")
class GivesANumberForOne(Right):
    def take(self, n):
        blocks = super().take(n)
        return blocks[0] if n == 1 else blocks


@wrong(OWNER, "this is None")
class ForgetsToReturn(Right):
    def allocate(self, n):
        super().allocate(n)


@wrong(OWNER, "0 blocks asked for")
class AtLeastOne(Right):
    def take(self, n):
        return super().take(max(n, 1)) if self.free_blocks else []


@wrong(OWNER, "twice in one call")
class PeeksInALoop(Right):
    def take(self, n):
        blocks = [self.free_blocks[-1] for _ in range(n)]
        for block in blocks:
            self.holders[block] = 1
        if n:
            self.free_blocks.pop()
        return blocks


@wrong(OWNER, "BlockAllocator(1001)")
class FixedSize(Right):
    """Room for as many blocks as the example in the lesson had."""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.holders = [0] * 64


# --- taking back ---


@wrong(AGAIN, "raised OutOfBlocksError")
class StartsAtZeroHolders(Right):
    """Wenyueh/MinivLLM#70: 0 after allocate, -1 after free, and the block never comes back."""

    def take(self, n):
        return [self.free_blocks.pop() for _ in range(n)]

    def look(self, blocks, error):
        pass


@wrong(AGAIN, "is a proper call, but it raised DoubleFreeError")
class NeverCountsAnOwner(Right):
    def take(self, n):
        return [self.free_blocks.pop() for _ in range(n)]


@wrong(AGAIN, "raised OutOfBlocksError")
class CountsOnlyUpwards(Right):
    """A cursor that moves through the pool once."""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.next = 0

    @property
    def num_free(self):
        return self.num_blocks - self.next

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        blocks = list(range(self.next, self.next + n))
        self.next += n
        for block in blocks:
            self.holders[block] = 1
        return blocks


@wrong(AGAIN, "raised OutOfBlocksError")
class FreesTheFirstOnly(Right):
    def free(self, blocks):
        self.look(blocks, DoubleFreeError)
        for block in blocks:
            self.drop(block)
            return


@wrong(AGAIN, "raised TypeError")
class PutsTheListBack(Right):
    def free(self, blocks):
        self.look(blocks, DoubleFreeError)
        for block in blocks:
            self.holders[block] -= 1
        self.free_blocks.append(blocks)


@wrong(AGAIN, "given to two owners")
class PutsEverythingBack(Right):
    """Fills the free list anew whenever something is freed."""

    def drop(self, block):
        super().drop(block)
        self.free_blocks = list(range(self.num_blocks))


@wrong(AGAIN, "free and share a list of ids")
class FreesOneBlock(Right):
    """Takes a single id where the contract has a list."""

    def free(self, block):
        if self.ref_count(block) == 0:
            raise DoubleFreeError(block)
        self.drop(block)


# --- num_free ---


@wrong(FREE, "@property")
class NumFreeIsAMethod(Right):
    def num_free(self):
        return len(self.free_blocks)


@wrong(FREE, "num_free says")
class CountsCallsNotBlocks(Right):
    num_free = None

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.num_free = num_blocks

    def take(self, n):
        self.num_free -= 1
        return super().take(n)

    def drop(self, block):
        super().drop(block)
        self.num_free += 1


@wrong(FREE, "num_free says")
class NeverCountsBack(Right):
    num_free = None

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.num_free = num_blocks

    def take(self, n):
        self.num_free -= n
        return super().take(n)


@wrong(FREE, "whole number")
class GivesTheFreeList(Right):
    @property
    def num_free(self):
        return self.free_blocks


# --- all or nothing ---


@wrong(ALL, "IndexError")
class LetsPopFail(Right):
    def allocate(self, n):
        return self.take(n)


@wrong(ALL, "nothing was raised")
class GivesWhatThereIs(Right):
    def allocate(self, n):
        return self.take(min(n, len(self.free_blocks)))


@wrong(ALL, "returned None")
class GivesNoneWhenFull(Right):
    def allocate(self, n):
        return self.take(n) if n <= len(self.free_blocks) else None


@wrong(ALL, "num_free says 0")
class TakesUntilItFails(Right):
    """Finds out on the way that there are too few, and keeps what it took."""

    def take(self, n):
        blocks = []
        for _ in range(n):
            blocks.append(self.free_blocks.pop())
            self.holders[blocks[-1]] = 1
        return blocks

    def allocate(self, n):
        free = self.num_free
        try:
            return self.take(n)
        except IndexError:
            raise OutOfBlocksError(n, free, self.num_blocks) from None

    @property
    def num_free(self):
        return self.holders.count(0)


@wrong(ALL, "TypeError")
class RaisesWithoutNumbers(Right):
    def allocate(self, n):
        if n > len(self.free_blocks):
            raise OutOfBlocksError("the pool is full")
        return self.take(n)


# --- sharing ---


@wrong(COUNTS, "has 1 holder; `ref_count(")
class CountsOnlyTheOthers(Right):
    """ref_count without the first holder."""

    def ref_count(self, block):
        return max(super().ref_count(block) - 1, 0)

    def look(self, blocks, error):
        for block in blocks:
            if Right.ref_count(self, block) == 0:
                raise error(block)
        if len(set(blocks)) < len(blocks):
            raise DuplicateBlockError(blocks[-1])


@wrong(COUNTS, "has 2 holders; `ref_count(")
class SharesOnce(Right):
    """Knows shared and not shared, but no numbers."""

    def share(self, blocks):
        self.look(blocks, BlockNotInUseError)

    def ref_count(self, block):
        return min(super().ref_count(block), 1)


@wrong(COUNTS, "is free; `ref_count(")
class CountStaysAfterFree(Right):
    def drop(self, block):
        self.holders[block] -= 1
        if self.holders[block] == 0:
            self.free_blocks.append(block)
            self.holders[block] = 1

    def look(self, blocks, error):
        if any(block in self.free_blocks for block in blocks):
            raise error(blocks[0])
        super().look(blocks, error)


@wrong(COUNTS, "There is no method `share`")
class HasNoShare(Right):
    share = None


@wrong(COUNTS, "holder")
class ForgetsEveryHolderAtOnce(Right):
    """Frees a shared block for good, whoever else holds it."""

    def drop(self, block):
        self.holders[block] = 0
        self.free_blocks.append(block)


@wrong(COUNTS, "asking for a ref_count change")
class ReadingCounts(Right):
    """A defaultdict gets a key by being asked, and the keys are taken for the blocks in use."""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.holders = defaultdict(int)

    @property
    def num_free(self):
        return self.num_blocks - len(self.holders)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        return self.take(n)

    def look(self, blocks, error):
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise UnknownBlockError(block, self.num_blocks)
            if block not in self.holders:
                raise error(block)
        if len(set(blocks)) < len(blocks):
            raise DuplicateBlockError(next(block for block in blocks if blocks.count(block) > 1))

    def drop(self, block):
        super().drop(block)
        if self.holders[block] == 0:
            del self.holders[block]


@wrong(LAST, "num_free says")
class FreesBlocksInUse(Right):
    """Counts holders, but puts the block back at the first free."""

    def drop(self, block):
        self.holders[block] -= 1
        if block not in self.free_blocks:
            self.free_blocks.append(block)


@wrong(LAST, "num_free says")
class NeverFreesWhatWasShared(Right):
    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.shared = set()

    def share(self, blocks):
        super().share(blocks)
        self.shared.update(blocks)

    def drop(self, block):
        self.holders[block] -= 1
        if self.holders[block] == 0 and block not in self.shared:
            self.free_blocks.append(block)


# --- double free ---


@wrong(DOUBLE, "given to two owners")
class FreeListOnly(Right):
    """Puts back whatever it is given."""

    def look(self, blocks, error):
        pass

    def drop(self, block):
        self.holders[block] = max(self.holders[block] - 1, 0)
        if self.holders[block] == 0:
            self.free_blocks.append(block)


@wrong(DOUBLE, "passed in silence")
class SilencesTheError(Right):
    """vllm-project/vllm#1584: the error was replaced by a return."""

    def free(self, blocks):
        for block in blocks:
            if self.ref_count(block) == 0:
                return
        super().free(blocks)


@wrong(DOUBLE, "passed in silence")
class SkipsFreeBlocks(Right):
    def free(self, blocks):
        super().free([block for block in blocks if self.ref_count(block) > 0])


@wrong(DOUBLE, "it raised AssertionError")
class Asserts(Right):
    def free(self, blocks):
        for block in blocks:
            assert self.ref_count(block) > 0
        super().free(blocks)


@wrong(DOUBLE, "it raised ValueError")
class RaisesValueError(Right):
    def look(self, blocks, error):
        super().look(blocks, ValueError)


# --- sharing what is free, and what does not exist ---


@wrong(SHARE_FREE, "passed in silence")
class SharesFreeBlocks(Right):
    def share(self, blocks):
        super().look([block for block in blocks if self.ref_count(block)], BlockNotInUseError)
        for block in blocks:
            self.holders[block] += 1


@wrong(UNKNOWN, "it raised IndexError")
class LetsTheIndexFail(Right):
    def ref_count(self, block):
        return self.holders[block]


@wrong(UNKNOWN, "negative index")
class TakesNegativeIds(Right):
    def ref_count(self, block):
        if block >= self.num_blocks:
            raise UnknownBlockError(block, self.num_blocks)
        return self.holders[block]


@wrong(UNKNOWN, "but `ref_count` took it")
class SaysZeroForUnknown(Right):
    def ref_count(self, block):
        return super().ref_count(block) if 0 <= block < self.num_blocks else 0

    def look(self, blocks, error):
        for block in blocks:
            Right.ref_count(self, block)
        super().look(blocks, error)


@wrong(UNKNOWN, "it raised IndexError")
class OffByOneAtTheEnd(Right):
    def ref_count(self, block):
        if not 0 <= block <= self.num_blocks:
            raise UnknownBlockError(block, self.num_blocks)
        return self.holders[block]


# --- named twice ---


@wrong(DUPLICATE, "given to two owners")
class CountsEntries(Right):
    """vllm-project/vllm#1556: a table that repeats a block was counted entry by entry."""

    def look(self, blocks, error):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise error(block)


@wrong(DUPLICATE, "is named twice, and")
class CountsEachOnce(Right):
    def share(self, blocks):
        super().share(list(dict.fromkeys(blocks)))

    def free(self, blocks):
        super().free(list(dict.fromkeys(blocks)))


@wrong(DUPLICATE, "is named twice, and `share` took it")
class LooksForTwinsInFreeOnly(Right):
    def look(self, blocks, error):
        if error is DoubleFreeError:
            return super().look(blocks, error)
        for block in blocks:
            if self.ref_count(block) == 0:
                raise error(block)


# --- refused, but changed ---


@wrong(NOTHING, "num_free says")
class LooksAsItGoes(Right):
    """Frees the good blocks of a call, then finds the bad one."""

    def free(self, blocks):
        if len(set(blocks)) < len(blocks):
            raise DuplicateBlockError(blocks[-1])
        for block in blocks:
            if self.ref_count(block) == 0:
                raise DoubleFreeError(block)
            self.drop(block)


@wrong(NOTHING, "`ref_count(")
class SharesAsItGoes(Right):
    def share(self, blocks):
        if len(set(blocks)) < len(blocks):
            raise DuplicateBlockError(blocks[-1])
        for block in blocks:
            if self.ref_count(block) == 0:
                raise BlockNotInUseError(block)
            self.holders[block] += 1


@wrong(NOTHING, "`ref_count(")
class CountsBeforeItLooks(Right):
    """A refused allocate has counted holders already."""

    def allocate(self, n):
        for block in self.free_blocks[-n:] if n else []:
            self.holders[block] = 1
        return super().allocate(n)


# --- the last ones ---


@wrong(NUMBERS, "The error says asked=")
class MixesUpTheNumbers(Right):
    def allocate(self, n):
        if n > len(self.free_blocks):
            raise OutOfBlocksError(self.num_blocks, len(self.free_blocks), n)
        return self.take(n)


@wrong(NUMBERS, "The error says block=")
class NamesTheFirstBlock(Right):
    def look(self, blocks, error):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise error(blocks[0])
        super().look(blocks, error)


@wrong(DOUBLE, "class body")
class SharesItsCounts(Right):
    holders = [0] * 2000

    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.free_blocks = list(range(num_blocks))

    def take(self, n):
        blocks = [self.free_blocks.pop() for _ in range(n)]
        for block in blocks:
            self.holders[block] = 1
        return blocks


@wrong(TWO, "shared by all allocators")
class ClearsTheListOfAll(Right):
    """One free list for every pool; making a pool fills it anew."""

    free_blocks = []

    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.free_blocks.clear()
        self.free_blocks.extend(range(num_blocks))
        self.holders = [0] * num_blocks


@wrong(LISTS, "Keep a copy")
class KeepsTheCallersList(Right):
    """Frees by keeping the list; empties it into its own when it needs blocks."""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.returned = []

    @property
    def num_free(self):
        return self.holders.count(0)

    def free(self, blocks):
        self.look(blocks, DoubleFreeError)
        for block in blocks:
            self.holders[block] -= 1
        self.returned.append(blocks)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        for blocks in self.returned:
            self.free_blocks += [block for block in blocks if self.holders[block] == 0]
        self.returned = []
        self.free_blocks = list(dict.fromkeys(self.free_blocks))
        return self.take(n)


# --- the lists of others, and large pools ---


@wrong(STAY, "has changed the list")
class SortsTheListToShare(Right):
    def share(self, blocks):
        blocks.sort()
        super().share(blocks)


@wrong(STAY, "has changed the list")
class EatsTheListToFree(Right):
    def free(self, blocks):
        self.look(blocks, DoubleFreeError)
        while blocks:
            self.drop(blocks.pop())


@wrong(STAY, "the list is now []")
class EatsTheListOfARefusedCall(Right):
    def share(self, blocks):
        try:
            super().share(blocks)
        except UnknownBlockError:
            blocks.clear()
            raise


@wrong(HUNDRED, "num_free says")
class SixtyFourBits(Right):
    """A bit for each free block, in a word of 64 bits as soon as one comes back."""

    def __init__(self, num_blocks):
        self.num_blocks, self.holders, self.bits = num_blocks, [0] * num_blocks, (1 << num_blocks) - 1

    @property
    def num_free(self):
        return bin(self.bits).count("1")

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        blocks = [block for block in range(self.num_blocks) if self.bits >> block & 1][:n]
        for block in blocks:
            self.bits ^= 1 << block
            self.holders[block] = 1
        return blocks

    def drop(self, block):
        self.holders[block] -= 1
        if self.holders[block] == 0:
            self.bits = (self.bits | 1 << block) & 0xFFFF_FFFF_FFFF_FFFF
