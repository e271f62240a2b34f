"""One moment of a pool: building one by hand, who holds which block, what cannot be right, and where a token lies.

Plain functions on `pagedlab.cache.recorder.PoolState`. A broken allocator or table can put anything into a state, so
everything here takes what it finds: a table may name a block twice, or one that the pool does not have.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pagedlab.cache.allocator import whole_number
from pagedlab.cache.recorder import PoolState, SequenceState, Step, drawable
from pagedlab.widgets.look import COLOURS, letters, spoken_list


class Holder(NamedTuple):
    """An entry of a block table: logical block `logical` of sequence number `sequence`."""

    sequence: int
    logical: int


def pool_state(
    tables: Mapping[str, object],
    *,
    num_blocks: int,
    block_size: int | None = None,
    texts: Mapping[str, Iterable[str]] | None = None,
    ref_counts: Iterable[int] | Mapping[int, int] | None = None,
    free: Iterable[int] | None = None,
) -> PoolState:
    """A moment, put together by hand.

    `tables`: for each sequence a `BlockTable` (or another object with `blocks` and `num_tokens`), a list of blocks, all
    of them full, or a pair `(blocks, num_tokens)`.
    `texts`: the words of each sequence's tokens, by position.
    `ref_counts`: of the blocks, a list or a dict; where it says nothing, the number of tables that have the block.
    `free`: the free list, next block first. Without it the blocks with ref count 0, order unknown.
    """
    num_blocks = whole_number("num_blocks", num_blocks, at_least=1)
    block_size = None if block_size is None else whole_number("block_size", block_size, at_least=1)
    sequences = []
    for name, table in tables.items():
        blocks, num_tokens = _blocks_and_tokens(name, table)
        size = block_size or getattr(table, "block_size", None)
        if size is None and num_tokens is None:
            raise ValueError(f"how many tokens does {name} have? Say block_size=16, or give (blocks, num_tokens)")
        block_size = block_size or size
        num_tokens = len(blocks) * block_size if num_tokens is None else num_tokens
        words = tuple(map(drawable, (texts or {}).get(name, ())))[:num_tokens]
        sequences.append(SequenceState(drawable(name), blocks, num_tokens, words + ("",) * (num_tokens - len(words))))
    counts = [0] * num_blocks
    for sequence in sequences:
        for block in set(sequence.blocks):
            if 0 <= block < num_blocks:
                counts[block] += 1
    known = ref_counts.items() if isinstance(ref_counts, Mapping) else enumerate(ref_counts or ())
    for block, count in known:
        if not 0 <= block < num_blocks:
            raise ValueError(f"ref_counts names block {block}; the pool has blocks 0 to {num_blocks - 1}")
        counts[block] = count
    order = tuple(b for b, count in enumerate(counts) if count == 0) if free is None else tuple(free)
    return PoolState(num_blocks, block_size, tuple(counts), order, free is not None, len(order), tuple(sequences))


def _blocks_and_tokens(name: str, table: object) -> tuple[tuple[int, ...], int | None]:
    num_tokens = getattr(table, "num_tokens", None)
    blocks = getattr(table, "blocks", table)
    if isinstance(blocks, tuple) and len(blocks) == 2 and isinstance(blocks[0], list | tuple):
        blocks, num_tokens = blocks
    try:
        return tuple(whole_number("a block", block) for block in blocks), num_tokens
    except TypeError:
        raise ValueError(
            f"the table of {name} is {table!r}; give a BlockTable, a list of blocks, or (blocks, num_tokens)"
        ) from None


def block_number(value: object) -> int:
    """An entry of a table or free list as a number, whatever a learner's code put there; -1 for what is none."""
    try:
        return whole_number("a block", value)
    except TypeError:
        return -1


def labels(names: Iterable[str]) -> list[str]:
    """What stands in a block for each sequence: its name where all of them are short, and else a letter."""
    names = list(names)
    return names if all(0 < len(name) <= 2 for name in names) else [letters(i) for i in range(len(names))]


def hues(names: Iterable[str]) -> list[int]:
    """The place in the palette of each sequence. A has the first colour and B the second, also in a picture without A,
    as long as there are colours enough; other names take turns."""
    names, taken = list(names), set()
    wanted = [ord(name) - ord("A") if len(name) == 1 and "A" <= name <= "Z" else i for i, name in enumerate(names)]
    for i, hue in enumerate(wanted):
        while hue % len(COLOURS) in taken and len(taken) < len(COLOURS):
            hue += 1
        wanted[i] = hue % len(COLOURS)
        taken.add(wanted[i])
    return wanted


def holders(state: PoolState) -> dict[int, list[Holder]]:
    """The table entries that name each block, in the order of the sequences. Blocks that nobody holds are left out."""
    found: dict[int, list[Holder]] = {}
    for i, sequence in enumerate(state.sequences):
        for logical, block in enumerate(sequence.blocks):
            found.setdefault(block_number(block), []).append(Holder(i, logical))
    return found


def filled(state: PoolState, holder: Holder) -> int:
    """How many slots of this logical block have a token."""
    size = state.block_size or 1
    return max(0, min(size, state.sequences[holder.sequence].num_tokens - holder.logical * size))


def kept_words(steps: Sequence[Step]) -> dict[int, list[str]]:
    """What is still in blocks of the last step that no table names, but a cache or somebody else keeps: block -> words.

    They are the words of the table that named the block last.
    """
    state, size = steps[-1].state, steps[-1].state.block_size or 1
    named = holders(state)
    wanted = {block for block, count in enumerate(state.ref_counts) if count > 0 and block not in named}
    wanted |= set(map(block_number, state.cached_blocks))
    found: dict[int, list[str]] = {}
    for step in reversed(steps):
        if not wanted:
            break
        names = labels(sequence.name for sequence in step.state.sequences)
        for name, sequence in zip(names, step.state.sequences, strict=True):
            for logical, block in enumerate(map(block_number, sequence.blocks)):
                if block in wanted:
                    positions = range(logical * size, min(sequence.num_tokens, (logical + 1) * size))
                    found[block] = [sequence.texts[i] or f"{name}{i}" for i in positions]
        wanted -= set(found)
    return found


def problems(state: PoolState) -> list[tuple[int, str]]:
    """What cannot be right about this moment: pairs of a block and a sentence. Empty for any correct allocator.

    A ref count above the number of tables is no problem: blocks may be held by somebody without a table.
    """
    entries = Counter(block_number(block) for sequence in state.sequences for block in sequence.blocks)
    free = Counter(block_number(block) for block in state.free_blocks) if state.free_order_known else Counter()

    def in_pool(block: int) -> bool:
        return 0 <= block < state.num_blocks

    suspects = {block for block, n in entries.items() if not in_pool(block) or n > state.ref_counts[block]}
    suspects |= {block for block, n in free.items() if n > 1 or not in_pool(block) or state.ref_counts[block] > 0}
    for sequence in state.sequences:
        if len(set(sequence.blocks)) < len(sequence.blocks):
            suspects |= {block for block, n in Counter(map(block_number, sequence.blocks)).items() if n > 1}
    if not suspects:  # nearly always, and at every step of a long story
        return []
    held = holders(state)
    return [(block, _problem(state, block, held.get(block, []), free[block])) for block in sorted(suspects)]


def _problem(state: PoolState, block: int, entries: list[Holder], times_free: int) -> str:
    owners = [state.sequences[entry.sequence].name for entry in entries]
    names = list(dict.fromkeys(owners))
    if not 0 <= block < state.num_blocks:
        there = f"the pool has blocks 0 to {state.num_blocks - 1}"
        if entries:
            return f"Logical block {entries[0].logical} of {owners[0]} is block {block}; {there}."
        return f"The free list has block {block}; {there}."
    if len(names) < len(owners):
        twice = next(name for name in owners if owners.count(name) > 1)
        return f"Block {block} is {owners.count(twice)} times in the table of {twice}."
    count = state.ref_counts[block]
    where = f"in the {'table' if len(names) == 1 else 'tables'} of {spoken_list(names)}" if names else ""
    if names and count <= 0:
        return f"Block {block} is {where}, but it is free."
    if count < len(names):
        return f"Block {block} is {where}, but its ref count is {count}."
    if times_free > 1:
        return f"Block {block} is {times_free} times on the free list."
    return f"Block {block} is on the free list, but {f'it is {where}' if names else f'its ref count is {count}'}."


def slot_arithmetic(state: PoolState, name: str, position: int) -> str:
    """Where one token lies, worked out: "block_table[37 // 16] * 16 + 37 % 16 = ... = slot 117".

    KeyError: no such sequence. IndexError: the sequence has no such token, or no block for it.
    """
    found = [sequence for sequence in state.sequences if sequence.name == name]
    if not found:
        raise KeyError(f"there is no sequence {name!r}; the sequences are {[each.name for each in state.sequences]}")
    size, sequence = state.block_size or 1, found[0]
    logical, offset = divmod(position, size)
    if not 0 <= position < sequence.num_tokens or logical >= len(sequence.blocks):
        raise IndexError(
            f"token {position} of {name} has no slot: {name} has {sequence.num_tokens} tokens "
            f"in {len(sequence.blocks)} blocks of {size}"
        )
    block = block_number(sequence.blocks[logical])
    return (
        f"block_table[{position} // {size}] * {size} + {position} % {size}"
        f" = block_table[{logical}] * {size} + {offset} = {block} * {size} + {offset}"
        f" = slot {block * size + offset}"
    )
