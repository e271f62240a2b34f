"""`progress`: what is done, over all lessons."""

import re

import pytest

from pagedlab import progress
from pagedlab.course import records
from pagedlab.course.answer import PackedAnswer
from pagedlab.course.course_map import Progress
from pagedlab.course.exercises import MODULES
from pagedlab.course.syllabus import LESSONS, lessons_available


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(tmp_path))
    return tmp_path


def test_a_new_learner_has_done_nothing(home):
    assert progress().headline == f"0 of {len(MODULES)} exercises done"
    assert "✓" not in repr(progress()) and not list(home.iterdir())


def test_a_passed_exercise_is_marked():
    records.save_answer("blocks_needed", PackedAnswer(b"", ""))
    assert progress().done == {"blocks_needed"}
    assert progress().headline.startswith("1 of")
    if any("blocks_needed" in lesson.exercises for lesson in lessons_available()):
        assert "✓ blocks_needed" in repr(progress()) and "✓ blocks_needed" in progress()._repr_html_()


def test_text_and_html_list_every_lesson():
    text, page = repr(progress()), progress()._repr_html_()
    for lesson in LESSONS:
        assert lesson.title in text and lesson.title.replace("&", "&amp;") in page
    assert len(re.findall("<td ", page)) >= len(LESSONS)


def test_notes_are_shown_and_escaped():
    noted = Progress(frozenset(), ("<b>damaged</b>",))
    assert repr(noted).endswith("<b>damaged</b>") and "&lt;b&gt;damaged" in noted._repr_html_()


def test_every_exercise_of_a_lesson_that_is_there_has_a_check():
    for lesson in lessons_available():
        assert set(lesson.exercises) <= set(MODULES)
