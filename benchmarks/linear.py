"""What the layout of the weights is worth: `F.linear`, oneDNN's packed form, and pagedlab's tiles, on this machine.

First the matrix products alone: all those of a step of the course's model, with the gate between them, for so many rows
(the scores of all tokens for at most 32 rows: a prompt needs its last row's only). Then a whole decode step with a
short context. The kinds take turns within one run, so that a busy machine slows all of them. The products are timed a
layer at a time, and the best time of each layer counts, because a short piece finds a quiet moment sooner.

    python benchmarks/linear.py [--rows 1 2 8 32] [--dtypes float32 bfloat16] [--rounds 15] [--context 64]
"""

import argparse
import os
import platform
import time

import torch
import torch.nn.functional as F

from pagedlab.kernels import gemm
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


def products(model, rows: int) -> list:
    """The matrix products of a step, one function a layer and one for the scores."""
    config = model.config
    x = torch.randn(rows, config.hidden_size, dtype=model.dtype)

    def of(layer):
        network = layer.feed_forward
        gate_up = network.gate_up if hasattr(network.gate_up, "tiles") else lambda x: network.gate_up(x)[:, ::2]

        def step():
            layer.attention.qkv(x)
            layer.attention.out(x)
            network.down(gate_up(x))

        return step

    return [*map(of, model.layers), lambda: model.lm_head(x[:32])]


@torch.no_grad()
def best_times(steps: dict, rounds: int) -> dict:
    """steps: for each kind the functions that make up its step. Milliseconds, the sum of each function's best time."""
    best = {kind: [float("inf")] * len(parts) for kind, parts in steps.items()}
    for _ in range(rounds + 1):  # one to warm up
        for kind, parts in steps.items():
            for index, part in enumerate(parts):
                start = time.perf_counter()
                part()
                best[kind][index] = min(best[kind][index], 1e3 * (time.perf_counter() - start))
    return {kind: sum(times) for kind, times in best.items()}


def kinds_here(dtype: torch.dtype) -> list[str]:
    return ["plain"] + ["onednn"] * can_pack(dtype) + ["tiles"] * gemm.works(dtype)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 8, 16, 32, 64, 256, 512])
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16", "float16"]
    )
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each, taken in turn")
    parser.add_argument("--context", type=int, default=64, help="tokens each sequence attends over in a decode step")
    options = parser.parse_args()
    if min(*options.rows, options.rounds, options.context) < 1:
        parser.error("--rows, --rounds and --context must be at least 1")

    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    print(f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}; load average {os.getloadavg()[0]:.1f}")
    for name in options.dtypes:
        kinds = kinds_here(getattr(torch, name))
        models = {kind: load(dtype=getattr(torch, name), fast=kind).model for kind in kinds}
        _table(f"{name}, matrix products, ms", models, options.rows, options.rounds, products)
        decoding = [rows for rows in options.rows if rows <= 64]
        steps = lambda model, rows: [decode_step(model, rows, options.context)]  # noqa: E731
        _table(f"{name}, whole decode step, ms", models, decoding, options.rounds, steps)


def _table(title: str, models: dict, all_rows: list[int], rounds: int, steps) -> None:
    """A line for each number of rows: the time of each kind, and its ratio to the one before it."""
    kinds = list(models)
    ratios = [f"{kind}/{other}" for other, kind in zip(kinds, kinds[1:], strict=False)]
    print(f"\n{title}\n{'rows':>5}", *(f"{kind:>8}" for kind in kinds), *(f"{ratio:>14}" for ratio in ratios))
    for rows in all_rows:
        ms = best_times({kind: steps(model, rows) for kind, model in models.items()}, rounds)
        shares = [f"{ms[kind] / ms[other]:>13.2f}x" for other, kind in zip(kinds, kinds[1:], strict=False)]
        print(f"{rows:>5}", *(f"{ms[kind]:>8.2f}" for kind in kinds), *shares, flush=True)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
