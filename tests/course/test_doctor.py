"""`pagedlab doctor`: what it says when all is well, and for each thing that can be missing."""

import json
import re
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from pagedlab.course import doctor
from pagedlab.model import fetch


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PAGEDLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path


def said(check):
    return [str(finding) for finding in check()]


def test_every_finding_says_its_state_in_a_word_and_every_problem_what_to_do():
    found = list(doctor.findings())
    assert len(found) > 15
    for finding in found:
        assert re.match(r"(ok|note|problem) ", str(finding))
        assert finding.state != "problem" or finding.advice
    assert [finding.what for finding in found if finding.state == "problem" and "model" not in finding.what] == []


def test_looking_leaves_no_trace(folders):
    list(doctor.findings())
    assert list(folders.iterdir()) == []


def test_exit_status_and_last_line(capsys, monkeypatch):
    good = [doctor.Finding("ok", "a"), doctor.Finding("note", "b")]
    for extra, status, last in (([], 0, "No problem found"), ([doctor.Finding("problem", "c", "d")], 1, "1 problem")):
        monkeypatch.setattr(doctor, "findings", lambda extra=extra: iter(good + extra))
        assert doctor.run_doctor() == status
        assert capsys.readouterr().out.splitlines()[-1].startswith(last)


def test_one_broken_check_does_not_hide_the_others(monkeypatch):
    def _gadget():
        raise RuntimeError("no gadget")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (_gadget, doctor._python))
    first, second = doctor.findings()
    assert "gadget: RuntimeError: no gadget" in str(first) and first.state == "problem"
    assert second.state == "ok"


@pytest.mark.parametrize(
    "version, state", [((3, 9), "problem"), ((3, 10), "ok"), ((3, 13), "ok"), ((3, 14), "problem")]
)
def test_python_versions(monkeypatch, version, state):
    monkeypatch.setattr(doctor.sys, "version_info", (*version, 0, "final", 0))
    assert [finding.state for finding in doctor._python()] == [state]


def test_tested_versions_cover_every_package_and_follow_the_markers(monkeypatch):
    assert set(doctor.PACKAGES) <= set(doctor.tested_versions())
    import packaging.markers

    real = packaging.markers.default_environment
    monkeypatch.setattr(packaging.markers, "default_environment", lambda: {**real(), "python_version": "3.10"})
    assert doctor.tested_versions()["numpy"] == "2.2.6"


def test_another_version_is_a_note_and_a_missing_package_a_problem(monkeypatch):
    def version(name):
        if name == "gguf":
            raise doctor.metadata.PackageNotFoundError(name)
        return "0.0.1" if name == "numpy" else f"{tested[name]}+cpu"

    tested = doctor.tested_versions()
    monkeypatch.setattr(doctor.metadata, "version", version)
    found = said(doctor._packages)
    assert any(line.startswith("note     numpy 0.0.1 is untested") for line in found)
    assert any(line.startswith("problem  gguf is not installed") for line in found)
    assert sum(line.startswith("ok ") for line in found) == len(doctor.PACKAGES) - 2


def test_torch_that_cannot_be_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert said(doctor._torch)[0].startswith("problem  torch does not work: ModuleNotFoundError")


@pytest.mark.parametrize("system, state", [("Linux", "problem"), ("Darwin", "note")])
def test_triton_is_needed_only_where_it_exists(monkeypatch, system, state):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(doctor.platform, "system", lambda: system)
    (finding,) = doctor._triton()
    assert finding.state == state and "08-11" in str(finding)


def test_another_triton_is_a_note(monkeypatch):
    pytest.importorskip("triton")
    tested = doctor.tested_versions()["triton"]
    for version, line in (
        (tested, f"ok       triton {tested}"),
        ("3.99.0", f"note     triton 3.99.0 is untested; the course was tested with {tested}"),
    ):
        monkeypatch.setattr("triton.__version__", version)
        assert said(doctor._triton)[0] == line


def test_what_triton_needs_on_a_gpu(monkeypatch, tmp_path):
    import torch

    assert torch.cuda.is_available() or said(doctor._triton_on_a_gpu) == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert said(doctor._triton_on_a_gpu)[0].startswith("note     TRITON_INTERPRET is set")
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert said(doctor._triton_on_a_gpu)[0].startswith("problem  Triton needs a C compiler")
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    assert said(doctor._triton_on_a_gpu)[0].startswith("problem  Triton needs Python.h")
    (tmp_path / "Python.h").touch()
    assert said(doctor._triton_on_a_gpu) == ["ok       Triton can compile for this GPU"]


def test_a_missing_and_a_damaged_model():
    assert "pagedlab fetch" in said(doctor._model)[0]
    fetch.model_path().parent.mkdir(parents=True)
    fetch.model_path().write_bytes(b"GGUF, but not much of it")
    (line,) = said(doctor._model)
    assert line.startswith("problem  the language model is damaged") and "pagedlab fetch" in line


def test_widgets_front_ends(monkeypatch, tmp_path):
    import jupyter_core.paths

    monkeypatch.setattr(jupyter_core.paths, "jupyter_path", lambda name: [str(tmp_path / "one"), str(tmp_path / "two")])
    assert [line.split()[0] for line in said(doctor._widgets)] == ["problem", "problem"]
    for name, version in (("anywidget", "0.11.0"), ("@jupyter-widgets/jupyterlab-manager", "3.1.1")):
        folder = tmp_path / "two" / name
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(json.dumps({"version": version}))
    new, old = said(doctor._widgets)
    assert new == "ok       widgets' front end anywidget 0.11.0"
    assert old.startswith("problem") and "3.1.1 is older than 5.0" in old


def test_a_kernel_of_another_python(monkeypatch):
    import jupyter_client.kernelspec as kernelspec

    Spec = namedtuple("Spec", "argv")
    for python, state in (("python", "ok"), (sys.executable, "ok"), ("/opt/other/bin/python", "problem")):
        monkeypatch.setattr(kernelspec.KernelSpecManager, "get_kernel_spec", lambda *_, python=python: Spec([python]))
        assert [finding.state for finding in doctor._kernel()] == [state]


def test_too_little_memory(monkeypatch):
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: namedtuple("Memory", "available")(2**30))
    assert said(doctor._memory)[0].startswith("problem  1.0 GiB of memory free; the model needs about 2")


def test_too_little_disk_and_a_folder_in_the_way(monkeypatch, folders):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: namedtuple("Usage", "free")(100 * 2**20))
    home, cache = said(doctor._folders)
    assert home.startswith("ok") and cache.startswith("problem") and "300 MiB are needed" in cache
    Path(folders / "home").write_text("in the way")
    assert said(doctor._folders)[0].startswith("problem  cannot write to")


def test_a_course_without_lessons(monkeypatch, tmp_path):
    from pagedlab.course import workspace

    monkeypatch.setattr(workspace, "shipped_lessons", lambda: tmp_path)
    assert said(doctor._lessons)[0].startswith("problem  no lessons")
