"""Lesson 03: the block allocator. Operations are drawn, made on the answer, and held against who owns what by now."""

from collections.abc import Sequence

from hypothesis import strategies as st

from pagedlab.cache.allocator import (
    BlockNotInUseError,
    DoubleFreeError,
    DuplicateBlockError,
    OutOfBlocksError,
    UnknownBlockError,
    whole_number,
)
from pagedlab.course.promise import Exercise, Wrong, count, promise, tell
from pagedlab.course.words import error_text
from pagedlab.errors import PagedLabError

# (verb, number, leave): how many blocks to allocate, or which holder it is about; `leave` of its blocks are left out.
NUM_BLOCKS = st.integers(1, 6)
SPARE = st.sampled_from([0, 1, 2, 1000])
NUMBER, LEAVE = st.integers(0, 3), st.integers(0, 1)
PLAIN = st.lists(st.tuples(st.sampled_from(["allocate", "free"]), NUMBER, LEAVE), max_size=7)
SHARING = st.lists(st.tuples(st.sampled_from(["allocate", "free", "share"]), NUMBER, LEAVE), max_size=8)

OWNERSHIP = "A block is free or it is held. What must change when it is handed out, and what when it comes back?"
INPUTS = "allocate is given a number, free and share a list of ids. What do your own lists hold by now, and how many?"
NEW = "A new pool is all free. What stands in the class body is shared by all pools: make it in __init__."
KEPT = "The list belongs to the caller, who goes on using it. Sort, pop from or clear a copy: list(blocks)."
WHOLE_CALL = "First look at every block of the call. Only when all of them are fine, change something."


def listed(argument) -> str:
    """What a call is given, in a line; of a long list the beginning and the end."""
    if not isinstance(argument, list) or len(argument) <= 16:
        return f"{argument}"
    return f"[{', '.join(map(str, argument[:3]))}, ..., {argument[-1]}]"


class Replay:
    """An answer's pool, what was done to it, and who holds which block. Holders are called A, B, C, ...

    spoil: empty every list once its call is over. watch: see that calls leave the lists that they are given alone.
    """

    def __init__(self, answer, num_blocks: int, name: str = "pool", spoil: bool = False, watch: bool = False):
        self.name, self.num_blocks, self.spoil, self.watch = name, num_blocks, spoil, watch
        self.holders: dict[str, list[int]] = {}
        self.made = 0  # holders so far, those that have let go included
        self.handed_out: set[int] = set()
        self.reads = False  # whether all ref counts are read between the calls
        self.calls = 0  # that may have changed something
        self.story = [f"{name} = BlockAllocator({num_blocks})"]
        self.pool = answer(num_blocks)

    # What is true by now.

    def ref_count(self, block: int) -> int:
        return sum(block in held for held in self.holders.values())

    @property
    def free_blocks(self) -> list[int]:
        return [block for block in range(self.num_blocks) if not self.ref_count(block)]

    def new_holder(self, blocks: list[int]) -> str:
        name = chr(ord("A") + self.made % 26)
        self.made += 1
        self.holders[name] = blocks
        return name

    # Telling.

    def wrong(self, message: str, hint: str, *blocks: int) -> Wrong:
        """The story so far. `blocks` are what it is about; the pool is drawn with them marked."""
        from pagedlab.widgets import block_picture, pool_state

        tables = {name: (held, len(held)) for name, held in self.holders.items()}
        state = pool_state(tables, num_blocks=self.num_blocks)  # no block size: a cell is a block
        inside = [block for block in blocks if 0 <= block < self.num_blocks]
        title = f"After {count(len(self.story) - 1, 'call')}: {message}"
        picture = block_picture(state, title=title, problem=inside)
        return Wrong(message, "\n".join(self.story), hint, picture)

    def say(self, call: str, what: str) -> None:
        self.story.append(f"{call}  # {what}" if what else call)

    def add(self, what: str) -> None:
        """Say more about the last call."""
        self.story[-1] += f", {what}" if "  # " in self.story[-1] else f"  # {what}"

    # Calling the answer.

    def call(self, verb: str, argument, words: str = "", hint: str = ""):
        """A call that must go well."""
        self.say(f"{self.name}.{verb}({listed(argument)})", words)
        method = getattr(self.pool, verb, None)
        if not callable(method):
            raise self.wrong(f"There is no method `{verb}`.", f"def {verb}(self, ...): inside the class.")
        given = list(argument) if isinstance(argument, list) else argument
        try:
            result = method(given)
        except NotImplementedError:
            raise
        except Exception as error:
            kind = type(error).__name__
            self.add(f"raised {error_text(error)}")
            if self.reads and verb != "ref_count":
                self.story.insert(1, "# after each call, ref_count is read for every block")
            blocks = argument if isinstance(argument, list) else [argument] if verb == "ref_count" else []
            if isinstance(error, OutOfBlocksError):
                free = len(self.free_blocks)
                verb_is = "is" if free == 1 else "are"
                call = f"{verb}({listed(argument)})"
                message = f"{count(free, 'block')} {verb_is} free, but `{call}` raised OutOfBlocksError."
                hint = hint or "Which blocks does your pool take for free? Does every block find its way back?"
                if not self.calls:
                    hint = "A new pool is all free, and n blocks can be had when exactly n are free."
                    hint = "Does asking for a ref_count change something?" if self.reads else hint
                raise self.wrong(message, hint, *self.free_blocks) from error
            message = f"`{verb}({listed(argument)})` is a proper call, but it raised {kind}."
            raise self.wrong(
                message, hint or (OWNERSHIP if isinstance(error, PagedLabError) else INPUTS), *blocks
            ) from error
        self.calls += verb != "ref_count"
        self.stays(verb, argument, given)
        if self.spoil and isinstance(argument, list):
            given.clear()  # the caller's list, to do with as it likes
        return result

    def stays(self, verb: str, argument, given) -> None:
        """The list that a call was given is as it was."""
        if self.watch and isinstance(argument, list) and given != argument:
            self.add(f"the list is now {listed(given)}")
            raise self.wrong(f"`{verb}({listed(argument)})` has changed the list that it was given.", KEPT)

    def allocate(self, n: int, hint: str = OWNERSHIP) -> list[int]:
        result = self.call("allocate", n)
        blocks = self.looked_at(result, n)
        name = self.new_holder(blocks)
        self.add(f"{name} got {listed(blocks)}" if blocks else "[]")
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                there = f"the pool has blocks 0 to {self.num_blocks - 1}"
                raise self.wrong(f"allocate gave block {block}; {there}.", "Blocks are counted from 0.", block)
        for block in blocks:
            if blocks.count(block) > 1:
                raise self.wrong(f"allocate gave block {block} twice in one call.", hint, block)
            if self.ref_count(block) > 1:
                raise self.wrong(f"Block {block} was given to two owners.", hint, block)
        self.handed_out.update(blocks)
        if self.spoil and isinstance(result, list):
            result.clear()
        return blocks

    def looked_at(self, result, n: int) -> list[int]:
        """What allocate gave, as plain numbers."""
        if not isinstance(result, Sequence) or isinstance(result, str | bytes):
            self.add(f"returned {tell(result, 60)}")
            kind = "None" if result is None else f"of type {type(result).__name__}"
            raise self.wrong(
                f"allocate gives a list of {n} block ids; this is {kind}.",
                "return the ids in a list, also when there is only one, or none.",
            )
        try:
            blocks = [whole_number("a block id", block) for block in result]
        except TypeError:
            self.add(f"returned {tell(result, 60)}")
            raise self.wrong("Block ids are whole numbers.", "A block is called by its number: 0, 1, 2, ...") from None
        if len(blocks) != n:
            self.add(f"returned {listed(blocks)}")
            raise self.wrong(
                f"{count(n, 'block')} asked for, {len(blocks)} given.",
                "allocate(n) gives exactly n blocks, or raises OutOfBlocksError.",
            )
        return blocks

    def share(self, blocks: list[int]) -> None:
        name = self.new_holder([])
        self.call("share", blocks, f"{name} holds {'it' if len(blocks) == 1 else 'them'} too" if blocks else "")
        self.holders[name] = list(blocks)

    def free(self, name: str, blocks: list[int], hint: str = "") -> None:
        self.call("free", blocks, f"{name} lets go" if blocks else "", hint)
        self.holders[name] = [block for block in self.holders[name] if block not in blocks]

    def play(self, steps, after=lambda: None) -> None:
        """Make the drawn steps as far as they make sense; `after` each, look."""
        after()
        for verb, number, leave in steps:
            if verb == "allocate":
                self.allocate(min(number, len(self.free_blocks)))
            else:
                names = [name for name, held in self.holders.items() if len(held) > leave]
                if not names:
                    continue
                name = names[number % len(names)]
                blocks = self.holders[name][leave:]
                if self.watch:  # in an order that no allocator would give by itself
                    blocks.sort(reverse=number % 2 == 0)
                self.free(name, blocks) if verb == "free" else self.share(blocks)
            after()

    def refused(self, verb: str, argument, errors, hint: str):
        """A call that must raise one of `errors`. Returns the error, or None if it passed in silence."""
        call = f"{self.name}.{verb}({listed(argument)})"
        self.calls += 1
        method = getattr(self.pool, verb, None)
        if not callable(method):
            self.say(call, "")
            raise self.wrong(f"There is no method `{verb}`.", f"def {verb}(self, ...): inside the class.")
        given = list(argument) if isinstance(argument, list) else argument
        try:
            result = method(given)
        except NotImplementedError:
            raise
        except errors as error:
            self.say(call, type(error).__name__)
            self.stays(verb, argument, given)
            return error
        except Exception as error:
            kind = type(error).__name__
            self.say(call, f"raised {error_text(error)}")
            message = f"`{verb}({listed(argument)})` must raise {errors[0].__name__}; it raised {kind}."
            raise self.wrong(message, f"{hint} {HOW_TO_RAISE[errors[0]]}") from error
        self.say(call, f"must raise {errors[0].__name__}, returned {tell(result, 40)}")
        return None

    # Looking.

    def look_at_num_free(self, hint: str) -> None:
        ask = f"{self.name}.num_free"
        try:
            got = self.pool.num_free
        except AttributeError as error:
            self.say(ask, f"raised {error_text(error)}")
            raise self.wrong("num_free can't be read.", "@property, then def num_free(self): ...") from error
        right = len(self.free_blocks)
        if callable(got):
            self.say(ask, "a method")
            raise self.wrong("num_free is read like an attribute.", "Put @property in the line above def num_free.")
        try:
            number = whole_number("num_free", got)
        except TypeError:
            self.say(ask, f"is {tell(got, 60)}")
            raise self.wrong("num_free is a whole number.", "Of the free blocks, say only how many.") from None
        if number != right:
            self.say(ask, f"is {number}, right is {right}")
            verb = "is" if right == 1 else "are"
            raise self.wrong(
                f"{count(right, 'block')} {verb} free; num_free says {number}.", hint if self.calls else NEW
            )

    def look_at_ref_counts(self, hint: str) -> None:
        for block in range(self.num_blocks):
            ask = f"{self.name}.ref_count({block})"
            before = len(self.story)
            got = self.call("ref_count", block)
            right = self.ref_count(block)
            try:
                number = whole_number("ref_count", got)
            except TypeError:
                self.add(f"is {tell(got, 60)}")
                raise self.wrong("ref_count gives a whole number.", "How many hold this block? 0, 1, 2, ...") from None
            if number != right:
                self.add(f"is {number}, right is {right}")
                held = f"has {count(right, 'holder')}" if right else "is free"
                raise self.wrong(
                    f"Block {block} {held}; `{ask.split('.')[1]}` says {number}.", hint if self.calls else NEW, block
                )
            del self.story[before:]
        self.reads = True

    def take_all(self, hint: str, lost: str = "") -> None:
        """Every block that is free can be had, and no other."""
        for _ in range(len(self.free_blocks)):
            free = self.free_blocks
            try:
                self.allocate(1, hint)
            except Wrong as found:
                if lost and "OutOfBlocksError" in found.message:
                    raise self.wrong(f"{lost} {found.message}", hint, *free) from found.__cause__
                raise

    def unchanged(self, hint: str) -> None:
        self.look_at_num_free(hint)
        self.look_at_ref_counts(hint)
        self.take_all(hint)


HOW_TO_RAISE = {
    OutOfBlocksError: "raise OutOfBlocksError(asked, free, total)",
    DoubleFreeError: "raise DoubleFreeError(block)",
    BlockNotInUseError: "raise BlockNotInUseError(block)",
    UnknownBlockError: "raise UnknownBlockError(block, num_blocks)",
    DuplicateBlockError: "raise DuplicateBlockError(block)",
}


# --- allocate and free ------------------------------------------------------------------------------------------------


@promise("A block goes to one owner", examples=60, asks=st.lists(NUMBER, max_size=4), spare=SPARE)
def one_owner(answer, asks, spare):
    replay = Replay(answer, max(1, sum(asks) + spare))
    for n in asks:
        replay.allocate(n)


@promise("A block that was freed can be used again", examples=60, num_blocks=NUM_BLOCKS, steps=PLAIN)
def used_again(answer, num_blocks, steps):
    replay = Replay(answer, num_blocks)
    replay.play(steps)
    replay.take_all(OWNERSHIP)


@promise("num_free counts the blocks nobody holds", examples=60, num_blocks=NUM_BLOCKS, steps=PLAIN)
def counts_free(answer, num_blocks, steps):
    replay = Replay(answer, num_blocks)
    replay.play(steps, lambda: replay.look_at_num_free("It changes with every allocate and every free, by how much?"))


@promise(
    "Too few free blocks: OutOfBlocksError, and none is taken",
    examples=60,
    num_blocks=NUM_BLOCKS,
    steps=PLAIN,
    more=st.integers(1, 3),
)
def all_or_nothing(answer, num_blocks, steps, more):
    replay = Replay(answer, num_blocks)
    replay.play(steps)
    free = len(replay.free_blocks)
    hint = "All n blocks or none: compare n with num_free before the first block is taken."
    if replay.refused("allocate", free + more, (OutOfBlocksError,), hint) is None:
        verb = "was" if free == 1 else "were"
        raise replay.wrong(
            f"{free + more} blocks were asked for and {free} {verb} free, but nothing was raised.",
            f"{hint} {HOW_TO_RAISE[OutOfBlocksError]}",
        )
    replay.look_at_num_free(hint)
    replay.take_all(hint, lost="The refused call has taken blocks.")


def consequence(replay: Replay, hint: str) -> None:
    """A bad call has passed in silence. Does the pool, as it is now, give a block to two owners?"""
    before = list(replay.story), dict(replay.holders), replay.made
    try:
        for _ in range(min(3, len(replay.free_blocks) + 1)):
            replay.allocate(1, hint)
    except Wrong as found:
        if "two owners" in found.message:
            raise found from None
    replay.story, replay.holders, replay.made = before


@promise("Freeing a free block is a DoubleFreeError", examples=60, num_blocks=NUM_BLOCKS, steps=PLAIN, which=NUMBER)
def double_free(answer, num_blocks, steps, which):
    replay = Replay(answer, num_blocks)
    replay.play([("allocate", 1, 0), ("free", 0, 0), *steps])
    if not replay.free_blocks:
        return
    block = replay.free_blocks[which % len(replay.free_blocks)]
    hint = "What should the `free` of a free block have noticed?"
    if block not in replay.handed_out:
        hint = f"Block {block} was never handed out. Does your pool know that, or does it remember another pool? {NEW}"
    if replay.refused("free", [block], (DoubleFreeError,), hint) is None:
        consequence(replay, hint)
        raise replay.wrong(f"Block {block} is free. Freeing it passed in silence.", hint, block)
    replay.look_at_num_free(hint)
    replay.take_all(hint)


# --- sharing ----------------------------------------------------------------------------------------------------------


@promise("ref_count counts the holders of a block", examples=80, num_blocks=NUM_BLOCKS, steps=SHARING)
def counts_holders(answer, num_blocks, steps):
    replay = Replay(answer, num_blocks)
    hint = "allocate: one holder. share: one more. free: one fewer. A free block has none."
    replay.play(steps, lambda: replay.look_at_ref_counts(hint))


@promise("A shared block is free when its last holder lets go", examples=80, num_blocks=NUM_BLOCKS, steps=SHARING)
def last_holder(answer, num_blocks, steps):
    replay = Replay(answer, num_blocks)
    hint = "A block is free when its ref count comes to 0, not before and not later."
    replay.play(steps, lambda: replay.look_at_num_free(hint))
    replay.take_all(hint)


@promise("Also in a pool of 100 blocks", examples=6, num_blocks=st.sampled_from([100, 70, 130]))
def large_pool(answer, num_blocks):
    replay = Replay(answer, num_blocks)
    hint = "It worked in small pools. Is anything in your class as long, or as wide, as one of those?"
    blocks = replay.allocate(num_blocks, hint)
    replay.look_at_num_free(hint)
    replay.share(blocks[-2:])
    replay.free("A", blocks, hint)
    replay.look_at_num_free(hint)
    replay.free("B", blocks[-2:], hint)
    replay.look_at_num_free(hint)
    replay.look_at_ref_counts(hint)
    replay.allocate(num_blocks, hint)


# --- calls that must be refused ---------------------------------------------------------------------------------------

ERROR_IN = {"free": DoubleFreeError, "share": BlockNotInUseError}


@promise(
    "Sharing a free block is a BlockNotInUseError",
    examples=60,
    num_blocks=NUM_BLOCKS,
    steps=SHARING,
    which=st.integers(0, 5),
)
def share_free(answer, num_blocks, steps, which):
    replay = Replay(answer, num_blocks)
    replay.play(steps)
    if not replay.free_blocks:
        return
    block = replay.free_blocks[which % len(replay.free_blocks)]
    hint = "One more holder needs a first one."
    if replay.refused("share", [block], (BlockNotInUseError,), hint) is None:
        consequence(replay, "What should the `share` of a free block have noticed?")
        raise replay.wrong(f"Block {block} is free. Sharing it passed in silence.", hint, block)
    replay.unchanged(WHOLE_CALL)


@promise(
    "A block that the pool doesn't have is an UnknownBlockError",
    examples=60,
    num_blocks=NUM_BLOCKS,
    verb=st.sampled_from(["free", "share", "ref_count"]),
    beyond=st.integers(-3, 2),
    taken=st.booleans(),
)
def unknown(answer, num_blocks, verb, beyond, taken):
    replay = Replay(answer, num_blocks)
    if taken:
        replay.allocate(num_blocks)
    block = num_blocks + beyond if beyond >= 0 else beyond
    hint = "Blocks are numbered 0 to num_blocks - 1."
    if block < 0:
        hint += " Python takes a negative index, and counts from the end."
    if replay.refused(verb, block if verb == "ref_count" else [block], (UnknownBlockError,), hint) is None:
        raise replay.wrong(f"There is no block {block}, but `{verb}` took it.", hint)
    replay.unchanged(WHOLE_CALL)


@promise(
    "A block named twice in one call is a DuplicateBlockError",
    examples=60,
    n=st.integers(1, 3),
    spare=st.integers(0, 2),
    verb=st.sampled_from(["free", "share"]),
    which=st.integers(0, 2),
)
def duplicate(answer, n, spare, verb, which):
    replay = Replay(answer, n + spare)
    blocks = replay.allocate(n)
    replay.share(blocks)  # two holders, so that counting entries takes what belongs to the other
    named = [*blocks, blocks[which % n]]
    hint = "One call speaks for one holder, who holds a block once."
    errors = (DuplicateBlockError, DoubleFreeError) if verb == "free" else (DuplicateBlockError,)
    if replay.refused(verb, named, errors, hint) is None:
        if verb == "free":
            replay.holders["A"] = []
            consequence(replay, "B still holds it: A let go once, and was counted twice.")
            replay.holders["A"] = blocks
        raise replay.wrong(f"Block {named[-1]} is named twice, and `{verb}` took it.", hint, named[-1])
    replay.unchanged(WHOLE_CALL)


@promise(
    "A refused call changes nothing",
    num_blocks=st.integers(2, 6),
    steps=SHARING,
    verb=st.sampled_from(["free", "share", "allocate"]),
    bad=st.sampled_from(["free", "unknown", "duplicate"]),
    at_the_end=st.booleans(),
)
def changes_nothing(answer, num_blocks, steps, verb, bad, at_the_end):
    replay = Replay(answer, num_blocks)
    replay.play(steps)
    held = next((blocks for blocks in replay.holders.values() if blocks), [])
    if verb == "allocate":
        replay.refused("allocate", len(replay.free_blocks) + 1, (OutOfBlocksError,), "")
        return replay.unchanged("All n blocks or none: compare n with num_free before anything changes.")
    if (bad == "duplicate" and not held) or (bad == "free" and not replay.free_blocks):
        return None
    wrong_block = {"free": (replay.free_blocks or [0])[0], "unknown": num_blocks, "duplicate": (held or [0])[0]}[bad]
    named = [*held, wrong_block] if at_the_end else [wrong_block, *held]
    errors = {"free": (ERROR_IN[verb],), "unknown": (UnknownBlockError,), "duplicate": (DuplicateBlockError,)}[bad]
    if verb == "free" and bad == "duplicate":
        errors = (DuplicateBlockError, DoubleFreeError)
    if replay.refused(verb, named, errors, WHOLE_CALL) is None:
        raise replay.wrong(f"`{verb}({named})` must be refused, but passed in silence.", WHOLE_CALL, wrong_block)
    return replay.unchanged(WHOLE_CALL)


@promise("An error names the numbers", examples=40, num_blocks=NUM_BLOCKS, taken=NUMBER, more=st.integers(1, 3))
def names_numbers(answer, num_blocks, taken, more):
    replay = Replay(answer, num_blocks)
    blocks = replay.allocate(min(taken, num_blocks))
    free = num_blocks - len(blocks)

    def expect(verb, argument, errors, **right):
        error = replay.refused(verb, argument, errors, "")
        for name, value in right.items():
            got = getattr(error, name, value)  # an error class of the learner's own need not have it
            if got != value:
                replay.add(f"{name}={tell(got, 40)}, right is {value}")
                raise replay.wrong(f"The error says {name}={tell(got, 40)}; right is {value}.", HOW_TO_RAISE[errors[0]])

    expect("allocate", free + more, (OutOfBlocksError,), asked=free + more, free=free, total=num_blocks)
    expect("free", [num_blocks], (UnknownBlockError,), block=num_blocks, num_blocks=num_blocks)
    if free:
        block = replay.free_blocks[-1]
        expect("free", [*blocks, block], (DoubleFreeError,), block=block)
        expect("share", [*blocks, block], (BlockNotInUseError,), block=block)
    if blocks:
        expect("free", [*blocks, blocks[-1]], (DuplicateBlockError, DoubleFreeError), block=blocks[-1])


# --- other people's things --------------------------------------------------------------------------------------------


@promise("Two allocators know nothing of each other", examples=30, num_blocks=NUM_BLOCKS, steps=SHARING)
def independent(answer, num_blocks, steps):
    first = Replay(answer, num_blocks, "first")
    first.play(steps)
    second = Replay(answer, num_blocks + 1, "second")
    first.story += second.story
    first.story.append(f"second.allocate({num_blocks})  # got {second.allocate(num_blocks)}")
    second.story[:0] = first.story[:-2]
    hint = "What stands in the class body is shared by all allocators. Make it in __init__."
    first.unchanged(hint)
    second.unchanged(hint)


@promise("A list belongs to the caller, who may change it", examples=40, num_blocks=NUM_BLOCKS, steps=SHARING)
def lists_are_the_callers(answer, num_blocks, steps):
    replay = Replay(answer, num_blocks, spoil=True)
    replay.story.append("# every list is emptied once its call is over")
    hint = "Do you keep the very list that you were given, or that you gave away? Keep a copy."
    try:
        replay.play(steps)
        replay.unchanged(hint)
    except Wrong as found:
        found.hint = hint
        raise


@promise("The lists it is given stay as they were", examples=40, num_blocks=st.integers(2, 6), steps=SHARING)
def lists_stay(answer, num_blocks, steps):
    replay = Replay(answer, num_blocks, watch=True)
    replay.play([("allocate", 2, 0), *steps])
    held = next((blocks for blocks in replay.holders.values() if blocks), [])
    for verb in ("share", "free"):
        replay.refused(verb, [*held, num_blocks], (UnknownBlockError,), WHOLE_CALL)


EXERCISES = (
    Exercise(
        id="block_allocator",
        title="Who owns which block",
        kind="class",
        reference="pagedlab.cache.allocator:BlockAllocator",
        promises=(
            one_owner,
            used_again,
            counts_free,
            all_or_nothing,
            double_free,
            counts_holders,
            last_holder,
            large_pool,
            share_free,
            unknown,
            duplicate,
            changes_nothing,
            names_numbers,
            independent,
            lists_are_the_callers,
            lists_stay,
        ),
        hints=(
            "Two things to keep: which blocks are free, and how many holders each block has. When does a block move "
            "from one group to the other?",
            "A list of free ids can give its last one with pop() and take one back with append(). A second list, "
            "[0] * num_blocks, counts the holders. A block is in the first list exactly when its count is 0.",
            "share and free refuse the same things. Write one helper that looks at all blocks of a call and raises; "
            "call it first, and change the counts after it. `0 <= block < self.num_blocks` keeps -1 out, and a set is "
            "shorter than its list when an id is named twice.",
            "allocate: if n > len(self.free_list), raise OutOfBlocksError(n, len(self.free_list), "
            "self.num_blocks). Then pop n ids and set each count to 1.\n"
            "free, once everything was looked at: for each block, self.holders[block] -= 1; "
            "if self.holders[block] == 0: self.free_list.append(block).",
        ),
    ),
)
