"""Right answers to `generate_cached` in styles other than ours."""

import numpy as np
import torch

from pagedlab.model.generate import generate
from tests.corpus import right


@right
def first_call_before_the_loop(model, prompt_ids, max_new_tokens, cache):
    if max_new_tokens == 0:
        return []
    new = [int(model(prompt_ids, cache)[-1].argmax())]
    while len(new) < max_new_tokens:
        new.append(int(model([new[-1]], cache)[-1].argmax()))
    return new


@right
def recursion(model, prompt_ids, max_new_tokens, cache):
    if max_new_tokens == 0:
        return []
    token = int(torch.argmax(model(prompt_ids, cache, logits_to_keep=1)))
    return [token] + recursion(model, [token], max_new_tokens - 1, cache)


@right
def tensors_all_the_way(model, prompt_ids, max_new_tokens, cache):
    step, new = torch.tensor(prompt_ids), []
    for _ in range(max_new_tokens):
        step = model(step, cache)[-1:].argmax(dim=-1)
        new.append(step)
    return torch.cat(new) if new else []


@right
def feeds_the_last_id_as_well(model, prompt_ids, max_new_tokens, cache):
    """One call more than needed: the cache then holds everything that was written."""
    new, logits = [], model(prompt_ids, cache)
    for _ in range(max_new_tokens):
        new.append(int(logits[-1].argmax()))
        logits = model(new[-1:], cache)
    return new


def stream(model, ids, cache):
    while True:
        token = model(tuple(ids), cache=cache, logits_to_keep=1).argmax().item()
        yield token
        ids = [token]


@right
def takes_from_a_generator(model, prompt_ids, max_new_tokens, cache):
    return [token for token, _ in zip(stream(model, prompt_ids, cache), range(max_new_tokens), strict=False)]


@right
def one_list_and_a_mark(model, prompt_ids, max_new_tokens, cache):
    ids, done = list(prompt_ids), 0
    while len(ids) < len(prompt_ids) + max_new_tokens:
        logits = model(ids[done:], cache)
        done = len(ids)
        ids.append(max(range(logits.shape[1]), key=logits[-1].tolist().__getitem__))
    return ids[len(prompt_ids) :]


@right
def lets_the_course_do_it(model, prompt_ids, max_new_tokens, cache):
    return generate(model, prompt_ids, max_new_tokens, cache)


@right
def feeds_numpy_arrays(model, prompt_ids, max_new_tokens, cache):
    new = np.zeros(max_new_tokens, dtype=np.int64)
    step = np.array(prompt_ids)
    for i in range(max_new_tokens):
        new[i] = model(step, cache)[-1].argmax()
        step = new[i : i + 1]
    return new
