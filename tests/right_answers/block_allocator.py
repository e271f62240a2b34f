"""Right answers to `block_allocator`, as different from each other as allocators get."""

import random
from collections import Counter, deque

from pagedlab.cache.allocator import (
    BlockNotInUseError,
    DoubleFreeError,
    DuplicateBlockError,
    OutOfBlocksError,
    UnknownBlockError,
)
from tests.corpus import right


class Looks:
    """What most of them do first. They must have `num_blocks` and `ref_count`."""

    def look(self, blocks, error=DoubleFreeError):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise error(block)
        if len(set(blocks)) < len(blocks):
            raise DuplicateBlockError(next(block for block in blocks if blocks.count(block) > 1))

    def known(self, block):
        if not 0 <= block < self.num_blocks:
            raise UnknownBlockError(block, self.num_blocks)
        return block

    def room(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)


@right
class Stack(Looks):
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.free_blocks = list(range(num_blocks))
        self.holders = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_blocks)

    def ref_count(self, block):
        return self.holders[self.known(block)]

    def allocate(self, n):
        self.room(n)
        blocks = [self.free_blocks.pop() for _ in range(n)]
        for block in blocks:
            self.holders[block] = 1
        return blocks

    def share(self, blocks):
        self.look(blocks, BlockNotInUseError)
        for block in blocks:
            self.holders[block] += 1

    def free(self, blocks):
        self.look(blocks)
        for block in blocks:
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.free_blocks.append(block)


@right
class Queue(Stack):
    """The block that has been free for longest goes first; gives tuples."""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.free_blocks = deque(range(num_blocks))

    def allocate(self, n):
        self.room(n)
        blocks = tuple(self.free_blocks.popleft() for _ in range(n))
        for block in blocks:
            self.holders[block] = 1
        return blocks


@right
class SetOfFree(Looks):
    """A set of free ids, and a dict of counts with only the held ones in it."""

    def __init__(self, num_blocks):
        self.num_blocks, self.idle, self.counts = num_blocks, set(range(num_blocks)), {}

    @property
    def num_free(self):
        return len(self.idle)

    def ref_count(self, block):
        return self.counts.get(self.known(block), 0)

    def allocate(self, n):
        self.room(n)
        blocks = [self.idle.pop() for _ in range(n)]
        self.counts.update(dict.fromkeys(blocks, 1))
        return blocks

    def share(self, blocks):
        self.look(blocks)
        for block in blocks:
            self.counts[block] += 1

    def free(self, blocks):
        self.look(blocks)
        for block in blocks:
            self.counts[block] -= 1
            if not self.counts[block]:
                del self.counts[block]
                self.idle.add(block)


@right
class Bitmap(Looks):
    """One big number with a bit per free block."""

    def __init__(self, num_blocks):
        self.num_blocks, self.bits, self.counts = num_blocks, (1 << num_blocks) - 1, bytearray(num_blocks)

    @property
    def num_free(self):
        return bin(self.bits).count("1")

    def ref_count(self, block):
        return self.counts[self.known(block)]

    def allocate(self, n):
        self.room(n)
        blocks = []
        for _ in range(n):
            lowest = (self.bits & -self.bits).bit_length() - 1
            self.bits ^= 1 << lowest
            self.counts[lowest] = 1
            blocks.append(lowest)
        return blocks

    def share(self, blocks):
        self.look(blocks)
        for block in blocks:
            self.counts[block] += 1

    def free(self, blocks):
        self.look(blocks)
        for block in blocks:
            self.counts[block] -= 1
            self.bits |= (self.counts[block] == 0) << block


@right
class CountsOnly(Looks):
    """No free list at all: a block is free when its count is 0. Slow, and right."""

    def __init__(self, num_blocks):
        self.num_blocks, self.counts = num_blocks, [0] * num_blocks

    num_free = property(lambda self: self.counts.count(0))

    def ref_count(self, block):
        return self.counts[self.known(block)]

    def allocate(self, n):
        self.room(n)
        blocks = [block for block, count in enumerate(self.counts) if count == 0][:n]
        for block in blocks:
            self.counts[block] = 1
        return blocks

    def share(self, blocks):
        self.change(blocks, 1)

    def free(self, blocks):
        self.change(blocks, -1)

    def change(self, blocks, by):
        after = list(self.counts)
        for block in blocks:
            if after[self.known(block)] == 0:
                raise DoubleFreeError(block)
            if after[block] != self.counts[block]:
                raise DuplicateBlockError(block)
            after[block] += by
        self.counts = after


@right
class LinkedList(Looks):
    """next_free[i] is the free block after i, as small allocators in C do it. Counts its free blocks as it goes."""

    END, HELD = -1, -2

    def __init__(self, num_blocks):
        self.num_blocks = self.num_free = num_blocks
        self.first = 0
        self.next_free = [*range(1, num_blocks), self.END]
        self.others = [0] * num_blocks  # holders beyond the first

    def ref_count(self, block):
        return 0 if self.next_free[self.known(block)] != self.HELD else self.others[block] + 1

    def allocate(self, n):
        self.room(n)
        blocks = []
        while len(blocks) < n:
            block = self.first
            self.first, self.next_free[block] = self.next_free[block], self.HELD
            blocks.append(block)
        self.num_free -= n
        return blocks

    def share(self, blocks):
        self.look(blocks)
        for block in blocks:
            self.others[block] += 1

    def free(self, blocks):
        self.look(blocks)
        for block in reversed(blocks):
            if self.others[block]:
                self.others[block] -= 1
            else:
                self.next_free[block], self.first = self.first, block
                self.num_free += 1


@right
class HighestFirst(Stack):
    """Keeps the free ids sorted, and gives the highest; undoes what it did when a block of the call is bad."""

    def allocate(self, n):
        self.free_blocks.sort()
        return super().allocate(n)

    def free(self, blocks):
        done = []
        try:
            for block in blocks:
                if block in done:
                    raise DuplicateBlockError(block)
                if self.ref_count(block) == 0:
                    raise DoubleFreeError(block)
                self.holders[block] -= 1
                done.append(block)
        except (DoubleFreeError, DuplicateBlockError, UnknownBlockError):
            for block in done:
                self.holders[block] += 1
            raise
        self.free_blocks += [block for block in blocks if self.holders[block] == 0]


@right
class AnyBlock(Stack):
    """Gives blocks at random: no order is promised. A Counter holds the counts."""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.holders = Counter()

    def allocate(self, n):
        random.shuffle(self.free_blocks)
        return super().allocate(n)


@right
class Objects(Looks):
    """A block is an object that knows its holders, as in the first vLLM."""

    class Block:
        def __init__(self, number):
            self.number, self.ref_count = number, 0

    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.blocks = [self.Block(number) for number in range(num_blocks)]
        self.idle = list(self.blocks)

    @property
    def num_free(self):
        return len(self.idle)

    def ref_count(self, block):
        return self.blocks[self.known(block)].ref_count

    def allocate(self, n):
        self.room(n)
        taken, self.idle = self.idle[:n], self.idle[n:]
        for block in taken:
            block.ref_count = 1
        return [block.number for block in taken]

    def share(self, blocks):
        self.look(blocks)
        for number in blocks:
            self.blocks[number].ref_count += 1

    def free(self, blocks):
        self.look(blocks)
        for block in map(self.blocks.__getitem__, blocks):
            block.ref_count -= 1
            if block.ref_count == 0:
                self.idle.append(block)


class TooManyFreed(DoubleFreeError):
    def __init__(self, block, pool):
        Exception.__init__(self, f"{pool}: {block} is free")


class PoolIsFull(OutOfBlocksError):
    pass


@right
class OwnErrors(Stack):
    """Raises kinds of the course's errors; a block named twice in a free is a double free to it."""

    def room(self, n):
        if n > self.num_free:
            raise PoolIsFull(n, self.num_free, self.num_blocks)

    def free(self, blocks):
        seen = set()
        for block in blocks:
            if self.ref_count(block) == 0 or block in seen:
                raise TooManyFreed(block, "pool")
            seen.add(block)
        super().free(blocks)
