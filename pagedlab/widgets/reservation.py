"""The reservation map of lesson 02: a cache that sets `max_len` slots in one piece aside for every request.

Requests stand in a queue. Each one admitted owns the next `max_len` slots of the pool, whatever it will really need;
when no piece of that length is left, it and everyone behind it waits. The map shows what the reserved slots hold, in
the four groups of `pagedlab.cache.accounting.Waste`. Serving systems before paged caches worked like this
(arXiv:2309.06180, section 3.1).
"""

import operator
from collections.abc import Callable, Iterable, Sequence

import traitlets

from pagedlab.cache.accounting import LiveRequest, Waste, waste_breakdown
from pagedlab.table import TextTable
from pagedlab.widgets.base import CourseWidget, css, esm
from pagedlab.widgets.look import plural
from pagedlab.widgets.reservation_layout import GROUPS, Lengths, admit, describe, power_of_two
from pagedlab.widgets.reservation_picture import picture

MAX_REQUESTS = 1000  # three pieces each: more could not be told apart, and would be slow to draw


class WholeNumber(traitlets.Int):
    """An int, or anything that is one without rounding (NumPy and torch integers); True and False are not numbers."""

    def validate(self, obj, value):
        if isinstance(value, bool):
            self.error(obj, value)
        try:
            value = operator.index(value)
        except TypeError:
            self.error(obj, value)
        return super().validate(obj, value)


class ReservationMap(CourseWidget):
    """A pool of `num_slots` slots shared out to a queue of requests, `max_len` slots in one piece to each.

    `lengths`: the queue, first come first served, as pairs `(num_tokens, final_tokens)` or objects with those two.
    `breakdown`: a function like `waste_breakdown` whose numbers the widget shows, for example your own. When it fails
    or returns something impossible, the widget says so and shows the reference's numbers.
    `step` and `limit` set the slider: how far a step goes, and where it ends.

    `max_len` can be moved with the slider or set from Python. `selected` is the index of the chosen request, or -1.
    `state` holds all that is drawn, as plain dicts and lists; it follows the others and cannot be set.
    """

    _esm = esm("reservation")
    _css = css("reservation")

    max_len = WholeNumber(1, help="Slots set aside for every request").tag(sync=True)
    selected = WholeNumber(-1, help="Index of the chosen request, or -1").tag(sync=True)
    state = traitlets.Dict(read_only=True, help="All that is drawn").tag(sync=True)

    def __init__(
        self,
        lengths: Iterable,
        *,
        num_slots: int,
        max_len: int,
        breakdown: Callable[[list[LiveRequest], int], Sequence[int]] | None = None,
        step: int | None = None,
        limit: int | None = None,
    ):
        self._queue = _read_lengths(lengths)
        self._num_slots = _at_least_one("num_slots", num_slots)
        self._breakdown = breakdown
        max_len = _at_least_one("max_len", max_len)
        longest = max((request.final_tokens for request in self._queue), default=1)
        self._limit = max(max_len, power_of_two(longest) if limit is None else _at_least_one("limit", limit))
        self._step = max(1, power_of_two(self._limit) // 64) if step is None else _at_least_one("step", step)
        super().__init__(max_len=max_len)
        if not self.state:  # max_len was the trait's default, so nothing changed and nothing was drawn
            self._update()

    @property
    def lengths(self) -> tuple[Lengths, ...]:
        """The queue, in order of arrival."""
        return self._queue

    @property
    def num_slots(self) -> int:
        """The size of the pool."""
        return self._num_slots

    @property
    def admitted(self) -> list[LiveRequest]:
        """The requests that fit, in order. One that would outgrow `max_len` is counted up to `max_len`."""
        return admit(self._queue, self._num_slots, self.max_len)

    @property
    def waste(self) -> Waste:
        """What the slots of the pool hold, as shown."""
        return Waste(*self.state["counts"])

    @traitlets.validate("max_len")
    def _check_max_len(self, proposal):
        if proposal["value"] < 1:
            raise traitlets.TraitError(f"max_len is {proposal['value']}; a request needs at least 1 slot")
        return proposal["value"]

    @traitlets.validate("selected")
    def _check_selected(self, proposal):
        count = len(self._queue)
        if not -1 <= proposal["value"] < count:
            raise traitlets.TraitError(
                f"selected is {proposal['value']}; there are {plural(count, 'request')}, "
                f"so use an index below {count}, or -1 for none"
            )
        return proposal["value"]

    @traitlets.observe("max_len")
    def _update(self, change=None):
        admitted = self.admitted
        drawn = waste_breakdown(admitted, self._num_slots)
        shown, note = _ask(self._breakdown, admitted, self._num_slots, drawn)
        state = describe(self._queue, admitted, self._num_slots, self.max_len, shown)
        self.set_trait("state", {**state, "note": note, "step": self._step, "limit": max(self._limit, self.max_len)})

    def sentence(self) -> str:
        state = self.state
        shares = ", ".join(
            f"{group} {percent} ({count:,})"
            for group, percent, count in zip(GROUPS, state["percents"], state["counts"], strict=True)
        )
        parts = [
            f"ReservationMap at max_len = {self.max_len:,}: {state['headline']}.",
            state["reason"],
            state["cut"],
            f"{plural(self._num_slots, 'slot')}: {shares}.",
            state["note"],
            state["requests"][self.selected]["says"] if self.selected >= 0 else "",
        ]
        return " ".join(part for part in parts if part)

    def svg(self) -> str:
        return picture(self.state, self.selected)

    def table(self) -> TextTable:
        """One row a request: where its piece of the pool starts, and what the slots of that piece hold."""
        rows = []
        for request in self.state["requests"]:
            fits = request["start"] >= 0
            rows.append(
                [
                    request["letter"],
                    "fits" if fits else "waits",
                    request["start"] if fits else None,
                    *(count if fits else None for count in request["counts"]),
                    f"cut off at {self.max_len:,} of {request['final_tokens']:,}" if request["cut"] else "",
                ]
            )
        title = f"max_len = {self.max_len:,}: {self.state['headline']}"
        return TextTable(title, ["request", "", "from slot", *GROUPS[:3], "note"], rows)


def _ask(breakdown, admitted: list[LiveRequest], num_slots: int, drawn: Waste) -> tuple[Waste, str]:
    """The numbers to show, and what there is to say about them. `drawn` is what the slots of the map add up to."""
    if breakdown is None:
        return drawn, ""
    otherwise = "The numbers shown are the reference's."
    try:
        answer = breakdown(list(admitted), num_slots)
    except NotImplementedError:
        return drawn, f"Your breakdown is not written yet. {otherwise}"
    except Exception as error:  # whatever a learner's function does, the map stays usable
        first_line = str(error).partition("\n")[0][:200]
        said = "".join(character if character.isprintable() else "\ufffd" for character in first_line)
        return drawn, f"Your breakdown raised {type(error).__name__}: {said}. {otherwise}"
    try:
        shown = Waste(*map(operator.index, answer))
    except TypeError:
        got = f"{len(answer)} values" if isinstance(answer, tuple | list) else type(answer).__name__
        return drawn, f"Your breakdown returned {got}, not four whole numbers ({', '.join(GROUPS)}). {otherwise}"
    numbers = ", ".join(f"{group} {count:,}" for group, count in zip(GROUPS, shown, strict=True))
    if min(shown) < 0:
        return drawn, f"Your breakdown returned a number below 0 ({numbers}). {otherwise}"
    if sum(shown) != num_slots:
        return drawn, f"Your breakdown adds up to {sum(shown):,} of {num_slots:,} slots ({numbers}). {otherwise}"
    if shown != drawn:
        counted = ", ".join(f"{group} {count:,}" for group, count in zip(GROUPS, drawn, strict=True))
        return shown, f"The numbers shown are your breakdown's; counting the slots drawn gives {counted}."
    return shown, ""


def _read_lengths(lengths: Iterable) -> tuple[Lengths, ...]:
    queue = []
    for index, request in enumerate(lengths):
        if index == MAX_REQUESTS:
            raise ValueError(f"the map draws {MAX_REQUESTS:,} requests at most; pass lengths[:{MAX_REQUESTS}]")
        if hasattr(request, "num_tokens") and hasattr(request, "final_tokens"):
            request = (request.num_tokens, request.final_tokens)
        try:
            num_tokens, final_tokens = map(operator.index, request)
        except (TypeError, ValueError):
            raise ValueError(
                f"request {index} is {request!r}; expected two whole numbers, (num_tokens, final_tokens)"
            ) from None
        if not 0 <= num_tokens <= final_tokens:
            raise ValueError(
                f"request {index} has num_tokens={num_tokens} and final_tokens={final_tokens}; "
                "expected 0 <= num_tokens <= final_tokens"
            )
        queue.append(Lengths(num_tokens, final_tokens))
    return tuple(queue)


def _at_least_one(name: str, value: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}; expected a whole number of slots") from None
    if number < 1:
        raise ValueError(f"{name} is {number}; expected at least 1 slot")
    return number
