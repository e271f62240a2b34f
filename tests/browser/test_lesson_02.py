"""Lesson 02 as a learner meets it: `pagedlab lab`, Run All, and the reservation map moved by hand.

The lesson keeps its map in the variable `reservation_map`.
"""

import sys

import pytest
from lab import LabServer
from playwright.sync_api import expect

LESSON = "02_static_allocation.ipynb"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """`pagedlab lab` with an empty learner's folder."""
    home = tmp_path_factory.mktemp("course")
    command = [sys.executable, "-m", "pagedlab", "lab", "--no-browser", "--no-fetch"]
    with LabServer(home, command, env={"PAGEDLAB_HOME": str(home / "learner")}) as server:
        yield server


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_lesson_runs_and_its_map_is_bound_to_the_kernel(course, open_notebook, theme, tmp_path):
    course.set_theme(theme)
    notebook = open_notebook(LESSON, server=course)
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
