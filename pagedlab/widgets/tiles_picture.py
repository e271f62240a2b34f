"""The tile viewer as a still picture: what is shown where no live widget can be.

It draws the same story with the same measures as `static/tiles_drawing.js`.
"""

from collections.abc import Sequence
from textwrap import wrap

from pagedlab.widgets.look import colour_of, letters
from pagedlab.widgets.still import LINE, MUTED, TEXT, TRACK, card, rect, text
from pagedlab.widgets.tiles_layout import (
    HEAD,
    SIDE,
    Blocks,
    Programs,
    lay_out_blocks,
    lay_out_programs,
)

WIDTH, PAD = 960, 24
READ, WRITTEN = "#56B4E9", "#D55E00"
MOST_LINES = 14  # of accesses
MOST_SOURCE = 92  # characters of a line of the kernel

LEGEND = (
    ("read", "read in this step"),
    ("written", "written in this step"),
    ("before", "touched before by this program"),
    ("held", "holds a token"),
)


def lit(program: dict, step: int, access: int, kind: str | None = None) -> dict[str, list[list[int]]]:
    """The runs of slots that are in the light, by part ("k", "v"): those of one access, or of all of the step."""
    found: dict[str, list[list[int]]] = {"k": [], "v": []}
    for at, each in enumerate(program["steps"][step]["accesses"]):
        if each["part"] and access in (-1, at) and kind in (None, each["kind"]):
            found[each["part"]] += each["runs"]
    return found


def before(program: dict, step: int, access: int) -> dict[str, list[list[int]]]:
    """What the program has touched in earlier steps; with one access in the light, also the rest of this step."""
    found: dict[str, list[list[int]]] = {"k": [], "v": []}
    for earlier in range(step + (access >= 0)):
        for part, runs in lit(program, earlier, -1).items():
            found[part] += runs
    return found


def picture(story: dict, program: int, step: int, access: int, title: str, says: str) -> str:
    """One SVG document of `story` (see `tiles_story.story`): one step of one program."""
    chosen = story["programs"][program]
    now = chosen["steps"][step]
    y, body = PAD + 16, []
    for line in wrap(title, 96):
        body.append(text(PAD, y, line, 17, weight=600))
        y += 24
    for line in wrap(says, 126):
        body.append(text(PAD, y, line, 13, fill=MUTED))
        y += 19
    y += 10

    grid = lay_out_programs(*story["shape"])
    left = max(grid.width, 96) + 28
    body.append(text(PAD, y + 4, "Programs traced" if story["listed"] else "Programs", 12, weight=600))
    if not story["listed"]:
        x_axis, y_axis, _ = story["axes"]
        axes = f"→ {x_axis}" + (f", ↓ {y_axis}" if grid.rows > 1 else "")
        body.append(text(PAD, y + 21, axes, 11, fill=MUTED))
        left = max(left, 28 + 6 * len(axes))
    grid_top = y + (28 if not story["listed"] else 12)
    drawn = _programs(story, grid, program)
    body.append(f'<g transform="translate({PAD} {grid_top})">{"".join(drawn)}</g>')
    bottom = grid_top + grid.height

    pool, x = story["pool"], PAD + left
    room = WIDTH - PAD - x
    state = (lit(chosen, step, access, "load"), lit(chosen, step, access, "store"), before(chosen, step, access))
    if pool["blocks"]:
        head = f", KV head {chosen['head']}" if chosen["head"] >= 0 else ""
        left_out = f"; {pool['left_out']:,} other blocks are not drawn" if pool["left_out"] else ""
        body.append(text(x, y + 4, f"Pool{head}{left_out}", 12, weight=600))
        at = lay_out_blocks(room, len(pool["blocks"]), pool["size"], len(pool["parts"]))
        drawn = blocks_drawn(at, pool, _pool_blocks(pool), state)
        body.append(f'<g transform="translate({x} {y + 12})">{"".join(drawn)}</g>')
        y += 12 + at.height + 14
        blocks = _own_blocks(pool, chosen["sequence"])
        if blocks:
            name = f"Sequence {letters(chosen['sequence'])}: {pool['lens'][chosen['sequence']]:,} tokens, in order"
            body.append(text(x, y + 4, name, 12, weight=600))
            at = lay_out_blocks(room, len(blocks), pool["size"], len(pool["parts"]))
            drawn = blocks_drawn(at, pool, blocks, state)
            body.append(f'<g transform="translate({x} {y + 12})">{"".join(drawn)}</g>')
            y += 12 + at.height + 14
        legend, y = _legend(x, y, pool, chosen["sequence"], state)
        body += legend
    y = max(y, bottom) + 14
    lines, y = _accesses(story, now["accesses"], access, y)
    body += lines
    lines, y = _values(now["values"], y)
    return card(title, WIDTH, round(y + PAD - 8), _patterns(), body + lines)


def _pool_blocks(pool: dict) -> list[tuple]:
    """(block, head, its sequence or -1, slots filled) of each block drawn."""
    return [
        (block, f"{block} {''.join(map(letters, owners))}".rstrip(), owners[0] if owners else -1, filled)
        for block, owners, filled in zip(pool["blocks"], pool["owners"], pool["filled"], strict=True)
    ]


def _own_blocks(pool: dict, sequence: int) -> list[tuple]:
    if not 0 <= sequence < len(pool["tables"]):
        return []
    length, size = pool["lens"][sequence], pool["size"]
    return [
        (block, f"{logical} → {block}", sequence, min(size, length - logical * size))
        for logical, block in enumerate(pool["tables"][sequence][: pool["most"]])
    ]


def blocks_drawn(at: Blocks, pool: dict, blocks: Sequence[tuple], state: tuple) -> list[str]:
    reads, writes, earlier = state
    out = []
    for index, (block, head, owner, filled) in enumerate(blocks):
        x, y = at.corner(index)
        if at.slot and index % at.per_line == 0:
            out += [
                text(SIDE - 8, y + (row + 0.75) * at.part, part.upper(), 11, fill=MUTED, anchor="end")
                for row, part in enumerate(pool["parts"])
            ]
        if at.slot:
            out.append(text(x, y - 5, head, 11, fill=MUTED))
        colour = colour_of(owner) if owner >= 0 else READ
        for row, part in enumerate(pool["parts"]):
            top = y + row * at.part
            out.append(rect(x, top, at.cell, at.part, TRACK))
            if owner >= 0:
                out.append(rect(x, top, _wide(at, filled), at.part, colour, opacity=0.25))
            for layer, fill in (
                (earlier, f"url(#before-{_slot_name(owner)})"),
                (reads, colour),
                (writes, "url(#written)"),
            ):
                for first, last in _runs_of(layer[part], block):
                    left = x + (first * at.slot if at.slot else 0)
                    width = _wide(at, last - first + 1)
                    out.append(rect(left, top, width, at.part, fill))
                    if layer is not earlier:
                        out.append(_outline(left, top, width, at.part))
            if at.slot >= 5:
                ticks = "".join(f"M{x + slot * at.slot:.2f} {top:g}v{at.part:g}" for slot in range(1, at.size))
                out.append(f'<path d="{ticks}" stroke="#FFFFFF" stroke-width="0.8"/>')
        high = at.parts * at.part
        out.append(f'<rect x="{x:.2f}" y="{y:g}" width="{at.cell:.2f}" height="{high:g}" fill="none" stroke="{LINE}"/>')
    return out


def _wide(at: Blocks, slots: int) -> float:
    return slots * at.slot if at.slot else (at.cell if slots else 0)


def _runs_of(runs: Sequence[Sequence[int]], block: int) -> list[tuple[int, int]]:
    return [(first, last) for each, first, last in runs if each == block]


def _outline(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{x + 0.75:.2f}" y="{y + 0.75:.2f}" width="{max(0.5, width - 1.5):.2f}" height="{height - 1.5:g}" '
        f'fill="none" stroke="{TEXT}" stroke-width="1.5"/>'
    )


def _programs(story: dict, grid: Programs, program: int) -> list[str]:
    traced = {tuple(cell): at for at, cell in enumerate(story["cells"])}
    out, every = [], max(1, round(18 / grid.cell))
    for z in range(grid.layers):
        top = z * grid.layer
        if grid.layers > 1:
            out.append(text(0, top + HEAD - 5, f"{story['axes'][2]} {z}", 11, fill=MUTED))
        if not story["listed"]:
            out += [
                text(
                    grid.corner(x, 0, z)[0] + grid.cell / 2,
                    top + grid.head - 5,
                    f"{x}",
                    11,
                    fill=MUTED,
                    anchor="middle",
                )
                for x in range(0, grid.columns, every)
            ]
            out += [
                text(SIDE - 6, grid.corner(0, y, z)[1] + grid.cell / 2 + 4, f"{y}", 11, fill=MUTED, anchor="end")
                for y in range(0, grid.rows, every)
            ]
        for y in range(grid.rows):
            for x in range(grid.columns):
                at = traced.get((x, y, z))
                if at is None and story["listed"]:
                    continue
                left, high = grid.corner(x, y, z)
                size = round(grid.cell - 2, 2)
                chosen = at == program
                fill = TEXT if chosen else TRACK if at is not None else "none"
                dashes = "" if at is not None else ' stroke-dasharray="2 2"'
                out.append(
                    f'<rect x="{left + 1:g}" y="{high + 1:g}" width="{size:g}" height="{size:g}" rx="3" fill="{fill}" '
                    f'stroke="{TEXT if chosen else LINE}"{dashes}/>'
                )
                if chosen and grid.cell >= 14:
                    out.append(
                        f'<circle cx="{left + grid.cell / 2:g}" cy="{high + grid.cell / 2:g}" r="3" fill="#FFFFFF"/>'
                    )
    return out


def _accesses(story: dict, accesses: Sequence[dict], access: int, y: float) -> tuple[list[str], float]:
    out = [text(PAD, y, "Reads and writes of this step", 12, weight=600)]
    y += 20
    for at, each in enumerate(accesses[:MOST_LINES]):
        if at == access:
            out.append(rect(PAD - 6, y - 14, WIDTH - 2 * PAD + 12, 38, TRACK, rx=4))
        out.append(text(PAD, y, f"{each['line']}", 12, fill=MUTED))
        source = story["source"][str(each["line"])]
        source = source if len(source) <= MOST_SOURCE else source[: MOST_SOURCE - 1] + "…"
        out.append(
            text(PAD + 40, y, source, 12.5).replace(
                "<text ", '<text font-family="ui-monospace, Menlo, Consolas, monospace" '
            )
        )
        out.append(text(WIDTH - PAD, y, lanes_in_words(each), 12, fill=MUTED, anchor="end"))
        y += 17
        mark = "reads" if each["kind"] == "load" else "writes"
        said = wrap(f"{mark} {each['tensor']}: {each['says']}", 118)
        out.append(text(PAD + 40, y, said[0] + ("…" if len(said) > 1 else ""), 12, fill=MUTED))
        y += 23
    if len(accesses) > MOST_LINES:
        out.append(text(PAD + 40, y, f"and {len(accesses) - MOST_LINES:,} more", 12, fill=MUTED))
        y += 20
    if not accesses:
        out.append(text(PAD + 40, y, "none", 12, fill=MUTED))
        y += 20
    return out, y + 6


def lanes_in_words(access: dict) -> str:
    """ "64 of 128 lanes on"."""
    if access["lanes"] == 1:
        return "1 number" if access["on"] else "off"
    return f"{access['on']:,} of {access['lanes']:,} lanes on"


def _values(values: Sequence[Sequence], y: float) -> tuple[list[str], float]:
    if not values:
        return [], y
    out = [text(PAD, y, "At the end of this step (bold: changed in it)", 12, weight=600)]
    y += 20
    for name, old, new in values:
        out.append(text(PAD, y, name, 12.5))
        for row, number in enumerate(new):
            x = PAD + 150 + row % 8 * 94
            changed = row < len(old) and old[row] != number
            out.append(text(x, y + row // 8 * 17, number, 12.5, weight=700 if changed else 400))
        y += 22 + (max(1, len(new)) - 1) // 8 * 17
    return out, y


def _legend(x: float, y: float, pool: dict, sequence: int, state: tuple) -> tuple[list[str], float]:
    reads, writes, earlier = state
    colour = colour_of(sequence) if sequence >= 0 else READ
    present = {"read": reads, "written": writes, "before": earlier}
    shown = {mark for mark, runs in present.items() if any(runs.values())} | ({"held"} if pool["tables"] else set())
    out, at = [], x
    for mark, says in LEGEND:
        if mark not in shown:
            continue
        length = 26 + 6.2 * len(says)
        if at > x and at + length > WIDTH - PAD:
            at, y = x, y + 20
        before = f"url(#before-{_slot_name(sequence)})"
        fill = {"read": colour, "written": "url(#written)", "before": before, "held": colour}[mark]
        out.append(rect(at, y, 18, 13, fill, opacity=0.25 if mark == "held" else 1))
        if mark in ("read", "written"):
            out.append(_outline(at, y, 18, 13))
        out.append(text(at + 25, y + 11, says, 12, fill=MUTED))
        at += length + 20
    return out, y + 22


def _slot_name(owner: int) -> str:
    return "none" if owner < 0 else f"{owner % 7}"


def _patterns() -> str:
    def stripes(name: str, colour: str, ground: float, turn: int, apart: float, thick: float, over: str) -> str:
        return (
            f'<pattern id="{name}" width="{apart}" height="{apart}" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate({turn})"><rect width="{apart}" height="{apart}" fill="{colour}" '
            f'fill-opacity="{ground}"/><rect width="{thick}" height="{apart}" fill="{over}"/></pattern>'
        )

    befores = [stripes("before-none", READ, 0.3, 45, 5, 1.6, READ)]
    befores += [stripes(f"before-{i}", colour_of(i), 0.4, 45, 5, 1.6, colour_of(i)) for i in range(7)]
    return "<defs>" + "".join(befores) + stripes("written", WRITTEN, 1, -45, 6, 1.5, "#FFFFFF") + "</defs>"
