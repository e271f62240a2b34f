"""Tables that fork, write and end, held against what each of them wrote: what the checks of lesson 06 stand on."""

from collections.abc import Sequence

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import BlockAllocator, OutOfBlocksError, whole_number
from pagedlab.course.paged_inputs import shuffled
from pagedlab.course.promise import Wrong, count, tell
from pagedlab.course.words import error_text
from pagedlab.errors import PagedLabError

COPY = "Before a token is written: is the last block partly full, and does anybody else hold it? Only then, copy."
OWN_LIST = "list(self.blocks) is a list of its own. Two names for one list are still one list."


def not_pairs(result) -> str:
    """A hint for one who returned something else than a list of pairs of numbers."""
    if result is None:
        return "Also when there is nothing to copy: return []."
    if isinstance(result, tuple) and len(result) == 2 and all(isinstance(one, int) for one in result):
        return "The pair goes into a list: [(old, new)]."
    if isinstance(result, list | tuple) and any(isinstance(one, list) for pair in result for one in listed(pair)):
        return "Source and destination are numbers. allocate(1) returns a list with one number in it."
    return "One pair of numbers in a list, [(old, new)]; or [], when there is nothing to copy."


def listed(thing) -> list:
    """What is in a list or tuple; of anything else, nothing."""
    return list(thing) if isinstance(thing, list | tuple) else []


class Family:
    """An answer's tables over one pool, the words in its slots, and the story so far. Tables are called A, B, C, ...

    The pool's blocks come in a shuffled order. Every token that is written is known by its writer and position: "b3".
    counts: also hold the allocator's ref counts against the tables after every call.
    """

    def __init__(self, answer, block_size: int, num_blocks: int, seed: int, counts: bool = False):
        self.answer, self.block_size, self.num_blocks, self.counts = answer, block_size, num_blocks, counts
        self.allocator = BlockAllocator(num_blocks)
        self.allocator.free(shuffled(self.allocator.allocate(num_blocks), seed))
        self.slots: list[str | None] = [None] * (num_blocks * block_size)
        self.tables: dict[str, object] = {}
        self.blocks: dict[str, list[int]] = {}  # of each table, as they were after the last call
        self.words: dict[str, list[str]] = {}
        self.story = [f"allocator = BlockAllocator({num_blocks})  # blocks of {count(block_size, 'slot')}"]

    # Telling.

    def wrong(self, message: str, hint: str, *blocks: int) -> Wrong:
        """The story so far, with the pool drawn and `blocks` marked in it."""
        return Wrong(message, "\n".join(self.story), hint, self.picture(message, blocks))

    def picture(self, title: str, blocks: Sequence[int]) -> str:
        from pagedlab.widgets import block_picture, pool_state

        try:
            tables = {name: (list(table.blocks), len(self.words[name])) for name, table in self.tables.items()}
            counts = [self.allocator.ref_count(block) for block in range(self.num_blocks)]
            state = pool_state(
                tables, num_blocks=self.num_blocks, block_size=self.block_size, texts=self.words, ref_counts=counts
            )
            inside = [block for block in blocks if 0 <= block < self.num_blocks]
            return block_picture(state, title=title, problem=inside)
        except Exception:  # a table that nobody can read can't be drawn either; the words are enough
            return ""

    def add(self, what: str) -> None:
        self.story[-1] += f", {what}" if "  # " in self.story[-1] else f"  # {what}"

    def call(self, name: str, verb: str, *arguments, story: str = ""):
        """A call of one of the answer's tables that must go well."""
        shown = ", ".join([*map(str, arguments), "allocator"])
        self.story.append(story or f"{name}.{verb}({shown})")
        method = getattr(self.tables[name], verb, None)
        if not callable(method):
            raise self.wrong(f"There is no method `{verb}`.", f"def {verb}(self, ...): inside the class.")
        try:
            return method(*arguments, self.allocator)
        except NotImplementedError:
            raise
        except Exception as error:
            self.add(f"raised {error_text(error)}")
            hint = "Is every hold that you give up one that this table has, and every block that you share in use?"
            if isinstance(error, OutOfBlocksError):
                free = self.allocator.num_free
                hint = (
                    f"{count(free, 'block')} {'is' if free == 1 else 'are'} free. A copy takes one, a fork takes none."
                )
            elif verb == "append_tokens":
                hint = COPY
            elif not isinstance(error, PagedLabError):
                hint = "blocks, num_tokens and block_size are all a table has. An empty one has no last block."
            message = f"`{verb}` could not be done: {type(error).__name__}."
            raise self.wrong(message, hint, *self.blocks.get(name, ())) from error

    # What is true by now.

    def holders(self, block: int) -> list[str]:
        return [name for name, blocks in self.blocks.items() if block in blocks]

    def copy_due(self, name: str) -> bool:
        used = len(self.words[name])
        return used % self.block_size > 0 and len(self.holders(self.blocks[name][used // self.block_size])) > 1

    def blocks_for(self, name: str, n: int) -> int:
        """Free blocks that `n` tokens more take, a copy included."""
        more = blocks_needed(len(self.words[name]) + n, self.block_size) - len(self.blocks[name])
        return more + self.copy_due(name)

    # The moves.

    def start(self, num_tokens: int) -> str:
        name = self.new_name()
        self.story.append(f"{name} = SharingTable({self.block_size})")
        self.tables[name] = self.answer(self.block_size)
        self.blocks[name], self.words[name] = [], []
        if num_tokens:
            self.append(name, num_tokens)
        return name

    def new_name(self) -> str:
        return chr(ord("A") + len(self.words) % 26)

    def fork(self, parent: str) -> str:
        name = self.new_name()
        child = self.call(parent, "fork", story=f"{name} = {parent}.fork(allocator)")
        table, free = self.tables[parent], self.allocator.num_free
        if type(child) is not type(table):
            self.add(f"returned {tell(child, 60)}")
            raise self.wrong(
                f"A fork is a table like its parent; this is {'None' if child is None else type(child).__name__}.",
                "Make a table of the same class, SharingTable(self.block_size), fill it and return it.",
            )
        if child is table or child.blocks is table.blocks:
            what = "the parent itself" if child is table else "the parent's own list of blocks"
            self.add(f"{name} has {what}")
            raise self.wrong(f"{name} has {what}: where one writes, the other grows.", OWN_LIST)
        self.tables[name], self.words[name] = child, list(self.words[parent])
        self.blocks[name] = list(self.blocks[parent])
        self.add(f"blocks {self.read_blocks(name)}")
        if self.read_blocks(name) != self.blocks[parent]:
            raise self.wrong(
                f"{name} has blocks {self.read_blocks(name)}; {parent}, whose fork it is, has {self.blocks[parent]}.",
                "A fork copies nothing and takes nothing: the same blocks, in the same order.",
                *self.read_blocks(name),
            )
        if child.num_tokens != len(self.words[parent]):
            self.add(f"num_tokens {tell(child.num_tokens, 40)}")
            raise self.wrong(
                f"{name} has {tell(child.num_tokens, 40)} tokens; {parent} has {len(self.words[parent])}.",
                "A table is its blocks and its num_tokens.",
            )
        if self.allocator.num_free != free:
            raise self.wrong("A fork has changed the number of free blocks.", "It only adds holders: share.")
        self.look(name)
        return name

    def append(self, name: str, n: int) -> None:
        """`copy_on_write`, the copy it asks for, `append_tokens`, and the words are written."""
        if len(self.tables) > 1:
            self.copy_on_write(name)
        new = self.call(name, "append_tokens", n)
        self.blocks[name] = self.read_blocks(name)
        self.add(f"blocks {self.blocks[name]}")
        table = self.tables[name]
        start, end = len(self.words[name]), len(self.words[name]) + n
        if len(self.blocks[name]) * self.block_size < end or table.num_tokens != end:
            raise self.wrong(
                f"{name} has {end} tokens now; its table has {count(len(self.blocks[name]), 'block')} "
                f"and num_tokens {tell(table.num_tokens, 30)}.",
                "append_tokens is given. Did fork or copy_on_write leave blocks or num_tokens wrong?",
            )
        for position in range(start, end):
            word = f"{name.lower()}{position}"
            self.words[name].append(word)
            self.slots[self.slot(name, position)] = word
        if new:
            self.look(name)
        self.read_all(name)

    def copy_on_write(self, name: str) -> None:
        due, before = self.copy_due(name), list(self.blocks[name])
        free = [block for block in range(self.num_blocks) if not self.holders(block)]
        pairs = self.pairs(name, self.call(name, "copy_on_write"))
        self.add(f"{pairs}")
        now = self.read_blocks(name)
        if not due:
            self.needless(name, before, now, pairs)
            return self.look(name)
        index = len(self.words[name]) // self.block_size
        old = before[index]
        others = " and ".join(other for other in self.holders(old) if other != name)
        hold = "holds" if len(others) == 1 else "hold"
        if not pairs:
            raise self.wrong(
                f"{name} is about to write into block {old}, which {others} {hold} too, and no copy is reported.",
                COPY if now == before else "The copy is made by others, for all layers: return the pair in a list.",
                old,
            )
        if len(pairs) > 1:
            raise self.wrong(f"{len(pairs)} copies, where one block is written to.", "Only the last block.", old)
        if now == before:
            raise self.wrong(
                f"A copy is reported, but {name}'s table still has block {old}.",
                "The new block takes the old one's place in the table.",
                old,
            )
        new = now[index] if index < len(now) else None
        if now != [*before[:index], new, *before[index + 1 :]] or new not in free:
            raise self.wrong(
                f"{name} had blocks {before} and has {now}; only block {old} should have changed, into a free one.",
                "allocate(1) gives the new block. It goes where the old one was.",
                *now,
            )
        if pairs == [(new, old)]:
            raise self.wrong(
                f"The pair is ({new}, {old}): that would copy the new block over the old one.",
                "(source, destination): from the block that has the words to the one that needs them.",
                old,
                new,
            )
        if pairs != [(old, new)]:
            raise self.wrong(
                f"The pair is {pairs[0]}; the words of block {old} must get into block {new}.",
                "(source, destination), both numbers of blocks of the pool.",
                old,
                new,
            )
        self.blocks[name] = now
        b = self.block_size
        self.slots[new * b : new * b + b] = self.slots[old * b : old * b + b]
        return self.look(name)

    def needless(self, name: str, before: list[int], now: list[int], pairs: list) -> None:
        """A call that had nothing to do."""
        if not pairs and now == before:
            return
        words, b = len(self.words[name]), self.block_size
        if not words:
            why, hint = f"{name} has no tokens", "An empty table has nothing to copy."
        elif words % b == 0:
            why = f"{name}'s last block is full, so its next token goes into a new one"
            hint = "A full block is never written to again. Both go on holding it."
        else:
            last = self.blocks[name][-1]
            why = f"{name} alone holds block {last}"
            hint = "ref_count(block) counts this table too. The last holder writes in place."
        raise self.wrong(f"Nothing had to be copied: {why}.", hint, *before[-1:])

    def pairs(self, name: str, result) -> list[tuple[int, int]]:
        """What copy_on_write returned, as plain pairs of numbers."""
        try:
            pairs = [tuple(whole_number("a block id", block) for block in pair) for pair in result]
            if all(len(pair) == 2 for pair in pairs):
                return pairs
        except TypeError:
            pass
        self.add(f"returned {tell(result, 60)}")
        raise self.wrong(
            "copy_on_write returns a list of pairs, [(source, destination)], or an empty list.", not_pairs(result)
        )

    def free(self, name: str) -> None:
        self.call(name, "free")
        self.blocks[name], self.words[name] = [], []
        self.look(name)

    def refused(self, name: str) -> None:
        """copy_on_write without a free block: OutOfBlocksError, and all is as it was."""
        self.story.append(f"{name}.copy_on_write(allocator)")
        before = self.blocks[name]
        counts = [self.allocator.ref_count(block) for block in range(self.num_blocks)]
        hint = "allocate first: it raises by itself, and nothing has changed yet. Then the rest."
        try:
            result = self.tables[name].copy_on_write(self.allocator)
        except OutOfBlocksError:
            self.add("OutOfBlocksError")
        except Exception as error:
            self.add(f"raised {error_text(error)}")
            raise self.wrong(f"No block is free: OutOfBlocksError, not {type(error).__name__}.", hint) from error
        else:
            self.add(f"returned {tell(result, 40)}")
            raise self.wrong("A copy is due and no block is free, but nothing was raised.", hint, *before[-1:])
        now = self.read_blocks(name)
        if now != before:
            raise self.wrong(f"The call failed, and {name}'s blocks went from {before} to {now}.", hint, *now)
        for block, was in enumerate(counts):
            if self.allocator.ref_count(block) != was:
                self.add(f"ref_count({block}) was {was} and is {self.allocator.ref_count(block)}")
                raise self.wrong(f"The call failed, and block {block} has lost a holder.", hint, block)
        self.read_all(name)

    # Looking.

    def read_blocks(self, name: str) -> list[int]:
        try:
            return [whole_number("a block id", block) for block in self.tables[name].blocks]
        except TypeError:
            self.add(f"{name}.blocks is {tell(self.tables[name].blocks, 60)}")
            raise self.wrong("A table's blocks are a list of whole numbers.", "") from None

    def slot(self, name: str, position: int) -> int:
        return self.blocks[name][position // self.block_size] * self.block_size + position % self.block_size

    def look(self, actor: str) -> None:
        """No other table has changed; with `counts`, each block has as many holders as tables name it."""
        for name in self.tables:
            now = self.read_blocks(name)
            if name != actor and now != self.blocks[name]:
                raise self.wrong(
                    f"{actor} was changed, and {name}'s blocks went from {self.blocks[name]} to {now}.", OWN_LIST, *now
                )
        for block in range(self.num_blocks) if self.counts else ():
            holders, said = self.holders(block), self.allocator.ref_count(block)
            if said != len(holders):
                self.add(f"ref_count({block}) is {said}")
                held = f"{len(holders)}: {', '.join(holders)}" if holders else "none"
                hint = "A fork is one more holder of every block. A copy gives up one hold of the old block."
                raise self.wrong(f"Block {block} has ref count {said}; its holders are {held}.", hint, block)

    def read_all(self, actor: str) -> None:
        """Every table reads the words that it should."""
        for name, words in self.words.items():
            for position, word in enumerate(words):
                got = self.slots[self.slot(name, position)]
                if got != word:
                    block = self.blocks[name][position // self.block_size]
                    read = f"{got!r}" if got else "a slot that nobody wrote"
                    self.add(f"{name} reads {read} at position {position}")
                    raise self.wrong(
                        f"{name} had {word!r} at position {position} and reads {read} there, after {actor} wrote.",
                        COPY,
                        block,
                    )
