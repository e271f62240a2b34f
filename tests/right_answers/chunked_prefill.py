"""Right answers to `chunked_prefill`, in other styles."""

from tests.corpus import right


@right
def two_rounds(num_new_tokens, token_budget):
    shares = [0] * len(num_new_tokens)
    for decoding in (True, False):
        for index, need in enumerate(num_new_tokens):
            if (need == 1) == decoding:
                shares[index] = min(need, token_budget)
                token_budget -= shares[index]
    return shares


@right
def sorted_by_kind(num_new_tokens, token_budget):
    order = sorted(range(len(num_new_tokens)), key=lambda index: num_new_tokens[index] > 1)
    shares = {}
    for index in order:
        shares[index] = min(num_new_tokens[index], token_budget)
        token_budget -= shares[index]
    return tuple(shares[index] for index in range(len(num_new_tokens)))


@right
def counts_decodes_first(num_new_tokens, token_budget):
    decodes = min(token_budget, num_new_tokens.count(1))
    left, result = token_budget - decodes, []
    for need in num_new_tokens:
        if need == 1:
            result.append(1 if decodes > 0 else 0)
            decodes -= 1
        else:
            result.append(max(0, min(need, left)))
            left -= result[-1]
    return result
