"""Colours, letters, percentages and tables, which all widgets share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.table import TextTable
from pagedlab.widgets.look import COLOURS, INKS, letters, percents, plural, spoken_list


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colour", "ink"), list(zip(COLOURS, INKS, strict=True)))
def test_letters_are_legible_on_their_colour(colour, ink):
    low, high = sorted((luminance(colour), luminance(ink)))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_letters_count_like_columns_of_a_spreadsheet():
    assert [letters(i) for i in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]
    assert len({letters(i) for i in range(2000)}) == 2000


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=8))
def test_percentages_add_up_and_are_close(counts):
    written = percents(counts)
    total = sum(counts)
    numbers = [0 if text == "<1 %" else int(text.removesuffix(" %")) for text in written]
    assert sum(numbers) == (100 if total else 0)
    for count, number, text in zip(counts, numbers, written, strict=True):
        assert abs(number - (100 * count / total if total else 0)) < 1
        assert (text == "0 %") == (count == 0)


def test_plurals_and_lists():
    assert plural(1, "slot") == "1 slot"
    assert plural(2048, "slot") == "2,048 slots"
    assert plural(2, "entry", "entries") == "2 entries"
    assert [spoken_list("ABCDE"[:n], at_most=3) for n in range(6)] == [
        *("", "A", "A and B", "A, B and C"),
        *("A, B, C and 1 more", "A, B, C and 2 more"),
    ]


def test_a_table_sets_numbers_to_the_right_and_words_to_the_left():
    table = TextTable("Two rows", ["name", "slots", "note"], [["A", 1234, "x"], ["BB", None, ""]])
    assert str(table) == "\n".join(
        ["Two rows", "", "name  slots  note", "----  -----  ----", "A     1,234  x", "BB"]
    )  # no spaces at the ends of lines


def test_a_row_that_does_not_fit_its_columns_is_refused():
    with pytest.raises(ValueError, match="2 cells under 1 columns"):
        TextTable("", ["one"], [["a", "b"]])
