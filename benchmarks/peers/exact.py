"""Is pagedlab's float32 output, token by token, what transformers gives? In every way the engine can come to it.

Blocks that are shared, prompts cut into chunks, requests thrown out and computed again or moved away and back: none of
it may change a single token. Each way must also have happened, or the answer would mean nothing.
"""

from typing import NamedTuple

import torch

GREEDY = {"ignore_eos": True}


class Way(NamedTuple):
    title: str
    workload: str
    options: dict  # of the engine
    happened: str  # what the engine's metrics must show, as an expression that is read by people too


def ways(num_blocks_tiny: int) -> list[Way]:
    return [
        Way("plain", "mixed", {"enable_prefix_caching": False, "max_num_batched_tokens": 8192}, ""),
        Way("prefix sharing", "prefix", {}, "num_cached_tokens"),
        Way("chunked prefill, 64 tokens a step", "mixed", {"max_num_batched_tokens": 64}, "num_steps"),
        Way("preemption, computed again", "mixed", {"num_blocks": num_blocks_tiny}, "num_preemptions"),
        Way(
            "preemption, swapped",
            "mixed",
            {"num_blocks": num_blocks_tiny, "preemption_mode": "swap", "num_cpu_blocks": 512},
            "num_preemptions",
        ),
    ]


def check(bench) -> list[dict]:
    """Prints a line for each way; SystemExit when a sequence differs or a way did not happen."""
    from pagedlab.engine.engine import Engine
    from pagedlab.engine.params import SamplingParams
    from pagedlab.model.load import load

    torch.set_num_threads(bench.options.threads)
    smol, failed, records = load(dtype=torch.float32), [], []
    print(
        "| float32 | requests | same as transformers | steps | preemptions | cached tokens |\n|---|---|---|---|---|---|"
    )
    for way in ways(num_blocks_tiny=128):
        requests = bench.requests(way.workload, 0)
        expected = bench.reference(way.workload)
        if expected is None:
            raise SystemExit("transformers is needed for comparison")
        options = {"kv_cache_memory": "0.5 GiB", "check_invariants": True} | way.options
        engine = Engine(smol.model, smol.tokenizer, **options)
        params = [SamplingParams(max_tokens=request.max_tokens, **GREEDY) for request in requests]
        outputs = engine.generate([request.prompt_ids for request in requests], params, progress=False)
        same = sum(list(a.token_ids) == b for a, b in zip(outputs, expected, strict=True))
        metrics = engine.metrics
        print(
            f"| {way.title} | {len(requests)} | {same} | {metrics.num_steps} | {metrics.num_preemptions} "
            f"| {metrics.num_cached_tokens} |",
            flush=True,
        )
        records.append({"way": way.title, "same": same, "requests": len(requests), "steps": metrics.num_steps})
        records[-1] |= {"preemptions": metrics.num_preemptions, "cached_tokens": metrics.num_cached_tokens}
        if same < len(requests):
            failed.append(f"{way.title}: {len(requests) - same} of {len(requests)} sequences differ")
        if way.happened and not getattr(metrics, way.happened):
            failed.append(f"{way.title}: {way.happened} is 0, so this was not tried")
    if failed:
        raise SystemExit("; ".join(failed))
    return records
