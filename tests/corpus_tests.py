"""The checks are tested: every wrong answer is rejected for the right reason, every right one accepted.

The tests of one lesson, for a file of their own: files are what is shared out among processes.
"""

import pytest

from pagedlab import check
from pagedlab.course import sandbox
from pagedlab.course.exercises import MODULES, reference
from tests.corpus import right_answers, wrong_answers

AT_LEAST_WRONG = {
    "block_allocator": 12, "paged_attention": 12, "prefix_cache": 12, "scheduler": 12, "paged_decode_kernel": 15,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(tmp_path))
    monkeypatch.setattr(sandbox, "PATIENCE", 2.0)  # another process runs tests: what is found must not depend on it


def all_answers_of(module: str):
    """Four test functions for the exercises of "l08", say."""
    exercises = [exercise for exercise, lesson in MODULES.items() if lesson == module]
    wrong = [(exercise, name, answer) for exercise in exercises for name, answer in wrong_answers(exercise).items()]
    right = [(exercise, name, answer) for exercise in exercises for name, answer in right_answers(exercise).items()]

    @pytest.mark.parametrize("exercise, name, answer", wrong, ids=[f"{e}-{n}" for e, n, _ in wrong])
    def test_wrong_answer_is_rejected(exercise, name, answer, record_property):
        result = check(exercise, answer)
        record_property("wrong answer", (exercise, result.status == "failed"))
        assert result.status == "failed", f"{name} is wrong, yet: {result}"
        promise, says = answer.expected
        first = result.failures[0]
        assert first.name == promise, f"expected {promise!r} to be reported first:\n{result}"
        assert says in f"{first.message}\n{first.example}\n{first.hint}", str(result)
        assert first.example, f"no example is shown:\n{result}"

    @pytest.mark.parametrize("exercise, name, answer", right, ids=[f"{e}-{n}" for e, n, _ in right])
    def test_right_answer_is_accepted(exercise, name, answer):
        result = check(exercise, answer)
        assert result.passed, str(result)

    @pytest.mark.parametrize("exercise", exercises)
    def test_reference_is_accepted(exercise):
        result = check(exercise, reference(exercise))
        assert result.passed, str(result)

    @pytest.mark.parametrize("exercise", exercises)
    def test_corpus_is_large_enough(exercise):
        assert len(wrong_answers(exercise)) >= AT_LEAST_WRONG.get(exercise, 8)
        assert len(right_answers(exercise)) >= 3

    return (
        test_wrong_answer_is_rejected,
        test_right_answer_is_accepted,
        test_reference_is_accepted,
        test_corpus_is_large_enough,
    )
