"""What the GPU benchmark can show without one: its shapes, its sums, its tables, and that its ways agree."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.pages import available_backends

SOURCE = Path(__file__).parents[1] / "benchmarks" / "gpu_attention.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("gpu_attention", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_shapes(bench):
    usual, everything = bench.decode_shapes(), bench.decode_shapes(everything=True)
    assert len(set(usual)) == len(usual) and set(usual) <= set(everything) and len(everything) == 12 * 25
    assert {shape.batch for shape in usual} >= {1, 256} and {shape.context for shape in usual} >= {512, 131072}
    assert {shape[2:5] for shape in usual} == {shape[2:5] for shape in everything}
    assert len(bench.decode_shapes(quick=True)) < 8 and set(bench.prefill_shapes(True)) <= set(bench.prefill_shapes())
    for shape in bench.prefill_shapes():
        assert 1 < shape.num_new <= shape.context


def test_bytes_of_pools(bench):
    shape = bench.Shape(batch=3, context=100, head_dim=64, block_size=16)
    assert shape.num_heads == 32
    assert shape.cache_bytes == 2 * (3 * 7) * 8 * 16 * 64 * 2  # K and V, blocks, kv heads, slots, numbers, bytes
    l2 = 50 * 2**20
    for size in (1, 10**6, l2, 4 * l2, 10**10):
        pools = bench.num_pools(size, l2)
        assert pools * size >= 4 * l2 and (pools == 1 or (pools - 1) * size < 4 * l2)
    large = bench.Shape(256, 131072)
    assert large.cache_bytes == 128 * 2**30
    assert not bench.fits(large, 141 * 2**30, l2) and bench.fits(bench.Shape(16, 8192), 80 * 2**30, l2)


@pytest.mark.parametrize(
    ("told", "num_sms", "gib", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 132, 79.2, "H100"),
        ("NVIDIA H100 PCIe", 114, 79.2, None),
        ("NVIDIA H100 NVL", 132, 93.1, None),
        ("NVIDIA H200", 132, 139.8, "H200"),
        ("NVIDIA A100-SXM4-80GB", 108, 79.3, "A100"),
        ("NVIDIA A100-SXM4-40GB", 108, 39.4, None),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 42, 39.3, None),
        ("NVIDIA GeForce RTX 4090", 128, 23.5, "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 76, 15.7, None),
        ("AMD Instinct MI300X", 304, 191.7, "MI300X"),
        ("Tesla T4", 40, 14.6, None),
        ("NVIDIA RTX 6000 Ada Generation", 142, 47.4, None),
    ],
)
def test_names_of_gpus(bench, told, num_sms, gib, name):
    """A variant with less memory or fewer multiprocessors has another bandwidth, so its floor would be wrong."""
    assert bench.known_gpu(told, num_sms, int(gib * 2**30)) == name


def test_floors(bench):
    least = bench.floor(bench.Shape(4, 1000), "H100")
    kv, q_and_out = 2 * 4 * 1000 * 8 * 128 * 2, 2 * 4 * 32 * 128 * 2
    assert least.bytes == kv + q_and_out and least.bound == "memory"
    assert least.seconds == pytest.approx(least.bytes / 3.35e12)
    prompt = bench.floor(bench.Shape(2, 8192, num_new=8192), "H100")
    assert prompt.flops == 2 * 4 * 32 * 128 * 8192 * 8193 // 2 and prompt.bound == "compute"
    assert bench.floor(bench.Shape(4, 1000), None) is None


def test_tables(bench):
    shape = bench.Shape(1, 8192)
    rows = [
        bench.described(shape, "H100", {"pagedlab": 2e-5, "sdpa": 3e-5, "vllm": "not installed"}),
        bench.described(shape, None, {"pagedlab": "OutOfResources: shared memory"}),
    ]
    head, first, second = bench.table(rows, ["pagedlab", "sdpa", "vllm"], copy=3e12).splitlines()
    assert head.split() == "batch context group head block us GB/s of copy floor sdpa vllm".split()
    size = 2 * 8192 * 8 * 128 * 2 + 2 * 32 * 128 * 2
    rate = f"{size / 2e-5 / 1e9:.0f}", f"{size / 2e-5 / 3e12:.0%}", f"{1e6 * size / 3.35e12:.1f}"
    assert first.split() == ["1", "8192", "4", "128", "16", "20.0", *rate, "1.50x", "-"]
    assert second.split()[5:] == ["OutOfResources:", "shared", "memory"]
    assert rows[1]["bytes"] == size and rows[1]["floor_seconds"] is None
    json.dumps(rows)

    prompt = bench.described(bench.Shape(1, 2048, num_new=2048), "H100", {"pagedlab": 1e-3, "sdpa": 5e-4})
    _, line = bench.prefill_table([prompt]).splitlines()
    assert line.split()[5:7] == ["1000.0", f"{4 * 32 * 128 * 2048 * 2049 / 2 / 1e-3 / 1e12:.0f}"]
    assert line.split()[-1] == "0.50x"


@pytest.mark.skipif("triton" not in available_backends(), reason="Triton does not interpret here")
@pytest.mark.parametrize(
    "shape", [(2, 40, 4, 64, 16), (1, 21, 1, 64, 16), (2, 40, 4, 64, 16, 40), (1, 40, 1, 64, 16, 7)]
)
def test_ours_and_torchs_compute_the_same(bench, shape):
    shape = bench.Shape(*shape)
    case = bench.Case(shape, l2_bytes=shape.cache_bytes // 2, device="cpu")
    assert len(case.pools) == 2
    mine, right = bench.pagedlab(case), bench.sdpa(case)
    for pool in range(2):
        assert mine(pool).shape == right(pool).shape == case.queries[pool].shape
        torch.testing.assert_close(mine(pool), right(pool), atol=2e-2, rtol=2e-2)


def test_a_way_that_fails_or_is_wrong_does_not_end_the_run(bench, monkeypatch):
    def missing(case):
        import there_is_no_such_library  # noqa: F401

    def failing(case):
        raise ValueError("not this shape\nand more")

    def wrong(case):
        return lambda pool: bench.sdpa(case)(pool) * 1.1

    real = bench.Case
    monkeypatch.setattr(bench, "Case", lambda shape, l2: real(shape, l2, device="cpu"))
    monkeypatch.setattr(bench, "seconds_a_call", lambda run, pools, repeats: 0.5)
    ways = {"sdpa": bench.sdpa, "missing": missing, "failing": failing, "wrong": wrong}
    assert bench.measure(bench.Shape(1, 20), ways, 1, 3) == {
        "sdpa": 0.5,
        "missing": "not installed",
        "failing": "ValueError: not this shape",
        "wrong": "ArithmeticError: wrong by 10.0%",
    }


class GPU:
    """Stands in for one of 1 GiB, whose memory is full from the second shape on."""

    name, multi_processor_count, total_memory, L2_cache_size = "Some GPU", 8, 2**30, 2**20


@pytest.fixture
def a_gpu(bench, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: GPU)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 2**30))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(bench, "copy_bandwidth", lambda *_: 1e12)
    monkeypatch.setattr("pagedlab.gpu.mode.is_interpreting", lambda: False)
    monkeypatch.setattr(bench, "decode_shapes", lambda *_: [bench.Shape(1, 512), bench.Shape(2, 512)])
    monkeypatch.setattr(bench, "prefill_shapes", lambda *_: [])

    def measure(shape, ways, l2_bytes, repeats):
        if shape.batch == 2:
            raise torch.OutOfMemoryError("out of memory")
        return {"pagedlab": 1e-4, "sdpa": 2e-4}

    monkeypatch.setattr(bench, "measure", measure)


def test_a_whole_run(bench, a_gpu, monkeypatch, tmp_path, capsys):
    path = tmp_path / "new" / "results.json"
    monkeypatch.setattr(sys, "argv", ["gpu_attention.py", "--no-flex", "--output", str(path)])
    bench.main()
    told, found = capsys.readouterr().out, json.loads(path.read_text())
    assert "Some GPU" in told and "2.00x" in told and "1 of 2 shapes do not fit in memory" in told
    assert [row["shape"]["batch"] for row in found["decode"]] == [1] and found["prefill"] == []
    assert found["decode"][0]["floor_seconds"] is None, "no floor for a GPU that nobody knows"


@pytest.mark.parametrize(
    ("options", "words"), [(["--repeats", "0"], "at least 1"), (["--output", "."], "--output is a folder")]
)
def test_what_cannot_be_measured_is_said_first(bench, a_gpu, monkeypatch, capsys, options, words):
    monkeypatch.setattr(bench, "copy_bandwidth", None)
    monkeypatch.setattr(sys, "argv", ["gpu_attention.py", *options])
    with pytest.raises(SystemExit, match="2"):
        bench.main()
    assert words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so():
    done = subprocess.run([sys.executable, SOURCE], capture_output=True, text=True)
    assert done.returncode == 0 and "There is no GPU here" in done.stdout and not done.stderr
