"""`progress`: the map of the course with what is done marked on it."""

import html
from dataclasses import dataclass

from pagedlab.course import records
from pagedlab.course.exercises import MODULES
from pagedlab.course.syllabus import LESSONS, Lesson, lessons_available


@dataclass(frozen=True)
class Progress:
    """done: ids of the exercises whose check has passed. notes: trouble met while reading them."""

    done: frozenset[str]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines, part = [], None
        for lesson in LESSONS:
            if lesson.part != part:
                part = lesson.part
                lines += ["", part]
            lines += [f"  {lesson.number} {lesson.title:<32} {lesson.minutes:>3} min   {self._text(lesson)}".rstrip()]
        return "\n".join([self.headline, *lines, *(["", *self.notes] if self.notes else [])])

    @property
    def headline(self) -> str:
        ready = [name for name in MODULES if name in self.done]
        return f"{len(ready)} of {len(MODULES)} exercises done"

    def _text(self, lesson: Lesson) -> str:
        if lesson not in lessons_available():
            return "(not written yet)"
        return "  ".join(f"{'✓' if name in self.done else '○'} {name}" for name in lesson.exercises)

    def _repr_html_(self) -> str:
        rows, part = [], None
        left = 'style="text-align:left"'
        for lesson in LESSONS:
            if lesson.part != part:
                part = lesson.part
                rows += [f'<tr><th colspan="4" {left}>{html.escape(part)}</th></tr>']
            rows += [
                f"<tr><td {left}>{lesson.number}</td><td {left}>{html.escape(lesson.title)}</td>"
                f"<td>{lesson.minutes} min</td><td {left}>{html.escape(self._text(lesson))}</td></tr>"
            ]
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<b>{self.headline}</b><table>{''.join(rows)}</table>{notes}"


def progress() -> Progress:
    """What has been done so far, over all lessons. Reads the learner's folder; a damaged file there is set aside."""
    notes: list[str] = []
    done = frozenset(name for name in MODULES if records.saved_answer(name, notes.append))
    return Progress(done, tuple(notes))
