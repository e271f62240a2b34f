"""The real notebooks: made by their sources, every cell run, no answer given away, every check said what it should."""

import re
from pathlib import Path

import nbformat
import pytest

from pagedlab.course import builder, lesson_lint
from pagedlab.course.lesson_source import BEGIN, END, solution_lines
from pagedlab.course.syllabus import LESSONS

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "solutions").glob("*.py"))
NOTEBOOKS = sorted([*(ROOT / "solutions").glob("*.ipynb"), *(ROOT / "lessons").glob("*.ipynb")])
BY_NAME = {lesson.name: lesson for lesson in LESSONS}


def name_of(path):
    return str(path.relative_to(ROOT))


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def output_text(cell):
    """Everything a cell shows, as text."""
    parts = []
    for output in cell.outputs:
        parts += [output.get("text", ""), *(str(value) for value in output.get("data", {}).values())]
    return "\n".join(parts)


def test_there_are_pairs_and_only_pairs():
    assert SOURCES, "no lesson source in solutions/"
    stems = sorted(path.stem for path in SOURCES)
    assert stems == sorted(set(stems) & set(BY_NAME)), "a source the syllabus does not know"
    for folder in ("solutions", "lessons"):
        assert sorted(path.stem for path in NOTEBOOKS if path.parent.name == folder) == stems


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_notebooks_are_what_their_source_makes(source):
    assert builder.check_lesson(ROOT, source) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_every_code_cell_was_run_in_order(path):
    # nbval runs a cell that stores no execution count, but compares nothing.
    cells = code_cells(read(path))
    assert cells
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_no_cell_is_left_out_of_the_comparison(path):
    for cell in code_cells(read(path)):
        assert not [tag for tag in cell.metadata.get("tags", []) if tag.startswith("nbval-")], cell.id
        assert "NBVAL_" not in cell.source, cell.id


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_the_learners_notebook_gives_no_answer_away(source):
    text = source.read_text(encoding="utf-8")
    outside = re.sub(rf"(?ms)^\s*{BEGIN}$.*?^\s*{END}$", "", text)
    secret = [line for line in solution_lines(text) if len(line) >= 20 and line not in outside]
    learner = (ROOT / "lessons" / f"{source.stem}.ipynb").read_text(encoding="utf-8")
    shown = "\n".join(cell.source + "\n" + output_text(cell) for cell in code_cells(nbformat.reads(learner, 4)))
    assert [line for line in secret if line in shown] == []
    assert "SOLUTION" not in learner


def checks(notebook):
    """(exercise, answer, text shown, whether an exercise cell defines the answer) of every check in a notebook."""
    cells = code_cells(notebook)
    asked = [cell.source for cell in cells if "exercise" in cell.metadata.get("tags", [])]
    call = re.compile(r"""^\s*(?:\w+ = )?check\(\s*["'](\w+)["']\s*,\s*(\w+)""", re.MULTILINE)
    for cell in cells:
        for exercise, answer in call.findall(cell.source):
            defined = any(re.search(rf"(?m)^(?:def|class) {answer}\b", source) for source in asked)
            yield exercise, answer, output_text(cell), defined


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_every_exercise_is_checked_and_says_what_it_should(path):
    wanted = "passed" if path.parent.name == "solutions" else "not attempted"
    notebook = read(path)
    assert {exercise for exercise, *_, asked in checks(notebook) if asked} == set(BY_NAME[path.stem].exercises)
    for exercise, answer, shown, asked in checks(notebook):
        text = shown.lower()
        if asked:
            assert wanted in text, f"{exercise}: {text}"
            assert wanted == "passed" or not re.search(r"\b(passed|failed)\b", text), f"{exercise}: {text}"
        else:  # the lesson's own answer, to show what a check says: wrong in both notebooks
            assert f"✗ {exercise}: " in shown and "passed" not in text, f"{exercise}, {answer}: {text}"
    named = [cell.source for cell in code_cells(notebook) if re.search(r"^\s*(?:\w+ = )?check\(", cell.source, re.M)]
    assert len(named) <= len(list(checks(notebook))), "a check that this test doesn't understand"


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_what_the_lesson_checks_itself_is_told_alike_in_both_notebooks(source):
    def told(folder):
        found = checks(read(ROOT / folder / f"{source.stem}.ipynb"))
        return [(answer, shown) for _, answer, shown, asked in found if not asked]

    assert told("solutions") == told("lessons")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_only_the_first_answer_to_an_exercise_is_kept(path):
    """A second one in the same lesson would take the place of the learner's own."""
    seen = set()
    for cell in code_cells(read(path)):
        for exercise, rest in re.findall(r"""(?m)^\s*(?:\w+ = )?check\(\s*["'](\w+)["'](.*)$""", cell.source):
            if "keep=False" not in rest:
                assert exercise not in seen, f"cell {cell.id}: check({exercise!r}{rest}"
                seen.add(exercise)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_size_and_shape(path):
    notebook = read(path)
    for note in lesson_lint.notes(notebook):
        print(f"{name_of(path)}: {note}")
    cells, words = lesson_lint.CELLS, lesson_lint.WORDS
    markdown = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert cells[0] / 2 <= len(notebook.cells) <= cells[1] * 1.5
    assert words[0] / 2 <= sum(len(text.split()) for text in markdown) <= words[1] * 1.5
