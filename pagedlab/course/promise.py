"""What an exercise promises, and how a broken promise is found and told.

An exercise is a handful of promises about any right answer, not a list of expected outputs. Hypothesis draws inputs for
each promise, and when one is broken it looks for the smallest inputs that still break it. What the learner reads is the
message of that smallest case.
"""

import math
import re
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from time import monotonic  # this name, because an answer may put its own function in the place of time.monotonic
from typing import Any

from pagedlab.course.answer import code_key
from pagedlab.course.words import count, error_text, plain, tell

# An exercise needs these two as well, so they can be had from here.
__all__ = ["Exercise", "Failure", "Judge", "NotAttempted", "Promise", "TimeUp", "Verdict", "Wrong", "promise"]
__all__ += ["count", "note", "tell"]

FEWEST = 5  # inputs that are tried for a promise however slow the answer is
SEARCH = 10.0  # seconds after which no new inputs are tried, however many the exercise has


NOT_CALLABLE_LIKE_THIS = re.compile(r"takes .*argument|required .*argument|unexpected keyword argument")


class Wrong(Exception):
    """Raised by a promise that the answer breaks; `from error` if that is an error of the answer's own.

    message: what went wrong, in the lesson's words, one sentence.
    example: the smallest story that shows it, as a learner would type it.
    hint: one question or pointer, not the solution.
    picture: an SVG drawing of the moment it broke, if there is one.
    where: the line of the answer, "line 3: return 7", if the error it came from doesn't know.
    """

    def __init__(self, message: str, example: str = "", hint: str = "", picture: str = "", where: str = ""):
        super().__init__(message)
        self.message, self.example, self.hint, self.picture, self.where = message, example, hint, picture, where


class NotAttempted(BaseException):
    """The answer still raises NotImplementedError. Not an `Exception`: no search may swallow it."""


class TimeUp(BaseException):
    """The time for this check is over. Not an `Exception`: a learner's `except Exception` must not swallow it."""


@dataclass(frozen=True)
class Failure:
    """One broken promise: plain text only, so that it travels between processes and into files."""

    name: str
    message: str
    example: str = ""
    hint: str = ""
    where: str = ""
    printed: str = ""
    picture: str = ""

    def __post_init__(self):
        for one in fields(self):
            if one.name != "picture":
                object.__setattr__(self, one.name, plain(getattr(self, one.name)))


@dataclass(frozen=True)
class Promise:
    """`holds(answer, **inputs)` returns when the promise is kept and raises `Wrong` when it is broken."""

    name: str
    holds: Callable[..., None]
    inputs: dict[str, Any]
    examples: int
    of_right_answers: bool = False


def promise(name: str, *, examples: int = 100, of_right_answers: bool = False, **inputs):
    """Make a `Promise` of a function. `inputs` are Hypothesis strategies, one for each keyword the function takes.

    of_right_answers: looked at only when all promises before it are kept. For what takes long, and says nothing to
    somebody whose answer is wrong.
    """

    def wrap(holds: Callable[..., None]) -> Promise:
        return Promise(name, holds, inputs, examples, of_right_answers)

    return wrap


def calling(call: str) -> str:
    """Note how a learner would write the call that comes next; gives it back. An error in it is told with this line."""
    _CALLS[:] = [call]
    return call


_CALLS: list[str] = []  # the call that is being tried, in a process that tries one answer


def note(text: str) -> None:
    """Say something about the answer that is neither right nor wrong; the report shows it, whatever comes out."""
    if text not in _NOTES:
        _NOTES.append(text)


_NOTES: list[str] = []  # in a process that tries one answer


@dataclass(frozen=True)
class Exercise:
    """What is asked, what must hold, and the hints, most general first."""

    id: str
    title: str
    kind: str  # "function", "class" or "kernel" (of Triton): what the learner hands to `check`
    reference: str  # "module:name" of our own implementation
    promises: tuple[Promise, ...]
    hints: tuple[str, ...]
    seconds: float = 8.0  # when an answer counts as stuck; new inputs stop earlier (see Judge)


@dataclass
class Verdict:
    """What a run of all promises found. `kept` and `failures` are in the order of the promises."""

    kept: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    not_attempted: str = ""
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict) -> "Verdict":
        failures = [Failure(**failure) for failure in data["failures"]]
        return cls(data["kept"], failures, data["not_attempted"], [plain(text) for text in data["notes"]])


class Judge:
    """Tries an answer against an exercise's promises.

    Three limits keep a check short. Each promise gets its share of two thirds of `seconds`, or of SEARCH if that is
    less; after that no new inputs are tried, so that a slow but right answer passes on what was seen, which is at least
    FEWEST inputs a promise.
    `shrink_seconds` after an input was found that breaks the promise, the smallest story so far is told as it is.
    After `seconds` the answer counts as stuck.
    """

    def __init__(
        self,
        written: dict[tuple, str],
        seconds: float = math.inf,
        shrink_seconds: float = 3.0,
        printed: Callable[[], str] = lambda: "",
        trying: Callable[[str, str], None] = lambda name, example: None,
    ):
        self.written = written  # the text of the learner's own functions (PackedAnswer.written)
        self.seconds, self.shrink_seconds = seconds, shrink_seconds
        self.printed = printed  # returns what the answer has printed since it was last asked
        self.trying = trying  # told the promise's name and the inputs before each try

    def judge(self, exercise: Exercise, answer) -> Verdict:
        _NOTES.clear()
        verdict = self._judge(exercise, answer)
        verdict.notes = list(_NOTES)
        return verdict

    def _judge(self, exercise: Exercise, answer) -> Verdict:
        verdict = Verdict()
        self.started = monotonic()
        search = min(self.seconds * 2 / 3, SEARCH)
        for number, one in enumerate(exercise.promises, 1):
            if one.of_right_answers and verdict.failures:
                continue
            self.enough_at = self.started + search * number / len(exercise.promises)
            self.tried, self.example = 0, ""
            self.smallest: Failure | None = None
            try:
                failure = self._try(one, answer)
            except NotAttempted as stub:
                return Verdict(not_attempted=str(stub) or "it still raises NotImplementedError")
            except (TimeUp, MemoryError) as up:
                verdict.failures.append(self.smallest or self._failure(one, up))
                return verdict
            if failure is None:
                verdict.kept.append(one.name)
            else:
                verdict.failures.append(failure)
        return verdict

    def _try(self, one: Promise, answer) -> Failure | None:
        from hypothesis import HealthCheck, Phase, given, settings
        from hypothesis.errors import Flaky, HypothesisException, StopTest

        def body(**inputs):
            if self._over():
                return
            self.tried += 1
            self.printed()
            # Told before the call, because the call may change what it is given.
            self.example = ", ".join(f"{name} = {tell(value)}" for name, value in inputs.items())
            self.trying(one.name, self.example)
            _CALLS.clear()
            try:
                one.holds(answer, **inputs)
            except (HypothesisException, StopTest, TimeUp):  # the search's own ways to end a try
                raise
            except BaseException as error:
                if self.smallest is None:
                    self.found_at = monotonic()
                self.smallest = self._failure(one, error)
                if isinstance(error, Exception):
                    raise
                raise RuntimeError("the answer raised what no search may be ended by") from error
            if monotonic() - self.started > self.seconds:  # the answer has swallowed TimeUp
                raise TimeUp

        search = settings(
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=one.examples,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        run = search(given(**one.inputs)(body)) if one.inputs else body
        try:
            run()
        except Flaky:
            if self.smallest and not self._over():
                return Failure(
                    one.name,
                    "The same call gave different results when it was made twice.",
                    self.smallest.example,
                    "Does something outlive the call: a global, a class attribute, a mutable default argument?",
                )
        except Exception:
            if self.smallest is None:
                raise
        return self.smallest

    def _over(self) -> bool:
        """Whether to try no more inputs."""
        if self.smallest:
            return monotonic() - self.found_at > self.shrink_seconds
        return self.tried >= FEWEST and monotonic() > self.enough_at

    def _failure(self, one: Promise, error: BaseException) -> Failure:
        printed = self.printed()
        if any(self._is_stub(cause) for cause in _causes(error)):
            raise NotAttempted(self._where(next(cause for cause in _causes(error) if self._is_stub(cause))))
        if isinstance(error, Wrong):
            where = error.where or (self._where(error.__cause__) if error.__cause__ else "")
            return Failure(one.name, error.message, error.example, error.hint, where, printed, error.picture)
        where = self._where(error)
        text, hint = error_text(error), ""
        example = _CALLS[0] if _CALLS else self.example
        if isinstance(error, TimeUp):
            message = "Your answer was still running when the time was over."
            hint = "Which loop never reaches its end?"
        elif isinstance(error, MemoryError) or "can't allocate memory" in text:
            message = "Your answer asked for more memory than a check allows."
            hint = "Does a loop or a shape grow with each call?"
        elif where or not any(self.written.values()):
            message = f"Your answer raised {text}"
        elif isinstance(error, TypeError) and NOT_CALLABLE_LIKE_THIS.search(text):
            message = f"Your answer can't be called as the exercise says: {text}"
            hint = "Compare its arguments with the exercise: how many, in which order, under which names?"
        else:  # it was raised later, in the promise that looked at the result
            message = f"What your answer gave back could not be used: {text}"
        return Failure(one.name, message, example, hint, where, printed)

    def _is_stub(self, error: BaseException) -> bool:
        """NotImplementedError from a line of the learner's; torch raises it too, for things it can't do."""
        frames = _frames(error)
        return isinstance(error, NotImplementedError) and bool(frames) and code_key(frames[-1][0]) in self.written

    def _where(self, error: BaseException) -> str:
        """The innermost line of the learner's own code on the way to `error`."""
        for code, number in reversed(_frames(error)):
            text = self.written.get(code_key(code))
            if text:
                lines = text.splitlines()
                line = lines[number - 1].strip() if 0 < (number or 0) <= len(lines) else ""
                return f"line {number}: {line}"
        return ""


def _causes(error: BaseException):
    """An error, and those that were being handled when it was raised."""
    seen = {}
    while error is not None and id(error) not in seen:
        seen[id(error)] = error
        error = error.__context__ if error.__cause__ is None else error.__cause__
    return seen.values()


def _frames(error: BaseException) -> list[tuple]:
    return [(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]
