"""One moment of a pool as a still picture: the sequences' tables on the left, the pool on the right.

`block_picture` is what checks draw a counterexample with, and what the explorer shows where no live widget can be. It
needs neither torch nor a widget.
"""

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import NamedTuple

from pagedlab.cache.recorder import PoolState, Step
from pagedlab.widgets.explorer_layout import (
    BETWEEN,
    HEAD,
    LOGICAL,
    PHYSICAL,
    SLOT,
    TABLE,
    Layout,
    lay_out,
)
from pagedlab.widgets.explorer_moment import (
    Holder,
    block_number,
    filled,
    holders,
    hues,
    labels,
    problems,
    slot_arithmetic,
)
from pagedlab.widgets.look import COLOURS, colour_of, ink_of, plural
from pagedlab.widgets.still import LINE, MUTED, TEXT, TRACK, card, rect, text

WIDTHS, PAD = (560, 640, 720, 800, 880, 960), 24  # a wide picture is made smaller where it is shown
READABLE = 56  # the width of a slot that need not be wider
ALARM = "#D55E00"  # what is wrong: also said in words, and marked with "!"
CHANGED = "#0072B2"  # what the step changed: also drawn with a double frame
NOBODY = "#8C959F"  # in use, by nobody whose table is known
MOST_FREE = 24  # of the free list that are written out
_DASHED = f'stroke="{LINE}" stroke-dasharray="3 3"'  # where nobody has anything
SMALL = 22  # cells below this size have no words in them


def block_picture(
    moment: PoolState | Step,
    *,
    title: str | None = None,
    note: str = "",
    problem: int | Iterable[int] = (),
    selected: dict | None = None,
    before: PoolState | None = None,
    moments: Iterable[PoolState] = (),
    kept: Mapping[int, Sequence[str]] | None = None,
) -> str:
    """One SVG document.

    `moment`: a state of the pool (a recorder's, or `pool_state(...)`), or a recorded step: then its caption is the
    title and the blocks it changed are framed; with the state `before`, its new tokens are too.
    `problem`: a block, or several, to point at; `note`: the sentence that says what is wrong there. What cannot be
    right by itself (two tables and a ref count of 1, say) is found and said without being asked for.
    `selected`: {"sequence": "A", "position": 37} draws the way to a token's slot, {"block": 7} those from all holders.
    `moments`: the other states of a story, if its pictures should all have the same measures.
    `kept`: the words that are still in blocks no table names, by block: see `kept_words`.
    """
    step = moment if isinstance(moment, Step) else None
    state = moment.state if isinstance(moment, Step) else moment
    return _Picture(state, step, before, moments, selected or {}, problem, kept or {}).draw(title, note)


def block_counts(state: PoolState) -> tuple[int, ...]:
    """The number of blocks of each sequence: what the layout needs to know of a moment."""
    return tuple(len(sequence.blocks) for sequence in state.sequences)


class _Picture:
    def __init__(self, state: PoolState, step: Step | None, before, moments, selected: dict, problem, kept):
        self.kept = kept
        self.state, self.step, self.selected = state, step, selected
        sizes = block_counts(state)
        self.width, self.at = _fit(state, {sizes, *map(block_counts, moments)})
        self.inner = self.width - 2 * PAD
        self.tops = self.at.tables(sizes)
        self.labels = labels(sequence.name for sequence in state.sequences)
        self.hues = hues(sequence.name for sequence in state.sequences)
        self.holders = holders(state)
        self.cached = set(map(block_number, state.cached_blocks))
        self.found = problems(state)
        self.wrong = {problem} if isinstance(problem, int) else set(problem)
        self.wrong |= {block for block, _ in self.found}
        self.changed = {*step.taken, *step.shared, *step.returned} if step else set()
        self.new_from = new_tokens(before, state) if before and step and not step.shared else {}
        if self.at.left == "blocks" and state.block_size:  # no slots to frame: the blocks that got the tokens
            for i, first in self.new_from.items():
                self.changed |= set(map(block_number, state.sequences[i].blocks[first // state.block_size :]))

    def draw(self, title: str | None, note: str) -> str:
        if title is None:
            title = self.step.caption if self.step else self.headline()
        alarms = [note] if note else []
        alarms += [says for _, says in self.found[:4]]
        y, body = PAD + 16, []
        for line in wrap(title, int(self.inner / 9.9)):
            body.append(text(PAD, y, line, 17, weight=600))
            y += 24
        for alarm in alarms:
            lines = wrap(alarm, int(self.inner / 7.3))
            body.append(rect(PAD, y - 10, self.inner, 10 + 20 * len(lines), "#FDF1E8", rx=4))
            body.append(rect(PAD, y - 10, 4, 10 + 20 * len(lines), ALARM))
            for line in lines:
                body.append(text(PAD + 14, y + 9, line, 13, weight=600))
                y += 20
            y += 14
        y += 6
        drawn = [*self.heads(), *self.left(), *self.right(), *self.copies(), *self.ways()]
        body.append(f'<g transform="translate({PAD} {y})">{"".join(drawn)}</g>')
        y += self.at.height + 14
        way = self.way_in_words()
        if way:
            lines = wrap(way, int(self.inner / 7.6))
            body.append(rect(PAD, y - 4, self.inner, 12 + 20 * len(lines), TRACK, rx=6))
            body += [text(PAD + 12, y + 17 + 20 * i, line, 13, weight=600) for i, line in enumerate(lines)]
            y += 22 + 20 * len(lines)
        line, y = self.free_list(y + 14)
        body += line
        line, y = self.legend(y + 20)
        return card(title, self.width, round(y + PAD), _patterns(bool(self.cached)), [*body, *line])

    def colour(self, owner: int) -> str:
        return colour_of(self.hues[owner])

    def headline(self) -> str:
        held = plural(self.state.num_blocks, "block")
        return f"A pool of {held}, {self.num_free():,} of them free"

    def num_free(self) -> int:
        return sum(count <= 0 for count in self.state.ref_counts)

    def heads(self) -> list[str]:
        at, size = self.at, self.state.block_size
        free = f"{self.num_free():,} of {self.state.num_blocks:,} free"
        free += f", {len(self.cached):,} of them cached" if self.cached else ""
        each = f" \u00b7 {plural(size, 'slot')} each" if size else ""
        out = [text(at.right_x, 14, "The pool: physical blocks", 14, weight=600)]
        out.append(text(at.right_x, 31, free + each, 12, fill=MUTED))
        if at.left != "none":
            out.append(text(0, 14, "Block tables: logical blocks", 14, weight=600))
            out.append(text(0, 31, left_says(at), 12, fill=MUTED))
        return out

    def left(self) -> list[str]:
        out = []
        for i, (sequence, (top, height)) in enumerate(zip(self.state.sequences, self.tops, strict=True)):
            if not height:
                continue
            if self.at.left == "blocks":
                out += self.tag(0, top, self.labels[i], [i])
                out += self.cells([self.logical_cell(i, top, logical) for logical in range(len(sequence.blocks))])
                continue
            out += self.tag(LOGICAL, top + HEAD - 34, self.labels[i], [i])
            name = "" if self.labels[i] == sequence.name else f"{sequence.name}: "
            says = f"{name}{plural(sequence.num_tokens, 'token')} in {plural(len(sequence.blocks), 'block')}"
            out.append(text(LOGICAL + 32, top + HEAD - 18, says, 13))
            for logical, entry in enumerate(sequence.blocks):
                block = block_number(entry)
                x, y, width, height = self.at.logical(top, logical)
                out.append(text(x - 8, y + height / 2 + 5, str(logical), 13, fill=MUTED, anchor="end"))
                out += self.slots(x, y, i, logical, [i], first=logical * self.state.block_size)
                out.append(text(x + width + 8, y + height / 2 + 5, f"\u2192 {block}", 14, weight=700))
                out += self.frame(x, y, width, height, block)
        return out

    def right(self) -> list[str]:
        state, at = self.state, self.at
        if at.right == "blocks":
            out = self.cells([self.pool_cell(block) for block in range(state.num_blocks)])
            if at.right_cell < 36:
                for first in range(0, state.num_blocks, at.right_row):
                    y = at.pool(first)[1]
                    if at.right_cell >= 12 or first // at.right_row % (24 // at.right_cell) == 0:
                        out.append(text(at.right_x + TABLE - 8, y + 11, f"{first:,}", 11, fill=MUTED, anchor="end"))
            return out
        out = []
        for block in range(state.num_blocks):
            x, y, width, height = at.pool(block)
            owners = [holder.sequence for holder in self.holders.get(block, [])]
            middle, left = y + height / 2 + 5, x - PHYSICAL
            out.append(text(left + 22, middle, str(block), 14, weight=700, anchor="end"))
            if owners:
                out += self.tag(left + 28, y + height / 2 - 11, _owners(self.labels, owners), owners, width=33)
                most = max(self.holders[block], key=lambda holder: filled(state, holder))
                out += self.slots(x, y, most.sequence, most.logical, owners, first=block * state.block_size)
            else:
                used = state.ref_counts[block] > 0
                word = "used" if used else "cached" if block in self.cached else "free"
                out.append(text(left + 44, middle - 1, word, 11 if len(word) < 5 else 10, fill=MUTED, anchor="middle"))
                if word == "cached":
                    out.append(rect(x + 1, y + 1, width - 2, height - 2, "url(#cached)", rx=3))
                out += self.slots(x, y, -1, 0, [-1] if used else [], block * state.block_size, self.kept.get(block, ()))
            if state.ref_counts[block] > 1:
                out.append(text(x + width + 5, middle, f"\u00d7{state.ref_counts[block]}", 13, weight=700))
            out += self.frame(x, y, width, height, block)
        return out

    def slots(
        self, x: float, y: float, sequence: int, logical: int, owners: list[int], first: int, kept=()
    ) -> list[str]:
        """The strip of a block as words. `first` is the number that its first slot bears; `kept` is what is in a block
        that no table names."""
        size, out = self.state.block_size, []
        has = filled(self.state, Holder(sequence, logical)) if sequence >= 0 else 0
        for offset in range(size):
            dx, dy = self.at.slot_in(offset)
            left, top, wide = x + dx + 1, y + dy + 1, self.at.slot - 2
            if offset < has:
                position = logical * size + offset
                out.append(rect(left, top, wide, SLOT - 2, self.colour(owners[0]), rx=3, opacity=0.3))
                if len(owners) > 1:
                    out.append(rect(left, top, wide, SLOT - 2, "url(#shared-words)", rx=3))
                if position >= self.new_from.get(sequence, position + 1):
                    out.append(_box(left + 1, top + 1, wide - 2, SLOT - 4, CHANGED, 2))
                texts = self.state.sequences[sequence].texts
                word = shortened(texts[position] if position < len(texts) else "", wide)
                word = word or f"{self.labels[sequence]}{position}"
                out.append(
                    _haloed(left + wide / 2, top + 25, word, 12, TEXT, "middle", "#FFFFFF" if len(owners) > 1 else "")
                )
            else:
                look = f'fill="{TRACK}" stroke="{LINE}"' if owners else f'fill="none" {_DASHED}'
                place = f'x="{left + 0.5:.2f}" y="{top + 0.5}" width="{wide - 1:.2f}" height="{SLOT - 3}"'
                out.append(f'<rect {place} rx="3" {look}/>')
                if offset < len(kept):
                    word = shortened(kept[offset], wide)
                    out.append(_haloed(left + wide / 2, top + 25, word, 12, TEXT, "middle", "#FFFFFF"))
            out.append(text(left + 4, top + 10, str(first + offset), 9, fill=MUTED))
        return out

    def logical_cell(self, i: int, top: float, logical: int) -> "_Cell":
        block = block_number(self.state.sequences[i].blocks[logical])
        x, y, size, _ = self.at.logical(top, logical)
        return _Cell(x, y, size, block, [i], filled(self.state, Holder(i, logical)), str(block), "")

    def pool_cell(self, block: int) -> "_Cell":
        x, y, size, _ = self.at.pool(block)
        held = self.holders.get(block, [])
        owners = [holder.sequence for holder in held]
        has = max((filled(self.state, holder) for holder in held), default=self.state.block_size or 1)
        label = _owners(self.labels, owners) if self.at.left != "none" else ""
        return _Cell(x, y, size, block, owners, has, label, str(block))

    def cells(self, cells: "list[_Cell]") -> list[str]:
        """Blocks as small cells. All of one look are one path, which keeps a pool of thousands small."""
        paths: dict[tuple, list] = {}
        words = []
        for cell in cells:
            held = 0 <= cell.block < self.state.num_blocks and self.state.ref_counts[cell.block] > 0
            inset = 1 if cell.size >= 12 else 0.5
            x, y, side = cell.x + inset, cell.y + inset, cell.size - 2 * inset
            share = cell.has / (self.state.block_size or 1)
            if not cell.owners and not held:
                looks = [(TRACK, 1, side)]
                looks += [("url(#cached)", 1, side)] if cell.block in self.cached else []
            else:
                colour = self.colour(cell.owners[0]) if cell.owners else NOBODY
                looks = [(colour, 0.3, side)] if share < 1 else []
                looks += [(colour, 1, side * share)] if share > 0 else []
                looks += [("url(#shared)", 1, side)] if self.is_shared(cell.block) else []
            for fill, opacity, width in looks:
                boxes = paths.setdefault((fill, opacity), [])
                last = boxes[-1] if boxes else None
                if cell.size < 9 and last and last[1] == y and last[0] + last[2] + 2 * inset == x:
                    boxes[-1] = (
                        last[0],
                        y,
                        last[2] + 2 * inset + width,
                        side,
                    )  # neighbours that look alike are one box
                else:
                    boxes.append((x, y, width, side))
            if cell.size >= SMALL:
                words += self.cell_words(cell, share)
            words += self.frame(cell.x, cell.y, cell.size, cell.size, cell.block)
        return [
            f'<path fill="{fill}" fill-opacity="{opacity}" d="'
            + "".join(f"M{x:g} {y:g}h{width:.4g}v{side:g}h-{width:.4g}z" for x, y, width, side in boxes)
            + '"/>'
            for (fill, opacity), boxes in paths.items()
        ] + words

    def cell_words(self, cell: "_Cell", share: float) -> list[str]:
        count = self.state.ref_counts[cell.block] if 0 <= cell.block < self.state.num_blocks else 0
        ink = MUTED
        if cell.owners or count > 0:
            ink = (ink_of(self.hues[cell.owners[0]]) if cell.owners else TEXT) if share == 1 else TEXT
        halo = (
            "#FFFFFF"
            if share < 1
            else self.colour(cell.owners[0])
            if cell.owners and self.is_shared(cell.block)
            else ""
        )
        middle, out = cell.x + cell.size / 2, []
        large = cell.size >= 36
        label, corner = (cell.label, cell.corner if large else "") if cell.label else (cell.corner, "")
        down = 8 if corner else 4.5
        size = 13 if large else 11 if cell.size >= 28 else 9.5
        out.append(_haloed(middle, cell.y + cell.size / 2 + down, label, size, ink, "middle", halo, 700))
        if corner:
            out.append(_haloed(cell.x + 4, cell.y + 12, corner, 10, ink, "start", halo))
        if large and cell.corner and count > 1:
            out.append(_haloed(cell.x + cell.size - 3, cell.y + 12, f"\u00d7{count}", 10, ink, "end", halo, 700))
        return out

    def is_shared(self, block: int) -> bool:
        many = 0 <= block < self.state.num_blocks and self.state.ref_counts[block] > 1
        return many or len(self.holders.get(block, ())) > 1

    def frame(self, x: float, y: float, width: float, height: float, block: int) -> list[str]:
        """Around a block that is wrong, chosen, or was changed by this step."""
        small = width < SMALL
        out = []
        if block in self.changed:
            by = 0 if small else 1
            out.append(_box(x - by, y - by, width + 2 * by, height + 2 * by, CHANGED, 1.25 if small else 2))
        if block == self.chosen_block():
            out.append(_box(x, y, width, height, TEXT, 1.5 if small else 2.5))
        if block in self.wrong:
            out.append(_box(x - 3, y - 3, width + 6, height + 6, ALARM, 2 if small else 3))
            y += height  # the upper corners have a block's number and its ref count
            out.append(f'<circle cx="{x + width:.2f}" cy="{y:.2f}" r="8" fill="{ALARM}"/>')
            out.append(text(x + width, y + 4.5, "!", 12, fill="#FFFFFF", weight=700, anchor="middle"))
        return out

    # What is selected: a token, or a block.

    def chosen(self) -> tuple[int, int] | None:
        """The sequence and position of the selected token, if it has a slot at this moment."""
        for i, sequence in enumerate(self.state.sequences):
            position = self.selected.get("position", -1)
            if sequence.name == self.selected.get("sequence") and 0 <= position < sequence.num_tokens:
                if self.state.block_size and position // self.state.block_size < len(sequence.blocks):
                    return i, position
        return None

    def chosen_block(self) -> int | None:
        token = self.chosen()
        if token is None:
            return self.selected.get("block")
        return block_number(self.state.sequences[token[0]].blocks[token[1] // self.state.block_size])

    def ways(self) -> list[str]:
        """Lines from the table entries to the block in the pool; from the very token to its slot if one is chosen."""
        block, token = self.chosen_block(), self.chosen()
        if block is None or not 0 <= block < self.state.num_blocks:
            return []
        if token is None:
            return [
                way(self.at, self.at.logical(self.tops[h.sequence][0], h.logical), None, self.at.pool(block), None)
                for h in self.holders.get(block, [])
            ]
        logical, offset = divmod(token[1], self.state.block_size)
        start, end = self.at.logical(self.tops[token[0]][0], logical), self.at.pool(block)
        out = [way(self.at, start, offset, end, offset)]
        for (x, y, _, _), words in ((start, self.at.left == "words"), (end, self.at.right == "words")):
            if words:
                dx, dy = self.at.slot_in(offset)
                out.append(_box(x + dx + 1, y + dy + 1, self.at.slot - 2, SLOT - 2, TEXT, 2.5))
        return out

    def way_in_words(self) -> str:
        token = self.chosen()
        if token is None:
            return ""
        sequence = self.state.sequences[token[0]]
        return f"Token {token[1]} of {sequence.name}:  {slot_arithmetic(self.state, sequence.name, token[1])}"

    def copies(self) -> list[str]:
        out = []
        for source, destination in self.step.copies if self.step else ():
            if max(source, destination) < self.state.num_blocks and min(source, destination) >= 0:
                out.append(copy_arrow(self.at, source, destination))
        return out

    def free_list(self, y: float) -> tuple[list[str], float]:
        state = self.state
        free = [block_number(block) for block in state.free_blocks]
        name = "Free list, next block first" if state.free_order_known else "Free blocks"
        out = [text(PAD, y + 15, name, 13, weight=600)]
        x = PAD + 190
        if not free:
            out.append(text(x, y + 15, "empty: the pool is full", 13, fill=MUTED))
        for i, block in enumerate(free[:MOST_FREE]):
            width, first = 12 + 8 * len(str(block)), i == 0 and state.free_order_known
            if x + width > self.width - PAD - 90:
                break
            if block in self.cached:
                out.append(rect(x, y, width, 22, "url(#cached)", rx=4))
            out.append(_box(x, y, width, 22, ALARM if block in self.wrong else MUTED if first else LINE, 1.5))
            out.append(text(x + width / 2, y + 15.5, str(block), 12, anchor="middle", weight=700 if first else 400))
            x += width + 5
        else:
            i = min(len(free), MOST_FREE)
        if len(free) > i:
            out.append(text(x + 3, y + 15, f"and {len(free) - i:,} more", 12, fill=MUTED))
        return out, y + 22

    def legend(self, y: float) -> tuple[list[str], float]:
        """What the marks mean; only those that can occur here."""
        items = [("free", "free block")]
        if self.at.left == "blocks":
            filled_part = ", as far as it is filled" if self.state.block_size else ""
            items.insert(0, ("part" if filled_part else "full", f"block in use{filled_part}"))
        elif self.at.left == "words":
            items = [("token", "slot with a token"), ("empty", "slot still empty"), *items]
        elif self.num_free() < self.state.num_blocks:
            items.insert(0, ("used", "block in use"))
        if any(count > 1 for count in self.state.ref_counts):
            items.append(("shared", "shared block, \u00d7 its ref count"))
        if self.cached:
            items.append(("cached", "free, but the cache finds what it holds"))
        if self.step and self.step.copies:
            items.append(("copied", "contents copied"))
        if self.changed:
            items.append(("changed", "changed by this step"))
        if self.wrong:
            items.append(("wrong", "cannot be right"))
        out, x = [], PAD
        strong = 0.3 if self.at.left == "words" else 1
        fills = {"token": (COLOURS[0], 0.3), "part": (COLOURS[0], 0.3), "full": (COLOURS[0], 1), "used": (NOBODY, 1)}
        fills["shared"] = (COLOURS[0], strong)
        for kind, says in items:
            length = 23 + 6.3 * len(says)
            if x > PAD and x + length > self.width - PAD:
                x, y = PAD, y + 24
            fill = fills.get(kind, (TRACK, 1))
            if kind == "copied":
                out.append(_line(f"M{x} {y + 8}H{x + 15}", CHANGED, "copied"))
            elif kind == "free" and self.at.left == "words":
                out.append(f'<rect x="{x + 0.5}" y="{y + 0.5}" width="15" height="15" rx="3" fill="none" {_DASHED}/>')
            else:
                out.append(rect(x, y, 16, 16, fill[0], rx=3, opacity=fill[1]))
            if kind == "part":
                out.append(rect(x, y, 9, 16, COLOURS[0], rx=3))
            if kind in ("shared", "cached"):
                out.append(rect(x, y, 16, 16, f"url(#{kind})", rx=3))
            if kind in ("changed", "wrong", "empty"):
                colour = {"changed": CHANGED, "wrong": ALARM, "empty": MUTED}[kind]
                out.append(_box(x, y, 16, 16, colour, 1 if kind == "empty" else 2))
            out.append(text(x + 23, y + 12.5, says, 12, fill=MUTED))
            x += length + 22
        return out, y + 16

    def tag(self, x: float, y: float, label: str, owners: list[int], width: float = 24) -> list[str]:
        """A sequence's letter on its colour; hatched for several."""
        colour = self.colour(owners[0])
        out = [rect(x, y, width, 22, colour, rx=5)]
        if len(owners) > 1:
            out.append(rect(x, y, width, 22, "url(#shared)", rx=5))
        halo = colour if len(owners) > 1 else ""
        return [*out, _haloed(x + width / 2, y + 16, label, 13, ink_of(self.hues[owners[0]]), "middle", halo, 700)]


def _fit(state: PoolState, moments: set[tuple[int, ...]]) -> tuple[int, Layout]:
    """The narrowest card on which nothing has to be drawn smaller than on the widest."""
    layouts = [(width, lay_out(width - 2 * PAD, state.num_blocks, state.block_size or 0, moments)) for width in WIDTHS]
    widest = layouts[-1][1]

    def as_good(at: Layout) -> bool:
        forms = (at.left, at.right, at.left_cell, at.right_cell, at.per_line, at.columns)
        same = forms == (
            widest.left,
            widest.right,
            widest.left_cell,
            widest.right_cell,
            widest.per_line,
            widest.columns,
        )
        return same and at.slot >= min(widest.slot, READABLE)

    return next((width, at) for width, at in layouts if as_good(at))


def left_says(at: Layout) -> str:
    if at.left == "words":
        return (
            "each counts its blocks from 0; \u2192 block of the pool"
            if at.left_width > 310
            else "\u2192 block of the pool"
        )
    if at.left_width < 310:
        return "a cell's number: its block of the pool" if at.left_cell >= SMALL else "a cell is a block, in order"
    return f"a cell is a block{', its number the block of the pool' if at.left_cell >= SMALL else ', in order'}"


def new_tokens(before: PoolState, after: PoolState) -> dict[int, int]:
    """The sequences that have grown, and the position of the first token that is new."""
    old = [sequence.num_tokens for sequence in before.sequences]
    old += [0] * (len(after.sequences) - len(old))
    return {i: old[i] for i, sequence in enumerate(after.sequences) if sequence.num_tokens > old[i]}


class _Cell(NamedTuple):
    """A block as a small cell."""

    x: float
    y: float
    size: int
    block: int
    owners: list[int]
    has: int  # slots with a token
    label: str
    corner: str


def way(at: Layout, start: tuple, start_slot: int | None, end: tuple, end_slot: int | None) -> str:
    """A line from a logical block to a physical one. It keeps to the space between blocks, off the words."""
    x, y, width, height = start
    if at.left == "words" and start_slot is not None:
        dx, dy = at.slot_in(start_slot)
        token_x = x + dx + at.slot / 2
        above = dy == 0 and height > SLOT  # out of the nearest side of a block of several lines
        lane = y - BETWEEN / 2 if above else y + height + BETWEEN / 2
        path = f"M{token_x:.2f} {y if above else y + dy + SLOT:.2f}V{lane:.2f}H{at.left_width:.2f}"
        x, y = at.left_width, lane
    else:
        low = height if at.left_cell >= SMALL else height / 2
        x, y = (at.left_width, y + height / 2) if at.left == "words" else (x + width / 2, y + low)
        path = f"M{x:.2f} {y:.2f}"
    to_x, to_y, to_width, to_height = end
    if at.right == "words":
        tail = f"H{to_x - PHYSICAL + 4:.2f}"
        gate, goal = at.right_x - 6, to_y + to_height / 2
        if end_slot is not None:
            dx, dy = at.slot_in(end_slot)
            below = dy > 0 and dy + SLOT >= to_height
            goal = to_y + to_height + BETWEEN / 2 if below else to_y - BETWEEN / 2
            tail = f"H{to_x + dx + at.slot / 2:.2f}V{to_y + to_height - 1 if below else to_y + dy + 1:.2f}"
        elif to_x > at.right_x + PHYSICAL:  # in a further column: along the space above it
            goal = to_y - BETWEEN / 2
            tail = f"H{to_x - PHYSICAL + 12:.2f}V{to_y + to_height / 2 - 10:.2f}"
    else:
        gate, goal, tail = to_x + (0 if at.right_cell >= SMALL else to_width / 2), to_y + to_height / 2, ""
    bend = (gate - x) / 2
    path += f"C{x + bend:.2f} {y:.2f} {gate - bend:.2f} {goal:.2f} {gate:.2f} {goal:.2f}{tail}"
    return _line(path, TEXT, "arrow")


def copy_arrow(at: Layout, source: int, destination: int) -> str:
    """From a block whose contents were copied to the copy; beside the words where there are any."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = at.pool(source), at.pool(destination)
    if at.right == "words" and x1 == x2:
        low, high = (0.8, 0.2) if y2 > y1 else (0.2, 0.8)
        x, y1, y2 = x1 + w1 + 3, y1 + low * h1, y2 + high * h2
        return _line(
            f"M{x:.2f} {y1:.2f}C{x + 26:.2f} {y1:.2f} {x + 26:.2f} {y2:.2f} {x:.2f} {y2:.2f}", CHANGED, "copied"
        )
    x1, y1, x2, y2 = x1 + w1 / 2, y1 + h1 / 2, x2 + w2 / 2, y2 + h2 / 2
    bow = 0.2 * (abs(x2 - x1) + abs(y2 - y1)) + 10
    return _line(
        f"M{x1:.2f} {y1:.2f}Q{(x1 + x2) / 2 + bow:.2f} {(y1 + y2) / 2:.2f} {x2:.2f} {y2:.2f}", CHANGED, "copied"
    )


def shortened(word: str, width: float) -> str:
    """A token's text as it goes into a slot: without spaces at its ends, line breaks shown, cut where too long."""
    shown = word.replace("\n", "\u23ce").replace("\t", "\u21e5")
    shown = shown.strip() or ("\u2423" if shown else "")
    shown = "".join(character if character.isprintable() else "\ufffd" for character in shown)
    room = max(1, int((width - 4) / 6.6))
    wide = [2 if ord(character) > 0x2E80 else 1 for character in shown]
    if sum(wide) <= room:
        return shown
    kept = 0
    while kept < len(shown) and sum(wide[: kept + 1]) < room:
        kept += 1
    return shown[:kept] + "\u2026"


def _owners(labels: list[str], owners: list[int]) -> str:
    names = [labels[i] for i in dict.fromkeys(owners)]
    return "".join(names) if len("".join(names)) <= 3 else f"{names[0]}+{len(names) - 1}"


def _haloed(x, y, content: str, size: float, fill: str, anchor: str, halo: str, weight: int = 400) -> str:
    """Text with an edge of the colour `halo`, to be read on stripes."""
    plain = text(x, y, content, size, fill=fill, anchor=anchor, weight=weight)
    return plain.replace("<text ", f'<text paint-order="stroke" stroke="{halo}" stroke-width="3" ') if halo else plain


def _box(x: float, y: float, width: float, height: float, colour: str, thick: float) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" rx="4" fill="none" '
        f'stroke="{colour}" stroke-width="{thick}"/>'
    )


def _line(path: str, colour: str, arrow: str) -> str:
    shape = f'd="{path}" fill="none" stroke-linejoin="round"'
    return (
        f'<path {shape} stroke="#FFFFFF" stroke-width="6"/>'
        f'<path {shape} stroke="{colour}" stroke-width="2.25" marker-end="url(#{arrow})"/>'
    )


def _patterns(cached: bool) -> str:
    arrow = (
        '<marker id="{}" markerWidth="9" markerHeight="9" refX="8" refY="4" orient="auto" '
        'markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z" fill="{}"/></marker>'
    )
    dots = (
        '<pattern id="cached" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<rect width="6" height="6" fill="#F0E442" fill-opacity="0.3"/>'
        '<path d="M1.5 1.5h.01M4.5 4.5h.01" stroke="#8A6D00" stroke-opacity="0.5" stroke-width="2" '
        'stroke-linecap="round"/></pattern>'
    )
    return (
        '<defs><pattern id="shared" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="1.6" height="6" fill="{TEXT}" fill-opacity="0.45"/></pattern>'
        '<pattern id="shared-words" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="1.6" height="8" fill="{TEXT}" fill-opacity="0.28"/></pattern>'
        f"{arrow.format('arrow', TEXT)}{arrow.format('copied', CHANGED)}{dots if cached else ''}</defs>"
    )
