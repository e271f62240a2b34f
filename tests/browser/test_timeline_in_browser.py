"""The schedule timeline in a real JupyterLab, worked with mouse and keyboard; the kernel is asked what arrived.

The schedules are those of the course's scheduler and of static batches, recorded here and unpickled in the kernel. The
notebook is opened once for the module; each test puts the widget back to where it was.
"""

import pickle
import re
import textwrap

import pytest
from lab import NotebookPage
from playwright.sync_api import Locator, expect

from pagedlab.widgets.timeline_layout import GUTTER, lay_out
from tests.engine.schedules import TWELVE, paged, static

NAME = "timeline.ipynb"
LOAD = """\
import pickle
from pagedlab.widgets import Timeline
traces = pickle.load(open("traces.pickle", "rb"))
"""
SHOW = "w = Timeline(traces['five'])\nw"
LAST = 23


def seconds(num_tokens: int) -> float:
    return 0.004 + 0.0006 * num_tokens


def write_traces(lab) -> None:
    long = [(f"request-{i}", 20 + 7 * i % 90, 60 + 31 * i % 90, 3 * i) for i in range(64)]
    traces = {
        "five": paged(),
        "three": {
            "static": static(num_blocks=48),
            "continuous": paged(TWELVE, 48, max_num_seqs=4),
            "paged": paged(TWELVE, 48),
        },
        "timed": {"static": static(seconds=seconds), "paged": paged(TWELVE, 48, seconds=seconds)},
        "long": paged(long, 160, 16, 128),
        "swapped": paged(swap_blocks=16),
        "cached": paged(TWELVE, 48, cached=True, same_prompt="ACEGIK", aborts=[(12, "D")]),
    }
    (lab.notebooks / "traces.pickle").write_bytes(pickle.dumps(traces))


@pytest.fixture(scope="module")
def notebook(lab, browser):
    write_traces(lab)
    lab.write_notebook(NAME, [LOAD, SHOW, "print('the cell below')"])
    page = NotebookPage(lab, browser)
    page.open(NAME)
    page.run_all()
    yield page
    page.close()


@pytest.fixture
def shown(notebook):
    """The widget's root on the page, at step 12 and with nothing selected."""
    notebook.evaluate("w.step = 12; w.selected = ''")
    root = notebook.page.get_by_test_id("timeline").first
    expect_step(root, 12)
    root.scroll_into_view_if_needed()
    notebook.page.mouse.move(2, 2)
    expect(root.get_by_test_id("line")).to_contain_text("Point at a cell")
    return root


def expect_step(root: Locator, step: int, last: int = LAST) -> None:
    expect(root.get_by_test_id("count")).to_have_text(f"step {step} of {last}")


def state(notebook: NotebookPage) -> str:
    return notebook.evaluate("print(w.step, w.selected or '-')")


def drawn(root: Locator, row: int, step: int, figure: int = 0) -> Locator:
    """The cell as it is drawn; prefills and decodes have one for each step."""
    return root.locator(f'[data-cell="{figure}:{row}:{step}"]')


def active(notebook: NotebookPage) -> str:
    return notebook.page.evaluate("document.activeElement.dataset.name || document.activeElement.dataset.testid")


def test_the_buttons_step_back_and_forward(notebook, shown):
    caption = shown.get_by_test_id("caption")
    expect(caption).to_have_text("Step 12: C prefills 15 of 29 tokens again; B decodes.")
    for name, step, says in [
        ("back", 11, "A and B decode; A is done (length): 6 blocks back"),
        ("first", 0, "A prefills 10 tokens; B prefills 6 tokens"),
        ("back", 0, "A prefills 10 tokens"),
        ("next", 1, "B prefills 1 token; C prefills 14 of 22 tokens; A decodes"),
        ("last", LAST, "E is done (length)"),
        ("next", LAST, "E is done (length)"),
    ]:
        shown.get_by_test_id(name).click(force=True)  # also one that says it is off
        expect_step(shown, step)
        expect(caption).to_contain_text(says)
        assert notebook.evaluate("print(w.step, w.now[''].index)") == f"{step} {step}"


def test_the_slider_and_the_keys_step_too(notebook, shown):
    press, slider = notebook.page.keyboard.press, shown.get_by_test_id("step")
    slider.focus()
    for key, step in [("ArrowLeft", 11), ("Home", 0), ("ArrowRight", 1), ("PageDown", 2), ("PageUp", 1), ("End", LAST)]:
        press(key)
        expect_step(shown, step)
    assert notebook.evaluate("print(w.step)") == f"{LAST}"


def test_step_and_request_set_in_python_are_shown(notebook, shown):
    notebook.evaluate("w.step = 6; w.selected = 'D'")
    expect_step(shown, 6)
    expect(shown.get_by_test_id("line")).to_have_text("Step 6: D is preempted and waits; it holds no blocks.")
    assert shown.get_by_test_id("step").input_value() == "6"
    assert shown.locator("[aria-selected=true]").evaluate_all("cells => cells.map(c => c.dataset.name)") == ["D"]
    assert shown.locator(".plw-timeline-followed").count() == 1


def test_pointing_at_a_cell_names_its_tokens_and_blocks(notebook, shown):
    line = shown.get_by_test_id("line")
    drawn(shown, 1, 5).hover()
    expect(line).to_have_text("Step 5: B decodes 1 token; 11 of its 12 tokens stored, in blocks 3, 4, 14.")
    assert shown.locator(".plw-timeline-lit").count() == 1
    drawn(shown, 2, 1).hover()
    expect(line).to_contain_text("Step 1: C prefills 14 tokens; 14 of its 22 tokens stored, in blocks")
    # The kernel says the same.
    assert notebook.evaluate("w.step = 5; w.selected = 'B'; print(w)").endswith(
        "11 of its 12 tokens stored, in blocks 3, 4, 14."
    )
    notebook.evaluate("w.selected = ''")
    # The pool below.
    box = shown.get_by_test_id("sheet").bounding_box()
    cell = drawn(shown, 1, 5).bounding_box()
    notebook.page.mouse.move(cell["x"] + cell["width"] / 2, box["y"] + box["height"] - 60)
    expect(line).to_have_text("Step 5: 16 of 16 blocks used with 59 tokens in their 64 slots.")
    notebook.page.mouse.move(2, 2)
    expect(line).to_contain_text("Point at a cell")
    assert shown.locator(".plw-timeline-lit").count() == 0


def test_a_click_goes_there_and_follows_the_request_and_a_second_click_lets_it_go(notebook, shown):
    cell = drawn(shown, 2, 4)
    cell.click()
    expect_step(shown, 4)
    assert state(notebook) == "4 C"
    cell.click()
    assert state(notebook) == "4 -"
    drawn(shown, 0, 9).click()
    assert state(notebook) == "9 A"
    expect(shown.get_by_test_id("line")).to_contain_text("Step 9: A decodes 1 token")
    drawn(shown, 0, 3).click()
    assert state(notebook) == "3 A"  # another step of the same request


def test_the_grid_is_walked_with_the_keyboard(notebook, shown):
    press, line = notebook.page.keyboard.press, shown.get_by_test_id("line")
    shown.get_by_test_id("step").focus()
    press("Tab")
    assert active(notebook) == "A"
    for key, name, step in [
        ("ArrowDown", "B", 12),
        ("ArrowRight", "B", 13),
        ("ArrowDown", "C", 13),
        ("ArrowLeft", "C", 12),
        ("ArrowLeft", "C", 11),
        ("ArrowUp", "B", 11),
        ("Home", "B", 0),
        ("ArrowLeft", "B", 0),
        ("ArrowUp", "A", 0),
        ("ArrowUp", "A", 0),
        ("End", "A", LAST),
        ("ArrowDown", "B", LAST),
    ]:
        press(key)
        expect_step(shown, step)
        assert active(notebook) == name
    press("PageUp")
    expect_step(shown, LAST - 1)
    expect(line).to_have_text("Step 22: B has left.")
    for _ in range(8):
        press("ArrowLeft")
    press("ArrowDown")
    expect(line).to_contain_text("Step 14: C has left.")
    press("ArrowLeft")
    expect(line).to_contain_text("Step 13: C prefills 14 tokens and is done (length)")
    press("Enter")
    assert state(notebook) == "13 C"
    shown.locator(".plw-timeline-cell[data-name=C]").focus()
    press("Escape")
    assert state(notebook) == "13 -"
    assert shown.locator("[role=gridcell][tabindex='0']").count() == 1


def test_it_plays_by_itself_and_stops_when_told(notebook, shown):
    play = shown.get_by_test_id("play")
    notebook.evaluate("w.step = 20")
    expect_step(shown, 20)
    play.click()
    expect(play).to_have_attribute("aria-label", "Pause")
    expect_step(shown, LAST)
    expect(play).to_have_attribute("aria-label", "Play")
    assert notebook.evaluate("print(w.step)") == f"{LAST}"
    play.click()  # from the end: once more from the beginning
    expect(shown.get_by_test_id("count")).to_have_text(re.compile(r"step [1-9] of"))
    shown.get_by_test_id("first").click()
    expect(play).to_have_attribute("aria-label", "Play")
    notebook.page.wait_for_timeout(700)
    expect_step(shown, 0)


@pytest.mark.parametrize("place", ["next", "play", "step", "cell"])
def test_keys_pressed_in_the_widget_do_not_reach_the_notebook(notebook, shown, place):
    before = notebook.cells()
    target = shown.locator(".plw-timeline-cell").nth(1) if place == "cell" else shown.get_by_test_id(place)
    target.focus()
    for key in ["b", "a", "x", "c", "v", "z", "d", "d", "m", "y", "0", "0", "j", "k", "Shift+M", "l", "o"]:
        notebook.page.keyboard.press(key)
    assert target.evaluate("node => node === document.activeElement")
    assert notebook.cells() == before
    assert notebook.page.locator(".jp-Dialog").count() == 0


def test_the_same_widget_shown_twice_moves_together(notebook, shown):
    second = notebook.run_new_cell("w").get_by_test_id("timeline")
    second.wait_for()
    second.get_by_test_id("first").click()
    for root in (shown, second):
        expect_step(root, 0)
    ids = notebook.page.locator(".plw-root [id]").evaluate_all("nodes => nodes.map(n => n.id)")
    assert len(ids) == len(set(ids)) > 20
    notebook.remove_last_cell()


def test_the_browser_and_the_still_picture_measure_alike(notebook, shown):
    width = shown.get_by_test_id("frame").evaluate("svg => svg.viewBox.baseVal.width || svg.width.baseVal.value")
    at = lay_out(min(width, GUTTER + 34 * 24), 5, 1, 24)
    inset = {"P": 0.08, "D": 0.24}
    states = "PDDDDDDDDDDD"
    for step, letter in enumerate(states):
        x, y, w = drawn(shown, 0, step).evaluate("r => [r.x.baseVal.value, r.y.baseVal.value, r.width.baseVal.value]")
        assert abs(x - (at.x(step) - GUTTER + 0.75)) < 0.02 and abs(w - (at.scale - 1.5)) < 0.02
        assert abs(y - (at.row_top(0, 0) + inset[letter] * at.row)) < 0.02


def test_schedules_are_compared_on_one_axis(notebook, shown):
    root = notebook.run_new_cell("c = Timeline(traces['three'], step=8)\nc").get_by_test_id("timeline")
    root.wait_for()
    assert (
        root.get_by_test_id("caption").locator("p").all_inner_texts()
        == notebook.evaluate("for name, step in c.now.items(): print(name, step.note + '.')").splitlines()
    )
    assert root.locator("[role=grid]").count() == 3
    assert root.locator(".plw-timeline-cursor").count() == 3
    # A click in one of them follows the request in all.
    drawn(root, 5, 30, figure=0).click()
    assert notebook.evaluate("print(c.step, c.selected)") == "30 F"
    assert root.locator(".plw-timeline-followed").count() == 3
    notebook.page.mouse.move(2, 2)
    said = root.get_by_test_id("line").inner_text().splitlines()
    assert [line.split(",")[0] for line in said] == ["static", "continuous", "paged"]
    kernel = notebook.evaluate("print(c)")
    assert all(line.split(": ", 1)[1] in kernel for line in said) and "F decodes 1 token" in said[0]
    root.get_by_test_id("last").click()
    expect(root.get_by_test_id("caption")).to_contain_text(re.compile(r"paged ended at step \d+\."))
    notebook.remove_last_cell()


def test_on_an_axis_of_time_a_click_goes_to_the_moment(notebook, shown):
    root = notebook.run_new_cell("t = Timeline(traces['timed'], axis='time')\nt").get_by_test_id("timeline")
    root.wait_for()
    drawn(root, 0, 3, figure=1).click()
    assert notebook.evaluate("print(t.now['paged'].index, t.selected)") == "3 A"
    drawn(root, 0, 3, figure=0).click()
    assert notebook.evaluate("print(t.now['static'].index)") == "3"
    widths = [drawn(root, 0, step, figure=0).bounding_box()["width"] for step in (0, 1)]
    assert widths[0] > 4 * widths[1]  # a long prefill takes as long as it takes
    notebook.remove_last_cell()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_in_both_themes_and_widths(lab, open_notebook, theme, tmp_path):
    write_traces(lab)
    code = [LOAD, "w = Timeline(traces['five'], step=12, selected='C')\nw"]
    lab.write_notebook(f"timeline-{theme}.ipynb", [*code, "Timeline(traces['three'], step=12)"])
    lab.set_theme(theme)
    notebook = open_notebook(f"timeline-{theme}.ipynb")
    page = notebook.page
    page.set_viewport_size({"width": 1600, "height": 1500})
    notebook.run_all()
    assert page.locator("body").get_attribute("data-jp-theme-light") == ("true" if theme == "light" else "false")
    for width in (1600, 960):
        page.set_viewport_size({"width": width, "height": 1500})
        page.mouse.move(2, 2)
        page.wait_for_timeout(300)
        for name, root in zip(("five", "three"), page.get_by_test_id("timeline").all(), strict=True):
            root.scroll_into_view_if_needed()
            # Nothing sticks out to the right, whatever the width.
            assert root.evaluate("node => node.scrollWidth <= node.clientWidth")
            notebook.screenshot(f"timeline-{theme}-{width}-{name}", tmp_path, root)
        assert notebook.accessibility_problems(".plw-root") == []
    for name in ("swapped", "cached"):
        root = notebook.run_new_cell(f"Timeline(traces['{name}'], step=9)").get_by_test_id("timeline")
        root.wait_for()
        page.mouse.move(2, 2)
        notebook.screenshot(f"timeline-{theme}-{name}", tmp_path, root)
    assert notebook.accessibility_problems(".plw-root") == []
    assert notebook.left_the_machine == []
    assert notebook.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_sixty_four_requests_and_hundreds_of_steps(lab, open_notebook, theme, tmp_path):
    write_traces(lab)
    lab.set_theme(theme)
    lab.write_notebook(f"long-{theme}.ipynb", [LOAD, "w = Timeline(traces['long'], step=150)\nw"])
    notebook = open_notebook(f"long-{theme}.ipynb")
    page, press = notebook.page, notebook.page.keyboard.press
    page.set_viewport_size({"width": 1600, "height": 1500})
    notebook.run_all()
    root = page.get_by_test_id("timeline")
    last = int(notebook.evaluate("print(len(traces['long']) - 1)"))
    assert last > 300
    expect_step(root, 150, last)
    canvas, sheet = root.locator("canvas"), root.get_by_test_id("sheet")
    assert canvas.count() == 1 and root.evaluate("root => root.querySelectorAll('*').length") < 700
    painted = (
        "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].reduce((a, b) => (a * 31 + b) | 0, 7)"
    )
    page.mouse.move(2, 2)
    notebook.screenshot(f"timeline-{theme}-long", tmp_path, root)
    whole = canvas.evaluate(painted)

    # Closer: what is in view follows the cursor.
    root.get_by_test_id("zoom-in").click()
    root.get_by_test_id("zoom-in").click()
    assert canvas.evaluate(painted) != whole
    view = "node => [node.parentNode.scrollLeft, node.parentNode.clientWidth, node.scrollWidth]"
    left, room, all_of_it = sheet.evaluate(view)
    assert all_of_it > 3.9 * room and left > 0
    assert canvas.bounding_box()["width"] <= room  # no wider than what is in view
    root.get_by_test_id("last").click()
    expect_step(root, last, last)
    assert sheet.evaluate(view)[0] > left
    page.wait_for_timeout(200)
    notebook.screenshot(f"timeline-{theme}-long-closer", tmp_path, root)
    root.get_by_test_id("first").click()
    expect(root.get_by_test_id("caption")).to_contain_text("Step 0: request-0 prefills")
    assert sheet.evaluate(view)[0] == 0

    # The pointer and the keyboard find cells that no element stands for.
    sheet.hover(position={"x": 4, "y": 12})
    expect(root.get_by_test_id("line")).to_contain_text("Step 0: request-0 prefills 20 tokens")
    sheet.click(position={"x": 4, "y": 12})
    press("ArrowRight")
    expect(root.get_by_test_id("line")).to_contain_text("Step 0: ")  # the pointer is still there
    page.mouse.move(2, 2)
    expect(root.get_by_test_id("line")).to_contain_text("Step 1: request-0 decodes 1 token; 21 of its 22 tokens stored")
    assert state(notebook) == "1 request-0"
    for _ in range(4):
        root.get_by_test_id("zoom-out").click(force=True)
    notebook.evaluate("w.step = 150; w.selected = ''")
    page.mouse.move(2, 2)
    page.wait_for_timeout(200)
    assert canvas.evaluate(painted) == whole
    assert notebook.accessibility_problems(".plw-root") == []
    assert notebook.errors == []


def test_a_saved_timeline_can_still_be_stepped_through(lab, open_notebook):
    lab.set_setting("@jupyter-widgets/jupyterlab-manager:plugin", {"saveState": True})
    write_traces(lab)
    lab.write_notebook("saved-timeline.ipynb", [LOAD, SHOW])
    notebook = open_notebook("saved-timeline.ipynb")
    notebook.run_all()
    notebook.evaluate("w.step = 7")
    expect_step(notebook.page.get_by_test_id("timeline"), 7)
    notebook.save()
    notebook.close()

    notebook = open_notebook("saved-timeline.ipynb")  # a new kernel, which knows nothing of the widget
    root = notebook.page.get_by_test_id("timeline")
    expect_step(root, 7)
    root.get_by_test_id("back").click()
    expect_step(root, 6)
    drawn(root, 1, 3).click()
    expect(root.get_by_test_id("line")).to_contain_text("Step 3: B decodes 1 token")


def test_what_a_screen_reader_is_given(notebook, shown):
    notebook.evaluate("w.step = 6; w.selected = 'D'")
    expect(shown.get_by_test_id("line")).to_contain_text("D is preempted")
    snapshot = re.sub(r"[ \t]+$", "", shown.aria_snapshot(), flags=re.MULTILINE)
    assert snapshot == textwrap.dedent(EXPECTED).strip()


EXPECTED = """
- group "Schedule timeline":
  - button "First step"
  - button "One step back"
  - button "Play"
  - button "One step forward"
  - button "Last step"
  - slider "Step": "6"
  - text: step 6 of 23
  - paragraph: "Step 6: D preempted: 2 blocks back; A, B and C decode."
  - grid "requests, a row each, over the steps":
    - 'row "A Step 6: A decodes 1 token; 16 of its 17 tokens stored, in blocks 0, 1, 2, 13."':
      - rowheader "A"
      - 'gridcell "Step 6: A decodes 1 token; 16 of its 17 tokens stored, in blocks 0, 1, 2, 13."'
    - 'row "B Step 6: B decodes 1 token; 12 of its 13 tokens stored, in blocks 3, 4, 14."':
      - rowheader "B"
      - 'gridcell "Step 6: B decodes 1 token; 12 of its 13 tokens stored, in blocks 3, 4, 14."'
    - 'row "C Step 6: C decodes 1 token; 26 of its 27 tokens stored, in blocks 5, 6, 7, 8, 9, 10, 15."':
      - rowheader "C"
      - 'gridcell "Step 6: C decodes 1 token; 26 of its 27 tokens stored, in blocks 5, 6, 7, 8, 9, 10, 15."'
    - 'row "D Step 6: D is preempted and waits; it holds no blocks."':
      - rowheader "D"
      - 'gridcell "Step 6: D is preempted and waits; it holds no blocks." [selected]'
    - 'row "E Step 6: E waits; it holds no blocks."':
      - rowheader "E"
      - 'gridcell "Step 6: E waits; it holds no blocks."'
  - paragraph: "Step 6: D is preempted and waits; it holds no blocks."
  - list "Marks":
    - listitem: prefill, with its tokens
    - listitem: decode, 1 token
    - listitem: waiting
    - listitem: "preempted: computes again later"
    - listitem: finished
    - listitem: "pool: tokens"
    - listitem: empty slots of used blocks
"""


def test_nothing_left_the_machine_and_the_console_is_quiet(notebook, shown):
    assert notebook.left_the_machine == []
    assert notebook.errors == []
