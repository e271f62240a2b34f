"""Builds the notebooks from the lesson sources: `python -m pagedlab.course.builder [--check] [NN ...]`.

`solutions/NN_name.py` makes `solutions/NN_name.ipynb` (worked) and `lessons/NN_name.ipynb` (the learner's). Both are
run from top to bottom in a fresh learner's folder, and what they print is stored in them. Nothing is written when
either fails.

Building twice gives the same bytes. Two things differ from run to run and mean nothing: the pixels of a picture, and
lines that start with `measured:`. So when a cell's source is as stored, and its new outputs differ in nothing but
those, the stored outputs stay. `--redraw` takes everything from the new run.

`--check` runs nothing. It says where the stored notebooks are not what their sources make.

Needs the `dev` extra (jupytext, nbclient).
"""

import argparse
import copy
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from pagedlab.course import lesson_lint
from pagedlab.course.lesson_source import learner_notebook, read_source, worked_notebook
from pagedlab.errors import PagedLabError
from pagedlab.paths import write_atomic

CELL_TIMEOUT_S = 120
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PICTURES = ("image/png", "image/jpeg")
# What may differ between two runs, and what stands for it in a comparison. nbval gets the same rules (tests/nbval.cfg).
UNSTABLE = (
    (r"(?m)^measured: .*$", "measured: TIME"),
    (r"0x[0-9a-fA-F]{6,16}", "0xADDR"),
    (r"\S*ipykernel_\d+/\d+\.py:\d+", "KERNEL_TMP"),
)


class BuildError(PagedLabError):
    """A notebook that does not run, or that stores what it must not."""


def main(argv=None, root: Path | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pagedlab.course.builder", description="Build the notebooks.")
    parser.add_argument("lessons", nargs="*", metavar="NN", help="lesson numbers (default: all)")
    parser.add_argument("--check", action="store_true", help="run nothing; say where notebooks and sources disagree")
    parser.add_argument("--redraw", action="store_true", help="also replace pictures and measured lines")
    args = parser.parse_args(argv)
    root = root or Path(__file__).resolve().parents[2]
    try:
        sources = find_sources(root, args.lessons)
        complaints = [] if args.lessons else orphans(root)
    except PagedLabError as error:
        sources, complaints = [], [str(error)]
    for source in sources:
        try:
            complaints += check_lesson(root, source) if args.check else build_lesson(root, source, args.redraw)
        except PagedLabError as error:
            complaints.append(str(error))
    for complaint in complaints:
        print(f"problem: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def find_sources(root: Path, wanted=()) -> list[Path]:
    """The lesson sources of the checkout at `root`, or those of the `wanted` numbers."""
    sources = sorted((root / "solutions").glob("[0-9][0-9]_*.py"))
    if not sources:
        raise BuildError(f"No lesson sources in {root / 'solutions'}; they are called NN_name.py.")
    for number in wanted:
        if not any(number.zfill(2) == source.name[:2] for source in sources):
            raise BuildError(f"No source for lesson {number!r}. There is: {', '.join(s.name[:2] for s in sources)}.")
    numbers = {number.zfill(2) for number in wanted}
    return [source for source in sources if not numbers or source.name[:2] in numbers]


def targets(root: Path, source: Path) -> dict[str, Path]:
    """Where the two notebooks of a lesson source are stored."""
    return {name: root / name / f"{source.stem}.ipynb" for name in ("solutions", "lessons")}


def orphans(root: Path) -> list[str]:
    """Notebooks that no source makes."""
    notebooks = sorted([*(root / "solutions").glob("*.ipynb"), *(root / "lessons").glob("*.ipynb")])
    return [
        f"{path.relative_to(root)} has no source solutions/{path.stem}.py"
        for path in notebooks
        if not (root / "solutions" / f"{path.stem}.py").is_file()
    ]


def unexecuted(source: Path) -> dict:
    """The two notebooks of a lesson source, with no outputs: {"solutions": ..., "lessons": ...}."""
    notebook = read_source(source)
    return {"solutions": worked_notebook(notebook), "lessons": learner_notebook(notebook)}


# --- build -----------------------------------------------------------------------------------------------------------


def build_lesson(root: Path, source: Path, redraw: bool = False) -> list[str]:
    """Build, run and store both notebooks of one lesson. Returns what is wrong with how they look."""
    import nbformat

    found, built = [], {}
    for name, notebook in unexecuted(source).items():
        target = targets(root, source)[name]
        label = str(target.relative_to(root))
        print(f"{label} ...", end=" ", flush=True)
        started = time.monotonic()
        try:
            execute(notebook, label)
            tidy(notebook)
            complaints = stored_problems(notebook)
            if complaints:
                raise BuildError(f"{label}: " + "; ".join(complaints))
        except BuildError:
            print("failed", flush=True)
            raise
        print(f"{time.monotonic() - started:.1f} s", flush=True)
        if target.is_file() and not redraw:
            keep_stored_outputs(notebook, nbformat.read(target, as_version=4))
        data = to_bytes(notebook)
        found += [f"{label}: {line}" for line in lesson_lint.problems(notebook, len(data))]
        for line in lesson_lint.notes(notebook):
            print(f"  note: {line}")
        built[target] = data
    for target, data in built.items():
        write_atomic(target, data)
        target.chmod(0o644)
    return found


def execute(notebook, label: str) -> None:
    """Run every cell in a fresh learner's folder and a fresh working folder; outputs land in `notebook`."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    with tempfile.TemporaryDirectory(prefix="pagedlab-build-") as scratch:
        folders = {name: Path(scratch, name) for name in ("home", "ipython", "work")}
        for folder in folders.values():
            folder.mkdir()
        env = {**os.environ, "PAGEDLAB_HOME": str(folders["home"]), "IPYTHONDIR": str(folders["ipython"])}
        running = []
        client = NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT_S,
            kernel_name="python3",
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": str(folders["work"])}},
            on_cell_start=lambda cell, cell_index: running.append(cell),
        )
        try:
            client.execute(env=env)
        except (CellControlSignal, DeadKernelError) as error:
            cell = running[-1]
            reason = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
            raise BuildError(f"{label}, cell {cell.id} failed.\n\n{_indented(cell.source)}\n\n{reason}") from error
        text = str(notebook)
        for place in (scratch, str(Path(__file__).resolve().parents[2])):
            if place in text:
                cell = next(cell for cell in notebook.cells if place in str(cell))
                raise BuildError(f"{label}, cell {cell.id} shows a folder of this machine: {place}")


def tidy(notebook) -> None:
    """Leave in `notebook` only what is the same in every build: no live widget views, no kernel details."""
    import nbformat

    from pagedlab.course.lesson_source import NOTEBOOK_METADATA

    notebook.metadata = nbformat.from_dict(NOTEBOOK_METADATA)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        outputs = []
        for output in cell.outputs:
            data = output.get("data", {})
            # A stored view without its kernel shows an error in place of the picture that stands beside it.
            if data.pop(WIDGET_VIEW, None) is not None and not data:
                continue
            previous = outputs[-1] if outputs else {}
            if output.output_type == "stream" and previous.get("name") == output.name:
                previous.text += output.text
            else:
                outputs.append(output)
        cell.outputs = outputs


def keep_stored_outputs(notebook, stored) -> None:
    """Put the outputs of `stored` back wherever only pictures or measured lines are new."""
    before = {cell.get("id"): cell for cell in stored.cells}
    for cell in notebook.cells:
        old = before.get(cell.id)
        if old is None or cell.cell_type != "code" or old.cell_type != "code" or cell.source != old.source:
            continue
        if stable(cell.outputs) == stable(old.outputs):
            cell.outputs = old.outputs


def stable(outputs) -> list:
    """`outputs` with everything that may differ between two runs replaced by a word for it."""

    def settle(value, mime=None):
        if mime in PICTURES:
            return "PICTURE"
        if isinstance(value, dict):
            return {key: settle(item, key) for key, item in value.items() if key != "execution_count"}
        if isinstance(value, list):
            return [settle(item) for item in value]
        if isinstance(value, str):
            for pattern, word in UNSTABLE:
                value = re.sub(pattern, word, value)
        return value

    return settle(copy.deepcopy(outputs))


def to_bytes(notebook) -> bytes:
    import nbformat

    nbformat.validate(notebook)
    return (nbformat.writes(notebook).rstrip("\n") + "\n").encode()


# --- check -----------------------------------------------------------------------------------------------------------


def check_lesson(root: Path, source: Path) -> list[str]:
    """Where the stored notebooks of one lesson are not what its source makes, or are not fit to ship."""
    import nbformat

    found = []
    for name, expected in unexecuted(source).items():
        target = targets(root, source)[name]
        label = str(target.relative_to(root))
        if not target.is_file():
            found.append(f"{label} is missing; make it with 'make notebooks'")
            continue
        stored = nbformat.read(target, as_version=4)
        complaints = differences(expected, stored) + stored_problems(stored)
        complaints += lesson_lint.problems(stored, target.stat().st_size)
        found += [f"{label}: {line}" for line in complaints]
    return found


def differences(expected, stored) -> list[str]:
    """In which cells two notebooks differ, outputs aside. One line each."""
    found = []
    if expected.metadata != stored.metadata:
        found.append("the notebook's metadata differs from what its source makes")
    for wanted, cell in zip(expected.cells, stored.cells, strict=False):
        for field in ("id", "cell_type", "metadata", "source"):
            if wanted.get(field) != cell.get(field):
                shown = _first_difference(str(wanted.get(field)), str(cell.get(field)))
                found.append(f"cell {wanted.id}: {field} differs from its source: {shown}")
    if len(expected.cells) != len(stored.cells):
        found.append(f"{len(stored.cells)} cells stored, {len(expected.cells)} in its source")
    return found


def stored_problems(notebook) -> list[str]:
    """Outputs that must not be stored: cells that did not run, errors, warnings, live widget views."""
    found, count = [], 0
    if "widgets" in notebook.metadata:
        found.append("the notebook stores widget state")
    for cell in notebook.cells:
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        count += 1
        if cell.execution_count != count:
            found.append(f"cell {cell.id}: execution count {cell.execution_count}, should be {count}")
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"cell {cell.id}: ends in {output.ename}: {output.evalue}")
            elif output.get("name") == "stderr":
                found.append(f"cell {cell.id}: writes to stderr (a learner sees a red box): {output.text.strip()!r}")
            elif WIDGET_VIEW in output.get("data", {}):
                found.append(f"cell {cell.id}: stores a live widget view")
    return found


def _first_difference(wanted: str, stored: str) -> str:
    for new, old in zip(wanted.split("\n"), stored.split("\n"), strict=False):
        if new != old:
            return f"source has {new!r}, notebook has {old!r}"
    return f"source has {wanted.count(chr(10)) + 1} lines, notebook has {stored.count(chr(10)) + 1}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


if __name__ == "__main__":
    sys.exit(main())
