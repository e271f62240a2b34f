from pathlib import Path

from pagedlab.course.exercises import MODULES


def test_the_answers_of_every_lesson_are_tried():
    files = {path.stem.removeprefix("test_corpus_") for path in Path(__file__).parent.glob("test_corpus_[0-9]*.py")}
    assert files == {module.removeprefix("l") for module in MODULES.values()}
