"""Saved answers: a passed one is never lost, damage is set aside with a word, nothing here is fatal."""

import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pagedlab.course import records
from pagedlab.course.answer import PackedAnswer
from pagedlab.course.course_map import progress
from pagedlab.course.parts import your_parts

ID = "blocks_needed"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(tmp_path))
    return tmp_path


def packed(text="an answer") -> PackedAnswer:
    return PackedAnswer(text.encode(), f"# {text}\n")


def read():
    said = []
    return records.saved_answer(ID, said.append), said


def test_what_is_saved_is_read_back(home):
    path = records.save_answer(ID, packed())
    saved, said = read()
    assert saved.payload == b"an answer" and saved.python == records.PYTHON and not said
    assert path == home / "answers" / f"{ID}.json"
    assert path.with_suffix(".py").read_text() == "# an answer\n"


def test_nothing_saved_is_nothing_said():
    assert read() == (None, [])
    assert records.attempts(ID) == records.Attempts()


def test_source_that_is_not_proper_unicode_is_saved():
    records.save_answer(ID, PackedAnswer(b"", "# \ud800"))
    assert read()[0].source == "# \ud800"


GOOD = {"exercise": ID, "passed_at": "now", "python": records.PYTHON, "source": "", "payload": "AAAA"}
DAMAGED = {
    "empty": b"",
    "cut off": json.dumps(GOOD).encode()[:40],
    "zeros": bytes(100),
    "not utf-8": b"\xff\xfe{}",
    "a list": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "deep": b"[" * 100_000,
    "infinite": b'{"made": Infinity, "hints_shown": 1e999, "exercise": NaN}',
    "a field missing": json.dumps({k: v for k, v in GOOD.items() if k != "source"}).encode(),
    "a number for a text": json.dumps(GOOD | {"source": 3}).encode(),
    "no base64": json.dumps(GOOD | {"payload": "!!"}).encode(),
    "payload a list": json.dumps(GOOD | {"payload": []}).encode(),
    "another exercise": json.dumps(GOOD | {"exercise": "attend"}).encode(),
    "counts that are texts": b'{"made": "3", "hints_shown": "1"}',
    "negative counts": b'{"made": -3, "hints_shown": -9}',
    "huge number": b'{"made": ' + b"9" * 5000 + b', "hints_shown": 1}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_set_aside_with_a_message(home, content):
    for folder in ("answers", "attempts"):
        (home / folder).mkdir()
        (home / folder / f"{ID}.json").write_bytes(content)
    saved, said = read()
    assert saved is None
    assert said == [f"{ID}.json was damaged. It is kept as {ID}.json.damaged-1; run the check again to replace it."]
    assert (home / "answers" / f"{ID}.json.damaged-1").read_bytes() == content
    assert read() == (None, [])  # said once
    assert records.attempts(ID) == records.Attempts()
    records.count(ID, made=1)
    assert records.attempts(ID).made == 1
    records.save_answer(ID, packed())
    assert read()[0]


def test_each_damaged_file_is_kept(home):
    for number in range(3):
        (home / "answers").mkdir(exist_ok=True)
        (home / "answers" / f"{ID}.json").write_text(f"damage {number}")
        read()
    assert [(home / "answers" / f"{ID}.json.damaged-{n}").read_text() for n in (1, 2, 3)] == [
        f"damage {n}" for n in range(3)
    ]


def test_progress_and_parts_go_on_with_a_damaged_file(home):
    (home / "answers").mkdir()
    (home / "answers" / f"{ID}.json").write_text("{")
    assert "damaged" in repr(progress()) and not progress().done
    (home / "answers" / f"{ID}.json").write_text("{")
    parts = your_parts(ID)
    assert "damaged" in parts.origin[ID] and parts.blocks_needed(33, 16) == 3


def test_a_folder_in_the_place_of_a_file(home):
    (home / "answers" / f"{ID}.json").mkdir(parents=True)
    saved, said = read()
    assert saved is None and "can't be read" in said[0]
    with pytest.raises(OSError):
        records.save_answer(ID, packed())


def test_a_file_in_the_place_of_the_home(home, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(home / "file"))
    (home / "file").write_text("")
    assert read()[0] is None
    records.count(ID, made=1)
    with pytest.raises(OSError):
        records.save_answer(ID, packed())


def test_a_file_that_may_not_be_read(home, monkeypatch):
    records.save_answer(ID, packed())
    with monkeypatch.context() as context:
        context.setattr(
            Path, "read_bytes", lambda path: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
        )
        saved, said = read()
        assert saved is None and "Permission denied" in said[0]
    assert read()[0].payload == b"an answer"


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_full_disk_keeps_what_was_there(home, monkeypatch, call):
    records.save_answer(ID, packed("first"))
    records.count(ID, made=4)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, call, full)
        with pytest.raises(OSError, match="No space"):
            records.save_answer(ID, packed("second"))
        records.count(ID, made=1)  # a lost count is not worth an error
    assert read()[0].payload == b"first"
    assert records.attempts(ID).made == 4
    assert sorted(path.name for path in (home / "answers").iterdir()) == [f"{ID}.json", f"{ID}.py"]  # no scraps


def test_a_damaged_file_that_cannot_be_moved_is_not_fatal(home, monkeypatch):
    (home / "answers").mkdir()
    (home / "answers" / f"{ID}.json").write_text("{")
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert read()[0] is None


def test_home_may_move_and_be_a_link_with_a_strange_name(tmp_path, monkeypatch):
    first = tmp_path / "wo änders {1} $HOME"
    monkeypatch.setenv("PAGEDLAB_HOME", str(first))
    records.save_answer(ID, packed())
    moved = first.rename(tmp_path / "moved")
    assert read()[0] is None
    monkeypatch.setenv("PAGEDLAB_HOME", str(moved))
    assert read()[0]
    (tmp_path / "link").symlink_to(moved)
    monkeypatch.setenv("PAGEDLAB_HOME", str(tmp_path / "link"))
    records.save_answer(ID, packed("through the link"))
    assert read()[0].payload == b"through the link"


def test_reading_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(tmp_path / "new"))
    read(), records.attempts(ID), progress(), your_parts(ID)
    assert not (tmp_path / "new").exists()


WRITER = """
import sys
from pagedlab.course import records
from pagedlab.course.answer import PackedAnswer
for number in range(40):
    text = f"{sys.argv[1]} {number} " * 2000
    records.save_answer("blocks_needed", PackedAnswer(text.encode(), text))
    saved = records.saved_answer("blocks_needed", lambda said: sys.exit(said))
    assert len(set(saved.payload.decode().split()[::2])) == 1, "a mixture of two answers"
    records.count("blocks_needed", made=1)
"""


def test_two_notebooks_at_once(home):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name], stderr=subprocess.PIPE) for name in "ab"]
    for writer in writers:
        assert writer.wait(60) == 0, writer.stderr.read().decode()
        writer.stderr.close()
    assert not [path for path in home.rglob("*") if "damaged" in path.name or path.name.startswith(".")]


class Learner(RuleBasedStateMachine):
    """Whatever happens in whatever order: the last answer that was saved is read, until its file is damaged."""

    @initialize()
    def start(self):
        self.folder = tempfile.TemporaryDirectory()
        self.before = os.environ.get("PAGEDLAB_HOME")
        os.environ["PAGEDLAB_HOME"] = self.folder.name
        self.expected, self.made, self.damaged = None, 0, 0

    @property
    def file(self) -> Path:
        return Path(self.folder.name) / "answers" / f"{ID}.json"

    @rule(payload=st.binary(max_size=50), source=st.text(max_size=20))
    def save(self, payload, source):
        records.save_answer(ID, PackedAnswer(payload, source))
        self.expected = payload

    @rule(payload=st.binary(max_size=50))
    def fail_to_save(self, payload):
        with pytest.MonkeyPatch.context() as context:
            context.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
            with pytest.raises(OSError):
                records.save_answer(ID, PackedAnswer(payload, ""))

    @rule()
    def count(self):
        records.count(ID, made=1)
        self.made += 1

    @rule(content=st.binary(max_size=30) | st.sampled_from([b"null", b"[]", b'{"exercise": 1}']))
    def damage(self, content):
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_bytes(content)
        self.expected = None
        self.damaged += 1
        assert records.saved_answer(ID) is None

    @rule(share=st.floats(0, 0.99))
    def cut_off(self, share):
        if self.expected is not None:
            data = self.file.read_bytes()
            self.damage(data[: int(len(data) * share)])

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "folder"):
            saved = records.saved_answer(ID)
            assert (saved and saved.payload) == self.expected
            assert records.attempts(ID).made == self.made
            assert len(list(self.file.parent.glob("*.damaged-*"))) == self.damaged

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()
            if self.before is None:
                del os.environ["PAGEDLAB_HOME"]
            else:
                os.environ["PAGEDLAB_HOME"] = self.before


Learner.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestLearner = Learner.TestCase


def test_an_answer_of_another_python_gives_the_reference(home):
    path = records.save_answer(ID, packed())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"python": "3.9"}))
    assert "Python 3.9" in your_parts(ID).origin[ID] and your_parts(ID).blocks_needed(33, 16) == 3
    assert ID in progress().done


def test_an_answer_that_cannot_be_loaded_gives_the_reference(home):
    for payload in (b"", b"not a pickle", b"cno_such_module\nname\n."):
        path = records.save_answer(ID, packed())
        text = base64.b64encode(payload).decode()
        path.write_text(json.dumps(json.loads(path.read_text()) | {"payload": text}))
        parts = your_parts(ID)
        assert "can't be loaded any more" in parts.origin[ID] and parts.blocks_needed(33, 16) == 3
