"""The tile viewer in a real JupyterLab, worked with mouse and keyboard; the kernel is asked what arrived.

The launches are real ones, traced here in Triton's interpreter and unpickled in the kernel.
"""

import pickle

import pytest
from lab import NotebookPage
from playwright.sync_api import Locator, expect

from pagedlab.widgets.tiles_layout import lay_out_blocks
from tests.widgets.tile_traces import BLOCK_TABLES, SEQ_LENS, decode, write

LOAD = """\
import pickle
from pagedlab.widgets import TileViewer
traces = pickle.load(open("tiles.pickle", "rb"))
tables = {"block_tables": traces["tables"], "seq_lens": traces["lens"]}
"""
SHOW = """\
w = TileViewer(traces["decode"], **tables, program=(0, 1), step=1, rows=4, axes=("sequence", "KV head"))
w"""
WRITE = 'kv = TileViewer(traces["write"], axes=("token", "KV head"))\nkv'


@pytest.fixture(scope="module")
def traces(lab):
    saved = {"decode": decode(), "write": write(), "tables": BLOCK_TABLES.tolist(), "lens": SEQ_LENS.tolist()}
    (lab.notebooks / "tiles.pickle").write_bytes(pickle.dumps(saved))


def state(notebook: NotebookPage) -> str:
    return notebook.evaluate("print(w.program, w.step, w.access)")


def marks(root: Locator, mark: str, grid: str = "pool") -> list[str]:
    """Where a mark is: the cache and the block, each once."""
    found = root.get_by_test_id(grid).locator(f"[data-mark={mark}]")
    return sorted(set(found.evaluate_all("all => all.map(one => one.dataset.part + one.parentNode.dataset.block)")))


def test_programs_steps_and_accesses_with_mouse_and_keyboard(lab, open_notebook, traces, tmp_path):
    lab.set_theme("light")
    lab.write_notebook("tiles.ipynb", [LOAD, SHOW, WRITE])
    notebook = open_notebook("tiles.ipynb")
    page, press = notebook.page, notebook.page.keyboard.press
    page.set_viewport_size({"width": 1400, "height": 1400})
    notebook.run_all()
    root, kv = page.get_by_test_id("tiles").all()
    caption, count = root.get_by_test_id("caption"), root.get_by_test_id("count")

    # The step of the loop, and what it reads.
    expect(count).to_have_text("step 1 of 3")
    expect(caption).to_contain_text("Program (0, 1): sequence 0, KV head 1")
    expect(caption).to_contain_text("Iteration 1: reads K and V of positions 0 to 31, in blocks 7 and 2.")
    assert marks(root, "read") == marks(root, "read", "sequence") == ["k2", "k7", "v2", "v7"]
    assert marks(root, "earlier") == []
    root.scroll_into_view_if_needed()
    page.mouse.move(2, 2)
    notebook.screenshot("tiles-light-decode", tmp_path, root)
    root.get_by_test_id("next").click()
    expect(caption).to_contain_text("Iteration 2: reads K and V of positions 32 to 39, in block 9.")
    assert marks(root, "read") == ["k9", "v9"] and marks(root, "earlier") == ["k2", "k7", "v2", "v7"]
    assert state(notebook) == "[0, 1, 0] 2 -1"
    numbers = root.get_by_test_id("values").locator("tbody tr").first.locator("td").all_inner_texts()
    kernel = notebook.evaluate("print(*w.now['values'][0][2])").split()
    assert [number.split()[0] for number in numbers] == kernel and len(kernel) == 4

    # One access alone.
    values_line = root.get_by_test_id("access-2")
    expect(values_line).to_contain_text("values = tl.load(value_cache")
    expect(values_line).to_contain_text("256 of 1,024 lanes on")
    values_line.click()
    expect(values_line).to_have_attribute("aria-pressed", "true")
    assert marks(root, "read") == ["v9"]
    press("ArrowUp")
    press("Enter")
    assert marks(root, "read") == ["k9"] and state(notebook) == "[0, 1, 0] 2 1"
    root.get_by_test_id("access-1").focus()
    press("Escape")
    assert marks(root, "read") == ["k9", "v9"] and state(notebook) == "[0, 1, 0] 2 -1"

    # Another program, by a click and by the arrow keys; a shorter one keeps the step as far as it goes.
    root.locator('[data-program="5"]').click()
    expect(caption).to_contain_text("Program (2, 1): sequence 2, KV head 1")
    expect(caption).to_contain_text("positions 32 to 63, in blocks 5 and 0")
    press("ArrowLeft")
    expect(caption).to_contain_text("Program (1, 1)")
    expect(count).to_have_text("step 2 of 2")
    press("ArrowUp")
    press("PageUp")
    expect(caption).to_contain_text("Iteration 1: reads K and V of positions 0 to 8, in block 4.")
    assert state(notebook) == "[1, 0, 0] 1 -1"

    # Blocks: the same one in the pool and in the sequence.
    root.get_by_test_id("pool").locator('[data-block="4"]').hover()
    line = root.get_by_test_id("line")
    expect(line).to_contain_text(
        "Block 4 is block 0 of sequence B (positions 0 to 8); this step reads K and V of slots"
    )
    assert root.locator(".plw-tiles-linked").count() == 2
    root.get_by_test_id("pool").locator('[data-block="4"]').click()
    press("ArrowRight")
    expect(root.locator(".plw-tiles-block:focus")).to_have_attribute("data-block", "5")
    before = notebook.cells()
    for key in ["b", "a", "x", "d", "d", "m"]:
        press(key)
    assert notebook.cells() == before

    # Set in Python.
    notebook.evaluate("w.program = (2, 0); w.step = 3")
    expect(caption).to_contain_text("Program (2, 0)")
    expect(caption).to_contain_text("After the loop: writes out.")

    # The picture measures as the still one does.
    pool = root.get_by_test_id("pool")
    width = root.locator(".plw-tiles-pool").evaluate("node => node.clientWidth")
    at = lay_out_blocks(width, 12, 16, 2)
    frames = pool.locator(".plw-tiles-frame").evaluate_all(
        "all => all.map(f => [f.x, f.y].map(at => at.baseVal.value))"
    )
    for index, corner in enumerate(frames):
        assert corner == pytest.approx(at.corner(index), abs=0.02)
    assert len(frames) == 12

    # A kernel without a loop: what it writes.
    expect(kv.get_by_test_id("step")).to_be_hidden()
    kv.locator('[data-program="7"]').click()
    expect(kv.get_by_test_id("caption")).to_contain_text("Program (3, 1): token 3, KV head 1")
    expect(kv.get_by_test_id("caption")).to_contain_text("Writes K and V of slot 15 of block 9.")
    assert marks(kv, "written") == ["k9", "v9"]
    assert notebook.evaluate("print(kv.program)") == "[3, 1, 0]"
    page.mouse.move(2, 2)
    notebook.screenshot("tiles-light-write", tmp_path, kv)
    assert notebook.accessibility_problems(".plw-root") == []
    snapshot = kv.aria_snapshot()
    for part in HEARD.strip().splitlines():
        assert part.strip() in snapshot
    page.set_viewport_size({"width": 900, "height": 1400})
    page.wait_for_timeout(300)
    assert root.evaluate("node => node.scrollWidth <= node.clientWidth")
    notebook.screenshot("tiles-light-narrow", tmp_path, root)
    assert notebook.left_the_machine == [] and notebook.errors == []


HEARD = """
- group "Tile viewer":
  - grid "Programs":
      - 'gridcell "Program (3, 1): token 3, KV head 1" [selected]'
  - grid "Pool":
      - gridcell "Block 9; this step writes K and V of slot 15."
  - group "Reads and writes of this step":
"""


def test_in_the_dark(lab, open_notebook, traces, tmp_path):
    lab.set_theme("dark")
    lab.write_notebook("tiles-dark.ipynb", [LOAD, SHOW + ".step = 2\nw", WRITE])
    notebook = open_notebook("tiles-dark.ipynb")
    notebook.page.set_viewport_size({"width": 1400, "height": 1400})
    notebook.run_all()
    for name, root in zip(("decode", "write"), notebook.page.get_by_test_id("tiles").all(), strict=True):
        root.scroll_into_view_if_needed()
        notebook.page.mouse.move(2, 2)
        notebook.screenshot(f"tiles-dark-{name}", tmp_path, root)
    assert notebook.accessibility_problems(".plw-root") == []
    assert notebook.errors == []
