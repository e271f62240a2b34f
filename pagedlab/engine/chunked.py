"""Dividing the tokens of one step among the requests that want some.

A long prompt computed in one step keeps everybody else waiting for their next token. Cut into chunks that fill what the
others leave of a fixed budget, it does not: every step costs about the same, and no answer stalls.

Source: Agrawal et al., Sarathi-Serve (arXiv:2403.02310), section 4.
"""

from collections.abc import Sequence


def chunked_prefill(num_new_tokens: Sequence[int], token_budget: int) -> list[int]:
    """How many tokens each request gets in this step.

    num_new_tokens: what each request has to compute, in the order of their turns. Requests with one token, which are
    in the middle of their answers, are served first; the others share what is left, in order. Nobody gets more than it
    wants, and nothing is left over while anybody wants more: the sum is min(token_budget, sum(num_new_tokens)).
    ValueError: a negative number.
    """
    _check(num_new_tokens, token_budget)
    if sum(num_new_tokens) <= token_budget:
        return list(num_new_tokens)
    scheduled = [0] * len(num_new_tokens)
    for index in _turns(num_new_tokens):
        scheduled[index] = min(num_new_tokens[index], token_budget)
        token_budget -= scheduled[index]
    return scheduled


def whole_prompts(num_new_tokens: Sequence[int], token_budget: int) -> list[int]:
    """The same without chunks: a request gets all its tokens or none. The first that gets none ends the step.

    Nobody jumps the queue: a short prompt behind a long one that does not fit waits as well.
    """
    _check(num_new_tokens, token_budget)
    scheduled = [0] * len(num_new_tokens)
    for index in _turns(num_new_tokens):
        if num_new_tokens[index] > token_budget:
            break
        scheduled[index] = num_new_tokens[index]
        token_budget -= scheduled[index]
    return scheduled


def _turns(num_new_tokens: Sequence[int]) -> list[int]:
    """Indices: first those of requests with at most one token, then the others; each group in order."""
    return sorted(range(len(num_new_tokens)), key=lambda index: num_new_tokens[index] > 1)


def _check(num_new_tokens: Sequence[int], token_budget: int) -> None:
    if token_budget < 0 or min(num_new_tokens, default=0) < 0:
        raise ValueError(f"token counts cannot be negative: {list(num_new_tokens)} tokens, a budget of {token_budget}")
