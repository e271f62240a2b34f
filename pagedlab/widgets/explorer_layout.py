"""Where everything of the block-table explorer goes: the sequences on the left, the pool on the right.

Either side comes in one of two forms. "words": a block is a strip of slots with the tokens' own words in them, for as
many blocks as can be read. "blocks": a block is one small cell, for everything larger. Positions are in pixels from the
top left corner of the drawing. `static/explorer_layout.js` does the same sums.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil

TOP = 50  # room for the heads of both sides
SLOT, BETWEEN = 34, 12  # height of a line of slots, and the space between two blocks
HEAD = 46  # height of a sequence's own head
LOGICAL, CHIP = 24, 44  # beside a logical block's slots: its number on the left, its entry in the table on the right
PHYSICAL, COUNT = 66, 34  # beside a physical block's slots: number and owners on the left, ref count on the right
TABLE = 46  # left of small cells: the sequence's letter, or the number of a row's first block
APART = 12  # between two sequences
COLUMN_HIGH = 620  # above this the pool's words take another column,
WORDS_HIGH = 800  # then a side goes from words to blocks,
BLOCKS_HIGH = 460  # and blocks become smaller
CELLS = (58, 44, 36, 28, 22, 16, 12, 9, 7, 5, 4)
ROWS = (1, 2, 4, 8, 10, 16, 20, 32, 40, 50, 64, 80, 100, 128, 160, 200)  # cells in a row: easy to count in


@dataclass(frozen=True)
class Layout:
    """The measures of one story at one width."""

    num_blocks: int
    block_size: int  # 0: not known
    left: str  # "words", "blocks" or "none"
    right: str  # "words" or "blocks"
    left_width: float
    right_x: float
    right_width: float
    per_line: int  # slots in a line; a block may take several lines
    slot: float  # width of a slot
    columns: int  # of physical blocks, as words
    left_cell: int
    left_row: int  # cells in a row
    right_cell: int
    right_row: int
    height: float

    @property
    def block_height(self) -> int:
        """Of a block as words."""
        return SLOT * ceil(self.block_size / self.per_line)

    def pool(self, block: int) -> tuple[float, float, float, float]:
        """x, y, width and height of a physical block; of its slots alone where there are words."""
        if self.right == "words":
            row, column = divmod(block, self.columns)
            width = self.slot * min(self.per_line, self.block_size)
            x = self.right_x + PHYSICAL + column * (PHYSICAL + width + COUNT)
            return x, TOP + row * (self.block_height + BETWEEN), width, self.block_height
        row, column = divmod(block, self.right_row)
        x = self.right_x + TABLE + column * self.right_cell
        return x, TOP + row * self.right_cell, self.right_cell, self.right_cell

    def tables(self, sizes: Sequence[int]) -> list[tuple[float, float]]:
        """For each sequence where it begins and how high it is. `sizes`: its blocks; one without any takes no room."""
        places, y = [], TOP
        for size in sizes:
            if not size:
                height = 0
            elif self.left == "words":
                height = HEAD + size * (self.block_height + BETWEEN)
            else:
                height = max(24, ceil(size / self.left_row) * self.left_cell) + APART
            places.append((y, height))
            y += height
        return places

    def logical(self, top: float, logical: int) -> tuple[float, float, float, float]:
        """x, y, width and height of a logical block of the sequence that begins at `top`; as in `pool`."""
        if self.left == "words":
            y = top + HEAD + logical * (self.block_height + BETWEEN)
            return LOGICAL, y, self.slot * min(self.per_line, self.block_size), self.block_height
        row, column = divmod(logical, self.left_row)
        return TABLE + column * self.left_cell, top + row * self.left_cell, self.left_cell, self.left_cell

    def slot_in(self, offset: int) -> tuple[float, float]:
        """Where a slot lies in its block as words: x and y from the block's corner."""
        line, column = divmod(offset, self.per_line)
        return column * self.slot, line * SLOT


def lay_out(width: float, num_blocks: int, block_size: int, moments: Iterable[Sequence[int]]) -> Layout:
    """`moments`: for every moment that will be drawn, the number of blocks of each sequence."""
    moments = set(map(tuple, moments))

    def highest(high) -> float:
        """The height of the highest moment, where a sequence of some blocks has the height `high(blocks)`."""
        return max(sum(high(size) for size in sizes if size) for sizes in moments)

    def pool_high(row: int, cell: int) -> float:
        return ceil(num_blocks / row) * cell

    nothing = {"left_width": 0, "right_x": 0, "per_line": 1, "slot": 0, "columns": 1, "left_cell": 0, "left_row": 0}
    if not any(moments):
        cell, row = _cells(width - TABLE, pool_high)
        own = {"right_width": width, "right_cell": cell, "right_row": row, "height": TOP + pool_high(row, cell)}
        return Layout(num_blocks, block_size, "none", "blocks", **nothing, **own)

    middle = 60 if width > 700 else 34
    per_line, columns, slot = _words(width - middle, num_blocks, max(1, block_size))
    line = SLOT * ceil(max(1, block_size) / per_line) + BETWEEN
    strip = slot * min(per_line, max(1, block_size))
    left_high = highest(lambda size: HEAD + size * line)
    right_high = ceil(num_blocks / columns) * line
    left = "words" if block_size and left_high <= WORDS_HIGH else "blocks"
    right = "words" if left == "words" and right_high <= WORDS_HIGH else "blocks"

    left_width = LOGICAL + strip + CHIP if left == "words" else (width - middle) / 2
    right_width = columns * (PHYSICAL + strip + COUNT) if right == "words" else width - left_width - middle
    right_x = min(left_width + 2.5 * middle, width - right_width) if right == "words" else left_width + middle
    left_cell = left_row = right_cell = right_row = 0
    if left == "blocks":

        def tables_high(row: int, cell: int) -> float:
            return highest(lambda size: max(24, ceil(size / row) * cell) + APART)

        left_cell, left_row = _cells(left_width - TABLE, tables_high)
        left_high = tables_high(left_row, left_cell)
    if right == "blocks":
        right_cell, right_row = _cells(right_width - TABLE, pool_high)
        right_high = pool_high(right_row, right_cell)
    return Layout(
        *(num_blocks, block_size, left, right, left_width, right_x, right_width, per_line, slot, columns),
        *(left_cell, left_row, right_cell, right_row, TOP + max(left_high, right_high)),
    )


def _words(width: float, num_blocks: int, block_size: int) -> tuple[int, int, float]:
    """Slots in a line, columns of the pool, width of a slot: with words on both sides, slots wide enough to read."""
    found = None
    for per_line in sorted({min(block_size, 8), min(block_size, 4)}, reverse=True):
        for columns in (1, 2, 3):
            beside = LOGICAL + CHIP + columns * (PHYSICAL + COUNT)
            slot = (width - beside) / (per_line * (1 + columns))
            if slot < (33 if columns == 1 else 46):
                break
            found = per_line, columns, min(slot, 76)
            if ceil(num_blocks / columns) * (SLOT * ceil(block_size / per_line) + BETWEEN) <= COLUMN_HIGH:
                break
        if found:
            return found
    return per_line, 1, max(slot, 24)


def _cells(width: float, high: Callable[[int, int], float]) -> tuple[int, int]:
    """The largest cell, and how many make a row, that keep all within `BLOCKS_HIGH`; else the smallest cell."""
    for cell in CELLS:
        row = max([row for row in ROWS if row * cell <= width], default=1)
        if high(row, cell) <= BLOCKS_HIGH and row >= 4:
            break
    return cell, row
