"""Right answers to `waste_breakdown` in styles other than ours."""

from collections import namedtuple

import numpy as np
import torch

from tests.corpus import right

Slots = namedtuple("Slots", "holding later never free")


@right
def request_by_request(requests, num_slots):
    states = reserved = internal = 0
    external = num_slots
    for request in requests:
        states += request.num_tokens
        reserved += request.final_tokens - request.num_tokens
        internal += request.reserved_slots - request.final_tokens
        external -= request.reserved_slots
    return states, reserved, internal, external


@right
def own_named_tuple(requests, num_slots):
    holding = sum(request.num_tokens for request in requests)
    later = sum(request.final_tokens for request in requests) - holding
    never = sum(request.reserved_slots for request in requests) - holding - later
    return Slots(holding, later, never, num_slots - holding - later - never)


@right
def differences_of_neighbours(requests, num_slots):
    marks = np.zeros(5, dtype=np.int64)
    for request in requests:
        marks[1:4] += (request.num_tokens, request.final_tokens, request.reserved_slots)
    marks[4] = num_slots
    return np.diff(marks)


@right
def recursion(requests, num_slots):
    if not requests:
        return [0, 0, 0, num_slots]
    one, *others = requests
    states, reserved, internal, external = recursion(others, num_slots - one.reserved_slots)
    return [
        states + one.num_tokens,
        reserved + one.final_tokens - one.num_tokens,
        internal + one.reserved_slots - one.final_tokens,
        external,
    ]


@right
def slot_by_slot(requests, num_slots):
    counts, slot_of = [0, 0, 0, 0], 0
    for request in requests:
        for slot in range(request.reserved_slots):
            counts[0 if slot < request.num_tokens else 1 if slot < request.final_tokens else 2] += 1
            slot_of += 1
    counts[3] = num_slots - slot_of
    return counts


@right
def a_tensor(requests, num_slots):
    table = [(r.num_tokens, r.final_tokens, r.reserved_slots) for r in requests] or [(0, 0, 0)]
    stored, final, owned = torch.tensor(table).sum(0)
    return torch.stack([stored, final - stored, owned - final, num_slots - owned])


@right
def a_generator(requests, num_slots):
    ends = [(0, r.num_tokens, r.final_tokens, r.reserved_slots) for r in requests]
    for part in range(3):
        yield sum(end[part + 1] - end[part] for end in ends)
    yield num_slots - sum(end[3] for end in ends)
