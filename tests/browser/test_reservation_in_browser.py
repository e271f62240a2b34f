"""The reservation map in a real JupyterLab, worked with mouse and keyboard; the kernel is asked what arrived.

The notebook is opened once for the module; each test puts the widget back to where it was.
"""

import re
import textwrap

import pytest
from lab import NotebookPage
from playwright.sync_api import Locator, expect

NAME = "reservation.ipynb"
SETUP = """\
from pagedlab.widgets import ReservationMap
lengths = [(310, 520), (760, 1240), (95, 410), (1320, 1990), (240, 300), (655, 1480), (130, 150), (900, 1100)]
w = ReservationMap(lengths, num_slots=15_728, max_len=2048, limit=4096)
w
"""


@pytest.fixture(scope="module")
def notebook(lab, browser):
    lab.write_notebook(NAME, [SETUP, "print('the cell below')"])
    page = NotebookPage(lab, browser)
    page.open(NAME)
    page.run_all()
    yield page
    page.close()


@pytest.fixture
def shown(notebook):
    """The widget's root on the page, in its first state."""
    notebook.evaluate("w.max_len = 2048; w.selected = -1")
    root = notebook.page.get_by_test_id("reservation-map").first
    expect_headline(root, "7 of 8 requests fit")
    root.scroll_into_view_if_needed()
    notebook.page.mouse.move(2, 2)
    return root


def expect_headline(root: Locator, text: str) -> None:
    expect(root.get_by_test_id("headline")).to_contain_text(text)


def expect_max_len(notebook: NotebookPage, root: Locator, max_len: int) -> None:
    """The browser shows it, and the kernel has it."""
    expect(root.get_by_test_id("value")).to_have_text(f"{max_len:,} slots each")
    assert notebook.evaluate("print(w.max_len, w.state['max_len'])") == f"{max_len} {max_len}"


def test_the_slider_is_dragged_with_the_mouse(notebook, shown):
    slider = shown.get_by_test_id("max-len")
    box = slider.bounding_box()
    mouse, middle = notebook.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + box["width"] * 0.5, middle)
    mouse.down()
    for part in (0.45, 0.4, 0.3, 0.2, 0.12):
        mouse.move(box["x"] + box["width"] * part, middle)
    mouse.up()
    expect_headline(shown, "8 of 8 requests fit")
    max_len = int(notebook.evaluate("print(w.max_len)"))
    assert 320 <= max_len <= 704 and max_len % 64 == 0
    expect_max_len(notebook, shown, max_len)


def test_the_slider_is_moved_with_the_keyboard(notebook, shown):
    slider, press = shown.get_by_test_id("max-len"), notebook.page.keyboard.press
    for key, max_len in [
        ("ArrowRight", 2112),
        ("ArrowUp", 2176),
        ("PageDown", 1664),
        ("ArrowLeft", 1600),
        ("Home", 64),
        ("ArrowLeft", 64),
        ("End", 4096),
        ("ArrowRight", 4096),
    ]:
        slider.focus()
        press(key)
        expect_max_len(notebook, shown, max_len)
    expect_headline(shown, "3 of 8 requests fit")


def test_the_buttons_go_one_step(notebook, shown):
    shown.get_by_test_id("more").click()
    expect_max_len(notebook, shown, 2112)
    shown.get_by_test_id("less").click()
    shown.get_by_test_id("less").click()
    expect_max_len(notebook, shown, 1984)
    expect_headline(shown, "7 of 8 requests fit")


def test_a_step_from_between_two_steps_leads_to_the_next(notebook, shown):
    notebook.evaluate("w.max_len = 1000")
    shown.get_by_test_id("less").click()
    expect_max_len(notebook, shown, 960)
    notebook.evaluate("w.max_len = 1000")
    shown.get_by_test_id("more").click()
    expect_max_len(notebook, shown, 1024)


def test_setting_max_len_in_python_changes_the_picture(notebook, shown):
    cells = shown.locator("[role=gridcell]")
    assert cells.count() == 8  # seven requests, each a row long, and the free tail
    before = shown.get_by_test_id("map").screenshot()
    notebook.evaluate("w.max_len = 512")
    expect_headline(shown, "8 of 8 requests fit")
    assert shown.get_by_test_id("max-len").input_value() == "512"
    assert "5 requests would be cut off at max_len: A, B, D, F and H." in shown.get_by_test_id("reasons").inner_text()
    assert cells.count() == 8 + 6
    assert shown.get_by_test_id("map").screenshot() != before
    notebook.evaluate("w.max_len = 20_000")
    expect_headline(shown, "0 of 8 requests fit")
    assert "the whole cache has 15,728" in shown.get_by_test_id("reasons").inner_text()


def test_a_strip_is_selected_with_the_keyboard(notebook, shown):
    press = notebook.page.keyboard.press
    shown.get_by_test_id("more").focus()
    press("Tab")
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowUp"):
        press(key)
    line = shown.get_by_test_id("line")
    expect(line).to_contain_text("Request C owns 2,048 slots: 95 hold tokens, 315 are reserved for later")
    assert notebook.page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(
        "Request C, slots 4,096"
    )
    press("Enter")
    assert shown.locator("[aria-selected=true]").get_attribute("data-request") == "2"
    assert shown.locator("[aria-pressed=true]").get_attribute("data-request") == "2"
    assert notebook.evaluate("print(w.selected)") == "2"

    shown.locator("[role=gridcell][tabindex='0']").focus()
    press("Escape")
    assert notebook.evaluate("print(w.selected)") == "-1"
    shown.locator("[role=gridcell][tabindex='0']").focus()
    press("End")
    expect(line).to_contain_text("Point at a strip")  # the free tail belongs to no request
    press("Space")
    assert notebook.evaluate("print(w.selected)") == "-1"


def test_a_request_that_waits_is_selected_by_its_letter(notebook, shown):
    press = notebook.page.keyboard.press
    shown.get_by_test_id("request-A").focus()
    press("End")
    press("Enter")
    expect(shown.get_by_test_id("line")).to_contain_text("Request H waits for 2,048 slots in one piece")
    assert notebook.evaluate("print(w.selected)") == "7"
    # Only one letter and one strip are stops for the Tab key.
    assert shown.locator("[role=gridcell][tabindex='0']").count() == 1
    assert shown.locator("[data-testid^=request-][tabindex='0']").count() == 1


def test_pointing_at_a_strip_lights_its_letter_and_pointing_at_a_letter_its_strip(notebook, shown):
    lit = shown.locator(".plw-reservation-lit")
    shown.locator("[role=gridcell][data-request='3']").hover()
    expect(lit).to_have_count(2)
    assert lit.evaluate_all("nodes => nodes.map(n => n.dataset.request)") == ["3", "3"]
    shown.get_by_test_id("request-F").hover()
    expect(shown.get_by_test_id("line")).to_contain_text("Request F owns")
    assert lit.evaluate_all("nodes => nodes.map(n => n.dataset.request)") == ["5", "5"]
    notebook.page.mouse.move(2, 2)
    expect(lit).to_have_count(0)
    assert notebook.evaluate("print(w.selected)") == "-1"


def test_a_click_selects_and_a_second_click_lets_go(notebook, shown):
    strip = shown.locator("[role=gridcell][data-request='1']")
    strip.click()
    assert notebook.evaluate("print(w.selected)") == "1"
    strip.click()
    assert notebook.evaluate("print(w.selected)") == "-1"


@pytest.mark.parametrize("place", ["max-len", "more", "request-B", "strip"])
def test_keys_pressed_in_the_widget_do_not_reach_the_notebook(notebook, shown, place):
    before = notebook.cells()
    target = shown.locator("[role=gridcell]").nth(2) if place == "strip" else shown.get_by_test_id(place)
    target.focus()
    for key in ["b", "a", "x", "c", "v", "z", "d", "d", "m", "y", "0", "0", "j", "k", "Shift+M", "l", "o"]:
        notebook.page.keyboard.press(key)
    assert target.evaluate("node => node === document.activeElement")
    assert notebook.cells() == before
    assert notebook.page.locator(".jp-Dialog").count() == 0


def test_a_click_on_a_cell_gives_the_keys_back_to_the_notebook(notebook, shown):
    before = notebook.cells()
    notebook.run_new_cell("w").get_by_test_id("max-len").focus()
    notebook.remove_last_cell()  # clicks on the cell's prompt and presses d twice
    assert notebook.cells() == before


def test_the_same_widget_shown_twice_moves_together(notebook, shown):
    second = notebook.run_new_cell("w").get_by_test_id("reservation-map")
    second.wait_for()
    second.get_by_test_id("more").click()
    for root in (shown, second):
        expect_max_len(notebook, root, 2112)
    ids = notebook.page.locator(".plw-root [id]").evaluate_all("nodes => nodes.map(n => n.id)")
    assert len(ids) == len(set(ids)) > 20
    second.locator("[role=gridcell]").first.click()
    chosen = shown.locator("[aria-selected=true]").evaluate_all("nodes => nodes.map(n => n.dataset.request)")
    assert set(chosen) == {"0"}

    notebook.remove_last_cell()
    notebook.evaluate("w.max_len = 512")
    expect_headline(shown, "8 of 8 requests fit")


def test_a_breakdown_that_fails_is_named_and_the_slider_goes_on(notebook, shown):
    code = "ReservationMap(lengths, num_slots=4096, max_len=512, breakdown=lambda r, n: 1 / 0)"
    root = notebook.run_new_cell(code).get_by_test_id("reservation-map")
    root.wait_for()
    assert "Your breakdown raised ZeroDivisionError" in root.get_by_test_id("reasons").inner_text()
    root.get_by_test_id("max-len").focus()
    notebook.page.keyboard.press("End")
    expect_headline(root, "2 of 8 requests fit")
    assert "Your breakdown raised ZeroDivisionError" in root.get_by_test_id("reasons").inner_text()
    notebook.remove_last_cell()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_in_both_themes_and_widths(lab, open_notebook, theme, tmp_path):
    lab.write_notebook(f"{theme}.ipynb", [SETUP])
    lab.set_theme(theme)
    notebook = open_notebook(f"{theme}.ipynb")
    notebook.run_all()
    page = notebook.page
    root = page.get_by_test_id("reservation-map")
    root.wait_for()
    assert page.locator("body").get_attribute("data-jp-theme-light") == ("true" if theme == "light" else "false")
    for width in (1600, 960):
        page.set_viewport_size({"width": width, "height": 1000})
        page.mouse.move(2, 2)
        page.wait_for_timeout(300)
        # Nothing sticks out to the right, whatever the width.
        assert root.evaluate("node => node.scrollWidth <= node.clientWidth")
        assert root.get_by_test_id("map").bounding_box()["width"] > 400
        notebook.screenshot(f"reservation-{theme}-{width}", tmp_path, root)
        assert notebook.accessibility_problems(".plw-root") == []
    notebook.evaluate("w.max_len = 448; w.selected = 2")
    notebook.screenshot(f"reservation-{theme}-selected", tmp_path, root)
    assert notebook.accessibility_problems(".plw-root") == []
    assert notebook.left_the_machine == []
    assert notebook.errors == []


def test_a_saved_map_is_drawn_again_and_says_when_python_does_not_answer(lab, open_notebook):
    lab.set_setting("@jupyter-widgets/jupyterlab-manager:plugin", {"saveState": True})
    lab.write_notebook("saved.ipynb", [SETUP])
    notebook = open_notebook("saved.ipynb")
    notebook.run_all()
    notebook.evaluate("w.max_len = 777")
    expect_headline(notebook.page.get_by_test_id("reservation-map"), "8 of 8 requests fit")
    notebook.save()
    notebook.close()

    notebook = open_notebook("saved.ipynb")  # a new kernel, which knows nothing of the widget
    root = notebook.page.get_by_test_id("reservation-map")
    expect(root.get_by_test_id("value")).to_have_text("777 slots each")
    expect_headline(root, "8 of 8 requests fit")
    root.get_by_test_id("more").click()
    expect(root.get_by_test_id("reasons")).to_contain_text("run the cell again to reconnect")


def test_nothing_left_the_machine_and_the_console_is_quiet(notebook, shown):
    assert notebook.left_the_machine == []
    assert notebook.errors == []


def test_what_a_screen_reader_is_given(notebook, shown):
    notebook.evaluate("w.max_len = 4096; w.selected = 2")
    expect_headline(shown, "3 of 8 requests fit")
    snapshot = re.sub(r"[ \t]+$", "", shown.aria_snapshot(), flags=re.MULTILINE)
    assert snapshot == textwrap.dedent(EXPECTED).strip()


EXPECTED = """
- group "Reservation map":
  - paragraph: 3 of 8 requests fit · 8 % of the cache holds tokens
  - paragraph: "5 requests wait: each needs 4,096 slots in one piece, and the free tail has 3,440."
  - paragraph: "None would be cut off: the longest will hold 1,990 tokens."
  - text: max_len
  - button "One step less": −
  - slider "max_len": "4096"
  - button "One step more" [disabled]: +
  - text: 4,096 slots each
  - grid "The cache, slot by slot":
    - row "Slots 0 to 2,047":
      - 'gridcell "Request A, slots 0 to 2,047: 310 token states, 210 reserved, 1,528 internal"'
    - row "Slots 2,048 to 4,095":
      - 'gridcell "Request A, slots 2,048 to 4,095: 2,048 internal"'
    - row "Slots 4,096 to 6,143":
      - 'gridcell "Request B, slots 4,096 to 6,143: 760 token states, 480 reserved, 808 internal"'
    - row "Slots 6,144 to 8,191":
      - 'gridcell "Request B, slots 6,144 to 8,191: 2,048 internal"'
    - row "Slots 8,192 to 10,239":
      - 'gridcell "Request C, slots 8,192 to 10,239: 95 token states, 315 reserved, 1,638 internal" [selected]'
    - row "Slots 10,240 to 12,287":
      - 'gridcell "Request C, slots 10,240 to 12,287: 2,048 internal" [selected]'
    - row "Slots 12,288 to 14,335":
      - 'gridcell "Free tail, slots 12,288 to 14,335: 2,048 external"'
    - row "Slots 14,336 to 15,727":
      - 'gridcell "Free tail, slots 14,336 to 15,727: 1,392 external"'
  - list:
    - listitem: Token states 8 % 1,165 slots hold keys and values now
    - listitem: Reserved 6 % 1,005 slots will be used, but later
    - listitem: Internal waste 64 % 10,118 slots owned, never used
    - listitem: External 22 % 3,440 slots owned by no request
  - group "Requests in order of arrival":
    - text: Fit (3)
    - button "Request A, fits": A
    - button "Request B, fits": B
    - button "Request C, fits" [pressed]: C
    - text: Wait (5)
    - button "Request D, waits": D
    - button "Request E, waits": E
    - button "Request F, waits": F
    - button "Request G, waits": G
    - button "Request H, waits": H
  - paragraph: "Request C owns 4,096 slots: 95 hold tokens, 315 are reserved for later, 3,686 will never be used."
"""
