"""Occupancy against the vendors' own code: NVIDIA's header, and what LLVM prints for AMD."""

import ctypes
import importlib.util
import json
import math
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.errors import PagedLabError
from pagedlab.gpu.occupancy import LIMITERS, occupancy
from pagedlab.gpu.targets import TARGETS, find

NVIDIA = [name for name, target in TARGETS.items() if target.backend == "cuda"]
AMD = [name for name, target in TARGETS.items() if target.backend == "hip"]
POINTS = 10_000

INT_MAX = 2**31 - 1


def triton_folder() -> Path:
    """Where Triton is, without importing it: importing decides for the whole process whether it interprets."""
    spec = importlib.util.find_spec("triton")
    if spec is None:
        pytest.skip("Triton is not installed, and NVIDIA's header comes with it")
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory):
    """`cuda_occupancy.h` as a library."""
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler here to build NVIDIA's occupancy code with")
    header = triton_folder() / "backends/nvidia/include"
    library = tmp_path_factory.mktemp("occupancy") / "shim.so"
    source = Path(__file__).with_name("occupancy_shim.cpp")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", f"-I{header}", source, "-o", library], check=True)
    return ctypes.CDLL(str(library)).occupancy_of_many


def ints(values):
    return (ctypes.c_int * len(values))(*values)


def edges(unit: int, most: int):
    """A number, or one next to a multiple of a unit, where rounding changes."""
    if random.random() < 0.5:
        return random.randint(0, most)
    return min(most, max(0, unit * random.randint(0, most // unit) + random.randint(-1, 1)))


@pytest.mark.parametrize("name", NVIDIA)
def test_same_as_nvidias_header(nvidia, name):
    target = find(name)
    random.seed(name)
    # 256 registers are in the header's range, but no compiler gives a thread more than 255
    registers = [edges(8, 255) for _ in range(POINTS - 500)] + [random.randint(257, 300) for _ in range(500)]
    shared = [edges(random.choice([128, 1024]), random.choice([4000, 60_000, 250_000])) for _ in range(POINTS)]
    warps = [random.choice([1, 2, 4, 8, 16, random.randint(1, 40)]) for _ in range(POINTS)]
    shape = (
        *divmod(target.arch, 10),
        target.max_warps_per_sm,
        target.shared_per_sm,
        target.max_shared_per_block,
        target.reserved_shared,
    )
    results = (ctypes.c_int * (6 * POINTS))()
    assert nvidia(ints(shape), POINTS, ints(registers), ints(shared), ints(warps), results) == 0
    for i, point in enumerate(zip(registers, shared, warps, strict=True)):
        blocks, by_registers, by_shared, by_warps, by_blocks, factors = results[6 * i : 6 * i + 6]
        mine = occupancy(*point, target)
        theirs = {"registers": by_registers, "shared memory": by_shared, "warps": by_warps, "blocks": by_blocks}
        told = {limit: INT_MAX if value == math.inf else value for limit, value in mine.limits.items()}
        assert (mine.blocks_per_sm, told) == (blocks, theirs), point
        bits = {"warps": 1, "registers": 2, "shared memory": 4, "blocks": 8}
        assert sum(bits[name] for name in mine.scarcest) == factors & 15, point


LLVM = """
import json, sys
from triton._C.libtriton import amd, llvm
llvm.init_targets()
arch, kernels = json.load(sys.stdin)
ir = [f'target triple = "{amd.TARGET_TRIPLE}"']
for i, (registers, shared, threads) in enumerate(kernels):
    if shared:
        ir.append(f'@shared{i} = internal addrspace(3) global [{shared} x i8] poison, align 16')
    ir.append(f'define amdgpu_kernel void @k{i}() #{i} {{')
    if shared:
        ir.append(f'  store volatile i8 0, ptr addrspace(3) @shared{i}')
    if registers > 256:  # the upper half are accumulators
        ir.append(f'  call void asm sideeffect "", "~{{v255}},~{{a{registers - 257}}}"()')
    else:
        ir.append(f'  call void asm sideeffect "", "~{{v{registers - 1}}}"()')
    ir.append('  ret void')
    ir.append('}')
    ir.append(f'attributes #{i} = {{ "amdgpu-flat-work-group-size"="{threads},{threads}" }}')
print(llvm.translate_to_asm("\\n".join(ir), amd.TARGET_TRIPLE, arch, "", [], True, False))
"""


def waves_per_simd(name: str, kernels: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(registers, shared bytes, waves per SIMD) as LLVM counts them, of kernels (registers, shared bytes, threads)."""
    triton_folder()
    run = subprocess.run(
        [sys.executable, "-c", LLVM], input=json.dumps([name, kernels]), text=True, capture_output=True, check=True
    )
    registers = re.findall(r"; (?:Total)?NumVgprs: (\d+)", run.stdout)
    if "; TotalNumVgprs" in run.stdout:
        registers = re.findall(r"; TotalNumVgprs: (\d+)", run.stdout)
    shared = re.findall(r"; LDSByteSize: (\d+)", run.stdout)
    waves = re.findall(r"; Occupancy: (\d+)", run.stdout)
    assert len(registers) == len(shared) == len(waves) == len(kernels)
    return [tuple(map(int, row)) for row in zip(registers, shared, waves, strict=True)]


@pytest.mark.parametrize("name", AMD)
def test_same_waves_per_simd_as_llvm_by_registers(name):
    target = find(name)
    kernels = [(registers, 0, 4 * target.warp_size) for registers in range(8, target.max_registers_per_thread + 1)]
    for registers, _, waves in waves_per_simd(name, kernels):
        assert occupancy(registers, 0, 4, target).warps_per_sm == 4 * waves, registers  # 4 waves on 4 SIMDs


@pytest.mark.parametrize("name", AMD)
def test_same_waves_per_simd_as_llvm_by_shared_memory(name):
    """In whole units: the hardware rounds up to them, and what LLVM prints leaves that out."""
    target = find(name)
    random.seed(name)
    units = target.max_shared_per_block // target.shared_unit
    waves = [random.choice([1, 2, 4, 8, target.max_warps_per_block]) for _ in range(300)]
    kernels = [(8, random.randint(0, units) * target.shared_unit, n * target.warp_size) for n in waves]
    for num_warps, (_, shared, per_simd) in zip(waves, waves_per_simd(name, kernels), strict=True):
        mine = occupancy(8, shared, num_warps, target)
        assert math.ceil(mine.warps_per_sm / target.sub_partitions) == per_simd, (shared, num_warps)


@pytest.mark.parametrize(
    "asked, blocks, limiter, fraction",
    [
        ((119, 39_168, 4, "sm_80"), 4, "registers", 0.25),  # shared memory ties, and comes second
        ((108, 39_168, 4, "sm_90"), 4, "registers", 0.25),
        ((56, 12_800, 4, "sm_80"), 9, "registers", 0.5625),
        ((128, 73_728, 4, "sm_80"), 2, "shared memory", 0.125),
        ((33, 0, 16, "sm_80"), 3, "registers", 0.75),  # 1,056 registers a warp are 1,280 of them
        ((32, 0, 16, "sm_80"), 4, "registers", 1.0),
        ((16, 0, 16, "sm_80"), 4, "warps", 1.0),
        ((16, 0, 1, "sm_80"), 32, "blocks", 0.5),
        ((16, 0, 1, "sm_86"), 16, "blocks", 1 / 3),
        ((104, 8_192, 4, "gfx942"), 4, "registers", 0.5),
        ((190, 16_384, 4, "gfx942"), 2, "registers", 0.25),
        ((8, 0, 1, "gfx942"), 32, "warps", 1.0),  # a block of one wave needs no barrier
        ((8, 0, 2, "gfx942"), 16, "warps", 1.0),
        ((253, 0, 4, "gfx1100"), 5, "registers", 5 / 16),
    ],
)
def test_kernels(asked, blocks, limiter, fraction):
    got = occupancy(*asked)
    assert (got.blocks_per_sm, got.limiter, got.fraction) == (blocks, limiter, pytest.approx(fraction))
    assert got.warps_per_sm == blocks * asked[2]


@pytest.mark.parametrize(
    "asked, limiter",
    [
        ((256, 0, 4, "sm_90"), "registers"),
        ((513, 0, 4, "gfx942"), "registers"),
        ((255, 0, 16, "sm_90"), "registers"),  # 16 warps of 8,192 registers are two register files
        ((32, 232_449, 4, "sm_90"), "shared memory"),
        ((32, 65_537, 4, "gfx942"), "shared memory"),
        ((0, 0, 33, "sm_90"), "warps"),
        ((0, 0, 17, "gfx942"), "warps"),
    ],
)
def test_what_no_block_may_have_gives_no_blocks(asked, limiter):
    got = occupancy(*asked)
    assert (got.blocks_per_sm, got.warps_per_sm, got.fraction, got.limiter) == (0, 0, 0.0, limiter)


def test_the_largest_block_there_may_be_fits():
    for target in TARGETS.values():
        assert occupancy(1, target.max_shared_per_block, target.max_warps_per_block, target).blocks_per_sm >= 1


def test_nothing_used_is_no_limit():
    got = occupancy(0, 0, 4, "sm_75")
    assert got.limits["registers"] == got.limits["shared memory"] == math.inf
    assert (got.blocks_per_sm, got.limiter) == (8, "warps")
    assert occupancy(0, 0, 1, "sm_90").limits["shared memory"] == 228  # a KiB is reserved for every block


@pytest.mark.parametrize("bad", [(-1, 0, 4), (32, -1, 4), (32, 0, 0), (32.0, 0, 4), (32, 0, True)])
def test_numbers_no_kernel_has(bad):
    with pytest.raises(ValueError, match="must be a whole number of at least"):
        occupancy(*bad, "sm_90")


def test_more_registers_than_there_are():
    assert occupancy(10**30, 0, 1, "sm_80").lift() == f"{10**30 - 255} registers fewer: 8 blocks"


def test_numbers_of_numpy():
    assert occupancy(np.int64(96), np.int32(39_168), np.int8(4), "sm_80") == occupancy(96, 39_168, 4, "sm_80")


def test_unknown_target():
    with pytest.raises(PagedLabError, match="sm_42.*sm_80"):
        occupancy(32, 0, 4, "sm_42")


@pytest.mark.parametrize(
    "asked, said",
    [
        ((108, 39_168, 4, "sm_90"), "12 registers fewer: 5 blocks"),
        ((119, 39_168, 4, "sm_80"), "23 registers fewer and 6,656 B less shared memory: 5 blocks"),
        ((97, 0, 4, "sm_90"), "1 register fewer: 5 blocks"),
        ((32, 0, 8, "sm_90"), "nothing: all 64 warps are in use"),
        ((16, 0, 1, "sm_80"), "nothing: 32 blocks is the most there can be; more warps a block would fill it"),
        ((32, 232_449, 4, "sm_90"), "1 B less shared memory: 1 block"),
        ((16, 0, 24, "sm_90"), "21 warps a block instead of 24: 3 blocks"),
        ((36, 0, 4, "sm_90"), "4 registers fewer: 16 blocks"),  # 13 is what was asked for, and 16 is what one gets
    ],
)
def test_lift(asked, said):
    assert occupancy(*asked).lift() == said


@given(
    registers=st.integers(0, 300),
    shared=st.integers(0, 250_000),
    num_warps=st.sampled_from([1, 2, 4, 8, 16, 24, 32, 40]),
    name=st.sampled_from(sorted(TARGETS)),
)
def test_what_lifts_it_does(registers, shared, num_warps, name):
    before = occupancy(registers, shared, num_warps, name)
    said = before.lift()
    if said.startswith("nothing"):
        assert before.fraction == 1 or "blocks" in before.scarcest
        return
    number = {
        thing: int(count.replace(",", "")) for count, thing in re.findall(r"([\d,]+) (reg|B less|warps? a)", said)
    }
    fewer, less = number.get("reg", 0), number.get("B less", 0)
    warps = number.get("warps a", number.get("warp a", num_warps))
    after = occupancy(registers - fewer, shared - less, warps, name)
    assert after.blocks_per_sm > before.blocks_per_sm
    assert said.endswith(f": {after.blocks_per_sm} block{'s' if after.blocks_per_sm > 1 else ''}")
    if fewer:  # and it is the least
        assert occupancy(registers - fewer + 1, shared - less, warps, name).blocks_per_sm == before.blocks_per_sm
    if less:
        assert occupancy(registers - fewer, shared - less + 1, warps, name).blocks_per_sm == before.blocks_per_sm


def test_limits_are_named_as_limiters_are():
    assert tuple(occupancy(32, 1024, 4, "sm_90").limits) == LIMITERS
