"""`your_parts`: what the learner has built so far, ready for the next lesson to stand on."""

import html
from dataclasses import dataclass, field
from types import MappingProxyType

from pagedlab.course import records
from pagedlab.course.answer import unpack
from pagedlab.course.exercises import find, reference
from pagedlab.course.report import card

YOURS = "✓ yours"


@dataclass(frozen=True)
class Parts:
    """Parts by exercise id, as attributes: `parts.attend`. `origin` says of each whether it is yours."""

    parts: MappingProxyType = field(repr=False)
    origin: MappingProxyType

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.parts[name]
        except KeyError:
            raise AttributeError(f"no part {name!r} here; asked for were: {', '.join(self.parts)}") from None

    def __dir__(self):
        return [*super().__dir__(), *self.parts]

    def is_yours(self, exercise_id: str) -> bool:
        """Whether that part is the learner's own, not the course's reference."""
        return self.origin[exercise_id] == YOURS

    def __repr__(self) -> str:
        width = max(map(len, self.origin), default=0)
        return "\n".join(f"{name:{width}}  {origin}" for name, origin in self.origin.items())

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:left"><code>{html.escape(name)}</code></td>'
            f'<td style="text-align:left">{html.escape(origin)}</td></tr>'
            for name, origin in self.origin.items()
        )
        return card(f"<table>{rows}</table>", "#0072B2")


def your_parts(*exercise_ids: str) -> Parts:
    """The parts named, each the learner's own if its check has passed, else the course's reference.

    Raises ValueError for an exercise that doesn't exist.
    """
    parts, origin = {}, {}
    for exercise_id in exercise_ids:
        parts[exercise_id], origin[exercise_id] = _part(find(exercise_id).id)
    return Parts(MappingProxyType(parts), MappingProxyType(origin))


def _part(exercise_id: str):
    said = []
    saved = records.saved_answer(exercise_id, said.append)
    if saved is None:
        why = " ".join(said) or "yours has not passed its check yet"
        return reference(exercise_id), f"○ the reference: {why}"
    if saved.python != records.PYTHON:
        why = f"yours was saved by Python {saved.python}, this is {records.PYTHON}; run its check again"
        return reference(exercise_id), f"○ the reference: {why}"
    try:
        return unpack(saved.payload), YOURS
    except Exception as error:
        why = f"yours can't be loaded any more ({type(error).__name__}: {error}); run its check again"
        return reference(exercise_id), f"○ the reference: {why}"
