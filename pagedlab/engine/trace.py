"""A trace of a schedule: what each request did in each step, and how full the pool was afterwards.

    trace = ScheduleTrace()
    while scheduler.waiting or scheduler.running:
        output = scheduler.schedule()
        ...                                             # run the model, add to num_computed_tokens, finish some
        trace.record(requests, output, allocator)       # once a step, at its end

    print(trace.rows())                                 # one line a request, one letter a step
    trace.steps[12].note                                # "A and B decode; C preempted: 3 blocks back"

It records any scheduler, a learner's included, and asks little of it: requests have a `request_id`; whatever else of
`pagedlab.engine.request.Request` they have is used, and what they lack is worked out from what was scheduled. Looking
changes nothing and never fails because a field is missing. A trace is plain Python and pickles.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pagedlab.cache.accounting import blocks_needed

STATES = ("waiting", "prefill", "decode", "preempted", "swapped", "finished", "aborted")
"""What a request can be doing in a step. One that runs but got no token in this step is "waiting" (and has blocks)."""

LETTERS = dict(zip(STATES, ".PDXS-A", strict=True))


class Moment(NamedTuple):
    """One request in one step: what it did there, and what it had when the step was over."""

    state: str  # one of STATES
    num_scheduled: int  # tokens it computed in this step
    num_computed: int  # tokens whose keys and values are stored, after the step
    num_tokens: int  # prompt and output, after the step
    blocks: tuple[int, ...]  # its block table, after the step
    finish_reason: str | None = None  # "stop", "length" or "abort" once it is over


@dataclass(frozen=True)
class TraceStep:
    """One step of the whole schedule. Requests that had not come yet, or had long finished, have no moment."""

    index: int
    time: float | None  # seconds at its end, if whoever recorded it keeps time
    moments: Mapping[object, Moment]  # by request id
    blocks_used: int  # blocks that somebody holds
    blocks_cached: int  # blocks that nobody holds but the prefix cache: free, with content that may be used again
    num_blocks: int  # all there are
    token_slots_used: int  # slots with a token in the blocks that requests hold; shared blocks count once
    note: str  # the step in words
    start: float | None = None  # seconds at its beginning; None: where the step before it ended

    @property
    def num_scheduled(self) -> int:
        """Tokens that the model computed in this step."""
        return sum(moment.num_scheduled for moment in self.moments.values())

    @property
    def num_running(self) -> int:
        """Requests that computed anything in this step: the size of the batch."""
        return sum(moment.num_scheduled > 0 for moment in self.moments.values())


class ScheduleTrace:
    """The steps that were recorded. `len(trace)` is their number."""

    def __init__(self):
        self._steps: list[TraceStep] = []
        self._arrivals: dict[object, object] = {}  # request id -> its `arrival`, in the order first seen
        self._last: dict[object, Moment] = {}  # of requests that are not over
        self._over: set[object] = set()
        self._num_blocks = 0
        self.num_prompt_tokens: dict[object, int] = {}  # by request id
        self.start = 0.0  # when the first step began, on the clock of `TraceStep.time`
        self.block_size: int | None = None  # slots a block, as soon as a table has said it

    @property
    def steps(self) -> tuple[TraceStep, ...]:
        return tuple(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, part: slice) -> "ScheduleTrace":
        """Some of its steps, `trace[100:200]`, as a trace to look at. The steps keep their numbers."""
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise TypeError(f"trace[{part!r}]: a part of a trace is trace[start:stop]; one step is trace.steps[i]")
        some = ScheduleTrace()
        begin, end, _ = part.indices(len(self._steps))
        some._steps = self._steps[begin:end]
        some._arrivals, some.num_prompt_tokens = dict(self._arrivals), dict(self.num_prompt_tokens)
        some.block_size, some._num_blocks = self.block_size, self._num_blocks
        before = self._steps[begin - 1].time if begin else None
        some.start = self.start if before is None else before
        return some

    @property
    def requests(self) -> tuple:
        """The ids of all requests seen, in order of arrival."""
        seen = list(self._arrivals)
        if any(arrival is None for arrival in self._arrivals.values()):
            return tuple(seen)
        return tuple(sorted(seen, key=self._arrivals.get))

    def record(
        self,
        requests: Iterable,
        output: object,
        allocator: object,
        time: float | None = None,
        start: float | None = None,
    ) -> TraceStep:
        """Note one step, at its end: the tokens are computed, `num_computed_tokens` has grown, the finished have left.

        requests: all that are known, in any order; those that finished some steps ago may be among them or not.
        output: what `schedule()` returned: pairs (request, number of tokens), or an object with them as `.scheduled`
        (and perhaps `.preempted`); None for a step in which nothing ran.
        allocator: the pool's, for the number of blocks in use.
        time: seconds now, on any clock. start: when this step began, if that is not where the one before it ended (for
        the first step: if it is not 0).
        """
        if start is not None and not self._steps:
            self.start = float(start)
        pairs = list(getattr(output, "scheduled", output) or ())
        scheduled: dict[object, int] = {}
        known = {_id(request): request for request in requests}
        for request, num_tokens in pairs:
            known.setdefault(_id(request), request)
            scheduled[_id(request)] = scheduled.get(_id(request), 0) + int(num_tokens)
        preempted = set()
        for request in getattr(output, "preempted", None) or ():
            preempted.add(_id(request))
            if hasattr(request, "request_id"):
                known.setdefault(_id(request), request)

        moments, given_back, forks = {}, {}, {}
        for request_id, request in known.items():
            blocks = _blocks(request)
            before = self._last.get(request_id)
            if request_id in self._over and before is None:
                continue  # long gone
            if request_id not in self._arrivals and getattr(request, "root_id", request_id) != request_id:
                forks[request_id] = request.root_id
            moment = self._moment(request, blocks, before, scheduled.get(request_id, 0), request_id in preempted)
            if before == moment:
                moment = before  # most requests wait or hold what they held: kept once, not once a step
            moments[request_id] = moment
            self.block_size = self.block_size or getattr(getattr(request, "table", None), "block_size", None)
            held_before = len(before.blocks) if before else 0
            if moment.num_scheduled and not blocks and self.block_size:  # it grew in this step, and left at its end
                held_before = max(held_before, blocks_needed(moment.num_computed, self.block_size))
            if held_before > len(blocks):
                given_back[request_id] = held_before - len(blocks)
            self._last[request_id] = moment
            if moment.finish_reason or moment.state in ("finished", "aborted"):
                self._over.add(request_id)

        held = [known[request_id] for request_id, moment in moments.items() if moment.blocks]
        used, cached, total = self._pool(allocator, moments)
        slots = self._token_slots(held)
        note = in_words(moments, given_back, self._step_before(), forks)
        step = TraceStep(len(self._steps), time, moments, used, cached, total, slots, note, start)
        self._steps.append(step)
        for request_id in [each for each, moment in moments.items() if each in self._over and not moment.blocks]:
            del self._last[request_id]
        return step

    def rows(self, start: int = 0, stop: int | None = None) -> str:
        """A text table: one line a request, one letter a step, from step `start` up to but without `stop`."""
        steps = self._steps[start:stop]
        names = [str(request_id) for request_id in self.requests]
        width = max([len(name) for name in names] + [len("blocks")])
        first = steps[0].index if steps else 0
        ruler = "".join(f"{first + i:<10}" for i in range(0, len(steps), 10))[: max(len(steps), 4)].rstrip()
        lines = [f"{'step':<{width}}  {ruler}"]
        for request_id, name in zip(self.requests, names, strict=True):
            cells = (step.moments.get(request_id) for step in steps)
            letters = "".join(LETTERS[moment.state] if moment else " " for moment in cells)
            lines.append(f"{name:<{width}}  {letters}".rstrip())
        legend = ", ".join(f"{letter} {state}" for state, letter in LETTERS.items())
        return "\n".join([*lines, legend])

    # What one request did.

    def _moment(self, request, blocks: tuple, before: Moment | None, num_scheduled: int, preempted: bool) -> Moment:
        request_id = _id(request)
        if request_id not in self._arrivals:
            self._arrivals[request_id] = getattr(request, "arrival", None)
        num_prompt = self._num_prompt(request)
        if request_id not in self.num_prompt_tokens and num_prompt is not None:
            self.num_prompt_tokens[request_id] = num_prompt
        reason = _finish_reason(request)
        had = before.num_computed if before else 0
        computed = getattr(request, "num_computed_tokens", None)
        if computed is None or (reason and computed < num_scheduled):  # not told, or wiped when it finished
            computed = 0 if preempted else had + num_scheduled
        num_tokens = getattr(request, "num_tokens", None)
        if num_tokens is None:
            num_tokens = max(computed, (num_prompt or 0) + len(getattr(request, "output_token_ids", None) or ()))

        status = getattr(getattr(request, "status", None), "name", "")
        if num_scheduled:
            is_decode = num_scheduled == 1 and computed - 1 >= (1 if num_prompt is None else num_prompt)
            state = "decode" if is_decode else "prefill"
        elif reason:
            state = "aborted" if reason == "abort" else "finished"
        elif status == "SWAPPED":
            state = "swapped"
        elif preempted or status == "PREEMPTED":
            state = "preempted"
        elif before and not computed and (had or before.state == "preempted"):
            state = "preempted"  # its status does not say so, but what it had computed is gone
        else:
            state = "waiting"
        return Moment(state, num_scheduled, int(computed), int(num_tokens), blocks, reason)

    def _num_prompt(self, request) -> int | None:
        number = getattr(request, "num_prompt_tokens", None)
        if number is None:
            prompt = getattr(request, "prompt_token_ids", None)
            number = None if prompt is None else len(prompt)
        return None if number is None else int(number)

    # The pool.

    def _pool(self, allocator, moments: Mapping[object, Moment]) -> tuple[int, int, int]:
        """Blocks used, blocks cached and free, all blocks."""
        held = len({block for moment in moments.values() for block in moment.blocks})
        num_free = getattr(allocator, "num_free", None)
        total = getattr(allocator, "num_blocks", None)
        if total is None:  # it does not say: as many as were ever seen
            total = max(self._num_blocks, held + (num_free or 0))
        self._num_blocks = int(total)
        used = held if num_free is None else self._num_blocks - int(num_free)
        return used, int(getattr(allocator, "num_cached_free", 0) or 0), self._num_blocks

    def _token_slots(self, requests: list) -> int:
        tables = [(_blocks(request), _stored(request)) for request in requests]
        every = [block for blocks, _ in tables for block in blocks]
        size = self.block_size
        if size is None or len(every) == len(set(every)):
            return sum(num_tokens for _, num_tokens in tables)
        filled: dict[int, int] = {}  # some are shared
        for blocks, num_tokens in tables:
            for logical, block in enumerate(blocks):
                has = max(0, min(size, num_tokens - logical * size))
                filled[block] = max(filled.get(block, 0), has)
        return sum(filled.values())

    def _step_before(self) -> Mapping[object, Moment]:
        return self._steps[-1].moments if self._steps else {}


def in_words(
    moments: Mapping[object, Moment],
    given_back: Mapping[object, int],
    before: Mapping[object, Moment],
    forks: Mapping[object, object],
) -> str:
    """One step in words: who lost its place, who computes what, who is done. Those that go on waiting are not named."""

    def back(request_id) -> str:
        blocks = given_back.get(request_id, 0)
        return f": {blocks} {'block' if blocks == 1 else 'blocks'} back" if blocks else ""

    lost, prefill, over = [f"{child} forked from {parent}" for child, parent in forks.items()], [], []
    for request_id, moment in moments.items():
        was = before.get(request_id)
        old = was.state if was else None
        if moment.state in ("preempted", "swapped") and moment.state != old:
            lost.append(f"{request_id} {'swapped out' if moment.state == 'swapped' else 'preempted'}{back(request_id)}")
        elif moment.num_scheduled and moment.finish_reason:
            over.append(f"{request_id} is done ({moment.finish_reason}){back(request_id)}")
        elif moment.state in ("finished", "aborted") and not (was and was.finish_reason):
            over.append(f"{request_id} {moment.state}{back(request_id)}")
        elif moment.finish_reason and request_id in given_back:  # done some steps ago, and held its memory until now
            over.append(f"{request_id} leaves{back(request_id)}")
        if moment.num_scheduled and old == "swapped":
            lost.append(f"{request_id} swapped in")
        if moment.state == "prefill":
            prefill.append(f"{request_id} prefills {_chunk(moment, was)}")
    decode = [str(request_id) for request_id, moment in moments.items() if moment.state == "decode"]
    says = [f"{_list(decode)} {'decodes' if len(decode) == 1 else 'decode'}"] if decode else []
    parts = [*_some(lost), *_some(prefill), *says, *_some(over)]
    waiting = sum(moment.state in ("waiting", "preempted", "swapped") for moment in moments.values())
    return "; ".join(parts) or (f"nothing runs, {waiting:,} wait" if waiting else "nothing to do")


def _chunk(moment: Moment, was: Moment | None) -> str:
    """What a prefill computes: "32 of 100 tokens", and how much of it need not be computed."""
    tokens = "token" if moment.num_scheduled == 1 else "tokens"
    start = moment.num_computed - moment.num_scheduled
    says = f"{moment.num_scheduled:,} {tokens}"
    if moment.num_computed + 1 < moment.num_tokens:
        says = f"{moment.num_scheduled:,} of {moment.num_tokens - start:,} tokens"
    if was and was.state == "preempted":
        says += " again"
    found = start - (was.num_computed if was else 0)
    return f"{says} ({found:,} found in the cache)" if found > 0 else says


def _list(names: list[str], at_most: int = 8) -> str:
    shown = names if len(names) <= at_most else [*names[:at_most], f"{len(names) - at_most} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _some(parts: list[str], at_most: int = 4) -> list[str]:
    return parts if len(parts) <= at_most else [*parts[:at_most], f"and {len(parts) - at_most} more"]


def _id(request) -> object:
    return getattr(request, "request_id", request)


def _blocks(request) -> tuple[int, ...]:
    blocks = getattr(getattr(request, "table", None), "blocks", None)
    if blocks is None:
        blocks = getattr(request, "blocks", None)
    return tuple(blocks) if blocks else ()


def _stored(request) -> int:
    """Tokens in its blocks."""
    stored = getattr(getattr(request, "table", None), "num_tokens", None)
    return int(getattr(request, "num_computed_tokens", 0) if stored is None else stored)


def _finish_reason(request) -> str | None:
    """ "stop", "length" or "abort"; None while it is not over."""
    status = getattr(request, "status", None)
    if getattr(status, "is_finished", False) is True:
        return str(getattr(status, "finish_reason", None) or "stop")
    name = getattr(status, "name", None)
    if isinstance(name, str) and name.startswith("FINISHED"):
        return {"FINISHED_LENGTH": "length", "FINISHED_ABORTED": "abort"}.get(name, "stop")
    return None
