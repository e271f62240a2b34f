"""Plausible wrong answers to `slot_mapping`."""

import torch

from tests.corpus import wrong

TABLE = "The table says which block"
RANGE = "A range may begin anywhere"
SIZES = "Blocks of any size, from 1 up"
NONE = "An empty range has no slots"
TENSOR = "A table may be a tensor, and wider than needed"
REFUSED = "A position without a block is an IndexError"
TABLE_STAYS = "The table stays as it was"


def block_of(block_table, position, block_size):
    block = int(block_table[position // block_size])
    if block < 0:
        raise IndexError(f"position {position} has no block")
    return block


@wrong(TABLE, "the table was not asked")
def ignores_the_table(block_table, start, end, block_size):
    return list(range(start, end))


@wrong(TABLE, "one slot long")
def forgets_to_multiply(block_table, start, end, block_size):
    return [block_of(block_table, p, block_size) + p % block_size for p in range(start, end)]


@wrong(TABLE, "first slot")
def forgets_the_place(block_table, start, end, block_size):
    return [block_of(block_table, p, block_size) * block_size for p in range(start, end)]


@wrong(TABLE, "Those are blocks")
def gives_blocks(block_table, start, end, block_size):
    return [block_of(block_table, p, block_size) for p in range(start, end)]


@wrong(TABLE, "changed places")
def swaps_the_operators(block_table, start, end, block_size):
    return [
        int(block_table[p % block_size % len(block_table)]) * block_size + p // block_size for p in range(start, end)
    ]


@wrong(TABLE, "Only the first entry")
def believes_in_one_piece(block_table, start, end, block_size):
    if end > len(block_table) * block_size:
        raise IndexError("no block")
    first = int(block_table[0]) * block_size if end > start else 0
    return [first + p for p in range(start, end)]


@wrong(TABLE, "The positions came back")
def looks_for_the_position_in_the_table(block_table, start, end, block_size):
    return [sorted(block_table).index(block_of(block_table, p, block_size)) * 0 + p for p in range(start, end)]


@wrong(TABLE, "16 slots")
def knows_the_block_size(block_table, start, end, block_size):
    return [block_of(block_table, p, 16) * 16 + p % 16 for p in range(start, end)]


@wrong(TABLE, "16 slots")
def knows_the_block_size_half_way(block_table, start, end, block_size):
    return [block_of(block_table, p, block_size) * 16 + p % 16 for p in range(start, end)]


@wrong(RANGE, "counted from `start`")
def counts_places_from_start(block_table, start, end, block_size):
    return [block_of(block_table, p, block_size) * block_size + (p - start) % block_size for p in range(start, end)]


@wrong(RANGE, "counted from 0")
def starts_at_the_sequence(block_table, start, end, block_size):
    return [block_of(block_table, p, block_size) * block_size + p % block_size for p in range(end - start)]


@wrong(RANGE, "before `start`")
def forgets_the_start(block_table, start, end, block_size):
    return [block_of(block_table, p, block_size) * block_size + p % block_size for p in range(end)]


@wrong(TABLE, "One slot too many")
def takes_the_end_along(block_table, start, end, block_size):
    table = list(block_table)
    if end > len(table) * block_size:
        raise IndexError("no block")
    table.append(table[0] if table else 0)
    return [block_of(table, p, block_size) * block_size + p % block_size for p in range(start, end + 1)]


@wrong(TABLE, "whole number")
def divides(block_table, start, end, block_size):
    return [block_of(block_table, p, block_size) * block_size + p / block_size for p in range(start, end)]


@wrong(TABLE, "flat list")
def a_list_for_each_block(block_table, start, end, block_size):
    return [
        [int(block) * block_size + place for place in range(block_size)]
        for block in block_table[start // block_size : -(-end // block_size)]
    ]


@wrong(TABLE, "NoneType")
def prints_them(block_table, start, end, block_size):
    print([block_of(block_table, p, block_size) * block_size + p % block_size for p in range(start, end)])


@wrong(TABLE, "int")
def only_the_last(block_table, start, end, block_size):
    return block_of(block_table, end - 1, block_size) * block_size + (end - 1) % block_size


@wrong(TABLE, "slots for")
def whole_blocks(block_table, start, end, block_size):
    slots = []
    for entry in range(start // block_size, -(-end // block_size)):
        first = block_of(block_table, entry * block_size, block_size) * block_size
        slots += range(first, first + block_size)
    return slots


@wrong(TABLE, "order")
def sorts_them(block_table, start, end, block_size):
    return sorted(block_of(block_table, p, block_size) * block_size + p % block_size for p in range(start, end))


@wrong(SIZES)
def masks_with_powers_of_two(block_table, start, end, block_size):
    shift = (block_size - 1).bit_length()
    return [(block_of(block_table, p, 1 << shift) << shift) + (p & ((1 << shift) - 1)) for p in range(start, end)]


@wrong(NONE, "IndexError")
def looks_up_before_the_loop(block_table, start, end, block_size):
    entry, place = divmod(start, block_size)
    block, slots = block_of(block_table, start, block_size), []
    for _ in range(start, end):
        if place == block_size:
            entry, place = entry + 1, 0
            block = block_of(block_table, entry * block_size, block_size)
        slots.append(block * block_size + place)
        place += 1
    return slots


@wrong(TENSOR)
def refuses_any_padding(block_table, start, end, block_size):
    if -1 in list(block_table):
        raise IndexError("the table has no block there")
    return [block_of(block_table, p, block_size) * block_size + p % block_size for p in range(start, end)]


@wrong(TENSOR)
def asks_the_table_whether_it_is_empty(block_table, start, end, block_size):
    if not block_table:
        return []
    return [block_of(block_table, p, block_size) * block_size + p % block_size for p in range(start, end)]


@wrong(REFUSED, "was given a slot")
def trusts_every_entry(block_table, start, end, block_size):
    return [int(block_table[p // block_size]) * block_size + p % block_size for p in range(start, end)]


@wrong(REFUSED, "was given a slot")
def stops_where_the_blocks_end(block_table, start, end, block_size):
    table = [int(block) for block in block_table if block >= 0]
    end = min(end, len(table) * block_size)
    return [table[p // block_size] * block_size + p % block_size for p in range(start, end)]


@wrong(REFUSED, "AssertionError")
def asserts(block_table, start, end, block_size):
    slots = []
    for position in range(start, end):
        assert position // block_size < len(block_table) and block_table[position // block_size] >= 0
        slots.append(block_of(block_table, position, block_size) * block_size + position % block_size)
    return slots


@wrong(REFUSED, "was given a slot")
def vectorised_without_a_look(block_table, start, end, block_size):
    positions = torch.arange(start, end)
    table = torch.as_tensor(block_table, dtype=torch.long)
    entries = torch.clamp(positions // block_size, max=max(len(table) - 1, 0))
    return (table[entries] * block_size + positions % block_size).tolist() if len(table) else []


@wrong(REFUSED, "torch.tensor")
def looks_at_lists_only(block_table, start, end, block_size):
    if isinstance(block_table, torch.Tensor):
        positions = torch.arange(start, end)
        return (block_table[positions // block_size] * block_size + positions % block_size).tolist()
    return [block_of(block_table, p, block_size) * block_size + p % block_size for p in range(start, end)]


@wrong(TABLE_STAYS, "changed the block table")
def strips_the_padding(block_table, start, end, block_size):
    if isinstance(block_table, list):
        while block_table and block_table[-1] == -1:
            block_table.pop()
    return [block_of(block_table, p, block_size) * block_size + p % block_size for p in range(start, end)]


@wrong(TABLE_STAYS, "changed the block table")
def multiplies_the_table_in_place(block_table, start, end, block_size):
    slots = [block_of(block_table, p, block_size) * block_size + p % block_size for p in range(start, end)]
    if isinstance(block_table, torch.Tensor):
        block_table *= block_size
    return slots
