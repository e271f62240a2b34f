"""Fixtures for tests that need JupyterLab in a browser.

The browser lives as long as one test module: playwright keeps an event loop running in this thread, which other tests
(those that run notebooks) could not share.

Where no browser can be had the tests are skipped, and the last lines of the run say so. With CI set they fail instead.
"""

import os

import pytest
from lab import Browser, LabServer, NoBrowser, NotebookPage


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    try:
        running = Browser(tmp_path_factory.mktemp("profile")).__enter__()
    except NoBrowser as error:
        if os.environ.get("CI"):
            pytest.fail(f"the browser tests must run in CI, but {error}")
        pytest.skip(f"no browser: {error}")
    yield running
    running.__exit__()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A plain JupyterLab on an empty folder."""
    with LabServer(tmp_path_factory.mktemp("lab")) as server:
        server.be_quiet()
        yield server


@pytest.fixture
def open_notebook(lab, browser):
    """`open_notebook(name, server=lab)`: a `NotebookPage`, closed again after the test."""
    pages = []

    def open_one(name: str, server: LabServer = lab) -> NotebookPage:
        page = NotebookPage(server, browser)
        pages.append(page)
        page.open(name)
        return page

    yield open_one
    for page in pages:
        page.close()  # closing twice does no harm
