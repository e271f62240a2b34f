"""Where numbers can lie on a GPU, from near the arithmetic to far away: how much fits, and how fast it comes.

Vendors state the far end, memory. Of the near end they state widths: so many bytes a clock for each multiprocessor.
With the clock that goes with their FLOP/s these become bytes per second; such figures are marked as reckoned.
"""

from typing import NamedTuple

from pagedlab.gpu.gpus import GPU, find

# FLOP of 16-bit matrix products with float32 sums, for one multiprocessor and clock, a multiplication with an addition
# counted as two. 2,048: NVIDIA A100 whitepaper, AMD CDNA 3 white paper (table of FLOPs a clock). Twice as many: H100
# whitepaper. 512: Ada and RTX Blackwell whitepapers, appendix A (FLOP/s, cores and boost clock). B200, for which no
# clock is stated: as many as make its FLOP/s with a clock between 1.8 and 2 GHz.
FLOPS_A_CLOCK = {"sm_80": 2048, "sm_89": 512, "sm_90": 4096, "sm_100": 8192, "sm_120": 512, "gfx942": 2048}

# Multiplications with additions in float32, for one multiprocessor and clock: CUDA C++ Programming Guide, "Throughput
# of Native Arithmetic Instructions"; AMD CDNA 3 white paper. Each reads three numbers of 4 bytes from registers.
FMAS_A_CLOCK = {"sm_80": 64, "sm_89": 128, "sm_90": 128, "sm_100": 128, "sm_120": 128, "gfx942": 128}

# 32 banks of 4 bytes: CUDA C++ Programming Guide, "Shared Memory"; AMD CDNA 3 white paper for its LDS.
SHARED_BYTES_A_CLOCK = 128

L3_BANDWIDTH = {"MI300X": 17.2e12}  # AMD CDNA 3 white paper: Infinity Cache, at its peak


class Level(NamedTuple):
    """One place for numbers."""

    name: str
    bytes: int
    """Of the whole GPU."""
    bandwidth: float | None
    """Bytes per second of the whole GPU; None where nobody states it."""
    reckoned: bool
    """Whether the bandwidth comes from bytes a clock, not from the vendor."""


def levels(gpu: str | GPU) -> list[Level]:
    """From near to far: registers, shared memory, L2, L3 where there is one, memory."""
    gpu = find(gpu)
    cycles = gpu.num_sms * clock(gpu)
    found = [
        Level("registers", gpu.register_bytes, cycles * FMAS_A_CLOCK[gpu.target] * 3 * 4, True),
        Level("shared memory", gpu.shared_bytes, cycles * SHARED_BYTES_A_CLOCK, True),
        Level("L2", gpu.l2_bytes, gpu.l2_bandwidth, False),
    ]
    if gpu.l3_bytes:
        found.append(Level("L3", gpu.l3_bytes, L3_BANDWIDTH.get(gpu.name), False))
    return [*found, Level("memory", gpu.memory_bytes, gpu.memory_bandwidth, False)]


def clock(gpu: str | GPU) -> float:
    """Clocks per second at which the multiprocessors reach the vendor's FLOP/s."""
    gpu = find(gpu)
    return gpu.fp16_flops / (gpu.num_sms * FLOPS_A_CLOCK[gpu.target])
