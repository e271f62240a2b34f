"""The `pagedlab` command: what it prints, where, and with which exit status."""

import io
import os
import re
import subprocess
import sys

import pytest

from pagedlab import __version__, cli
from pagedlab.errors import PagedLabError

COMMANDS = ("lab", "doctor", "fetch", "reset", "generate", "progress")


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PAGEDLAB_CACHE", str(tmp_path / "cache"))


def exit_status(*argv):
    with pytest.raises(SystemExit) as stop:
        cli.main(list(argv))
    return stop.value.code


def test_version_and_help(capsys):
    assert exit_status("--version") == 0
    assert capsys.readouterr().out == f"pagedlab {__version__}\n"
    assert exit_status("--help") == 0
    help_text = capsys.readouterr().out
    assert all(f"  {name}" in help_text for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_with_an_example(capsys, command):
    assert exit_status(command, "--help") == 0
    assert f"\n  pagedlab {command}" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["reset"], ["open"], ["lab", "--port", "many"], ["doctor", "now"]])
def test_a_wrong_command_line_is_status_2(capsys, argv):
    assert exit_status(*argv) == 2
    assert "usage: pagedlab" in capsys.readouterr().err


def test_no_command_prints_the_help(capsys):
    assert cli.main([]) == 2
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["reset", "blocks"], "no lesson 'blocks'"),
        (["lab", "--no-fetch", "--port", "99999"], "ports go from 1 to 65535"),
        (["fetch", "--from", "nowhere.gguf"], "nowhere.gguf"),
        (["generate", "hello", "--temperature", "nan"], "temperature is nan"),
        (["generate", "hello", "--max-tokens", "0"], "max_tokens is 0"),
        (["generate", "hello", "--model", "nowhere.gguf"], "nowhere.gguf"),
    ],
)
def test_a_problem_is_one_message_and_status_1(capsys, argv, message):
    assert cli.main(argv) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("pagedlab: ") and message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "raised, status", [(KeyboardInterrupt(), 130), (PagedLabError("7 blocks asked for, 3 free"), 1)]
)
def test_exit_status_of_what_a_command_raises(capsys, monkeypatch, raised, status):
    def fail(args):
        raise raised

    monkeypatch.setattr(cli, "_progress", fail)
    assert cli.main(["progress"]) == status
    assert (str(raised) or "stopped") in capsys.readouterr().err


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(cli, "_progress", lambda args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["progress"])


def test_progress_prints_the_map(capsys):
    assert cli.main(["progress"]) == 0
    assert "The block allocator" in capsys.readouterr().out


def test_reset_says_where_both_versions_are(capsys, tmp_path, monkeypatch):
    from pagedlab.course import workspace

    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "00_start_here.ipynb").write_text("new")
    monkeypatch.setattr(workspace, "shipped_lessons", lambda: tmp_path / "shipped")
    assert cli.main(["reset", "0"]) == 0
    assert "no version of yours" in capsys.readouterr().out
    lesson = tmp_path / "home" / "lessons" / "00_start_here.ipynb"
    lesson.write_text("mine")
    assert cli.main(["reset", "start_here"]) == 0
    shown = capsys.readouterr().out
    assert str(lesson) in shown and str(tmp_path / "home" / "backups") in shown


def test_the_command_starts_without_loading_anything_big():
    code = (
        "import sys, pagedlab.cli as cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit: pass\n"
        "big = {'torch', 'matplotlib', 'numpy', 'jupyterlab', 'gguf', 'transformers', 'IPython'} & set(sys.modules)\n"
        "print('LOADED', sorted(big))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "LOADED []"


def test_a_reader_that_goes_away_is_no_traceback():
    command = f"{sys.executable} -m pagedlab progress | true"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=os.environ)
    assert run.stderr == ""


def run_in_a_shell(command, **environment):
    command = f"{sys.executable} -m pagedlab {command}"
    return subprocess.run(["bash", "-c", command], capture_output=True, env={**os.environ, **environment})


def test_nowhere_to_print_to_is_no_error():
    run = run_in_a_shell("progress >&-")
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_one_message_and_status_1():
    run = run_in_a_shell("progress > /dev/full")
    assert run.returncode == 1
    assert run.stderr.decode().startswith("pagedlab: ") and run.stderr.count(b"\n") == 1, run.stderr.decode()


def test_a_terminal_of_ascii_gets_other_signs():
    run = run_in_a_shell("progress", PYTHONIOENCODING="ascii")
    assert (run.returncode, run.stderr) == (0, b"")
    assert b"- block_allocator" in run.stdout and b"?" not in run.stdout
    known = "".join(cli.PLAIN_SIGNS)
    assert cli._plain_signs(UnicodeEncodeError("ascii", known + "\u2603", 0, len(known) + 1, ""))[0].endswith("...?")
    assert cli.PLAIN_SIGNS["\u2713"] != cli.PLAIN_SIGNS["\u25cb"]


def test_a_file_given_for_a_model_that_is_there_is_said_to_be_unused(capsys, monkeypatch, tmp_path):
    from pagedlab.model import fetch

    monkeypatch.setattr(fetch, "is_fetched", lambda: True)
    assert cli.main(["fetch", "--from", "nowhere.gguf"]) == 0
    assert "nowhere.gguf was not looked at" in capsys.readouterr().out
    assert cli.main(["fetch"]) == 0
    assert "not looked at" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "stdin, says",
    [(None, "standard input, which is closed"), ("ab\udcff", "not text in UTF-8"), ("", "prompt is empty|cannot read")],
)
def test_a_prompt_from_standard_input_that_is_none(stdin, says, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.stdin", None if stdin is None else io.StringIO(stdin))
    assert cli.main(["generate", "-", "--model", str(tmp_path / "none.gguf")]) == 1
    error = capsys.readouterr().err
    assert re.search(says, error) and error.startswith("pagedlab: ") and error.count("\n") == 1
