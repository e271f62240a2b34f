"""Pools made to catch mistakes, for the checks of lessons 04 and 05, and what such a mistake has read.

What is hostile about them: blocks lie in random order, block 0 is nobody's, every slot without a token is NaN, several
sequences share the pool, tables are wider than needed and end in -1. If asked for, sequences share their first blocks,
and tables end in blocks of others. All numbers of a pool differ and are centred on
zero, so any number found somewhere tells where it came from. So does a NaN that was only copied:
its spare bits say which slot it lay in.

    @promise("Every token from its own slot", pages=paged_inputs(num_seqs=(1, 3)))
    def reads_own_slots(answer, pages):
        got = answer(pages.key_cache.clone(), ..., pages.block_tables, pages.seq_lens)
        ...
        pages.whose(got[0, 5])     # "block 3 slot 1 (the key of token 1 of A)"
        pages.told()               # the pool in words, for an example
        pages.picture(problem=3)   # an SVG of it, for a failure
"""

import functools
import random
from collections.abc import Iterable, Sequence

import torch
from hypothesis import strategies as st

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.table import padded
from pagedlab.course.words import count

BLOCK_SIZES = (2, 3, 1, 16)  # the first is what a report shows where any would do
NAMES = "ABCDEFGH"


class PagedInputs:
    """Sequences of given lengths in one pool of one layer.

    key_cache, value_cache: `[num_blocks, num_kv_heads, block_size, head_dim]`, contiguous, float32.
    tables: for each sequence the list of its blocks. block_tables: the same as an int32 tensor
    `[num_seqs, max_blocks + extra_columns]`, -1 where there is none.
    lens: the lengths as a list; seq_lens: as an int32 tensor `[num_seqs]`.
    keys, values: what each sequence has stored, a list of `[num_kv_heads, num_tokens, head_dim]`.
    The caches are the caller's to hand out: give a learner's answer a clone.
    shared_blocks: so many full blocks at the beginning are the same for all sequences that are long enough.
    leftovers: behind its last block, a row of block_tables holds blocks of others instead of -1.
    """

    def __init__(
        self,
        lens: Sequence[int],
        block_size: int = 2,
        num_kv_heads: int = 1,
        head_dim: int = 2,
        seed: int = 0,
        spare_blocks: int = 2,
        extra_columns: int = 0,
        shared_blocks: int = 0,
        leftovers: bool = False,
    ):
        self.lens, self.block_size, self.num_kv_heads, self.head_dim = list(lens), block_size, num_kv_heads, head_dim
        self.seed = seed
        needed = [blocks_needed(length, block_size) for length in self.lens]
        full = [min(shared_blocks, length // block_size) for length in self.lens]
        shared = [min(one, full[0]) if row else 0 for row, one in enumerate(full)]  # with the first sequence
        self.num_blocks = 1 + sum(needed) - sum(shared) + spare_blocks
        order = shuffled(range(1, self.num_blocks), seed)
        self.tables: list[list[int]] = []
        for num, same in zip(needed, shared, strict=True):
            begin = self.tables[0][:same] if self.tables else []
            self.tables.append(begin + [order.pop() for _ in range(num - same)])
        self.block_tables = padded(self.tables)
        if extra_columns:
            more = torch.full((len(self.lens), extra_columns), -1, dtype=torch.int32)
            self.block_tables = torch.cat([self.block_tables, more], dim=1)
        if leftovers:
            for row, table in zip(self.block_tables, self.tables, strict=True):
                others = [block for block in shuffled(range(self.num_blocks), seed) if block not in table]
                for column in range(len(table), len(row)):
                    row[column] = others[column % len(others)]
        self.seq_lens = torch.tensor(self.lens, dtype=torch.int32)

        every = distinct_numbers((2, sum(self.lens), num_kv_heads, head_dim), seed)
        self.key_cache, self.value_cache = marked_nans((2, self.num_blocks, num_kv_heads, block_size, head_dim))
        self.keys, self.values, first = [], [], 0
        for table, length, same in zip(self.tables, self.lens, shared, strict=True):
            keys, values = every[:, first : first + length].transpose(1, 2)
            keys[:, : same * block_size] = every[0, : same * block_size].transpose(0, 1)
            values[:, : same * block_size] = every[1, : same * block_size].transpose(0, 1)
            first += length
            self.keys.append(keys.contiguous())
            self.values.append(values.contiguous())
            for position in range(length):
                block, slot = table[position // block_size], position % block_size
                self.key_cache[block, :, slot] = keys[:, position]
                self.value_cache[block, :, slot] = values[:, position]

    @property
    def num_seqs(self) -> int:
        return len(self.lens)

    def where(self, sequence: int, position: int) -> tuple[int, int]:
        """(block, slot in the block) of a token."""
        return self.tables[sequence][position // self.block_size], position % self.block_size

    def told_where(self, sequence: int, position: int) -> str:
        """ "block 9 slot 1"."""
        block, slot = self.where(sequence, position)
        return f"block {block} slot {slot}"

    def owner(self, block: int, slot: int) -> str:
        """ "token 1 of A", "token 1 of A and B" where they share the block, or "a slot nobody wrote"."""
        names, position = [], -1
        for name, table, length in zip(NAMES, self.tables, self.lens, strict=False):
            if block in table and table.index(block) * self.block_size + slot < length:
                position = table.index(block) * self.block_size + slot  # the same for all that share it
                names.append(name)
        return f"token {position} of {' and '.join(names)}" if names else "a slot nobody wrote"

    def find(self, number: float) -> tuple[str, int, int, int, int] | None:
        """Where in the pool a number lies: ("key" or "value", block, kv head, slot, dim). None: nowhere."""
        return self._places.get(float(number))

    @functools.cached_property
    def _places(self) -> dict[float, tuple[str, int, int, int, int]]:
        places = {}
        for kind, cache in (("key", self.key_cache), ("value", self.value_cache)):
            for index in (~cache.isnan()).nonzero().tolist():
                places[float(cache[tuple(index)])] = (kind, *index)
        return places

    def whose(self, number: float) -> str:
        """In words: "block 3 slot 1 (the key of token 1 of A)", or "block 5 slot 0, a slot nobody wrote (NaN)"."""
        number = float(number)
        if number != number:
            slot = self._slot_of_nan(number)
            which = "" if slot is None else f"block {slot // self.block_size} slot {slot % self.block_size}, "
            return f"{which}a slot nobody wrote (NaN)"
        place = self.find(number)
        if place is None:
            return "a zero" if number == 0 else f"{number:.4g}, no number of the pool"
        kind, block, head, slot, _ = place
        which = f", kv head {head}" if self.num_kv_heads > 1 else ""
        return f"block {block} slot {slot} (the {kind} of {self.owner(block, slot)}{which})"

    def _slot_of_nan(self, number: float) -> int | None:
        index = nan_mark(number)
        if index is None or index >= 2 * self.key_cache.numel():
            return None
        _, block, _, slot, _ = (int(i) for i in torch.unravel_index(torch.tensor(index), (2, *self.key_cache.shape)))
        return block * self.block_size + slot

    def told(self) -> str:
        """The pool in words, a line a sequence."""
        heads = count(self.num_kv_heads, "kv head")
        lines = [f"blocks of {count(self.block_size, 'slot')}, {heads}, head_dim {self.head_dim}"]
        for name, table, length, row in zip(NAMES, self.tables, self.lens, self.block_tables.tolist(), strict=False):
            rest = row[len(table) :]
            behind = f", behind it stands {rest}" if any(block >= 0 for block in rest) else ""
            lines.append(f"{name}: {count(length, 'token')}, its block table is {table}{behind}")
        return "\n".join(lines)

    def picture(self, problem: int | Iterable[int] = (), note: str = "", selected: dict | None = None) -> str:
        """An SVG of the pool; `selected={"sequence": "A", "position": 3}` draws the way to a token."""
        from pagedlab.widgets import block_picture, pool_state

        tables = {
            name: (table, length) for name, table, length in zip(NAMES, self.tables, self.lens, strict=False) if table
        }
        texts = {name: [str(position) for position in range(length)] for name, (_, length) in tables.items()}
        state = pool_state(tables, num_blocks=self.num_blocks, block_size=self.block_size, texts=texts)
        return block_picture(state, problem=problem, note=note, selected=selected)

    def __repr__(self):
        return "; ".join(self.told().splitlines())  # a learner reads it where an answer has raised


def distinct_numbers(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """float32 numbers between -2 and 2, centred on zero; no two are alike and none is zero."""
    total = torch.Size(shape).numel()
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).reshape(shape)
    return (2 * order - total + 0.5) * (2 / max(total, 1))


_NAN = 0x7FC00000  # the bits of a float32 NaN; the lower 22 are spare


def marked_nans(shape: tuple[int, ...]) -> torch.Tensor:
    """float32 NaNs, each with its own index (plus one) in the spare bits."""
    marks = (torch.arange(torch.Size(shape).numel(), dtype=torch.int32) + 1) % 2**22
    return (marks + _NAN).view(torch.float32).reshape(shape)


def nan_mark(number: float) -> int | None:
    """The index in a NaN of `marked_nans`; None for any other NaN."""
    mark = int(torch.tensor(number, dtype=torch.float32).view(torch.int32)) - _NAN
    return mark - 1 if 0 < mark < 2**22 else None


def shuffled(numbers: Iterable[int], seed: int) -> list[int]:
    numbers = list(numbers)
    random.Random(seed).shuffle(numbers)
    return numbers


def lengths(block_size: int, at_least: int = 0) -> st.SearchStrategy[int]:
    """Lengths at the edges of blocks: 0, 1, b - 1, b, b + 1, and several blocks."""
    b = block_size
    edges = sorted({at_least, 1, b - 1, b, b + 1, 2 * b - 1, 2 * b, 2 * b + 1, 3 * b + 1})
    return st.sampled_from([length for length in edges if length >= at_least])


@st.composite
def paged_inputs(
    draw,
    num_seqs: tuple[int, int] = (1, 3),
    block_sizes: Sequence[int] = BLOCK_SIZES,
    num_kv_heads: Sequence[int] = (1, 3, 2),
    head_dims: Sequence[int] = (2, 5),
    min_len: int = 0,
    extra_columns: tuple[int, int] = (0, 2),
):
    """A strategy of `PagedInputs`. It shrinks towards one short sequence and the first entry of every list."""
    block_size = draw(st.sampled_from(block_sizes))
    return PagedInputs(
        draw(st.lists(lengths(block_size, min_len), min_size=num_seqs[0], max_size=num_seqs[1])),
        block_size,
        draw(st.sampled_from(num_kv_heads)),
        draw(st.sampled_from(head_dims)),
        seed=draw(st.integers(0, 99)),
        extra_columns=draw(st.integers(*extra_columns)),
    )
