"""The schedule timeline: requests over steps, the pool's usage beneath, and one figure under another to compare.

It draws what a `pagedlab.engine.trace.ScheduleTrace` has recorded, of any scheduler, the learner's included.
"""

from collections.abc import Iterable, Mapping
from textwrap import wrap

import traitlets

from pagedlab.engine.trace import ScheduleTrace, TraceStep
from pagedlab.table import TextTable
from pagedlab.widgets.base import CourseWidget, css, esm
from pagedlab.widgets.look import plural, spoken_list
from pagedlab.widgets.reservation import WholeNumber
from pagedlab.widgets.timeline_picture import picture, totals_in_words
from pagedlab.widgets.timeline_story import (
    NamedTrace,
    Totals,
    cell_in_words,
    columns,
    names_of,
    read_trace,
    step_at,
    story,
    totals,
)

MAX_REQUESTS = 64  # rows; more could not be told apart
MAX_STEPS = 2_000
MAX_TRACES = 6
LINE_LENGTH = 90  # of a table's title
MOST_BLOCKS = 8  # that a row of the table names


class Timeline(CourseWidget):
    """One or several schedules, step by step, forwards and backwards.

    `traces`: a `ScheduleTrace`, or a part of one (`trace[100:200]`); or a dict of them, name -> trace, which are drawn
    one below another on the same axis, a request in the same row of each.
    `axis`: "steps", or "time" where every step has one. `requests`: the ids of those to draw, if not all; the pool and
    the totals are those of the whole trace in any case.
    `step`: where to begin. `selected`: the name (the id as text) of a request to follow, or "".

    `step` and `selected` can be set from Python and follow what is done with mouse and keyboard. With several traces on
    an axis of time, step n is the n-th moment at which any of them ended a step. `story` holds all that is drawn; it
    crosses to the browser once.
    """

    _esm = esm("timeline_layout", "timeline_drawing", "timeline")
    _css = css("timeline")

    step = WholeNumber(0, help="The step shown").tag(sync=True)
    selected = traitlets.Unicode(help="The name of the request that is followed, or nothing").tag(sync=True)
    story = traitlets.Dict(read_only=True, help="All that is drawn").tag(sync=True)

    def __init__(
        self,
        traces: ScheduleTrace | Mapping[str, ScheduleTrace],
        *,
        axis: str = "steps",
        requests: Iterable | None = None,
        step: int | None = None,
        selected: str = "",
    ):
        named = traces if isinstance(traces, Mapping) else {"": traces}
        self._traces = _read(named, isinstance(traces, Mapping))
        _check_size(self._traces, axis)
        self._ids = names_of(self._traces, [trace.requests for trace in named.values()])
        if requests is not None:
            self._ids = _only(self._ids, list(requests))
        if len(self._ids) > MAX_REQUESTS:
            raise ValueError(
                f"{len(self._ids):,} requests; the timeline draws {MAX_REQUESTS} rows at most: "
                f"choose some with requests=[...]"
            )
        self._axis = axis
        self._ends = columns(self._traces, axis)
        self._first = self._traces[0].steps[0].index if len(self._traces) == 1 else 0
        super().__init__()
        self.set_trait("story", story(self._traces, self._ids, axis))
        self.step = self._first if step is None else step
        self.selected = selected

    @property
    def traces(self) -> dict[str, tuple[TraceStep, ...]]:
        """The steps that are drawn, by the trace's name ("" for a single one)."""
        return {trace.name: trace.steps for trace in self._traces}

    @property
    def now(self) -> dict[str, TraceStep | None]:
        """The step at the cursor, of each trace; None for one that has ended."""
        return {trace.name: self._step_of(trace) for trace in self._traces}

    def totals(self) -> TextTable:
        """The traces compared in a few numbers."""
        heads = ["trace", "steps", "tokens", "tokens per step", "mean batch", "pool in use", "preemptions"]
        with_time = self._axis == "time"
        rows = []
        for trace in self._traces:
            t: Totals = totals(trace, self._axis)
            row = [trace.name or "all", t.num_steps, t.num_tokens, f"{t.tokens_per_step:,.1f}", f"{t.mean_batch:,.1f}"]
            row += [f"{100 * t.mean_usage:.0f} %", t.num_preemptions]
            rows.append(row + ([f"{t.seconds:,.4g}"] if with_time else []))
        return TextTable("Totals", heads + (["seconds"] if with_time else []), rows)

    @traitlets.validate("step")
    def _check_step(self, proposal):
        last = self._first + len(self._ends) - 1
        if not self._first <= proposal["value"] <= last:
            raise traitlets.TraitError(f"step is {proposal['value']}; the timeline has steps {self._first} to {last}")
        return proposal["value"]

    @traitlets.validate("selected")
    def _check_selected(self, proposal):
        names = list(self._ids.values())
        if proposal["value"] and proposal["value"] not in names:
            raise traitlets.TraitError(
                f"selected is {proposal['value']!r}; the requests are {spoken_list(names) or 'none'}"
            )
        return proposal["value"]

    def _step_of(self, trace: NamedTrace) -> TraceStep | None:
        at = step_at(trace, self._axis, self._ends, self.step - self._first)
        return None if at is None else trace.steps[at]

    def _cell_in_words(self, index: int, name: str) -> str:
        """What a request does at the cursor in trace number `index`; "" when the trace has ended."""
        trace = self._traces[index]
        at = step_at(trace, self._axis, self._ends, self.step - self._first)
        if at is None:
            return ""
        request_id = next(each for each, known in self._ids.items() if known == name)
        told = self.story["traces"][index]
        row = told["rows"][list(self._ids).index(request_id)]
        return cell_in_words(name, told, row, at, trace.steps[at].moments.get(request_id))

    def headline(self) -> str:
        count = plural(len(self._ids), "request")
        if len(self._traces) == 1:
            return f"{count}: {totals_in_words(self.story['traces'][0]['totals'])}"
        return f"{count}, scheduled in {len(self._traces)} ways: {spoken_list([trace.name for trace in self._traces])}"

    def _says(self) -> list[str]:
        """What happens at the cursor, a line for each trace."""
        lines = []
        for index, trace in enumerate(self._traces):
            step = self._step_of(trace)
            where = f"{trace.name}, step" if trace.name else "Step"
            if step is None:
                lines.append(f"{trace.name} ended at step {trace.steps[-1].index:,}.")
            else:
                pool = f"{step.blocks_used:,} of {plural(step.num_blocks, 'block')} used"
                lines.append(f"{where} {step.index:,}: {step.note}. {pool}.")
            if self.selected:
                lines[-1] += f" {self._cell_in_words(index, self.selected)}"
        return [line.rstrip() for line in lines]

    def sentence(self) -> str:
        parts = [f"Timeline of {self.headline()}."]
        if len(self._traces) > 1:
            parts += [f"{trace['name']}: {totals_in_words(trace['totals'])}." for trace in self.story["traces"]]
        return " ".join([*parts, *self._says()])

    def svg(self) -> str:
        return picture(self.story, self.step - self._first, self.headline(), self._says(), self.selected)

    def table(self) -> TextTable:
        """What each request does at the cursor, and what it has then."""
        several, rows = len(self._traces) > 1, []
        for trace in self._traces:
            step = self._step_of(trace)
            for request_id, name in self._ids.items():
                moment = step.moments.get(request_id) if step else None
                if moment is None:
                    continue
                blocks = ", ".join(map(str, moment.blocks[:MOST_BLOCKS]))
                more = len(moment.blocks) - MOST_BLOCKS
                rows.append(
                    [
                        *([trace.name] if several else []),
                        *(name, moment.state, moment.num_scheduled, moment.num_computed, moment.num_tokens),
                        f"{blocks} and {more} more" if more > 0 else blocks,
                    ]
                )
        title = "\n".join(line for says in self._says() for line in wrap(says, LINE_LENGTH))
        heads = ["request", "state", "scheduled", "computed", "tokens", "blocks"]
        return TextTable(title, [*(["trace"] if several else []), *heads], rows)


def _read(named: Mapping[str, object], has_names: bool) -> list[NamedTrace]:
    if not 1 <= len(named) <= MAX_TRACES:
        raise ValueError(f"{len(named)} traces; the timeline compares 1 to {MAX_TRACES}")
    if has_names and not all(isinstance(name, str) and name for name in named):
        raise ValueError(f"the traces are named {list(named)!r}; a name is a text that is not empty")
    return [read_trace(name, trace) for name, trace in named.items()]


def _check_size(traces: list[NamedTrace], axis: str) -> None:
    if axis not in ("steps", "time"):
        raise ValueError(f'axis is {axis!r}; it is "steps" or "time"')
    for trace in traces:
        which = f"the trace {trace.name!r}" if trace.name else "the trace"
        if len(trace.steps) > MAX_STEPS:
            raise ValueError(
                f"{which} has {len(trace.steps):,} steps; the timeline draws {MAX_STEPS:,} at most: "
                f"pass a part of it, trace[-{MAX_STEPS}:]"
            )
        times = [step.time for step in trace.steps]
        if axis == "time" and (None in times or times != sorted(times) or times[0] < trace.start):
            raise ValueError(
                f"{which} has no time for every step, or times that run backwards: record(..., time=seconds), "
                f'or use axis="steps"'
            )


def _only(ids: dict, wanted: list) -> dict:
    unknown = [request_id for request_id in wanted if request_id not in ids]
    if unknown:
        raise ValueError(f"no step has a request {unknown[0]!r}; the requests are {spoken_list(list(ids.values()))}")
    return {request_id: ids[request_id] for request_id in wanted}
