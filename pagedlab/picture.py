"""Pictures made with matplotlib that can also say what they show, and what all of them are drawn with.

Colour never stands alone: each part has its own hatching or marker, and the numbers are written in. Every figure is
drawn on opaque white with dark text, so it reads the same in a light and in a dark notebook.
"""

from io import BytesIO

from pagedlab.errors import PagedLabError
from pagedlab.table import TextTable

INK = "#14161A"


class Picture:
    """A matplotlib `figure` and what it shows in words. A notebook shows it when it is a cell's last line.

    `table()`: the numbers of the figure as a text table, where it has one.
    """

    def __init__(self, figure, description: str, table: TextTable | None = None):
        self.figure = figure
        self.description = description
        self._table = table

    def table(self) -> TextTable:
        if self._table is None:
            raise PagedLabError(f"this picture has no table; in words: {self.description}")
        return self._table

    def __repr__(self) -> str:
        return self.description

    def png(self) -> bytes:
        """With a palette of 64 colours: a third of the size, and a notebook keeps every picture it shows."""
        from PIL import Image

        drawn, small = BytesIO(), BytesIO()
        self.figure.savefig(drawn, format="png", facecolor="white")
        Image.open(drawn).convert("RGB").quantize(64).save(small, format="png", optimize=True)
        return small.getvalue()

    def _repr_mimebundle_(self, **kwargs):
        bundle = {"image/png": self.png(), "text/plain": self.description}
        return bundle, {"image/png": {"alt": self.description}}


def figure_of(width: float, height: float):
    # Figure itself, not pyplot: nothing has to be closed afterwards, and a notebook does not show it twice.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, facecolor="white", layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("white")
    axes.tick_params(colors=INK, length=0)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    return figure, axes


def segment(axes, y: float, left: float, width: float, colour: str, hatch: str, text: str) -> None:
    axes.barh(y, width, left=left, height=0.86, color=colour, hatch=hatch, edgecolor=INK, linewidth=0.8)
    if text:  # on a white patch: hatching would make digits hard to read
        patch = {"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.15"}
        axes.text(left + width / 2, y, text, ha="center", va="center", fontsize=9, color=INK, bbox=patch)


def legend_above(axes, entries) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=colour, hatch=hatch, edgecolor=INK, label=label) for label, colour, hatch in entries]
    legend = axes.legend(
        handles=patches,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
        frameon=False,
        fontsize=9,
        handlelength=2.2,
    )
    for text in legend.get_texts():
        text.set_color(INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
