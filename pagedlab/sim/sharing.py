"""How much memory do block tables save when several sequences continue one prompt? Figure 15 of the vLLM paper.

A request is played token by token on a real allocator and real tables: the prompt is stored once, its table is forked,
and from then on each sequence writes its own tokens, copying a block it shares before the first write. After every step
we count twice: the blocks in use, and the entries of all tables, which is what would be in use without sharing.

    saved = 1 - blocks in use / table entries        both summed over all steps of all requests

Samples share the prompt and nothing else. Beams also share what they have written: in every step the best continuations
of all beams become the new ones, so one beam may go on as two and another end, and before long all of them descend
from one. Which beam goes on is drawn at random here, each new beam from any old one. (Random scores, of which the best
are kept, come to the same within two percent.) Real beams are less alike than that, so expect the order of the paper's
numbers and about their size, not the digits.

Source: Kwon et al., the vLLM paper, sections 4.4 and 6.3 and Figures 9 and 15 (arXiv:2309.06180).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import Allocator, BlockAllocator, whole_number
from pagedlab.cache.table import BlockTable
from pagedlab.sim.workload import Lengths, SimRequest

SAMPLING, BEAM = "parallel sampling", "beam search"

# Percent saved, by workload, method and number of sequences. Figure 15 is about Alpaca; of ShareGPT the text of section
# 6.3 gives the smallest and the largest number.
FIGURE_15 = {
    ("Alpaca", SAMPLING): {2: 6.09, 4: 8.53, 6: 9.79},
    ("Alpaca", BEAM): {2: 37.56, 4: 53.13, 6: 55.16},
    ("ShareGPT", SAMPLING): {2: 16.2, 6: 30.5},
    ("ShareGPT", BEAM): {2: 44.3, 6: 66.3},
}


@dataclass(frozen=True)
class SharingRun:
    """Blocks, summed over all steps of all requests."""

    workload: str
    method: str  # "parallel sampling" or "beam search"
    n: int  # sequences for each request
    blocks_in_use: int
    table_entries: int  # blocks that would be in use without sharing
    num_copies: int  # blocks copied before a write

    @property
    def saved(self) -> float:
        """The part of the blocks that sharing saves, from 0 to 1."""
        return 1 - self.blocks_in_use / self.table_entries

    @property
    def paper(self) -> float | None:
        """What the paper measured, from 0 to 1, if it gives this number."""
        percent = FIGURE_15.get((self.workload, self.method), {}).get(self.n)
        return None if percent is None else percent / 100


def sharing(
    method: str,
    lengths: Lengths,
    n: int,
    num_requests: int = 30,
    block_size: int = 16,
    seed: int = 0,
    table_class: Callable[[int], BlockTable] = BlockTable,
    allocator_class: Callable[[int], Allocator] = BlockAllocator,
) -> SharingRun:
    """Play `num_requests` requests with the lengths of `lengths`, each with `n` sequences.

    - method: "parallel sampling" or "beam search"
    - table_class, allocator_class: your own. A table needs `append_tokens`, `fork`, `copy_on_write`, `free`, `blocks`;
      an allocator is made from its number of blocks and must show `num_free`.
    """
    if method not in (SAMPLING, BEAM):
        raise ValueError(f"method is {method!r}; choose {SAMPLING!r} or {BEAM!r}")
    n = whole_number("n", n, at_least=1)
    num_requests = whole_number("num_requests", num_requests, at_least=1)
    # PCG64 by name: what `default_rng` stands for may change with numpy.
    rng = np.random.Generator(np.random.PCG64(seed))

    def parents() -> Sequence[int]:
        return range(n) if method == SAMPLING else rng.integers(0, n, n).tolist()

    totals = [0, 0, 0]
    for request in lengths.requests(num_requests, seed):
        # One more block for each sequence: copies are made before the original is given up.
        allocator = allocator_class(n * (blocks_needed(request.final_tokens, block_size) + 1))
        counts = _play(request, n, parents, table_class(block_size), allocator)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
    return SharingRun(lengths.name, method, n, *totals)


def _play(
    request: SimRequest, n: int, parents: Callable[[], Sequence[int]], table: BlockTable, allocator: Allocator
) -> tuple[int, int, int]:
    """One request from its prompt to its end. Returns its blocks in use, table entries and copies."""
    num_blocks = allocator.num_free
    in_use = entries = copies = 0
    table.append_tokens(request.prompt_tokens, allocator)
    tables = [table, *(table.fork(allocator) for _ in range(n - 1))]
    for _ in range(request.output_tokens):
        tables = succeed(tables, parents(), allocator)
        for each in tables:
            copies += len(each.copy_on_write(allocator))
            each.append_tokens(1, allocator)
        in_use += num_blocks - allocator.num_free
        entries += sum(len(each.blocks) for each in tables)
    for each in tables:
        each.free(allocator)
    if allocator.num_free != num_blocks:
        raise RuntimeError(f"{num_blocks - allocator.num_free} blocks were not given back by tables that were freed")
    return in_use, entries, copies


def succeed(tables: Sequence[BlockTable], parents: Sequence[int], allocator: Allocator) -> list[BlockTable]:
    """The tables of the next beams: number i goes on from `tables[parents[i]]`. Beams that nobody goes on from end.

    The first to go on from a beam takes its table, others fork it. Forks come first: a beam that ends may share blocks
    with one that goes on, and these must not become free in between.
    """
    taken, successors = set(), []
    for parent in parents:
        successors.append(tables[parent].fork(allocator) if parent in taken else tables[parent])
        taken.add(parent)
    for index, table in enumerate(tables):
        if index not in taken:
            table.free(allocator)
    return successors


def figure_15(workloads: Iterable[Lengths], sizes: Iterable[int] = (2, 4, 6), **options) -> list[SharingRun]:
    """Both methods with each number of sequences on each workload. Options are those of `sharing`."""
    sizes = list(sizes)
    return [
        sharing(method, lengths, n, **options) for lengths in workloads for method in (SAMPLING, BEAM) for n in sizes
    ]


def table(runs: Iterable[SharingRun]) -> str:
    """The runs as text, one line each: percent of the blocks saved, and the paper's number where it gives one."""
    lines = [f"{'':<28}{'n':>3}  {'saved':>7}  {'paper':>7}"]
    for run in runs:
        paper = "-" if run.paper is None else f"{100 * run.paper:.1f} %"
        lines.append(f"{run.workload + ', ' + run.method:<28}{run.n:>3}  {100 * run.saved:>5.1f} %  {paper:>7}")
    return "\n".join(lines)
