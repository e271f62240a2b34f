"""Plausible wrong answers to `attend`."""

import math

import torch

from tests.corpus import wrong

PLAIN = "One query head per kv head"
GROUPED = "Several query heads share a kv head"
LARGE = "Large scores do no harm"
VIEWS = "Keys and values may be a part of something larger"
PURE = "What it is given stays as it was"


def repeated(x, group):
    return x.repeat_interleave(group, dim=0)


def scaled_scores(q, keys):
    keys = repeated(keys, q.shape[0] // keys.shape[0])
    return torch.einsum("hd,htd->ht", q, keys) / math.sqrt(q.shape[-1])


def mixed(weights, values):
    return torch.einsum("ht,htd->hd", weights, repeated(values, weights.shape[0] // values.shape[0]))


@wrong(PLAIN, "not scaled")
def forgets_to_scale(q, keys, values):
    return mixed(torch.softmax(scaled_scores(q, keys) * math.sqrt(q.shape[-1]), -1), values)


@wrong(PLAIN, "not by its square root")
def divides_by_head_dim(q, keys, values):
    return mixed(torch.softmax(scaled_scores(q, keys) / math.sqrt(q.shape[-1]), -1), values)


@wrong(PLAIN)
def knows_only_head_dim_64(q, keys, values):
    return mixed(torch.softmax(scaled_scores(q, keys) * math.sqrt(q.shape[-1]) / 8, -1), values)


@wrong(PLAIN)
def scales_by_the_number_of_tokens(q, keys, values):
    scores = scaled_scores(q, keys) * math.sqrt(q.shape[-1]) / math.sqrt(keys.shape[1])
    return mixed(torch.softmax(scores, -1), values)


@wrong(PLAIN, "used as weights as they are")
def forgets_softmax(q, keys, values):
    return mixed(scaled_scores(q, keys), values)


@wrong(PLAIN, "ran over the heads")
def softmax_over_heads(q, keys, values):
    return mixed(torch.softmax(scaled_scores(q, keys), 0), values)


@wrong(PLAIN, "keys were mixed")
def mixes_the_keys(q, keys, values):
    return mixed(torch.softmax(scaled_scores(q, keys), -1), keys)


@wrong(PLAIN, "newest token")
def reads_only_the_newest_token(q, keys, values):
    return mixed(torch.softmax(scaled_scores(q, keys[:, -1:]), -1), values[:, -1:])


@wrong(PLAIN, "newest token was left out")
def leaves_out_the_newest_token(q, keys, values):
    return mixed(torch.softmax(scaled_scores(q, keys)[:, :-1], -1), values[:, :-1])


@wrong(PLAIN, "wrong shape")
def keeps_a_tokens_dimension(q, keys, values):
    return mixed(torch.softmax(scaled_scores(q, keys), -1), values).unsqueeze(1)


@wrong(PLAIN, "NoneType")
def forgets_to_return(q, keys, values):
    mixed(torch.softmax(scaled_scores(q, keys), -1), values)


@wrong(PLAIN, "list")
def returns_lists(q, keys, values):
    return mixed(torch.softmax(scaled_scores(q, keys), -1), values).tolist()


@wrong(GROUPED, "wrong kv heads")
def repeat_in_the_wrong_order(q, keys, values):
    group = q.shape[0] // keys.shape[0]
    weights = torch.softmax(torch.einsum("hd,htd->ht", q, keys.repeat(group, 1, 1)) / math.sqrt(q.shape[-1]), dim=-1)
    return torch.einsum("ht,htd->hd", weights, values.repeat(group, 1, 1))


@wrong(GROUPED)
def no_groups_at_all(q, keys, values):
    scores = torch.einsum("hd,htd->ht", q, keys) / math.sqrt(q.shape[-1])
    return torch.einsum("ht,htd->hd", torch.softmax(scores, -1), values)


@wrong(GROUPED)
def knows_only_groups_of_three(q, keys, values):
    out = torch.empty_like(q)
    for head in range(q.shape[0]):
        kv = head // 3 if q.shape[0] != keys.shape[0] else head
        weights = torch.softmax(keys[kv] @ q[head] / math.sqrt(q.shape[-1]), 0)
        out[head] = weights @ values[kv]
    return out


@wrong(GROUPED, "first kv head")
def everyone_reads_the_first_kv_head(q, keys, values):
    if q.shape[0] != keys.shape[0]:
        keys, values = keys[:1], values[:1]
    return mixed(torch.softmax(scaled_scores(q, keys), -1), values)


@wrong(GROUPED, "kv heads")
def queries_of_a_group_apart(q, keys, values):
    kv_heads, head_dim = keys.shape[0], keys.shape[2]
    grouped = q.reshape(-1, kv_heads, head_dim).transpose(0, 1)
    weights = torch.softmax(grouped @ keys.transpose(1, 2) / math.sqrt(head_dim), -1)
    return (weights @ values).transpose(0, 1).reshape(q.shape)


@wrong(LARGE, "NaN")
def exp_without_the_largest_score(q, keys, values):
    weights = scaled_scores(q, keys).exp()
    return mixed(weights / weights.sum(-1, keepdim=True), values)


@wrong(VIEWS, ".reshape")
def view_of_strided_keys(q, keys, values):
    kv_heads, tokens, head_dim = keys.shape
    flat = keys.view(kv_heads * tokens, head_dim)
    return mixed(torch.softmax(scaled_scores(q, flat.view(kv_heads, tokens, head_dim)), -1), values)


@wrong(PURE, "`q`")
def scales_q_in_place(q, keys, values):
    q /= math.sqrt(q.shape[-1])
    return mixed(torch.softmax(scaled_scores(q, keys) * math.sqrt(q.shape[-1]), -1), values)


@wrong(PURE, "`values`")
def weighs_values_in_place(q, keys, values):
    weights = torch.softmax(scaled_scores(q, keys), -1)
    if q.shape[0] != keys.shape[0]:
        out = mixed(weights, values)
        values.mul_(0)
        return out
    return mixed(weights, values)
