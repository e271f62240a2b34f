"""What the vLLM paper measured, and our runs beside it.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023
(https://arxiv.org/abs/2309.06180). OPT-13B on one A100 with 40 GB: 12 GB of KV cache, 15.7K slots.

Expect the same order and similar numbers, not the same digits. Their requests came from real logs, at a fixed rate;
ours are drawn from fitted distributions, and the queue is never empty. That shows most in the paged batch: theirs was
as large as the arrivals made it, ours is as large as the memory allows.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pagedlab.sim.memory import MemoryRun


class PaperBar(NamedTuple):
    """One bar of Figure 2, in percent of the KV cache. None: the paper gives no number for this part."""

    token_states: float
    reserved: float | None  # "Reservation"
    internal: float | None  # "Internal fragmentation"
    external: float | None  # "External fragmentation & others"

    @property
    def not_broken_down(self) -> float:
        """What the numbers leave of 100 %."""
        return max(0.0, 100 - sum(part for part in self if part is not None))


# Our name of a policy -> the paper's name.
PAPER_NAMES = {
    "Orca (Max)": "Orca (Max)",
    "Orca (Pow2)": "Orca (Pow2)",
    "Orca (Oracle)": "Orca (Oracle)",
    "Paged": "vLLM",
}

# Figure 2. For vLLM the figure has one number, the token states.
FIGURE_2 = {
    "Orca (Max)": PaperBar(20.4, 13.3, 57.3, 8.9),
    "Orca (Pow2)": PaperBar(26.8, 17.9, 13.6, 41.6),
    "Orca (Oracle)": PaperBar(38.2, 25.2, 0.0, 36.6),
    "Paged": PaperBar(96.3, None, None, None),
}

# Figure 13: batched requests on average, at 2 requests/s from ShareGPT (a) and at 30 requests/s from Alpaca (b).
FIGURE_13 = {
    "ShareGPT": {"Orca (Max)": 7.00, "Orca (Pow2)": 9.81, "Orca (Oracle)": 13.62, "Paged": 30.42},
    "Alpaca": {"Orca (Max)": 7.00, "Orca (Pow2)": 43.24, "Orca (Oracle)": 72.75, "Paged": 132.44},
}


class Row(NamedTuple):
    """One number of ours and the paper's. None: the paper does not give it."""

    policy: str
    quantity: str  # a field of `Shares`, in percent, or "batch size"
    ours: float
    paper: float | None


def paper_bar(run: MemoryRun) -> PaperBar | None:
    """The paper's bar for this run, if it has one: Figure 2 is about ShareGPT and these four systems."""
    return FIGURE_2.get(run.policy) if run.workload == "ShareGPT" else None


def compare(runs: Iterable[MemoryRun]) -> list[Row]:
    """Five rows for each run: the four shares of the KV cache in percent, and the mean batch size."""
    rows = []
    for run in runs:
        bar = paper_bar(run)
        for quantity, share in run.shares._asdict().items():
            rows.append(Row(run.policy, quantity, 100 * share, getattr(bar, quantity, None)))
        batch = FIGURE_13.get(run.workload, {}).get(run.policy)
        rows.append(Row(run.policy, "batch size", run.mean_batch_size, batch))
    return rows


def table(runs: Sequence[MemoryRun]) -> str:
    """The rows of `compare` as text, one line a policy. Shares in percent; "-" where the paper gives no number."""
    columns = ("token states", "reserved", "internal", "external", "batch size")
    width = max([len(run.policy) for run in runs], default=0)
    lines = [
        " " * width + "".join(f"  {column:^14}" for column in columns),
        " " * width + "  ours     paper" * len(columns),
    ]
    rows = compare(runs)
    for first in range(0, len(rows), len(columns)):
        line = f"{rows[first].policy:<{width}}"
        for row in rows[first : first + len(columns)]:
            digits = 2 if row.quantity == "batch size" else 1
            paper = "-" if row.paper is None else f"{row.paper:.{digits}f}"
            line += f"  {row.ours:<6.{digits}f}  {paper:>6}"
        lines.append(line)
    return "\n".join(line.rstrip() for line in lines)
