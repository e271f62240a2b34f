"""Right answers to `slot_mapping` in styles other than ours."""

import itertools

import numpy as np
import torch

from tests.corpus import right


@right
def one_position_at_a_time(block_table, start, end, block_size):
    slots = []
    for position in range(start, end):
        block = block_table[position // block_size]
        if block < 0:
            raise IndexError(f"no block for position {position}")
        slots.append(block * block_size + position % block_size)
    return slots


@right
def all_positions_at_once(block_table, start, end, block_size):
    positions = torch.arange(start, end)
    blocks = torch.as_tensor(block_table, dtype=torch.int64)[positions // block_size]
    if (blocks < 0).any():
        raise IndexError("a position has no block")
    return blocks * block_size + positions % block_size


@right
def numpy_array(block_table, start, end, block_size):
    entries, places = np.divmod(np.arange(start, end), block_size)
    blocks = np.asarray(block_table, dtype=np.int64)[entries]
    if len(blocks) and blocks.min() < 0:
        raise IndexError("there is no block -1")
    return blocks * block_size + places


@right
def every_slot_of_the_sequence_then_a_slice(block_table, start, end, block_size):
    def slots():
        for block in block_table:
            for place in range(block_size):
                yield int(block) * block_size + place

    wanted = list(itertools.islice(slots(), start, end))
    if len(wanted) < end - start or any(slot < 0 for slot in wanted):
        raise IndexError("not that many blocks")
    return wanted


@right
def block_by_block(block_table, start, end, block_size):
    slots, position = [], start
    while position < end:
        entry, place = divmod(position, block_size)
        block = int(block_table[entry])
        if block == -1:
            raise IndexError(position)
        here = min(block_size - place, end - position)
        slots.extend(range(block * block_size + place, block * block_size + place + here))
        position += here
    return tuple(slots)


class NoBlockError(IndexError):
    pass


@right
def error_of_its_own(block_table, start, end, block_size):
    def slot(position):
        entry = position // block_size
        if entry >= len(block_table) or block_table[entry] < 0:
            raise NoBlockError(f"position {position}")
        return int(block_table[entry]) * block_size + position - entry * block_size

    return list(map(slot, range(start, end)))
