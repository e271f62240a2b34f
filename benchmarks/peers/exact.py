"""Is pagedlab's float32 output, token by token, what transformers gives? In every way the engine can come to it.

Blocks that are shared, prompts cut into chunks, requests thrown out and computed again or moved away and back: none of
it may change a single token. Each way must also have happened, or the answer would mean nothing.
"""

from typing import NamedTuple

import torch

from pagedlab.cache.accounting import blocks_needed


class Way(NamedTuple):
    title: str
    workload: str
    options: dict  # of the engine
    happened: str = ""  # the column that must not be 0


def ways(requests, block_size: int = 16) -> list[Way]:
    """requests: of `mixed`. The tiny pool holds a quarter of what they need together, and the largest alone."""
    blocks = [blocks_needed(len(request.prompt_ids) + request.max_tokens, block_size) for request in requests]
    tiny = max(*blocks, sum(blocks) // 4)
    return [
        Way("plain", "mixed", {"enable_prefix_caching": False, "max_num_batched_tokens": 8192}),
        Way("prefix sharing", "prefix", {}, "cached tokens"),
        Way("chunked prefill, 64 tokens a step", "mixed", {"max_num_batched_tokens": 64}, "chunks"),
        Way("preemption, computed again", "mixed", {"num_blocks": tiny}, "preemptions"),
        Way(
            "preemption, swapped",
            "mixed",
            {"num_blocks": tiny, "preemption_mode": "swap", "num_cpu_blocks": sum(blocks)},
            "blocks swapped",
        ),
    ]


COLUMNS = ("steps", "chunks", "cached tokens", "preemptions", "blocks swapped")


def check(bench) -> list[dict]:
    """Prints a line for each way; SystemExit when a sequence differs or a way did not happen."""
    from pagedlab.engine.engine import Engine
    from pagedlab.model.load import load

    torch.set_num_threads(bench.options.threads)
    smol, failed, records = load(dtype=torch.float32), [], []
    expected = {workload: bench.reference(workload) for workload in ("mixed", "prefix")}
    if None in expected.values():
        raise SystemExit("without transformers there is nothing to compare with")
    print(f"| float32 | same as transformers | {' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 2)}|", flush=True)
    for way in ways(bench.requests("mixed", 0)):
        options = {"kv_cache_memory": "0.5 GiB", "check_invariants": True} | way.options
        engine = Engine(smol.model, smol.tokenizer, **options)
        same, counts = serve(engine, bench.requests(way.workload, 0), expected[way.workload])
        total = len(expected[way.workload])
        print(f"| {way.title} | {same}/{total} | {' | '.join(f'{counts[c]:,}' for c in COLUMNS)} |", flush=True)
        records.append({"way": way.title, "same": same, "requests": total} | counts)
        if same < total:
            failed.append(f"{way.title}: {total - same} of {total} sequences differ")
        if way.happened and not counts[way.happened]:
            failed.append(f"{way.title}: {way.happened} is 0, so this was not tried")
    if failed:
        raise SystemExit("; ".join(failed))
    return records


def serve(engine, requests, expected: list[list[int]]) -> tuple[int, dict[str, int]]:
    """How many outputs are the expected ones, and how the engine came to them."""
    from pagedlab.engine.params import SamplingParams

    counts = dict.fromkeys(COLUMNS, 0)
    move = engine.runner.move

    def counted(output):
        counts["blocks swapped"] += len(output.swap_out)
        counts["chunks"] += sum(request.num_new_tokens > num_tokens for request, num_tokens in output.scheduled)
        move(output)

    engine.runner.move = counted
    params = [SamplingParams(max_tokens=request.max_tokens, ignore_eos=True) for request in requests]
    outputs = engine.generate([request.prompt_ids for request in requests], params, progress=False)
    metrics = engine.metrics
    counts["steps"], counts["cached tokens"] = metrics.num_steps, metrics.num_cached_tokens
    counts["preemptions"] = metrics.num_preemptions
    return sum(list(a.token_ids) == b for a, b in zip(outputs, expected, strict=True)), counts
