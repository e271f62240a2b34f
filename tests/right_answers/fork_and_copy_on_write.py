"""Right answers to `fork_and_copy_on_write` in styles other than ours."""

import copy

from pagedlab.cache.table import BlockTable
from tests.corpus import right


@right
class Plain(BlockTable):
    def fork(self, allocator):
        child = Plain(self.block_size)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        allocator.share(child.blocks)
        return child

    def copy_on_write(self, allocator):
        if self.num_tokens % self.block_size == 0:
            return []
        old = self.blocks[-1]
        if allocator.ref_count(old) == 1:
            return []
        new = allocator.allocate(1)[0]
        self.blocks[-1] = new
        allocator.free([old])
        return [(old, new)]


@right
class DeepCopyAndTuples(BlockTable):
    """Any sequence of pairs will do."""

    def fork(self, allocator):
        child = copy.deepcopy(self)
        allocator.share(tuple(child.blocks))
        return child

    def copy_on_write(self, allocator):
        index = self.num_tokens // self.block_size
        if index == len(self.blocks) or allocator.ref_count(self.blocks[index]) < 2:
            return ()
        source = self.blocks[index]
        (self.blocks[index],) = allocator.allocate(1)
        allocator.free([source])
        return ([source, self.blocks[index]],)


@right
class SharesOneByOne(BlockTable):
    def fork(self, allocator):
        child = self.__class__(self.block_size)
        for block in self.blocks:
            allocator.share([block])
            child.blocks.append(block)
        child.num_tokens = self.num_tokens
        return child

    def copy_on_write(self, allocator):
        pairs = []
        if self.num_tokens < self.capacity:
            *kept, last = self.blocks
            if allocator.ref_count(last) > 1:
                pairs = [(last, *allocator.allocate(1))]
                allocator.free([last])
                self.blocks = [*kept, pairs[0][1]]
        return pairs


@right
class FromTheGroundUp:
    """No base class: blocks, num_tokens and all."""

    def __init__(self, block_size, blocks=(), num_tokens=0):
        self.block_size, self.blocks, self.num_tokens = block_size, list(blocks), num_tokens

    def append_tokens(self, n, allocator):
        missing = -(-(self.num_tokens + n) // self.block_size) - len(self.blocks)
        new = allocator.allocate(missing)
        self.blocks, self.num_tokens = self.blocks + new, self.num_tokens + n
        return new

    def free(self, allocator):
        allocator.free(self.blocks[::-1])
        self.blocks, self.num_tokens = [], 0

    def fork(self, allocator):
        allocator.share(self.blocks)
        return type(self)(self.block_size, self.blocks, self.num_tokens)

    def copy_on_write(self, allocator):
        partly_full = self.num_tokens % self.block_size != 0
        if partly_full and allocator.ref_count(self.blocks[-1]) != 1:
            new = allocator.allocate(1)
            old, self.blocks[-1:] = self.blocks[-1], new
            allocator.free([old])
            return [(old, *new)]
        return []
