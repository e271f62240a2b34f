"""The occupancy explorer as a still picture: what is shown where no live widget can be."""

from textwrap import wrap

from pagedlab.widgets.occupancy_layout import HEIGHT, WIDTH
from pagedlab.widgets.occupancy_story import capital
from pagedlab.widgets.still import LINE, MUTED, TEXT, TRACK, card, rect, text

CARD, PAD = 960, 24
COLOURS = ("#D55E00", "#0072B2")  # yours or the only one; the reference
ROW = 22
BAR = 190  # width of the longest bar of the limits


def picture(state: dict, title: str) -> str:
    """One SVG document of the explorer's state."""
    y, body = PAD + 16, []
    for line in wrap(title, 92):
        body.append(text(PAD, y, line, 17, weight=600))
        y += 24
    if state["busy"]:
        body.append(text(PAD, y, "Compiling. The figures are those of the choice before.", 13, fill=MUTED))
        y += 20
    y += 4
    for at, told in enumerate(state["kernels"]):
        lines, y = _kernel(told, at, len(state["kernels"]), y)
        body += lines
        y += 10
    if state["charts"]:
        for at, chart in enumerate(state["charts"]):
            x = PAD + at * (WIDTH + 40)
            body.append(f'<g transform="translate({x} {y})">{"".join(_chart(chart, state["drawn"]))}</g>')
        y += HEIGHT + 12
    return card(title, CARD, round(y + PAD - 6), _patterns(), body)


def _kernel(told: dict, at: int, count: int, y: float) -> tuple[list[str], float]:
    out = [f'<g transform="translate({PAD + 8} {y - 5})">{mark(at)}</g>'] if told["figures"] else []
    out.append(text(PAD + 24, y, capital(told["label"]), 14, weight=700))
    y += ROW
    if told["figures"]:
        f = told["figures"]
        out += _figures(f, y, at)
        out += _limits(f, y)
        y += 6 * ROW + 2
    for line in wrap(told["error"], 118):
        out.append(text(PAD + 24, y, line, 13, fill=TEXT))
        y += 19
    if told["figures"] and not told["error"]:
        lift = told["figures"]["lift"]
        said = f"What would lift it: {lift}" if lift.startswith("nothing") else f"More blocks would take {lift}"
        out.append(text(PAD + 24, y, said, 13))
        y += ROW
    return out, y


def rows_of(f: dict) -> list[tuple[str, str]]:
    """The figures of a kernel: what, and how much."""
    return [
        ("registers a thread", f"{f['registers']:,}"),
        ("spilled", f"{f['spill']:,} B" if f["spill"] else "nothing"),
        ("shared memory a block", f"{f['shared']:,} B"),
        ("blocks per SM", f"{f['blocks']:,}"),
        ("warps per SM", f"{f['warps']:,} of {f['most_warps']:,}, {f['percent']:g} %"),
        ("16-byte loads", f"{f['wide']:,}, and {f['narrow']:,} narrower"),
    ]


def _figures(f: dict, y: float, at: int) -> list[str]:
    out = []
    for row, (name, value) in enumerate(rows_of(f)):
        bold = 700 if name == "blocks per SM" or (name == "spilled" and f["spill"]) else 400
        out.append(text(PAD + 24, y + row * ROW, name, 13, fill=MUTED))
        out.append(text(PAD + 190, y + row * ROW, value, 13, weight=bold))
    return out


def _limits(f: dict, y: float) -> list[str]:
    """Blocks that each resource alone would allow, as bars; the scarcest is filled and named."""
    x = PAD + 470
    out = [text(x, y, "Blocks per SM that each alone would allow", 13, fill=MUTED)]
    most = longest(f)
    for row, (name, blocks) in enumerate(f["limits"], start=1):
        top = y + row * ROW
        scarcest = name in f["scarcest"]
        out.append(text(x, top, name, 13, weight=700 if scarcest else 400))
        width = BAR if blocks is None else BAR * min(1, blocks / most)
        out.append(rect(x + 126, top - 11, BAR, 13, TRACK, rx=2))
        out.append(rect(x + 126, top - 11, width, 13, "url(#scarcest)" if scarcest else LINE, rx=2))
        said = "any number" if blocks is None else f"{blocks:,}"
        out.append(
            text(
                x + 126 + BAR + 10, top, said + (", the limit" if scarcest else ""), 13, weight=700 if scarcest else 400
            )
        )
    return out


def longest(f: dict) -> int:
    """What a bar of full length stands for: no more than four times what fits, or the limit could not be seen."""
    most = max([blocks for _, blocks in f["limits"] if blocks is not None] + [1])
    return min(most, 4 * max(1, f["blocks"]))


def _chart(chart: dict, drawn: list[int]) -> list[str]:
    left, top, right, bottom = chart["box"]
    out = []
    for y, label in chart["y"]:
        out.append(f'<path d="M{left} {y}H{right}" stroke="{LINE}" stroke-opacity="0.7"/>')
        out.append(text(left - 14, y + 4, label, 11, fill=MUTED, anchor="end"))
    for x, label in chart["x"]:
        out.append(f'<path d="M{x} {bottom}v4" stroke="{MUTED}"/>')
        out.append(text(x, bottom + 17, label, 11, fill=MUTED, anchor="middle"))
    out.append(text((left + right) / 2, bottom + 34, chart["title"], 12, fill=TEXT, anchor="middle"))
    middle = (top + bottom) / 2
    label = text(12, middle, "blocks per SM", 12, anchor="middle")
    out.append(label.replace("<text ", f'<text transform="rotate(-90 12 {middle:g})" '))
    for at, path in zip(drawn, chart["curves"], strict=True):
        look = 'stroke-width="2" stroke-dasharray="6 4"' if at else 'stroke-width="3.5"'
        out.append(f'<path d="{path}" fill="none" stroke="{COLOURS[at]}" {look}/>')
    for at, (x, y) in zip(drawn, chart["points"], strict=True):
        out.append(f'<g transform="translate({x} {y})">{mark(at)}</g>')
    return out


def mark(at: int) -> str:
    """A kernel's sign: a disc, or an open diamond for the reference, which shows around a disc in the same place."""
    if at:
        return f'<path d="M0 -10L10 0L0 10L-10 0z" fill="none" stroke="{COLOURS[at]}" stroke-width="2.5"/>'
    return f'<circle r="6" fill="{COLOURS[at]}" stroke="#FFFFFF" stroke-width="1"/>'


def _patterns() -> str:
    return (
        '<defs><pattern id="scarcest" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#E69F00"/><rect width="2" height="6" fill="#14161A"/></pattern></defs>'
    )
