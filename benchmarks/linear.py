"""How much packed weights save in a decode step: plain `F.linear` against oneDNN's packed form, on this machine.

A whole step of the course's model (every layer, attention over a short context, the scores of all tokens), for each
number of sequences decoded together. The two kinds take turns within one run, so that a busy machine slows both; the
best of all rounds counts.

    python benchmarks/linear.py [--rows 1 32] [--dtypes float32 bfloat16] [--rounds 15] [--context 64]
"""

import argparse
import os
import platform
import time

import torch
import torch.nn.functional as F

from pagedlab.model.linear import can_pack
from pagedlab.model.load import load


def decode_step(model, rows: int, context: int):
    """One step for `rows` sequences of `context` tokens each. Their caches are random: the time is the same."""
    config = model.config
    num_kv_heads, head_dim = config.num_key_value_heads, config.head_dim
    shape = (config.num_hidden_layers, rows, num_kv_heads, context, head_dim)
    keys, values = (torch.randn(shape, dtype=model.dtype) for _ in range(2))
    token_ids, positions = torch.arange(rows), torch.full((rows,), context - 1)

    def attend(layer, q, k, v):
        """All sequences at once: they are equally long here. The query heads of a group are rows of one matrix."""
        keys[layer, :, :, -1], values[layer, :, :, -1] = k.transpose(0, 1), v.transpose(0, 1)
        grouped = q.view(num_kv_heads, -1, rows, head_dim).permute(2, 0, 1, 3)  # [rows, num_kv_heads, group, head_dim]
        out = F.scaled_dot_product_attention(grouped, keys[layer], values[layer])
        return out.permute(1, 2, 0, 3).reshape(q.shape)

    def step():
        return model.logits(model.forward_tokens(token_ids, positions, attend))

    return step


def linears_only(model, rows: int):
    """The matrix products of a step and nothing else."""
    linears = [model.lm_head]
    for layer in model.layers:
        linears += [layer.attention.qkv, layer.attention.out, layer.feed_forward.gate_up, layer.feed_forward.down]
    sizes = {linear.in_features for linear in linears}
    inputs = {size: torch.randn(rows, size, dtype=model.dtype) for size in sizes}

    def step():
        for linear in linears:
            linear(inputs[linear.in_features])

    return step


@torch.no_grad()
def best_times(steps: dict, rounds: int) -> dict:
    """Milliseconds, the best of `rounds`; in each round every step runs once, in turn."""
    best = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32], help="sequences decoded together")
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16", "float16"]
    )
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each, taken in turn")
    parser.add_argument("--context", type=int, default=64, help="tokens each sequence attends over")
    options = parser.parse_args()
    if min(*options.rows, options.rounds, options.context) < 1:
        parser.error("--rows, --rounds and --context must be at least 1")

    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    print(f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}; load average {os.getloadavg()[0]:.1f}")
    print(f"\n{'':<9} {'rows':>4}   {'whole step, ms':^24}   {'linear layers only, ms':^24}")
    print(f"{'dtype':<9} {'':>4}   {'plain':>7} {'packed':>7} {'ratio':>7}    {'plain':>7} {'packed':>7} {'ratio':>7}")
    for name in options.dtypes:
        dtype = getattr(torch, name)
        if not can_pack(dtype):
            print(f"{name:<9} packed weights do not work here; the plain path is used")
            continue
        models = {kind: load(dtype=dtype, fast=kind == "packed").model for kind in ("plain", "packed")}
        for rows in options.rows:
            whole = {kind: decode_step(model, rows, options.context) for kind, model in models.items()}
            whole = best_times(whole, options.rounds)
            only = best_times({kind: linears_only(model, rows) for kind, model in models.items()}, options.rounds)
            figures = [
                f"{ms['plain']:>7.1f} {ms['packed']:>7.1f} {ms['plain'] / ms['packed']:>6.2f}x" for ms in (whole, only)
            ]
            print(f"{name:<9} {rows:>4}   {figures[0]}    {figures[1]}", flush=True)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
