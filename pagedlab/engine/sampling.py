"""From a row of logits to a token.

Greedy rows take the largest logit. The others draw, and the order of what is done to the probabilities is vLLM's:

1. temperature: divide the logits
2. top_k: keep the k most likely tokens, and let their probabilities sum to 1 again
3. top_p: of those, keep the fewest that sum to p or more ("nucleus", Holtzman et al., arXiv:1904.09751)
4. draw one: walk along the probabilities until they sum to more than a random number between 0 and 1

The random number is computed from the request's seed and the token's place, not taken from a running generator. So a
request draws the same whoever shares the batch, and after a preemption or a step that was cut short there is no
generator to wind back.
"""

import hashlib
import struct
from collections import defaultdict
from collections.abc import Sequence

import torch

from pagedlab.engine.params import SamplingParams
from pagedlab.model import pointwise

FIRST_TRY = 1024
"""Sorting a vocabulary is slow, and the likely tokens are few. top_p looks at so many first, and at all if it must."""


def uniform(seed: int, sample_index: int, token_index: int) -> float:
    """A number in [0, 1) for one token of one sample; the same in every process."""
    numbers = struct.pack("<QQQ", seed % 2**64, sample_index, token_index)
    digest = hashlib.blake2b(numbers, digest_size=8).digest()
    return int.from_bytes(digest, "little") // 2**11 / 2**53  # as many bits as a float holds


def sample(logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """One token id for each row of `logits`, `[num_rows, vocab_size]`.

    ValueError: a row has NaN in it. Somebody read keys and values that nobody had written.
    """
    tokens = pointwise.largest(logits)
    chosen = tokens.tolist()
    if -1 in chosen:
        raise ValueError(f"row {chosen.index(-1)} of the logits has NaN in it")
    groups = defaultdict(list)  # rows that are shaped alike go together
    for row, wanted in enumerate(params):
        if wanted.temperature > 0:
            top_k = wanted.top_k if wanted.top_k < logits.shape[1] else 0
            groups[top_k, wanted.top_p < 1].append(row)
    for (top_k, nucleus), rows in groups.items():
        temperature = logits.new_tensor([params[row].temperature for row in rows], dtype=torch.float32)
        largest = logits[rows, tokens[rows]].float()[:, None]
        # The largest becomes 0 first, so that no temperature is too low: at worst all others become -inf.
        scaled = (logits[rows].float() - largest) / temperature.clamp(min=1e-9)[:, None]
        draws = temperature.new_tensor([uniforms[row] for row in rows], dtype=torch.float64)[:, None]
        top_p = temperature.new_tensor([params[row].top_p for row in rows])[:, None] if nucleus else None
        tokens[rows] = _draw_group(scaled, top_k, top_p, draws)
    return tokens.tolist() if groups else chosen


def _draw_group(scaled: torch.Tensor, top_k: int, top_p: torch.Tensor | None, draws: torch.Tensor) -> torch.Tensor:
    """scaled: `[num_rows, vocab_size]`; top_k is the same for all rows; top_p and draws: `[num_rows, 1]`."""
    if not top_k and top_p is None:
        return _walk(scaled.softmax(dim=-1), draws)
    if top_k:
        scores, ids = scaled.topk(top_k)
        probabilities = scores.softmax(dim=-1)
    else:
        probabilities, ids = _most_likely(scaled.softmax(dim=-1), top_p)
    if top_p is not None:
        before = probabilities.cumsum(dim=-1) - probabilities  # of all more likely tokens
        probabilities = probabilities.where(before < top_p, 0)
    return ids.gather(1, _walk(probabilities, draws)[:, None])[:, 0]


def _most_likely(probabilities: torch.Tensor, top_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """At least as many tokens as sum to `top_p` in every row, most likely first."""
    if probabilities.shape[1] > FIRST_TRY:
        values, ids = probabilities.topk(FIRST_TRY)
        if (values.sum(dim=-1, keepdim=True) >= top_p).all():
            return values, ids
    return probabilities.sort(dim=-1, descending=True)


def _walk(probabilities: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The column where each row's running sum first exceeds its draw. The rows need not sum to 1."""
    sums = probabilities.cumsum(dim=-1, dtype=torch.float64)
    return torch.searchsorted(sums, draws * sums[:, -1:], right=True).squeeze(1).clamp(max=sums.shape[1] - 1)


def log_probabilities(row: torch.Tensor, token: int, count: int) -> dict[int, float]:
    """The log-probability of `token` and of the `count` most likely tokens, in that order. row: `[vocab_size]`."""
    logprobs = row.float().log_softmax(dim=-1)
    best = logprobs.topk(min(count, len(logprobs)))
    return {token: float(logprobs[token])} | dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
