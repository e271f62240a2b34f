"""What one multiprocessor of each GPU architecture has to share out: registers, shared memory, warps, blocks.

NVIDIA calls the multiprocessor an SM and 32 threads in step a warp; AMD says compute unit (CU) and wave. The names
here are NVIDIA's. All sizes in bytes, registers of 32 bits.
"""

from dataclasses import dataclass

from pagedlab.errors import PagedLabError

KIB = 1024


@dataclass(frozen=True)
class Target:
    """One architecture, as a compiler names it. `find(name)` gives one."""

    name: str
    """"sm_90", "gfx942"."""
    backend: str
    """"cuda" or "hip": Triton's word for who makes it."""
    arch: int | str
    """90 or "gfx942": Triton's word for the architecture."""
    warp_size: int
    """Threads that go in step."""
    registers_per_sm: int
    shared_per_sm: int
    max_shared_per_block: int
    """The most that one block may ask for."""
    max_warps_per_sm: int
    max_blocks_per_sm: int
    shared_unit: int
    """Shared memory is handed out in multiples of this."""
    reserved_shared: int
    """Taken by the driver from every block's shared memory."""
    register_unit: int
    """A warp's registers are handed out in multiples of this (registers of the whole warp)."""
    max_registers_per_thread: int
    sub_partitions: int
    """Parts of the multiprocessor with a register file each; a warp lives in one of them."""

    @property
    def max_warps_per_block(self) -> int:
        """A block has at most 1,024 threads, on all of these."""
        return 1024 // self.warp_size

    @property
    def registers_per_partition(self) -> int:
        return self.registers_per_sm // self.sub_partitions


def _nvidia(arch: int, shared_kib: int, max_warps: int, max_blocks: int, shared_unit=128, reserved=1024) -> Target:
    """All have 65,536 registers in 4 parts, handed out in units of 256 to a warp, and at most 255 to a thread."""
    return Target(
        name=f"sm_{arch}",
        backend="cuda",
        arch=arch,
        warp_size=32,
        registers_per_sm=65_536,
        shared_per_sm=shared_kib * KIB,
        max_shared_per_block=shared_kib * KIB - reserved,
        max_warps_per_sm=max_warps,
        max_blocks_per_sm=max_blocks,
        shared_unit=shared_unit,
        reserved_shared=reserved,
        register_unit=256,
        max_registers_per_thread=255,
        sub_partitions=4,
    )


# NVIDIA. Block caps, units and sub-partitions: cuda_occupancy.h of CUDA 13.1, which comes with Triton. Shared memory,
# warps, the reserved KiB: NVIDIA/cccl, libcudacxx/include/cuda/__device/arch_traits.h. tests/gpu/test_occupancy.py
# compares what follows from them with that header.
_NVIDIA = [
    _nvidia(75, 64, 32, 16, shared_unit=256, reserved=0),  # T4, RTX 20
    _nvidia(80, 164, 64, 32),  # A100
    _nvidia(86, 100, 48, 16),  # A10, RTX 30
    _nvidia(87, 164, 48, 16),  # Jetson Orin
    _nvidia(88, 100, 48, 16),
    _nvidia(89, 100, 48, 24),  # L4, L40S, RTX 40
    _nvidia(90, 228, 64, 32),  # H100, H200
    _nvidia(100, 228, 64, 32),  # B200
    _nvidia(103, 228, 64, 32),  # B300
    _nvidia(110, 228, 48, 24),  # Jetson Thor
    _nvidia(120, 100, 48, 24),  # RTX 50
    _nvidia(121, 100, 48, 24),  # DGX Spark
]

# AMD. Registers, their units, waves a SIMD, and barriers as the cap on blocks: LLVM, lib/Target/AMDGPU,
# Utils/AMDGPUBaseInfo.cpp (namespace IsaInfo). LDS (AMD's shared memory) and its unit: the same, and "Code Object V3
# Kernel Descriptor", GRANULATED_LDS_SIZE, in https://llvm.org/docs/AMDGPUUsage.html. A SIMD of gfx942 has 512 registers
# for each of 64 lanes, one of gfx1100 has 1,536 for each of 32. On gfx1100 the compiler spreads a block over a
# workgroup processor, which is two CUs: that is what the numbers describe, and why one block may have half the LDS.
_AMD = [
    Target(
        "gfx942",  # MI300X, MI300A, MI325X
        "hip",
        "gfx942",
        warp_size=64,
        registers_per_sm=4 * 512 * 64,
        shared_per_sm=64 * KIB,
        max_shared_per_block=64 * KIB,
        max_warps_per_sm=4 * 8,
        max_blocks_per_sm=16,
        shared_unit=512,
        reserved_shared=0,
        register_unit=8 * 64,
        max_registers_per_thread=512,
        sub_partitions=4,
    ),
    Target(
        "gfx950",  # MI350X, MI355X
        "hip",
        "gfx950",
        warp_size=64,
        registers_per_sm=4 * 512 * 64,
        shared_per_sm=160 * KIB,
        max_shared_per_block=160 * KIB,
        max_warps_per_sm=4 * 8,
        max_blocks_per_sm=16,
        shared_unit=1280,
        reserved_shared=0,
        register_unit=8 * 64,
        max_registers_per_thread=512,
        sub_partitions=4,
    ),
    Target(
        "gfx1100",  # RX 7900
        "hip",
        "gfx1100",
        warp_size=32,
        registers_per_sm=4 * 1536 * 32,
        shared_per_sm=128 * KIB,
        max_shared_per_block=64 * KIB,
        max_warps_per_sm=4 * 16,
        max_blocks_per_sm=32,
        shared_unit=512,
        reserved_shared=0,
        register_unit=24 * 32,
        max_registers_per_thread=256,
        sub_partitions=4,
    ),
]

TARGETS: dict[str, Target] = {target.name: target for target in [*_NVIDIA, *_AMD]}


def find(name: str | Target) -> Target:
    """The target of that name; a `Target` is given back. PagedLabError, with the names there are, if there is none."""
    if isinstance(name, Target):
        return name
    if name in TARGETS:
        return TARGETS[name]
    raise PagedLabError(f"No target is called {name!r}. There are {', '.join(TARGETS)}.")
