"""The text and the HTML of a result: same facts, nothing that an answer says can break out of either."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.course.promise import Failure
from pagedlab.course.report import CheckResult

VOID = {"img", "br"}


class Reader(HTMLParser):
    """The text of a page, and a complaint if its tags don't match or are not ours."""

    def __init__(self, page: str):
        super().__init__()
        self.text, self.open, self.attributes = "", [], []
        self.feed(page)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        assert tag in {"div", "b", "p", "pre", "i", "ul", "li", "img"}, tag
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f" {data} "


def words(text: str) -> list[str]:
    return re.findall(r"\S+", text)


FULL = Failure(
    "No block is lost",
    "free([0]) lost a block",
    "allocate(2)\nfree([0])",
    "Where?",
    "line 3: x = 1",
    "hello\nthere",
    "<svg/>",
)
RESULTS = {
    "passed": CheckResult("a", "passed", kept=("one", "two"), notes=("Saved.",)),
    "not attempted": CheckResult("a", "not attempted", notes=("It still raises.",)),
    "failed": CheckResult("a", "failed", failures=(FULL, Failure("second", "hidden")), kept=("kept",)),
    "bare": CheckResult("a", "failed", failures=(Failure("", "Hand over the function."),)),
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_text_and_html_say_the_same(result):
    said = Reader(result._repr_html_()).text
    for word in words(repr(result)):
        assert word in said
    for word in words(said):
        assert word in repr(result)


def test_the_whole_story_is_told():
    text = repr(RESULTS["failed"])
    for part in (
        FULL.message,
        "allocate(2)",
        "free([0])",
        FULL.where,
        "hello",
        "there",
        FULL.hint,
        "✗ second",
        "✓ kept",
    ):
        assert part in text
    assert "1 of 3 promises kept" in text


def test_headlines():
    assert RESULTS["passed"].headline == "a: passed, both promises kept" and RESULTS["passed"].passed
    assert RESULTS["bare"].headline == "a: not yet" and not RESULTS["bare"].passed
    assert RESULTS["not attempted"].headline == "a: not attempted"


@given(
    st.text()
    | st.sampled_from(["<script>alert(1)</script>", "</pre></div>", '"><img src=x onerror=y>', "&lt;", "\x1b[31m"])
)
def test_nothing_breaks_out(text):
    result = CheckResult(
        "a", "failed", failures=(Failure(text, text, text, text, text, text, "<svg/>"),), notes=(text,)
    )
    page = Reader(result._repr_html_())
    assert {name for name, _ in page.attributes} <= {"style", "alt", "src"}
    assert "\x1b" not in repr(CheckResult("a", "failed", failures=(Failure(text, text, text, text, text, text),)))


def test_html_reads_without_its_styles():
    stripped = re.sub(r' style="[^"]*"', "", RESULTS["failed"]._repr_html_())
    assert Reader(stripped).text == Reader(RESULTS["failed"]._repr_html_()).text
    assert "color:" not in RESULTS["failed"]._repr_html_()  # text keeps the theme's own colour


def test_the_picture_has_a_description():
    attributes = dict(Reader(RESULTS["failed"]._repr_html_()).attributes)
    assert attributes["alt"] == FULL.message and attributes["src"].startswith("data:image/svg+xml;base64,")


def test_a_result_can_be_compared_and_hashed():
    assert RESULTS["failed"] == CheckResult("a", "failed", (FULL, Failure("second", "hidden")), ("kept",))
    assert len({result for result in RESULTS.values()}) == 4
