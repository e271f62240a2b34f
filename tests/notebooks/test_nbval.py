"""What a notebook's test catches: run on small notebooks whose stored outputs are right, stale or noisy."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]

HOME = "import os, pathlib\nhome = pathlib.Path(os.environ['PAGEDLAB_HOME'])\n"
FRESH = HOME + "print(list(home.iterdir()))\nwritten = (home / 'mine').write_text('x')"
OUTSIDE = HOME + "print(home == pathlib.Path(os.environ['OUTSIDE']))"
NOTEBOOKS = {
    # name: (cells of (code, stored stdout), whether the last one passes)
    "right": ([("print(6 * 7)", "42\n")], True),
    "stale": ([("print(6 * 7)", "43\n")], False),
    "silent": ([("print(6 * 7)", None)], False),
    "measured": ([("print('7 blocks'); print('measured: 2 ms')", "7 blocks\nmeasured: 9 ms\n")], True),
    "not_measured": ([("print('7 blocks'); print('measured: 2 ms')", "8 blocks\nmeasured: 9 ms\n")], False),
    "warning": ([("import warnings; warnings.warn('old'); print(1)", "1\n")], False),
    "crash": ([("print(1)", "1\n"), ("1 / 0", None)], False),
    "home_a": ([(FRESH, "[]\n"), (OUTSIDE, "False\n")], True),
    "home_b": ([(FRESH, "[]\n"), (OUTSIDE, "False\n")], True),
}


def notebook(cells):
    made = []
    for count, (source, text) in enumerate(cells, start=1):
        outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []
        made.append(nbformat.v4.new_code_cell(source, execution_count=count, outputs=outputs))
    return nbformat.v4.new_notebook(cells=made)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """{(notebook, cell number): "PASSED" or "FAILED"} of one pytest run with this project's settings."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "lessons").mkdir()
    (folder / "tests").mkdir()
    for name in ("pyproject.toml", "conftest.py", "tests/nbval.cfg"):
        shutil.copy(ROOT / name, folder / name)
    for name, (cells, _) in NOTEBOOKS.items():
        nbformat.write(notebook(cells), folder / "lessons" / f"{name}.ipynb")
    outside = folder / "outside"
    outside.mkdir()
    env = {**os.environ, "PAGEDLAB_HOME": str(outside), "OUTSIDE": str(outside), "PY_COLORS": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--tb=no", "lessons"]
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert not list(outside.iterdir()), "a notebook wrote into the folder of whoever ran the tests"
    summary = re.findall(r"^(PASSED|FAILED) lessons/(\w+)\.ipynb::Cell (\d+)", run.stdout, re.MULTILINE)
    found = {(name, int(number)): outcome for outcome, name, number in summary}
    assert len(found) == sum(len(cells) for cells, _ in NOTEBOOKS.values()), run.stdout + run.stderr
    return found


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_passes_only_when_it_prints_what_it_stores(outcomes, name):
    cells, passes = NOTEBOOKS[name]
    *before, last = [outcomes[name, number] for number in range(len(cells))]
    assert before == ["PASSED"] * len(before)
    assert last == ("PASSED" if passes else "FAILED")
