"""Pictures of GPUs: where numbers lie, what bounds a kernel, which multiprocessors have work.

Each returns a `Picture`: an image with its description, and `table()` with the numbers in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, inf, log10

from pagedlab.gpu.gpus import GPU, find
from pagedlab.gpu.hierarchy import levels
from pagedlab.gpu.roofline import Roofline, ridge
from pagedlab.picture import INK, Picture, figure_of
from pagedlab.table import TextTable

FIVE = ("A100", "H100", "H200", "B200", "MI300X")
KIB, MIB, GIB = 2**10, 2**20, 2**30
MOST_GPUS = 6  # pyramids beside each other, or roofs in one picture
MOST_POINTS = 8
MOST_WAVES = 12  # rows; more are told in words

# level: colour (Okabe and Ito's palette), hatching
LEVELS = {
    "registers": ("#D55E00", ""),
    "shared memory": ("#E69F00", "//"),
    "L2": ("#F0E442", ".."),
    "L3": ("#F0E442", "xx"),
    "memory": ("#56B4E9", "\\\\"),
}
ROOFS = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"), ("#14161A", "-"), ("#56B4E9", "--"))
MARKERS = "osD^vP*X"


def memory_hierarchy(gpus: Sequence[str | GPU] | None = None) -> Picture:
    """For each GPU a pyramid: registers, shared memory, L2 and memory, with size and bandwidth.

    gpus: names or GPUs, six at most; five well-known ones if not given. A box is the wider the more fits into it; each
    tenfold adds as much. An asterisk marks a bandwidth that is reckoned (see `hierarchy.py`).
    """
    chosen = [find(gpu) for gpu in (FIVE if gpus is None else _several(gpus))]
    _check_count("GPUs", len(chosen), MOST_GPUS)
    told = {gpu.name: levels(gpu) for gpu in chosen}
    rows = [name for name in LEVELS if any(level.name == name for each in told.values() for level in each)]
    sizes = [level.bytes for each in told.values() for level in each]
    low, high = log10(min(sizes)), log10(max(sizes))

    figure, axes = figure_of(width=1.2 + 1.75 * len(chosen), height=0.9 + 0.72 * len(rows))
    for column, (name, each) in enumerate(told.items()):
        axes.text(column, -0.72, name, ha="center", fontsize=11, fontweight="bold", color=INK)
        for level in each:
            width = 0.56 + 0.4 * (log10(level.bytes) - low) / ((high - low) or 1)
            colour, hatch = LEVELS[level.name]
            y = rows.index(level.name)
            axes.barh(
                y, width, left=column - width / 2, height=0.8, color=colour, hatch=hatch, edgecolor=INK, linewidth=0.8
            )
            words = f"{size_in_words(level.bytes)}\n{bandwidth_in_words(level)}"
            patch = {"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.12"}
            axes.text(column, y, words, ha="center", va="center", fontsize=8.5, color=INK, bbox=patch, linespacing=1.25)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks([])
    axes.set_xlim(-0.55, len(chosen) - 0.45)
    axes.set_ylim(len(rows) - 0.5, -1)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.set_xlabel(
        "sizes of all multiprocessors together; wider: more fits\n"
        "* reckoned from bytes a clock; the others are the vendor's",
        fontsize=9,
    )
    description = "GPU memory, from near the arithmetic to far. " + " ".join(
        f"{name}: "
        + ", ".join(f"{level.name} {size_in_words(level.bytes)} {bandwidth_in_words(level)}" for level in each)
        + "."
        for name, each in told.items()
    )
    table = TextTable(
        "Sizes and bandwidths of the whole GPU (* reckoned from bytes a clock)",
        ["", *(head for name in told for head in (name, ""))],
        [[row, *(text for each in told.values() for text in _cells(each, row))] for row in rows],
    )
    return Picture(figure, description, table)


def _cells(each: list, row: str) -> tuple[str, str]:
    level = next((level for level in each if level.name == row), None)
    return (size_in_words(level.bytes), bandwidth_in_words(level)) if level else ("", "")


def size_in_words(size: int) -> str:
    """ "27 MiB", "180 GiB"."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size / unit:,.0f} {name}"
    return f"{size} B"


def bandwidth_in_words(level) -> str:
    """ "3.35 TB/s", with an asterisk if reckoned, or "not stated"."""
    if level.bandwidth is None:
        return "not stated"
    return f"{level.bandwidth / 1e12:.3g} TB/s{'*' if level.reckoned else ''}"


def roofline_plot(
    gpus: str | GPU | Sequence[str | GPU], points: Mapping[str, Roofline | tuple[float, float]] | None = None
) -> Picture:
    """FLOP per second that a kernel can reach, over its FLOP per byte; both axes go in tenfolds.

    gpus: one or several, six at most; each has a slope, bound by memory, and a flat roof, bound by arithmetic. The open
    circle where they meet is its ridge. points: name -> what `decode_roofline` gives, drawn where its floor is, or a
    pair (FLOP per byte, FLOP per second), as measured; eight at most.
    """
    chosen = [find(gpu) for gpu in _several(gpus)]
    _check_count("GPUs", len(chosen), MOST_GPUS)
    if points is not None and not isinstance(points, Mapping):
        raise ValueError(f"points are {points!r}; expected a dictionary from names to points")
    placed = {name: _place(name, point) for name, point in (points or {}).items()}
    if len(placed) > MOST_POINTS:
        raise ValueError(f"{len(placed)} points; the picture holds {MOST_POINTS} at most")
    ridges = [ridge(gpu) for gpu in chosen]
    intensities = [*ridges, *(x for x, _ in placed.values())]
    left, right = min(0.5, min(intensities) / 2), 4 * max(intensities)

    figure, axes = figure_of(width=8.6, height=4.6)
    for (colour, style), gpu, at in zip(ROOFS, chosen, ridges, strict=False):
        xs = [left, at, right]
        ys = [min(x * gpu.memory_bandwidth, gpu.fp16_flops) / 1e12 for x in xs]
        label = (
            f"{gpu.name}: {gpu.memory_bandwidth / 1e12:.3g} TB/s, {gpu.fp16_flops / 1e12:,.0f} TFLOP/s, ridge {at:.0f}"
        )
        axes.plot(xs, ys, style, color=colour, linewidth=2, label=label)
        axes.plot([at], [ys[1]], "o", markersize=9, markerfacecolor="white", markeredgecolor=colour, markeredgewidth=2)
    for marker, (name, (x, y)) in zip(MARKERS, placed.items(), strict=False):
        label = f"{_as_is(name)}: {_number(x)} FLOP a byte, {_number(y / 1e12)} TFLOP/s"
        axes.plot(
            [x],
            [y / 1e12],
            marker,
            markersize=9,
            color=INK,
            markeredgecolor="white",
            label=label,
            linestyle="none",
            zorder=5,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 1000 else f"{value:,.0f}")
    axes.set_xlim(left, right)
    axes.margins(y=0.1)
    axes.grid(True, which="major", color="#D1D9E0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("FLOP per byte moved (arithmetic intensity)", color=INK)
    axes.set_ylabel("TFLOP/s that can be reached", color=INK)
    axes.tick_params(colors=INK, length=0, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2, frameon=False, fontsize=8.5)
    for text in legend.get_texts():
        text.set_color(INK)
    says = [f"{gpu.name} has its ridge at {at:.0f} FLOP per byte" for gpu, at in zip(chosen, ridges, strict=True)]
    says += [f"{name}: {_number(x)} FLOP per byte, {_number(y / 1e12)} TFLOP/s" for name, (x, y) in placed.items()]
    rows = [
        [f"{gpu.name}, ridge", f"{at:,.1f}", f"{gpu.fp16_flops / 1e12:,.1f}"]
        for gpu, at in zip(chosen, ridges, strict=True)
    ]
    rows += [[name, f"{x:,.1f}", _number(y / 1e12)] for name, (x, y) in placed.items()]
    table = TextTable("Roofline", ["", "FLOP per byte", "TFLOP/s"], rows)
    return Picture(figure, f"Roofline. {'; '.join(says)}.", table)


def _place(name: str, point) -> tuple[float, float]:
    """FLOP per byte, FLOP per second."""
    if isinstance(point, Roofline):
        return point.intensity, point.flops / point.seconds
    try:
        x, y = map(float, point)
    except (TypeError, ValueError):
        raise ValueError(f"the point {name!r} is {point!r}; expected a Roofline, or (FLOP per byte, FLOP/s)") from None
    if not (0 < x < inf and 0 < y < inf):
        raise ValueError(f"the point {name!r} is at {x:g} FLOP per byte and {y:g} FLOP/s; both must be above 0, finite")
    return x, y


def waves_plot(num_programs: int | Mapping[str, int], num_sms: int, blocks_per_sm: int = 1, title: str = "") -> Picture:
    """Which multiprocessors have work: a column each, and a row for each program it can hold at the same time.

    num_programs: how many a launch has, or name -> how many, to compare. All programs take equally long, so they run in
    waves of num_sms * blocks_per_sm. They are spread over the multiprocessors before any gets a second one.
    """
    launches = dict(num_programs) if isinstance(num_programs, Mapping) else {"": num_programs}
    _check_count("launches", len(launches), MOST_GPUS)
    for name, value in (*launches.items(), ("num_sms", num_sms), ("blocks_per_sm", blocks_per_sm)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name or 'num_programs'} is {value!r}; expected a whole number of at least 1")
    told = {name: Waves(programs, num_sms, blocks_per_sm) for name, programs in launches.items()}
    heights = [min(each.count, MOST_WAVES) * blocks_per_sm for each in told.values()]
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(9, 0.7 + sum(0.62 + 0.13 * high for high in heights)), dpi=110, facecolor="white", layout="constrained"
    )
    panels = figure.subplots(len(told), squeeze=False, height_ratios=[1 + high for high in heights])[:, 0]
    for axes, (name, each) in zip(panels, told.items(), strict=True):
        _waves(axes, each, name)
    panels[-1].set_xlabel(f"multiprocessors 1 to {num_sms}", color=INK)
    if title:
        figure.suptitle(_as_is(title), fontsize=11, color=INK)
    start = f"{title}. " if title else ""
    says = start + " ".join(f"{name + ': ' if name else ''}{each.in_words()}." for name, each in told.items())
    rows = [
        [name or "launch", each.programs, each.count, each.last, f"{100 * each.share:.0f} %"]
        for name, each in told.items()
    ]
    heads = ["", "programs", "waves", "in the last", "at work"]
    return Picture(figure, says, TextTable(f"{num_sms} SMs, {blocks_per_sm} at a time on each", heads, rows))


class Waves:
    """How `programs` of equal length run on a GPU."""

    def __init__(self, programs: int, num_sms: int, blocks_per_sm: int):
        self.programs, self.num_sms, self.blocks_per_sm = programs, num_sms, blocks_per_sm
        self.slots = num_sms * blocks_per_sm
        self.count = ceil(programs / self.slots)
        self.last = programs - (self.count - 1) * self.slots
        self.share = programs / (self.count * self.slots)
        """Of the slots of all waves, those that have a program."""

    def rows(self) -> list[int]:
        """How many multiprocessors are at work: for each wave, and in it for each slot of a multiprocessor."""
        waves = [self.slots] * (self.count - 1) + [self.last]
        return [
            max(0, min(self.num_sms, wave - slot * self.num_sms))
            for wave in waves[:MOST_WAVES]
            for slot in range(self.blocks_per_sm)
        ]

    def in_short(self) -> str:
        waves = "1 wave" if self.count == 1 else f"{self.count:,} waves"
        programs = "1 program" if self.programs == 1 else f"{self.programs:,} programs"
        return f"{programs} for {self.slots:,} slots, {waves}, {100 * self.share:.0f} % at work"

    def in_words(self) -> str:
        idle = max(0, self.num_sms - self.last)
        last = f"; the last wave has {self.last:,}" if self.count > 1 else ""
        nothing = f"; {idle} of {self.num_sms} SMs have nothing to do" + (" in it" if self.count > 1 else "")
        return self.in_short() + last + (nothing if idle else "")


def _waves(axes, each: Waves, name: str) -> None:
    busy = each.rows()
    for row, count in enumerate(busy):
        y = row + 0.25 * (row // each.blocks_per_sm)  # a gap between waves
        axes.barh(y, each.num_sms, height=0.9, color="#EDF0F3", edgecolor="#B6BEC7", linewidth=0.5)
        axes.barh(y, count, height=0.9, color="#0072B2", edgecolor=INK, linewidth=0.5)
        axes.vlines(
            range(1, each.num_sms), y - 0.45, y + 0.45, color="white", linewidth=0.8 if each.num_sms < 200 else 0.4
        )
    axes.set_xlim(0, each.num_sms)
    axes.set_ylim(len(busy) + 0.25 * (len(busy) // each.blocks_per_sm) - 0.6, -0.6)
    axes.set_facecolor("white")
    axes.set_xticks([])
    waves = min(each.count, MOST_WAVES)
    middle = (each.blocks_per_sm - 1) / 2
    ticks = [wave * (each.blocks_per_sm + 0.25) + middle for wave in range(waves)]
    axes.set_yticks(
        ticks, [f"wave {wave + 1}" for wave in range(waves)] if waves < 5 else ["1", *[""] * (waves - 2), f"{waves}"]
    )
    axes.tick_params(colors=INK, length=0)
    more = f" (the first {MOST_WAVES} waves are drawn)" if each.count > MOST_WAVES else ""
    axes.set_title(_as_is(f"{name + ': ' if name else ''}{each.in_short()}{more}"), loc="left", fontsize=9.5, color=INK)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)


def _number(value: float) -> str:
    """Three figures, and no exponents: "0.0123", "62.9", "1,639"."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _several(gpus) -> list:
    return list(gpus) if isinstance(gpus, Iterable) and not isinstance(gpus, str) else [gpus]


def _as_is(text: str) -> str:
    """For matplotlib, to which a text between two dollar signs is a formula, and maybe a wrong one."""
    return text.replace("$", r"\$")


def _check_count(what: str, count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise ValueError(f"{count} {what}; the picture holds 1 to {most}")
