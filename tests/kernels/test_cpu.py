"""What the compiled backend promises beyond right answers: to the last bit the same, whatever surrounds a sequence.

That its answers are right is tested with those of every backend, in `test_ops.py` and `tests/cases/`.
"""

import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedlab.kernels import cpu, cpu_threads, gemm, ops, reference
from tests.kernels.pages import make_pages, random_queries

DTYPES = [torch.float32, torch.bfloat16]
WAYS = ["loops", "tiles"]
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
LENGTHS = [1, 17, 64, 65, 300, 511, 512, 513, 1500]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Prefill by register tiles, which some processors have, and by the loops that all have."""
    if request.param == "loops":
        monkeypatch.setattr(gemm, "works", lambda dtype: False)
    elif not gemm.works(torch.float32) or not gemm.works(torch.bfloat16):
        pytest.skip("this processor does not have the tile")
    return request.param


def decode(q, pages):
    return ops.paged_decode(q, *pages.attention_args(), backend="cpu")


def prefill(q, pages, starts):
    return ops.paged_prefill(q, *pages.attention_args(), starts, backend="cpu")


@every_dtype
def test_long_contexts_come_in_pieces(dtype):
    pages = make_pages(LENGTHS, head_dim=64, dtype=dtype)
    q = random_queries(len(LENGTHS), 6, 64, dtype=dtype)
    expected = ops.paged_decode(q, *pages.attention_args(), backend="torch")
    torch.testing.assert_close(decode(q, pages), expected, **tolerance(dtype))


@every_dtype
@pytest.mark.parametrize("group_size, head_dim", [(1, 64), (3, 64), (5, 7), (7, 80), (200, 33)])
def test_prefill_of_any_shape(dtype, group_size, head_dim, way):
    lengths, new = ([130], [3]) if group_size > 100 else ([1, 32, 33, 127, 129, 300], [1, 32, 1, 90, 128, 17])
    pages = make_pages(lengths, head_dim=head_dim, dtype=dtype)
    q = random_queries(sum(new), 2 * group_size, head_dim, dtype=dtype)
    starts = torch.tensor([0, *new]).cumsum(0)
    expected = ops.paged_prefill(q, *pages.attention_args(), starts, backend="torch")
    torch.testing.assert_close(prefill(q, pages, starts), expected, **tolerance(dtype))


def test_bfloat16_errors_are_no_worse_than_torch_attention(way):
    pages = make_pages([512], num_kv_heads=3, head_dim=64, dtype=torch.bfloat16)
    q = random_queries(512, 9, 64, dtype=torch.bfloat16)
    keys, values = pages.keys[0], pages.values[0]

    def torch_attention(dtype):
        heads = [x.to(dtype)[None] for x in (q.transpose(0, 1), keys, values)]
        return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1).double()

    exact = torch_attention(torch.float64)
    error = (prefill(q, pages, [0, 512]).double() - exact).square().mean().sqrt()
    torch_error = (torch_attention(torch.bfloat16) - exact).square().mean().sqrt()
    assert error < 1.05 * torch_error


def test_large_scores_of_a_prompt(way):
    """Scores of 1e8 have no digits left behind the point: which of two near ones wins is open, that one wins is not."""
    for spread in (1e-3, 30.0, 1e4):
        pages = make_pages([200], head_dim=64, spread=spread)
        q = random_queries(200, 4, 64, spread=spread)
        result = prefill(q, pages, [0, 200])
        assert result.isfinite().all() and result.abs().max() <= 1.001 * pages.values[0].abs().max()
        if spread < 1e4:
            expected = ops.paged_prefill(q, *pages.attention_args(), [0, 200], backend="torch")
            torch.testing.assert_close(result, expected, atol=1e-3 * spread, rtol=1e-4)
    pages = make_pages([200], head_dim=64)
    pages.value_cache[pages.block_tables[0, 2]] = torch.nan  # a stored NaN is the sequence's own, and must be seen
    assert prefill(random_queries(200, 4, 64), pages, [0, 200])[12:].isnan().all()


@every_dtype
def test_the_same_bits_for_any_block_size_and_order(dtype, way):
    q = random_queries(len(LENGTHS), 6, 64, dtype=dtype)
    chunk = random_queries(sum(LENGTHS), 6, 64, dtype=dtype)
    starts = torch.tensor([0, *LENGTHS]).cumsum(0)
    contents = make_pages(LENGTHS, head_dim=64, dtype=dtype)
    first = None
    for block_size, seed in [(4, 0), (16, 1), (16, 2), (1, 3), (130, 4)]:
        pages = make_pages(LENGTHS, head_dim=64, dtype=dtype, block_size=block_size, seed=seed, extra_columns=seed)
        refill(pages, contents)
        results = decode(q, pages), prefill(chunk, pages, starts)
        first = first or results
        assert torch.equal(results[0], first[0]) and torch.equal(results[1], first[1])


@every_dtype
def test_the_same_bits_in_any_company_and_with_any_threads(dtype, way):
    pages = make_pages(LENGTHS, head_dim=64, dtype=dtype)
    q = random_queries(len(LENGTHS), 6, 64, dtype=dtype)
    chunk, new = random_queries(500, 6, 64, dtype=dtype), [1, 3, 64, 20, 5, 200, 1, 13, 193]
    starts = torch.tensor([0, *new]).cumsum(0)
    together, chunks = decode(q, pages), prefill(chunk, pages, starts)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(decode(q, pages), together)
            assert torch.equal(prefill(chunk, pages, starts), chunks)
    finally:
        torch.set_num_threads(before)
    for i, length in enumerate(LENGTHS):
        own = pages.key_cache, pages.value_cache, pages.block_tables[i : i + 1, : -(-length // 4)], [length]
        assert torch.equal(ops.paged_decode(q[i : i + 1], *own, backend="cpu"), together[i : i + 1])
        mine = slice(starts[i], starts[i + 1])
        assert torch.equal(ops.paged_prefill(chunk[mine], *own, [0, new[i]], backend="cpu"), chunks[mine])


@every_dtype
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, 299), max_size=6))
def test_the_same_bits_for_any_chunks_of_a_prompt(dtype, way, cuts):
    pages = make_pages([300], head_dim=16, dtype=dtype)
    q = random_queries(300, 6, 16, dtype=dtype)
    whole = prefill(q, pages, [0, 300])
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 300], strict=True):
        pages.seq_lens[0] = end
        assert torch.equal(prefill(q[start:end], pages, [0, end - start]), whole[start:end])


@every_dtype
def test_strides_of_queries_and_new_tokens(dtype):
    """The model hands over views of one matrix of all heads: nothing is copied to make them contiguous."""
    pages = make_pages([9, 33], head_dim=8, dtype=dtype)
    heads = random_queries(2, 10, 8, dtype=dtype)
    q, k, v = heads.split([6, 2, 2], dim=1)
    assert torch.equal(decode(q, pages), decode(q.clone(), pages))
    strided, plain = (torch.zeros_like(pages.key_cache) for _ in range(2))
    ops.kv_write(k, v, strided, strided.clone(), [3, 8], backend="cpu")
    ops.kv_write(k.clone(), v.clone(), plain, plain.clone(), [3, 8], backend="cpu")
    assert torch.equal(strided, plain) and strided.any()
    backwards = q.transpose(1, 2).contiguous().transpose(1, 2)  # the last dimension is not the dense one
    assert torch.equal(decode(backwards, pages), decode(q, pages))


def test_large_scores_and_infinities():
    for spread in (1e-3, 30.0, 1e4):
        pages = make_pages([5, 130], head_dim=64, spread=spread)
        q = random_queries(2, 4, 64, spread=spread)
        expected = ops.paged_decode(q, *pages.attention_args(), backend="torch")
        torch.testing.assert_close(decode(q, pages), expected, atol=2e-6 * spread, rtol=1e-4)
    pages = make_pages([70], head_dim=8)
    pages.value_cache[pages.block_tables[0, 2]] = torch.nan  # a stored NaN is the sequence's own, and must be seen
    assert decode(random_queries(1, 2, 8), pages).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_types_take_the_torch_path(dtype):
    pages = make_pages([5, 20], dtype=dtype)
    q = random_queries(2, 4, 8, dtype=dtype)
    assert torch.equal(decode(q, pages), ops.paged_decode(q, *pages.attention_args(), backend="torch"))
    assert cpu.gather_kv is reference.gather_kv


def test_rounding_to_bfloat16_is_to_nearest_even():
    """One token: its value comes back as it is. Two with equal weight: their mean, rounded as torch rounds it."""
    for seed in range(5):
        pages = make_pages([2], num_kv_heads=1, head_dim=64, dtype=torch.bfloat16, seed=seed)
        out = decode(torch.zeros(1, 1, 64, dtype=torch.bfloat16), pages)
        assert torch.equal(out[0], pages.values[0].float().mean(1).bfloat16())


def test_two_python_threads_at_once():
    pages, q = make_pages([300] * 4, head_dim=64), random_queries(4, 6, 64)
    expected, wrong = decode(q, pages), []

    def work():
        wrong.extend(i for i in range(50) if not torch.equal(decode(q, pages), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_can_go_on():
    """The course's checks run in forked processes, and OpenMP's threads do not follow there."""
    program = """
import os, signal, torch
from pagedlab.kernels import ops
torch.set_num_threads(2)
q, cache, tables = torch.randn(8, 6, 64), torch.randn(64, 2, 16, 64), torch.arange(64).view(8, 8)
before = ops.paged_decode(q, cache, cache, tables, [128] * 8, backend="cpu")
child = os.fork()
if child == 0:
    signal.alarm(60)
    after = ops.paged_decode(q, cache, cache, tables, [128] * 8, backend="cpu")
    os._exit(0 if torch.equal(before, after) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_torch_own_threads_are_found():
    """Else everything would still be right, and run on one core."""
    if sys.platform == "linux":
        assert cpu_threads.openmp() is not None


def test_importing_does_not_load_numba():
    program = "import sys, pagedlab, pagedlab.kernels.ops, pagedlab.model.llama; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_without_numba_torch_does_the_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it fails now
    for name in [name for name in sys.modules if name.startswith("pagedlab.kernels.cpu")]:
        monkeypatch.delitem(sys.modules, name)
    ops._compiled_loops_work.cache_clear()
    try:
        assert ops.resolve("auto") is reference
        with pytest.raises(ImportError):
            ops.resolve("cpu")
    finally:
        ops._compiled_loops_work.cache_clear()


def refill(pages, contents):
    """Write the tokens of `contents` where these pages keep theirs."""
    block_size = pages.key_cache.shape[2]
    for i, (keys, values) in enumerate(zip(contents.keys, contents.values, strict=True)):
        table = pages.block_tables[i]
        slots = [int(table[p // block_size]) * block_size + p % block_size for p in range(keys.shape[1])]
        new = keys.transpose(0, 1), values.transpose(0, 1)
        ops.kv_write(*new, pages.key_cache, pages.value_cache, slots, backend="cpu")


def tolerance(dtype):
    return dict(atol=2e-6, rtol=1e-5) if dtype == torch.float32 else dict(atol=1e-2, rtol=1e-2)
