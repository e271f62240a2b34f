"""A table in plain text: what a picture shows, for a terminal, a screen reader, or a notebook that is compared."""

from collections.abc import Sequence


class TextTable:
    """Rows under column heads. Whole numbers are set to the right, words to the left; None is an empty cell.

    `str(table)` is the whole table, and so is its repr: the last line of a cell is enough to show it.
    """

    def __init__(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]):
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"a row has {len(row)} cells under {len(columns)} columns: {row!r}")
        self.title = title
        self.columns = tuple(columns)
        self.rows = tuple(tuple(row) for row in rows)

    def __str__(self) -> str:
        cells = [[_text(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        is_number = [all(isinstance(cell, int | None) for cell in column) for column in zip(*self.rows, strict=True)]
        is_number = is_number or [False] * len(self.columns)

        def line(row: Sequence[str]) -> str:
            aligned = (
                text.rjust(width) if number else text.ljust(width)
                for text, width, number in zip(row, widths, is_number, strict=True)
            )
            return "  ".join(aligned).rstrip()

        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, "", line(self.columns), rule, *(line(row) for row in cells)])

    __repr__ = __str__


def _text(cell: object) -> str:
    if cell is None:
        return ""
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
