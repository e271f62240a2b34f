"""Plausible wrong answers to `prefix_cache`: a right one, and classes that differ from it in one thing."""

from pagedlab.cache.allocator import BlockNotInUseError, DoubleFreeError, OutOfBlocksError
from tests.corpus import wrong

ALLOCATOR = "Without any text it is an allocator"
FOUND = "What was published is found, by its digest"
LONGEST = "The longest beginning that is cached, and no further"
HELD = "A hit is held for the caller"
FREE = "A cached block without a holder counts as free"
LATER = "It is still found after its holder has ended"
PINNED = "A hit that was only cached can't be evicted any more"
NEEDED = "Empty blocks go first, and no more are evicted than needed"
GONE = "An evicted block is not found any more"
AGAIN = "A block that held one text can hold another"
TAILS = "Tails before heads: the end of a text is evicted first"
LRU = "What was used least recently is evicted first"
TWINS = "Of two blocks with the same text, the older one stays"
TWICE = "Publishing again changes nothing"
REFUSED = "A refused allocate evicts nothing"
MISS = "A miss changes nothing"
ONLY_CACHED = "A block that is only cached can be neither freed nor shared"
NOTHING = "A refused call changes nothing"
BACK = "Every block comes back"
LARGE = "Also in a pool of 100 blocks"
LISTS = "The lists are the caller's"


class Right:
    def __init__(self, allocator):
        self.allocator = allocator
        self.num_blocks = allocator.num_blocks
        self.block_of = {}
        self.hash_of = {}
        self.idle = {}

    @property
    def num_free(self):
        return self.allocator.num_free + len(self.idle)

    def ref_count(self, block):
        return self.allocator.ref_count(block) - (block in self.hash_of)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        while self.allocator.num_free < n:
            self.evict(self.next_to_go())
        return self.allocator.allocate(n)

    def next_to_go(self):
        return next(iter(self.idle))

    def evict(self, block):
        del self.idle[block]
        del self.block_of[self.hash_of.pop(block)]
        self.allocator.free([block])

    def share(self, blocks):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise BlockNotInUseError(block)
        self.allocator.share(blocks)

    def free(self, blocks):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise DoubleFreeError(block)
        self.allocator.free(blocks)
        self.let_go(blocks)

    def let_go(self, blocks):
        for block in blocks:
            if block in self.hash_of and self.ref_count(block) == 0:
                self.idle[block] = None

    def lookup(self, hashes):
        blocks = self.known(hashes)
        self.allocator.share(blocks)
        for block in blocks:
            self.idle.pop(block, None)
        return blocks

    def known(self, hashes):
        blocks = []
        for block_hash in hashes:
            if block_hash not in self.block_of:
                break
            blocks.append(self.block_of[block_hash])
        return blocks

    def publish(self, block, block_hash):
        if block_hash not in self.block_of:
            self.allocator.share([block])
            self.block_of[block_hash] = block
            self.hash_of[block] = block_hash


# --- the allocator's side ---


@wrong(ALLOCATOR, "num_free is read like an attribute")
class NumFreeAsAMethod(Right):
    def num_free(self):
        return self.allocator.num_free + len(self.idle)


@wrong(ALLOCATOR, "There is no method `share`")
class ForgetsShare(Right):
    share = None


@wrong(HELD, "ref_count(")
class CountsItself(Right):
    def ref_count(self, block):
        return self.allocator.ref_count(block)

    def let_go(self, blocks):
        for block in blocks:
            if block in self.hash_of and self.ref_count(block) == 1:
                self.idle[block] = None

    def free(self, blocks):
        for block in blocks:
            if block in self.idle:
                raise DoubleFreeError(block)
        self.allocator.free(blocks)
        self.let_go(blocks)


@wrong(FREE, "num_free says")
class CachedIsNotFree(Right):
    @property
    def num_free(self):
        return self.allocator.num_free

    def allocate(self, n):
        while self.allocator.num_free < n and self.idle:
            self.evict(self.next_to_go())
        return self.allocator.allocate(n)


@wrong(HELD, "num_free says")
class CachedIsFreeTooEarly(Right):
    """Counts every published block, also those somebody holds."""

    @property
    def num_free(self):
        return self.allocator.num_free + len(self.hash_of)


# --- looking up ---


@wrong(FOUND, "An empty list when nothing is found, not None")
class NothingFoundIsNone(Right):
    def lookup(self, hashes):
        return super().lookup(hashes) or None


@wrong(FOUND, "did not find it")
class OneHashTooFew(Right):
    """A limit that belongs to the caller: at least one token must be computed."""

    def known(self, hashes):
        return super().known(hashes[:-1])


@wrong(FOUND, "did not find it")
class AllOrNothing(Right):
    def known(self, hashes):
        blocks = super().known(hashes)
        return blocks if len(blocks) == len(hashes) else []


@wrong(LONGEST, "Stop at the first digest that is not there")
class SkipsAGap(Right):
    def known(self, hashes):
        return [self.block_of[block_hash] for block_hash in hashes if block_hash in self.block_of]


@wrong(HELD, "has 2 holders; `ref_count(")
class HitsAreNotHeld(Right):
    def lookup(self, hashes):
        return self.known(hashes)


@wrong(LATER, "should stay")
class ForgetsWithTheLastHolder(Right):
    def free(self, blocks):
        super().free(blocks)
        for block in list(self.idle):
            self.evict(block)


@wrong(LATER, "BlockNotInUseError")
class SharesThroughItself(Right):
    """`self.share` refuses a block that only the cache has."""

    def lookup(self, hashes):
        blocks = self.known(hashes)
        self.share(blocks)
        for block in blocks:
            self.idle.pop(block, None)
        return blocks


@wrong(LATER, "num_free says")
class HitStaysOnTheListToEvict(Right):
    def lookup(self, hashes):
        blocks = self.known(hashes)
        self.allocator.share(blocks)
        return blocks


@wrong(PINNED, "was given to two owners")
class HitIsEvicted(Right):
    """The list of those to evict is the map itself, and nobody looks who holds them."""

    @property
    def num_free(self):
        return self.num_blocks - sum(self.ref_count(block) > 0 for block in range(self.num_blocks))

    def next_to_go(self):
        return next(iter(self.hash_of))

    def evict(self, block):
        self.idle.pop(block, None)
        del self.block_of[self.hash_of.pop(block)]
        while self.allocator.ref_count(block):
            self.allocator.free([block])


# --- evicting ---


@wrong(NEEDED, "with nothing in them")
class CachedFirst(Right):
    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        for block in list(self.idle)[:n]:
            self.evict(block)
        return self.allocator.allocate(n)


@wrong(NEEDED, "with nothing in them")
class ThrowsAllOut(Right):
    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        if self.allocator.num_free < n:
            for block in list(self.idle):
                self.evict(block)
        return self.allocator.allocate(n)


@wrong(NEEDED, "with nothing in them")
class EvictsNBlocks(Right):
    """As many as were asked for, although some are free."""

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        if self.allocator.num_free < n:
            for block in list(self.idle)[:n]:
                self.evict(block)
        return self.allocator.allocate(n)


@wrong(NEEDED, "is not cached any more, but lookup returned block")
class MapKeepsTheEvicted(Right):
    def evict(self, block):
        del self.idle[block]
        del self.hash_of[block]
        self.allocator.free([block])

    def known(self, hashes):
        blocks = super().known(hashes)
        return [block for block in blocks if self.allocator.ref_count(block)]


@wrong(GONE, "has 1 holder; `ref_count(")
class BlockKeepsItsHash(Right):
    """The map forgets the evicted block; the block still takes itself for cached."""

    def evict(self, block):
        del self.idle[block]
        del self.block_of[self.hash_of[block]]
        self.allocator.free([block])


@wrong(TAILS, "was named before it in the same free")
class HeadsFirst(Right):
    def let_go(self, blocks):
        super().let_go(blocks[::-1])


@wrong(TAILS, "was named before it in the same free")
class LastInFirstOut(Right):
    def next_to_go(self):
        return next(reversed(self.idle))


@wrong(TAILS, "was named before it in the same free")
class ByAgeOfPublication(Right):
    """In the order of publication; being used does not count."""

    def next_to_go(self):
        return min(self.idle, key=list(self.hash_of).index)


@wrong(LRU, "has been without a holder for longer")
class ComesBackToItsOldPlace(Right):
    """A hit stays in the order of eviction, marked as used, and keeps its place when it is let go again."""

    def __init__(self, allocator):
        super().__init__(allocator)
        self.order = {}

    def let_go(self, blocks):
        super().let_go(blocks)
        for block in blocks:
            self.order.setdefault(block, len(self.order))

    def next_to_go(self):
        return min(self.idle, key=self.order.get)


@wrong(TAILS, "was named before it in the same free")
class LowestNumberFirst(Right):
    def next_to_go(self):
        return min(self.idle)


# --- publishing ---


@wrong(TWINS, "was published as block")
class TheYoungerTwinWins(Right):
    def publish(self, block, block_hash):
        if block in self.hash_of:
            return
        self.allocator.share([block])
        self.block_of[block_hash] = block
        self.hash_of[block] = block_hash

    def evict(self, block):
        del self.idle[block]
        self.block_of.pop(self.hash_of.pop(block), None)
        self.allocator.free([block])


@wrong(TWINS, "nothing about it changes")
class HoldsTheTwinToo(Right):
    def publish(self, block, block_hash):
        if block not in self.hash_of:
            self.allocator.share([block])
            self.hash_of[block] = block_hash
            self.block_of.setdefault(block_hash, block)

    def ref_count(self, block):
        return self.allocator.ref_count(block) - (block in self.block_of.values())


@wrong(TWINS, "could not be done: ValueError")
class RefusesATwin(Right):
    def publish(self, block, block_hash):
        if self.block_of.get(block_hash, block) != block:
            raise ValueError(f"{block_hash} is known already")
        super().publish(block, block_hash)


@wrong(TWICE, "`ref_count(")
class HoldsOnceMore(Right):
    def publish(self, block, block_hash):
        if self.block_of.get(block_hash, block) == block:
            self.allocator.share([block])
            self.block_of[block_hash] = block
            self.hash_of[block] = block_hash


@wrong(HELD, "ref_count")
class DoesNotHoldWhatItPublished(Right):
    """Puts names on blocks and has no hold of its own."""

    def publish(self, block, block_hash):
        if block_hash not in self.block_of:
            self.block_of[block_hash] = block
            self.hash_of[block] = block_hash


@wrong(TWINS, "only the cache holds is still the one to be found")
class TheHeldTwinWins(Right):
    """The older block is nobody's any more, so the younger one takes its digest over."""

    def publish(self, block, block_hash):
        older = self.block_of.get(block_hash)
        if older in self.idle and block not in self.hash_of:
            self.evict(older)
        super().publish(block, block_hash)


@wrong(LARGE, "a limit on how many digests")
class KeepsEightDigests(Right):
    def publish(self, block, block_hash):
        if len(self.block_of) < 8:
            super().publish(block, block_hash)


@wrong(LARGE, "a limit on how many digests")
class ForgetsTheOldestOf32(Right):
    """When there are too many, the one published first goes, as soon as nobody holds it."""

    def let_go(self, blocks):
        super().let_go(blocks)
        for block in [block for block in self.hash_of if block in self.idle][: max(0, len(self.hash_of) - 32)]:
            self.evict(block)


# --- calls that are refused ---


@wrong(REFUSED, "before anything is evicted")
class EvictsThenRefuses(Right):
    def allocate(self, n):
        while self.allocator.num_free < n and self.idle:
            self.evict(self.next_to_go())
        return self.allocator.allocate(n)


@wrong(MISS, "num_free has changed")
class AMissTakesABlock(Right):
    """Makes room for what will be computed now."""

    def lookup(self, hashes):
        blocks = super().lookup(hashes)
        if hashes and not blocks and self.idle:
            self.allocator.share([self.next_to_go()])
            self.idle.pop(self.next_to_go())
        return blocks


@wrong(ONLY_CACHED, "must raise DoubleFreeError")
class FreesWhatOnlyTheCacheHas(Right):
    def free(self, blocks):
        self.allocator.free(blocks)
        self.let_go(blocks)


@wrong(ONLY_CACHED, "passed in silence")
class SharesWhatOnlyTheCacheHas(Right):
    def share(self, blocks):
        self.allocator.share(blocks)


@wrong(NOTHING, "Only when all of them are fine")
class FreesUpToTheBadOne(Right):
    def free(self, blocks):
        for block in blocks:
            if self.ref_count(block) == 0:
                raise DoubleFreeError(block)
            self.allocator.free([block])
            self.let_go([block])


@wrong(LISTS, "Keep a copy")
class KeepsTheListItGaveAway(Right):
    """Remembers the last answer, to be quick when the same is asked again."""

    last = None, None

    def known(self, hashes):
        asked, blocks = self.last
        if asked != tuple(hashes) or any(block not in self.hash_of for block in blocks):
            blocks = super().known(hashes)
            self.last = (tuple(hashes) if len(blocks) == len(hashes) else None), blocks
        return blocks


@wrong(LISTS, "has changed the list that it was given")
class EatsTheHashes(Right):
    def known(self, hashes):
        blocks = []
        while hashes and hashes[0] in self.block_of:
            blocks.append(self.block_of[hashes.pop(0)])
        return blocks
