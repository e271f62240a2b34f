"""Where every slot of the reservation map goes: who is admitted, what each run of slots holds, what is said about it.

Plain functions from numbers to plain dicts and lists. The live widget and the still picture both draw what comes out.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pagedlab.cache.accounting import LiveRequest, Waste
from pagedlab.widgets.look import letters, percents, plural, spoken_list

GROUPS = Waste._fields  # token_states, reserved, internal, external


class Lengths(NamedTuple):
    """One request in the queue: the tokens it stores now, and those it will store when it finishes."""

    num_tokens: int
    final_tokens: int


def admit(queue: Sequence[Lengths], num_slots: int, max_len: int) -> list[LiveRequest]:
    """The requests at the head of the queue that get `max_len` slots in one piece each, out of `num_slots`.

    The pieces are equal, so the first that does not fit is the first of all that do not.
    """
    return [
        LiveRequest(min(request.num_tokens, max_len), min(request.final_tokens, max_len), reserved_slots=max_len)
        for request in queue[: num_slots // max_len]
    ]


def describe(
    queue: Sequence[Lengths], admitted: Sequence[LiveRequest], num_slots: int, max_len: int, waste: Waste
) -> dict:
    """All that is drawn and said, as plain dicts and lists: the picture and the live view both work from this."""
    fit, waiting = len(admitted), len(queue) - len(admitted)
    free = num_slots - fit * max_len
    each = f"{'it' if waiting == 1 else 'each'} needs {plural(max_len, 'slot')} in one piece"
    if not queue:
        reason = f"There are no requests: all {plural(num_slots, 'slot')} are free."
    elif not fit:
        reason = f"No request fits: {each}, and the whole cache has {num_slots:,}."
    elif waiting:
        verb = "waits" if waiting == 1 else "wait"
        reason = f"{plural(waiting, 'request')} {verb}: {each}, and the free tail has {free:,}."
    else:
        reason = f"None waits: {fit:,} \u00d7 {max_len:,} slots are set aside, and {free:,} stay free."

    cut = [letters(i) for i, request in enumerate(queue) if request.final_tokens > max_len]
    if cut:
        cut_says = f"{plural(len(cut), 'request')} would be cut off at max_len: {spoken_list(cut)}."
    elif queue:
        longest = max(request.final_tokens for request in queue)
        cut_says = f"None would be cut off: the longest will hold {plural(longest, 'token')}."
    else:
        cut_says = ""

    shares = percents(waste)
    return {
        "max_len": max_len,
        "num_slots": num_slots,
        "fit": fit,
        "headline": f"{fit:,} of {plural(len(queue), 'request')} {'fits' if fit == len(queue) == 1 else 'fit'}"
        f" \u00b7 {shares[0]} of the cache holds tokens",
        "reason": reason,
        "cut": cut_says,
        "counts": list(waste),
        "percents": shares,
        "requests": [_describe_request(i, request, fit, max_len) for i, request in enumerate(queue)],
        "slots_per_row": slots_per_row(num_slots),
        "rows": lay_out(admitted, num_slots),
    }


def _describe_request(index: int, request: Lengths, fit: int, max_len: int) -> dict:
    stored, final = min(request.num_tokens, max_len), min(request.final_tokens, max_len)
    counts = [stored, final - stored, max_len - final]
    letter, missing = letters(index), request.final_tokens - final
    if index < fit:
        says = (
            f"Request {letter} owns {plural(max_len, 'slot')}: {stored:,} hold tokens, "
            f"{counts[1]:,} are reserved for later, {counts[2]:,} will never be used."
        )
    else:
        says = (
            f"Request {letter} waits for {plural(max_len, 'slot')} in one piece; "
            f"it will hold {plural(request.final_tokens, 'token')} at its end."
        )
    if missing:
        says += f" It would be cut off at max_len, {plural(missing, 'token')} short."
    return {
        "letter": letter,
        "start": index * max_len if index < fit else -1,
        "counts": counts,
        "final_tokens": request.final_tokens,
        "cut": missing > 0,
        "says": says,
    }


def slots_per_row(num_slots: int) -> int:
    """How many slots one row of the map shows: a power of two that makes at most 8 rows; a tiny pool is one row."""
    return num_slots if num_slots <= 8 else max(8, power_of_two((num_slots + 7) // 8))


def lay_out(admitted: Sequence[LiveRequest], num_slots: int) -> list[dict]:
    """The pool as rows of slots, each row as cells, one an owner (a request, or -1 for the free tail).

    A cell is made of pieces. A piece `[group, start, end]` is a run of slots of one group; runs are cut where a row
    ends, and empty ones are left out. Together the pieces cover slots 0 to `num_slots` once, in order.
    """
    runs = []  # (request, group, start, end)
    at = 0
    for index, request in enumerate(admitted):
        counts = (
            request.num_tokens,
            request.final_tokens - request.num_tokens,
            request.reserved_slots - request.final_tokens,
        )
        for group, count in zip(GROUPS, counts, strict=False):
            runs.append((index, group, at, at + count))
            at += count
    runs.append((-1, "external", at, num_slots))

    width = slots_per_row(num_slots)
    rows = [{"start": start, "end": min(start + width, num_slots), "cells": []} for start in range(0, num_slots, width)]
    for request, group, start, end in runs:
        while start < end:
            row = rows[start // width]
            stop = min(end, row["end"])
            if not row["cells"] or row["cells"][-1]["request"] != request:
                row["cells"].append({"request": request, "pieces": [], "named": False})
            row["cells"][-1]["pieces"].append([group, start, stop])
            start = stop
    _choose_names([cell for row in rows for cell in row["cells"]], width // 16)
    return rows


def _choose_names(cells: list[dict], enough: int) -> None:
    """Mark where each owner's name goes when its strip runs over several rows: in the first cell of `enough` slots, or
    else in the widest."""

    def num_slots(cell: dict) -> int:
        return cell["pieces"][-1][2] - cell["pieces"][0][1]

    by_owner: dict[int, list[dict]] = {}
    for cell in cells:
        by_owner.setdefault(cell["request"], []).append(cell)
    for owner, own in by_owner.items():
        needed = enough if owner >= 0 else 8 * enough  # "1,392 free" is longer than a letter
        next((cell for cell in own if num_slots(cell) >= needed), max(own, key=num_slots))["named"] = True


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << max(0, number - 1).bit_length()
