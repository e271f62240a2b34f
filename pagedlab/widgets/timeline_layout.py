"""Where everything of the timeline goes: below one another a figure for each trace, all on one axis.

A figure has a head, a row for each request, and the pool's usage. Positions are in pixels from the top left corner of
the drawing; along the axis in steps or seconds times `scale`. `static/timeline_layout.js` does the same sums.
"""

from dataclasses import dataclass

GUTTER = 54  # left of the rows: their labels
HEAD, NO_HEAD = 30, 6  # of a figure: its name and totals; a single figure needs none
BEFORE_POOL = 10
BETWEEN = 24  # two figures
AXIS = 30  # below the last figure
WIDEST = 34  # a step is at most so wide
ROWS = ((10, 28), (20, 24), (36, 19), (56, 14), (96, 11), (10**9, 9))  # (rows of all figures up to, height of one)
POOLS = ((1, 84), (2, 64), (10**9, 48))  # (figures up to, height of the pool of one)
TICKS = (1, 2, 5)
TICKS_APART = 64


@dataclass(frozen=True)
class Layout:
    width: float
    num_rows: int
    head: float  # height
    row: float  # height
    pool: float  # height
    scale: float  # pixels a step, or a second
    height: float

    def figure(self, index: int) -> float:
        """The top of a figure."""
        return index * (self.head + self.num_rows * self.row + BEFORE_POOL + self.pool + BETWEEN)

    def row_top(self, figure: int, row: int) -> float:
        return self.figure(figure) + self.head + row * self.row

    def pool_top(self, figure: int) -> float:
        return self.row_top(figure, self.num_rows) + BEFORE_POOL

    def x(self, at: float) -> float:
        return GUTTER + at * self.scale


def lay_out(width: float, num_rows: int, num_figures: int, length: float, zoom: float = 1) -> Layout:
    """`length`: of the axis, in steps or seconds. With `zoom` 1 all of it fits into `width`."""
    row = next(height for most, height in ROWS if num_rows * num_figures <= most)
    pool = next(height for most, height in POOLS if num_figures <= most)
    scale = zoom * (width - GUTTER) / (length or 1)
    head = HEAD if num_figures > 1 else NO_HEAD
    figure = head + num_rows * row + BEFORE_POOL + pool + BETWEEN
    return Layout(width, num_rows, head, row, pool, scale, num_figures * figure - BETWEEN + AXIS)


def ticks(length: float, scale: float, whole: bool) -> list[float]:
    """Round numbers along the axis, far enough from each other to be read; whole ones for steps."""
    size = 1 if whole else 10.0**-6
    while True:
        for factor in TICKS:
            apart = factor * size
            if apart * scale >= (34 if apart == 1 else TICKS_APART):
                return [i * apart for i in range(int(length / apart + 1e-9) + 1)]
        size *= 10


def runs(states: str) -> list[tuple[str, int, int]]:
    """Neighbours that look alike as one: "..PPD" is (".", 0, 2), ("P", 2, 4), ("D", 4, 5). Blanks are left out."""
    found, start = [], 0
    for i in range(1, len(states) + 1):
        if i == len(states) or states[i] != states[start]:
            if states[start] != " ":
                found.append((states[start], start, i))
            start = i
    return found


def steps_along(trace: dict) -> list[tuple[float, float]]:
    """Where each step of a trace begins and ends along the axis."""
    if trace["ends"] is None:
        return [(i, i + 1) for i in range(len(trace["used"]))]
    return list(zip(trace["starts"], trace["ends"], strict=True))
