"""Right answers to `merge_partials` in styles other than ours."""

import math

import torch

from tests.corpus import right


@right
def logaddexp_does_the_hard_half(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    share_a, share_b = (torch.exp(one - lse).nan_to_num(0).unsqueeze(-1) for one in (lse_a, lse_b))
    return share_a * out_a.nan_to_num(0) + share_b * out_b.nan_to_num(0), lse


@right
def softmax_over_the_two_parts(out_a, lse_a, out_b, lse_b):
    lses, outs = torch.stack([lse_a, lse_b], -1), torch.stack([out_a, out_b], -2)
    empty = lses == -math.inf
    outs = torch.where(empty.unsqueeze(-1), torch.zeros_like(outs), outs)
    shares = torch.where(empty.all(-1, keepdim=True), torch.zeros_like(lses), lses).softmax(-1)
    return (shares.unsqueeze(-1) * outs).sum(-2), lses.logsumexp(-1)


@right
def sigmoid_of_the_difference(out_a, lse_a, out_b, lse_b):
    empty_a, empty_b = torch.isneginf(lse_a), torch.isneginf(lse_b)
    share_a = torch.sigmoid(lse_a - lse_b).nan_to_num(0.5).unsqueeze(-1)
    zero = torch.zeros_like(out_a)
    clean_a, clean_b = torch.where(empty_a[..., None], zero, out_a), torch.where(empty_b[..., None], zero, out_b)
    return share_a * clean_a + (1 - share_a) * clean_b, torch.logaddexp(lse_a, lse_b)


@right
def row_by_row(out_a, lse_a, out_b, lse_b):
    head_dim = out_a.shape[-1]
    outs, lses = [], []
    rows = (out_a.reshape(-1, head_dim), lse_a.reshape(-1), out_b.reshape(-1, head_dim), lse_b.reshape(-1))
    for row_a, one_a, row_b, one_b in zip(*rows, strict=True):
        if one_a == -math.inf and one_b == -math.inf:
            row, one = torch.zeros(head_dim), one_a
        elif one_b == -math.inf:
            row, one = row_a, one_a
        elif one_a == -math.inf:
            row, one = row_b, one_b
        else:
            largest = max(one_a, one_b)
            weight_a, weight_b = (one_a - largest).exp(), (one_b - largest).exp()
            row = (weight_a * row_a + weight_b * row_b) / (weight_a + weight_b)
            one = largest + (weight_a + weight_b).log()
        outs.append(row)
        lses.append(one)
    return torch.stack(outs).reshape(out_a.shape), torch.stack(lses).reshape(lse_a.shape)


@right
def in_double_precision(out_a, lse_a, out_b, lse_b):
    a, b = lse_a.double(), lse_b.double()
    largest = torch.maximum(a, b)
    largest = torch.where(torch.isinf(largest), torch.zeros_like(largest), largest)
    weights = [torch.exp(one - largest) for one in (a, b)]
    total = sum(weights)
    cleaned = (torch.where(w[..., None] > 0, out.double(), 0.0) for w, out in zip(weights, (out_a, out_b), strict=True))
    out = sum(w[..., None] * out for w, out in zip(weights, cleaned, strict=True))
    out = torch.where(total[..., None] > 0, out / total[..., None], 0.0)
    return out.to(out_a.dtype), (largest + total.log()).to(lse_a.dtype)
