"""Right answers to `prefix_cache` in styles other than ours."""

import time
from collections import OrderedDict

from pagedlab.cache.allocator import BlockNotInUseError, DoubleFreeError, DuplicateBlockError, OutOfBlocksError
from tests.corpus import right


@right
class ThreeDicts:
    def __init__(self, allocator):
        self.allocator, self.block_of, self.hash_of, self.idle = allocator, {}, {}, {}

    @property
    def num_free(self):
        return self.allocator.num_free + len(self.idle)

    def ref_count(self, block):
        return self.allocator.ref_count(block) - (block in self.hash_of)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.allocator.num_blocks)
        while self.allocator.num_free < n:
            block = next(iter(self.idle))
            del self.idle[block], self.block_of[self.hash_of.pop(block)]
            self.allocator.free([block])
        return self.allocator.allocate(n)

    def share(self, blocks):
        if any(self.ref_count(block) == 0 for block in blocks):
            raise BlockNotInUseError(next(block for block in blocks if self.ref_count(block) == 0))
        self.allocator.share(blocks)

    def free(self, blocks):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise DoubleFreeError(block)
        self.allocator.free(blocks)
        self.idle.update(dict.fromkeys(b for b in blocks if b in self.hash_of and self.ref_count(b) == 0))

    def lookup(self, hashes):
        found = []
        for one in hashes:
            if one not in self.block_of:
                break
            found.append(self.block_of[one])
        self.allocator.share(found)
        for block in found:
            self.idle.pop(block, None)
        return found

    def publish(self, block, block_hash):
        if block_hash in self.block_of:
            return
        self.allocator.share([block])
        self.block_of[block_hash], self.hash_of[block] = block, block_hash


@right
class OwnBooks:
    """Takes all blocks of the allocator at the start and keeps its own counts; one queue of free blocks, as in vLLM."""

    def __init__(self, allocator):
        self.num_blocks = allocator.num_blocks
        blocks = allocator.allocate(allocator.num_free)
        self.queue = OrderedDict.fromkeys(blocks)  # empty ones in front, cached ones behind them in order
        self.counts = dict.fromkeys(blocks, 0)
        self.inner, self.names, self.blocks_by_name = allocator, {}, {}

    num_free = property(lambda self: len(self.queue))

    def ref_count(self, block):
        self.inner.ref_count(block)  # for its error
        return self.counts[block]

    def allocate(self, n):
        if n > len(self.queue):
            raise OutOfBlocksError(n, len(self.queue), self.num_blocks)
        blocks = list(self.queue)[:n]
        for block in blocks:
            del self.queue[block]
            self.blocks_by_name.pop(self.names.pop(block, None), None)
            self.counts[block] = 1
        return blocks

    def look(self, blocks, error):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise error(block)
        if len(set(blocks)) < len(blocks):
            raise DuplicateBlockError(blocks[0])

    def share(self, blocks):
        self.look(blocks, BlockNotInUseError)
        for block in blocks:
            self.counts[block] += 1

    def free(self, blocks):
        self.look(blocks, DoubleFreeError)
        for block in blocks:
            self.counts[block] -= 1
            if self.counts[block] == 0:
                self.queue[block] = None
                if block not in self.names:
                    self.queue.move_to_end(block, last=False)

    def lookup(self, hashes):
        blocks = []
        for name in hashes:
            if name not in self.blocks_by_name:
                break
            block = self.blocks_by_name[name]
            self.queue.pop(block, None)
            self.counts[block] += 1
            blocks.append(block)
        return tuple(blocks)

    def publish(self, block, block_hash):
        if block_hash not in self.blocks_by_name and block not in self.names:
            self.names[block], self.blocks_by_name[block_hash] = block_hash, block


@right
class Clock(ThreeDicts):
    """A time for each block that is let go; the oldest is searched for. Slow, and right."""

    def __init__(self, allocator):
        super().__init__(allocator)
        self.left_at, self.now = {}, 0

    def free(self, blocks):
        super().free(blocks)
        for block in blocks:
            self.now += 1
            self.left_at[block] = self.now

    def allocate(self, n):
        self.idle = dict.fromkeys(sorted(self.idle, key=self.left_at.get))
        return super().allocate(n)


@right
class Entries:
    """One object for each published block."""

    class Entry:
        def __init__(self, name, block):
            self.name, self.block, self.since = name, block, None

    def __init__(self, allocator):
        self.inner, self.entries = allocator, []

    def find(self, **what):
        (key, value), *_ = what.items()
        return next((entry for entry in self.entries if getattr(entry, key) == value), None)

    def idle(self):
        waiting = [entry for entry in self.entries if self.ref_count(entry.block) == 0]
        return sorted(waiting, key=lambda entry: entry.since)

    @property
    def num_free(self):
        return self.inner.num_free + len(self.idle())

    def ref_count(self, block):
        held = self.inner.ref_count(block)
        return held - 1 if self.find(block=block) else held

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.inner.num_blocks)
        for entry in self.idle()[: max(0, n - self.inner.num_free)]:
            self.entries.remove(entry)
            self.inner.free([entry.block])
        return self.inner.allocate(n)

    def share(self, blocks):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise BlockNotInUseError(block)
        self.inner.share(blocks)

    def free(self, blocks):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise DoubleFreeError(block)
        self.inner.free(blocks)
        for block in blocks:
            if entry := self.find(block=block):
                entry.since = time.perf_counter_ns(), blocks.index(block)

    def lookup(self, hashes):
        hits = []
        for name in hashes:
            entry = self.find(name=name)
            if entry is None:
                break
            hits.append(entry.block)
        self.inner.share(hits)
        return hits

    def publish(self, block, block_hash):
        if self.find(name=block_hash) is None:
            self.inner.share([block])
            self.entries.append(self.Entry(block_hash, block))
