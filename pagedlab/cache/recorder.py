"""A recorder for block moves: it stands in for an allocator, passes every call on, and remembers what happened.

    recorder = Recorder(BlockAllocator(8), block_size=4)   # or your own allocator
    recorder.allocate(2); recorder.free([0])               # same verbs, one step each

    table = recorder.table("A", texts=["The", " cat", " sat"])   # a BlockTable, or table=your own
    table.append_tokens(3, recorder)                             # one step: "A appends 3 tokens: ..."

    for step in recorder.steps:
        print(step.index, step.caption, step.state.free_blocks)

What a picture needs:

- `recorder.steps` is a tuple of `Step`s. `steps[0]` is the state at the start (verb "start"); `steps[i].state` is the
  whole pool AFTER step i, so that going back is reading `steps[i - 1].state`. Steps and states never change and pickle.
- A call that raises is a step too (`step.error` says what); the exception goes on to the caller.
- The allocator needs the public verbs only (`pagedlab.cache.allocator.Allocator`). If it also shows its `free_blocks`
  as a tuple, next block first, that order is recorded (a list is taken for a private one, used from either end). If
  not, `state.free_order_known` is False and the free blocks come sorted. What it cannot or does not tell (a `ref_count`
  that raises) is worked out from the calls. A table that cannot be read is shown as it was before.
- A table's `fork` and `copy_on_write` are one step each; the copy is noted. `copy_on_write` with nothing to do is none.
- An allocator with a cache (`pagedlab.cache.prefix`) may also be asked to `lookup` and `publish`: a lookup is a step
  "hit" or "miss". What it shows as `cached_free_blocks` is `state.cached_blocks`: free, but not empty.
- Numbers are plain ints whatever integers came (numpy's, say), collections are tuples, and texts are `drawable`.
- Nothing is checked here. When an allocator hands out a block that is in use, the state shows just that: two sequences
  hold the block (`state.holders(block)`) and its ref count is what the allocator says.

One step may take several calls. Everything inside

    with recorder.step("fork", "B", "B is forked from A"):
        recorder.share(table.blocks)
        ...

is one step with that verb, sequence and opening words; `recorder.copied([(2, 5)])` notes a copied block in it. An empty
`with` block records a remark. Each step keeps a state of its own, about 16 bytes a block of the pool.
"""

import operator
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from pagedlab.cache.allocator import Allocator, whole_number
from pagedlab.cache.table import BlockTable


@dataclass(frozen=True)
class SequenceState:
    """One sequence at one moment."""

    name: str
    blocks: tuple[int, ...]  # its block table: entry i is the physical block of logical block i
    num_tokens: int
    texts: tuple[str, ...]  # one per token, "" where nobody said


@dataclass(frozen=True)
class PoolState:
    """The pool at one moment."""

    num_blocks: int
    block_size: int | None  # slots a block; None if the recorder was not told
    ref_counts: tuple[int, ...]  # one per block, 0 means free
    free_blocks: tuple[int, ...]  # next to be handed out first, if free_order_known
    free_order_known: bool
    num_free: int | None  # what the allocator says; None if it did not answer with a number
    sequences: tuple[SequenceState, ...]  # in the order in which they were made, empty ones included
    cached_blocks: tuple[int, ...] = ()  # free blocks whose contents a cache still finds, next to be evicted first

    def holders(self, block: int) -> tuple[str, ...]:
        """Names of the sequences whose table has this block."""
        return tuple(sequence.name for sequence in self.sequences if block in sequence.blocks)


@dataclass(frozen=True)
class Call:
    """One call of the allocator, as made."""

    verb: str  # "allocate", "share" or "free"; of a cache "lookup" or "publish"
    argument: object  # allocate: a number; share, free: a tuple of blocks; lookup: how many hashes; publish: the block
    result: object  # lists as tuples; None after an error
    error: str | None  # "DoubleFreeError: block 0 is free already: ..."

    def __str__(self):
        if self.verb == "lookup":
            return f"lookup({self.argument} {'hash' if self.argument == 1 else 'hashes'})"
        if not isinstance(self.argument, tuple):
            return f"{self.verb}({self.argument})"
        more = ", ..." if len(self.argument) > _NAMED else ""
        return f"{self.verb}([{', '.join(map(repr, self.argument[:_NAMED]))}{more}])"


@dataclass(frozen=True)
class Step:
    """What happened between two states."""

    index: int
    verb: str  # "start", a call's verb, "hit", "miss"; of tables "append", "truncate", "release", "fork",
    # "copy on write", "adopt"; or your own
    sequence: str | None  # the one that acted
    calls: tuple[Call, ...]  # the allocator calls it took, also the failed one
    copies: tuple[tuple[int, int], ...]  # (source, destination) blocks whose contents were copied
    error: str | None  # what was raised, None if all went well
    caption: str  # the step in one or two plain sentences
    state: PoolState  # after the step

    @property
    def taken(self) -> tuple[int, ...]:
        """Blocks that were allocated."""
        return self._blocks("allocate")

    @property
    def shared(self) -> tuple[int, ...]:
        """Blocks that got one more holder, also because a lookup found them."""
        return self._blocks("share", "lookup")

    @property
    def returned(self) -> tuple[int, ...]:
        """Blocks that lost a holder; those with a ref count of 0 afterwards are free again."""
        return self._blocks("free")

    def _blocks(self, *verbs: str) -> tuple[int, ...]:
        return tuple(block for call in self.calls if call.verb in verbs for block in _blocks_of(call))


class Recorder:
    """Use it wherever an allocator goes. Attributes it does not have itself are those of the allocator inside."""

    def __init__(self, allocator: Allocator, block_size: int | None = None, num_blocks: int | None = None):
        """`num_blocks` is needed only for an allocator without a `num_blocks` that is already in use."""
        self.allocator, self.block_size = allocator, block_size
        self.num_blocks = _pool_size(allocator) if num_blocks is None else whole_number("num_blocks", num_blocks, 1)
        self._tables: dict[str, RecordedTable] = {}
        self._held = [0] * self.num_blocks  # holders, by the calls that succeeded
        self._ref_counts = [0] * self.num_blocks  # what the allocator says; _held where it says nothing
        self._steps: list[Step] = []
        self._open: _OpenStep | None = None
        with self.step("start", title=f"A pool of {self.num_blocks} blocks"):
            pass

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self._steps)

    # The allocator's verbs.

    @property
    def num_free(self) -> int:
        return self.allocator.num_free

    def ref_count(self, block: int) -> int:
        return self.allocator.ref_count(block)

    def allocate(self, n: int) -> list[int]:
        return self._call("allocate", n)

    def share(self, blocks: Iterable[int]) -> None:
        return self._call("share", blocks)

    def free(self, blocks: Iterable[int]) -> None:
        return self._call("free", blocks)

    def __getattr__(self, name):
        if name == "allocator":  # not set yet, as while unpickling
            raise AttributeError(name)
        value = getattr(self.allocator, name)
        # Found here and not written above: an allocator without a cache must not seem to have one.
        return {"lookup": self._lookup, "publish": self._publish}.get(name, value)

    # What the allocator does not know: sequences, and what belongs together.

    def table(self, name: str, table: BlockTable | None = None, texts: Iterable[str] = ()) -> "RecordedTable":
        """Watch the table of a sequence: a new `BlockTable`, or one that exists.

        The result is used like the table and records what it does. `texts` are the words of its tokens by position;
        add those that are generated to the result's `.texts`, best before their token is appended.
        """
        name = drawable(name)
        if name in self._tables:
            raise ValueError(f"there is a sequence {name!r} already; the others are {', '.join(self._tables)}")
        if table is None:
            if self.block_size is None:
                raise ValueError("a new table needs a block size: Recorder(allocator, block_size=16)")
            table = BlockTable(self.block_size)
        if self.block_size is None:
            self.block_size = getattr(table, "block_size", None)
        self._tables[name] = RecordedTable(self, name, table, texts)
        return self._tables[name]

    @contextmanager
    def step(
        self, verb: str, sequence: str | None = None, title: str = "", even_if_nothing: bool = True
    ) -> Iterator[None]:
        """All calls inside are one step. A step inside a step is part of the outer one.

        even_if_nothing=False: no step if there was no call, no copy and no error.
        """
        if self._open is not None:
            yield
            return
        self._open, error = _OpenStep(), None
        try:
            yield
        except BaseException as raised:
            error = _words(raised)
            raise
        finally:
            done, self._open = self._open, None
            if even_if_nothing or done.calls or done.copies or error:
                self._record(done, verb, sequence, title, error)

    def copied(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Note that the contents of these (source, destination) blocks were copied."""
        with self.step("copy"):
            self._open.copies += [(int(source), int(destination)) for source, destination in pairs]

    def _record(self, done: "_OpenStep", verb: str, sequence: str | None, title: str, error: str | None) -> None:
        state = self._state(done)
        calls, copies = tuple(done.calls), tuple(done.copies)
        cached = self._steps[-1].state.cached_blocks if self._steps else ()
        caption = _caption(title, calls, copies, error, state, cached)
        lookups = [call for call in calls if call.verb == "lookup" and call.error is None]
        if verb == "lookup" and lookups:
            verb = "hit" if any(map(_blocks_of, lookups)) else "miss"
        self._steps.append(Step(len(self._steps), verb, sequence, calls, copies, error, caption, state))

    def _lookup(self, hashes: Iterable[bytes]) -> list[int]:
        hashes = list(hashes)
        return self._call("lookup", hashes, told=len(hashes))

    def _publish(self, block: int, block_hash: bytes):
        return self._call("publish", block, block_hash, told=block)

    def _call(self, verb: str, argument, *more, told=None):
        """`told`: the argument as the call remembers it."""
        # Listed once: a generator could not be both passed on and remembered.
        argument = list(argument) if isinstance(argument, Iterable) else argument
        with self.step(verb):
            result = error = None
            try:
                result = getattr(self.allocator, verb)(argument, *more)
            except BaseException as raised:
                error = _words(raised)
                raise
            finally:
                call = Call(verb, _frozen(argument if told is None else told), _frozen(result), error)
                self._open.calls.append(call)
            change = {"free": -1, "publish": 0}.get(verb, 1)
            for block in _blocks_of(call):
                if 0 <= block < self.num_blocks:
                    self._held[block] += change
            return result

    def _state(self, done: "_OpenStep") -> PoolState:
        if self.num_blocks <= _ASK_ABOUT_ALL:
            blocks = range(self.num_blocks)
        else:
            blocks = {b for call in done.calls for b in _blocks_of(call) if 0 <= b < self.num_blocks}
        for block in blocks:
            said = _number(_ask(lambda block=block: self.allocator.ref_count(block)))
            self._ref_counts[block] = self._held[block] if said is None else said

        order = _ask(lambda: self.allocator.free_blocks)
        order = _frozen(order) if isinstance(order, tuple) else None
        cached = _ask(lambda: self.allocator.cached_free_blocks)
        return PoolState(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            ref_counts=tuple(self._ref_counts),
            free_blocks=tuple(b for b, count in enumerate(self._ref_counts) if count == 0) if order is None else order,
            free_order_known=order is not None,
            num_free=_number(_ask(lambda: self.allocator.num_free)),
            sequences=tuple(table.state() for table in self._tables.values()),
            cached_blocks=_frozen(cached) if isinstance(cached, tuple) else (),
        )


class RecordedTable:
    """A block table whose moves are recorded. It goes wherever the table does; the rest of it is the table's own.

    Blocks always come from the recorder and go back to it, whatever allocator a verb is given.
    """

    def __init__(self, recorder: Recorder, name: str, table: BlockTable, texts: Iterable[str] = ()):
        self.recorder, self.name, self.table, self.texts = recorder, name, table, list(texts)
        self._last: SequenceState | None = None

    def append_tokens(self, n: int, allocator: Allocator | None = None) -> list[int]:
        tokens = "1 token" if n == 1 else f"{n} tokens"
        with self.recorder.step("append", self.name, f"{self.name} appends {tokens}"):
            return self.table.append_tokens(n, self.recorder)

    def truncate(self, num_tokens: int, allocator: Allocator | None = None) -> list[int]:
        with self.recorder.step("truncate", self.name, f"{self.name} keeps {num_tokens} of its tokens"):
            return self.table.truncate(num_tokens, self.recorder)

    def free(self, allocator: Allocator | None = None) -> None:
        with self.recorder.step("release", self.name, f"{self.name} gives its blocks back"):
            return self.table.free(self.recorder)

    def fork(self, allocator: Allocator | None = None, name: str | None = None) -> "RecordedTable":
        """The child is recorded too. Without a `name` the first child of A is A2."""
        if name is None:
            name = next(name for i in count(2) if (name := f"{self.name}{i}") not in self.recorder._tables)
        fork = self.table.fork  # a table without this verb is no step
        with self.recorder.step("fork", name, f"{name} is forked from {self.name}"):
            return self.recorder.table(name, fork(self.recorder), self.texts)

    def copy_on_write(self, allocator: Allocator | None = None) -> list[tuple[int, int]]:
        copy_on_write, title = self.table.copy_on_write, f"{self.name} is about to write into a block it shares"
        with self.recorder.step("copy on write", self.name, title, even_if_nothing=False):
            pairs = copy_on_write(self.recorder)
            if pairs:
                self.recorder.copied(pairs)
            return pairs

    def adopt(self, blocks: Iterable[int], num_tokens: int) -> None:
        blocks = list(blocks)
        with self.recorder.step("adopt", self.name, f"{self.name} starts with {_names(blocks)}"):
            return self.table.adopt(blocks, num_tokens)

    def __getattr__(self, name):
        if name == "table":
            raise AttributeError(name)
        return getattr(self.table, name)

    def state(self) -> SequenceState:
        state = _ask(self._read) or self._last or SequenceState(self.name, (), 0, ())
        if state != self._last:  # most steps change one sequence: the others are kept once, not once a step
            self._last = state
        return self._last

    def _read(self) -> SequenceState:
        blocks, num_tokens = tuple(self.table.blocks), operator.index(self.table.num_tokens)
        texts = tuple(drawable(each) for each in self.texts[:num_tokens])
        return SequenceState(self.name, _frozen(blocks), num_tokens, texts + ("",) * (num_tokens - len(texts)))


_ASK_ABOUT_ALL = 1024
"""Up to this size, every ref count is asked for after every step: a broken allocator may change any of them."""

_NAMED = 8
"""Blocks that a caption names; a request of thousands of tokens would fill a page."""


class _OpenStep:
    def __init__(self):
        self.calls: list[Call] = []
        self.copies: list[tuple[int, int]] = []


def _ask(question):
    """None when the allocator cannot answer: looking must never fail."""
    try:
        return question()
    except Exception:
        return None


def drawable(text: object) -> str:
    """`text` with a sign in place of what neither an SVG document nor a message to a browser can carry: control
    characters (a line break and a tab may stay) and halves of surrogate pairs."""
    return _UNDRAWABLE.sub("\ufffd", str(text))


_UNDRAWABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2


def _pool_size(allocator: Allocator) -> int:
    """What the allocator says, or else its free blocks: all there are, as long as none is in use."""
    said = _number(getattr(allocator, "num_blocks", None))
    if said:
        return said
    num_free = _number(allocator.num_free) or 0
    # If any block is in use, then one of these is: either one below num_free, or all from num_free on.
    counts = (_number(_ask(lambda block=block: allocator.ref_count(block))) for block in range(num_free + 1))
    if num_free < 1 or any(counts):
        raise ValueError(
            f"how large is this pool? The allocator has no num_blocks, it is in use already, and {num_free} blocks are "
            f"free. Say so: Recorder(allocator, num_blocks=...), or record from the start."
        )
    return num_free


def _number(value) -> int | None:
    """Any kind of integer as an int; None for everything else."""
    try:
        return int(operator.index(value))
    except TypeError:
        return None


def _frozen(value):
    """Collections as tuples, integers as ints; anything else as it is."""
    if isinstance(value, str | bytes | bool):
        return value
    if isinstance(value, Collection):
        entries = _ask(lambda: tuple(map(_frozen, value)))
        if entries is not None:  # a tensor without dimensions is a collection by its methods only
            return entries
    number = _number(value)
    return value if number is None else number


def _words(error: BaseException) -> str:
    says = _ask(lambda: str(error)) or ""
    return drawable(f"{type(error).__name__}: {says}").rstrip(": ")  # many carry no words


def _blocks_of(call: Call) -> tuple[int, ...]:
    """The blocks a call moved or published; none if it failed."""
    blocks = call.result if call.verb in ("allocate", "lookup") else call.argument
    if call.verb == "publish":
        blocks = (blocks,)
    return tuple(b for b in blocks if isinstance(b, int)) if call.error is None and isinstance(blocks, tuple) else ()


def _caption(
    title: str, calls: tuple[Call, ...], copies, error: str | None, state: PoolState, cached_before: tuple[int, ...]
) -> str:
    """The step in words: "A appends 5 tokens. allocate(2) gives blocks 7 and 3."."""
    sentences = [title] if title else []
    for call in calls:
        sentences += _says(call, state, cached_before)
    sentences += [f"Block {source} is copied to block {destination}" for source, destination in copies]
    if error is not None and not any(call.error == error for call in calls):
        sentences.append(f"It raises {error}")
    return drawable(" ".join(sentence.rstrip(".") + "." for sentence in sentences))


def _says(call: Call, state: PoolState, cached_before: tuple[int, ...]) -> list[str]:
    blocks = _blocks_of(call)
    if call.error is not None:
        return [f"{call} raises {call.error}"]
    if call.verb == "allocate":
        lost = [block for block in blocks if block in cached_before]
        evicted = [f"What {_names(lost)} held is evicted from the cache"] if lost else []
        return [f"{call} gives {_names(blocks) if isinstance(call.result, tuple) else repr(call.result)}", *evicted]
    if call.verb == "share":
        return [f"{call} adds a holder to {_names(blocks)}"]
    if call.verb == "lookup":
        return [f"{call} finds {_names(blocks)}" if blocks else f"{call} finds nothing"]
    if call.verb == "publish":
        return [f"{call} tells the cache what {_names(blocks)} holds"]
    back = [b for b in blocks if 0 <= b < state.num_blocks and state.ref_counts[b] == 0]
    kept = [b for b in back if b in state.cached_blocks]
    now = f"{_names(back)} {'is' if len(back) == 1 else 'are'} free now" if back else "no block becomes free"
    return [f"{call}: {now}", *([f"The cache still knows what {_names(kept)} held"] if kept else [])]


def _names(blocks) -> str:
    """In words: "no blocks", "block 3", "blocks 3, 1 and 7"; of many the first few and how many more."""
    if not blocks:
        return "no blocks"
    if len(blocks) > _NAMED:
        return f"blocks {', '.join(map(str, blocks[:_NAMED]))} and {len(blocks) - _NAMED} more"
    *first, last = map(str, blocks)
    return f"blocks {', '.join(first)} and {last}" if first else f"block {last}"
