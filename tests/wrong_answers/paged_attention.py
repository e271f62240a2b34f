"""Plausible wrong answers to `paged_attention`. Most of them are `attend_in_blocks` with one thing changed."""

import math

import torch

from tests.corpus import wrong

ONE = "One sequence in one full block"
MANY = "Several full blocks, wherever they lie"
TAIL = "Nothing behind the last token is read"
BATCH = "Every sequence of a batch by its own table and length"
GROUPS = "Query heads share a kv head"
EMPTY = "A sequence without tokens gets zeros"
SHARED = "Two sequences may share a block"
BEHIND = "What a table says behind the last block means nothing"
LARGE = "Large and very negative scores do no harm"
PURE = "What it is given stays as it was"


def grouped(query, num_kv_heads):
    """One sequence's queries, [num_kv_heads, group, head_dim]."""
    return query.reshape(num_kv_heads, -1, query.shape[-1])


def attend_in_blocks(query, key_cache, value_cache, table, length, start=-math.inf, rescale=True, scale=None):
    """The right way for one sequence: the running maximum, sum and weighted sum."""
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    q = grouped(query, num_kv_heads) * (head_dim**-0.5 if scale is None else scale)
    largest = torch.full(q.shape[:2], float(start))
    total, acc = torch.zeros(q.shape[:2]), torch.zeros(q.shape)
    for first in range(0, length, block_size):
        block, n = table[first // block_size], min(block_size, length - first)
        scores = q @ key_cache[block, :, :n].transpose(1, 2)
        new_largest = torch.maximum(largest, scores.amax(-1))
        factor = torch.exp(largest - new_largest) if rescale else torch.ones_like(total)
        weights = torch.exp(scores - new_largest.unsqueeze(-1))
        total = total * factor + weights.sum(-1)
        acc = acc * factor.unsqueeze(-1) + weights @ value_cache[block, :, :n]
        largest = new_largest
    if length == 0:
        return torch.zeros_like(query)
    return (acc / total.unsqueeze(-1)).reshape(query.shape)


def each(one, q, key_cache, value_cache, block_tables, seq_lens, **changed):
    """`one` for every sequence of the batch."""
    rows = zip(q, block_tables.tolist(), seq_lens.tolist(), strict=True)
    return torch.stack([one(query, key_cache, value_cache, table, length, **changed) for query, table, length in rows])


def dense(query, keys, values):
    """keys, values: [num_kv_heads, num_tokens, head_dim]."""
    q = grouped(query, keys.shape[0])
    weights = torch.softmax(q @ keys.transpose(1, 2) / query.shape[-1] ** 0.5, -1)
    return (weights @ values).reshape(query.shape)


def gathered(cache, table, length):
    _, num_kv_heads, block_size, head_dim = cache.shape
    blocks = cache[table[: -(-length // block_size)]]
    return blocks.transpose(0, 1).reshape(num_kv_heads, -1, head_dim)


# --- the pool ---------------------------------------------------------------------------------------------------------


@wrong(ONE, "a slot that nobody wrote")
def ignores_the_table(q, key_cache, value_cache, block_tables, seq_lens):
    in_order = torch.arange(block_tables.shape[1]).expand_as(block_tables)
    return each(attend_in_blocks, q, key_cache, value_cache, in_order, seq_lens)


@wrong(ONE, "a slot that nobody wrote")
def takes_the_pool_for_one_row(q, key_cache, value_cache, block_tables, seq_lens):
    _, num_kv_heads, _, head_dim = key_cache.shape
    flat_k, flat_v = (x.transpose(0, 1).reshape(num_kv_heads, -1, head_dim) for x in (key_cache, value_cache))
    return torch.stack([dense(query, flat_k[:, :n], flat_v[:, :n]) for query, n in zip(q, seq_lens, strict=True)])


@wrong(ONE)
def values_without_the_table(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        keys = gathered(key_cache, table, length)[:, :length]
        return dense(query, keys, gathered(value_cache, list(range(len(table))), length)[:, :length])

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(ONE, "look at the scores")
def values_for_keys(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, value_cache, value_cache, block_tables, seq_lens)


@wrong(MANY, "not read")
def reads_the_last_block_only(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        first = (length - 1) // key_cache.shape[2]
        return attend_in_blocks(query, key_cache, value_cache, table[first:], length - first * key_cache.shape[2])

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(MANY, "not read")
def floor_division_loses_a_block(q, key_cache, value_cache, block_tables, seq_lens):
    block_size = key_cache.shape[2]
    lens = torch.where(seq_lens > block_size, (seq_lens - 1) // block_size * block_size, seq_lens)
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, lens)


@wrong(MANY)
def next_block_is_the_next_number(q, key_cache, value_cache, block_tables, seq_lens):
    tables = block_tables[:, :1] + torch.arange(block_tables.shape[1])
    return each(attend_in_blocks, q, key_cache, value_cache, tables % len(key_cache), seq_lens)


@wrong(MANY)
def gathers_heads_and_blocks_mixed(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        _, num_kv_heads, block_size, head_dim = key_cache.shape
        blocks = table[: -(-length // block_size)]
        keys, values = (c[blocks].reshape(num_kv_heads, -1, head_dim) for c in (key_cache, value_cache))
        return dense(query, keys[:, :length], values[:, :length])

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


# --- the softmax ------------------------------------------------------------------------------------------------------


@wrong(ONE, "not scaled")
def forgets_to_scale(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens, scale=1.0)


@wrong(ONE, "square root of 64")
def scales_for_the_real_model(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens, scale=1 / 8)


@wrong(ONE, "multiplied by the square root")
def multiplies_by_the_root(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens, scale=q.shape[-1] ** 0.5)


@wrong(MANY, "by the same factor")
def scales_by_the_number_of_blocks(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens, scale=len(key_cache) ** -0.5)


@wrong(ONE, "powers of 2")
def base_two_without_log2_e(q, key_cache, value_cache, block_tables, seq_lens):
    scale = math.log(2) / q.shape[-1] ** 0.5  # what exp2 in place of exp comes to
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens, scale=scale)


@wrong(ONE, "sum to")
def forgets_to_divide(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        keys, values = (gathered(cache, table, length)[:, :length] for cache in (key_cache, value_cache))
        scores = grouped(query, keys.shape[0]) @ keys.transpose(1, 2) / query.shape[-1] ** 0.5
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        return (weights @ values).reshape(query.shape)

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


def softmax_per_block(query, key_cache, value_cache, table, length, divide_by):
    block_size = key_cache.shape[2]
    out, num_blocks = torch.zeros_like(query), 0
    for first in range(0, length, block_size):
        block, n = table[first // block_size], min(block_size, length - first)
        out, num_blocks = out + dense(query, key_cache[block, :, :n], value_cache[block, :, :n]), num_blocks + 1
    return out / (num_blocks if divide_by == "blocks" else 1)


@wrong(MANY, "every block got the same weight")
def adds_the_softmax_of_each_block(q, key_cache, value_cache, block_tables, seq_lens):
    return each(softmax_per_block, q, key_cache, value_cache, block_tables, seq_lens, divide_by="nothing")


@wrong(MANY, "every block got the same weight")
def averages_the_blocks(q, key_cache, value_cache, block_tables, seq_lens):
    return each(softmax_per_block, q, key_cache, value_cache, block_tables, seq_lens, divide_by="blocks")


@wrong(MANY, "block against block")
def never_rescales(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens, rescale=False)


@wrong(MANY, "sum and values both")
def rescales_the_sum_only(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        _, num_kv_heads, block_size, head_dim = key_cache.shape
        q = grouped(query, num_kv_heads) * head_dim**-0.5
        largest, total, acc = torch.full(q.shape[:2], -math.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for first in range(0, length, block_size):
            block, n = table[first // block_size], min(block_size, length - first)
            scores = q @ key_cache[block, :, :n].transpose(1, 2)
            new_largest = torch.maximum(largest, scores.amax(-1))
            weights = torch.exp(scores - new_largest[..., None])
            total = total * torch.exp(largest - new_largest) + weights.sum(-1)
            acc = acc + weights @ value_cache[block, :, :n]
            largest = new_largest
        return (acc / total[..., None]).reshape(query.shape) if length else torch.zeros_like(query)

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(MANY)
def never_remembers_the_maximum(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        _, num_kv_heads, block_size, head_dim = key_cache.shape
        q = grouped(query, num_kv_heads) * head_dim**-0.5
        total, acc = torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for first in range(0, length, block_size):
            block, n = table[first // block_size], min(block_size, length - first)
            scores = q @ key_cache[block, :, :n].transpose(1, 2)
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))  # this block's maximum, not the running one
            total, acc = total + weights.sum(-1), acc + weights @ value_cache[block, :, :n]
        return (acc / total[..., None]).reshape(query.shape) if length else torch.zeros_like(query)

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(MANY)
def divides_in_every_block(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        _, num_kv_heads, block_size, head_dim = key_cache.shape
        q = grouped(query, num_kv_heads) * head_dim**-0.5
        largest, total, acc = torch.full(q.shape[:2], -math.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for first in range(0, length, block_size):
            block, n = table[first // block_size], min(block_size, length - first)
            scores = q @ key_cache[block, :, :n].transpose(1, 2)
            new_largest = torch.maximum(largest, scores.amax(-1))
            factor, weights = torch.exp(largest - new_largest), torch.exp(scores - new_largest[..., None])
            total = total * factor + weights.sum(-1)
            acc = (acc * factor[..., None] + weights @ value_cache[block, :, :n]) / total[..., None]
            largest = new_largest
        return acc.reshape(query.shape)

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(LARGE)
def exp_without_a_maximum(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        _, num_kv_heads, block_size, head_dim = key_cache.shape
        q = grouped(query, num_kv_heads) * head_dim**-0.5
        total, acc = torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for first in range(0, length, block_size):
            block, n = table[first // block_size], min(block_size, length - first)
            weights = torch.exp(q @ key_cache[block, :, :n].transpose(1, 2))
            total, acc = total + weights.sum(-1), acc + weights @ value_cache[block, :, :n]
        return (acc / total[..., None]).reshape(query.shape) if length else torch.zeros_like(query)

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(LARGE, "largest of nothing")
def running_maximum_starts_at_zero(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens, start=0)


@wrong(LARGE, "largest of nothing")
def a_finite_number_for_minus_infinity(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens, start=-5e4)


# --- masks and lengths ------------------------------------------------------------------------------------------------


def padded_to_blocks(query, key_cache, value_cache, table, length, mask_scores, mask_values):
    """All slots of all blocks of one sequence, and a mask."""
    keys, values = gathered(key_cache, table, length), gathered(value_cache, table, length)
    empty = torch.arange(keys.shape[1]) >= length
    scores = grouped(query, keys.shape[0]) @ keys.transpose(1, 2) / query.shape[-1] ** 0.5
    scores = mask_scores(scores, empty)
    if mask_values:
        values = values.masked_fill(empty[:, None], 0)
    return (torch.softmax(scores, -1) @ values).reshape(query.shape) if length else torch.zeros_like(query)


@wrong(TAIL, "0 * NaN")
def masks_the_scores_only(q, key_cache, value_cache, block_tables, seq_lens):
    return each(
        padded_to_blocks,
        q,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        mask_scores=lambda scores, empty: scores.masked_fill(empty, -math.inf),
        mask_values=False,
    )


@wrong(TAIL, "NaN + (-inf)")
def adds_minus_infinity(q, key_cache, value_cache, block_tables, seq_lens):
    return each(
        padded_to_blocks,
        q,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        mask_scores=lambda scores, empty: scores + torch.where(empty, -math.inf, 0.0),
        mask_values=True,
    )


@wrong(TAIL, "exp(0)")
def masks_with_zero(q, key_cache, value_cache, block_tables, seq_lens):
    return each(
        padded_to_blocks,
        q,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        mask_scores=lambda scores, empty: scores.masked_fill(empty, 0),
        mask_values=True,
    )


@wrong(TAIL, "behind A's last token")
def reads_whole_blocks(q, key_cache, value_cache, block_tables, seq_lens):
    block_size = key_cache.shape[2]
    whole = (seq_lens + block_size - 1) // block_size * block_size
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, whole)


@wrong(ONE, "not read")
def modulo_makes_a_full_block_empty(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        block_size = key_cache.shape[2]
        keys, values = [], []
        for i in range(-(-length // block_size)):
            n = block_size if i < (length - 1) // block_size else length % block_size  # 0 for a full last block
            keys.append(key_cache[table[i], :, :n])
            values.append(value_cache[table[i], :, :n])
        return dense(query, torch.cat(keys, 1), torch.cat(values, 1)) if length else torch.zeros_like(query)

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(ONE, "range(1)")
def always_one_block_more(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        block_size = key_cache.shape[2]
        blocks = [table[i] for i in range(length // block_size + 1)]  # one too many when the last one is full
        return attend_in_blocks(query, key_cache, value_cache, blocks, length)

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(ONE, "not read")
def leaves_out_the_newest_token(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens - 1)


@wrong(BATCH, "was read")
def one_length_for_all(q, key_cache, value_cache, block_tables, seq_lens):
    lens = torch.full_like(seq_lens, int(seq_lens.max()))
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, lens)


@wrong(BATCH, "key_cache[-1] is the last block")
def reads_the_padding_as_a_block(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        block_size = key_cache.shape[2]
        keys, values = [], []
        for index, block in enumerate(table):  # every column, also those behind the sequence's end
            n = length % block_size if index == length // block_size else block_size
            keys.append(key_cache[block, :, :n])
            values.append(value_cache[block, :, :n])
        return dense(query, torch.cat(keys, 1), torch.cat(values, 1))

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(BATCH)
def one_table_for_all(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables[:1].expand_as(block_tables), seq_lens)


@wrong(BATCH, "wrong shape")
def answers_for_the_first_sequence_only(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q[:1], key_cache, value_cache, block_tables[:1], seq_lens[:1])


@wrong(BATCH, "carried over into B")
def carries_the_sums_into_the_next_sequence(q, key_cache, value_cache, block_tables, seq_lens):
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    out = torch.zeros_like(q)
    start = grouped(q[0], num_kv_heads)
    largest, total, mixed = (
        torch.full(start.shape[:2], -math.inf),
        torch.zeros(start.shape[:2]),
        torch.zeros_like(start),
    )
    for i, length in enumerate(seq_lens.tolist()):
        for first in range(0, length, block_size):
            block, n = block_tables[i, first // block_size], min(block_size, length - first)
            scores = grouped(q[i], num_kv_heads) @ key_cache[block, :, :n].transpose(1, 2) / head_dim**0.5
            new_largest = torch.maximum(largest, scores.amax(-1))
            shrink, weights = torch.exp(largest - new_largest), torch.exp(scores - new_largest[..., None])
            total = total * shrink + weights.sum(-1)
            mixed = mixed * shrink[..., None] + weights @ value_cache[block, :, :n]
            largest = new_largest
        if length:
            out[i] = (mixed / total[..., None]).reshape(q[i].shape)
    return out


@wrong(SHARED, "not read")
def masks_the_pool_by_owner(q, key_cache, value_cache, block_tables, seq_lens):
    """One owner for each block: the last sequence that names it."""
    num_blocks, num_kv_heads, block_size, head_dim = key_cache.shape
    owner, first = torch.full((num_blocks,), -1), torch.zeros(num_blocks, dtype=torch.long)
    for i, length in enumerate(seq_lens.tolist()):
        for index in range(-(-length // block_size)):
            owner[block_tables[i, index]], first[block_tables[i, index]] = i, index * block_size
    position = (first[:, None] + torch.arange(block_size)).flatten()
    keys, values = (x.transpose(0, 1).reshape(num_kv_heads, -1, head_dim) for x in (key_cache, value_cache))
    out = torch.zeros_like(q)
    for i, length in enumerate(seq_lens.tolist()):
        own = (owner.repeat_interleave(block_size) == i) & (position < length)
        if own.any():
            out[i] = dense(q[i], keys[:, own], values[:, own])
    return out


@wrong(BEHIND, "goes on")
def stops_only_at_minus_one(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        _, num_kv_heads, block_size, head_dim = key_cache.shape
        q = grouped(query, num_kv_heads) * head_dim**-0.5
        largest, total, acc = torch.full(q.shape[:2], -math.inf), torch.zeros(q.shape[:2]), torch.zeros(q.shape)
        for index, block in enumerate(table):
            if block == -1:
                break
            n = min(block_size, length - index * block_size)  # 0 or less behind the end
            scores = q @ key_cache[block, :, :n].transpose(1, 2)
            new_largest = torch.maximum(largest, scores.amax(-1))
            factor, weights = torch.exp(largest - new_largest), torch.exp(scores - new_largest[..., None])
            total = total * factor + weights.sum(-1)
            acc = acc * factor[..., None] + weights @ value_cache[block, :, :n]
            largest = new_largest
        return (acc / total[..., None]).reshape(query.shape) if length else torch.zeros_like(query)

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(BEHIND, "means nothing")
def takes_the_last_entry_for_the_last_block(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        block_size = key_cache.shape[2]
        held = [block for block in table if block >= 0]  # as if the table said how many there are
        tail = length - (-(-length // block_size) - 1) * block_size
        return attend_in_blocks(query, key_cache, value_cache, held, (len(held) - 1) * block_size + tail)

    return each(
        lambda query, k, v, table, length: one(query, k, v, table, length) if length else torch.zeros_like(query),
        q,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
    )


# --- heads ------------------------------------------------------------------------------------------------------------


@wrong(GROUPS, "kv head")
def groups_in_the_wrong_order(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        group = query.shape[0] // key_cache.shape[1]
        keys, values = (gathered(cache, table, length)[:, :length] for cache in (key_cache, value_cache))
        return dense(query, keys.repeat(group, 1, 1), values.repeat(group, 1, 1))

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(GROUPS, "look at the scores")
def groups_of_keys_in_the_wrong_order(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        group = query.shape[0] // key_cache.shape[1]
        keys, values = (gathered(cache, table, length)[:, :length] for cache in (key_cache, value_cache))
        return dense(query, keys.repeat(group, 1, 1), values.repeat_interleave(group, 0))

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(GROUPS, "It doesn't work for 2 query heads and 1 kv head")
def no_groups_at_all(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        out = torch.zeros_like(query)
        for head in range(query.shape[0]):
            keys, values = (gathered(cache, table, length)[head, :length] for cache in (key_cache, value_cache))
            out[head] = torch.softmax(keys @ query[head] / query.shape[-1] ** 0.5, 0) @ values
        return out

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(GROUPS)
def one_maximum_is_fine_but_the_first_kv_head_is_not(q, key_cache, value_cache, block_tables, seq_lens):
    if q.shape[1] != key_cache.shape[1]:
        key_cache, value_cache = key_cache[:, :1], value_cache[:, :1]
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens)


# --- the rest ---------------------------------------------------------------------------------------------------------


@wrong(EMPTY, "NaN")
def nothing_divided_by_nothing(q, key_cache, value_cache, block_tables, seq_lens):
    def one(query, key_cache, value_cache, table, length):
        if length:
            return attend_in_blocks(query, key_cache, value_cache, table, length)
        return torch.zeros_like(query) / 0

    return each(one, q, key_cache, value_cache, block_tables, seq_lens)


@wrong(EMPTY)
def length_zero_reads_a_token(q, key_cache, value_cache, block_tables, seq_lens):
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens.clamp(min=1))


@wrong(PURE, "`q`")
def scales_q_in_place(q, key_cache, value_cache, block_tables, seq_lens):
    q *= q.shape[-1] ** -0.5
    return each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens, scale=1.0)


@wrong(PURE, "`value_cache`")
def cleans_the_pool(q, key_cache, value_cache, block_tables, seq_lens):
    out = each(attend_in_blocks, q, key_cache, value_cache, block_tables, seq_lens)
    value_cache[block_tables[0, 0], :, -1] += 1
    return out
