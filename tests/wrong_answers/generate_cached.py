"""Plausible wrong answers to `generate_cached`."""

import torch

from pagedlab.cache.growing import GrowingCache
from tests.corpus import wrong

NEW = "Exactly the asked number of new ids"
SAME = "The same ids as without a cache"
TWICE = "No token is computed twice"
AT_ONCE = "The whole prompt in one call"


def best(logits):
    return int(logits[-1].argmax())


@wrong(NEW, "prompt came back too")
def returns_the_prompt_too(model, prompt_ids, max_new_tokens, cache):
    ids, step = list(prompt_ids), list(prompt_ids)
    for _ in range(max_new_tokens):
        step = [best(model(step, cache))]
        ids += step
    return ids


@wrong(NEW, "Asked for none")
def always_writes_the_first(model, prompt_ids, max_new_tokens, cache):
    new = [best(model(prompt_ids, cache))]
    while len(new) < max_new_tokens:
        new.append(best(model(new[-1:], cache)))
    return new


@wrong(NEW)
def one_too_many(model, prompt_ids, max_new_tokens, cache):
    new = [best(model(prompt_ids, cache))]
    for _ in range(max_new_tokens):
        new.append(best(model(new[-1:], cache)))
    return new


@wrong(NEW)
def one_too_few(model, prompt_ids, max_new_tokens, cache):
    new, step = [], prompt_ids
    for _ in range(max_new_tokens - 1):
        step = [best(model(step, cache))]
        new += step
    return new


@wrong(NEW, "nothing ends the text early")
def stops_at_end_of_sequence(model, prompt_ids, max_new_tokens, cache):
    new, step = [], prompt_ids
    for _ in range(max_new_tokens):
        step = [best(model(step, cache))]
        new += step
        if step[0] == model.config.eos_token_id:
            break
    return new


@wrong(NEW, "prompt was changed")
def writes_into_the_prompt(model, prompt_ids, max_new_tokens, cache):
    start, step = len(prompt_ids), list(prompt_ids)
    for _ in range(max_new_tokens):
        step = [best(model(step, cache))]
        prompt_ids += step
    return prompt_ids[start:]


@wrong(NEW, "list of token ids")
def returns_a_lone_id(model, prompt_ids, max_new_tokens, cache):
    step = prompt_ids
    for _ in range(max_new_tokens):
        step = [best(model(step, cache))]
    return step[0]


@wrong(NEW, "without the cache")
def forgets_the_cache(model, prompt_ids, max_new_tokens, cache):
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        ids.append(best(model(ids)))
    return ids[len(prompt_ids) :]


@wrong(NEW, "without the cache")
def forgets_the_cache_when_decoding(model, prompt_ids, max_new_tokens, cache):
    new, logits = [], model(prompt_ids, cache)
    for _ in range(max_new_tokens):
        new.append(best(logits))
        logits = model(new[-1:])
    return new


@wrong(NEW, "another cache")
def makes_its_own_cache(model, prompt_ids, max_new_tokens, cache):
    mine, new, step = GrowingCache(model.config.num_hidden_layers), [], prompt_ids
    for _ in range(max_new_tokens):
        step = [best(model(step, mine))]
        new += step
    return new


@wrong(NEW, "takes a list")
def feeds_a_bare_id(model, prompt_ids, max_new_tokens, cache):
    new, step = [], prompt_ids
    for _ in range(max_new_tokens):
        step = best(model(step, cache))
        new.append(step)
    return new


@wrong(NEW, "list in a list")
def adds_a_batch_dimension(model, prompt_ids, max_new_tokens, cache):
    new, step = [], torch.tensor([prompt_ids])
    for _ in range(max_new_tokens):
        new.append(best(model(step, cache)))
        step = torch.tensor([new[-1:]])
    return new


@wrong(SAME, "very first id")
def reads_the_first_row(model, prompt_ids, max_new_tokens, cache):
    new, step = [], prompt_ids
    for _ in range(max_new_tokens):
        step = [int(model(step, cache)[0].argmax())]
        new += step
    return new


@wrong(SAME, "very first id")
def least_likely(model, prompt_ids, max_new_tokens, cache):
    new, step = [], prompt_ids
    for _ in range(max_new_tokens):
        step = [int(model(step, cache)[-1].argmin())]
        new += step
    return new


@wrong(SAME, "very first id")
def argmax_over_everything(model, prompt_ids, max_new_tokens, cache):
    new, step = [], prompt_ids
    for _ in range(max_new_tokens):
        step = [int(model(step, cache).argmax()) % model.config.vocab_size]
        new += step
    return new


@wrong(SAME, "a later one isn't")
def feeds_everything_again(model, prompt_ids, max_new_tokens, cache):
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        ids.append(best(model(ids, cache)))
    return ids[len(prompt_ids) :]


@wrong(SAME, "a later one isn't")
def feeds_all_new_ids_again(model, prompt_ids, max_new_tokens, cache):
    new, step = [], prompt_ids
    for _ in range(max_new_tokens):
        new.append(best(model(step, cache)))
        step = new
    return new


@wrong(SAME, "a later one isn't")
def feeds_the_last_prompt_token_for_ever(model, prompt_ids, max_new_tokens, cache):
    new, step = [], prompt_ids
    for _ in range(max_new_tokens):
        new.append(best(model(step, cache)))
        step = prompt_ids[-1:]
    return new


@wrong(SAME, "With the cache, other text")
def prefills_and_then_feeds_the_last_token_again(model, prompt_ids, max_new_tokens, cache):
    model(prompt_ids, cache)
    new, step = [], prompt_ids[-1:]
    for _ in range(max_new_tokens):
        step = [best(model(step, cache))]
        new += step
    return new


@wrong(SAME, "With the cache, other text")
def feeds_only_the_end_of_the_prompt(model, prompt_ids, max_new_tokens, cache):
    new, step = [], prompt_ids[-1:]
    for _ in range(max_new_tokens):
        step = [best(model(step, cache))]
        new += step
    return new


@wrong(TWICE, "would do")
def empties_the_cache_before_each_step(model, prompt_ids, max_new_tokens, cache):
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        cache.__init__(model.config.num_hidden_layers)
        ids.append(best(model(ids, cache)))
    return ids[len(prompt_ids) :]


@wrong(AT_ONCE, "the prompt has")
def feeds_the_prompt_token_by_token(model, prompt_ids, max_new_tokens, cache):
    for token in prompt_ids:
        logits = model([token], cache)
    new = []
    while len(new) < max_new_tokens:
        new.append(best(logits))
        if len(new) < max_new_tokens:
            logits = model(new[-1:], cache)
    return new


@wrong(NEW, "40 new ids asked for, 16 given")
def never_more_than_sixteen(model, prompt_ids, max_new_tokens, cache):
    new, step = [], list(prompt_ids)
    for _ in range(min(max_new_tokens, 16)):
        step = [best(model(step, cache))]
        new += step
    return new
