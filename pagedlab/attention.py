"""Dense attention: every key and value of one sequence lies in one contiguous tensor.

Two functions. `attend` is the whole idea for one new token, written as plainly as it can be. `attention` does the same
for any number of new tokens at once, which is what a prompt needs. Both are the yardstick for everything paged.

Source: Vaswani et al., "Attention Is All You Need", section 3.2 (arXiv:1706.03762); grouped-query attention from
Ainslie et al., "GQA" (arXiv:2305.13245).
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


def _check_heads(num_heads: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    if keys.shape != values.shape:
        raise ValueError(f"keys are {tuple(keys.shape)} but values are {tuple(values.shape)}; they must be equal")
    if num_heads % keys.shape[0]:
        raise ValueError(f"{num_heads} query heads cannot share {keys.shape[0]} kv heads equally")
