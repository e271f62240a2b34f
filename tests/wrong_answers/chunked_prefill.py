"""Plausible wrong answers to `chunked_prefill`."""

from tests.corpus import wrong

NEEDS = "One number for each request, none more than it needs"
BUDGET = "The budget is kept"
DECODES = "Decodes come before prompts"
LEFT = "No token of the budget is left while somebody needs it"
PROMPTS = "Prompts in order: one begins when those before it have all they need"
IN_ORDER = "Decodes in order too"
THOUSAND = "Also for a thousand requests and a budget of 512"


def right(needs, budget):
    shares = [0] * len(needs)
    for decoding in (True, False):
        for index, need in enumerate(needs):
            if (need == 1) == decoding:
                shares[index] = min(need, budget)
                budget -= shares[index]
    return shares


@wrong(DECODES, "needs one token and gets none")
def in_order_of_arrival(num_new_tokens, token_budget):
    shares = []
    for need in num_new_tokens:
        shares.append(min(need, token_budget))
        token_budget -= shares[-1]
    return shares


@wrong(BUDGET, "for a step of at most")
def the_budget_is_each_ones_own(num_new_tokens, token_budget):
    return [min(need, token_budget) for need in num_new_tokens]


@wrong(BUDGET, "for a step of at most")
def decodes_are_free(num_new_tokens, token_budget):
    shares = []
    for need in num_new_tokens:
        shares.append(1 if need == 1 else min(need, token_budget))
        token_budget -= 0 if need == 1 else shares[-1]
    return shares


@wrong(LEFT, "could be")
def whole_prompts_or_nothing(num_new_tokens, token_budget):
    shares = [0] * len(num_new_tokens)
    for decoding in (True, False):
        for index, need in enumerate(num_new_tokens):
            if (need == 1) == decoding and need <= token_budget:
                shares[index] = need
                token_budget -= need
    return shares


@wrong(LEFT, "could be")
def an_equal_share_for_each_prompt(num_new_tokens, token_budget):
    shares = [0] * len(num_new_tokens)
    for index, need in enumerate(num_new_tokens):
        if need == 1 and token_budget:
            shares[index], token_budget = 1, token_budget - 1
    prompts = [index for index, need in enumerate(num_new_tokens) if need > 1]
    for index in prompts:
        shares[index] = min(num_new_tokens[index], token_budget // len(prompts))
    return shares


@wrong(LEFT, "could be")
def one_prompt_a_step(num_new_tokens, token_budget):
    shares = [0] * len(num_new_tokens)
    for index, need in enumerate(num_new_tokens):
        if need == 1 and token_budget:
            shares[index], token_budget = 1, token_budget - 1
    for index, need in enumerate(num_new_tokens):
        if need > 1:
            shares[index] = min(need, token_budget)
            break
    return shares


@wrong(PROMPTS, "which came first")
def the_shortest_prompt_first(num_new_tokens, token_budget):
    shares = [0] * len(num_new_tokens)
    for index in sorted(range(len(num_new_tokens)), key=lambda index: num_new_tokens[index]):
        shares[index] = min(num_new_tokens[index], token_budget)
        token_budget -= shares[index]
    return shares


@wrong(PROMPTS, "which came first")
def the_last_prompt_first(num_new_tokens, token_budget):
    return (
        right(num_new_tokens[::-1], token_budget)[::-1]
        if 1 not in num_new_tokens
        else right(num_new_tokens, token_budget)
    )


@wrong(NEEDS, "request")
def leaves_out_who_gets_nothing(num_new_tokens, token_budget):
    return [share for share in right(num_new_tokens, token_budget) if share]


@wrong(NEEDS, "was given")
def the_whole_budget_to_each(num_new_tokens, token_budget):
    return [token_budget for _ in num_new_tokens]


@wrong(NEEDS, "was given -")
def the_rest_goes_below_zero(num_new_tokens, token_budget):
    shares = [0] * len(num_new_tokens)
    for index, need in enumerate(num_new_tokens):
        if need == 1:
            shares[index], token_budget = 1, token_budget - 1
    for index, need in enumerate(num_new_tokens):
        if need > 1:
            shares[index] = min(need, token_budget)
            token_budget -= shares[index]
    return shares


@wrong(NEEDS, "changed the list")
def takes_from_the_callers_list(num_new_tokens, token_budget):
    shares = right(num_new_tokens, token_budget)
    for index, share in enumerate(shares):
        num_new_tokens[index] -= share
    return shares


@wrong(NEEDS, "this is None")
def forgets_to_return(num_new_tokens, token_budget):
    right(num_new_tokens, token_budget)


@wrong(NEEDS, "whole numbers")
def halves_of_tokens(num_new_tokens, token_budget):
    return [share / 1 for share in right(num_new_tokens, token_budget)]


@wrong(IN_ORDER, "came first")
def the_latest_decode_first(num_new_tokens, token_budget):
    decodes = [index for index, need in enumerate(num_new_tokens) if need == 1]
    if len(decodes) <= token_budget:
        return right(num_new_tokens, token_budget)
    return [int(index in decodes[len(decodes) - token_budget :]) for index in range(len(num_new_tokens))]


@wrong(THOUSAND, "could be")
def at_most_256_a_prompt(num_new_tokens, token_budget):
    return right([min(need, 256) for need in num_new_tokens], token_budget)


@wrong(NEEDS, "has 0 new tokens and was given 1")
def nobody_goes_without(num_new_tokens, token_budget):
    return right([max(need, 1) for need in num_new_tokens], token_budget)


@wrong(THOUSAND, "could be")
def no_chunk_above_two_thousand(num_new_tokens, token_budget):
    return [min(share, 2048) for share in right(num_new_tokens, token_budget)]
