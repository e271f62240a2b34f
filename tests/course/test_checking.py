"""`check` and `hint` as a learner meets them."""

import json
import os
import subprocess
import sys

import pytest

import pagedlab
from pagedlab import check, hint
from pagedlab.course import checking, records
from pagedlab.course.exercises import MODULES, find

ID = "blocks_needed"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(tmp_path))
    return tmp_path


def right(n, b):
    return -(-n // b)


def test_a_right_answer_passes_and_is_saved(home, capsys):
    result = check(ID, right)
    assert result.passed and result.status == "passed" and result.exercise == ID
    assert result.failures == () and "Saved" in result.notes[0]
    assert records.saved_answer(ID) and (home / "answers" / f"{ID}.py").exists()
    assert capsys.readouterr().out == f"{result}\n"


def test_an_answer_that_is_not_to_be_kept_leaves_no_trace(home):
    check(ID, right)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    other = check(ID, lambda n, b: (n + b - 1) // b, keep=False)
    assert other.passed and "Not saved" in other.notes[0]
    assert check(ID, lambda n, b: n // b, keep=False).status == "failed"
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_a_wrong_answer_is_told_why_and_nothing_is_saved(home):
    result = check(ID, lambda n, b: n // b)
    assert result.status == "failed" and not (home / "answers").exists()
    failure = result.failures[0]
    assert failure.name and failure.message and failure.example and failure.hint
    assert records.attempts(ID).made == 1


def test_a_stub_is_not_attempted_and_not_counted():
    def stub(n, b):
        raise NotImplementedError

    result = check(ID, stub)
    assert result.status == "not attempted" and not result.failures
    assert records.attempts(ID).made == 0


@pytest.mark.parametrize("wrong_id", ["block_needed", "", "zzz", 3, None, right])
def test_no_such_exercise(wrong_id):
    for verb in (lambda: check(wrong_id, right), lambda: hint(wrong_id)):
        with pytest.raises(ValueError, match="there is no exercise"):
            verb()


def test_the_nearest_name_is_offered():
    with pytest.raises(ValueError, match="'blocks_needed'"):
        check("block_needed", right)


class AClass:
    pass


@pytest.mark.parametrize(
    "answer, got",
    [(None, "None"), (3, "an int"), ([right], "a list"), (AClass, "the class AClass"), (AClass(), "an AClass")],
)
def test_something_else_than_a_function(answer, got):
    result = check(ID, answer)
    assert result.status == "failed"
    assert "without calling it" in result.failures[0].message and result.failures[0].example.endswith(
        f"was given {got}"
    )


@pytest.mark.parametrize("answer, got", [(AClass(), "an AClass"), (right, "a function"), (None, "None")])
def test_something_else_than_a_class(answer, got, monkeypatch):
    from dataclasses import replace

    monkeypatch.setattr(checking, "find", lambda name: replace(find(ID), kind="class"))
    result = check(ID, answer)
    assert "the class itself" in result.failures[0].message and result.failures[0].example.endswith(got)


async def asynchronous(n, b):
    return -(-n // b)


def generator(n, b):
    yield -(-n // b)


@pytest.mark.parametrize("answer", [asynchronous, generator, divmod, print, AClass().__init__])
def test_odd_callables_fail_with_an_explanation(answer):
    result = check(ID, answer)
    assert result.status == "failed" and result.failures[0].message and result.failures[0].example
    assert "0x" not in repr(result).replace("0x…", "")


def test_a_full_disk_does_not_undo_a_pass(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    result = check(ID, right)
    assert result.passed and "No space left" in result.notes[0] and "PAGEDLAB_HOME" in result.notes[0]


def test_what_cannot_be_saved_is_a_failure_with_a_name():
    stream = open(os.devnull, "wb")
    result = check(ID, lambda n, b: stream.write(n))
    stream.close()
    assert result.status == "failed" and "`stream`" in result.failures[0].message


def test_hints_come_in_order_and_the_last_one_stays(capsys):
    texts = find(ID).hints
    given = [hint(ID) for _ in range(len(texts) + 2)]
    assert [one.text for one in given] == [*texts, texts[-1], texts[-1]]
    assert [one.number for one in given] == [1, 2, 3, 3, 3]
    assert capsys.readouterr().out.splitlines()[0].startswith(f"Hint 1 of 3 for {ID}: ")
    assert given[0].text.split("?")[0] in given[0]._repr_html_()


def test_hints_go_on_after_a_restart(home):
    hint(ID)
    call = f"from pagedlab import hint; hint({ID!r})"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Hint 2 of 3")
    assert hint(ID).number == 3


def test_hints_where_nothing_can_be_written_or_read(home, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(home / "a file"))
    (home / "a file").write_text("")
    assert hint(ID).number == 1


@pytest.mark.parametrize("counts", [{"made": 1, "hints_shown": -9}, {"made": 1, "hints_shown": 10**9}, [], "x"])
def test_hints_with_strange_counters(home, counts):
    (home / "attempts").mkdir()
    (home / "attempts" / f"{ID}.json").write_text(json.dumps(counts))
    assert hint(ID).number in (1, 3)


WRONG = """
import sys
from pagedlab import check
def helper(n):
    return {str(k) for k in range(n)}
def wrong(n, b):
    print(next(iter({"x"})), object() and "same")
    if n > 20: raise ValueError(f"{len(helper(n))} <script>")
    return -(-n // b)
def bad(n, b):
    return object()
for answer in (wrong, bad, lambda n, b: n // b):
    result = check("blocks_needed", answer)
    print(result._repr_html_())
"""


def test_the_same_wrong_answer_is_told_in_the_same_bytes(tmp_path):
    said = set()
    for seed in ("1", "random"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PAGEDLAB_HOME": str(tmp_path / seed)}
        done = subprocess.run(
            [sys.executable, "-"], input=WRONG.encode(), capture_output=True, env=environment, check=True
        )
        said.add(done.stdout)
    assert len(said) == 1
    (text,) = said
    assert b"blocks_needed(21, " in text and b"&lt;script&gt;" in text


def test_importing_the_package_loads_no_torch():
    script = "import pagedlab, sys; pagedlab.check; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_verbs_are_in_the_package():
    assert {"check", "hint", "progress", "your_parts"} <= set(dir(pagedlab))
    assert len(MODULES) == len(set(MODULES))


def test_a_hint_can_be_asked_for_by_number():
    first = hint("blocks_needed")
    assert hint("blocks_needed", 1) == first
    assert hint("blocks_needed").number == 2  # asking by number counts for nothing
    with pytest.raises(ValueError, match="has hints 1 to 3, not 4"):
        hint("blocks_needed", 4)
