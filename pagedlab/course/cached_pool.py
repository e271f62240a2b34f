"""A prefix cache under test: who holds which block, what was published, and who must be evicted next.

Texts are told as digests: b"ab" is the digest of a block "b" behind a block "a".
"""

from collections.abc import Sequence

from pagedlab.cache.allocator import BlockAllocator, OutOfBlocksError, whole_number
from pagedlab.course.exercises.l03 import OWNERSHIP, Replay, listed
from pagedlab.course.paged_inputs import shuffled
from pagedlab.course.promise import Wrong, count, tell
from pagedlab.course.words import error_text

HELD = "A hit is one more holder: the caller may read the block until it frees it."
EVICT = "Which blocks are only cached, in the order in which their last holder let go? The first of them goes first."
STALE = "When a block is evicted, its digest must go from the map in the same moment."
MANY = 12  # digests that are told one by one


def chain(text: str) -> list[bytes]:
    """The digests of a text whose blocks have one letter each."""
    return [text[: end + 1].encode() for end in range(len(text))]


class CachedPool(Replay):
    """`Replay` with lookup and publish: a block without a holder may still be cached, and counts as free."""

    def __init__(self, answer, num_blocks: int, seed: int = 0, lru: bool = False, **watched):
        """lru: also hold the order of evictions against who was without a holder for longest."""
        self.lru = lru
        self.published: dict[bytes, int] = {}
        self.idle: list[int] = []  # cached, without a holder; the longest so first
        self.left_in: dict[int, int] = {}  # the call in which a block's last holder let go
        self.content: dict[int, bytes] = {}  # what the block's last owner wrote into it

        def make(num_blocks):
            allocator = BlockAllocator(num_blocks)
            if seed:
                allocator.free(shuffled(allocator.allocate(num_blocks), seed))
            return answer(allocator)

        super().__init__(make, num_blocks, "cache", **watched)
        self.story[0] = f"cache = PrefixCache(BlockAllocator({num_blocks}))"

    def wrong(self, message: str, hint: str, *blocks: int) -> Wrong:
        found = super().wrong(message, hint, *(block for block in blocks if isinstance(block, int)))  # no digests
        if self.published:
            kept = [f"{digest}: block {block}" for digest, block in self.published.items()]
            if len(kept) > MANY:
                kept[2:-1] = [f"... ({len(kept) - 3} more)"]
            found.example += "\n# published and not evicted: " + ", ".join(kept)
        return found

    def allocate(self, n: int, hint: str = OWNERSHIP) -> list[int]:
        idle, needed = list(self.idle), max(0, n - len(self.free_blocks) + len(self.idle))
        blocks = super().allocate(n, hint)
        taken = [block for block in blocks if block in idle]
        if len(taken) > needed:
            raise self.wrong(
                f"Block {taken[-1]} was cached, and it was taken although there were blocks with nothing in them.",
                "Blocks that are free and not cached go first. They cost nobody anything.",
                taken[-1],
            )
        for block in taken if self.lru else ():
            if block not in idle[:needed]:
                self.taken_too_early(block, next(one for one in idle if one not in taken))
        self.idle = [block for block in idle if block not in taken]
        self.published = {digest: block for digest, block in self.published.items() if block not in taken}
        for block in blocks:
            self.content.pop(block, None)
        return blocks

    def taken_too_early(self, block: int, first: int) -> None:
        names = {block: digest for digest, block in self.published.items()}
        if self.left_in[block] == self.left_in[first]:
            raise self.wrong(
                f"Block {block} ({names[block]}) was evicted before block {first} ({names[first]}), which was named "
                f"before it in the same free.",
                "Keep the order in which free names them. A request names its last block first already.",
                block,
                first,
            )
        raise self.wrong(
            f"Block {block} ({names[block]}) was evicted; block {first} ({names[first]}) has been without a holder for "
            f"longer.",
            EVICT,
            block,
            first,
        )

    def free(self, name: str, blocks: list[int], hint: str = "") -> None:
        super().free(name, blocks, hint)
        cached = set(self.published.values())
        self.idle += [block for block in blocks if block in cached and not self.ref_count(block)]
        self.left_in.update(dict.fromkeys(blocks, self.calls))

    def write(self, block: int, digest: bytes) -> None:
        self.content[block] = digest

    def publish(self, block: int, digest: bytes) -> None:
        call = f"publish({block}, {digest})"
        known = f"{digest} is known: nothing changes" if digest in self.published else ""
        self.say(f"cache.{call}", known)
        method = getattr(self.pool, "publish", None)
        if not callable(method):
            raise self.wrong("There is no method `publish`.", "def publish(self, block, digest): inside the class.")
        try:
            method(block, digest)
        except NotImplementedError:
            raise
        except Exception as error:
            self.add(f"raised {error_text(error)}")
            hint = "The caller holds the block. A digest that is known already is fine: the older block stays."
            raise self.wrong(f"`{call}` could not be done: {type(error).__name__}.", hint, block) from error
        self.calls += 1
        self.published.setdefault(digest, block)

    def publish_all(self, blocks: list[int], digests: list[bytes]) -> None:
        """Many blocks, written and published one by one; told by the first and the last."""
        before = len(self.story)
        for block, digest in zip(blocks, digests, strict=True):
            self.write(block, digest)
            self.publish(block, digest)
        self.story[before + 1 : -1] = ["..."]

    def lookup(self, digests: list[bytes]) -> tuple[str, list[int]]:
        """Returns who holds the hits from now on (nobody if there are none), and the hits."""
        want = []
        for digest in digests:
            if digest not in self.published:
                break
            want.append(self.published[digest])
        result = self.call(
            "lookup", list(digests), hint="Each hit gets the caller as a holder; a miss changes nothing."
        )
        got = self.hits(result)
        name = self.new_holder([]) if got else ""
        self.add(f"{name} holds {listed(got)}" if got else f"{got}")
        if got != want:
            self.other_hits(digests, got, want)
        if got:
            self.holders[name] = list(got)
        self.idle = [block for block in self.idle if block not in got]
        for block, digest in zip(got, digests, strict=False):
            if self.content[block] != digest:  # cannot be, as long as `published` is right; said all the same
                raise self.wrong(f"Block {block} holds {self.content[block]}, not {digest}.", STALE, block)
        if self.spoil and isinstance(result, list):
            result.clear()
        return name, got

    def hits(self, result) -> list[int]:
        if isinstance(result, Sequence) and not isinstance(result, str | bytes):
            try:
                return [whole_number("a block id", block) for block in result]
            except TypeError:
                pass
        self.add(f"returned {tell(result, 60)}")
        raise self.wrong(
            "lookup returns a list of block ids, one for each hit.", "An empty list when nothing is found, not None."
        )

    def other_hits(self, digests: list[bytes], got: list[int], want: list[int]) -> None:
        index = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
        if len(got) > len(want) and got[: len(want)] == want:
            block, digest = got[index], digests[index] if index < len(digests) else None
            if block in [self.published.get(later) for later in digests[index + 1 :]]:
                raise self.wrong(
                    f"{digests[len(want)]} is missing, so nothing behind it can be used; block {block} was returned.",
                    "Stop at the first digest that is not there.",
                    block,
                )
            now = (
                f"it holds {self.content[block]} now" if block in self.content else "it was handed out for other things"
            )
            raise self.wrong(
                f"{digest} is not cached any more, but lookup returned block {block}: {now}.", STALE, block
            )
        if len(got) < len(want) and want[: len(got)] == got:
            block = want[index]
            idle = f"block {block} was not evicted, although nobody holds it" if not self.ref_count(block) else ""
            raise self.wrong(
                f"{digests[index]} is cached in block {block}, and lookup did not find it.",
                f"Does a block leave the map when its last holder lets go? It should stay: {idle}."
                if idle
                else "The first digest that is missing ends the prefix, no other.",
                block,
            )
        digest, block = digests[index], got[index]
        raise self.wrong(
            f"{digest} was published as block {want[index]}; lookup gave block {block}.",
            "The older block stays: a digest that is known already is not published again.",
            block,
            want[index],
        )

    # Moves that belong together.

    def serve(self, text: str, publish: bool = True) -> str:
        """A request: look up its blocks, take those that are missing, compute and publish them. Returns its holder."""
        name, hits = self.lookup(chain(text))
        missing = len(text) - len(hits)
        if not missing:
            return name
        new = self.allocate(missing)
        taken = list(self.holders)[-1]
        if hits:  # the same holder took both
            self.holders[name] += self.holders.pop(taken)
            self.story[-1] = self.story[-1].replace(f"{taken} got", f"{name} got")
            self.made -= 1
        name = name or taken
        for block, digest in zip(new, chain(text)[len(hits) :], strict=True):
            self.write(block, digest)
            if publish:
                self.publish(block, digest)
        return name

    def end(self, name: str) -> None:
        """The last block first, as a table does it."""
        self.free(name, self.holders[name][::-1])

    def room(self, text: str) -> bool:
        """Whether `serve(text)` can be done: hits that nobody holds are not there to be evicted."""
        digests = chain(text)
        hits = [self.published[digest] for digest in digests if digest in self.published]
        return len(text) - len(hits) <= len(self.free_blocks) - sum(not self.ref_count(block) for block in hits)

    def every_hash(self, digests) -> None:
        """Each of the digests alone: found if it should be, not found if it should not."""
        for digest in digests:
            name, hits = self.lookup([digest])
            if hits:
                self.free(name, hits)

    def too_many(self, more: int) -> None:
        n = len(self.free_blocks) + more
        hint = "Compare n with num_free before anything is evicted."
        if self.refused("allocate", n, (OutOfBlocksError,), hint) is None:
            free = count(len(self.free_blocks), "block")
            raise self.wrong(f"{n} blocks were asked for, {free} could be had, but nothing was raised.", hint)


__all__ = ["CachedPool", "Wrong", "chain", "listed"]
