"""On a real GPU: `pytest -m gpu tests/gpu_device`. Kernels are compiled there, and nothing else in the suite does that.

Results are compared with float64 on the CPU; what has to be equal to the last bit is compared so; and the engine's
tokens are those that it generates on the CPU.
"""

import pytest
import torch

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no GPU here", allow_module_level=True)
pytest.importorskip("triton")

from pagedlab.gpu import mode  # noqa: E402

if mode.is_interpreting():
    pytest.skip("Triton interprets in this run: `pytest -m gpu tests/gpu_device`", allow_module_level=True)

from pagedlab.engine.engine import Engine  # noqa: E402
from pagedlab.engine.graphs import GraphReplay  # noqa: E402
from pagedlab.engine.params import SamplingParams  # noqa: E402
from pagedlab.kernels import ops, prefill, triton_backend  # noqa: E402
from pagedlab.model.load import load  # noqa: E402
from tests.kernels.pages import Pages, dense, dense_decode, make_pages, random_queries  # noqa: E402

DTYPES = {torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
LENGTHS = [1, 0, 17, 300, 64, 1030]


def on_gpu(pages: Pages) -> tuple[torch.Tensor, ...]:
    """Caches, tables and lengths. Interleaved and transposed caches stay so."""
    moved = []
    for cache in pages.attention_args()[:2]:
        there = torch.empty_strided(cache.shape, cache.stride(), dtype=cache.dtype, device="cuda")
        moved.append(there.copy_(cache))
    return *moved, pages.block_tables.cuda(), pages.seq_lens.cuda()


# Results


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group_size", [1, 4, 5, 8, 24])
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (128, 16), (80, 12), (256, 1), (96, 64), (8, 3)])
def test_decode_and_prefill_compute_attention(dtype, group_size, head_dim, block_size):
    pages = make_pages(LENGTHS, 2, block_size, head_dim, dtype, token_major=True)
    q = random_queries(len(LENGTHS), 2 * group_size, head_dim, dtype=dtype)
    out = ops.paged_decode(q.cuda(), *on_gpu(pages)).cpu()
    torch.testing.assert_close(out.double(), dense_decode(q, pages), atol=DTYPES[dtype], rtol=1e-2)

    num_new = [1, 0, 17, 40, 9, 30]
    starts = torch.tensor([0, *num_new]).cumsum(0)
    q = random_queries(int(starts[-1]), 2 * group_size, head_dim, dtype=dtype)
    out = ops.paged_prefill(q.cuda(), *on_gpu(pages), starts.cuda()).cpu()
    for i in range(len(LENGTHS)):
        rows = slice(starts[i], starts[i + 1])
        right = dense(q[rows].transpose(0, 1), pages.keys[i], pages.values[i]).transpose(0, 1)
        torch.testing.assert_close(out[rows].double(), right, atol=DTYPES[dtype], rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_windows_caps_and_sinks_of_prefill(dtype):
    """As the interpreter computes them elsewhere in the suite: here against the definition, on one prompt."""
    pages, q = make_pages([90], 1, 16, 64, dtype), random_queries(40, 4, 64, dtype=dtype)
    sinks = random_queries(4, seed=3)
    arguments = q.cuda(), *on_gpu(pages), torch.tensor([0, 40]).cuda()
    out = prefill.paged_prefill(*arguments, window=21, softcap=5.0, sinks=sinks.cuda()).cpu()
    for row in range(40):
        seen = slice(50 + row + 1 - 21, 50 + row + 1)
        for head in range(4):
            scores = pages.keys[0][0, seen].double() @ q[row, head].double() / 8
            scores = torch.cat([5 * torch.tanh(scores / 5), sinks[head : head + 1].double()])
            right = torch.softmax(scores, 0)[:-1] @ pages.values[0][0, seen].double()
            torch.testing.assert_close(out[row, head].double(), right, atol=DTYPES[dtype], rtol=1e-2)


@pytest.mark.parametrize("dtype", [*DTYPES])
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (120, 12), (300, 1), (7, 5)])
def test_write_copy_and_gather_move_bytes(dtype, head_dim, block_size):
    caches = [torch.full((9, 3, block_size, head_dim), torch.nan, dtype=dtype) for _ in range(2)]
    there = [cache.cuda() for cache in caches]
    slots = torch.randperm(8 * block_size, generator=torch.Generator().manual_seed(0))[: 4 * block_size]
    slots[::3] = -1
    new = random_queries(len(slots), 3, head_dim, dtype=dtype)
    ops.kv_write(new, -new, *caches, slots, backend="torch")
    ops.kv_write(new.cuda(), -new.cuda(), *there, slots.cuda())
    pairs = [(0, 8), (1, 5), (0, 3)]
    ops.copy_blocks(*caches, pairs, backend="torch")
    ops.copy_blocks(*there, pairs)
    for mine, right in zip(there, caches, strict=True):
        torch.testing.assert_close(mine.cpu(), right, rtol=0, atol=0, equal_nan=True)
    table = [3, 8, 1]
    for mine, right in zip(
        ops.gather_kv(*there, table, 2 * block_size + 1),
        ops.gather_kv(*caches, table, 2 * block_size + 1),
        strict=True,
    ):
        torch.testing.assert_close(mine.cpu(), right, rtol=0, atol=0, equal_nan=True)


def test_what_is_on_a_gpu_goes_to_triton():
    tensor = torch.zeros(1, device="cuda")
    assert ops.resolve("auto", tensor) is triton_backend
    assert ops.resolve("auto", tensor.double()).__name__ == ops.BACKENDS["torch"]
    assert ops.resolve("auto", tensor.cpu()).__name__ == ops.BACKENDS["cpu"]


# Bits


def test_neighbours_places_and_widths_change_no_bit():
    """A sequence alone, its blocks elsewhere, its table wider: the same bits."""
    pages = make_pages(LENGTHS, 2, 16, 128, torch.float16)
    q = random_queries(len(LENGTHS), 8, 128, dtype=torch.float16).cuda()
    key_cache, value_cache, tables, lens = on_gpu(pages)
    out = ops.paged_decode(q, key_cache, value_cache, tables, lens)
    moved = torch.randperm(len(key_cache), generator=torch.Generator().manual_seed(1)).cuda()
    elsewhere = torch.empty_like(key_cache), torch.empty_like(value_cache)
    elsewhere[0][moved], elsewhere[1][moved] = key_cache, value_cache
    new_tables = torch.where(tables < 0, -1, moved[tables.clamp(min=0).long()].int())
    wide = torch.nn.functional.pad(new_tables, (0, 500), value=-1)
    assert torch.equal(ops.paged_decode(q, *elsewhere, wide, lens), out)
    for i in range(len(LENGTHS)):
        alone = ops.paged_decode(q[i : i + 1], *elsewhere, new_tables[i : i + 1], lens[i : i + 1])
        assert torch.equal(alone[0], out[i])


def test_the_block_size_changes_no_bit():
    results = []
    for block_size in (1, 3, 16, 128):
        pages = make_pages([700, 33], 2, block_size, 64, torch.float16)
        q = random_queries(2, 6, 64, dtype=torch.float16).cuda()
        decoded = ops.paged_decode(q, *on_gpu(pages))
        prefilled = ops.paged_prefill(q, *on_gpu(pages), torch.tensor([0, 1, 2]).cuda())
        results.append(torch.cat([decoded, prefilled]))
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_the_chunks_of_a_prompt_change_no_bit():
    pages = make_pages([300], 2, 16, 64, torch.bfloat16)
    q = random_queries(300, 6, 64, dtype=torch.bfloat16).cuda()
    key_cache, value_cache, tables, _ = on_gpu(pages)

    def rows(start, end):
        starts, lens = torch.tensor([0, end - start]).cuda(), torch.tensor([end]).cuda()
        return ops.paged_prefill(q[start:end], key_cache, value_cache, tables, lens, starts)

    whole = rows(0, 300)
    for start, end in ((0, 7), (7, 130), (130, 131), (131, 300)):
        assert torch.equal(rows(start, end), whole[start:end])


# Limits


def test_more_than_2_to_the_31_numbers():
    free, _ = torch.cuda.mem_get_info()
    if free < 6 * 2**30:
        pytest.skip(f"{free:,} bytes of GPU memory are free; this takes 6 GiB")
    block = (1, 16, 64)
    pool = torch.empty(2**20 + 10, 2, *block, dtype=torch.float16, device="cuda")  # 2,048 numbers a block
    caches = pool[:, 0], pool[:, 1]
    small = make_pages([20], *block, torch.float16)
    blocks = [len(pool) - 1, len(pool) - 3]
    slots = [blocks[p // 16] * 16 + p % 16 for p in range(20)]
    ops.kv_write(small.keys[0].transpose(0, 1).cuda(), small.values[0].transpose(0, 1).cuda(), *caches, slots)
    ops.copy_blocks(*caches, [(blocks[0], len(pool) - 2)])
    q = random_queries(1, 2, 64, dtype=torch.float16).cuda()
    right = ops.paged_decode(q, *on_gpu(small))
    for table in (blocks, [len(pool) - 2, blocks[1]]):
        assert torch.equal(ops.paged_decode(q, *caches, [table], [20]), right)
        assert torch.isfinite(ops.paged_prefill(q, *caches, [table], [20], [0, 1])).all()


def test_more_sequences_than_a_grid_dimension():
    num_seqs = 66_000
    tables = torch.randperm(num_seqs, generator=torch.Generator().manual_seed(0))[:, None].cuda()
    keys, values = (random_queries(num_seqs, 1, 1, 16, seed=seed).cuda() for seed in (1, 2))
    q, lens = random_queries(num_seqs, 1, 16).cuda(), torch.ones(num_seqs, dtype=torch.int32).cuda()
    right = values[tables[:, 0], 0]
    torch.testing.assert_close(ops.paged_decode(q, keys, values, tables, lens), right)
    starts = torch.arange(num_seqs + 1).cuda()
    torch.testing.assert_close(ops.paged_prefill(q, keys, values, tables, lens, starts), right)


# The engine

PROMPTS = ["The capital of France is", "Once upon a time", "Two, four, six,", "def add(a, b):", "Water is made of"]


@pytest.fixture(scope="module")
def on_both():
    return load(dtype=torch.float32), load(dtype=torch.float32, device="cuda")


def generate(loaded, prompts=PROMPTS, max_tokens=20, **options):
    """The engine afterwards, and the tokens."""
    engine = Engine(loaded.model, loaded.tokenizer, **{"num_blocks": 128, **options})
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    outputs = engine.generate(prompts, params, progress=False)
    return engine, [list(output.token_ids) for output in outputs]


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(max_num_batched_tokens=7, enable_prefix_caching=False),
        dict(num_blocks=24, block_size=3, watermark=0.0, preemption_mode="swap", num_cpu_blocks=60),
    ],
    ids=["as it comes", "chunks", "swap"],
)
def test_tokens_are_those_of_the_cpu(on_both, options):
    on_cpu, there = on_both
    _, expected = generate(on_cpu)
    engine, mine = generate(there, **options)
    assert mine == expected
    assert engine.pool.device.type == "cuda"
    assert isinstance(engine.runner._replay, GraphReplay) and engine.runner._replay._works
    assert engine.runner._replay._steps, "decode steps were recorded"


@pytest.mark.parametrize("num_prompts", [1, 2, 4])
def test_a_graph_computes_what_its_kernels_compute(on_both, num_prompts):
    """To the last bit, for batches that need no padding: others are products of another height."""
    _, there = on_both
    hidden = []
    for with_graphs in (True, False):
        engine = Engine(there.model, there.tokenizer, num_blocks=128)
        engine.runner._replay._works = with_graphs
        forward, seen = engine.runner.forward, []

        def watch(batch, before_layer, forward=forward, seen=seen):
            result = forward(batch, before_layer)
            seen.append(result.clone())
            return result

        engine.runner.forward = watch
        params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
        engine.generate(PROMPTS[:num_prompts], params, progress=False)
        assert bool(engine.runner._replay._steps) == with_graphs
        hidden.append(seen)
    for mine, right in zip(*hidden, strict=True):
        assert torch.equal(mine, right)


def test_a_long_context_grows_through_its_graphs(on_both):
    """From one part to several, with a graph for each number of parts."""
    on_cpu, there = on_both
    prompts = [list(range(500, 500 + 250)), list(range(900, 900 + 500))]
    _, expected = generate(on_cpu, prompts, 16)
    engine, mine = generate(there, prompts, 16)
    assert mine == expected
    assert {tokens for _, tokens in engine.runner._replay._steps} == {512, 1024}


def test_graphs_make_room_for_others(on_both, monkeypatch):
    """One prompt after the other ends, so batches of 5, 4, 3, 2 and 1 follow each other; one graph is kept."""
    monkeypatch.setattr("pagedlab.engine.graphs.MOST_KEPT", 1)
    params = [SamplingParams(max_tokens=4 * n, temperature=0, ignore_eos=True) for n in range(1, 6)]
    tokens = []
    for loaded in on_both:
        engine = Engine(loaded.model, loaded.tokenizer, num_blocks=128)
        tokens.append([output.token_ids for output in engine.generate(PROMPTS, params, progress=False)])
    assert tokens[0] == tokens[1]
    assert list(engine.runner._replay._steps) == [(1, 256)]


def test_what_cannot_be_recorded_runs_without_graphs(on_both, monkeypatch):
    """No recording may wait for the GPU. Afterwards everything goes on, on the stream on which it was before."""
    on_cpu, there = on_both
    _, expected = generate(on_cpu)
    write = triton_backend.kv_write

    def waiting(*arguments):
        torch.cuda.synchronize()
        write(*arguments)

    monkeypatch.setattr(triton_backend, "kv_write", waiting)
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        engine, mine = generate(there)
    assert mine == expected and not engine.runner._replay._steps
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_samples_and_beams(on_both):
    """Drawing happens from the same numbers on both: seeds, not the GPU's generator."""
    texts = []
    for loaded in on_both:
        engine = Engine(loaded.model, loaded.tokenizer, num_blocks=128)
        drawn = SamplingParams(max_tokens=8, n=3, temperature=0.7, top_k=20, top_p=0.9, seed=5, logprobs=2)
        beams = SamplingParams(max_tokens=8, beam_width=3)
        outputs = engine.generate(PROMPTS[:2], [drawn, beams], progress=False)
        texts.append([[completion.text for completion in output.outputs] for output in outputs])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_say_something_sensible(dtype):
    engine = Engine.load(dtype=dtype, device="cuda", num_blocks=64)
    text = engine.generate("The capital of France is", SamplingParams(max_tokens=8, temperature=0), progress=False)[
        0
    ].text
    assert "Paris" in text
