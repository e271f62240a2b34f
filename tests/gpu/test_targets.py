"""The tables of architectures and GPUs: whole, consistent, and quick to import."""

import subprocess
import sys

import pytest

from pagedlab.errors import PagedLabError
from pagedlab.gpu import gpus, targets
from pagedlab.gpu.gpus import GPUS
from pagedlab.gpu.targets import TARGETS


def test_names_are_what_triton_calls_them():
    for name, target in TARGETS.items():
        assert target.name == name
        assert name == (f"sm_{target.arch}" if target.backend == "cuda" else target.arch)
        assert target.warp_size == 32 or target.backend == "hip"


def test_a_register_file_divides_into_its_parts():
    for target in TARGETS.values():
        assert target.registers_per_partition * target.sub_partitions == target.registers_per_sm
        assert target.registers_per_partition % target.register_unit == 0
        assert target.max_warps_per_sm % target.sub_partitions == 0
        # one warp with all the registers a thread may have fits into a part
        assert target.max_registers_per_thread * target.warp_size <= target.registers_per_partition


def test_one_block_never_gets_more_than_there_is():
    for target in TARGETS.values():
        assert target.max_shared_per_block + target.reserved_shared <= target.shared_per_sm
        assert target.shared_per_sm % target.shared_unit == 0
        assert target.max_warps_per_block * target.warp_size == 1024


def test_find():
    assert targets.find("sm_90") is TARGETS["sm_90"]
    assert targets.find(TARGETS["sm_90"]) is TARGETS["sm_90"]
    with pytest.raises(PagedLabError, match="'sm_9'.*sm_90"):
        targets.find("sm_9")
    assert gpus.find("H200") is GPUS["H200"] is gpus.find(GPUS["H200"])
    with pytest.raises(PagedLabError, match="'H300'.*H200"):
        gpus.find("H300")


def test_every_gpu_has_a_target_and_a_source():
    for name, gpu in GPUS.items():
        assert gpu.name == name and gpu.target in TARGETS
        assert len(gpu.source) > 20
        assert gpu.multiprocessor is TARGETS[gpu.target]


def test_memory_is_larger_and_slower_the_further_it_is():
    for gpu in GPUS.values():
        assert gpu.memory_bytes > max(gpu.l2_bytes, gpu.l3_bytes)
        assert gpu.l2_bandwidth is None or gpu.l2_bandwidth > gpu.memory_bandwidth
        # the sizes people know: 27 MB of registers on an A100, 33 MB on an H100
        assert gpu.register_bytes == gpu.num_sms * gpu.multiprocessor.registers_per_sm * 4
    assert GPUS["A100"].register_bytes == 27 * 2**20
    assert GPUS["H100"].register_bytes == 33 * 2**20
    assert GPUS["H100"].shared_bytes == 132 * 228 * 2**10


def test_neither_torch_nor_triton_is_needed():
    code = (
        "import sys, pagedlab.gpu.targets, pagedlab.gpu.gpus, pagedlab.gpu.occupancy, pagedlab.gpu.roofline\n"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
