"""The block-table explorer in a real JupyterLab, worked with mouse and keyboard; the kernel is asked what arrived.

The story is a real one: a tiny model generates into paged memory while another sequence comes and goes, then a fork and
a copy on write. The notebook is opened once for the module; each test puts the widget back to where it was.
"""

import json
import re
import textwrap

import pytest
from lab import NotebookPage
from playwright.sync_api import Locator, expect

from pagedlab.widgets.explorer_layout import lay_out

NAME = "explorer.ipynb"
SETUP = """\
from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.paged import PagedKVCache, PagedSequence
from pagedlab.cache.recorder import Recorder
from pagedlab.cache.table import BlockTable
from pagedlab.model.generate import generate
from pagedlab.model.tiny import tiny_llama
from pagedlab.widgets import BlockTableExplorer

words = "time the cat river said my moon old and song over stone sat light we hear on mat".split()
word = lambda token: " " + words[token % len(words)]
model = tiny_llama()
recorder = Recorder(BlockAllocator(10), block_size=4)
pool = PagedKVCache(2, 10, 2, 4, 8)
a = recorder.table("A", texts=map(word, [1, 2, 16, 17, 1]))
b = recorder.table("B", texts=["Once", " upon", " a", " time", " there", " was"])
sequence = PagedSequence(pool, recorder, a)
new = generate(model, [1, 2, 16, 17, 1], 3, sequence, on_token=lambda token: a.texts.append(word(token)))
b.append_tokens(6)
generate(model, new[-1:], 3, sequence, on_token=lambda token: a.texts.append(word(token)))
b.free()
with recorder.step("fork", "C", "C is forked from A"):
    recorder.share(a.blocks)
    forked = BlockTable(4)
    forked.blocks, forked.num_tokens = list(a.blocks), a.num_tokens
    c = recorder.table("C", forked, texts=a.texts[:10] + [" owl"])
with recorder.step("copy on write", "C", "C is about to write into a block it shares, and gets a copy"):
    copy = recorder.allocate(1)
    recorder.copied([(forked.blocks[-1], copy[0])])
    recorder.free([forked.blocks[-1]])
    forked.blocks[-1] = copy[0]
c.append_tokens(1)
"""
SHOW = "w = BlockTableExplorer(recorder)\nw"
LAST = 11  # steps: start, prompt, 2 tokens, B, 3 tokens, B ends, fork, copy, 1 token
SHARING = """\
from pagedlab.cache.prefix import PrefixCache, prefix_hash_chain
shared = Recorder(PrefixCache(BlockAllocator(8)), block_size=4)
says = " You are a kind cat . Say hi to".split()
one = shared.table("A", texts=says)
one.append_tokens(9)
for block, block_hash in zip(one.blocks, prefix_hash_chain(range(9), 4)):
    shared.publish(block, block_hash)
two = one.fork(name="B")
two.copy_on_write()
two.append_tokens(1)
one.free()
two.free()
found = shared.lookup(prefix_hash_chain([*range(8), 77], 4))
three = shared.table("C", texts=[*says[:8], "at", "Eve"])
three.adopt(found, 8)
three.append_tokens(2)
x = BlockTableExplorer(shared)
x
"""
BIG = """\
from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.recorder import Recorder
from pagedlab.widgets import BlockTableExplorer
recorder = Recorder(BlockAllocator(10_000), block_size=16)
tables = [recorder.table(f"request {i}") for i in range(16)]
for n in (1000, 2000, 1090):
    for table in tables:
        table.append_tokens(n)
tables[3].free()
w = BlockTableExplorer(recorder)
w
"""


@pytest.fixture(scope="module")
def notebook(lab, browser):
    lab.write_notebook(NAME, [SETUP, SHOW, "print('the cell below')"])
    page = NotebookPage(lab, browser)
    page.open(NAME)
    page.run_all()
    yield page
    page.close()


@pytest.fixture
def shown(notebook):
    """The widget's root on the page, at its last step and with nothing selected."""
    notebook.evaluate(f"w.step = {LAST}; w.selected = {{}}")
    root = notebook.page.get_by_test_id("block-table-explorer").first
    expect_step(root, LAST)
    root.scroll_into_view_if_needed()
    notebook.page.mouse.move(2, 2)
    expect(root.get_by_test_id("line")).to_contain_text("Point at a token")
    return root


def expect_step(root: Locator, step: int) -> None:
    expect(root.get_by_test_id("count")).to_have_text(f"step {step} of {LAST}")


def cell(root: Locator, side: str, key: str) -> Locator:
    return root.get_by_test_id(side).locator(f'[data-key="{key}"]')


def middle(locator: Locator) -> tuple[float, float]:
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def is_lit(root: Locator, target: Locator) -> bool:
    """Whether a frame of the upper layer lies around the target's middle."""
    x, y = middle(target)
    boxes = [frame.bounding_box() for frame in root.locator(".plw-explorer-lit").all()]
    return any(b["x"] <= x <= b["x"] + b["width"] and b["y"] <= y <= b["y"] + b["height"] for b in boxes)


def selected(notebook: NotebookPage) -> dict:
    return json.loads(notebook.evaluate("import json; print(json.dumps(w.selected))"))


def test_the_buttons_step_back_and_forward(notebook, shown):
    caption = shown.get_by_test_id("caption")
    expect(caption).to_have_text("C appends 1 token.")
    for name, step, says in [
        ("back", 10, "C is about to write into a block it shares, and gets a copy. allocate(1) gives block 4"),
        ("back", 9, "C is forked from A. share([0, 1, 4]) adds a holder"),
        ("first", 0, "A pool of 10 blocks."),
        ("back", 0, "A pool of 10 blocks."),
        ("next", 1, "A appends 5 tokens. allocate(2) gives blocks 0 and 1."),
        ("next", 2, "A appends 1 token."),
        ("last", LAST, "C appends 1 token."),
        ("next", LAST, "C appends 1 token."),
    ]:
        shown.get_by_test_id(name).click(force=True)  # also one that says it is off
        expect_step(shown, step)
        expect(caption).to_contain_text(says.split(". allocate")[0])
        assert notebook.evaluate("print(w.step, w.state is recorder.steps[w.step].state)") == f"{step} True"


def test_the_slider_and_the_keys_step_too(notebook, shown):
    press, slider = notebook.page.keyboard.press, shown.get_by_test_id("step")
    slider.focus()
    for key, step in [("ArrowLeft", 10), ("Home", 0), ("ArrowRight", 1), ("PageDown", 2), ("PageUp", 1), ("End", LAST)]:
        press(key)
        expect_step(shown, step)
    assert notebook.evaluate("print(w.step)") == f"{LAST}"
    cell(shown, "pool", "1.0").focus()
    press("PageUp")
    expect_step(shown, LAST - 1)
    # The keyboard stays where it was, though its block was drawn anew.
    assert notebook.page.evaluate("document.activeElement.dataset.key") == "1.0"
    assert notebook.evaluate("print(w.step)") == f"{LAST - 1}"


def test_step_and_selection_set_in_python_are_shown(notebook, shown):
    notebook.evaluate("w.step = 4; w.selected = {'sequence': 'B', 'position': 5}")
    expect_step(shown, 4)
    expect(shown.get_by_test_id("line")).to_contain_text("Token 5 of B")
    assert shown.get_by_test_id("step").input_value() == "4"
    assert shown.get_by_test_id("tables").locator("[aria-selected=true]").get_attribute("data-key") == "1:1.1"
    notebook.evaluate("w.step = 2")
    expect(shown.get_by_test_id("line")).to_have_text("Token 5 of B has no slot at this step.")
    assert shown.locator(".plw-explorer-lit").count() == 0


def test_pointing_at_a_logical_block_lights_the_physical_one_and_the_other_way_round(notebook, shown):
    line = shown.get_by_test_id("line")
    logical, physical = cell(shown, "tables", "0:2.1"), cell(shown, "pool", "4.1")
    notebook.evaluate("w.step = 8")
    logical.hover()
    expect(line).to_contain_text("Token 9 of A")
    assert is_lit(shown, physical) and is_lit(shown, logical) and not is_lit(shown, cell(shown, "pool", "0.0"))
    notebook.page.mouse.move(2, 2)
    expect(line).to_contain_text("Point at a token")
    assert shown.locator(".plw-explorer-lit").count() == 0
    physical.hover()
    expect(line).to_contain_text("Token 9 of A")
    assert is_lit(shown, logical) and not is_lit(shown, cell(shown, "tables", "0:0.1"))
    # A block that is free belongs to nobody; the free list points back at it.
    cell(shown, "pool", "8.0").hover()
    expect(line).to_have_text("Block 8 is free.")
    expect(shown.locator(".plw-explorer-chip-lit")).to_have_text("8")
    shown.get_by_test_id("free-list").get_by_text("9", exact=True).hover()
    expect(line).to_have_text("Block 9 is free.")
    assert is_lit(shown, cell(shown, "pool", "9.2"))
    assert selected(notebook) == {}


def test_a_shared_block_is_hatched_counted_and_lit_in_both_tables(notebook, shown):
    row = shown.get_by_test_id("pool").get_by_role("row", name="Block 1, of A and C, ref count 2")
    assert row.count() == 1 and row.locator("rect[fill^='url(#']").count() == 1 + 4  # its letters and four words
    assert shown.get_by_test_id("pool").get_by_role("row", name="Block 4, of C").locator("rect[fill^=url]").count() == 0
    cell(shown, "pool", "1.2").hover()
    expect(shown.get_by_test_id("line")).to_contain_text("Token 6 of A")
    assert is_lit(shown, cell(shown, "tables", "0:1.2")) and is_lit(shown, cell(shown, "tables", "2:1.2"))
    assert shown.locator("path.plw-explorer-way").count() == shown.locator("path.plw-explorer-side-way").count() == 1
    # Beside its slots a block is pointed at as a whole.
    x, y = middle(cell(shown, "pool", "1.0"))
    notebook.page.mouse.move(x - 70, y)
    expect(shown.get_by_test_id("line")).to_have_text(
        "Block 1 is logical block 1 of A and logical block 1 of C; its ref count is 2. 4 of its 4 slots have a token."
    )
    assert shown.locator("path.plw-explorer-way").count() == 2


def test_a_selected_token_gets_the_way_to_its_slot(notebook, shown):
    token, slot = cell(shown, "tables", "2:2.2"), cell(shown, "pool", "2.2")
    block = int(notebook.evaluate("print(c.blocks[2])"))
    slot = cell(shown, "pool", f"{block}.2")
    token.click()
    expect(shown.get_by_test_id("line")).to_have_text(
        f'Token 10 of C (" owl"): block_table[10 // 4] * 4 + 10 % 4 = block_table[2] * 4 + 2 = '
        f"{block} * 4 + 2 = slot {4 * block + 2}"
    )
    assert selected(notebook) == {"sequence": "C", "position": 10}
    notebook.page.mouse.move(2, 2)
    path = shown.locator("path.plw-explorer-way")
    expect(path).to_have_count(1)
    ends = path.evaluate(
        """(path) => [0, path.getTotalLength()].map((at) => {
          const point = path.getPointAtLength(at).matrixTransform(path.getScreenCTM());
          return [point.x, point.y];
        })"""
    )
    for (x, y), target in zip(ends, (token, slot), strict=True):
        box = target.bounding_box()
        assert box["x"] <= x <= box["x"] + box["width"] and box["y"] - 2 <= y <= box["y"] + box["height"] + 2
    assert notebook.evaluate("print(w)").endswith(f"{block} * 4 + 2 = slot {4 * block + 2}.")
    token.click()
    assert selected(notebook) == {}


def test_tokens_are_selected_with_the_keyboard(notebook, shown):
    press, line = notebook.page.keyboard.press, shown.get_by_test_id("line")
    shown.get_by_test_id("step").focus()
    press("Tab")
    press("Home")
    for key, key_of_cell in [
        ("ArrowRight", "0:0.1"),
        ("ArrowDown", "0:1.1"),
        ("ArrowDown", "0:2.1"),
        ("ArrowDown", "2:0.1"),
        ("ArrowUp", "0:2.1"),
        ("ArrowLeft", "0:2.0"),
    ]:
        press(key)
        assert notebook.page.evaluate("document.activeElement.dataset.key") == key_of_cell
    expect(line).to_contain_text("Token 8 of A")
    press("Enter")
    assert selected(notebook) == {"sequence": "A", "position": 8}
    cell(shown, "tables", "0:2.0").focus()
    press("Tab")  # one stop for each side
    assert notebook.page.evaluate("document.activeElement.closest('svg').dataset.testid") == "pool"
    press("End")
    expect(line).to_have_text("Block 9 is free.")
    press("Space")
    assert selected(notebook) == {"block": 9}
    cell(shown, "pool", "9.3").focus()
    press("Escape")
    assert selected(notebook) == {}
    for side in ("tables", "pool"):
        assert shown.get_by_test_id(side).locator("[tabindex='0']").count() == 1


@pytest.mark.parametrize("place", ["next", "step", "cell"])
def test_keys_pressed_in_the_widget_do_not_reach_the_notebook(notebook, shown, place):
    before = notebook.cells()
    target = cell(shown, "pool", "0.0") if place == "cell" else shown.get_by_test_id(place)
    target.focus()
    for key in ["b", "a", "x", "c", "v", "z", "d", "d", "m", "y", "0", "0", "j", "k", "Shift+M", "l", "o"]:
        notebook.page.keyboard.press(key)
    assert target.evaluate("node => node === document.activeElement")
    assert notebook.cells() == before
    assert notebook.page.locator(".jp-Dialog").count() == 0


def test_a_step_draws_only_the_blocks_it_changes(notebook, shown):
    notebook.evaluate("w.step = 6")
    expect_step(shown, 6)
    shown.evaluate("root => root.querySelectorAll('[role=row]').forEach((row) => { row.old = true; })")
    shown.get_by_test_id("next").click()
    expect_step(shown, 7)
    anew = "root => [...root.querySelectorAll('[role=row]')].filter((row) => !row.old).map((row) => row.ariaLabel)"
    assert shown.evaluate(anew) == [
        "Logical block 0 of A, block 0 of the pool",  # with it, "10 tokens in 3 blocks"
        "Logical block 2 of A, block 4 of the pool",
        "Block 4, of A",
    ]


def test_the_same_widget_shown_twice_moves_together(notebook, shown):
    second = notebook.run_new_cell("w").get_by_test_id("block-table-explorer")
    second.wait_for()
    second.get_by_test_id("first").click()
    for root in (shown, second):
        expect_step(root, 0)
    ids = notebook.page.locator(".plw-root [id]").evaluate_all("nodes => nodes.map(n => n.id)")
    assert len(ids) == len(set(ids)) >= 10
    notebook.remove_last_cell()


def test_a_fork_a_copy_and_a_hit(notebook, shown, tmp_path):
    root = notebook.run_new_cell(SHARING).get_by_test_id("block-table-explorer")
    root.wait_for()
    pool = root.get_by_test_id("pool")

    def at(verb: str, before: int = 0) -> None:
        step = notebook.evaluate(
            f"x.step = [step.verb for step in shared.steps].index('{verb}') - {before}; print(x.step)"
        )
        expect(root.get_by_test_id("count")).to_contain_text(f"step {step} of")
        notebook.screenshot(f"explorer-sharing-{verb}-{before}".replace(" ", "-"), tmp_path, root)

    at("fork")
    for block in range(3):
        assert pool.get_by_role("row", name=f"Block {block}, of A and B, ref count 2").count() == 1
    at("copy on write")
    expect(root.get_by_test_id("caption")).to_contain_text("Block 2 is copied to block 3.")
    arrow = root.locator("path.plw-explorer-copied")
    ends = arrow.evaluate(
        """(path) => [0, path.getTotalLength()].map((at) => {
          const point = path.getPointAtLength(at).matrixTransform(path.getScreenCTM());
          return [point.x, point.y];
        })"""
    )
    for (x, y), key in zip(ends, ("2.3", "3.3"), strict=True):  # beside the last slot of each block
        box = cell(root, "pool", key).bounding_box()
        assert box["x"] + box["width"] - 2 <= x <= box["x"] + box["width"] + 8
        assert box["y"] <= y <= box["y"] + box["height"]
    at("hit", before=1)
    row = pool.get_by_role("row", name="Block 1, cached")
    assert row.count() == 1 and row.locator("rect[fill$='-cached)']").count() == 1
    assert row.get_by_role("gridcell", name='Slot 4: "cat", kept').count() == 1
    assert root.get_by_test_id("free-list").locator(".plw-explorer-chip-kept").all_inner_texts() == ["1", "0"]
    cell(root, "pool", "1.0").hover()
    expect(root.get_by_test_id("line")).to_have_text("Block 1 is free, but the cache finds what it holds.")
    at("hit")
    assert (
        pool.get_by_role("row", name="Block 1, used").get_by_role("gridcell", name='Slot 4: "cat", kept').count() == 1
    )
    assert pool.locator("rect[fill$='-cached)']").count() == 0
    at("adopt")
    assert pool.get_by_role("row", name="Block 1, of C").count() == 1
    at("fork")  # back again
    assert pool.get_by_role("row", name="Block 2, of A and B, ref count 2").count() == 1
    assert notebook.accessibility_problems(".plw-root") == []
    notebook.remove_last_cell()


def test_what_cannot_be_right_is_marked(notebook, shown):
    code = "BlockTableExplorer.of_tables({'A': [0, 1], 'B': ([1], 3)}, num_blocks=4, block_size=4, ref_counts={1: 1})"
    root = notebook.run_new_cell(code).get_by_test_id("block-table-explorer")
    root.wait_for()
    expect(root.get_by_test_id("alarms")).to_have_text("Block 1 is in the tables of A and B, but its ref count is 1.")
    assert root.locator(".plw-explorer-wrong").count() == 3  # in the pool, and in both tables
    notebook.remove_last_cell()


def test_the_browser_and_the_still_picture_measure_alike(notebook, shown):
    moments = json.loads(
        notebook.evaluate("print([[len(s.blocks) for s in step.state.sequences] for step in w.steps])")
    )
    width = shown.get_by_test_id("over").evaluate("svg => svg.viewBox.baseVal.width")
    at = lay_out(width, 10, 4, moments)
    top = at.tables(moments[-1])
    expected = {"tables": [], "pool": []}
    for i, (size, (y, _)) in enumerate(zip(moments[-1], top, strict=True)):
        expected["tables"] += [(f"{i}:{logical}.0", at.logical(y, logical)) for logical in range(size)]
    expected["pool"] = [(f"{block}.0", at.pool(block)) for block in range(10)]
    for side, boxes in expected.items():
        for key, (x, y, _, _) in boxes:
            box = cell(shown, side, key).locator("rect").first.evaluate("r => [r.x.baseVal.value, r.y.baseVal.value]")
            assert abs(box[0] - x) < 2 and abs(box[1] - y) < 2, (side, key, box, x, y)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_in_both_themes_and_widths(lab, open_notebook, theme, tmp_path):
    lab.write_notebook(f"explorer-{theme}.ipynb", [SETUP, SHOW])
    lab.set_theme(theme)
    notebook = open_notebook(f"explorer-{theme}.ipynb")
    notebook.run_all()
    page = notebook.page
    root = page.get_by_test_id("block-table-explorer")
    root.wait_for()
    assert page.locator("body").get_attribute("data-jp-theme-light") == ("true" if theme == "light" else "false")
    for width in (1600, 960):
        page.set_viewport_size({"width": width, "height": 1400})
        for step, choice in [(1, {}), (6, {"sequence": "A", "position": 6}), (10, {"sequence": "C", "position": 5})]:
            notebook.evaluate(f"w.step = {step}; w.selected = {choice}")
            page.mouse.move(2, 2)
            expect_step(root, step)
            # Nothing sticks out to the right, whatever the width.
            assert root.evaluate("node => node.scrollWidth <= node.clientWidth")
            assert cell(root, "pool", "9.3").bounding_box()["width"] >= 30
            notebook.screenshot(f"explorer-{theme}-{width}-step-{step}", tmp_path, root)
        assert notebook.accessibility_problems(".plw-root") == []
    assert notebook.left_the_machine == []
    assert notebook.errors == []


def test_the_selected_block_is_still_shown_under_the_pointer_when_a_click_lets_it_go(notebook, shown):
    line, target = shown.get_by_test_id("line"), cell(shown, "pool", "9.1")
    cell(shown, "pool", "0.0").click()
    target.click()
    expect(target).to_have_attribute("aria-selected", "true")
    cell(shown, "pool", "0.0").focus()  # so that the next click moves the focus as well
    target.click()
    expect(target).to_have_attribute("aria-selected", "false")
    expect(line).to_have_text("Block 9 is free.")
    assert is_lit(shown, target)
    assert selected(notebook) == {}


def test_small_cells_keep_the_page_the_focus_and_the_colours(notebook, shown):
    tables = "{'B': (list(range(40)), 640), 'C': ([41], 3)}"
    code = f"of = BlockTableExplorer.of_tables({tables}, num_blocks=300, block_size=16)\nof"
    root = notebook.run_new_cell(code).get_by_test_id("block-table-explorer")
    root.wait_for()
    page, press = notebook.page, notebook.page.keyboard.press
    page.mouse.move(2, 2)
    root.scroll_into_view_if_needed()
    height = root.bounding_box()["height"]
    fills = "g => [...g.querySelectorAll('rect')].map(rect => rect.style.fill).filter(Boolean)"
    assert cell(root, "pool", "0").evaluate(fills) == ["rgb(86, 180, 233)"]  # B's, in pictures with A as well
    cell(root, "pool", "3").click()
    expect(root.get_by_test_id("open").get_by_role("button")).to_have_count(16)
    assert root.bounding_box()["height"] == height

    cell(root, "pool", "3").focus()
    press("ArrowRight")
    press("Tab")
    active = "document.activeElement.className"
    assert "plw-explorer-slot" in page.evaluate(active)
    press("ArrowRight")
    press("Enter")
    expect(root.get_by_test_id("line")).to_contain_text("4 * 16 + 1 = slot 65")
    assert "plw-explorer-slot" in page.evaluate(active)
    press("Escape")
    expect(root.get_by_test_id("line")).not_to_contain_text("slot 65")
    assert page.evaluate("document.activeElement.closest('[data-testid=block-table-explorer]') !== null")
    assert notebook.evaluate("print(of.selected)") == "{}"
    notebook.remove_last_cell()


def test_a_pool_of_ten_thousand_blocks(lab, open_notebook, tmp_path):
    lab.set_theme("light")
    lab.write_notebook("big.ipynb", [BIG])
    notebook = open_notebook("big.ipynb")
    notebook.run_all()
    page, press = notebook.page, notebook.page.keyboard.press
    page.set_viewport_size({"width": 1600, "height": 1400})
    root = page.get_by_test_id("block-table-explorer")
    root.wait_for()
    line, count = root.get_by_test_id("line"), root.get_by_test_id("count")
    expect(count).to_have_text("step 49 of 49")

    def nodes() -> int:
        return root.evaluate("root => root.querySelectorAll('*').length")

    # 10,000 blocks and 4,096 entries of tables, but the page is no heavier than that of a small pool; neither where
    # request 3 has just given 256 blocks back, nor before.
    assert root.locator("canvas").count() == 2 and nodes() < 400
    short = (
        r"request 3 gives its blocks back. free\(\[(\d+, ){8}...\]\): blocks (\d+, ){7}\d+ and 248 more are free now."
    )
    expect(root.get_by_test_id("caption")).to_have_text(re.compile(short))
    notebook.screenshot("explorer-big-freed", tmp_path, root)
    root.get_by_test_id("back").click()
    expect(count).to_have_text("step 48 of 49")
    assert nodes() < 400
    painted = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].filter(Boolean).length"
    before = root.get_by_test_id("pool").evaluate(painted)
    root.get_by_test_id("first").click()
    expect(root.get_by_test_id("caption")).to_have_text("A pool of 10000 blocks.")
    assert root.get_by_test_id("pool").evaluate(painted) != before

    root.get_by_test_id("last").click()
    root.get_by_test_id("step").focus()
    press("Tab")
    press("ArrowRight")
    expect(line).to_contain_text("Token 16 of request 0: block_table[16 // 16] * 16 + 16 % 16")
    press("ArrowDown")
    press("Enter")
    chosen = selected(notebook)
    assert chosen["sequence"] == "request 0" and chosen["position"] % 16 == 0 and chosen["position"] > 16
    # The slots of the selected block are written out below, where each of its tokens can be chosen.
    root.get_by_test_id("open").get_by_role("button").nth(3).click()
    assert selected(notebook) == {"sequence": "request 0", "position": chosen["position"] + 3}
    page.mouse.move(2, 2)
    assert root.locator(".plw-explorer-lit").count() == 2 and root.locator("path.plw-explorer-way").count() == 1
    root.get_by_test_id("pool").hover(position={"x": 200, "y": 200})
    expect(line).to_have_text(re.compile(r"Block \d+ is (free\.|logical block \d+ of request \d+; its ref count is 1)"))
    notebook.evaluate("w.selected = {'block': 9999}")
    page.mouse.move(2, 2)
    expect(line).to_have_text("Block 9999 is free.")
    notebook.screenshot("explorer-big", tmp_path, root)
    assert notebook.accessibility_problems(".plw-root") == []
    assert notebook.errors == []


def test_a_saved_story_can_still_be_stepped_through(lab, open_notebook):
    lab.set_setting("@jupyter-widgets/jupyterlab-manager:plugin", {"saveState": True})
    lab.write_notebook("saved-story.ipynb", [SETUP, SHOW])
    notebook = open_notebook("saved-story.ipynb")
    notebook.run_all()
    notebook.evaluate("w.step = 4")
    expect_step(notebook.page.get_by_test_id("block-table-explorer"), 4)
    notebook.save()
    notebook.close()

    notebook = open_notebook("saved-story.ipynb")  # a new kernel, which knows nothing of the widget
    root = notebook.page.get_by_test_id("block-table-explorer")
    expect_step(root, 4)
    root.get_by_test_id("back").click()
    expect_step(root, 3)
    cell(root, "tables", "0:1.1").click()
    expect(root.get_by_test_id("line")).to_contain_text("block_table[5 // 4] * 4 + 5 % 4")


def test_what_a_screen_reader_is_given(notebook, shown):
    notebook.evaluate("w.step = 1; w.selected = {'sequence': 'A', 'position': 4}")
    expect(shown.get_by_test_id("line")).to_contain_text("Token 4 of A")
    snapshot = re.sub(r"[ \t]+$", "", shown.aria_snapshot(), flags=re.MULTILINE)
    free = snapshot.index('    - row "Block 2')
    assert snapshot[:free].rstrip() == textwrap.dedent(EXPECTED).strip()
    assert '- row "Block 9, free":' in snapshot and 'gridcell "Slot 39: empty"' in snapshot


EXPECTED = r"""
- group "Block-table explorer":
  - button "First step"
  - button "One step back"
  - button "One step forward"
  - button "Last step"
  - slider "Step": "1"
  - text: step 1 of 11
  - paragraph: A appends 5 tokens. allocate(2) gives blocks 0 and 1.
  - grid "Block tables":
    - row "Logical block 0 of A, block 0 of the pool":
      - 'gridcell "Token 0: \" the\""'
      - 'gridcell "Token 1: \" cat\""'
      - 'gridcell "Token 2: \" on\""'
      - 'gridcell "Token 3: \" mat\""'
    - row "Logical block 1 of A, block 1 of the pool":
      - 'gridcell "Token 4: \" the\"" [selected]'
      - 'gridcell "Token 5: empty"'
      - 'gridcell "Token 6: empty"'
      - 'gridcell "Token 7: empty"'
  - grid "The pool":
    - row "Block 0, of A":
      - 'gridcell "Slot 0: \" the\" of A"'
      - 'gridcell "Slot 1: \" cat\" of A"'
      - 'gridcell "Slot 2: \" on\" of A"'
      - 'gridcell "Slot 3: \" mat\" of A"'
    - row "Block 1, of A":
      - 'gridcell "Slot 4: \" the\" of A" [selected]'
      - 'gridcell "Slot 5: empty"'
      - 'gridcell "Slot 6: empty"'
      - 'gridcell "Slot 7: empty"'
"""


def test_nothing_left_the_machine_and_the_console_is_quiet(notebook, shown):
    assert notebook.left_the_machine == []
    assert notebook.errors == []
