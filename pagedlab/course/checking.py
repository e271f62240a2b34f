"""`check` and `hint`: the two verbs a learner uses in an exercise."""

import html
import sys
import types
from dataclasses import dataclass

from pagedlab.course import records
from pagedlab.course.answer import CannotKeepError, pack
from pagedlab.course.exercises import find
from pagedlab.course.promise import Exercise, Failure
from pagedlab.course.report import COLOUR, CheckResult, card
from pagedlab.course.sandbox import ALONE, judge_safely, warm_up
from pagedlab.gpu import carry


def check(exercise_id: str, answer, keep: bool = True) -> CheckResult:
    """Try `answer` against everything the exercise promises, and keep it if it passes.

    `keep=False` is for trying something else than your own answer: it is neither saved nor counted as an attempt.

    Never raises for a wrong answer: an error, an endless loop or a crash in it is part of the result. In a notebook
    the result shows itself as the last line of a cell; elsewhere it is printed as well. Raises ValueError for an
    exercise that doesn't exist.
    """
    exercise = find(exercise_id)
    result = _check(exercise, answer, keep)
    if keep and result.status != "not attempted":
        records.count(exercise.id, made=1)
    if not _in_notebook():
        print(result)
    return result


def _check(exercise: Exercise, answer, keep: bool) -> CheckResult:
    problem = _wrong_kind(exercise, answer)
    if problem:
        return CheckResult(exercise.id, "failed", failures=(problem,))
    try:
        packed = pack(answer)
    except CannotKeepError as error:
        return CheckResult(exercise.id, "failed", failures=(Failure(ALONE, str(error)),))
    verdict = judge_safely(exercise.id, packed)
    if verdict.not_attempted:
        return CheckResult(exercise.id, "not attempted", notes=(_still_a_stub(verdict.not_attempted),))
    status = "failed" if verdict.failures else "passed"
    notes = list(verdict.notes)
    if status == "passed" and not keep:
        notes.append("Not saved: your own answer stays as it is.")
    elif status == "passed":
        try:
            records.save_answer(exercise.id, packed)
            notes.append("Saved: later lessons will use it.")
        except OSError as error:
            notes.append(f"It could not be saved ({error}). Free some space or set PAGEDLAB_HOME, then check again.")
    return CheckResult(exercise.id, status, tuple(verdict.failures), tuple(verdict.kept), tuple(notes))


def _wrong_kind(exercise: Exercise, answer) -> Failure | None:
    got = f"check({exercise.id!r}, ...) was given {_called(answer)}"
    if exercise.kind == "class" and not isinstance(answer, type):
        return Failure("", "Hand over the class itself, not an object made from it.", got)
    if exercise.kind == "kernel" and not carry.is_kernel(answer):
        if isinstance(answer, types.FunctionType):
            return Failure("", "This is a plain function. A kernel has `@triton.jit` in the line above its `def`.", got)
        if hasattr(answer, "fn"):
            return Failure("", f"Your answer {carry.no_kernel(answer)}.", got)
        return Failure("", "Hand over the kernel itself, without launching it.", got)
    if exercise.kind == "function" and (isinstance(answer, type) or not callable(answer)):
        return Failure("", "Hand over the function itself, without calling it.", got)
    return None


def _called(answer) -> str:
    if answer is None or isinstance(answer, type):
        return "None" if answer is None else f"the class {answer.__name__}"
    noun = type(answer).__name__
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def _still_a_stub(where: str) -> str:
    line = f" ({where.split(':')[0]})" if where.startswith("line") else ""
    return f"It still raises NotImplementedError{line}. Write your answer there and take that line out."


@dataclass(frozen=True)
class Hint:
    """One hint; the next call of `hint` gives the next."""

    exercise: str
    number: int
    total: int
    text: str

    def __repr__(self) -> str:
        return f"Hint {self.number} of {self.total} for {self.exercise}: {self.text}"

    def _repr_html_(self) -> str:
        title = f"<b>Hint {self.number} of {self.total}</b> for {html.escape(self.exercise)}"
        return card(f'{title}<pre style="margin:.5em 0;white-space:pre-wrap">{html.escape(self.text)}</pre>',
                    COLOUR["not attempted"])  # fmt: skip


def hint(exercise_id: str, number: int | None = None) -> Hint:
    """The next hint, most general first; the last one is nearly the answer, and is given again when asked again.

    With `number`, that hint, 1 being the first. In a notebook it shows itself as the last line of a cell.
    """
    exercise = find(exercise_id)
    total = len(exercise.hints)
    if number is None:
        number = min(records.attempts(exercise.id).hints_shown + 1, total)
        records.count(exercise.id, hints_shown=1)
    elif not 1 <= number <= total:
        raise ValueError(f"{exercise.id} has hints 1 to {total}, not {number}")
    given = Hint(exercise.id, number, total, exercise.hints[number - 1])
    if not _in_notebook():
        print(given)
    return given


def _in_notebook() -> bool:
    """Whether a value left last in a cell is shown by itself."""
    ipython = sys.modules.get("IPython")
    return bool(ipython and ipython.get_ipython())


if _in_notebook():  # a lesson imports `check` long before it calls it: the first check needn't wait for torch
    warm_up()
