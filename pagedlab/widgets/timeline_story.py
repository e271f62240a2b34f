"""Traces as the timeline plays them: what each request did in each step, small enough to cross to the browser at once.

A request's row is its states, one letter a step, and beside them only what the letters do not tell: how many tokens a
prefill had, where a count jumps, which blocks came and went.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import NamedTuple

from pagedlab.cache.recorder import drawable
from pagedlab.engine.trace import LETTERS, Moment, ScheduleTrace, TraceStep
from pagedlab.widgets.explorer_moment import block_number
from pagedlab.widgets.look import letters


@dataclass(frozen=True)
class NamedTrace:
    """One figure of the timeline."""

    name: str  # "" if it is the only one
    steps: tuple[TraceStep, ...]
    block_size: int | None
    start: float = 0.0  # on the clock of the steps' times

    def times(self) -> list[float]:
        """Seconds from the start to the end of each step."""
        return [step.time - self.start for step in self.steps]

    def starts(self) -> list[float]:
        """Seconds from the start to the beginning of each step: there may be breaks in which nothing ran."""
        ends = [0.0, *self.times()]
        return [
            ends[i] if step.start is None else max(ends[i], step.start - self.start)
            for i, step in enumerate(self.steps)
        ]


class Totals(NamedTuple):
    """A whole trace in a few numbers. Means are over its steps."""

    num_steps: int
    num_tokens: int  # computed, prompt tokens and recomputed ones included
    tokens_per_step: float
    mean_batch: float  # requests that computed something
    mean_usage: float  # share of the pool's blocks in use
    num_preemptions: int  # of both kinds, by recomputation and by swapping out
    seconds: float | None


def totals(trace: NamedTrace, axis: str = "steps") -> Totals:
    steps, n = trace.steps, len(trace.steps)
    num_tokens = sum(step.num_scheduled for step in steps)
    lost = ("preempted", "swapped")
    preemptions = sum(
        moment.state in lost and (request_id not in before.moments or before.moments[request_id].state not in lost)
        for before, step in zip(steps, steps[1:], strict=False)
        for request_id, moment in step.moments.items()
    )
    usage = sum(step.blocks_used / step.num_blocks for step in steps if step.num_blocks)
    batch = sum(step.num_running for step in steps)
    # Told on an axis of time only: elsewhere the same schedule should read the same, however fast the machine was.
    seconds = steps[-1].time - trace.start if axis == "time" else None
    return Totals(n, num_tokens, num_tokens / n, batch / n, usage / n, preemptions, seconds)


def names_of(traces: Sequence[NamedTrace], orders: Sequence[Sequence]) -> dict[object, str]:
    """A row for each request of any trace, in order of arrival: request id -> its name."""
    ids: dict[object, str] = {}
    for order, trace in zip(orders, traces, strict=True):
        here = {request_id for step in trace.steps for request_id in step.moments}
        for request_id in order:
            if request_id in here:
                ids.setdefault(request_id, drawable(request_id))
    return ids


def labels(names: Iterable[str]) -> list[str]:
    """What stands beside each row: the name where all are short, or what is left of it without the beginning that all
    of them have, else a letter."""
    names = list(names)
    for start in (0, len(commonprefix(names)) if len(names) > 1 else 0):
        short = [name[start:] for name in names]
        if all(0 < len(name) <= 4 for name in short):
            return short
    return [letters(i) for i in range(len(names))]


def which_is_which(names: Sequence[str], labels: Sequence[str], at_most: int = 12) -> list[str]:
    """For the legend: what the labels stand for, where they are not the names themselves."""
    says = [f"{label} is {name}" for name, label in zip(names, labels, strict=True) if name != label]
    if says and all(name.endswith(label) for name, label in zip(names, labels, strict=True)):
        return [f"{says[0]}, and so on"]
    return says[:at_most] + ([f"and {len(says) - at_most} more"] if len(says) > at_most else [])


def columns(traces: Sequence[NamedTrace], axis: str) -> list[float]:
    """Where each column of the whole picture ends: at whole steps, or at the moments at which a trace ended a step."""
    if axis == "steps":
        return list(range(1, 1 + max(len(trace.steps) for trace in traces)))
    if len(traces) == 1:
        return traces[0].times()
    return sorted({time for trace in traces for time in trace.times()})


def step_at(trace: NamedTrace, axis: str, ends: Sequence[float], column: int) -> int | None:
    """The step of a trace that a column shows; None when the trace has ended."""
    if axis == "time" and len(ends) != len(trace.steps):
        column = bisect_left(trace.times(), ends[column])
    return column if column < len(trace.steps) else None


def story(traces: Sequence[NamedTrace], ids: Mapping[object, str], axis: str) -> dict:
    """All that is drawn, as plain dicts and lists.

    A row is None for a request the trace does not have, or {"from": its first step, "states": letters, "prefills":
    tokens of each prefill, "computed" and "tokens": pairs (step, value) where these are not what follows by itself,
    "blocks": (step, how many stay, which come), "end": (step, reason)}. By itself, `computed` grows by what was
    scheduled, and `tokens` is what it was, or `computed` + 1 if that is more.
    """
    short = labels(ids.values())
    return {
        "axis": axis,
        "first": first_step(traces),
        "ends": columns(traces, axis),
        "names": list(ids.values()),
        "labels": short,
        "which": which_is_which(list(ids.values()), short),
        "traces": [_trace(trace, ids, axis) for trace in traces],
    }


def first_step(traces: Sequence[NamedTrace]) -> int:
    """The number of the first step shown; above 0 for a part of a trace."""
    return traces[0].steps[0].index if len(traces) == 1 else 0


def _trace(trace: NamedTrace, ids: Mapping[object, str], axis: str) -> dict:
    steps = trace.steps
    return {
        "name": trace.name,
        "block_size": trace.block_size or 0,
        "notes": [drawable(step.note) for step in steps],
        "ends": trace.times() if axis == "time" else None,
        "starts": trace.starts() if axis == "time" else None,
        "used": [step.blocks_used for step in steps],
        "cached": [step.blocks_cached for step in steps],
        "total": [step.num_blocks for step in steps],
        "slots": [step.token_slots_used for step in steps],
        "totals": totals(trace, axis)._asdict(),
        "rows": [_row(steps, request_id) for request_id in ids],
    }


def _row(steps: Sequence[TraceStep], request_id: object) -> dict | None:
    """One request's row. A gap in it (a request that is not there for a while) is a blank."""
    there = [i for i, step in enumerate(steps) if request_id in step.moments]
    if not there:
        return None
    row = {"from": there[0], "states": "", "prefills": [], "computed": [], "tokens": [], "blocks": [], "end": None}
    states, computed, tokens, blocks = [], 0, 0, ()
    for i in range(there[0], there[-1] + 1):
        moment: Moment | None = steps[i].moments.get(request_id)
        states.append(LETTERS[moment.state] if moment else " ")
        if moment is None:
            continue
        if moment.state == "prefill":
            row["prefills"].append(moment.num_scheduled)
        computed += moment.num_scheduled
        if computed != moment.num_computed:
            computed = moment.num_computed
            row["computed"].append([i, computed])
        tokens = max(tokens, computed + 1) if moment.num_scheduled else tokens
        if tokens != moment.num_tokens:
            tokens = moment.num_tokens
            row["tokens"].append([i, tokens])
        if moment.blocks is not blocks and moment.blocks != blocks:
            kept = _common(blocks, moment.blocks)
            row["blocks"].append([i, kept, [block_number(block) for block in moment.blocks[kept:]]])
            blocks = moment.blocks
        if moment.finish_reason and row["end"] is None:
            row["end"] = [i, moment.finish_reason]
    row["states"] = "".join(states)
    return row


def _common(old: tuple, new: tuple) -> int:
    length = min(len(old), len(new))
    if old[:length] == new[:length]:
        return length
    return next(i for i in range(length) if old[i] != new[i])


def cell_in_words(name: str, trace: dict, row: dict | None, at: int, moment: Moment | None) -> str:
    """What a request does at step number `at` (counted from the first one shown), also where it has no moment."""
    if moment is not None:
        return in_words(name, moment)
    if row is None:
        return f"{name} is not in this schedule." if trace["name"] else f"{name} is not in these steps."
    return f"{name} has not come yet." if at < row["from"] else f"{name} has left."


def in_words(name: str, moment: Moment) -> str:
    """One cell: "C prefills 32 tokens; 64 of its 101 tokens stored, in blocks 3, 7, 1."."""
    does = {
        "waiting": "waits",
        "prefill": f"prefills {_tokens(moment.num_scheduled)}",
        "decode": "decodes 1 token",
        "preempted": "is preempted and waits",
        "swapped": "is swapped out and waits",
        "finished": "is finished",
        "aborted": "is aborted",
    }[moment.state]
    if moment.finish_reason and moment.num_scheduled:
        does += f" and is done ({moment.finish_reason})"
    stored = f"{moment.num_computed:,} of its {_tokens(moment.num_tokens)} stored"
    if moment.state == "swapped":
        return f"{name} {does}; {stored}, outside the pool."
    if not moment.blocks:
        return f"{name} {does}; it holds no blocks."
    some = ", ".join(map(str, moment.blocks[:MOST_BLOCKS]))
    more = f" and {len(moment.blocks) - MOST_BLOCKS:,} more" if len(moment.blocks) > MOST_BLOCKS else ""
    return f"{name} {does}; {stored}, in {'block' if len(moment.blocks) == 1 else 'blocks'} {some}{more}."


MOST_BLOCKS = 16  # that a line of words names


def _tokens(count: int) -> str:
    return f"{count:,} {'token' if count == 1 else 'tokens'}"


def read_trace(name: str, given: object) -> NamedTrace:
    which = f"the trace {name!r}" if name else "the trace"
    if not isinstance(given, ScheduleTrace):
        raise ValueError(f"{which} is a {type(given).__name__}; expected a ScheduleTrace, or a dict of them by name")
    if not len(given):
        raise ValueError(f"{which} has no steps yet: call trace.record(...) at the end of each step, and show it then")
    return NamedTrace(drawable(name), given.steps, given.block_size, given.start)
