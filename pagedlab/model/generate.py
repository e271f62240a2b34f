"""Greedy generation: the most likely token, again and again."""

from collections.abc import Callable, Collection, Sequence

import torch

from pagedlab.cache.protocol import KVCache, NoCache
from pagedlab.model.llama import Llama


def generate(
    model: Llama,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    cache: KVCache | None = None,
    eos_token_id: int | Collection[int] | None = None,
    on_token: Callable[[int], None] | None = None,
) -> list[int]:
    """The new token ids, at most `max_new_tokens`; an end-of-sequence id ends the list and is part of it.

    With a cache, the prompt runs through the model once ("prefill") and every later step feeds one token ("decode").
    A cache that already holds tokens is continued. With `cache=None` every step runs the whole sequence again.
    `on_token` is called with each new id as soon as it is known.

    ValueError, before anything runs: an empty prompt, or more positions than the model has.
    """
    cache = NoCache() if cache is None else cache
    stored_before = cache.num_tokens
    _check_length(model, stored_before, len(prompt_ids), max_new_tokens)
    stop = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())

    ids, num_prompt = [int(token) for token in prompt_ids], len(prompt_ids)
    while len(ids) < num_prompt + max_new_tokens:
        not_stored = ids[cache.num_tokens - stored_before :]  # the prompt, then one token a step; NoCache: everything
        token = int(model(not_stored, cache, logits_to_keep=1)[-1].argmax())
        ids.append(token)
        if on_token is not None:
            on_token(token)
        if token in stop:
            break
    return ids[num_prompt:]


def generate_cached(model: Llama, prompt_ids: Sequence[int], max_new_tokens: int, cache: KVCache) -> list[int]:
    """Prefill once, then one token at a time: exactly `max_new_tokens` new ids.

    The last new id is returned, not fed: the cache ends up holding the prompt and `max_new_tokens - 1` tokens more.
    """
    _check_length(model, cache.num_tokens, len(prompt_ids), max_new_tokens)
    new_ids: list[int] = []
    step_ids = torch.as_tensor(prompt_ids)
    while len(new_ids) < max_new_tokens:
        logits = model(step_ids, cache, logits_to_keep=1)
        new_ids.append(int(logits[-1].argmax()))
        step_ids = torch.tensor(new_ids[-1:])
    return new_ids


def _check_length(model: Llama, stored: int, num_prompt: int, max_new_tokens: int) -> None:
    if num_prompt == 0:
        raise ValueError("the prompt is empty: the model needs at least one token to continue from")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be 0 or more, not {max_new_tokens}")
    limit = model.config.max_position_embeddings
    if stored + num_prompt + max_new_tokens - 1 > limit:
        raise ValueError(
            f"{stored} stored + {num_prompt} prompt + {max_new_tokens} new tokens do not fit "
            f"the model's {limit} positions"
        )
