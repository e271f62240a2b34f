"""The learner's copies of the lessons. One rule above all: no text a learner wrote is ever lost."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedlab import paths
from pagedlab.course import workspace as workspace_module
from pagedlab.course.workspace import Workspace, WorkspaceError
from pagedlab.errors import PagedLabError

NAMES = ("00_start_here.ipynb", "03_block_allocator.ipynb")


@pytest.fixture
def course(tmp_path):
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    for name in NAMES:
        (shipped / name).write_text(f"{name} v1")
    return Workspace(tmp_path / "home", shipped)


def publish(course, name, text):
    (course.shipped / name).write_text(text)


def read(course, name):
    return (course.lessons / name).read_text()


def backups(course):
    return sorted(path.read_text() for path in course.backups.glob("*")) if course.backups.is_dir() else []


def scraps(course):
    return [path for path in course.home.rglob(".*") if path.name.startswith(".")]


def test_first_start_copies_every_lesson_and_the_second_does_nothing(course):
    assert course.prepare().copied == list(NAMES)
    assert [read(course, name) for name in NAMES] == [f"{name} v1" for name in NAMES]
    before = {path: path.stat().st_mtime_ns for path in course.home.rglob("*")}
    assert course.prepare().messages() == []
    assert {path: path.stat().st_mtime_ns for path in course.home.rglob("*")} == before


def test_untouched_copies_follow_the_course_and_changed_ones_stay(course):
    course.prepare()
    (course.lessons / NAMES[1]).write_text("my work")
    for name in NAMES:
        publish(course, name, f"{name} v2")
    done = course.prepare()
    assert (done.updated, done.kept) == ([NAMES[0]], [NAMES[1]])
    assert read(course, NAMES[0]) == f"{NAMES[0]} v2" and read(course, NAMES[1]) == "my work"
    assert "pagedlab reset 03" in done.messages()[-1]


def test_a_changed_lesson_is_not_reported_while_the_course_is_the_same(course):
    course.prepare()
    (course.lessons / NAMES[1]).write_text("my work")
    assert course.prepare().messages() == []


@pytest.mark.parametrize(
    "text", ["3", "03", "03_block_allocator", "03_block_allocator.ipynb", "block_allocator", " Block-Allocator "]
)
def test_reset_keeps_a_backup(course, text):
    course.prepare()
    (course.lessons / NAMES[1]).write_text("my work")
    done = course.reset(text)
    assert read(course, NAMES[1]) == f"{NAMES[1]} v1"
    assert done.backup.read_text() == "my work" and done.backup.parent == course.backups
    publish(course, NAMES[1], "v2")
    assert course.prepare().updated == [NAMES[1]], "a reset copy counts as untouched"


def test_backups_of_the_same_second_do_not_replace_each_other(course):
    course.prepare()
    for text in ("one", "two", "three"):
        (course.lessons / NAMES[1]).write_text(text)
        course.reset("3")
    assert backups(course) == ["one", "three", "two"]


def test_reset_of_an_untouched_or_missing_lesson_makes_no_backup(course):
    course.prepare()
    assert course.reset("3").backup is None
    (course.lessons / NAMES[1]).unlink()
    assert course.reset("3").backup is None
    assert read(course, NAMES[1]) == f"{NAMES[1]} v1"


def test_an_unknown_lesson_is_answered_with_those_there_are(course):
    course.prepare()
    with pytest.raises(PagedLabError, match="no lesson 'blocks'.*00_start_here, 01_incremental_decoding"):
        course.reset("blocks")
    with pytest.raises(PagedLabError, match="05_paged_attention is not part.*: 00_start_here, 03_block_allocator"):
        course.reset("5")


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b'{"copies": 3}', b'{"copies": {"a": 3}}', b"\xff\xfe", b"[" * 100_000],
    ids=["empty", "cut", "list", "number", "types", "bytes", "deep"],
)
def test_a_damaged_manifest_is_put_aside_and_everything_counts_as_changed(course, damage):
    course.prepare()
    course.manifest.write_bytes(damage)
    publish(course, NAMES[0], "v2")
    done = course.prepare()
    assert done.damaged_manifest.read_bytes() == damage
    assert done.kept == [NAMES[0]] and read(course, NAMES[0]) == f"{NAMES[0]} v1"
    assert "could not be read" in done.messages()[0]
    publish(course, NAMES[1], "v2")
    assert course.prepare().updated == [NAMES[1]], "a copy equal to the shipped one was recognised again"


def test_home_is_a_file(course):
    course.home.write_text("in the way")
    with pytest.raises(WorkspaceError, match="PAGEDLAB_HOME"):
        course.prepare()
    assert course.home.read_text() == "in the way"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder nobody can write to")
def test_a_folder_that_cannot_be_written(course):
    with pytest.raises(WorkspaceError, match="/proc/pagedlab.*PAGEDLAB_HOME"):
        Workspace(Path("/proc/pagedlab"), course.shipped).prepare()


def test_lessons_that_do_not_ship(tmp_path):
    with pytest.raises(WorkspaceError, match="No lessons found"):
        Workspace(tmp_path / "home", tmp_path).prepare()
    assert not (tmp_path / "home").exists()


def fill_the_disk(monkeypatch, after):
    """Let `after` files be flushed to the disk; every later one fails."""
    real, left = os.fsync, [after]

    def fsync(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("after", range(3))
def test_a_disk_that_fills_up_during_the_first_start(course, monkeypatch, after):
    with monkeypatch.context() as patch:
        fill_the_disk(patch, after)
        with pytest.raises(WorkspaceError, match="No space left on device"):
            course.prepare()
    assert not scraps(course)
    for name in NAMES[after:]:
        assert not (course.lessons / name).exists()
    course.prepare()
    for name in NAMES:
        publish(course, name, "v2")
    assert course.prepare().updated == list(NAMES), "copies made before the failure count as untouched"


@pytest.mark.parametrize("after", range(3))
def test_a_disk_that_fills_up_during_a_reset(course, monkeypatch, after):
    course.prepare()
    (course.lessons / NAMES[1]).write_text("my work")
    with monkeypatch.context() as patch:
        fill_the_disk(patch, after)
        with pytest.raises(WorkspaceError, match="No space left"):
            course.reset("3")
    assert "my work" in [read(course, NAMES[1]), *backups(course)]
    assert not scraps(course)


def test_a_linked_lesson_is_never_written_through(course, tmp_path):
    course.prepare()
    elsewhere = tmp_path / "mine.ipynb"
    elsewhere.write_text(f"{NAMES[1]} v1")
    (course.lessons / NAMES[1]).unlink()
    (course.lessons / NAMES[1]).symlink_to(elsewhere)
    publish(course, NAMES[1], "v2")
    assert course.prepare().updated == []
    done = course.reset("3")
    assert elsewhere.read_text() == f"{NAMES[1]} v1" == done.backup.read_text()
    assert read(course, NAMES[1]) == "v2" and not (course.lessons / NAMES[1]).is_symlink()


def test_a_dangling_link_and_a_folder_in_a_lessons_place_are_left_alone(course, tmp_path):
    course.lessons.mkdir(parents=True)
    (course.lessons / NAMES[0]).symlink_to(tmp_path / "nowhere")
    (course.lessons / NAMES[1]).mkdir()
    assert course.prepare().copied == []
    assert (course.lessons / NAMES[0]).is_symlink() and (course.lessons / NAMES[1]).is_dir()
    with pytest.raises(WorkspaceError, match="is a folder"):
        course.reset("3")


def test_a_file_system_without_hard_links(course, monkeypatch):
    def link(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    assert course.prepare().copied == list(NAMES)
    (course.lessons / NAMES[1]).write_text("one")
    course.reset("3")
    (course.lessons / NAMES[1]).write_text("two")
    course.reset("3")
    assert backups(course) == ["one", "two"] and not scraps(course)


def test_a_lesson_that_appears_while_it_is_being_copied_is_not_replaced(course, monkeypatch):
    real = paths.tempfile.mkstemp

    def mkstemp(*args, **kwargs):
        (course.lessons / NAMES[0]).write_text("somebody was faster")
        return real(*args, **kwargs)

    monkeypatch.setattr(paths.tempfile, "mkstemp", mkstemp)
    assert NAMES[0] not in course.prepare().copied
    assert read(course, NAMES[0]) == "somebody was faster"


def test_several_processes_at_once(course):
    code = (
        "import sys; from pathlib import Path; from pagedlab.course.workspace import Workspace\n"
        "course = Workspace(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "for turn in range(20):\n"
        "    course.prepare(); (course.lessons / '03_block_allocator.ipynb').write_text(f'{sys.argv[3]} {turn}')\n"
        "    course.reset('3')"
    )
    command = [sys.executable, "-c", code, str(course.home), str(course.shipped)]
    running = [subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True) for name in ("a", "b")]
    for process in running:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    assert json.loads(course.manifest.read_text())["copies"].keys() == set(NAMES)
    assert [read(course, name) for name in NAMES] == [f"{name} v1" for name in NAMES]
    assert not scraps(course)


class LearnerAndCourse(RuleBasedStateMachine):
    """Edits, deletions, updates, resets, damage and full disks in any order."""

    names = st.sampled_from(NAMES)

    @initialize()
    def start(self):
        import tempfile

        self.scratch = tempfile.TemporaryDirectory()
        root = Path(self.scratch.name)
        (root / "shipped").mkdir()
        self.course = Workspace(root / "home", root / "shipped")
        self.version = 0
        self.texts = 0
        self.mine = {}  # what the learner wrote and has not deleted: it must be in the lesson
        self.replaced = set()  # what a reset took away: it must be in a backup
        for name in NAMES:
            self.publish(name)
        self.course.prepare()

    @rule(name=names)
    def publish(self, name):
        self.version += 1
        publish(self.course, name, f"version {self.version}")

    @rule(name=names)
    def edit(self, name):
        self.texts += 1
        (self.course.lessons / name).write_text(f"text {self.texts}")
        self.mine[name] = f"text {self.texts}"

    @rule(name=names)
    def delete(self, name):
        (self.course.lessons / name).unlink(missing_ok=True)
        self.mine.pop(name, None)

    @rule()
    def open_the_course(self):
        self.course.prepare()
        for name in NAMES:
            fresh = (self.course.shipped / name).read_text()
            shown = read(self.course, name)
            assert shown == self.mine.get(name, shown)
            if name not in self.mine and not self.unsure:
                assert shown == fresh, "an untouched copy is up to date"

    @rule(name=names)
    def reset(self, name):
        self.course.reset(name)
        if name in self.mine:
            self.replaced.add(self.mine.pop(name))
        assert read(self.course, name) == (self.course.shipped / name).read_text()

    @rule(name=names, after=st.integers(0, 3))
    def reset_on_a_full_disk(self, name, after):
        with pytest.MonkeyPatch.context() as patch:
            fill_the_disk(patch, after)
            try:
                self.course.reset(name)
            except WorkspaceError:
                self.unsure = True
        if name in self.mine and read(self.course, name) != self.mine[name]:
            self.replaced.add(self.mine.pop(name))

    unsure = False  # after a failure or damage an old copy may count as changed

    @precondition(lambda self: self.course.manifest.exists())
    @rule()
    def damage_the_manifest(self):
        self.course.manifest.write_text("{")
        self.unsure = True

    @invariant()
    def no_text_is_lost(self):
        if not hasattr(self, "course"):
            return
        for name, text in self.mine.items():
            assert read(self.course, name) == text
        assert self.replaced <= set(backups(self.course))

    def teardown(self):
        if hasattr(self, "scratch"):
            self.scratch.cleanup()


TestLearnerAndCourse = LearnerAndCourse.TestCase
TestLearnerAndCourse.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_copy_starts_as_if_no_cell_had_been_run(course):
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "Guess first ·"},
        {
            "cell_type": "code",
            "id": "b",
            "metadata": {},
            "source": "1 + 1",
            "execution_count": 3,
            "outputs": [{"x": 1}],
        },
    ]
    shipped = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    publish(course, NAMES[1], shipped)
    course.prepare()
    copy = course.lessons / NAMES[1]
    found = json.loads(copy.read_bytes())
    assert [cell["source"] for cell in found["cells"]] == ["Guess first ·", "1 + 1"]
    assert (found["cells"][1]["outputs"], found["cells"][1]["execution_count"]) == ([], None)
    assert course.prepare() == workspace_module.Prepared()  # and such a copy counts as untouched
    copy.write_text("my work")
    course.reset("03")
    assert json.loads(copy.read_bytes()) == found
