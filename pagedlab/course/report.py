"""What a check says, as text and as HTML. The text says everything; the HTML only makes it easier to look at.

The HTML leans on no script and no style sheet, so it reads the same in JupyterLab (light and dark, trusted or not), in
an exported page, and where inline styles are dropped.
"""

import base64
import html
from dataclasses import dataclass, field

from pagedlab.course.promise import Failure
from pagedlab.course.words import count

MARK = {"passed": "✓", "failed": "✗", "not attempted": "○"}
PRINTED_LINES = 10
COLOUR = {"passed": "#009E73", "failed": "#D55E00", "not attempted": "#56B4E9"}  # Okabe-Ito


@dataclass(frozen=True)
class CheckResult:
    """The outcome of `check`. Show it by leaving it last in a cell; `print` gives the text form.

    status: "passed", "failed" or "not attempted".
    failures: the broken promises, each with name, message, example, hint (empty unless failed).
    kept: the names of the promises that held.
    notes: what else there is to say, such as where the answer was saved.
    """

    exercise: str
    status: str
    failures: tuple[Failure, ...] = ()
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return self.status == "passed"

    @property
    def headline(self) -> str:
        total = len(self.kept) + len(self.failures)
        if self.status == "passed":
            return f"{self.exercise}: passed, {'both' if total == 2 else f'all {total}'} promises kept"
        if self.status == "failed":
            kept = f"{len(self.kept)} of {total} promises kept" if total > 1 else "not yet"
            return f"{self.exercise}: {kept}"
        return f"{self.exercise}: not attempted"

    @property
    def _ask_for_a_hint(self) -> str:
        return f'Stuck? hint("{self.exercise}") gives a hint.'

    def __repr__(self) -> str:
        lines = [f"{MARK[self.status]} {self.headline}"]
        for failure in self.failures[:1]:
            lines += ["", f"  {failure.message}"]
            lines += [f"    {line}" for line in failure.example.splitlines()]
            if failure.where:
                lines += [f"    at {failure.where}"]
            lines += [f"  Hint: {failure.hint}" if failure.hint else f"  {self._ask_for_a_hint}"]
            if failure.printed:
                lines += ["  It printed:", *(f"    {line}" for line in first_lines(failure.printed).splitlines())]
            lines += [""]
        if self.status == "failed":
            lines += [f"  ✗ {failure.name}" for failure in self.failures if failure.name]
            lines += [f"  ✓ {name}" for name in self.kept]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines).rstrip()

    def _repr_html_(self) -> str:
        parts = [f"<b>{MARK[self.status]} {html.escape(self.headline)}</b>"]
        for failure in self.failures[:1]:
            parts += [f"<p><b>{html.escape(failure.message)}</b></p>"]
            told = failure.example + (f"\nat {failure.where}" if failure.where else "")
            if told.strip():
                parts += [_pre(told.strip())]
            if failure.picture:
                picture = base64.b64encode(failure.picture.encode()).decode()
                alt = html.escape(failure.message, quote=True)
                parts += [f'<img alt="{alt}" src="data:image/svg+xml;base64,{picture}">']
            hint = f"<i>Hint:</i> {html.escape(failure.hint)}" if failure.hint else html.escape(self._ask_for_a_hint)
            parts += [f"<p>{hint}</p>"]
            if failure.printed:
                parts += ["<p>It printed:</p>", _pre(first_lines(failure.printed))]
        if self.status == "failed":
            items = [f"<li>✗ {html.escape(failure.name)}</li>" for failure in self.failures if failure.name]
            items += [f"<li>✓ {html.escape(name)}</li>" for name in self.kept]
            if items:
                style = "list-style:none;padding-left:0;margin:.5em 0 0"
                parts += [f'<ul style="{style}">{"".join(items)}</ul>']
        parts += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return card("".join(parts), COLOUR[self.status])


def card(content: str, colour: str) -> str:
    """A block with a coloured edge. Text keeps the page's own colour, so it reads in any theme."""
    style = f"border-left:4px solid {colour};padding:.4em 0 .4em 1em;max-width:50em"
    return f'<div style="{style}">{content}</div>'


def first_lines(text: str) -> str:
    """As much of what an answer printed as a reader wants to see between a message and the next try."""
    lines = text.rstrip().splitlines()
    more = len(lines) - PRINTED_LINES
    return "\n".join(lines if more <= 0 else [*lines[:PRINTED_LINES], f"… and {count(more, 'line')} more"])


def _pre(text: str) -> str:
    return f'<pre style="margin:.5em 0;white-space:pre-wrap">{html.escape(text)}</pre>'
