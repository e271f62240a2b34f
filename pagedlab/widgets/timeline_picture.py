"""The timeline as a still picture: what is shown where no live widget can be.

It draws the same story with the same measures as `static/timeline_drawing.js`, always the whole of it.
"""

from textwrap import wrap

from pagedlab.widgets.look import plural
from pagedlab.widgets.still import LINE, MUTED, TEXT, TRACK, card, rect, text
from pagedlab.widgets.timeline_layout import AXIS, GUTTER, WIDEST, Layout, lay_out, runs, steps_along, ticks

WIDTH, PAD = 960, 24

PREFILL, DECODE, PREEMPTED, SWAPPED, DONE = "#E69F00", "#56B4E9", "#D55E00", "#CC79A7", "#6E7781"
TOKENS, CACHED = "#009E73", "#F0E442"
INK = "#14161A"  # on all of these colours

# What stands in a run of cells where there is room: the whole word, or its letter.
WORDS = {
    "X": ("preempted", "X"),
    "S": ("swapped out", "S"),
    "-": ("finished", "F"),
    "A": ("aborted", "A"),
}

LEGEND = (
    ("P", "prefill, with its tokens"),
    ("D", "decode, 1 token"),
    (".", "waiting"),
    ("X", "preempted: computes again later"),
    ("S", "swapped out"),
    ("-", "finished, still holds memory"),
    ("end", "finished"),
    ("A", "aborted"),
    ("tokens", "pool: tokens"),
    ("empty", "empty slots of used blocks"),
    ("cached", "free, kept for later hits"),
)


def picture(story: dict, column: int, title: str, says: list[str], selected: str = "") -> str:
    """One SVG document of `story` (see `timeline_story.story`) with the cursor at `column`.

    `says`: what happens there, one line a trace. `selected`: the name of a request, or "".
    """
    length = story["ends"][-1]
    inner = min(WIDTH - 2 * PAD, GUTTER + WIDEST * len(story["ends"]))
    at = lay_out(inner, len(story["names"]), len(story["traces"]), length)
    y, body = PAD + 16, []
    for line in wrap(title, 96):
        body.append(text(PAD, y, line, 17, weight=600))
        y += 24
    for paragraph in says:
        for line in wrap(paragraph, 128):
            body.append(text(PAD, y, line, 13, fill=MUTED))
            y += 19
    y += 8
    drawn = []
    for index, trace in enumerate(story["traces"]):
        drawn += _figure(story, trace, index, at, selected)
    drawn += _axis(story, at) + _cursor(story, at, column)
    body.append(f'<g transform="translate({PAD} {y})">{"".join(drawn)}</g>')
    legend, y = _legend(story, y + at.height + 18)
    return card(title, WIDTH, round(y + PAD), _patterns(), body + legend)


def totals_in_words(totals: dict) -> str:
    """ "23 steps, 6.4 tokens a step, mean batch 2.9, 71 % of the pool in use"."""
    parts = [
        plural(totals["num_steps"], "step"),
        f"{totals['tokens_per_step']:,.1f} tokens a step",
        f"mean batch {totals['mean_batch']:,.1f}",
        f"{100 * totals['mean_usage']:.0f} % of the pool in use",
    ]
    if totals["num_preemptions"]:
        parts.append(plural(totals["num_preemptions"], "preemption"))
    if totals["seconds"] is not None:
        parts.insert(1, f"{totals['seconds']:,.4g} s")
    return ", ".join(parts)


def _figure(story: dict, trace: dict, index: int, at: Layout, selected: str) -> list[str]:
    top = at.figure(index)
    right = at.x(story["ends"][-1])
    out = []
    if len(story["traces"]) > 1:
        out.append(text(0, top + 14, trace["name"], 14, weight=700))
        out.append(text(9 * len(trace["name"]) + 16, top + 14, totals_in_words(trace["totals"]), 12.5, fill=MUTED))
    for tick in ticks(story["ends"][-1], at.scale, story["axis"] == "steps"):
        bottom = at.pool_top(index) + at.pool
        out.append(
            f'<path d="M{at.x(tick):.2f} {at.row_top(index, 0):g}V{bottom:g}" stroke="{LINE}" stroke-opacity="0.6"/>'
        )
    along = steps_along(trace)
    every = max(1, round(12 / at.row))  # rows too low for a label each
    for row, (name, label) in enumerate(zip(story["names"], story["labels"], strict=True)):
        y = at.row_top(index, row)
        if name == selected:
            out.append(rect(0, y, right, at.row, TEXT, opacity=0.08))
        if row % every == 0 or name == selected:
            size = min(13, at.row * every * 0.8)
            weight = 700 if name == selected else 400
            out.append(text(GUTTER - 10, y + at.row / 2 + size * 0.36, label, size, weight=weight, anchor="end"))
        out += _row(trace["rows"][row], y, along, at)
    return out + _pool(trace, index, along, at)


def _row(row: dict | None, y: float, along, at: Layout) -> list[str]:
    if row is None:
        return []
    out, prefills = [], iter(row["prefills"])
    for state, start, end in runs(row["states"]):
        start, end = start + row["from"], end + row["from"]
        left, right = at.x(along[start][0]), at.x(along[end - 1][1])
        if state == "P":
            for i in range(start, end):
                out += _cell(at.x(along[i][0]), at.x(along[i][1]), y, at.row, PREFILL, f"{next(prefills)}")
        elif state == "D" and (right - left) / (end - start) >= 5:
            letter = "D" if (right - left) / (end - start) >= 15 else ""
            for i in range(start, end):
                out += _cell(at.x(along[i][0]), at.x(along[i][1]), y, at.row, DECODE, letter, slim=True)
        elif state == "D":
            out += _cell(left, right, y, at.row, DECODE, "", slim=True)
        elif state == ".":
            out += _waits(left, right, y, at.row)
        else:
            out += _cell(left, right, y, at.row, f"url(#{_PATTERN[state]})", "")
        if state in WORDS:
            out += _run_words(state, left, right, y, at.row)
    if row["end"]:
        out += _end(at.x(along[row["end"][0]][1]), y, at.row, row["end"][1])
    return out


def _cell(left: float, right: float, y: float, high: float, fill: str, says: str, slim: bool = False) -> list[str]:
    """A prefill is as high as its row, a decode is lower: they differ without their colours, too."""
    inset = high * (0.24 if slim else 0.08)
    gap = 0.75 if right - left >= 5 else 0  # a hairline between neighbours
    out = [rect(left + gap, y + inset, right - left - 2 * gap, round(high - 2 * inset, 2), fill, rx=2 if gap else 0)]
    size = min(11.5, (high - 2 * inset) * 0.86)
    if says and size >= 8 and right - left >= 3 + size * 0.62 * (1 if slim else max(2, len(says))):
        out.append(text((left + right) / 2, y + high / 2 + size * 0.36, says, size, fill=INK, anchor="middle"))
    return out


def _waits(left: float, right: float, y: float, high: float) -> list[str]:
    size, middle, out = min(11.5, high * 0.72), y + high / 2, []
    if size >= 8 and right - left >= 4 * size:
        out.append(text(left + 3, middle + size * 0.36, "waits", size, fill=MUTED))
        left += 5 + 2.7 * size
    return [*out, f'<path d="M{left + 1:.2f} {middle:g}H{right - 1:.2f}" stroke="{MUTED}" stroke-dasharray="2 3"/>']


def _run_words(state: str, left: float, right: float, y: float, high: float) -> list[str]:
    word, letter = WORDS[state]
    size = min(11.5, high * 0.72)
    says = word if right - left >= 14 + 0.58 * size * len(word) else letter
    width = 6 + 0.57 * size * len(says)
    if size < 8 or right - left < width + 4:
        return []
    return [
        rect(left + 3, y + high / 2 - size * 0.62, width, round(size * 1.24, 2), "#FFFFFF", rx=2),
        text(left + 6, y + high / 2 + size * 0.36, says, size),
    ]


def _end(x: float, y: float, high: float, reason: str) -> list[str]:
    """Where a request is over: a dark bar, or a cross."""
    if reason != "abort":
        return [rect(x - 3, y + 1, 3, high - 2, TEXT, rx=1)]
    r, cy = min(5, high / 2 - 1), y + high / 2
    cx = x - r - 1
    return [
        f'<path d="M{cx - r:.2f} {cy - r:g}L{cx + r:.2f} {cy + r:g}M{cx + r:.2f} {cy - r:g}L{cx - r:.2f} {cy + r:g}" '
        f'stroke="{colour}" stroke-width="{width}" stroke-linecap="round"/>'
        for colour, width in (("#FFFFFF", 5), (TEXT, 2.25))
    ]


def _pool(trace: dict, index: int, along, at: Layout) -> list[str]:
    """The pool over the steps: tokens, empty slots of used blocks, blocks with cached content, from the bottom up."""
    top, high = at.pool_top(index), at.pool
    bottom, most = top + high, max(trace["total"]) or 1
    right = at.x(along[-1][1])
    size = trace["block_size"]
    used = trace["used"]
    tokens = [min(slots / size, block) for slots, block in zip(trace["slots"], used, strict=True)] if size else used
    cached = [a + b for a, b in zip(used, trace["cached"], strict=True)]

    def area(values: list[float], fill: str) -> str:
        path, before = f"M{at.x(along[0][0]):.2f} {bottom:g}", None
        for i, value in enumerate(values):
            level = round(bottom - high * value / most, 2)
            if level != before:
                path += (f"H{at.x(along[i][0]):.2f}" if i else "") + f"V{level:g}"
            before = level
        return f'<path d="{path}H{right:.2f}V{bottom:g}z" fill="{fill}"/>'

    out = [rect(at.x(along[0][0]), top, right - at.x(along[0][0]), high, TRACK)]
    if any(trace["cached"]):
        out += [area(cached, "url(#cached)"), area(used, "#FFFFFF")]
    if size:
        out += [area(used, "url(#empty)")]
    out.append(area(tokens, TOKENS))
    out.append(text(GUTTER - 10, top + 10, f"{most:,}", 11, fill=MUTED, anchor="end"))
    out.append(text(GUTTER - 10, top + high / 2 + 4, "blocks", 11, fill=MUTED, anchor="end"))
    out.append(text(GUTTER - 10, bottom, "0", 11, fill=MUTED, anchor="end"))
    return out


def _axis(story: dict, at: Layout) -> list[str]:
    y = at.height - AXIS + 18
    is_steps = story["axis"] == "steps"
    out = []
    for tick in ticks(story["ends"][-1] - (1 if is_steps else 0), at.scale, is_steps):
        middle = max(4, at.scale / 2) if is_steps else 0
        label = f"{tick + story['first']:,}" if is_steps else f"{tick:,.6g}"
        out.append(text(at.x(tick) + middle, y, label, 11, fill=MUTED, anchor="middle"))
    out.append(text(GUTTER - 10, y, "step" if is_steps else "s", 11, fill=MUTED, anchor="end"))
    return out


def _cursor(story: dict, at: Layout, column: int) -> list[str]:
    left = at.x(story["ends"][column - 1] if column else 0)
    width = max(2, at.x(story["ends"][column]) - left)
    return [
        f'<rect x="{left:.2f}" y="{at.row_top(index, 0) - 3:g}" width="{width:.2f}" '
        f'height="{at.pool_top(index) + at.pool - at.row_top(index, 0) + 6:g}" rx="3" fill="{TEXT}" '
        f'fill-opacity="0.06" stroke="{TEXT}" stroke-width="1.5"/>'
        for index in range(len(story["traces"]))
    ]


def marks_that_occur(story: dict) -> list[tuple[str, str]]:
    """The lines of the legend that this story needs."""
    rows = [row for trace in story["traces"] for row in trace["rows"] if row]
    found = {state for row in rows for state in row["states"]}
    found |= {"A" if row["end"][1] == "abort" else "end" for row in rows if row["end"]} | {"tokens"}
    if any(trace["block_size"] for trace in story["traces"]):
        found.add("empty")
    if any(any(trace["cached"]) for trace in story["traces"]):
        found.add("cached")
    return [(mark, says) for mark, says in LEGEND if mark in found]


def _legend(story: dict, y: float) -> tuple[list[str], float]:
    out, x = [], PAD
    for mark, says in [*marks_that_occur(story), *(("", says) for says in story["which"])]:
        room = 30 if mark else 0
        length = room + 6.3 * len(says)
        if x > PAD and x + length > WIDTH - PAD:
            x, y = PAD, y + 24
        out += _mark(mark, x, y)
        out.append(text(x + room, y + 12.5, says, 12, fill=MUTED))
        x += length + 22
    return out, y + 16


def _mark(mark: str, x: float, y: float) -> list[str]:
    if mark in ("P", "D"):
        return _cell(
            x, x + 22, y - 2, 20, PREFILL if mark == "P" else DECODE, "32" if mark == "P" else "D", mark == "D"
        )
    if mark == ".":
        return [f'<path d="M{x} {y + 8}h22" stroke="{MUTED}" stroke-dasharray="2 3"/>']
    if mark == "end":
        return [*_cell(x, x + 22, y - 2, 20, DECODE, "", slim=True), *_end(x + 22, y - 2, 20, "length")]
    if mark == "A":
        return [*_cell(x, x + 22, y - 2, 20, DECODE, "", slim=True), *_end(x + 22, y - 2, 20, "abort")]
    if mark in _PATTERN:
        return [rect(x, y, 22, 16, f"url(#{_PATTERN[mark]})", rx=2)]
    if mark == "cached":
        return [rect(x, y, 22, 16, "url(#cached)", rx=2)]
    fills = {"tokens": TOKENS, "empty": "url(#empty)"}
    return [rect(x, y, 22, 16, fills[mark], rx=2)] if mark else []


_PATTERN = {"X": "preempted", "S": "swapped", "-": "done", "A": "aborted"}


def _patterns() -> str:
    def stripes(name: str, colour: str, turn: int, apart: float, thick: float, ground: float) -> str:
        return (
            f'<pattern id="{name}" width="{apart}" height="{apart}" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate({turn})"><rect width="{apart}" height="{apart}" fill="{colour}" '
            f'fill-opacity="{ground}"/><rect width="{thick}" height="{apart}" fill="{colour}"/></pattern>'
        )

    def dots(name: str, colour: str, ground: float, ground_colour: str = "", apart: int = 6) -> str:
        return (
            f'<pattern id="{name}" width="{apart}" height="{apart}" patternUnits="userSpaceOnUse">'
            f'<rect width="{apart}" height="{apart}" fill="{ground_colour or colour}" fill-opacity="{ground}"/>'
            f'<circle cx="{apart / 4}" cy="{apart / 4}" r="1" fill="{colour}"/>'
            f'<circle cx="{apart * 0.75}" cy="{apart * 0.75}" r="1" fill="{colour}"/></pattern>'
        )

    return (
        "<defs>"
        + stripes("preempted", PREEMPTED, 45, 7, 3, 0.12)
        + stripes("swapped", SWAPPED, 0, 6, 2.6, 0.16)
        + stripes("aborted", DONE, -45, 7, 2, 0.1)
        + dots("done", DONE, 0.1)
        + stripes("empty", TOKENS, -45, 6, 1.6, 0.12)
        + dots("cached", "#8A6D00", 0.3, ground_colour=CACHED)
        + "</defs>"
    )
