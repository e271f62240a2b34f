"""The usual ways to miscount blocks on a multiprocessor, and which of them an answer has fallen into.

One wrong number can come from several slips, so an answer is asked about a few more kernels, and the slip that explains
most of what it says is told.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pagedlab.gpu.occupancy import Occupancy, occupancy

DECIDES = "Blocks for each of the four first. Then the smallest of them, and its name."


class Slip(NamedTuple):
    limiter: str
    """Which of the four is miscounted."""
    blocks: Callable[[Occupancy], float]
    """What it is miscounted as."""
    says: Callable[[Occupancy], str]
    """The message, with the numbers."""
    hint: str

    def predicts(self, it: Occupancy) -> float:
        return min((it.limits | {self.limiter: self.blocks(it)}).values())


def diagnose(answer, it: Occupancy, got: int, probes: Sequence[tuple]) -> Slip | None:
    """The slip that makes `got` of a kernel, and explains best what the answer says of `probes`; None if none does."""
    others = [(occupancy(*probe), _ask(answer, *probe)) for probe in probes]

    def explained(slip: Slip) -> int:
        return sum(slip.predicts(one) == said for one, said in others)

    def contradicted(slip: Slip) -> bool:
        """Wherever it would show, the answer is right."""
        shows = [(one, said) for one, said in others if slip.predicts(one) != one.blocks_per_sm]
        return bool(shows) and all(said == one.blocks_per_sm for one, said in shows)

    fitting = [slip for slip in SLIPS if slip.predicts(it) == got and not contradicted(slip)]
    fitting.sort(key=lambda slip: slip.limiter != it.limiter)
    return max(fitting, key=explained, default=None)


def _ask(answer, registers: int, shared_bytes: int, num_warps: int, name: str):
    try:
        return answer(registers, shared_bytes, num_warps, occupancy(1, 0, 1, name).target)[0]
    except Exception:
        return None


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


# --- registers --------------------------------------------------------------------------------------------------------


def _raw(it: Occupancy) -> int:
    """Registers of a warp before they are rounded up."""
    return it.registers * it.target.warp_size


def _warp(it: Occupancy) -> int:
    """Registers that a warp is given."""
    return _up(_raw(it), it.target.register_unit)


def _in_file(it: Occupancy, a_warp: int | None = None) -> int:
    """Warps in one of the register files."""
    return it.target.registers_per_partition // max(1, _warp(it) if a_warp is None else a_warp)


def _in_files(it: Occupancy, a_warp: int | None = None) -> int:
    return _in_file(it, a_warp) * it.target.sub_partitions


def _rounded_down(it: Occupancy) -> int:
    return _raw(it) // it.target.register_unit * it.target.register_unit


def _sizes(it: Occupancy) -> str:
    return f"{it.registers} registers x {it.target.warp_size} threads = {_raw(it):,} -> {_warp(it):,}"


def _units(it: Occupancy) -> str:
    return f"A warp's registers are handed out in units of {it.target.register_unit}: {_sizes(it)}."


ROUND_UP = "Round up for each warp: target.register_unit. `-(-a // b)` divides and rounds up."
REGISTERS = [
    Slip("registers", lambda it: _in_files(it, _raw(it)) // it.num_warps, _units, ROUND_UP),
    Slip("registers", lambda it: it.target.registers_per_sm // (_raw(it) * it.num_warps), _units, ROUND_UP),
    Slip("registers", lambda it: _in_files(it, _rounded_down(it)) // it.num_warps, _units, ROUND_UP),
    Slip(
        "registers",
        lambda it: it.target.registers_per_sm // (_warp(it) * it.num_warps),
        lambda it: (
            f"A warp's registers lie in one of {it.target.sub_partitions} register files of "
            f"{it.target.registers_per_partition:,}: {_in_file(it)} warps of {_warp(it):,} fit into each, so "
            f"{_in_files(it)} in all, not {it.target.registers_per_sm // _warp(it)}."
        ),
        "First the warps of one sub-partition, rounded down; then times target.sub_partitions; then blocks.",
    ),
    Slip(
        "registers",
        lambda it: it.target.registers_per_sm // _up(_raw(it) * it.num_warps, it.target.register_unit),
        lambda it: f"Each warp is rounded up, not the block as a whole: {_sizes(it)}.",
        ROUND_UP,
    ),
    Slip(
        "registers",
        lambda it: _in_file(it) // it.num_warps * it.target.sub_partitions,
        lambda it: (
            f"The warps of a block need not share a register file: {_in_file(it)} fit into each of "
            f"{it.target.sub_partitions}, {_in_files(it)} in all."
        ),
        "Count the warps of the whole SM before you divide by num_warps.",
    ),
    Slip(
        "registers",
        lambda it: _in_file(it) // it.num_warps,
        lambda it: f"That is one of the {it.target.sub_partitions} sub-partitions only.",
        "Times target.sub_partitions.",
    ),
    Slip(
        "registers",
        lambda it: _in_files(it, 4 * _warp(it)) // it.num_warps,
        lambda it: "registers_per_sm counts registers, not bytes.",
        "No factor 4: registers are shared out, and registers are what is counted.",
    ),
    Slip(
        "registers",
        _in_files,
        lambda it: "Those are warps; a block has several.",
        "Divide by num_warps, rounding down.",
    ),
    Slip(
        "registers",
        lambda it: math.inf,
        lambda it: f"Registers hardly count in your answer: {_sizes(it)} for each of {it.num_warps} warps of a block.",
        "Registers are given for one thread. How many threads has a warp, and how many warps a block?",
    ),
]

# --- shared memory ----------------------------------------------------------------------------------------------------


def _share(total: int, a_block: int) -> float:
    return total // a_block if a_block else math.inf


def _block(it: Occupancy) -> int:
    """Bytes that a block is given."""
    return _up(it.shared_bytes + it.target.reserved_shared, it.target.shared_unit)


def _unreserved(it: Occupancy) -> int:
    return _up(it.shared_bytes, it.target.shared_unit)


def _bytes(it: Occupancy) -> str:
    return f"{it.shared_bytes:,} + {it.target.reserved_shared:,} -> {_block(it):,}"


def _reserve(it: Occupancy) -> str:
    total, a_block, kept = it.target.shared_per_sm, _block(it), it.target.reserved_shared
    keeps = (
        f"The driver keeps {kept:,} bytes of every block" if kept else f"On {it.target.name} the driver keeps nothing"
    )
    return f"{keeps}: {_bytes(it)}, and {total:,} // {a_block:,} is {_share(total, a_block)}."


RESERVE = "Add target.reserved_shared to what each block asks for."
SHARED = [
    Slip("shared memory", lambda it: _share(it.target.shared_per_sm, it.shared_bytes), _reserve, RESERVE),
    Slip("shared memory", lambda it: _share(it.target.shared_per_sm, _unreserved(it)), _reserve, RESERVE),
    Slip(
        "shared memory",
        lambda it: _share(it.target.shared_per_sm - it.target.reserved_shared, _unreserved(it)),
        _reserve,
        "It is kept for every block, not once for the SM.",
    ),
    Slip(
        "shared memory",
        lambda it: _share(it.target.shared_per_sm, _up(it.shared_bytes + 1024, it.target.shared_unit)),
        _reserve,
        "Not every GPU does that. Read it: target.reserved_shared.",
    ),
    Slip(
        "shared memory",
        lambda it: _share(it.target.shared_per_sm, it.shared_bytes + it.target.reserved_shared),
        lambda it: f"Shared memory is handed out in units of {it.target.shared_unit} bytes: {_bytes(it)}.",
        "Round up to target.shared_unit, after adding what is reserved.",
    ),
    Slip(
        "shared memory",
        lambda it: _share(it.target.shared_per_sm, _up(it.shared_bytes + it.target.reserved_shared, 128)),
        lambda it: f"{it.target.name} hands shared memory out in units of {it.target.shared_unit} bytes: {_bytes(it)}.",
        "Not every GPU has the same. Read it: target.shared_unit.",
    ),
    Slip(
        "shared memory",
        lambda it: _share(
            it.target.shared_per_sm,
            _up(it.shared_bytes * it.num_warps + it.target.reserved_shared, it.target.shared_unit),
        ),
        lambda it: f"shared_bytes are those of a whole block: {_bytes(it)}, and its {it.num_warps} warps share them.",
        "Registers are counted for each thread, shared memory for each block.",
    ),
    Slip(
        "shared memory",
        lambda it: it.limits["shared memory"] if _block(it) else 0,
        lambda it: f"A kernel of 0 bytes takes no shared memory at all on {it.target.name}: any number of blocks.",
        "Then shared memory is no limit: math.inf.",
    ),
    Slip(
        "shared memory",
        lambda it: math.inf,
        lambda it: f"Shared memory was left out: {_block(it):,} of {it.target.shared_per_sm:,} bytes for each block.",
        DECIDES,
    ),
]
for _asked in (_block, _unreserved, lambda it: it.shared_bytes):
    SHARED.append(
        Slip(
            "shared memory",
            lambda it, asked=_asked: _share(it.target.max_shared_per_block, asked(it)),
            lambda it: (
                f"{it.target.max_shared_per_block:,} bytes is the most one block may ask for; the SM has "
                f"{it.target.shared_per_sm:,} to share out."
            ),
            "Divide target.shared_per_sm.",
        )
    )

# --- places for warps and for blocks ----------------------------------------------------------------------------------


def _warp_places(it: Occupancy) -> str:
    return f"{it.target.name} has places for {it.target.max_warps_per_sm} warps"


def _block_places(it: Occupancy) -> str:
    return f"{it.target.name} has places for {it.target.max_blocks_per_sm} blocks"


PLACES = [
    Slip(
        "warps",
        lambda it: math.inf,
        lambda it: f"{_warp_places(it)}: {it.limits['warps']} blocks of {it.num_warps}.",
        "target.max_warps_per_sm is the third thing to share out.",
    ),
    Slip(
        "warps",
        lambda it: it.target.max_warps_per_sm,
        lambda it: "Those are warps, not blocks.",
        "Divide by num_warps, rounding down.",
    ),
    Slip(
        "blocks",
        lambda it: math.inf,
        lambda it: f"{_block_places(it)}, however small they are.",
        "target.max_blocks_per_sm is the fourth limit.",
    ),
]
for _usual in (64, 48, 32):
    PLACES.append(
        Slip(
            "warps",
            lambda it, usual=_usual: usual // it.num_warps,
            lambda it, usual=_usual: f"{_warp_places(it)}, not {usual}.",
            "Read it: target.max_warps_per_sm.",
        )
    )
for _usual in (32, 24, 16):
    PLACES.append(
        Slip(
            "blocks",
            lambda it, usual=_usual: usual,
            lambda it, usual=_usual: f"{_block_places(it)}, not {usual}.",
            "Read it: target.max_blocks_per_sm.",
        )
    )

SLIPS = [*REGISTERS, *SHARED, *PLACES]
