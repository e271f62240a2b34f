"""The two what-if curves of the occupancy explorer, laid out in a box of fixed size.

The picture and the browser draw the same numbers: paths and places are worked out here, once.
"""

from collections.abc import Sequence

WIDTH, HEIGHT = 436, 214
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 14, 40
KIB = 1024


def chart(title: str, unit: int, most: int, curves: Sequence[tuple[Sequence, int, int]]) -> dict:
    """One chart of blocks per multiprocessor.

    curves: (steps, value, blocks) of each kernel: steps [[first, last, blocks], ...] as in `occupancy_story`, and where
    the kernel itself stands. most: the end of the x axis. unit: 1, or KIB for an axis in KiB.

    Returns {"title", "x": [[x, label], ...], "y": [[y, label], ...], "curves": [path, ...], "points": [[x, y], ...],
    "box": [left, top, right, bottom], "most": most, "steps": steps of each curve, "values": value of each}.
    """
    highest = max([blocks for steps, _, _ in curves for _, _, blocks in steps] + [1])
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM

    def x_of(value: float) -> float:
        return round(left + (right - left) * value / most, 2)

    def y_of(blocks: float) -> float:
        return round(bottom - (bottom - top) * blocks / highest, 2)

    return {
        "title": title,
        "x": [[x_of(tick * unit), f"{tick:,}"] for tick in ticks(most / unit, 6)],
        "y": [[y_of(tick), f"{tick}"] for tick in ticks(highest, 5)],
        "curves": [_path(steps, x_of, y_of) for steps, _, _ in curves],
        "points": [[x_of(min(value, most)), y_of(blocks)] for _, value, blocks in curves],
        "box": [left, top, right, bottom],
        "most": most,
        "steps": [list(steps) for steps, _, _ in curves],
        "values": [value for _, value, _ in curves],
    }


def _path(steps, x_of, y_of) -> str:
    path = f"M{x_of(steps[0][0])} {y_of(steps[0][2])}"
    for at, (_, last, blocks) in enumerate(steps):
        path += f"V{y_of(blocks)}" if at else ""
        path += f"H{x_of(last)}"
    return path


def ticks(most: float, about: int) -> list[int]:
    """Round whole numbers from 0 on, about so many."""
    size = 1
    while True:
        for factor in (1, 2, 4, 5):
            apart = factor * size
            if most / apart <= about:
                return list(range(0, int(most) + 1, apart))
        size *= 10
