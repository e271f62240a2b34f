"""One layer's attention in a decode step, four ways: on pages by compiled loops, on pages by torch operations, pages
gathered for torch's attention, and torch's attention on keys and values that were contiguous all along.

The last does not page at all: it is what paging has to be measured against. The four take turns within one run, so that
a busy machine slows all; the best of all rounds counts. Ratios are times of the others divided by the compiled loops'.

    python benchmarks/attention.py [--batch 1 8 32] [--context 192 1024] [--dtypes float32 bfloat16] [--prompt 512]

Shapes are those of the course's model: 9 query heads, 3 kv heads of 64 numbers, blocks of 16 tokens, in random order.
"""

import argparse
import os
import platform
import time

import torch
import torch.nn.functional as F

from pagedlab.kernels import ops

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16


def decode(batch: int, context: int, dtype: torch.dtype, layers: int):
    """Each way as a function of the layer number. Every layer has its own pool: real ones are not in the cache."""
    pages, tables = make_pages(batch, context, dtype, layers)
    seq_lens = torch.full((batch,), context)
    q = torch.randn(batch, NUM_HEADS, HEAD_DIM).to(dtype)
    grouped = q.view(batch, NUM_KV_HEADS, -1, HEAD_DIM)  # query heads of a group as rows of one matrix
    scale = HEAD_DIM**-0.5

    def on_pages(backend):
        kernels = ops.resolve(backend)
        return lambda layer: kernels.paged_decode(q, *pages[layer % layers], tables, seq_lens, scale)

    def gathered(layer):
        keys, values = (gather(cache, tables, context) for cache in pages[layer % layers])
        return F.scaled_dot_product_attention(grouped, keys, values).view(q.shape)

    dense = [[gather(cache, tables, context) for cache in caches] for caches in pages]

    def contiguous(layer):
        return F.scaled_dot_product_attention(grouped, *dense[layer % layers]).view(q.shape)

    return {
        "compiled": on_pages("cpu"),
        "torch": on_pages("torch"),
        "gathered": gathered,
        "contiguous": contiguous,
    }


def prefill(prompt: int, dtype: torch.dtype, layers: int):
    """The same for a whole prompt of one sequence, causal."""
    pages, tables = make_pages(1, prompt, dtype, layers)
    seq_lens, starts = torch.tensor([prompt]), torch.tensor([0, prompt])
    q = torch.randn(prompt, NUM_HEADS, HEAD_DIM).to(dtype)
    heads_first, scale = q.transpose(0, 1)[None], HEAD_DIM**-0.5

    def on_pages(backend):
        kernels = ops.resolve(backend)
        return lambda layer: kernels.paged_prefill(q, *pages[layer % layers], tables, seq_lens, starts, scale)

    def causal(keys, values):
        out = F.scaled_dot_product_attention(heads_first, keys, values, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)

    dense = [[gather(cache, tables, prompt) for cache in caches] for caches in pages]
    return {
        "compiled": on_pages("cpu"),
        "torch": on_pages("torch"),
        "gathered": lambda layer: causal(*(gather(cache, tables, prompt) for cache in pages[layer % layers])),
        "contiguous": lambda layer: causal(*dense[layer % layers]),
    }


def make_pages(batch: int, context: int, dtype: torch.dtype, layers: int):
    blocks = -(-context // BLOCK_SIZE)
    tables = torch.randperm(batch * blocks).view(batch, blocks)
    shape = (batch * blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    return [[torch.randn(shape).to(dtype) for _ in range(2)] for _ in range(layers)], tables


def gather(cache: torch.Tensor, tables: torch.Tensor, context: int) -> torch.Tensor:
    """All sequences' tokens in order, `[batch, num_kv_heads, context, head_dim]`."""
    blocks = cache[tables].transpose(1, 2)  # [batch, num_kv_heads, blocks, block_size, head_dim]
    return blocks.flatten(2, 3)[:, :, :context].contiguous()


@torch.no_grad()
def best_times(ways: dict, rounds: int, layers: int) -> dict:
    """Milliseconds a layer, the best of `rounds`. In each round every way does all layers, in turn."""
    results = [way(0).float() for way in ways.values()]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=2e-2, rtol=2e-2)
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            for layer in range(layers):
                way(layer)
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start) / layers)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], help="sequences decoded together")
    parser.add_argument("--context", type=int, nargs="+", default=[192, 1024], help="tokens each looks at")
    parser.add_argument("--prompt", type=int, nargs="*", default=[128, 512], help="prompts to prefill, tokens")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=10, help="measurements of each, taken in turn")
    parser.add_argument("--layers", type=int, default=8, help="pools to go through, so that none stays in the cache")
    options = parser.parse_args()
    if min(*options.batch, *options.context, *options.prompt, options.rounds, options.layers) < 1:
        parser.error("all numbers must be at least 1")
    try:
        ops.resolve("cpu")
    except ImportError as error:
        parser.error(f"the compiled loops need numba: {error}")

    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    print(f"{torch.backends.cpu.get_cpu_capability()}; load average {os.getloadavg()[0]:.1f}\n")
    print(f"{'':34} {'ms a layer':>10}   {'times as long, on':>17}")
    print(f"{'':34} {'compiled':>10}   {'torch':>8} {'gathered':>9} {'contiguous':>11}")
    for name in options.dtypes:
        dtype = getattr(torch, name)
        for context in options.context:
            for batch in options.batch:
                ways = decode(batch, context, dtype, options.layers)
                report(f"{name:<9} decode  {batch:>3} x {context}", best_times(ways, options.rounds, options.layers))
        for prompt in options.prompt:
            ways = prefill(prompt, dtype, options.layers)
            report(f"{name:<9} prefill   1 x {prompt}", best_times(ways, options.rounds, options.layers))


def report(what: str, ms: dict) -> None:
    ratios = {name: ms[name] / ms["compiled"] for name in ms}
    print(
        f"{what:<34} {ms['compiled']:>10.3f}   {ratios['torch']:>7.1f}x {ratios['gathered']:>8.1f}x "
        f"{ratios['contiguous']:>10.2f}x",
        flush=True,
    )


if __name__ == "__main__":
    main()
