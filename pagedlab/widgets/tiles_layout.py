"""Where everything of the tile viewer goes: the grid of programs, and blocks with their slots side by side.

The pool and the program's own sequence are drawn alike: a block is a strip of its slots, once for K and once for V.
Positions are in pixels from the top left corner of a drawing. `static/tiles_layout.js` does the same sums.
"""

from dataclasses import dataclass
from math import ceil

SIDE = 26  # left of a line of blocks: K and V; left of a line of programs: its index
HEAD = 18  # above a block's slots: its number; above the programs: their index
PART = 15  # height of the slots of one cache
APART, LINES_APART = 10, 12  # two blocks, two lines of blocks
SLOTS = (18, 14, 11, 9, 7, 5, 4, 3)  # widths that a slot may have
SLOTS_HIGH = 300  # a drawing of blocks should not be higher than that
MOST_CELLS = 3000  # slots drawn one by one; above that a block is one small cell
CELLS = (30, 24, 18, 14, 11, 9, 7, 5)
PROGRAMS = (30, 24, 18, 14, 10, 7)
PROGRAMS_WIDE, PROGRAMS_HIGH = 250, 260


@dataclass(frozen=True)
class Blocks:
    """`count` blocks in lines of `per_line`."""

    count: int
    size: int  # slots of a block
    parts: int  # 2: K and V; 1: one of them
    slot: float  # width of a slot; 0: a block is one cell
    cell: float  # width of a block
    per_line: int

    @property
    def apart(self) -> float:
        return APART if self.slot else 1

    @property
    def part(self) -> float:
        """Height of the slots of one cache."""
        return PART if self.slot else self.cell / self.parts

    @property
    def head(self) -> float:
        return HEAD if self.slot else 0

    @property
    def line(self) -> float:
        """From the top of one line of blocks to that of the next."""
        return self.head + self.parts * self.part + (LINES_APART if self.slot else 1)

    @property
    def height(self) -> float:
        return ceil(self.count / self.per_line) * self.line

    def corner(self, index: int) -> tuple[float, float]:
        """x and y of a block's slots."""
        line, column = divmod(index, self.per_line)
        return SIDE + column * (self.cell + self.apart), line * self.line + self.head


def lay_out_blocks(width: float, count: int, size: int, parts: int) -> Blocks:
    room = width - SIDE
    fitting = [slot for slot in SLOTS if slot * size <= room] or [room / max(1, size)]
    if count * size * parts <= MOST_CELLS and size:
        for slot in fitting:
            per_line = max(1, int((room + APART) / (slot * size + APART)))
            found = Blocks(count, size, parts, slot, slot * size, min(per_line, max(1, count)))
            if found.height <= SLOTS_HIGH:
                return found
        if found.height <= 2 * SLOTS_HIGH:
            return found
    for cell in CELLS:
        per_line = max(1, int(room / (cell + 1)))
        found = Blocks(count, size, parts, 0, cell, min(per_line, max(1, count)))
        if found.height <= SLOTS_HIGH:
            break
    return found


@dataclass(frozen=True)
class Programs:
    """The grid of programs: x goes to the right, y down, and each z has a grid of its own below the last."""

    columns: int
    rows: int
    layers: int
    cell: float

    @property
    def head(self) -> float:
        """Above a layer's programs: their index, and above that which layer it is."""
        return HEAD if self.layers == 1 else 2 * HEAD

    @property
    def layer(self) -> float:
        return self.head + self.rows * self.cell + 8

    @property
    def width(self) -> float:
        return SIDE + self.columns * self.cell + 2

    @property
    def height(self) -> float:
        return self.layers * self.layer

    def corner(self, x: int, y: int, z: int) -> tuple[float, float]:
        return SIDE + x * self.cell, z * self.layer + self.head + y * self.cell


def lay_out_programs(columns: int, rows: int, layers: int) -> Programs:
    for cell in PROGRAMS:
        found = Programs(columns, rows, layers, cell)
        if found.width <= PROGRAMS_WIDE and found.height <= PROGRAMS_HIGH:
            break
    return found
