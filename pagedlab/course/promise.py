"""What an exercise promises, and how a broken promise is found and told.

An exercise is a handful of promises about any right answer, not a list of expected outputs. Hypothesis draws inputs for
each promise, and when one is broken it looks for the smallest inputs that still break it. What the learner reads is the
message of that smallest case.
"""

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from pagedlab.course.answer import code_key


class Wrong(Exception):
    """Raised by a promise that the answer breaks.

    message: what went wrong, in the lesson's words, one sentence.
    example: the smallest story that shows it, as a learner would type it.
    hint: one question or pointer, not the solution.
    picture: an SVG drawing of the moment it broke, if there is one.
    """

    def __init__(self, message: str, example: str = "", hint: str = "", picture: str = ""):
        super().__init__(message)
        self.message, self.example, self.hint, self.picture = message, example, hint, picture


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


@dataclass(frozen=True)
class Promise:
    """`holds(answer, **inputs)` returns when the promise is kept and raises `Wrong` when it is broken."""

    name: str
    holds: Callable[..., None]
    inputs: dict[str, Any]
    examples: int


def promise(name: str, *, examples: int = 100, **inputs):
    """Make a `Promise` of a function. `inputs` are Hypothesis strategies, one for each keyword the function takes."""

    def wrap(holds: Callable[..., None]) -> Promise:
        return Promise(name, holds, inputs, examples)

    return wrap


@dataclass(frozen=True)
class Exercise:
    """What is asked, what must hold, and the hints, most general first."""

    id: str
    title: str
    kind: str  # "function" or "class": what the learner hands to `check`
    reference: str  # "module:name" of our own implementation
    promises: tuple[Promise, ...]
    hints: tuple[str, ...]


@dataclass
class Verdict:
    """What a run of all promises found. `kept` and `failures` are in the order of the promises."""

    kept: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    not_attempted: str = ""

    def as_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict) -> "Verdict":
        return cls(data["kept"], [Failure(**failure) for failure in data["failures"]], data["not_attempted"])


class Judge:
    """Tries an answer against an exercise's promises.

    Two limits keep a check short. After `patience` seconds no new inputs are tried: a slow but right answer passes on
    what was seen. After `shrink_seconds` more, the smallest story found so far is told as it is.
    """

    def __init__(
        self,
        written: dict[tuple, str],
        patience: float = 8.0,
        shrink_seconds: float = 3.0,
        printed: Callable[[], str] = lambda: "",
        begin: Callable[[Promise], None] = lambda promise: None,
    ):
        self.written = written  # the text of the learner's own functions (PackedAnswer.written)
        self.patience, self.shrink_seconds = patience, shrink_seconds
        self.printed = printed  # returns what the answer has printed since it was last asked
        self.begin = begin  # told of each promise before it is tried

    def judge(self, exercise: Exercise, answer) -> Verdict:
        verdict = Verdict()
        self.started = time.monotonic()
        for one in exercise.promises:
            self.begin(one)
            self.inputs: dict = {}
            self.smallest: Failure | None = None
            try:
                failure = self._try(one, answer)
            except NotAttempted as stub:
                return Verdict(not_attempted=str(stub) or "it still raises NotImplementedError")
            except TimeUp as up:
                verdict.failures.append(self.smallest or self._stuck(one, up))
                return verdict
            if failure is None:
                verdict.kept.append(one.name)
            else:
                verdict.failures.append(failure)
        return verdict

    def _try(self, one: Promise, answer) -> Failure | None:
        from hypothesis import HealthCheck, Phase, given, settings
        from hypothesis.errors import Flaky

        found_at = 0.0

        def over() -> bool:
            now = time.monotonic()
            return now - found_at > self.shrink_seconds if self.smallest else now - self.started > self.patience

        def body(**inputs):
            nonlocal found_at
            if over():
                return
            self.printed()
            self.inputs = inputs
            try:
                one.holds(answer, **inputs)
            except Exception as error:
                found_at = found_at or time.monotonic()
                self.smallest = self._failure(one, error, inputs)
                raise

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
            if self.smallest and not over():
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

    def _failure(self, one: Promise, error: Exception, inputs: dict) -> Failure:
        where = self._where(error)
        printed = self.printed()
        if isinstance(error, Wrong):
            return Failure(one.name, error.message, error.example, error.hint, "", printed, error.picture)
        if isinstance(error, NotImplementedError) and self._last_frame_is_theirs(error):
            raise NotAttempted(where)
        example = ", ".join(f"{name} = {tell(value)}" for name, value in inputs.items())
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            return Failure(one.name, "Your answer asked for more memory than a check allows.", example,
                           "Does a loop or a shape grow with each call?", where, printed)  # fmt: skip
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Failure(one.name, f"Your answer raised {text}", example, "", where, printed)

    def _stuck(self, one: Promise, up: TimeUp) -> Failure:
        example = ", ".join(f"{name} = {tell(value)}" for name, value in self.inputs.items())
        return Failure(one.name, "Your answer was still running when the time was over.", example,
                       "Which loop never reaches its end?", self._where(up), self.printed())  # fmt: skip

    def _where(self, error: BaseException) -> str:
        """The innermost line of the learner's own code on the way to `error`."""
        for code, number in reversed(_frames(error)):
            text = self.written.get(code_key(code))
            if text:
                lines = text.splitlines()
                line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
                return f"line {number}: {line}"
        return ""

    def _last_frame_is_theirs(self, error: BaseException) -> bool:
        frames = _frames(error)
        return bool(frames) and code_key(frames[-1][0]) in self.written


def _frames(error: BaseException) -> list[tuple]:
    return [(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]


def count(number: int, noun: str) -> str:
    """ "1 token", "2 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def tell(value, limit: int = 160) -> str:
    """A short text for an input: the shape of a tensor, the repr of anything else."""
    shape = getattr(value, "shape", None)
    text = f"tensor{list(shape)}" if shape is not None else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
