"""The prefix cache: blocks whose contents are worth keeping after their last holder has left.

It goes where an allocator goes, in front of one. Seen from outside nothing changes: blocks are free, or they have
holders. But of the free blocks some still hold the keys and values of a beginning that may come again. The cache is
one more holder of those, and lets go of one, the least recently used, when the allocator has nothing else to give.

A block is in one of three states:

    free          the allocator's; its contents are nobody's
    in use        somebody holds it; published or not
    cached-free   only the cache holds it: counted in `num_free`, found by `lookup`, evicted when memory is needed

    allocate      free -> in use, and cached-free -> in use with its old name forgotten
    publish       in use, from now on found by its hash
    lookup        one more holder, also of a block that was cached-free
    free          the last holder leaves: published blocks become cached-free, others free

Blocks that are freed together become evictable in the order in which they are named. A block table names its last block
first, so a prefix loses its end before its beginning: without the beginning, the rest could not be found.

Sources: vLLM's design page "Automatic Prefix Caching" (docs.vllm.ai/en/latest/design/prefix_caching.html); hashes:
`block_hash.py`.
"""

from collections import OrderedDict
from collections.abc import Iterable

from pagedlab.cache.allocator import Allocator, BlockNotInUseError, DoubleFreeError, OutOfBlocksError, whole_number
from pagedlab.cache.block_hash import (  # noqa: F401 (hashes and their cache are used together)
    HashChain,
    extra_keys_of,
    image_key,
    prefix_hash_chain,
)
from pagedlab.errors import PagedLabError


class PrefixCache:
    """An allocator that remembers what its free blocks hold. Every call does all it was asked or changes nothing.

    All costs are per block named in the call, whatever the size of the pool. What a block holds is told by its hash
    alone, any bytes that say it all: `prefix_hash_chain` makes them.
    """

    def __init__(self, allocator: Allocator):
        """Blocks of `allocator` may be in use already; from now on they come and go through the cache."""
        self.allocator = allocator
        self.num_blocks = getattr(allocator, "num_blocks", allocator.num_free)
        self.num_queries = 0
        """Blocks that lookups asked for."""
        self.num_hits = 0
        """How many of them were there."""
        self._block_of: dict[bytes, int] = {}  # published blocks by hash ...
        self._hash_of: dict[int, bytes] = {}  # ... and the other way round
        self._cached_free: OrderedDict[int, None] = OrderedDict()  # least recently used first

    # An allocator, seen from outside: the cache itself is no holder.

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can give: free or cached-free."""
        return self.allocator.num_free + len(self._cached_free)

    def ref_count(self, block: int) -> int:
        """How many holders the block has besides the cache; 0 means free or cached-free."""
        return self.allocator.ref_count(block) - (block in self._hash_of)

    def allocate(self, n: int) -> list[int]:
        """Take `n` blocks: free ones first, then the least recently used of the cached-free, whose contents are lost.

        OutOfBlocksError: fewer than `n` are free or cached-free. Nothing is evicted then.
        """
        n = whole_number("n", n, at_least=0)
        if n > self.num_free:
            raise OutOfBlocksError(asked=n, free=self.num_free, total=self.num_blocks)
        blocks = list(self.allocator.allocate(min(n, self.allocator.num_free)))
        while len(blocks) < n:
            self._evict()
            blocks += self.allocator.allocate(1)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each of these blocks, which must be in use. Errors: as `BlockAllocator.share`."""
        blocks = self._numbers(blocks)
        for block in blocks:
            if block in self._cached_free:  # `lookup` is the way to these
                raise BlockNotInUseError(block)
        self.allocator.share(blocks)

    def free(self, blocks: Iterable[int]) -> None:
        """One holder fewer for each of these blocks. Errors: as `BlockAllocator.free`."""
        blocks = self._numbers(blocks)
        for block in blocks:
            if block in self._cached_free:
                raise DoubleFreeError(block)
        self.allocator.free(blocks)
        for block in blocks:
            if block in self._hash_of and self.ref_count(block) == 0:
                self._cached_free[block] = None  # behind all others: the most recently used

    # The cache.

    def lookup(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest cached prefix of these hashes, in order. The caller is one more holder of each.

        From this moment they cannot be evicted, so ask before you allocate the rest. Give them back with `free`, last
        one first. A sequence must compute at least its last token: do not ask for the block of a token that has to be
        computed anyway, `hashes[: (num_tokens - 1) // block_size]`.
        """
        hashes = [_checked_hash(block_hash) for block_hash in hashes]
        blocks = []
        for block_hash in hashes:
            if block_hash not in self._block_of:
                break  # what comes after a gap depends on what is missing
            blocks.append(self._block_of[block_hash])
        self.allocator.share(blocks)
        for block in blocks:
            self._cached_free.pop(block, None)
        self.num_queries += len(hashes)
        self.num_hits += len(blocks)
        return blocks

    def publish(self, block: int, block_hash: bytes) -> None:
        """The contents of this full block, which the caller holds, are complete in all layers: let others find it.

        If a block with this hash is there already, it stays the one that is found, and `block` remains as it is.
        NotHeldError: the block is free. AlreadyPublishedError: it is known under another hash.
        """
        block_hash = _checked_hash(block_hash)
        block = whole_number("a block id", block)
        if self.ref_count(block) == 0:
            raise NotHeldError(block)
        if self._hash_of.get(block, block_hash) != block_hash:
            raise AlreadyPublishedError(block)
        if block_hash in self._block_of:
            return
        self.allocator.share([block])
        self._block_of[block_hash] = block
        self._hash_of[block] = block_hash

    def forget(self, block: int) -> None:
        """This block is about to be written again, by its only holder: it is no longer found. Harmless if it is not."""
        if block in self._hash_of and block not in self._cached_free:
            self._forget(block)
            self.allocator.free([block])

    def reset(self) -> None:
        """Forget everything. Blocks in use stay with their holders, and will be plain free when those leave."""
        for block in self._cached_free:
            self.allocator.free([block])
            self._forget(block)
        self._cached_free.clear()
        for block in list(self._hash_of):
            self.allocator.free([block])
            self._forget(block)

    # For tests, pictures and statistics.

    @property
    def num_cached_free(self) -> int:
        return len(self._cached_free)

    @property
    def cached_free_blocks(self) -> tuple[int, ...]:
        """Blocks that only the cache holds, in the order in which they would be evicted."""
        return tuple(self._cached_free)

    @property
    def free_blocks(self) -> tuple[int, ...]:
        """What `allocate` gives next, in order, where the allocator inside shows its own `free_blocks`."""
        return (*self.allocator.free_blocks, *self._cached_free)

    @property
    def hit_rate(self) -> float:
        """The part of the asked blocks that were there; 0.0 before the first question."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0

    def contents(self) -> dict[bytes, int]:
        """Published blocks by hash: a copy."""
        return dict(self._block_of)

    def _evict(self) -> None:
        block, _ = self._cached_free.popitem(last=False)
        self._forget(block)
        self.allocator.free([block])

    def _forget(self, block: int) -> None:
        del self._block_of[self._hash_of.pop(block)]

    def _numbers(self, blocks: Iterable[int]) -> list[int]:
        return [whole_number("a block id", block) for block in blocks]


class NotHeldError(BlockNotInUseError):
    """A free block was published. Nothing was changed."""

    def __str__(self):
        return (
            f"block {self.block} is free: its contents are nobody's to publish. Nothing was changed. "
            f"Publish a block while its sequence still holds it."
        )


class AlreadyPublishedError(PagedLabError):
    """A published block was published under a second hash. Nothing was changed."""

    def __init__(self, block: int):
        super().__init__(block)
        self.block = block

    def __str__(self):
        return (
            f"block {self.block} is published under another hash, so others may be reading it. Nothing was changed. "
            f"A published block must not be written again: put other contents into another block."
        )


def _checked_hash(block_hash: bytes) -> bytes:
    if not isinstance(block_hash, bytes):
        raise TypeError(f"a block's hash is bytes, as prefix_hash_chain makes them, not {block_hash!r}")
    return block_hash
