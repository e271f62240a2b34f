"""How much memory the keys and values of many mixed requests take: the static cache against the paged one.

The course's model really runs, twice: every request is generated on a row of a static cache, then on blocks of a paged
pool, and both must give the same tokens. All requests start together. A step decodes one token for each that is not
finished; a finished one gives its row or its blocks back. Nobody new comes in, so this says how much memory is held,
not how many requests a second are served. Lengths are drawn evenly between the limits; prompts are cut from this
project's README.

    python benchmarks/memory.py [--requests 32] [--prompt 16 256] [--output 16 128] [--block-size 16] [--max-len 384]

About two minutes on two CPU cores. `--max-len` is how long the rows of the static cache are; by default the longest
that the limits allow, which is the best choice for someone who knows the limits but not the lengths.
"""

import argparse
import random
import time
from pathlib import Path
from typing import NamedTuple

import torch

from pagedlab.cache.accounting import blocks_needed, kv_bytes_per_token
from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.paged import PagedKVCache, PagedSequence
from pagedlab.cache.protocol import Contiguous
from pagedlab.cache.static import StaticCache
from pagedlab.model.load import load

README = Path(__file__).parents[1] / "README.md"


class Request(NamedTuple):
    prompt_ids: list[int]
    num_new: int

    @property
    def num_stored(self) -> int:
        """Tokens in the cache at its end: the last new one is never fed."""
        return len(self.prompt_ids) + self.num_new - 1


def draw_requests(tokenizer, options) -> list[Request]:
    # Lengths and places are drawn apart: another README changes the words, never the lengths.
    chance, place = random.Random(options.seed), random.Random(options.seed)
    text_ids = tokenizer.encode(README.read_text(encoding="utf-8"))
    requests = []
    for _ in range(options.requests):
        num_prompt, num_new = chance.randint(*options.prompt), chance.randint(*options.output)
        start = place.randrange(len(text_ids))
        repeated = text_ids[start:] + text_ids * (num_prompt // len(text_ids) + 1)
        requests.append(Request(repeated[:num_prompt], num_new))
    return requests


@torch.no_grad()
def run(model, requests, caches, finish, after_step) -> list[list[int]]:
    """Generate all requests side by side, each on its own cache. Returns their new ids.

    finish(i) gives request i's memory back; after_step() is called while the memory of a step is still held.
    """
    new_ids = [
        [int(model(request.prompt_ids, cache, logits_to_keep=1)[-1].argmax())]
        for request, cache in zip(requests, caches, strict=True)
    ]
    after_step()
    running = list(range(len(requests)))
    while running:
        for i in [i for i in running if len(new_ids[i]) == requests[i].num_new]:
            finish(i)
            running.remove(i)
        if running:
            for i, token in zip(running, decode(model, [caches[i] for i in running], new_ids, running), strict=True):
                new_ids[i].append(token)
            after_step()
    return new_ids


def decode(model, caches, new_ids, running) -> list[int]:
    """One step: the newest token of every running request goes through the model together."""
    token_ids = torch.tensor([new_ids[i][-1] for i in running])
    positions = torch.tensor([cache.num_tokens for cache in caches])

    def attend(layer, q, keys, values):
        rows = [
            cache.attend(layer, q[:, i : i + 1], keys[:, i : i + 1], values[:, i : i + 1])
            for i, cache in enumerate(caches)
        ]
        return torch.cat(rows, dim=1)

    return model.logits(model.forward_tokens(token_ids, positions, attend)).argmax(-1).tolist()


def run_static(smol, requests, max_len):
    """Returns the new ids, the bytes reserved, and the number of tokens after each step."""
    config = smol.config
    cache = StaticCache(
        config.num_hidden_layers, len(requests), config.num_key_value_heads, max_len, config.head_dim, smol.model.dtype
    )
    tokens = []
    new_ids = run(
        smol.model,
        requests,
        [Contiguous(cache.row(i)) for i in range(len(requests))],
        finish=cache.free,
        after_step=lambda: tokens.append(sum(cache.num_tokens(i) for i in range(len(requests)))),
    )
    return new_ids, cache.nbytes, tokens


def run_paged(smol, requests, block_size):
    """Returns the new ids, the bytes of a block, and (blocks in use, tokens in them) after each step."""
    config = smol.config
    enough = sum(blocks_needed(request.num_stored, block_size) for request in requests)
    pool = PagedKVCache(
        config.num_hidden_layers, enough, config.num_key_value_heads, block_size, config.head_dim, smol.model.dtype
    )
    allocator = BlockAllocator(enough)
    sequences = [PagedSequence(pool, allocator) for _ in requests]
    held = []
    new_ids = run(
        smol.model,
        requests,
        sequences,
        finish=lambda i: sequences[i].free(),
        after_step=lambda: held.append((enough - allocator.num_free, sum(s.num_tokens for s in sequences))),
    )
    return new_ids, pool.bytes_per_block, held


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32, help="how many")
    parser.add_argument("--prompt", type=int, nargs=2, default=[16, 256], metavar=("FROM", "TO"), help="prompt tokens")
    parser.add_argument("--output", type=int, nargs=2, default=[16, 128], metavar=("FROM", "TO"), help="new tokens")
    parser.add_argument("--block-size", type=int, default=16, help="slots in a block of the paged cache")
    parser.add_argument("--max-len", type=int, help="slots in a row of the static cache")
    parser.add_argument("--seed", type=int, default=0, help="for the lengths and the places in the text")
    options = parser.parse_args()
    if min(options.requests, options.prompt[0], options.output[0], options.block_size) < 1:
        parser.error("--requests, --prompt, --output and --block-size must be at least 1")
    if options.prompt[0] > options.prompt[1] or options.output[0] > options.output[1]:
        parser.error("--prompt and --output take the smaller number first")
    max_len = options.max_len or options.prompt[1] + options.output[1]

    smol = load()
    requests = draw_requests(smol.tokenizer, options)
    longest = max(request.num_stored for request in requests)
    if longest > max_len:
        parser.error(f"--max-len is {max_len}, but a request stores {longest} tokens: give at least that")
    if longest + 1 > smol.config.max_position_embeddings:
        parser.error(f"a request of {longest + 1} tokens is longer than {smol.config.name} can read")

    started = time.perf_counter()
    static_ids, static_bytes, static_tokens = run_static(smol, requests, max_len)
    paged_ids, bytes_per_block, held = run_paged(smol, requests, options.block_size)
    seconds = time.perf_counter() - started

    per_token = kv_bytes_per_token(smol.config, smol.model.dtype.itemsize)
    blocks, tokens = max(held)
    same = sum(a == b for a, b in zip(static_ids, paged_ids, strict=True))
    prompt_tokens = [len(request.prompt_ids) for request in requests]
    output_tokens = [request.num_new for request in requests]
    print(f"{smol.config.name}, {smol.model.dtype}, {per_token:,} bytes a token; {len(requests)} requests at once")
    print(f"prompts {min(prompt_tokens)} to {max(prompt_tokens)} tokens, {sum(prompt_tokens):,} in all; ", end="")
    print(f"outputs {min(output_tokens)} to {max(output_tokens)}, {sum(output_tokens):,} in all")
    print(f"same tokens on both caches: {same} of {len(requests)} requests ({seconds:.0f} s for both runs)\n")

    print(f"{'at the peak':<28} {'memory held':>12} {'of it tokens':>13} {'slots unused':>13}")
    static_slots = len(requests) * max_len
    rows = (
        (f"static, rows of {max_len:,}", static_bytes, static_slots, max(static_tokens)),
        (f"paged, blocks of {options.block_size}", blocks * bytes_per_block, blocks * options.block_size, tokens),
    )
    for name, num_bytes, slots, stored in rows:
        print(f"{name:<28} {num_bytes / 1e6:>9.1f} MB {stored / slots:>13.1%} {slots - stored:>13,}")
    mean_blocks = sum(step[0] for step in held) / len(held)
    print(f"\nstatic holds {static_bytes / (blocks * bytes_per_block):.2f} times as much at the paged peak, ", end="")
    print(f"{static_bytes / (mean_blocks * bytes_per_block):.2f} times on average over the {len(held)} steps")


if __name__ == "__main__":
    main()
