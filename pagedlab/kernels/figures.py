"""What the kernels of this package compile to: `pagedlab kernels` prints it as a table.

The shapes are those of Llama-3.1-8B's attention (32 query heads, 8 kv heads, a head_dim of 128; float16, blocks of 16)
where the name of a case says nothing else. No GPU is needed, so no time is in it.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence

import torch

from pagedlab.errors import PagedLabError
from pagedlab.gpu.compiled import CompiledKernel, CompileError, compile_many
from pagedlab.gpu.targets import TARGETS, find
from pagedlab.kernels import copy, decode, merge, prefill, write

NUM_SEQS, NUM_KV_HEADS, NUM_BLOCKS, BLOCK_SIZE = 4, 8, 16, 16
Description = tuple[object, dict, dict]  # a kernel, its arguments, its options


@dataclasses.dataclass(frozen=True)
class Figures:
    """One row: what became of a case on a target. error: why it is not to be had there, else ""."""

    case: str
    target: str
    num_warps: int = 0
    num_stages: int = 0
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    blocks_per_sm: int = 0
    limiter: str = ""
    wide: int = 0
    """Loads and asynchronous copies of 16 bytes a lane."""
    narrow: int = 0
    wide_stores: int = 0
    narrow_stores: int = 0
    asynchronous: int = 0
    tensor_cores: str = ""
    error: str = ""


def caches(head_dim: int = 128, dtype=torch.float16, block_size: int = BLOCK_SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (NUM_BLOCKS, NUM_KV_HEADS, block_size, head_dim)
    return torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)


def _tables() -> tuple[torch.Tensor, torch.Tensor]:
    """Block tables, and lengths that need several splits."""
    return torch.zeros(NUM_SEQS, 64, dtype=torch.int32), torch.full((NUM_SEQS,), 1024, dtype=torch.int32)


def decode_case(head_dim: int = 128, group_size: int = 4, dtype=torch.float16, block_size: int = BLOCK_SIZE, **choices):
    """Decode with 8 splits, unless `num_splits` says otherwise. choices: as in `decode.decode_launch`."""
    q = torch.empty(NUM_SEQS, NUM_KV_HEADS * group_size, head_dim, dtype=dtype)
    choices = {"num_splits": 8} | choices
    _, arguments, options = decode.decode_launch(q, *caches(head_dim, dtype, block_size), *_tables(), **choices)
    return decode.paged_decode_kernel, arguments | {"UPCAST": False}, options


def prefill_case(head_dim: int = 128, group_size: int = 4, dtype=torch.float16, **choices) -> Description:
    """Prefill of 64 tokens for each sequence. choices: as in `prefill.prefill_launch`."""
    q = torch.empty(NUM_SEQS * 64, NUM_KV_HEADS * group_size, head_dim, dtype=dtype)
    starts = torch.arange(NUM_SEQS + 1, dtype=torch.int32) * 64
    _, arguments, options = prefill.prefill_launch(q, *caches(head_dim, dtype), *_tables(), starts, **choices)
    return prefill.paged_prefill_kernel, arguments | {"UPCAST": False}, options


def write_case(head_dim: int = 128, dtype=torch.float16) -> Description:
    keys = torch.empty(NUM_SEQS, NUM_KV_HEADS, head_dim, dtype=dtype)
    slots = torch.zeros(NUM_SEQS, dtype=torch.int64)
    _, arguments, options = write.write_launch(keys, keys.clone(), *caches(head_dim, dtype), slots)
    return write.kv_write_kernel, arguments, options


def copy_case(head_dim: int = 128, dtype=torch.float16) -> Description:
    pairs = torch.zeros(NUM_SEQS, 2, dtype=torch.int64)
    _, arguments, options = copy.copy_launch(*caches(head_dim, dtype), pairs)
    return copy.copy_blocks_kernel, arguments, options


def merge_case(num_splits: int = 8, head_dim: int = 128) -> Description:
    parts = torch.empty(NUM_SEQS, 4 * NUM_KV_HEADS, num_splits, head_dim)
    _, arguments, options = merge.merge_launch(parts, parts[..., 0].contiguous(), torch.float16)
    return merge.merge_splits_kernel, arguments, options


CASES: dict[str, Callable[[], Description]] = {
    "decode": lambda: decode_case(),
    "decode, one split": lambda: decode_case(num_splits=1),
    "decode, tile 16": lambda: decode_case(tile=16),
    "decode, tile 32": lambda: decode_case(tile=32),
    "decode, tile 32, 2 stages": lambda: decode_case(tile=32, num_stages=2),
    "decode, 5 stages": lambda: decode_case(num_stages=5),
    "decode, group 8": lambda: decode_case(group_size=8),
    "decode, head_dim 64": lambda: decode_case(head_dim=64),
    "decode, head_dim 96": lambda: decode_case(head_dim=96),
    "decode, head_dim 256": lambda: decode_case(head_dim=256),
    "decode, float32": lambda: decode_case(dtype=torch.float32),
    "prefill, tile 64": lambda: prefill_case(tile=64),
    "prefill, tile 32": lambda: prefill_case(tile=32),
    "write": lambda: write_case(),
    "copy": lambda: copy_case(),
    "merge, 8 splits": lambda: merge_case(),
}


COMPILED = tuple(name for name in TARGETS if name != "sm_88")
"""The assembler that comes with Triton 3.7.1 does not know sm_88."""


def figures(
    cases: Iterable[str] = tuple(CASES),
    targets: Iterable[str] = COMPILED,
    done: Callable[[int, int], None] = lambda ready, total: None,
) -> list[Figures]:
    """A row for each case on each target, in this order. done: called with how many are ready, and of how many."""
    pairs = [(case, find(target).name) for case in cases for target in targets]
    described = {case: CASES[case]() for case, _ in pairs}
    jobs = []
    for case, target in pairs:
        kernel, arguments, options = described[case]
        jobs.append((kernel, arguments, target, options))
    ready = iter(range(1, len(jobs) + 1))
    made = compile_many(jobs, keep_errors=True, done=lambda *_: done(next(ready), len(jobs)))
    return [row(case, target, result) for (case, target), result in zip(pairs, made, strict=True)]


def row(case: str, target: str, made: CompiledKernel | CompileError) -> Figures:
    if isinstance(made, CompileError):
        return Figures(case, target, error=str(made))
    found = made.instructions
    return Figures(
        case,
        target,
        num_warps=made.num_warps,
        num_stages=made.num_stages,
        registers=made.registers,
        spill_bytes=made.spill_bytes,
        shared_bytes=made.shared_bytes,
        blocks_per_sm=made.occupancy.blocks_per_sm,
        limiter=made.occupancy.limiter,
        wide=found.loads_16b + found.async_copies_16b,
        narrow=found.other_loads + found.other_async_copies,
        wide_stores=found.stores_16b,
        narrow_stores=found.other_stores,
        asynchronous=found.async_copies_16b + found.other_async_copies,
        tensor_cores=", ".join(f"{number} {kind}" for kind, number in found.tensor_cores.items()),
    )


HEAD = (
    ("registers", "registers"),
    ("spill B", "spill_bytes"),
    ("shared B", "shared_bytes"),
    ("blocks/SM", "blocks_per_sm"),
    ("limited by", "limiter"),
    ("16 B loads", "wide"),
    ("narrow", "narrow"),
    ("async", "asynchronous"),
    ("stores", "wide_stores"),
    ("narrow", "narrow_stores"),
    ("tensor cores", "tensor_cores"),
)


def table(rows: Sequence[Figures]) -> str:
    """As text, one block of lines for each case."""
    lines: list[tuple[str, ...]] = [("", *(title for title, _ in HEAD))]
    notes = []
    for case in dict.fromkeys(one.case for one in rows):
        lines.append((case,))
        for one in (one for one in rows if one.case == case):
            if one.error:
                notes.append(f"{one.case}, {one.target}: {one.error}")
                lines.append((f"  {one.target}", f"- [{len(notes)}]"))
            else:
                lines.append((f"  {one.target}", *(_cell(getattr(one, name)) for _, name in HEAD)))
    full = [line for line in lines if len(line) > 2]
    widths = [max(len(line[column]) for line in full) for column in range(1, len(HEAD) + 1)]
    first = max(len(line[0]) for line in lines if len(line) > 1)
    texts = []
    for line in lines:
        cells = [
            cell.ljust(width) if HEAD[column][1] in ("limiter", "tensor_cores") else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line[1:], widths, strict=False))
        ]
        texts.append("  ".join([line[0].ljust(first), *cells]).rstrip())
    return "\n".join([*texts, *(f"[{number}] {note}" for number, note in enumerate(notes, 1))])


def _cell(value) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def choose(kernels: Sequence[str] | None) -> list[str]:
    """The cases that begin with one of these words; all if none are given. PagedLabError for a word that fits none."""
    for word in kernels or ():
        if not any(case.startswith(word) for case in CASES):
            names = ", ".join(dict.fromkeys(case.split(",")[0] for case in CASES))
            raise PagedLabError(f"No kernel is called {word!r}. There are {names}.")
    return [case for case in CASES if not kernels or any(case.startswith(word) for word in kernels)]


def main(kernels: Sequence[str] | None, targets: Sequence[str] | None, as_json: bool) -> None:
    """The command: figures of these kernels on these targets (None: all), as a table or as JSON."""
    import json
    from importlib.metadata import version

    shown = sys.stderr.isatty()

    def progress(ready: int, total: int) -> None:
        if shown:
            print(f"\rcompiled {ready} of {total}", end="\n" if ready == total else "", file=sys.stderr, flush=True)

    found = figures(choose(kernels), targets or COMPILED, progress)
    if as_json:
        print(
            json.dumps({"triton": version("triton"), "figures": [dataclasses.asdict(one) for one in found]}, indent=1)
        )
    else:
        print(f"Triton {version('triton')}; counts are of instructions in the text, loops not unrolled")
        print(table(found))
