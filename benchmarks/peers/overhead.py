"""What share of a decode step is not the model: scheduling, describing the batch, choosing tokens, bookkeeping.

A step's time is split by wrapping the two functions in which the model runs. All else in a step is counted as overhead,
in both dtypes; a faster model makes the share larger.
"""

import statistics
import time

import torch


def check(bench, batch: int = 32, steps: int = 64) -> dict:
    """Prints the split, the median of `steps` steps with `batch` sequences decoding."""
    records = {}
    for dtype in bench.options.dtypes:
        records[dtype] = split = measure(bench, dtype, batch, steps)
        step, model = split["step_ms"], split["model_ms"]
        print(
            f"{dtype}, {batch} sequences decoding: a step {step:.1f} ms, the model {model:.1f} ms, "
            f"schedule {split['schedule_ms']:.2f} ms, all outside the model {split['share']:.1%}",
            flush=True,
        )
    return records


def measure(bench, dtype: str, batch: int, steps: int) -> dict:
    from pagedlab.engine.engine import Engine
    from pagedlab.engine.params import SamplingParams

    torch.set_num_threads(bench.options.threads)
    engine = Engine.load(dtype=getattr(torch, dtype), kv_cache_memory="0.5 GiB")
    return split_steps(engine, bench.requests("decode", 0)[:batch], SamplingParams, steps)


def split_steps(engine, requests, SamplingParams, steps: int) -> dict:
    spent = {"model": 0.0, "schedule": 0.0}

    def timed(function, part):
        def call(*arguments, **named):
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                spent[part] += time.perf_counter() - began

        return call

    model = engine.model
    engine.runner.forward = timed(engine.runner.forward, "model")
    model.logits = timed(model.logits, "model")
    engine.scheduler.schedule = timed(engine.scheduler.schedule, "schedule")
    params = SamplingParams(max_tokens=steps + 8, ignore_eos=True)
    for request in requests:
        engine.add(request.prompt_ids, params)
    while engine.scheduler.waiting or any(r.num_new_tokens > 1 for r in engine.scheduler.running):
        engine.step()
    rows = []
    for _ in range(steps):
        spent.update(model=0.0, schedule=0.0)
        began = time.perf_counter()
        engine.step()
        rows.append((time.perf_counter() - began, spent["model"], spent["schedule"]))
    step, inside, schedule = (1e3 * statistics.median(column) for column in zip(*rows, strict=True))
    share = statistics.median(1 - row[1] / row[0] for row in rows)
    return {"step_ms": step, "model_ms": inside, "schedule_ms": schedule, "share": share}
