import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.kernels import gemm

DTYPES = [
    pytest.param(dtype, marks=pytest.mark.skipif(not gemm.works(dtype), reason="not on this processor"))
    for dtype in (torch.float32, torch.bfloat16)
]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def random(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def allowed(x, weight, dtype):
    """How far a sum of float32 products can be off, then rounded to dtype."""
    largest = x.double().abs() @ weight.double().abs().T
    steps = x.shape[-1] + 2
    return largest * steps * 2.0**-24 + (x.double() @ weight.double().T).abs() * torch.finfo(dtype).eps + 1e-30


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.one_of(st.integers(1, 26), st.sampled_from([33, 64, 100])),
    pairs=st.integers(1, 80),
    out_features=st.integers(1, 130),
    seed=st.integers(0, 2**31),
)
def test_as_exact_as_float32_sums_are(dtype, rows, pairs, out_features, seed):
    x, weight = random(rows, 2 * pairs, dtype=dtype, seed=seed), random(out_features, 2 * pairs, dtype=dtype, seed=seed)
    y = gemm.multiply(x, gemm.pack(weight))
    assert y.shape == (rows, out_features) and y.dtype == dtype
    error = (y.double() - x.double() @ weight.double().T).abs()
    assert (error <= allowed(x, weight, dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 26), pairs=st.integers(1, 80), out_features=st.integers(1, 70), seed=st.integers(0, 2**31))
def test_gated(dtype, rows, pairs, out_features, seed):
    x = random(rows, 2 * pairs, dtype=dtype, seed=seed)
    gate, up = (random(out_features, 2 * pairs, dtype=dtype, seed=seed + i) / pairs**0.5 for i in (1, 2))
    y = gemm.multiply(x, gemm.pack_gated(gate, up))
    exact = F.silu(x.double() @ gate.double().T) * (x.double() @ up.double().T)
    assert y.shape == (rows, out_features) and y.dtype == dtype
    torch.testing.assert_close(y.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gate_far_out_and_with_numbers_that_are_none(dtype):
    inside = torch.tensor(
        [-float("inf"), -1e30, -200.0, -89.5, -88.0, -20.0, 0.0, 20.0, 88.0, 1e30, float("inf"), float("nan")]
    )
    x = torch.stack([inside, torch.zeros(12)], dim=1).to(dtype)  # two columns: a pair
    weight = torch.tensor([[1.0, 0.0]]).to(dtype)
    gate = gemm.multiply(x, gemm.pack_gated(weight, weight))[:, 0].double()
    exact = (F.silu(x[:, 0].double()) * x[:, 0].double()).to(dtype).double()
    torch.testing.assert_close(gate, exact, rtol=0.01, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True])
def test_a_row_does_not_depend_on_the_others_nor_on_the_threads(dtype, gated, threads):
    weight = random(1056, 576, dtype=dtype)
    packed = gemm.pack_gated(weight[:528], weight[528:]) if gated else gemm.pack(weight)
    x = random(64, 576, dtype=dtype, seed=1)
    together = gemm.multiply(x, packed)
    for rows in [*range(1, 27), 32, 48]:
        assert torch.equal(gemm.multiply(x[-rows:], packed), together[-rows:]), rows
    for number in (1, 2, 3, 7):
        threads(number)
        assert torch.equal(gemm.multiply(x, packed), together), number


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_written_beside_the_result(dtype):
    for rows, columns in [(1, 1), (12, 31), (13, 33), (25, 48), (3, 16)]:
        surrounding = torch.full((rows + 2, columns + 40), 7.0, dtype=dtype)
        out = surrounding[1:-1, 20:-20]
        x, weight = random(rows, 64, dtype=dtype), random(columns, 64, dtype=dtype)
        for packed in (gemm.pack(weight), gemm.pack_gated(weight, weight)):
            gemm._fill(out, x, packed)
            assert torch.equal(out, gemm.multiply(x, packed))
            out.fill_(7.0)
            assert (surrounding == 7.0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides_and_any_number_of_dimensions(dtype):
    weight = random(40, 24, dtype=dtype)
    packed = gemm.pack(weight)
    wide = random(6, 100, dtype=dtype)
    flat = random(24, dtype=dtype)
    odd = random(6 * 25 + 1, dtype=dtype)[1:].view(6, 25)[:, 1:]  # rows that begin anywhere
    assert torch.equal(gemm.multiply(wide[:, 3:27], packed), gemm.multiply(wide[:, 3:27].clone(), packed))
    assert torch.equal(gemm.multiply(wide[::2, ::4][:, :24], packed), gemm.multiply(wide[::2, 0:96:4].clone(), packed))
    assert torch.equal(gemm.multiply(odd, packed), gemm.multiply(odd.clone(), packed))
    assert torch.equal(gemm.multiply(flat, packed), gemm.multiply(flat[None], packed)[0])
    cube = random(2, 3, 24, dtype=dtype)
    assert torch.equal(gemm.multiply(cube, packed).view(6, 40), gemm.multiply(cube.view(6, 24), packed))
    assert torch.equal(gemm.multiply(flat.expand(5, 24), packed)[4], gemm.multiply(flat, packed))
    assert gemm.multiply(wide[:0, :24], packed).shape == (0, 40)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_are_views_are_packed_right_and_left_alone(dtype):
    whole = random(65 * 65 + 1, dtype=dtype)
    before = whole.clone()
    x = random(3, 64, dtype=dtype)
    views = [whole[1:].view(65, 65)[1:, 1:], whole[1:].view(65, 65)[1:, :64].t(), whole[1 : 1 + 33 * 64].view(33, 64)]
    for view in views:
        torch.testing.assert_close(gemm.multiply(x, gemm.pack(view)), gemm.multiply(x, gemm.pack(view.clone())))
    assert torch.equal(whole, before)


def test_an_odd_inner_dimension_is_not_for_pairs():
    assert not gemm.packable(torch.zeros(32, 7, dtype=torch.bfloat16))
    assert not gemm.packable(torch.zeros(32, 8, dtype=torch.float16))
    assert not gemm.packable(torch.zeros(32, 8, device="meta"))
    assert gemm.packable(torch.zeros(32, 7)) == gemm.works(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_does_not_fit_is_refused(dtype):
    packed = gemm.pack(torch.zeros(32, 8, dtype=dtype))
    with pytest.raises(ValueError, match=r"\(2, 9\).*takes \[\.\.\., 8\]"):
        gemm.multiply(torch.zeros(2, 9, dtype=dtype), packed)
    with pytest.raises(ValueError, match="float64"):
        gemm.multiply(torch.zeros(2, 8, dtype=torch.float64), packed)
    with pytest.raises(ValueError, match="meta"):
        gemm.multiply(torch.zeros(2, 8, dtype=dtype, device="meta"), packed)
    with pytest.raises(ValueError, match=r"gate is \(32, 8\).*up is \(31, 8\)"):
        gemm.pack_gated(torch.zeros(32, 8, dtype=dtype), torch.zeros(31, 8, dtype=dtype))


@pytest.fixture
def asked_anew():
    gemm.works.cache_clear()
    yield
    gemm.works.cache_clear()


@pytest.mark.parametrize("missing", ["avx512f", "avx512bf16"])
def test_a_processor_without_the_instruction_is_never_given_it(missing, monkeypatch, asked_anew):
    def features():
        return {name: name != missing for name in ("avx512f", "avx512bw", "avx512vl", "avx512bf16")}

    def used():
        raise AssertionError("code for another processor was used")

    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", features)
    monkeypatch.setattr(gemm, "_code", used)
    assert not gemm.works(torch.bfloat16)
    if missing == "avx512f":
        assert not gemm.works(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("breakage", ["does not compile", "wrong", "no threads", "no numba"])
def test_left_alone_where_it_does_not_work(dtype, breakage, monkeypatch, asked_anew):
    def fails(*args):
        raise RuntimeError("cannot compile")

    if breakage == "does not compile":
        monkeypatch.setattr(gemm, "_product", fails)
    elif breakage == "wrong":
        monkeypatch.setattr(gemm, "_fill", lambda out, x, packed: out.fill_(0.5))
    elif breakage == "no threads":
        monkeypatch.setattr("pagedlab.kernels.cpu_threads.openmp", lambda: None)
    else:
        monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    assert not gemm.works(dtype)
    assert not gemm.packable(torch.zeros(32, 8, dtype=dtype))


ANOTHER_PROCESS = """
import os, torch
from pagedlab.kernels import gemm
torch.set_num_threads(2)
weight, x = torch.randn(640, 576), torch.randn(3, 576)
packed = gemm.pack(weight) if gemm.works(torch.float32) else None
expected = gemm.multiply(x, packed)
child = os.fork()
if child == 0:  # the other thread does not exist here
    torch.set_num_threads(1)
    os._exit(0 if torch.equal(gemm.multiply(x, packed), expected) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not gemm.works(torch.float32) or not hasattr(os, "fork"), reason="not on this machine")
def test_machine_code_is_kept_on_disk_and_works_after_a_fork(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DEBUG_CACHE": "1"}
    said = [
        subprocess.run(
            [sys.executable, "-c", ANOTHER_PROCESS], env=environment, capture_output=True, text=True, timeout=300
        )
        for _ in range(2)
    ]
    assert [process.returncode for process in said] == [0, 0], said
    assert "data saved" in said[0].stdout and "data saved" not in said[1].stdout
    assert "data loaded" in said[1].stdout
