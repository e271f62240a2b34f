"""`your_parts`: the learner's own where there is one, the reference where there is none, and a word about which."""

import pytest

from pagedlab import check, your_parts
from pagedlab.course.exercises import reference


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(tmp_path))
    return tmp_path


def test_without_an_answer_the_reference_is_handed_out():
    parts = your_parts("blocks_needed")
    assert parts.blocks_needed is reference("blocks_needed")
    assert not parts.is_yours("blocks_needed")
    assert "the reference" in repr(parts) and "has not passed" in repr(parts)


def test_a_passed_answer_is_handed_out_and_a_later_failure_does_not_take_it_away(capsys):
    assert check("blocks_needed", lambda n, b: -(-n // b)).passed
    assert not check("blocks_needed", lambda n, b: n).passed
    assert not check("blocks_needed", None).passed
    parts = your_parts("blocks_needed")
    assert parts.origin["blocks_needed"] == "✓ yours" and parts.is_yours("blocks_needed")
    assert parts.blocks_needed(33, 16) == 3 and parts.blocks_needed is not reference("blocks_needed")


def test_names():
    parts = your_parts("blocks_needed")
    assert "blocks_needed" in dir(parts)
    with pytest.raises(AttributeError, match="asked for were: blocks_needed"):
        _ = parts.attend
    assert not hasattr(parts, "__wrapped__") and not hasattr(parts, "_repr_svg_")
    with pytest.raises(ValueError, match="did you mean 'blocks_needed'"):
        your_parts("block_needed")


def test_html_is_escaped_and_says_the_same():
    page = your_parts("blocks_needed")._repr_html_()
    assert "<code>blocks_needed</code>" in page and "has not passed its check yet" in page
    assert repr(your_parts()) == "" and "<table></table>" in your_parts()._repr_html_()
