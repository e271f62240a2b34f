"""What is remembered of a learner's work: the answer that passed, and how often was tried and asked.

One small file an exercise, each replaced whole, so two notebooks can't overwrite each other's progress. A passed answer
is written only when an answer passes: a later wrong attempt never takes it away.

    answers/block_allocator.json     the answer that passed last, ready to be used by later lessons
    answers/block_allocator.py       the same as text, for people
    attempts/block_allocator.json    attempts made, hints shown
"""

import base64
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pagedlab.course.answer import PackedAnswer
from pagedlab.paths import home, write_atomic

PYTHON = "{}.{}".format(*sys.version_info[:2])


@dataclass(frozen=True)
class SavedAnswer:
    """payload holds bytecode, so it works only under the Python version that wrote it (`python`, "3.11" say)."""

    exercise: str
    passed_at: str
    python: str
    source: str
    payload: bytes


@dataclass(frozen=True)
class Attempts:
    made: int = 0
    hints_shown: int = 0


def save_answer(exercise: str, packed: PackedAnswer) -> Path:
    """Keep an answer that passed; returns the file. Raises OSError when the folder can't be written."""
    path = _path("answers", exercise)
    saved = {
        "exercise": exercise,
        "passed_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": PYTHON,
        "source": packed.source,
        "payload": base64.b64encode(packed.payload).decode(),
    }
    write_atomic(path, json.dumps(saved, indent=1).encode())
    write_atomic(path.with_suffix(".py"), packed.source.encode("utf-8", "backslashreplace"))
    return path


def saved_answer(exercise: str, tell: Callable[[str], None] = lambda message: None) -> SavedAnswer | None:
    """The answer that passed, or None. A damaged file is set aside and `tell` is told so."""

    def read(data) -> SavedAnswer:
        fields = {name: data[name] for name in ("exercise", "passed_at", "python", "source")}
        if not all(isinstance(value, str) for value in fields.values()) or fields["exercise"] != exercise:
            raise ValueError("not a saved answer of this exercise")
        return SavedAnswer(**fields, payload=base64.b64decode(data["payload"], validate=True))

    return _read(_path("answers", exercise), read, tell)


def attempts(exercise: str, tell: Callable[[str], None] = lambda message: None) -> Attempts:
    def read(data) -> Attempts:
        counts = [data["made"], data["hints_shown"]]
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise ValueError("not counters")
        return Attempts(*counts)

    return _read(_path("attempts", exercise), read, tell) or Attempts()


def count(exercise: str, *, made: int = 0, hints_shown: int = 0) -> None:
    """Add to the counters. Losing a count is no loss worth an error: an unwritable folder is ignored here."""
    before = attempts(exercise)
    after = {"made": before.made + made, "hints_shown": before.hints_shown + hints_shown}
    try:
        write_atomic(_path("attempts", exercise), json.dumps(after).encode())
    except OSError:
        pass


def _path(folder: str, exercise: str) -> Path:
    return home() / folder / f"{exercise}.json"


def _read(path: Path, read: Callable, tell: Callable[[str], None]):
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        tell(f"{path.name} can't be read ({error.strerror}), so it counts as not there.")
        return None
    try:
        return read(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError):
        aside = _set_aside(path)
        tell(f"{path.name} was damaged. It is kept as {aside.name}; run the check again to replace it.")
        return None


def _set_aside(path: Path) -> Path:
    for number in range(1, 1_000):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            try:
                path.rename(aside)
            except OSError:
                return path
            return aside
    return path
