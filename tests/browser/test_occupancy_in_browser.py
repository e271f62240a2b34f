"""The occupancy explorer in a real JupyterLab: choices are clicked, the kernel of the notebook compiles for real.

The kernel that is explored is written in a cell, as a learner's is.
"""

from playwright.sync_api import expect

KERNEL = """\
from pagedlab.gpu import mode; mode.interpret()
import triton, triton.language as tl
from pagedlab.gpu.compiled import Pointer
from pagedlab.widgets import OccupancyExplorer

@triton.jit
def total(x, out, n, TILE: tl.constexpr):
    acc = tl.zeros([TILE], tl.float32)
    for start in range(0, n, TILE):
        at = start + tl.arange(0, TILE)
        acc += tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out + tl.arange(0, TILE), acc)

@triton.jit
def spread(x, out, n, TILE: tl.constexpr):
    acc, most = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    for start in range(0, n, TILE):
        at = start + tl.arange(0, TILE)
        number = tl.load(x + at, mask=at < n, other=0.0)
        acc, most = acc + number, tl.maximum(most, number)
    tl.store(out + tl.arange(0, TILE), most - acc)
"""
SHOW = """\
arguments = {"x": Pointer("float32"), "out": Pointer("float32"), "n": 4096, "TILE": 1024}
w = OccupancyExplorer(
    total, arguments, reference=spread,
    targets=("sm_80", "sm_90", "sm_100"), tiles=(1000, 1024, 8192), stages=(1, 3), warps=(4, 8))
w"""
# Compiling waits until it is let go, so that what happens meanwhile does not depend on how fast this machine is.
GATE = """\
import threading
gate, compile_ = threading.Event(), w._compile
w._compile = lambda choice: (gate.wait(60), compile_(choice))[1]
shown = []
w.observe(lambda change: change.new["busy"] or shown.append(change.new["shown"]["target"]), "state")
"""


def pick(root, name: str, value: object) -> None:
    root.get_by_test_id(name).locator(f"input[value='{value}']").check()


def test_choices_are_compiled_while_the_notebook_lives(lab, open_notebook, tmp_path):
    lab.set_theme("light")
    lab.write_notebook("occupancy.ipynb", [KERNEL, SHOW, GATE])
    notebook = open_notebook("occupancy.ipynb")
    page = notebook.page
    page.set_viewport_size({"width": 1400, "height": 1400})
    notebook.run_all(90)
    root = page.get_by_test_id("occupancy")
    status = root.get_by_test_id("status")
    expect(status).to_contain_text("For sm_80 (A100), 4 warps, 3 stages, a tile of 1024. Yours (total): ")

    # Busy: the notebook answers meanwhile, and of two choices only the later one is ever shown.
    pick(root, "target", "sm_90")
    expect(status).to_contain_text("Compiling for sm_90")
    assert notebook.evaluate("print(w.busy, w.target, 6 * 7)") == "True sm_90 42"
    page.mouse.move(2, 2)
    notebook.screenshot("occupancy-light-busy", tmp_path, root)
    root.get_by_test_id("target").locator("input[value=sm_90]").focus()
    page.keyboard.press("ArrowRight")  # radio buttons: the arrow keys choose
    expect(status).to_contain_text("Compiling for sm_100")
    pick(root, "num_warps", 8)
    notebook.evaluate("gate.set()")
    expect(status).to_contain_text("For sm_100 (B200), 8 warps", timeout=60_000)
    asked = "print(*shown, w.target, w.num_warps, w.tile, w.occupancy.blocks_per_sm, w.compiled.registers)"
    *where, blocks, registers = notebook.evaluate(asked).split()
    assert where == ["sm_100", "sm_100", "8", "1024"]
    expect(status).to_contain_text(f"Yours (total): {blocks} blocks per SM, limited by ")

    # The point of each kernel lies on its curve, and the slider asks what if.
    on_curve = """([curve, point]) => {
      const at = point.getAttribute('transform').match(/[\\d.]+/g).map(Number);
      const box = curve.getBBox();
      const within = (value, from, length) => value >= from - 1 && value <= from + length + 1;
      return within(at[0], box.x, box.width) && within(at[1], box.y, box.height);
    }"""
    for chart in range(2):
        svg = root.get_by_test_id(f"chart-{chart}")
        for which in range(2):
            parts = [svg.get_by_test_id(f"{part}-{which}").element_handle() for part in ("curve", "point")]
            assert page.evaluate(on_curve, parts)
    slider = root.get_by_test_id("what-if-0")
    assert slider.input_value() == registers
    slider.fill("255")
    expect(root.locator(".plw-occupancy-says").first).to_contain_text("With 255 registers: 1 block (yours)")

    # What does not compile is told, and the way back is open.
    pick(root, "tile", 1000)
    expect(root.get_by_test_id("kernel-0")).to_contain_text("must be a power of 2", timeout=60_000)
    notebook.screenshot("occupancy-light-error", tmp_path, root)
    pick(root, "tile", 1024)
    expect(root.get_by_test_id("kernel-0")).to_contain_text("registers a thread", timeout=60_000)
    page.mouse.move(2, 2)
    notebook.screenshot("occupancy-light", tmp_path, root)
    assert notebook.accessibility_problems(".plw-root") == []
    before = notebook.cells()
    root.get_by_test_id("target").locator("input[value=sm_100]").focus()
    for key in ["b", "a", "x", "d", "d", "m"]:
        page.keyboard.press(key)
    assert notebook.cells() == before
    page.set_viewport_size({"width": 900, "height": 1400})
    page.wait_for_timeout(200)
    assert root.evaluate("node => node.scrollWidth <= node.clientWidth")
    notebook.screenshot("occupancy-light-narrow", tmp_path, root)
    assert notebook.left_the_machine == [] and notebook.errors == []


def test_in_the_dark(lab, open_notebook, tmp_path):
    lab.set_theme("dark")
    lab.write_notebook("occupancy-dark.ipynb", [KERNEL, SHOW])
    notebook = open_notebook("occupancy-dark.ipynb")
    notebook.page.set_viewport_size({"width": 1400, "height": 1400})
    notebook.run_all(90)
    root = notebook.page.get_by_test_id("occupancy")
    root.scroll_into_view_if_needed()
    notebook.page.mouse.move(2, 2)
    notebook.screenshot("occupancy-dark", tmp_path, root)
    assert notebook.accessibility_problems(".plw-root") == []
    assert notebook.errors == []
