"""Attention over the keys and values of one sequence: all at once, or a part at a time.

All at once, from one contiguous tensor: `attend` is the whole idea for one new token, written as plainly as it can be.
`attention` does the same for any number of new tokens, which is what a prompt needs. Both are the yardstick for
everything paged.

A part at a time: `partial_attention` looks at some of the tokens and says how much they weigh; `merge_partials` joins
two such results into what both parts together would have given. Merging part after part is the online softmax: no score
has to wait for all the others, so the parts may lie anywhere.

Sources: Vaswani et al., "Attention Is All You Need", section 3.2 (arXiv:1706.03762); grouped-query attention from
Ainslie et al., "GQA" (arXiv:2305.13245); Milakov and Gimelshein, "Online normalizer calculation for softmax"
(arXiv:1805.02867); merging by log-sum-exp as in FlashInfer, section 2 (arXiv:2501.01005).
"""

import math

import torch


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query token looks at every stored token.

    q: `[num_heads, head_dim]`. keys, values: `[num_kv_heads, num_tokens, head_dim]`.
    Returns `[num_heads, head_dim]`.

    No mask is needed: everything stored came before the query, or is the query's own token.
    """
    _check_heads(q.shape[0], keys, values)
    group_size = q.shape[0] // keys.shape[0]  # query heads that share one kv head
    keys = keys.repeat_interleave(group_size, dim=0)  # head h reads kv head h // group_size
    values = values.repeat_interleave(group_size, dim=0)

    scores = torch.einsum("hd,htd->ht", q, keys) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores.float(), dim=-1).to(values.dtype)
    return torch.einsum("ht,htd->hd", weights, values)


def attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Causal attention of the newest tokens of one sequence over all of its tokens.

    q: `[num_heads, num_new, head_dim]`, the LAST `num_new` of the `num_tokens` positions.
    keys, values: `[num_kv_heads, num_tokens, head_dim]`. `scale` defaults to `1 / sqrt(head_dim)`.
    Returns `[num_heads, num_new, head_dim]`.

    ValueError: heads that do not divide into groups, or more queries than positions.
    """
    num_heads, num_new, head_dim = q.shape
    num_kv_heads, num_tokens, _ = keys.shape
    _check_heads(num_heads, keys, values)
    if num_new > num_tokens:
        raise ValueError(f"{num_new} query tokens but only {num_tokens} positions: a query's own key must be included")
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    group_size = num_heads // num_kv_heads

    # The heads of a group read the same keys, so their queries can be rows of one matrix: nothing is repeated.
    rows = q.reshape(num_kv_heads, group_size * num_new, head_dim)
    scores = (rows @ keys.transpose(1, 2)).float() * scale

    if num_new > 1:
        # New token i is position num_tokens - num_new + i. It must not see what comes after it.
        future = torch.ones(num_new, num_tokens, dtype=torch.bool, device=q.device).triu(num_tokens - num_new + 1)
        scores = scores.view(num_kv_heads, group_size, num_new, num_tokens).masked_fill(future, -math.inf)

    weights = torch.softmax(scores, dim=-1).to(values.dtype).view(num_kv_heads, group_size * num_new, num_tokens)
    return (weights @ values).view(num_heads, num_new, head_dim)


def partial_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What some of the tokens contribute: attention over them alone, and the weight of that result.

    q: `[..., num_rows, head_dim]`; keys, values: `[..., num_tokens, head_dim]`; visible: `[..., num_rows, num_tokens]`,
    True where a row may see a token. Tokens that no row sees may hold anything, NaN too.
    Returns `out [..., num_rows, head_dim]` and `lse [..., num_rows]`, the natural logarithm of the sum of exp(score).
    A row that sees nothing gets zeros and an lse of -inf. Computed in float32, or in q's type if that is wider.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    # The scale comes last: a 16-bit query multiplied by it first would be rounded once more.
    scores = (q.to(dtype) @ keys.to(dtype).transpose(-1, -2)) * scale
    scores = scores.masked_fill(~visible, -math.inf)
    if keys.shape[-2] == 0:  # there is no largest of no scores
        return q.new_zeros(q.shape, dtype=dtype), q.new_full(q.shape[:-1], -math.inf, dtype=dtype)
    largest = _finite(scores.amax(dim=-1))
    weights = torch.exp(scores - largest.unsqueeze(-1))
    total = weights.sum(dim=-1)  # at least 1, the largest's own weight, or 0 where nothing is visible
    weights = weights / total.clamp(min=1).unsqueeze(-1)
    # A weight of 0 is no protection: 0 * NaN is NaN. What nobody sees must be taken out of the values as well.
    seen = visible.any(dim=-2).unsqueeze(-1)
    return weights @ values.to(dtype).masked_fill(~seen, 0), largest + torch.log(total)


def merge_partials(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two sets of tokens from the attention over each.

    out: `[..., head_dim]`, lse: `[...]`, the natural logarithm of each part's sum of exp(score). Returns the same two
    for the union. A part without tokens has an lse of -inf and counts for nothing, whatever its `out` holds; two of
    them give zeros.
    """
    # exp(lse) would overflow, so both are taken relative to the larger one.
    largest = _finite(torch.maximum(lse_a, lse_b))
    weight_a, weight_b = torch.exp(lse_a - largest), torch.exp(lse_b - largest)
    total = weight_a + weight_b
    lse = largest + torch.log(total)  # log(0) is -inf: still empty

    # The larger weight is 1, so the total is at least 1, or 0 if both are empty.
    share_a, share_b = ((weight / total.clamp(min=1)).unsqueeze(-1) for weight in (weight_a, weight_b))
    out_a = out_a.masked_fill((lse_a == -math.inf).unsqueeze(-1), 0)
    out_b = out_b.masked_fill((lse_b == -math.inf).unsqueeze(-1), 0)
    return share_a * out_a + share_b * out_b, lse


def _finite(largest: torch.Tensor) -> torch.Tensor:
    """The same, with 0 for -inf. -inf - (-inf) is NaN; exp(-inf - 0) is the 0 that is meant.

    Only for use inside an exp. As a running maximum, 0 would swamp later scores that are all far below it.
    """
    return largest.masked_fill(largest == -math.inf, 0)


def _check_heads(num_heads: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    if keys.shape != values.shape:
        raise ValueError(f"keys are {tuple(keys.shape)} but values are {tuple(values.shape)}; they must be equal")
    if num_heads % keys.shape[0]:
        raise ValueError(f"{num_heads} query heads cannot share {keys.shape[0]} kv heads equally")
