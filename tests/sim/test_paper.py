"""Our numbers beside the paper's: as rows, as a table, and as pictures."""

import subprocess
import sys
from dataclasses import replace
from io import BytesIO

import pytest
from matplotlib.image import imread

from pagedlab.cache.accounting import Shares
from pagedlab.sim.memory import MemoryRun
from pagedlab.sim.memory_split import opt_13b_on_40_gb
from pagedlab.sim.paper import FIGURE_2, FIGURE_13, PAPER_NAMES, compare, paper_bar, table
from pagedlab.sim.plots import plot_memory_split, plot_memory_waste
from pagedlab.sim.policies import POLICIES

MAX = MemoryRun("Orca (Max)", "ShareGPT", 15_728, Shares(0.2, 0.14, 0.57, 0.09), 7.0, 100, 0)
PAGED = MemoryRun("Paged", "ShareGPT", 15_728, Shares(0.97, 0.0, 0.02, 0.01), 33.3, 500, 20)
LARGE_BLOCKS = replace(PAGED, policy="Paged, block size 256")


def test_the_papers_data_covers_every_policy():
    names = {policy(4096).name for policy in POLICIES}
    assert names == set(PAPER_NAMES) == set(FIGURE_2) == set(FIGURE_13["ShareGPT"]) == set(FIGURE_13["Alpaca"])


def test_the_papers_bars_add_up():
    for name, bar in FIGURE_2.items():
        assert bar.not_broken_down == pytest.approx(3.7 if name == "Paged" else 0, abs=0.11)


def test_rows():
    rows = compare([MAX, PAGED])
    assert [row.quantity for row in rows[:5]] == ["token_states", "reserved", "internal", "external", "batch size"]
    assert [row.ours for row in rows[:5]] == pytest.approx([20, 14, 57, 9, 7])
    assert [row.paper for row in rows[:5]] == [20.4, 13.3, 57.3, 8.9, 7.00]
    assert [row.paper for row in rows[5:]] == [96.3, None, None, None, 30.42]


def test_runs_the_paper_does_not_have():
    assert paper_bar(replace(MAX, workload="Alpaca")) is None
    assert [row.paper for row in compare([replace(MAX, workload="Alpaca")])] == [None] * 4 + [7.00]
    assert [row.paper for row in compare([LARGE_BLOCKS])] == [None] * 5


def test_table():
    lines = table([MAX, PAGED]).splitlines()
    assert lines[2].split() == [
        "Orca",
        "(Max)",
        "20.0",
        "20.4",
        "14.0",
        "13.3",
        "57.0",
        "57.3",
        "9.0",
        "8.9",
        "7.00",
        "7.00",
    ]
    assert lines[3].split() == ["Paged", "97.0", "96.3", "0.0", "-", "2.0", "-", "1.0", "-", "33.30", "30.42"]
    assert not any(line.endswith(" ") for line in lines)
    assert len(table([]).splitlines()) == 2


def bars(picture):
    return [(bar.get_x(), bar.get_width(), bar.get_hatch()) for bar in picture.figure.axes[0].patches]


def test_the_waste_picture_shows_the_numbers():
    picture = plot_memory_waste([MAX, PAGED])
    axes = picture.figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "Orca (Max), ours",
        "Orca (Max), paper",
        "Paged, ours",
        "vLLM, paper",
    ]
    assert [width for _, width, _ in bars(picture)[:4]] == pytest.approx([20, 14, 57, 9])
    assert [left for left, _, _ in bars(picture)[:4]] == pytest.approx([0, 20, 34, 91])
    assert len({hatch for _, _, hatch in bars(picture)[:4]}) == 4, "parts are told apart by colour alone"
    written = {text.get_text() for text in axes.texts}
    assert {"20.0", "14.0", "57.0", "9.0", "20.4", "57.3", "97.0", "96.3"} <= written
    assert "Orca (Max), ours: token states 20.0, reserved 14.0" in repr(picture)
    assert "vLLM, paper: token states 96.3, waste, not broken down in the paper 3.7" in repr(picture)


def test_runs_without_a_bar_in_the_paper_stand_alone():
    picture = plot_memory_waste([LARGE_BLOCKS])
    assert [label.get_text() for label in picture.figure.axes[0].get_yticklabels()] == ["Paged, block size 256, ours"]


@pytest.mark.parametrize(
    "plot",
    [
        lambda: plot_memory_waste([MAX, PAGED]),
        lambda: plot_memory_split(opt_13b_on_40_gb()),
    ],
    ids=["waste", "split"],
)
def test_a_notebook_shows_an_opaque_png_with_alternative_text(plot):
    picture = plot()
    data, metadata = picture._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert len(data["image/png"]) < 60_000
    assert metadata["image/png"]["alt"] == data["text/plain"] == repr(picture) != ""
    pixels = imread(BytesIO(data["image/png"]))
    assert (pixels[0, 0] == 1).all(), "the corner is not white"
    assert pixels.shape[2] == 3 or (pixels[..., 3] == 1).all(), "not opaque"


def test_the_split_picture_shows_the_numbers():
    assert repr(plot_memory_split(opt_13b_on_40_gb())) == "GPU memory: weights 64 %, KV cache 32 %, other 4 %"


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="at least one MemoryRun"):
        plot_memory_waste([])


def test_importing_the_simulation_loads_neither_torch_nor_matplotlib():
    code = "import sys, pagedlab.sim.plots; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
