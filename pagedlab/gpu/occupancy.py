"""How many blocks of a kernel one multiprocessor can hold at a time, and what keeps it from holding more.

Four things are shared out: registers, shared memory, places for warps, places for blocks. Each alone allows so many
blocks, and the scarcest decides.

For NVIDIA this is the rule of `cuda_occupancy.h` (CUDA 13.1; the file comes with Triton), and a test compares the two
on random inputs. For AMD it is LLVM's rule for waves per SIMD (`getNumWavesPerEUWithNumVGPRs` and
`getMaxWorkGroupsPerCU` in lib/Target/AMDGPU), compared with what the compiler prints. Not counted: tensor memory of
sm_100, named barriers, scalar registers.
"""

import math
import numbers
from dataclasses import dataclass

from pagedlab.gpu.targets import Target, find

LIMITERS = ("registers", "shared memory", "warps", "blocks")


@dataclass(frozen=True)
class Occupancy:
    """What fits. `occupancy(...)` makes one."""

    blocks_per_sm: int
    warps_per_sm: int
    fraction: float
    """warps_per_sm of those the multiprocessor could hold: 0.25 is an occupancy of 25 %."""
    limiter: str
    """The scarcest of LIMITERS; of several that allow equally few blocks, the first in that order."""
    limits: dict[str, float]
    """Blocks that each of LIMITERS alone would allow. `math.inf` for what the kernel does not use."""
    registers: int
    shared_bytes: int
    num_warps: int
    target: Target

    @property
    def scarcest(self) -> tuple[str, ...]:
        """All that allow no more than `blocks_per_sm`: the limiter, and those that tie with it."""
        return tuple(name for name in LIMITERS if self.limits[name] == self.blocks_per_sm)

    def lift(self) -> str:
        """The least that makes more blocks fit, and how many then do: "9 registers fewer: 5 blocks"."""
        if self.warps_per_sm == self.target.max_warps_per_sm:
            return f"nothing: all {self.target.max_warps_per_sm} warps are in use"
        if "blocks" in self.scarcest:
            return f"nothing: {self.blocks_per_sm} blocks is the most there can be; more warps a block would fill it"
        registers, shared_bytes, num_warps = self._lifted(self.blocks_per_sm + 1)
        changes = []
        if registers < self.registers:
            changes.append(f"{_count(self.registers - registers, 'register')} fewer")
        if shared_bytes < self.shared_bytes:
            changes.append(f"{self.shared_bytes - shared_bytes:,} B less shared memory")
        if num_warps < self.num_warps:
            changes.append(f"{_count(num_warps, 'warp')} a block instead of {self.num_warps}")
        blocks = occupancy(registers, shared_bytes, num_warps, self.target).blocks_per_sm  # can be several more
        return f"{' and '.join(changes)}: {_count(blocks, 'block')}"

    def _lifted(self, blocks: int) -> tuple[int, int, int]:
        """Registers, shared bytes and warps with which that many blocks fit: as few changes as that takes."""
        target, shared_bytes = self.target, self.shared_bytes
        registers = min(self.registers, target.max_registers_per_thread)
        num_warps = min(self.num_warps, target.max_warps_per_sm // blocks, target.max_warps_per_block)
        while _by_registers(registers, num_warps, target) < blocks:
            registers -= 1
        if self.limits["shared memory"] < blocks:
            share = target.shared_per_sm // blocks // target.shared_unit * target.shared_unit - target.reserved_shared
            shared_bytes = min(share, target.max_shared_per_block)
        return registers, shared_bytes, num_warps


def occupancy(registers: int, shared_bytes: int, num_warps: int, target: str | Target) -> Occupancy:
    """Blocks that fit on one multiprocessor of `target` ("sm_90", "gfx942").

    registers: of one thread (on AMD: vector registers, accumulators included). shared_bytes: of one block, static and
    dynamic together, without what the driver reserves. num_warps: of one block. What is more than a single block may
    have gives 0 blocks. ValueError for numbers that no kernel has, PagedLabError for a target that is not known.
    """
    target = find(target)
    for name, value, least in (
        ("registers", registers, 0),
        ("shared_bytes", shared_bytes, 0),
        ("num_warps", num_warps, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    registers, shared_bytes, num_warps = int(registers), int(shared_bytes), int(num_warps)  # numpy's would wrap around
    limits = {
        "registers": _by_registers(registers, num_warps, target),
        "shared memory": _by_shared_memory(shared_bytes, target),
        "warps": _by_warps(num_warps, target),
        "blocks": _by_blocks(num_warps, target),
    }
    limiter = min(LIMITERS, key=limits.__getitem__)  # the first of the smallest
    blocks = int(limits[limiter])
    warps = blocks * num_warps
    return Occupancy(
        blocks, warps, warps / target.max_warps_per_sm, limiter, limits, registers, shared_bytes, num_warps, target
    )


def blocks_and_limiter(registers: int, shared_bytes: int, num_warps: int, target: str | Target) -> tuple[int, str]:
    """The two things one asks first: `occupancy(...)`'s blocks_per_sm and limiter."""
    it = occupancy(registers, shared_bytes, num_warps, target)
    return it.blocks_per_sm, it.limiter


def _by_registers(registers: int, num_warps: int, target: Target) -> float:
    """A warp gets whole units, all from the register file of one sub-partition."""
    if registers > target.max_registers_per_thread:
        return 0
    if registers == 0:
        return math.inf
    a_warp = _round_up(registers * target.warp_size, target.register_unit)
    warps = target.registers_per_partition // a_warp * target.sub_partitions
    return warps // num_warps


def _by_shared_memory(shared_bytes: int, target: Target) -> float:
    if shared_bytes > target.max_shared_per_block:
        return 0
    a_block = _round_up(shared_bytes + target.reserved_shared, target.shared_unit)
    return target.shared_per_sm // a_block if a_block else math.inf


def _by_warps(num_warps: int, target: Target) -> float:
    return target.max_warps_per_sm // num_warps if num_warps <= target.max_warps_per_block else 0


def _by_blocks(num_warps: int, target: Target) -> float:
    """On AMD the cap counts barriers, and a block of one wave needs none."""
    if target.backend == "hip" and num_warps == 1:
        return target.max_warps_per_sm
    return target.max_blocks_per_sm


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
