"""One lesson source makes two notebooks: the worked one and the learner's. For people who edit lessons.

A source is `solutions/NN_name.py` in jupytext's percent format. What a learner has to write stands in a code cell
tagged `exercise`, between two marker lines:

    # %% tags=["exercise"]
    def blocks_needed(num_tokens, block_size):
        ### BEGIN SOLUTION
        return -(-num_tokens // block_size)
        ### END SOLUTION

The worked notebook keeps the lines between the markers. In the learner's they become the size of the answer and a
`raise NotImplementedError`. A cell may have several regions.
"""

import copy
import re
from pathlib import Path

from pagedlab.errors import PagedLabError

BEGIN = "### BEGIN SOLUTION"
END = "### END SOLUTION"
EXERCISE = "exercise"

# The same for every notebook, and without the Python version, so that a rebuild anywhere gives the same bytes.
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
# What jupytext notes about the layout of the source; it says nothing to a reader of the notebook.
LAYOUT_METADATA = ("lines_to_next_cell", "lines_to_end_of_cell_marker", "cell_marker")


class LessonSourceError(PagedLabError):
    """A lesson source that cannot be built. The message starts with file:line."""


def read_source(path: Path):
    """The lesson source at `path` as a notebook, markers still in it, with ids `l03-c07` by position."""
    import jupytext
    import nbformat

    text = path.read_text(encoding="utf-8")
    check_regions(text, path)
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(NOTEBOOK_METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for position, cell in enumerate(notebook.cells):
        cell.id = f"l{path.name[:2]}-c{position:02d}"
        for key in LAYOUT_METADATA:
            cell.metadata.pop(key, None)
    return notebook


def worked_notebook(source):
    """The notebook with the answers in it: `source` without the marker lines."""
    return _with_sources(source, _without_markers)


def learner_notebook(source):
    """The notebook with each solution region emptied."""
    return _with_sources(source, _stubbed)


def solution_lines(text: str) -> list[str]:
    """The lines of every solution region of a source, stripped, without blank lines and comments."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.strip() in (BEGIN, END):
            inside = line.strip() == BEGIN
        elif inside and _is_code(line):
            lines.append(line.strip())
    return lines


def check_regions(text: str, path: Path) -> None:
    """Raise `LessonSourceError` (file and line) unless every solution region is well formed and in its place."""

    def fail(number: int, message: str):
        raise LessonSourceError(f"{path}:{number}: {message}")

    def close_cell():
        if opened:
            fail(opened, f"'{BEGIN}' has no '{END}' before its cell ends")
        if tagged and not regions:
            fail(header, f"the cell is tagged '{EXERCISE}' but has no '{BEGIN}' ... '{END}' in it")

    header, tagged, regions, opened, code_lines = 1, False, 0, 0, 0
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(r"# ?%%", line):
            close_cell()
            header, tagged, regions, code_lines = number, EXERCISE in _tags(line), 0, 0
        elif line.strip() == BEGIN:
            if opened:
                fail(number, f"'{BEGIN}' inside the region that began on line {opened}")
            if not tagged:
                fail(number, f'a solution region in a cell without tags=["{EXERCISE}"] (the cell of line {header})')
            if line.startswith(BEGIN):
                fail(number, "a region at the top level would stop the learner's notebook; put it inside a function")
            opened, code_lines, regions = number, 0, regions + 1
        elif line.strip() == END:
            if not opened:
                fail(number, f"'{END}' without a '{BEGIN}' before it in this cell")
            if not code_lines:
                fail(opened, "the region has no code in it")
            opened = 0
        elif re.match(r"\s*#+\s*(BEGIN|END) SOLUTION", line, re.IGNORECASE):
            fail(number, f"'{line.strip()}' is not a marker; write '{BEGIN}' or '{END}' alone on the line")
        elif opened:
            code_lines += _is_code(line)
    close_cell()


def _tags(header: str) -> list[str]:
    found = re.search(r"tags\s*=\s*\[(.*?)\]", header)
    return re.findall(r"[\"']([^\"']+)[\"']", found.group(1)) if found else []


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith("#")


def _with_sources(source, rewrite):
    notebook = copy.deepcopy(source)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = "\n".join(rewrite(cell.source.split("\n")))
    return notebook


def _without_markers(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip() not in (BEGIN, END)]


def _stubbed(lines: list[str]) -> list[str]:
    kept, region = [], None
    for line in lines:
        if line.strip() == BEGIN:
            region, indent = 0, line[: len(line) - len(line.lstrip())]
        elif line.strip() == END:
            size = "1 line" if region == 1 else f"{region} lines"
            kept += [f"{indent}# your code here: about {size}", f"{indent}raise NotImplementedError"]
            region = None
        elif region is None:
            kept.append(line)
        else:
            region += _is_code(line)
    return kept
