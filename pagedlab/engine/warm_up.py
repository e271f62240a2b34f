"""Compile what the engine runs on, before anybody has to wait for it: `python -m pagedlab.engine.warm_up`.

The loops of the CPU backend become machine code when they are first used, and are kept for the next process
(`pagedlab.kernels.cpu_threads`). A tiny model takes every way through them once.
"""

import sys
import time

LONG = 5.0  # seconds after which it is worth saying what they were spent on


def warm_up() -> float:
    """Returns the seconds it took: some 10 to 30 the first time on a machine, about 2 later on."""
    import torch

    from pagedlab.engine.engine import Engine
    from pagedlab.engine.params import SamplingParams
    from pagedlab.model.tiny import tiny_llama

    started = time.perf_counter()
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny_llama(num_heads=6, num_kv_heads=2, head_dim=64, num_layers=1, dtype=dtype, fast=True)
        engine = Engine(model, num_blocks=64, max_num_batched_tokens=64)
        prompts = [[1] * 150, [2] * 30, [3]]  # long and short ones, so that chunks and decodes meet
        engine.generate(prompts, SamplingParams(max_tokens=4), progress=False)
    return time.perf_counter() - started


if __name__ == "__main__":
    seconds = warm_up()
    if seconds > LONG:
        print(f"pagedlab: compiled for this processor in {seconds:.0f} s; this is kept", file=sys.stderr)
