"""The memory benchmark on a tiny model: both caches really run, and the bytes are those of what was held."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

from pagedlab.model.generate import generate
from pagedlab.model.tiny import tiny_llama

SOURCE = Path(__file__).parents[1] / "benchmarks" / "memory.py"


def benchmark():
    spec = importlib.util.spec_from_file_location("memory_benchmark", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_runs_give_the_tokens_of_a_plain_run_and_count_what_they_hold():
    memory, model = benchmark(), tiny_llama()
    smol = SimpleNamespace(model=model, config=model.config)
    requests = [memory.Request([5, 6, 7], 4), memory.Request([8], 1), memory.Request(list(range(20)), 9)]
    static_ids, num_bytes, tokens = memory.run_static(smol, requests, max_len=32)
    paged_ids, bytes_per_block, held = memory.run_paged(smol, requests, block_size=4)

    assert static_ids == paged_ids == [generate(model, prompt_ids, num_new) for prompt_ids, num_new in requests]
    per_token = 2 * 2 * 2 * 8 * 4  # key and value, layers, kv heads, head_dim, bytes
    assert (num_bytes, bytes_per_block) == (3 * 32 * per_token, 4 * per_token)
    assert tokens[:2] == [24, 25] and len(tokens) == len(held) == 9
    assert held[0] == (1 + 1 + 5, 24)  # all prompts
    assert held[1] == (1 + 6, 25)  # the second request had all it wanted, and has given its block back
    assert held[-1] == (7, 28)
