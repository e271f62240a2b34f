"""Plausible wrong answers to `merge_partials`."""

import math

import torch

from tests.corpus import wrong

OUT = "out is attention over both parts"
LSE = "lse is the logarithm of both sums together"
ROWS = "Any number of dimensions in front"
LARGE = "Large and very negative scores do no harm"
EMPTY = "An empty part counts for nothing, whatever it holds"
BOTH = "Two empty parts stay empty"
PURE = "What it is given stays as it was"


def correct(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    safe = torch.where(lse == -math.inf, 0.0, lse)
    out = 0
    for out_i, lse_i in ((out_a, lse_a), (out_b, lse_b)):
        share = torch.exp(lse_i - safe).unsqueeze(-1)
        out = out + share * torch.where(share == 0, 0.0, out_i)
    return out, lse


@wrong(OUT, "same weight")
def averages(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)


@wrong(OUT, "added as they are")
def adds(out_a, lse_a, out_b, lse_b):
    return out_a + out_b, torch.logaddexp(lse_a, lse_b)


@wrong(OUT, "other's weight")
def swaps_the_weights(out_a, lse_a, out_b, lse_b):
    out, lse = correct(out_b, lse_a, out_a, lse_b)
    return out, lse


@wrong(OUT, "lse themselves")
def weighs_by_the_logarithms(out_a, lse_a, out_b, lse_b):
    weight_a, weight_b = lse_a.unsqueeze(-1), lse_b.unsqueeze(-1)
    return (weight_a * out_a + weight_b * out_b) / (weight_a + weight_b), torch.logaddexp(lse_a, lse_b)


@wrong(OUT, "powers of 2")
def takes_them_for_base_two(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp2(lse_a, lse_b)
    share_a, share_b = (torch.exp2(one - lse).unsqueeze(-1) for one in (lse_a, lse_b))
    return share_a * out_a + share_b * out_b, lse


@wrong(OUT, "don't sum to 1")
def forgets_to_divide(out_a, lse_a, out_b, lse_b):
    largest = torch.maximum(lse_a, lse_b)
    weight_a, weight_b = (torch.exp(one - largest).unsqueeze(-1) for one in (lse_a, lse_b))
    return weight_a * out_a + weight_b * out_b, torch.logaddexp(lse_a, lse_b)


@wrong(OUT, "don't sum to 1")
def forgets_to_divide_plain_weights(out_a, lse_a, out_b, lse_b):
    return lse_a.exp()[..., None] * out_a + lse_b.exp()[..., None] * out_b, torch.logaddexp(lse_a, lse_b)


@wrong(OUT, "left out")
def keeps_the_larger(out_a, lse_a, out_b, lse_b):
    return torch.where((lse_a > lse_b).unsqueeze(-1), out_a, out_b), torch.logaddexp(lse_a, lse_b)


@wrong(OUT, "wrong shape")
def keeps_a_dimension(out_a, lse_a, out_b, lse_b):
    out, lse = correct(out_a, lse_a, out_b, lse_b)
    return out.unsqueeze(0), lse


@wrong(OUT, "Two results")
def returns_out_alone(out_a, lse_a, out_b, lse_b):
    return correct(out_a, lse_a, out_b, lse_b)[0]


@wrong(OUT, "Two results")
def forgets_to_return(out_a, lse_a, out_b, lse_b):
    correct(out_a, lse_a, out_b, lse_b)


@wrong(OUT, "left out")
def keeps_the_first_part(out_a, lse_a, out_b, lse_b):
    return out_a, torch.logaddexp(lse_a, lse_b)


@wrong(LSE, "larger lse")
def lse_is_the_maximum(out_a, lse_a, out_b, lse_b):
    return correct(out_a, lse_a, out_b, lse_b)[0], torch.maximum(lse_a, lse_b)


@wrong(LSE, "multiplies")
def adds_the_logarithms(out_a, lse_a, out_b, lse_b):
    return correct(out_a, lse_a, out_b, lse_b)[0], lse_a + lse_b


@wrong(LSE, "never put back")
def largest_never_put_back(out_a, lse_a, out_b, lse_b):
    out, lse = correct(out_a, lse_a, out_b, lse_b)
    return out, lse - torch.maximum(lse_a, lse_b)


@wrong(LSE, "not its logarithm")
def returns_the_sum(out_a, lse_a, out_b, lse_b):
    return correct(out_a, lse_a, out_b, lse_b)[0], lse_a.exp() + lse_b.exp()


@wrong(LSE, "base 2")
def lse_in_base_two(out_a, lse_a, out_b, lse_b):
    return correct(out_a, lse_a, out_b, lse_b)[0], torch.log2(lse_a.exp() + lse_b.exp())


@wrong(LSE, "wrong shape")
def lse_keeps_its_last_dimension(out_a, lse_a, out_b, lse_b):
    out, lse = correct(out_a, lse_a, out_b, lse_b)
    return out, lse.unsqueeze(-1)


@wrong(ROWS, "unsqueeze")
def one_row_of_heads_only(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    safe = lse.masked_fill(lse == -math.inf, 0)
    share_a, share_b = (torch.exp(one - safe)[:, None] for one in (lse_a, lse_b))
    return share_a * out_a.nan_to_num() + share_b * out_b.nan_to_num(), lse


@wrong(LARGE, "NaN")
def plain_exp(out_a, lse_a, out_b, lse_b):
    weight_a, weight_b = lse_a.exp(), lse_b.exp()
    total = weight_a + weight_b
    share_a, share_b = ((weight / total).unsqueeze(-1) for weight in (weight_a, weight_b))
    return share_a * out_a + share_b * out_b, total.log()


@wrong(LARGE, "Only the difference")
def one_maximum_for_all_rows(out_a, lse_a, out_b, lse_b):
    largest = lse_a.max()  # of part a alone
    weight_a, weight_b = (lse_a - largest).exp(), (lse_b - largest).exp()
    total = weight_a + weight_b
    share_a, share_b = ((weight / total).unsqueeze(-1) for weight in (weight_a, weight_b))
    return share_a * out_a + share_b * out_b, largest + total.log()


@wrong(LARGE)
def guards_with_a_small_number(out_a, lse_a, out_b, lse_b):
    weight_a, weight_b = lse_a.exp(), lse_b.exp()
    total = weight_a + weight_b + 1e-12
    share_a, share_b = ((weight / total).unsqueeze(-1) for weight in (weight_a, weight_b))
    return share_a * out_a + share_b * out_b, total.log()


@wrong(LARGE)
def never_lets_the_maximum_below_zero(out_a, lse_a, out_b, lse_b):
    largest = torch.maximum(lse_a, lse_b).clamp(min=0)  # meant for -inf; swamps scores that are all low
    weight_a, weight_b = (lse_a - largest).exp(), (lse_b - largest).exp()
    total = weight_a + weight_b
    share_a, share_b = ((weight / total.clamp(min=1e-30)).unsqueeze(-1) for weight in (weight_a, weight_b))
    out_a, out_b = (out.masked_fill((lse == -math.inf)[..., None], 0) for out, lse in ((out_a, lse_a), (out_b, lse_b)))
    return share_a * out_a + share_b * out_b, largest + total.log()


@wrong(EMPTY, "0 * NaN")
def weight_zero_is_no_protection(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    safe = lse.masked_fill(lse == -math.inf, 0)
    share_a, share_b = (torch.exp(one - safe).unsqueeze(-1) for one in (lse_a, lse_b))
    return share_a * out_a + share_b * out_b, lse


@wrong(EMPTY, "0 * inf")
def takes_out_nan_only(out_a, lse_a, out_b, lse_b):
    return weight_zero_is_no_protection(
        torch.where(out_a.isnan(), 0, out_a), lse_a, torch.where(out_b.isnan(), 0, out_b), lse_b
    )


@wrong(EMPTY, "Rows differ")
def any_infinite_lse_returns_the_other(out_a, lse_a, out_b, lse_b):
    if lse_a.isinf().any():
        return out_b, lse_b
    return correct(out_a, lse_a, out_b, lse_b)


@wrong(OUT, "One `if`")
def one_if_for_all_rows(out_a, lse_a, out_b, lse_b):
    if lse_a == -math.inf:
        return (out_b, lse_b) if lse_b != -math.inf else (torch.zeros_like(out_a), lse_b)
    if lse_b == -math.inf:
        return out_a, lse_a
    return correct(out_a, lse_a, out_b, lse_b)


@wrong(EMPTY)
def all_rows_empty_or_none(out_a, lse_a, out_b, lse_b):
    if (lse_a == -math.inf).any():
        return out_b, lse_b
    if (lse_b == -math.inf).any():
        return out_a, lse_a
    return correct(out_a, lse_a, out_b, lse_b)


@wrong(LARGE)
def only_the_second_may_be_empty(out_a, lse_a, out_b, lse_b):
    difference = (lse_b - lse_a).exp()
    share_b = (difference / (1 + difference)).unsqueeze(-1)
    out_b = torch.where(share_b == 0, 0.0, out_b)
    return (1 - share_b) * out_a + share_b * out_b, lse_a + torch.log1p(difference)


@wrong(BOTH, "NaN")
def minus_inf_less_minus_inf(out_a, lse_a, out_b, lse_b):
    largest = torch.maximum(lse_a, lse_b)
    weight_a, weight_b = (lse_a - largest).exp(), (lse_b - largest).exp()
    total = weight_a + weight_b
    out_a, out_b = (out.masked_fill((lse == -math.inf)[..., None], 0) for out, lse in ((out_a, lse_a), (out_b, lse_b)))
    return ((weight_a[..., None] * out_a) + weight_b[..., None] * out_b) / total[..., None], largest + total.log()


@wrong(BOTH)
def nothing_becomes_zero_scores(out_a, lse_a, out_b, lse_b):
    out, lse = correct(out_a, lse_a, out_b, lse_b)
    return out, lse.masked_fill(lse == -math.inf, 0)


@wrong(PURE, "`out_a`")
def accumulates_in_place(out_a, lse_a, out_b, lse_b):
    out, lse = correct(out_a, lse_a, out_b, lse_b)
    out_a.copy_(out)
    return out_a, lse


@wrong(PURE, "`lse_a`")
def writes_the_lse_in_place(out_a, lse_a, out_b, lse_b):
    out, lse = correct(out_a, lse_a, out_b, lse_b)
    lse_a[...] = lse
    return out, lse_a
