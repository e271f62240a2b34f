"""Backend "triton": what it refuses, and models that generate through it. By the interpreter."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from pagedlab.engine.engine import Engine
from pagedlab.engine.graphs import GraphReplay, PaddedStep, padded_size, padded_tokens
from pagedlab.engine.params import SamplingParams
from pagedlab.engine.runner import Batch
from pagedlab.kernels import ops
from pagedlab.model.tiny import tiny_llama
from tests.engine.test_replay import steps
from tests.engine.test_runner import World, alone
from tests.kernels.pages import available_backends, make_pages, random_queries

pytestmark = pytest.mark.skipif("triton" not in available_backends(), reason="Triton does not interpret here")


def test_a_step_of_prompts_chunks_and_decodes():
    tiny = tiny_llama()
    world = World(tiny, 3, num_blocks=200, backend="triton")
    old, chunked = world.request("old", [1, 2, 3, 4, 5]), world.request("chunked", list(range(30)))
    world.step([(old, 5), (chunked, 7)])
    old.output_token_ids.append(9)
    new = world.request("new", [7, 7, 8, 9, 6, 5])
    logits = world.step([(chunked, 23), (old, 1), (new, 6)])
    for request in (old, chunked, new):
        torch.testing.assert_close(logits[request.request_id], alone(tiny, request.token_ids), rtol=1e-4, atol=1e-4)


def test_the_real_model_says_the_same(smollm):
    prompts = ["The capital of France is", "Water is made of"]
    texts = []
    for backend in ("torch", "triton"):
        engine = Engine(smollm.model, smollm.tokenizer, backend=backend, num_blocks=16)
        outputs = engine.generate(prompts, SamplingParams(max_tokens=3, temperature=0), progress=False)
        texts.append([output.token_ids for output in outputs])
    assert texts[0] == texts[1] and all(len(ids) == 3 for ids in texts[0])


def test_a_padded_step_is_the_step():
    """What a CUDA graph records: rows that are padding write nothing and change nobody, and all sizes are fixed."""
    tiny = tiny_llama()
    world = World(tiny, 4, backend="triton")
    requests = [world.request(name, list(range(1, n))) for name, n in (("a", 3), ("b", 9), ("c", 2))]
    world.step([(request, request.num_tokens) for request in requests])
    step = PaddedStep(tiny, world.pool, world.runner._kernels, size=8, num_tokens=40)
    for scheduled in (requests, requests[:1], requests[1:]):  # the same places, more and fewer rows
        for request in scheduled:
            request.output_token_ids.append(request.num_tokens)
            request.table.append_tokens(1, world.allocator)
        batch = Batch([(request, 1) for request in scheduled], world.pool)
        written = world.pool._storage.isfinite().sum()
        step.set(batch)
        step.run()
        now_written = world.pool._storage.isfinite().sum()
        assert now_written - written == len(scheduled) * 2 * len(tiny.layers) * 2 * 8  # 2 kv heads of 8 numbers
        right = world.runner.forward(batch, lambda: None)
        torch.testing.assert_close(step.hidden[: len(scheduled)], right, rtol=1e-6, atol=1e-6)
        for request in scheduled:
            request.num_computed_tokens += 1


class Graphs(GraphReplay):
    """Without a GPU: what would be launched as a graph runs as it would be recorded."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        assert not self._works
        self._works = True

    def _record(self, step):
        return SimpleNamespace(replay=step.run)


def test_steps_through_graphs(monkeypatch):
    """Also where a context grows out of its graph, and where a graph had to make room for others."""
    monkeypatch.setattr("pagedlab.kernels.triton_backend.TOKENS_PER_SPLIT", 16)
    monkeypatch.setattr("pagedlab.engine.graphs.MOST_KEPT", 3)
    tiny = tiny_llama()
    played, run = (World(tiny, 4, backend="triton") for _ in range(2))
    runner = played.runner
    runner._replay = graphs = Graphs(tiny, played.pool, runner._kernels)
    for lengths in ([3, 14, 2], [4], [3, 2]):
        for mine, right in zip(steps(played, lengths, 4), steps(run, lengths, 4), strict=True):
            for name in right:
                torch.testing.assert_close(mine[name], right[name], atol=1e-5, rtol=1e-5)
    assert list(graphs._steps) == [(2, 16)]  # after (4, 16), (4, 32) and (1, 16)

    request = played.request("wrong", [97])
    request.table.append_tokens(1, played.allocator)
    with pytest.raises(ValueError, match="token id 97"):
        runner.execute([(request, 1)])


def test_sizes_that_graphs_are_made_for():
    sizes = [padded_size(n) for n in range(1, 257)]
    assert all(n <= size < n + 16 for n, size in enumerate(sizes, 1)) and sizes == sorted(sizes)
    assert sorted(set(sizes)) == [1, 2, 4, 8, *range(16, 257, 16)]
    assert [padded_tokens(n, 256) for n in (1, 256, 257, 512, 513, 5000)] == [256, 256, 512, 512, 1024, 8192]


def test_what_the_kernels_do_not_take_is_refused():
    pages = make_pages([9, 5])
    doubles = [cache.double() for cache in pages.attention_args()[:2]]
    tables = pages.attention_args()[2:]
    new, q = random_queries(2, 2, 8).double(), random_queries(2, 4, 8)
    for call in (
        lambda: ops.paged_decode(q.double(), *doubles, *tables, backend="triton"),
        lambda: ops.paged_prefill(q.double(), *doubles, *tables, [0, 1, 2], backend="triton"),
        lambda: ops.kv_write(new, new, *doubles, [0, 1], backend="triton"),
        lambda: ops.copy_blocks(*doubles, [(0, 1)], backend="triton"),
    ):
        with pytest.raises(TypeError, match="backend 'triton' takes .* not torch.float64: use backend='torch'"):
            call()
    turned = [cache.transpose(2, 3).contiguous().transpose(2, 3) for cache in pages.attention_args()[:2]]
    with pytest.raises(ValueError, match="last dimension of key_cache has stride 4"):
        ops.paged_decode(q, *turned, *tables, backend="triton")


def test_queries_and_new_tokens_may_be_strided_anyhow():
    pages, mine = make_pages([9, 5]), make_pages([9, 5])
    q = random_queries(2, 8, 4).transpose(1, 2)
    new = random_queries(3, 8, 2).transpose(1, 2)
    for backend in ("torch", "triton"):
        target = pages if backend == "torch" else mine
        ops.kv_write(new, -new, target.key_cache, target.value_cache, [0, -1, 2], backend=backend)
    torch.testing.assert_close(mine.key_cache, pages.key_cache, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(mine.value_cache, pages.value_cache, rtol=0, atol=0, equal_nan=True)
    results = [ops.paged_decode(q, *pages.attention_args(), backend=backend) for backend in ("torch", "triton")]
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-5)


def in_a_process_of_its_own(code, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    return done.stdout + done.stderr


def test_tensors_on_the_cpu_where_triton_compiles():
    code = """
import torch
from pagedlab.kernels import ops
cache = torch.zeros(2, 1, 4, 8)
ops.copy_blocks(cache, cache.clone(), [(0, 1)], backend="triton")
"""
    told = in_a_process_of_its_own(code, TRITON_INTERPRET="0")
    assert "on the CPU, but Triton compiles for a GPU" in told and "TRITON_INTERPRET=1" in told


def test_without_triton_it_says_what_to_use_instead():
    code = """
import sys
sys.modules["triton"] = None  # as good as not installed
import torch
from pagedlab.kernels import ops
cache = torch.zeros(2, 1, 4, 8)
ops.copy_blocks(cache, cache.clone(), [(0, 1)])
ops.copy_blocks(cache, cache.clone(), [(0, 1)], backend="triton")
"""
    assert "backend='triton' needs the package `triton`" in in_a_process_of_its_own(code)
