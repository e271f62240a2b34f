"""Lessons as a learner meets them: `pagedlab lab`, Run All, and the lesson's widget worked by hand.

Variables with widgets: `reservation_map` in lesson 02, `explorer` in 04 and 11, `timeline` in 07, `viewer` in 09.
"""

import sys

import pytest
from lab import LabServer
from playwright.sync_api import expect


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """`pagedlab lab` with an empty learner's folder."""
    home = tmp_path_factory.mktemp("course")
    command = [sys.executable, "-m", "pagedlab", "lab", "--no-browser", "--no-fetch"]
    with LabServer(home, command, env={"PAGEDLAB_HOME": str(home / "learner")}) as server:
        yield server


def look_at(notebook, root, name, part, tmp_path):
    """Pictures of the notebook and of its widget; and nothing that axe-core, the network or the console tells of."""
    root.scroll_into_view_if_needed()
    notebook.page.mouse.move(2, 2)
    notebook.screenshot(name, tmp_path)
    notebook.screenshot(f"{name}-{part}", tmp_path, root)
    assert notebook.accessibility_problems(".plw-root") == []
    assert notebook.left_the_machine == []
    assert notebook.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lesson_02_runs_and_its_map_is_bound_to_the_kernel(course, open_notebook, theme, tmp_path):
    course.set_theme(theme)
    notebook = open_notebook("02_static_allocation.ipynb", server=course)
    notebook.run_all(seconds=300)
    page = notebook.page
    root = page.get_by_test_id("reservation-map").first
    root.scroll_into_view_if_needed()
    expect(root.get_by_test_id("headline")).to_contain_text("of the cache holds tokens")
    assert page.locator("body").get_attribute("data-jp-theme-light") == ("true" if theme == "light" else "false")
    page.mouse.move(2, 2)
    notebook.screenshot(f"lesson-02-{theme}", tmp_path)
    notebook.screenshot(f"lesson-02-{theme}-map", tmp_path, root)

    headline = root.get_by_test_id("headline").inner_text()
    slider = root.get_by_test_id("max-len")
    slider.focus()
    page.keyboard.press("Home")
    expect(root.get_by_test_id("headline")).not_to_have_text(headline)
    shortest = slider.get_attribute("min")
    assert notebook.evaluate("print(reservation_map.max_len)") == shortest == slider.input_value()

    slider.click()  # in its middle
    clicked = slider.input_value()
    assert int(clicked) > int(shortest)
    assert notebook.evaluate("print(reservation_map.max_len)") == clicked

    page.mouse.move(2, 2)
    assert notebook.evaluate("reservation_map.max_len = 777; print(reservation_map.state['fit'])").isdigit()
    expect(root.get_by_test_id("value")).to_have_text("777 slots each")

    assert notebook.accessibility_problems(".plw-root") == []
    assert notebook.left_the_machine == []
    assert notebook.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lesson_04_runs_and_its_explorer_is_bound_to_the_kernel(course, open_notebook, theme, tmp_path):
    course.set_theme(theme)
    notebook = open_notebook("04_block_table.ipynb", server=course)
    notebook.run_all(seconds=300)
    page = notebook.page
    root = page.get_by_test_id("block-table-explorer").first
    root.scroll_into_view_if_needed()
    last = int(notebook.evaluate("print(len(explorer.steps) - 1)"))
    expect(root.get_by_test_id("count")).to_contain_text(f"of {last}")

    notebook.evaluate("explorer.step, explorer.selected = 0, {}")
    slider = root.get_by_test_id("step")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert notebook.evaluate("print(explorer.step)") == "1" == slider.input_value()
    caption = root.get_by_test_id("caption").inner_text()
    slider.focus()
    page.keyboard.press("End")
    expect(root.get_by_test_id("caption")).not_to_have_text(caption)
    assert notebook.evaluate("print(explorer.step)") == str(last)

    notebook.evaluate(
        "states = [step.state.sequences for step in explorer.steps]\n"
        "long = [any(one.name == 'A' and one.num_tokens > 37 for one in now) for now in states]\n"
        "explorer.step = max(i for i, enough in enumerate(long) if enough)\n"
        "explorer.selected = {'sequence': 'A', 'position': 37}"
    )
    expect(root.get_by_test_id("line")).to_contain_text("block_table[37 //")
    look_at(notebook, root, f"lesson-04-{theme}", "explorer", tmp_path)


def test_lesson_07_runs_and_its_timeline_is_bound_to_the_kernel(course, open_notebook, tmp_path):
    course.set_theme("dark")
    notebook = open_notebook("07_continuous_batching.ipynb", server=course)
    notebook.run_all(seconds=400)
    page = notebook.page
    root = page.get_by_test_id("timeline").first
    root.scroll_into_view_if_needed()
    slider = root.get_by_test_id("step")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert notebook.evaluate("print(timeline.step)") == "1" == slider.input_value()
    caption = root.get_by_test_id("caption").inner_text()
    notebook.evaluate("timeline.step = 400")
    expect(root.get_by_test_id("caption")).not_to_have_text(caption)
    expect(root.get_by_test_id("count")).to_contain_text("400")
    look_at(notebook, root, "lesson-07-dark", "timeline", tmp_path)


def test_lesson_09_runs_and_its_viewer_is_bound_to_the_kernel(course, open_notebook, tmp_path):
    course.set_theme("light")
    notebook = open_notebook("09_paged_decode_kernel.ipynb", server=course)
    notebook.run_all(seconds=300)
    page = notebook.page
    root = page.get_by_test_id("tiles").first
    root.scroll_into_view_if_needed()
    expect(root.get_by_test_id("caption")).to_contain_text("Program (0, 2)")
    root.get_by_test_id("next").click()
    assert notebook.evaluate("print(viewer.step)") == "2"
    expect(root.get_by_test_id("caption")).to_contain_text("Iteration 2")
    root.locator('[data-program="0"]').click()
    expect(root.get_by_test_id("caption")).to_contain_text("Program (0, 0)")
    assert notebook.evaluate("print(viewer.program)") == "[0, 0, 0]"
    look_at(notebook, root, "lesson-09-light", "viewer", tmp_path)


def test_lesson_11_runs_and_its_explorer_compiles_again(course, open_notebook, tmp_path):
    course.set_theme("dark")
    notebook = open_notebook("11_occupancy_and_roofline.ipynb", server=course)
    notebook.run_all(seconds=300)
    page = notebook.page
    root = page.get_by_test_id("occupancy").first
    root.scroll_into_view_if_needed()
    status = root.get_by_test_id("status")
    expect(status).to_contain_text("For sm_80")
    root.get_by_test_id("target").locator("input[value=sm_90]").check()
    expect(status).to_contain_text("For sm_90", timeout=60_000)
    assert notebook.evaluate("explorer.wait(); print(explorer.target, explorer.compiled.target.name)") == "sm_90 sm_90"
    look_at(notebook, root, "lesson-11-dark", "explorer", tmp_path)
