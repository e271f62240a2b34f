"""A trace as the tile viewer plays it: for each program its steps, and what each access of a step touched.

The interpreter saw numbers being read and written at offsets. What a learner wants to see is blocks and slots, so the
offsets into the two caches are taken apart again, by the caches' own strides.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod, sqrt

import numpy as np

from pagedlab.cache.recorder import drawable
from pagedlab.gpu.trace import Access, ProgramTrace, TensorFacts, Trace
from pagedlab.widgets.look import plural, spoken_list
from pagedlab.widgets.tiles_layout import PROGRAMS_HIGH, PROGRAMS_WIDE, lay_out_programs

MOST_ROWS = 8  # of running_max and running_sum, unless more are asked for
MOST_RUNS = 6  # runs of slots, or of elements, that a line of words names
MOST_BLOCKS = 1000  # that are drawn; of a larger pool those that somebody holds or touches


@dataclass(frozen=True)
class Strided:
    """The shape and the strides of a tensor that a kernel was given, counted in numbers."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, facts: TensorFacts) -> "Strided":
        return cls(tuple(facts.shape), tuple(facts.strides))

    def indices(self, offsets: np.ndarray) -> list[np.ndarray]:
        """For each dimension the index of the number at each offset; the outermost may come out too large or below 0.

        The dimension with the largest stride is divided out first. That is right for every layout in which a step in
        one dimension jumps over all of the smaller ones: permuted, padded, interleaved with other tensors.
        """
        found: list[np.ndarray] = [np.zeros_like(offsets)] * len(self.shape)
        rest = offsets
        for dim in sorted(range(len(self.shape)), key=lambda d: (-self.strides[d], -self.shape[d])):
            if self.shape[dim] == 1 or self.strides[dim] == 0:
                continue
            found[dim], rest = np.divmod(rest, self.strides[dim])
        return found


@dataclass(frozen=True)
class Pool:
    """The paged cache that the kernel was given: where its numbers lie, and who holds which block."""

    key: Strided | None  # [num_blocks, num_kv_heads, block_size, head_dim]
    value: Strided | None
    tables: tuple[tuple[int, ...], ...] = ()  # the blocks of each sequence, in order
    seq_lens: tuple[int, ...] = ()

    @property
    def layout(self) -> Strided | None:
        return self.key or self.value

    @property
    def num_blocks(self) -> int:
        return self.layout.shape[0] if self.layout else 0

    @property
    def block_size(self) -> int:
        return self.layout.shape[2] if self.layout else 0

    def owners(self) -> dict[int, list[int]]:
        """Block -> the sequences that hold it."""
        held: dict[int, list[int]] = {}
        for sequence, blocks in enumerate(self.tables):
            for block in blocks:
                if sequence not in held.setdefault(block, []):
                    held[block].append(sequence)
        return held

    def filled(self, sequence: int, logical: int) -> int:
        """How many slots of a logical block hold a token."""
        return max(0, min(self.block_size, self.seq_lens[sequence] - logical * self.block_size))


@dataclass(frozen=True)
class Names:
    """What the kernel calls the tensors that mean something to the picture."""

    key: str = "key_cache"
    value: str = "value_cache"
    tables: str = "block_tables"


def read_pool(trace: Trace, names: Names, block_tables=None, seq_lens=None) -> Pool:
    """The caches among the kernel's arguments, and whose blocks they hold."""
    caches = {name: trace.tensors[name] for name in (names.key, names.value) if name in trace.tensors}
    for name, facts in caches.items():
        if len(facts.shape) != 4:
            raise ValueError(
                f"{name} has shape {list(facts.shape)}; expected [num_blocks, num_kv_heads, block_size, head_dim]"
            )
    key, value = (Strided.of(caches[name]) if name in caches else None for name in (names.key, names.value))
    if (block_tables is None) != (seq_lens is None):
        raise ValueError("give block_tables and seq_lens together: seq_lens says how much of a last block is filled")
    if block_tables is None:
        return Pool(key, value)
    if not caches:
        raise ValueError(
            f"the kernel has no tensor {names.key} or {names.value} to hold the blocks of block_tables; "
            "say what it calls them: key_argument=..., value_argument=..."
        )
    return Pool(key, value, *tables_of(block_tables, seq_lens, (key or value).shape))


def story(trace: Trace, pool: Pool, names: Names, axes: Sequence[str], rows: int | None) -> dict:
    """All that is drawn, as plain dicts and lists.

    `programs`: {"pid": [x, y, z], "sequence": its number or -1, "head": the KV head or -1, "steps": [...]}, a step
    being {"label", "says", "accesses": [...], "values": [[name, before, after], ...]} and an access {"line", "kind",
    "tensor", "on", "lanes", "says", "part": "k", "v" or "", "runs": [[block, first slot, last slot], ...]}.
    `grid`: its size; `shape` and `cells`: how it is drawn, and where in that each traced program stands (a grid too
    large to be drawn is a list of those). `source`: line number -> text, of the lines that occur. `pool`: see `_pool`.
    """
    tensors = {name: Strided.of(facts) for name, facts in trace.tensors.items()}
    programs = [_program(each, pool, names, tensors, rows) for each in trace.programs]
    lines = {access["line"] for program in programs for step in program["steps"] for access in step["accesses"]}
    return {
        **_grid(trace, programs),
        "axes": [drawable(axis) for axis in axes],
        "programs": programs,
        "source": {str(line): drawable(source_line(trace, line)) for line in sorted(lines)},
        "pool": _pool(pool, programs),
    }


def _grid(trace: Trace, programs: Sequence[dict]) -> dict:
    grid = [int(size) for size in (*trace.grid, 1, 1)[:3]]
    layout = lay_out_programs(*grid)
    if layout.width <= PROGRAMS_WIDE and layout.height <= PROGRAMS_HIGH:
        return {"grid": grid, "shape": grid, "listed": False, "cells": [program["pid"] for program in programs]}
    side = max(8, ceil(sqrt(len(programs))))
    cells = [[at % side, at // side, 0] for at in range(len(programs))]
    return {"grid": grid, "shape": [side, ceil(len(programs) / side), 1], "listed": True, "cells": cells}


def source_line(trace: Trace, line: int) -> str:
    return trace.source[line - 1].strip() if 0 < line <= len(trace.source) else ""


def _pool(pool: Pool, programs: Iterable[dict]) -> dict:
    """{"blocks": the blocks drawn, "size": slots of one, "left_out": how many are not, "parts": ["k", "v"],
    "owners": for each block drawn the numbers of its sequences, "filled": and how many of its slots hold tokens,
    "tables": the blocks of each sequence, "lens": the tokens of each}"""
    touched = {
        run[0] for each in programs for step in each["steps"] for access in step["accesses"] for run in access["runs"]
    }
    owners = pool.owners()
    blocks = list(range(pool.num_blocks))
    for fewer in (touched | set(owners), touched):
        if len(blocks) > MOST_BLOCKS:
            blocks = sorted(block for block in fewer if 0 <= block < pool.num_blocks)
    blocks = blocks[:MOST_BLOCKS]
    filled = {
        block: max(
            pool.filled(sequence, logical)
            for sequence in owners[block]
            for logical, held in enumerate(pool.tables[sequence])
            if held == block
        )
        for block in owners
    }
    parts = [part for part, given in (("k", pool.key), ("v", pool.value)) if given]
    return {
        "blocks": blocks,
        "size": pool.block_size,
        "left_out": pool.num_blocks - len(blocks),
        "parts": parts,
        "owners": [owners.get(block, []) for block in blocks],
        "filled": [filled.get(block, 0) for block in blocks],
        "tables": [list(blocks) for blocks in pool.tables],
        "most": MOST_BLOCKS,
        "lens": list(pool.seq_lens),
    }


def _program(program: ProgramTrace, pool: Pool, names: Names, tensors: Mapping[str, Strided], rows: int | None) -> dict:
    sequence = _sequence(program, pool, names, tensors)
    accesses = [(event.step, _access(event, pool, names, tensors)) for event in program.events]
    last = program.num_steps
    steps = sorted({step for step, _ in accesses} | set(range(1, last + 1)))
    heads = [access.pop("head") for _, access in accesses]
    head = next((head for head in heads if head >= 0), -1)
    told = []
    for step in steps or [0]:
        here = [access for at, access in accesses if at == step]
        label = "before the loop" if step == 0 else f"iteration {step}" if step <= last else "after the loop"
        told.append(
            {
                "label": label,
                "says": _step_in_words(here, pool, sequence),
                "accesses": here,
                "values": _values(program.variables, step, rows),
            }
        )
    return {"pid": [int(each) for each in program.pid], "sequence": sequence, "head": head, "steps": told}


def _sequence(program: ProgramTrace, pool: Pool, names: Names, tensors: Mapping[str, Strided]) -> int:
    """Whose table the program reads: the row of its first load from `block_tables`; -1 if there is none."""
    if not pool.tables:
        return -1
    for event in program.events:
        if event.tensor == names.tables and len(event.elements) and names.tables in tensors:
            row = int(tensors[names.tables].indices(event.elements[:1])[0][0])
            return row if 0 <= row < len(pool.tables) else -1
    return -1


def _access(event: Access, pool: Pool, names: Names, tensors: Mapping[str, Strided]) -> dict:
    part = {names.key: "k", names.value: "v"}.get(event.tensor, "")
    layout = {"k": pool.key, "v": pool.value}.get(part)
    elements = np.asarray(event.elements, dtype=np.int64).ravel()
    told = {
        "line": int(event.line),
        "kind": event.kind,
        "tensor": drawable(event.tensor),
        "on": len(elements),
        "lanes": int(event.lanes),
        "part": part if layout else "",
        "runs": [],
        "head": -1,
    }
    if not len(elements):
        told["says"] = "nothing: every lane is off"
    elif layout:
        block, head, slot, dim = layout.indices(elements)
        told["runs"] = slot_runs(block, slot)
        told["head"] = int(head[0])
        told["says"] = _cache_words(told["runs"], np.unique(head), np.unique(dim), layout)
    else:
        told["says"] = _element_words(elements, tensors.get(event.tensor))
    return told


def slot_runs(block: np.ndarray, slot: np.ndarray) -> list[list[int]]:
    """Neighbouring slots as one, in the order in which they are touched first: [[block, first, last], ...]."""
    pairs = np.stack([block, slot], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    runs: list[list[int]] = []
    for at in sorted(first):
        here, where = int(block[at]), int(slot[at])
        if runs and runs[-1][0] == here and runs[-1][2] + 1 == where:
            runs[-1][2] = where
        else:
            runs.append([here, where, where])
    return runs


def _cache_words(runs, heads: np.ndarray, dims: np.ndarray, layout: Strided) -> str:
    said = [f"block {block}, {_from_to('slot', first, last)}" for block, first, last in runs[:MOST_RUNS]]
    more = f" and {len(runs) - MOST_RUNS:,} more" if len(runs) > MOST_RUNS else ""
    outside = [block for block, _, _ in runs if not 0 <= block < layout.shape[0]]
    wrong = f"; block {outside[0]} is not in the pool" if outside else ""
    head = f"KV head {heads[0]}" if len(heads) == 1 else f"KV heads {heads[0]} to {heads[-1]}"
    all_of = "" if len(dims) == layout.shape[3] else f", {plural(len(dims), 'number')} of {layout.shape[3]}"
    return f"{'; '.join(said)}{more} ({head}{all_of}){wrong}"


def _from_to(what: str, first: int, last: int) -> str:
    return f"{what} {first:,}" if first == last else f"{what}s {first:,} to {last:,}"


def _element_words(elements: np.ndarray, layout: Strided | None) -> str:
    """ "[1, 0] to [1, 3]" where the shape is known, else "elements 4 to 7"."""
    if layout is not None and layout.shape and 0 <= elements.min() and elements.max() < _reach(layout):
        corner = [
            [int(index[at]) for index in layout.indices(elements)] for at in (elements.argmin(), elements.argmax())
        ]
        if prod(high - low + 1 for low, high in zip(*corner, strict=True)) == len(np.unique(elements)):
            low, high = corner
            parts = [f"{a}" if a == b else f"{a} to {b}" for a, b in zip(low, high, strict=True)]
            return f"[{', '.join(parts)}]"
    distinct = np.unique(elements)
    first, last = int(distinct[0]), int(distinct[-1])
    if last - first + 1 == len(distinct):
        return _from_to("element", first, last)
    return f"{plural(len(distinct), 'element')} between {first:,} and {last:,}"


def _reach(layout: Strided) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(layout.shape, layout.strides, strict=True))


def _step_in_words(accesses: Sequence[dict], pool: Pool, sequence: int) -> str:
    """What the step does to the pool: "reads K and V of positions 16 to 31, in blocks 7 and 3"."""
    said = []
    for kind, verb in (("load", "reads"), ("store", "writes")):
        parts = {
            part: [run for a in accesses if a["kind"] == kind and a["part"] == part for run in a["runs"]]
            for part in "kv"
        }
        for which, runs in _same_together(parts):
            said.append(f"{verb} {which} of {_place(runs, pool, sequence)}")
    if said:
        return "; ".join(said)
    kinds = {kind: [a["tensor"] for a in accesses if a["kind"] == kind and a["on"]] for kind in ("load", "store")}
    does = [
        f"{verb} {spoken_list(list(dict.fromkeys(kinds[kind])))}"
        for kind, verb in (("load", "reads"), ("store", "writes"))
        if kinds[kind]
    ]
    return "; ".join(does) or "touches nothing"


def _same_together(parts: Mapping[str, list]) -> list[tuple[str, list]]:
    if parts["k"] and parts["k"] == parts["v"]:
        return [("K and V", parts["k"])]
    return [(name, parts[part]) for part, name in (("k", "K"), ("v", "V")) if parts[part]]


def _place(runs: Sequence[Sequence[int]], pool: Pool, sequence: int) -> str:
    blocks = list(dict.fromkeys(run[0] for run in runs))
    word = "block" if len(blocks) == 1 else "blocks"
    where = f"{word} {spoken_list([str(block) for block in blocks])}"
    slots = sum(last - first + 1 for _, first, last in runs)
    found = positions(runs, pool, sequence)
    if len(found) == slots and found == list(range(found[0], found[0] + slots)):
        return f"{_from_to('position', found[0], found[-1])}, in {where}"
    if len(runs) == 1:
        return f"{_from_to('slot', runs[0][1], runs[0][2])} of {where}"
    return f"{plural(slots, 'slot')} in {where}"


def positions(runs: Sequence[Sequence[int]], pool: Pool, sequence: int) -> list[int]:
    """The sequence's positions that lie in these slots, in the order of the runs."""
    if sequence < 0:
        return []
    logical = {block: at for at, block in reversed(list(enumerate(pool.tables[sequence])))}
    return [
        logical[block] * pool.block_size + slot
        for block, first, last in runs
        if block in logical
        for slot in range(first, last + 1)
    ]


def _values(variables: Sequence[Mapping], step: int, rows: int | None) -> list[list]:
    """The watched variables at the end of the step: [name, what they were, what they are], each as texts."""
    if not 1 <= step <= len(variables):
        return []
    now, before = variables[step - 1], variables[step - 2] if step > 1 else {}
    most = MOST_ROWS if rows is None else rows
    return [
        [drawable(name), number_texts(before.get(name), most), number_texts(value, most)] for name, value in now.items()
    ]


def number_texts(value, most: int) -> list[str]:
    if value is None:
        return []
    return [f"{number:.4g}" for number in np.asarray(value, dtype=np.float64).ravel()[:most]]


def program_name(program: dict, axes: Sequence[str], grid: Sequence[int]) -> str:
    """ "program (1, 0): sequence 1, KV head 0"; axes of size 1 at the end are left out."""
    used = max([i + 1 for i in range(3) if grid[i] > 1] or [1])
    pid = program["pid"][:used]
    means = ", ".join(f"{axis} {at}" for axis, at in zip(axes, pid, strict=False) if len(axis) > 1)
    return f"program ({', '.join(map(str, pid))})" + (f": {means}" if means else "")


def tables_of(
    block_tables, seq_lens, cache_shape: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Padded tables and lengths, as tensors, arrays or lists -> the blocks that each sequence really holds."""
    num_blocks, _, block_size, _ = cache_shape
    lens = tuple(int(length) for length in _plain(seq_lens))
    rows = _plain(block_tables)
    if len(rows) != len(lens):
        raise ValueError(
            f"block_tables has {len(rows)} rows and seq_lens {len(lens)} lengths; expected one of each per sequence"
        )
    tables = []
    for row, length in zip(rows, lens, strict=True):
        if length < 0:
            raise ValueError(f"a sequence of {length:,} tokens: a length is 0 or more")
        needed = -(-length // block_size)
        if needed > len(row):
            raise ValueError(
                f"a sequence of {length:,} tokens needs {needed} blocks of {block_size}; its table has {len(row)}"
            )
        held = tuple(int(block) for block in row[:needed])
        if outside := [block for block in held if not 0 <= block < num_blocks]:
            raise ValueError(
                f"the table of a sequence of {length:,} tokens names block {outside[0]}; "
                f"the cache has blocks 0 to {num_blocks - 1:,}"
            )
        tables.append(held)
    return tuple(tables), lens


def _plain(values) -> list:
    return values.tolist() if hasattr(values, "tolist") else [list(v) if isinstance(v, Sequence) else v for v in values]
