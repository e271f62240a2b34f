"""`pagedlab kernels`: the table, its JSON, and what it says to what it does not know."""

import json

import pytest

from pagedlab.cli import main
from pagedlab.gpu import mode

pytest.importorskip("triton")
mode.choose()

from pagedlab.kernels import figures  # noqa: E402
from pagedlab.kernels.figures import CASES, Figures, choose, table  # noqa: E402


def test_every_kernel_can_be_described():
    for case, describe in CASES.items():
        kernel, arguments, options = describe()
        assert set(kernel.arg_names) <= set(arguments), case
        assert options["num_warps"] >= 1


def test_choosing():
    assert choose(None) == list(CASES)
    assert choose(["merge", "write"]) == ["write", "merge, 8 splits"]
    assert set(choose(["decode"])) == {case for case in CASES if case.startswith("decode")}


def test_a_table():
    first = Figures("decode", "sm_80", 4, 3, 94, 0, 39_168, 4, "shared memory", 33, 4, 1, 1, 35, "32 HMMA")
    second = Figures("decode", "gfx942", error="it can't start there.")
    lines = table([first, second, Figures("copy", "sm_80", registers=30)]).splitlines()
    assert lines[1].strip() == "decode" and lines[4].strip() == "copy"
    assert lines[2].split() == "sm_80 94 0 39,168 4 shared memory 33 4 35 1 1 32 HMMA".split()
    assert lines[3].split() == ["gfx942", "-", "[1]"]
    assert lines[-1] == "[1] decode, gfx942: it can't start there."
    assert lines[2].index("39,168") + 6 == lines[0].index("shared B") + 8  # numbers end where their head does


def test_the_command(capsys):
    assert main(["kernels", "--kernel", "write", "--target", "sm_80", "--target", "sm_90"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[2:]] == ["write", "sm_80", "sm_90"]
    assert main(["kernels", "--kernel", "write", "--target", "sm_80", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["figures"]
    assert (row["case"], row["target"], row["wide"], row["narrow_stores"]) == ("write", "sm_80", 2, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kernel", "attention"], "No kernel is called 'attention'. There are decode, prefill, write, copy, merge."),
        (["--target", "sm_1"], "No target is called 'sm_1'"),
    ],
)
def test_unknown_names(arguments, said, capsys):
    assert main(["kernels", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_progress(monkeypatch):
    seen = []
    figures.figures(["write"], ["sm_80", "sm_90"], lambda ready, total: seen.append((ready, total)))
    assert seen == [(1, 2), (2, 2)]
