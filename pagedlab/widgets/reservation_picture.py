"""The reservation map as a still picture: what is shown where no live widget can be.

It draws the same state with the same measures as `static/reservation.js`.
"""

from textwrap import wrap

from pagedlab.widgets.look import COLOURS, colour_of, ink_of
from pagedlab.widgets.still import LINE, MUTED, TEXT, TRACK, card, rect, text

WIDTH = 760
PAD = 24  # between the card's edge and what is on it
GUTTER = 52  # room for the number of a row's first slot
ROW, GAP = 28, 6  # height of a row of slots, and the space below it

# The four groups of slots: the pattern that stands for each, its name, and what it means.
LEGEND = (
    ("token_states", "Token states", "hold keys and values now"),
    ("reserved", "Reserved", "will be used, but later"),
    ("internal", "Internal waste", "owned, never used"),
    ("external", "External", "owned by no request"),
)


def picture(state: dict, selected: int = -1) -> str:
    """One SVG document of `state` (see `reservation_layout.describe`); `selected` is the index of a request, or -1."""
    says = [state["reason"], state["cut"], state["note"]]
    if selected >= 0:
        says.append(state["requests"][selected]["says"])

    body = []
    y = PAD + 16
    body.append(text(PAD, y, state["headline"], size=18, weight=600))
    for paragraph in filter(None, says):
        for line in wrap(paragraph, 100):
            y += 20
            body.append(text(PAD, y, line, size=13, fill=MUTED))

    y += 24
    body.append(text(PAD, y + 4, f"max_len = {state['max_len']:,}", size=13, weight=600))
    body.append(text(WIDTH - PAD, y + 4, f"cache of {state['num_slots']:,} slots", 12, fill=MUTED, anchor="end"))
    y += 18
    for row in state["rows"]:
        body += _row(state, row, y, selected)
        y += ROW + GAP

    y += 16
    column = (WIDTH - 2 * PAD) / 4
    for i, ((group, name, meaning), percent, count) in enumerate(
        zip(LEGEND, state["percents"], state["counts"], strict=True)
    ):
        x = PAD + i * column
        body += _swatch(group, x, y, 14)
        body.append(text(x + 22, y + 12, name, size=13, weight=600))
        body.append(text(x, y + 38, percent, size=18, weight=600))
        body.append(text(x + 62, y + 38, f"{count:,} slots", size=12, fill=MUTED))
        body.append(text(x, y + 56, meaning, size=12, fill=MUTED))
    y += 56 + 20

    body.append(f'<path d="M{PAD} {y} H{WIDTH - PAD}" stroke="{LINE}"/>')
    y += 16
    body += _queue(state, y)
    y += ROW + PAD - 4

    return card(state["headline"], WIDTH, y, _patterns(), body)


def _row(state: dict, row: dict, y: float, selected: int) -> list[str]:
    scale = (WIDTH - 2 * PAD - GUTTER) / state["slots_per_row"]

    def x_of(slot: int) -> float:
        return PAD + GUTTER + (slot - row["start"]) * scale

    length = (row["end"] - row["start"]) * scale
    out = [
        text(PAD + GUTTER - 10, y + ROW / 2 + 4, f"{row['start']:,}", size=11, fill=MUTED, anchor="end"),
        rect(x_of(row["start"]), y, length, ROW, TRACK, rx=3),
    ]
    for cell in row["cells"]:
        start, end = cell["pieces"][0][1], cell["pieces"][-1][2]
        x, width = x_of(start), (end - start) * scale
        if cell["request"] < 0:
            out.append(rect(x, y, width, ROW, "url(#free)", rx=3))
            if cell["named"] and width > 100:
                free = f"{state['num_slots'] - state['fit'] * state['max_len']:,} free"
                out.append(rect(x + width / 2 - 46, y + 5, 92, ROW - 10, TRACK, rx=4))
                out.append(text(x + width / 2, y + ROW / 2 + 4, free, size=12, anchor="middle"))
            continue
        request = state["requests"][cell["request"]]
        colour = colour_of(cell["request"])
        inset = 0.75 if width > 4 else 0  # a hairline between neighbours
        out.append(rect(x + inset, y, width - 2 * inset, ROW, "#FFFFFF"))
        out.append(rect(x + inset, y, width - 2 * inset, ROW, colour, opacity=0.14))
        for group, piece_start, piece_end in cell["pieces"]:
            fill = {
                "token_states": colour,
                "reserved": f"url(#later-{cell['request'] % len(COLOURS)})",
                "internal": f"url(#never-{cell['request'] % len(COLOURS)})",
            }[group]
            left = x_of(piece_start) + (inset if piece_start == start else 0)
            right = x_of(piece_end) - (inset if piece_end == end else 0)
            out.append(rect(left, y, right - left, ROW, fill))
        if cell["named"]:
            group, _, piece_end = cell["pieces"][0]
            solid = x_of(piece_end) - x if group == "token_states" else 0
            out += _name_tag(cell["request"], request["letter"], x, y, width, solid)
        if request["cut"] and end == request["start"] + state["max_len"]:
            out.append(_torn_edge(x + width - 3, y))
        if cell["request"] == selected:
            out.append(
                f'<rect x="{x + 1:.2f}" y="{y}" width="{max(1, width - 2):.2f}" height="{ROW}" '
                f'fill="none" stroke="{TEXT}" stroke-width="2"/>'
            )
    return out


def _name_tag(index: int, letter: str, x: float, y: float, width: float, solid: float) -> list[str]:
    """The letter on the solid part of a strip where that is wide enough, and else on a tag behind it, so that it
    never makes the solid part look longer."""
    size = 10 + 8 * len(letter)
    style = {"size": 13, "weight": 700, "anchor": "middle"}
    middle = y + ROW / 2 + 4.5
    if solid >= size + 8:
        return [text(x + 4 + size / 2, middle, letter, fill=ink_of(index), **style)]
    if width < size + 8:
        return []
    left = x + min(solid + 3, width - size - 5)
    return [
        f'<rect x="{left:.2f}" y="{y + 5}" width="{size}" height="{ROW - 10}" rx="4" fill="#FFFFFF" stroke="{MUTED}"/>',
        text(left + size / 2, middle, letter, **style),
    ]


def _queue(state: dict, y: float) -> list[str]:
    """The requests in order of arrival: those that fit, then those that wait; as many as one line holds."""
    out, x = [], PAD
    for name, start, stop in (("Fit", 0, state["fit"]), ("Wait", state["fit"], len(state["requests"]))):
        if start == stop or x > WIDTH - 150:
            continue
        out.append(text(x, y + ROW / 2 + 4, f"{name} ({stop - start:,})", size=13, fill=MUTED))
        x += 70
        for index in range(start, stop):
            request = state["requests"][index]
            width = 18 + 9 * len(request["letter"]) + (6 if request["cut"] else 0)
            if x + width > WIDTH - PAD - 20:
                out.append(text(x + 2, y + ROW / 2 + 4, "\u2026", size=13, fill=MUTED))
                x = WIDTH
                break
            waits = name == "Wait"
            fill = "#FFFFFF" if waits else colour_of(index)
            dashes = f' stroke="{MUTED}" stroke-dasharray="3 2"' if waits else ""
            ink = TEXT if waits else ink_of(index)
            out.append(
                f'<rect x="{x}.5" y="{y + 0.5}" width="{width - 1}" height="{ROW - 1}" rx="6" fill="{fill}"{dashes}/>'
            )
            middle = x + (width - (6 if request["cut"] else 0)) / 2
            out.append(text(middle, y + ROW / 2 + 4.5, request["letter"], 13, fill=ink, weight=700, anchor="middle"))
            if request["cut"]:
                out.append(_torn_edge(x + width - 5, y))
            x += width + 5
        x += 20
    return out


def _torn_edge(x: float, y: float) -> str:
    teeth = " ".join(f"L{x + (0 if i % 2 else 4):.2f} {y + i * ROW / 8:.2f}" for i in range(1, 9))
    return "".join(
        f'<path d="M{x:.2f} {y:.2f} {teeth}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        for colour, width in (("#FFFFFF", 5), (TEXT, 1.75))
    )


def _swatch(group: str, x: float, y: float, size: float) -> list[str]:
    fill = {"token_states": "#6E7781", "reserved": "url(#later)", "internal": "url(#never)", "external": "url(#free)"}
    return [
        rect(x, y, size, size, TRACK, rx=3),
        f'<rect x="{x + 0.5:.2f}" y="{y + 0.5:.2f}" width="{size - 1}" height="{size - 1}" rx="3" '
        f'fill="{fill[group]}" stroke="#6E7781"/>',
    ]


def _patterns() -> str:
    """Stripes for later, dots for never, in each request's colour and in grey; thin lines for what nobody owns."""
    out = []
    for suffix, colour in [("", "#6E7781"), *((f"-{i}", colour) for i, colour in enumerate(COLOURS))]:
        out.append(
            f'<pattern id="later{suffix}" width="7" height="7" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="3.2" height="7" fill="{colour}"/></pattern>'
            f'<pattern id="never{suffix}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<circle cx="2" cy="2" r="1.1" fill="{colour}"/><circle cx="6" cy="6" r="1.1" fill="{colour}"/></pattern>'
        )
    out.append(
        '<pattern id="free" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">'
        '<rect width="1" height="6" fill="#B6BEC7"/></pattern>'
    )
    return f"<defs>{''.join(out)}</defs>"
