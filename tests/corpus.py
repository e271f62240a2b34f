"""The corpus of answers: wrong ones that a check must reject, and why; right ones in other styles that it must accept.

One file an exercise, named after it, in `tests/wrong_answers/` and `tests/right_answers/`.
"""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent


def wrong(promise: str, says: str = ""):
    """Mark a wrong answer: the promise that is reported as broken first, and some words of its message."""

    def mark(answer):
        answer.expected = (promise, says)
        return answer

    return mark


def right(answer):
    answer.expected = ()
    return answer


def wrong_answers(exercise_id: str) -> dict:
    return _marked("wrong_answers", exercise_id)


def right_answers(exercise_id: str) -> dict:
    return _marked("right_answers", exercise_id)


def _marked(folder: str, exercise_id: str) -> dict:
    path = HERE / folder / f"{exercise_id}.py"
    if not path.exists():
        return {}
    spec = importlib.util.spec_from_file_location(f"{folder}_{exercise_id}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that answers are pickled by value, with the helpers of their file
    spec.loader.exec_module(module)
    return {name: answer for name, answer in vars(module).items() if hasattr(answer, "expected")}
