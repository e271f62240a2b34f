"""The notebook builder, on small sources of its own: what it makes, and what it refuses."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from pagedlab.course import builder
from pagedlab.course.lesson_source import LessonSourceError, learner_notebook, read_source, worked_notebook

NBVAL_RULES = Path(__file__).parents[1] / "nbval.cfg"

SOURCE = """\
# %% [markdown]
# # 3 · A small lesson
#
# One question.

# %%
import os
import time
from pathlib import Path

# %% [markdown]
# ## Exercise

# %% tags=["exercise"]
class Counter:
    def __init__(self, start):
        ### BEGIN SOLUTION
        # keep it
        self.value = start

        self.start = start
        ### END SOLUTION

    def add(self, amount):
        if amount:
            ### BEGIN SOLUTION
            self.value += amount
            ### END SOLUTION
        return self

# %%
try:
    print("value", Counter(2).add(3).value)
except NotImplementedError:
    print("not attempted")

# %%
print(f"measured: {time.monotonic_ns()} ns")
Path("scratch.txt").write_text("the working folder can be written to")
print(sorted(path.name for path in Path(os.environ["PAGEDLAB_HOME"]).iterdir()))
"""


def write_source(root, text, name="03_small.py"):
    source = root / "solutions" / name
    source.parent.mkdir(exist_ok=True)
    (root / "lessons").mkdir(exist_ok=True)
    source.write_text(text, encoding="utf-8")
    return source


def exercise_cell(body):
    return f'# %% [markdown]\n# # T\n\n# %% tags=["exercise"]\n{body}\n'


def read(path):
    return nbformat.read(path, as_version=4)


def sources(notebook):
    return [cell.source for cell in notebook.cells]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The small lesson, built once. Tests only read it."""
    root = tmp_path_factory.mktemp("course")
    write_source(root, SOURCE)
    assert builder.main([], root) == 0
    return root


def test_worked_notebook_is_the_source_without_markers(tmp_path):
    notebook = worked_notebook(read_source(write_source(tmp_path, SOURCE)))
    text = "\n".join(sources(notebook))
    assert "SOLUTION" not in text and "NotImplementedError\n" not in notebook.cells[3].source
    assert "        self.value = start\n\n        self.start = start\n" in notebook.cells[3].source


def test_learner_notebook_says_the_size_of_each_answer(tmp_path):
    notebook = learner_notebook(read_source(write_source(tmp_path, SOURCE)))
    assert notebook.cells[3].source == (
        "class Counter:\n"
        "    def __init__(self, start):\n"
        "        # your code here: about 2 lines\n"
        "        raise NotImplementedError\n"
        "\n"
        "    def add(self, amount):\n"
        "        if amount:\n"
        "            # your code here: about 1 line\n"
        "            raise NotImplementedError\n"
        "        return self"
    )
    assert notebook.cells[3].metadata == {"tags": ["exercise"]}


def test_both_notebooks_share_ids_and_run(built):
    worked, learner = read(built / "solutions/03_small.ipynb"), read(built / "lessons/03_small.ipynb")
    assert [cell.id for cell in worked.cells] == [f"l03-c{n:02d}" for n in range(6)]
    assert [cell.id for cell in learner.cells] == [cell.id for cell in worked.cells]
    assert worked.cells[4].outputs[0].text == "value 5\n"
    assert learner.cells[4].outputs[0].text == "not attempted\n"
    assert [c.execution_count for c in learner.cells if c.cell_type == "code"] == [1, 2, 3, 4]


def test_notebooks_run_in_an_empty_learners_folder(built):
    for name in ("solutions", "lessons"):
        text = read(built / name / "03_small.ipynb").cells[5].outputs[0].text
        assert re.fullmatch(r"measured: \d+ ns\n\[\]\n", text)
        assert {path.suffix for path in (built / name).iterdir()} <= {".ipynb", ".py"}


def test_nothing_about_this_machine_is_stored(built):
    for name in ("solutions", "lessons"):
        data = (built / name / "03_small.ipynb").read_bytes()
        assert data.endswith(b"}\n") and b'"timestamp"' not in data
        notebook = json.loads(data)
        assert "version" not in notebook["metadata"]["language_info"]
        assert all(set(cell["metadata"]) <= {"tags"} for cell in notebook["cells"])


def test_a_second_build_changes_no_byte_and_check_agrees(built, tmp_path):
    write_source(tmp_path, SOURCE)
    for name in ("solutions", "lessons"):
        (tmp_path / name / "03_small.ipynb").write_bytes((built / name / "03_small.ipynb").read_bytes())
    assert builder.main(["--check"], tmp_path) == 0
    assert builder.main(["3"], tmp_path) == 0
    for name in ("solutions", "lessons"):
        assert (tmp_path / name / "03_small.ipynb").read_bytes() == (built / name / "03_small.ipynb").read_bytes()
    assert builder.main(["--redraw"], tmp_path) == 0
    fresh = read(tmp_path / "lessons/03_small.ipynb").cells[5].outputs
    assert fresh != read(built / "lessons/03_small.ipynb").cells[5].outputs, "--redraw keeps nothing"


@pytest.mark.parametrize(
    "body, line, message",
    [
        ("def f():\n    ### BEGIN SOLUTION\n    return 1", 6, "has no '### END SOLUTION'"),
        ("def f():\n    return 1\n    ### END SOLUTION", 7, "without a '### BEGIN SOLUTION'"),
        ("def f():\n    ### BEGIN SOLUTION\n    ### BEGIN SOLUTION\n    return 1", 7, "began on line 6"),
        ("def f():\n    return 1", 4, "has no '### BEGIN SOLUTION'"),
        ("### BEGIN SOLUTION\nx = 1\n### END SOLUTION", 5, "top level"),
        ("def f():\n    ### BEGIN SOLUTION\n    # nothing\n    ### END SOLUTION", 6, "no code"),
        ("def f():\n    # BEGIN SOLUTION\n    return 1", 6, "is not a marker"),
        ("def f():\n    ### BEGIN SOLUTION\n    return 1\n# %%\n    ### END SOLUTION", 6, "before its cell ends"),
    ],
)
def test_malformed_regions_name_the_file_and_the_line(tmp_path, body, line, message):
    source = write_source(tmp_path, exercise_cell(body))
    with pytest.raises(LessonSourceError, match=re.escape(message)) as caught:
        read_source(source)
    assert str(caught.value).startswith(f"{source}:{line}: ")


def test_a_region_outside_an_exercise_cell_is_refused(tmp_path):
    source = write_source(tmp_path, "# %%\ndef f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n")
    with pytest.raises(LessonSourceError, match=r"py:3: .*without tags"):
        read_source(source)


def test_a_failing_cell_is_reported_and_nothing_is_written(tmp_path, capsys):
    write_source(tmp_path, "# %% [markdown]\n# # T\n\n# %%\nprint(1)\n\n# %%\nblocks = 0\nprint(7 // blocks)\n")
    assert builder.main([], tmp_path) == 1
    message = capsys.readouterr().err
    assert "solutions/03_small.ipynb, cell l03-c02 failed" in message
    assert "print(7 // blocks)" in message and "ZeroDivisionError" in message
    assert not list(tmp_path.rglob("*.ipynb"))


def test_an_error_only_in_the_learners_notebook_is_found_too(tmp_path, capsys):
    body = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n\n# %%\nprint(f())"
    write_source(tmp_path, exercise_cell(body))
    assert builder.main([], tmp_path) == 1
    assert "lessons/03_small.ipynb, cell l03-c02 failed" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.ipynb"))


@pytest.mark.parametrize(
    "code, message",
    [
        ("import warnings\nwarnings.warn('old')", "writes to stderr"),
        ("import os\nprint(os.getcwd())", "shows a folder of this machine"),
        ("import os\nos._exit(1)", "cell l03-c01 failed"),
    ],
)
def test_outputs_that_must_not_be_stored_stop_the_build(tmp_path, capsys, code, message):
    write_source(tmp_path, f"# %% [markdown]\n# # T\n\n# %%\n{code}\n")
    assert builder.main([], tmp_path) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.ipynb"))


def notebook_with(*outputs, source="draw()"):
    cell = nbformat.v4.new_code_cell(source, id="l03-c00", outputs=list(outputs), execution_count=1)
    return nbformat.v4.new_notebook(cells=[cell])


def display(**data):
    return nbformat.v4.new_output("display_data", data={key.replace("_", "/"): value for key, value in data.items()})


def printed(text, name="stdout"):
    return nbformat.v4.new_output("stream", name=name, text=text)


def test_widget_views_go_and_their_fallbacks_stay():
    view = display(text_html="<img alt='map'>", text_plain="a map")
    view.data[builder.WIDGET_VIEW] = {"model_id": "1"}
    bare = nbformat.v4.new_output("display_data", data={builder.WIDGET_VIEW: {"model_id": "2"}})
    notebook = notebook_with(printed("a\n"), printed("b\n"), view, bare)
    notebook.metadata["widgets"] = {"state": {}}
    builder.tidy(notebook)
    stream, picture = notebook.cells[0].outputs
    assert stream.text == "a\nb\n"
    assert picture.data == {"text/html": "<img alt='map'>", "text/plain": "a map"}
    assert "widgets" not in notebook.metadata


@pytest.mark.parametrize(
    "old, new, kept",
    [
        (display(image_png="AAAA", text_plain="<Figure>"), display(image_png="BBBB", text_plain="<Figure>"), True),
        (printed("7 blocks\nmeasured: 3 ms\n"), printed("7 blocks\nmeasured: 9 ms\n"), True),
        (printed("7 blocks\nmeasured: 3 ms\n"), printed("8 blocks\nmeasured: 9 ms\n"), False),
        (printed("<f at 0x7f00aa00bb00>\n"), printed("<f at 0x7f00aa00bb11>\n"), True),
        (display(image_png="AAAA", text_plain="<Figure>"), display(image_png="BBBB", text_plain="<Figure 2>"), False),
        (display(text_html="<b>1</b>"), display(text_html="<b>2</b>"), False),
        (display(image_png="AAAA"), printed("AAAA"), False),
    ],
)
def test_stored_outputs_stay_when_only_pixels_or_measured_lines_differ(old, new, kept):
    stored, fresh = notebook_with(old), notebook_with(new)
    builder.keep_stored_outputs(fresh, stored)
    assert fresh.cells[0].outputs == [old if kept else new]


def test_stored_outputs_go_when_the_source_changed():
    stored, fresh = notebook_with(printed("measured: 1\n"), source="a"), notebook_with(printed("measured: 2\n"))
    builder.keep_stored_outputs(fresh, stored)
    assert fresh.cells[0].outputs[0].text == "measured: 2\n"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda nb: nb.cells[1].update(source="import sys"), "cell l03-c01: source differs"),
        (lambda nb: nb.cells[3].update(id="other"), "cell l03-c03: id differs"),
        (lambda nb: nb.cells[3].metadata.update(tags=[]), "cell l03-c03: metadata differs"),
        (lambda nb: nb.cells.pop(), "5 cells stored, 6 in its source"),
        (lambda nb: nb.metadata.kernelspec.update(name="conda"), "metadata differs"),
        (lambda nb: nb.cells[4].update(execution_count=None, outputs=[]), "execution count None, should be 3"),
        (lambda nb: nb.cells[4].outputs.append(printed("careful", "stderr")), "writes to stderr"),
        (lambda nb: nb.metadata.update(widgets={}), "widget state"),
    ],
)
def test_check_names_the_cell_that_differs(built, tmp_path, capsys, change, message):
    write_source(tmp_path, SOURCE)
    for name in ("solutions", "lessons"):
        (tmp_path / name / "03_small.ipynb").write_bytes((built / name / "03_small.ipynb").read_bytes())
    path = tmp_path / "lessons/03_small.ipynb"
    notebook = read(path)
    change(notebook)
    nbformat.write(notebook, path)
    assert builder.main(["--check"], tmp_path) == 1
    complaint = capsys.readouterr().err
    assert message in complaint and "lessons/03_small.ipynb" in complaint and "solutions/03" not in complaint


def test_check_finds_missing_notebooks_orphans_and_an_empty_folder(tmp_path, capsys):
    (tmp_path / "lessons").mkdir()
    assert builder.main(["--check"], tmp_path) == 1
    assert "No lesson sources" in capsys.readouterr().err
    write_source(tmp_path, SOURCE)
    (tmp_path / "lessons/04_gone.ipynb").write_text("{}")
    assert builder.main(["--check"], tmp_path) == 1
    complaint = capsys.readouterr().err
    assert "lessons/03_small.ipynb is missing" in complaint and "solutions/03_small.ipynb is missing" in complaint
    assert "lessons/04_gone.ipynb has no source" in complaint
    assert builder.main(["--check", "07"], tmp_path) == 1
    assert "No source for lesson '07'. There is: 03" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, message",
    [
        ("# %% [markdown]\n# ## Low\n", "0 top headings"),
        ("# %% [markdown]\n# # A\n#\n# # B\n", "2 top headings"),
        ("# %% [markdown]\n# # A\n#\n# ### C\n", "skips from level 1 to level 3"),
        ("# %% [markdown]\n# # A\n\n# %%\n" + "x = 1\n" * 30, "30 lines of code"),
        ("# %% [markdown]\n# # A\n# " + "word " * 70_000 + "\n", "more than 300,000"),
    ],
)
def test_how_a_lesson_looks_is_checked(tmp_path, capsys, text, message):
    write_source(tmp_path, text)
    assert builder.main([], tmp_path) == 1
    assert message in capsys.readouterr().err


def test_nbval_forgives_exactly_what_the_builder_forgives():
    lines = NBVAL_RULES.read_text().splitlines()
    patterns = [line.removeprefix("regex: ") for line in lines if line.startswith("regex: ")]
    words = [line.removeprefix("replace: ") for line in lines if line.startswith("replace: ")]
    assert tuple(zip(patterns, words, strict=True)) == builder.UNSTABLE
