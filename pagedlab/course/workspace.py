"""The learner's copies of the lessons: made once, never overwritten once the learner may have changed them.

    home()/lessons/03_block_allocator.ipynb     the copy a learner works in
    home()/lessons.json                         which shipped version each copy came from (sha256)
    home()/backups/03_block_allocator-DATE.ipynb    what `reset` replaced

A shipped lesson stores what its cells print, for readers. A copy starts without: the guess comes before the result.

A copy that still has the bytes it was made with is replaced when the course brings a new version. Any other file is the
learner's: it stays, and the new version is offered. A copy that is a link is the learner's as well.
"""

import hashlib
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pagedlab.course.syllabus import Lesson, find_lesson, shipped_lessons
from pagedlab.errors import PagedLabError
from pagedlab.paths import create_atomic, home, write_atomic


class WorkspaceError(PagedLabError):
    """The learner's folder cannot be read or written. The message says which path, why, and what to do."""


@dataclass
class Prepared:
    """What `prepare` did, by notebook file name."""

    copied: list[str] = field(default_factory=list)  # were not there
    updated: list[str] = field(default_factory=list)  # were as shipped by an older course
    kept: list[str] = field(default_factory=list)  # the learner's, though the course has a newer one
    damaged_manifest: Path | None = None  # where an unreadable lessons.json was put aside

    def messages(self) -> list[str]:
        lines = []
        if self.damaged_manifest:
            lines.append(
                f"lessons.json could not be read; it is now {self.damaged_manifest.name}. No lesson was changed."
            )
        if self.copied:
            lines.append(f"New in your folder: {', '.join(self.copied)}.")
        if self.updated:
            lines.append(f"Updated (you had not changed them): {', '.join(self.updated)}.")
        for name in self.kept:
            lines.append(
                f"{name} is yours and stays; 'pagedlab reset {name[:2]}' gives the new one and keeps a backup."
            )
        return lines


@dataclass(frozen=True)
class Reset:
    """What `reset` did: where the fresh copy is, and where the file it replaced is kept (None: there was none)."""

    lesson: Path
    backup: Path | None


class Workspace:
    """A learner's folder and the shipped lessons it is filled from."""

    def __init__(self, folder: Path | None = None, shipped: Path | None = None):
        self.home = folder or home()
        self.shipped = shipped or shipped_lessons()
        self.lessons = self.home / "lessons"
        self.backups = self.home / "backups"
        self.manifest = self.home / "lessons.json"

    def prepare(self) -> Prepared:
        """Copy what is missing, update what is untouched, keep the rest. Safe to repeat and to interrupt.

        Raises `WorkspaceError` when the folder cannot be written; no lesson is half-written then.
        """
        done = Prepared()
        with self._clear_errors():
            shipped = sorted(self.shipped.glob("*.ipynb"))
            if not shipped:
                raise WorkspaceError(f"No lessons found in {self.shipped}. Install the course again.")
            self.lessons.mkdir(parents=True, exist_ok=True)
            origins, done.damaged_manifest = self._read_manifest()
            known = dict(origins)
            try:
                for source in shipped:
                    self._prepare_one(source.name, without_outputs(source.read_bytes()), origins, done)
            finally:
                # Also after a failure half-way: what was copied so far must count as untouched next time.
                if origins != known or not self.manifest.is_file():
                    self._write_manifest(origins)
        return done

    def reset(self, lesson: str) -> Reset:
        """Put a fresh copy of `lesson` ('3', '03_block_allocator', ...) in place; the old file goes to `backups`.

        Raises `PagedLabError` for an unknown lesson, `WorkspaceError` when the folder cannot be written. The old file
        is where it was unless its backup is complete.
        """
        name = f"{self._shipped(lesson).name}.ipynb"
        target = self.lessons / name
        with self._clear_errors():
            fresh = without_outputs((self.shipped / name).read_bytes())
            origins, _ = self._read_manifest()
            if target.is_dir():
                raise WorkspaceError(f"{target} is a folder. Move it away, then reset again.")
            backup = None
            if target.is_file() and target.read_bytes() != fresh:
                backup = self._back_up(target)
            write_atomic(target, fresh)
            origins[name] = _sha256(fresh)
            self._write_manifest(origins)
        return Reset(target, backup)

    def _shipped(self, text: str) -> Lesson:
        lesson = find_lesson(text)
        if not (self.shipped / f"{lesson.name}.ipynb").is_file():
            there = ", ".join(path.stem for path in sorted(self.shipped.glob("*.ipynb"))) or "none"
            raise PagedLabError(f"Lesson {lesson.name} is not part of this version of the course. There is: {there}.")
        return lesson

    def _prepare_one(self, name: str, fresh: bytes, origins: dict, done: Prepared) -> None:
        target = self.lessons / name
        new = _sha256(fresh)
        if not os.path.lexists(target):
            if create_atomic(target, fresh):
                origins[name] = new
                done.copied.append(name)
            return
        if target.is_symlink() or not target.is_file():
            return
        current = _sha256(target.read_bytes())
        if current == new:
            origins[name] = new
        elif current == origins.get(name):
            write_atomic(target, fresh)
            origins[name] = new
            done.updated.append(name)
        elif origins.get(name) != new:
            done.kept.append(name)

    def _back_up(self, target: Path) -> Path:
        self.backups.mkdir(parents=True, exist_ok=True)
        data = target.read_bytes()
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        for attempt in range(1, 1000):
            number = "" if attempt == 1 else f"-{attempt}"
            backup = self.backups / f"{target.stem}-{stamp}{number}{target.suffix}"
            if create_atomic(backup, data):
                return backup
        raise WorkspaceError(f"{self.backups} has 999 backups of {target.name} from this second. Try again.")

    def _read_manifest(self) -> tuple[dict[str, str], Path | None]:
        """(file name -> sha256 of the version its copy was made from, where a damaged manifest was put aside)."""
        try:
            found = json.loads(self.manifest.read_bytes())
            copies = found["copies"]
            if not all(isinstance(item, str) for pair in copies.items() for item in pair):
                raise ValueError("names and sha256 sums are strings")
            return dict(copies), None
        except FileNotFoundError:
            return {}, None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
            aside = self.manifest.with_name(f"{self.manifest.name}.damaged-{stamp}")
            os.replace(self.manifest, aside)
            return {}, aside

    def _write_manifest(self, origins: dict[str, str]) -> None:
        text = json.dumps({"format": 1, "copies": origins}, indent=1, sort_keys=True)
        write_atomic(self.manifest, f"{text}\n".encode())

    @contextmanager
    def _clear_errors(self):
        try:
            yield
        except OSError as error:
            where = error.filename or self.home
            raise WorkspaceError(
                f"Cannot use {where}: {error.strerror or error}. Nothing you wrote is lost. Make room or give "
                f"yourself the right to write there, or set PAGEDLAB_HOME to another folder (now: {self.home})."
            ) from error


def without_outputs(notebook: bytes) -> bytes:
    """The notebook as if no cell had been run. What is no notebook stays as it is."""
    try:
        content = json.loads(notebook)
        for cell in content["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"], cell["execution_count"] = [], None
    except (ValueError, KeyError, TypeError):
        return notebook
    return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
