"""Pictures of simulated runs. Colour never stands alone: each part has its own hatching and the numbers are written in.

Every figure is drawn on opaque white with dark text, so it reads the same in a light and in a dark notebook. It also
says in words what it shows: as alternative text of the image, and as its `repr`.
"""

from collections.abc import Mapping, Sequence

from pagedlab.picture import INK, Picture, figure_of, legend_above, segment
from pagedlab.sim.memory import MemoryRun
from pagedlab.sim.memory_split import GB, MemorySplit
from pagedlab.sim.paper import PAPER_NAMES, paper_bar
from pagedlab.sim.serving import ServingRun
from pagedlab.sim.sharing import SharingRun

# label, colour (Okabe and Ito's palette), hatching
PARTS = {
    "token_states": ("token states", "#009E73", ""),
    "reserved": ("reserved", "#56B4E9", "//"),
    "internal": ("internal fragmentation", "#E69F00", "xx"),
    "external": ("external fragmentation and other", "#FFFFFF", ".."),
    "not_broken_down": ("waste, not broken down in the paper", "#CCCCCC", "--"),
}


def plot_memory_waste(runs: Sequence[MemoryRun]) -> Picture:
    """Where the slots of the KV cache go, in percent: for each run our bar, and the paper's under it if it has one."""
    runs = list(runs)
    if not runs:
        raise ValueError("there is nothing to draw: give at least one MemoryRun")
    bars = []  # label, percent of each part
    for run in runs:
        bars.append((f"{run.policy}, ours", {part: 100 * share for part, share in run.shares._asdict().items()}))
        if bar := paper_bar(run):
            parts = {part: value for part, value in bar._asdict().items() if value is not None}
            bars.append((f"{PAPER_NAMES[run.policy]}, paper", parts | {"not_broken_down": bar.not_broken_down}))

    figure, axes = figure_of(width=9, height=1.2 + 0.42 * len(bars))
    position, ticks, used = 0.0, [], set()
    for label, parts in bars:
        position += 1.0 if label.endswith("paper") else 1.4  # pairs stand together
        ticks.append(position)
        left = 0.0
        for part, percent in parts.items():
            if percent >= 0.5:
                _, colour, hatch = PARTS[part]
                segment(axes, position, left, percent, colour, hatch, f"{percent:.1f}" if percent >= 4 else "")
                used.add(part)
            left += percent
    axes.set_yticks(ticks, [label for label, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"% of the {runs[0].num_slots:,} slots of the KV cache")
    legend_above(axes, [PARTS[part] for part in PARTS if part in used])
    description = "Percent of the KV cache's slots. " + " ".join(
        f"{label}: " + ", ".join(f"{PARTS[part][0]} {percent:.1f}" for part, percent in parts.items()) + "."
        for label, parts in bars
    )
    return Picture(figure, description)


def plot_memory_split(split: MemorySplit) -> Picture:
    """One GPU's memory as one bar, in GB."""
    figure, axes = figure_of(width=9, height=1.7)
    looks = {"weights": ("#56B4E9", "//"), "KV cache": ("#009E73", ""), "other": ("#FFFFFF", "..")}
    shares = split.shares()
    left, legend = 0.0, []
    for (name, share), size in zip(shares.items(), (split.weights, split.kv_cache, split.other), strict=True):
        colour, hatch = looks[name]
        text = f"{size / GB:.1f} GB, {100 * share:.0f} %" if share >= 0.15 else f"{100 * share:.0f} %"
        segment(axes, 0, left, size / GB, colour, hatch, text if share >= 0.03 else "")
        legend.append((name, colour, hatch))
        left += size / GB
    axes.set_yticks([])
    axes.set_xlim(0, left)
    axes.set_xlabel("GB of GPU memory")
    legend_above(axes, legend)
    description = "GPU memory: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
    return Picture(figure, description)


def plot_sharing(runs: Sequence[SharingRun]) -> Picture:
    """Percent of the blocks that sharing saves: a bar for each run, and a black line where the paper's number is."""
    runs = list(runs)
    if not runs:
        raise ValueError("there is nothing to draw: give at least one SharingRun")
    figure, axes = figure_of(width=9, height=1.2 + 0.36 * len(runs))
    looks = {"parallel sampling": ("#56B4E9", "//"), "beam search": ("#E69F00", "xx")}
    position, ticks, says, kinds = 0.0, [], [], []
    for i, run in enumerate(runs):
        same = i > 0 and (run.workload, run.method) == (runs[i - 1].workload, runs[i - 1].method)
        position += 1.0 if same else 1.5  # those to be compared stand together
        ticks.append(position)
        colour, hatch = looks[run.method]
        segment(axes, position, 0, 100 * run.saved, colour, hatch, "")
        end = 100 * max(run.saved, run.paper or 0) + 1
        axes.text(end, position, f"{100 * run.saved:.1f}", va="center", fontsize=9, color=INK)
        kinds += [(run.method, colour, hatch)] if run.method not in [kind for kind, *_ in kinds] else []
        says.append(f"{run.workload}, {run.method}, n={run.n}: {100 * run.saved:.1f}")
        if run.paper is not None:
            axes.plot([100 * run.paper] * 2, [position - 0.5, position + 0.5], color=INK, linewidth=3)
            says[-1] += f" (paper {100 * run.paper:.1f})"
    axes.set_yticks(ticks, [f"{run.workload}, n = {run.n}" for run in runs])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_title("Memory that sharing saves")
    axes.set_xlabel("% of the blocks; black lines: the paper's numbers")
    legend_above(axes, kinds)
    return Picture(figure, "Percent of blocks saved by sharing. " + ". ".join(says) + ".")


def plot_watermark(curve: Mapping[float, ServingRun]) -> Picture:
    """Preemptions and throughput over the watermark, one above the other."""
    if not curve:
        raise ValueError("there is nothing to draw: the curve needs at least one watermark")
    from matplotlib.ticker import MaxNLocator

    percent = [100 * watermark for watermark in curve]
    panels = {
        "preemptions": ([run.num_preemptions for run in curve.values()], "#D55E00", "s"),
        "output tokens/s\n(not from 0)": ([run.throughput for run in curve.values()], "#0072B2", "o"),
    }
    figure, _ = figure_of(width=9, height=4.4)
    figure.clear()
    for axes, (label, (values, colour, marker)) in zip(figure.subplots(2, sharex=True), panels.items(), strict=True):
        axes.plot(percent, values, color=colour, marker=marker, linewidth=2)
        for x, y in zip(percent, values, strict=True):
            axes.annotate(f"{y:,.0f}", (x, y), (0, 7), textcoords="offset points", ha="center", fontsize=9, color=INK)
        axes.set_ylabel(label, color=INK)
        axes.margins(y=0.25)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.tick_params(colors=INK, length=0)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xticks(percent, [f"{each:g} %" for each in percent])
    axes.set_xlabel("watermark: part of the pool kept free when a new request comes in", color=INK)
    description = "Watermark: " + "; ".join(
        f"{100 * watermark:g} %: {run.num_preemptions:,} preemptions, {run.throughput:,.0f} output tokens/s"
        for watermark, run in curve.items()
    )
    return Picture(figure, description + ".")
