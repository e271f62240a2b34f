"""Right answers to `paged_attention` in styles other than ours."""

import math

import torch
import torch.nn.functional as F

from tests.corpus import right


@right
def gathers_then_attends(q, key_cache, value_cache, block_tables, seq_lens):
    """Copies every sequence. The numbers are right, which is all that the check asks."""
    out = torch.zeros_like(q)
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    for i, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        positions = torch.arange(length)
        blocks = block_tables[i].long()[positions // block_size]
        keys, values = (cache[blocks, :, positions % block_size].transpose(0, 1) for cache in (key_cache, value_cache))
        out[i] = F.scaled_dot_product_attention(q[i][:, None], keys, values, enable_gqa=True)[:, 0]
    return out


@right
def merges_parts(q, key_cache, value_cache, block_tables, seq_lens):
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    results = []
    for query, table, length in zip(q, block_tables.tolist(), seq_lens.tolist(), strict=True):
        grouped = query.reshape(num_kv_heads, -1, head_dim)
        out, lse = torch.zeros_like(grouped), torch.full(grouped.shape[:2], -math.inf)
        for index in range(math.ceil(length / block_size)):
            n = min(block_size, length - index * block_size)
            scores = grouped @ key_cache[table[index], :, :n].transpose(1, 2) / math.sqrt(head_dim)
            part, part_lse = scores.softmax(-1) @ value_cache[table[index], :, :n], scores.logsumexp(-1)
            both = torch.logaddexp(lse, part_lse)
            out = (lse - both).exp()[..., None] * out + (part_lse - both).exp()[..., None] * part
            lse = both
        results.append(out.reshape(query.shape))
    return torch.stack(results)


@right
def token_by_token(q, key_cache, value_cache, block_tables, seq_lens):
    """Every head and every token by itself."""
    num_seqs, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = key_cache.shape
    result = torch.zeros_like(q)
    for i in range(num_seqs):
        kv_head = torch.arange(num_heads) // (num_heads // num_kv_heads)
        largest, total = torch.full((num_heads,), -math.inf), torch.zeros(num_heads)
        for position in range(int(seq_lens[i])):
            block, slot = int(block_tables[i, position // block_size]), position % block_size
            score = (q[i] * key_cache[block, kv_head, slot]).sum(-1) / head_dim**0.5
            new = torch.maximum(largest, score)
            old_factor, weight = (largest - new).exp(), (score - new).exp()
            total = total * old_factor + weight
            result[i] = result[i] * old_factor[:, None] + weight[:, None] * value_cache[block, kv_head, slot]
            largest = new
        if int(seq_lens[i]):
            result[i] /= total[:, None]
    return result


@right
def whole_batch_a_block_at_a_time(q, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = q.shape
    num_blocks, num_kv_heads, block_size, _ = key_cache.shape
    queries = q.view(num_seqs, num_kv_heads, -1, head_dim) / head_dim**0.5
    largest = queries.new_full(queries.shape[:3], -math.inf)
    total, acc = torch.zeros_like(largest), torch.zeros_like(queries)
    for column in range(block_tables.shape[1]):
        blocks = block_tables[:, column].clamp(min=0)  # -1 is masked like any slot behind the end
        seen = column * block_size + torch.arange(block_size) < seq_lens[:, None]  # [num_seqs, block_size]
        values = torch.where(seen[:, None, :, None], value_cache[blocks], 0.0)
        scores = torch.einsum("skgd,sktd->skgt", queries, key_cache[blocks])
        scores = torch.where(seen[:, None, None, :], scores, -math.inf)
        new = torch.maximum(largest, scores.amax(-1))
        safe = torch.where(new == -math.inf, 0.0, new)  # only inside exp
        factor, weights = (largest - safe).exp(), (scores - safe[..., None]).exp()
        total = total * factor + weights.sum(-1)
        acc = acc * factor[..., None] + weights @ values
        largest = new
    return (acc / total.clamp(min=1e-30)[..., None]).reshape(q.shape)


@right
def two_passes(q, key_cache, value_cache, block_tables, seq_lens):
    """The maximum first, then the sums: reads the keys twice, and never rescales."""
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    results = []
    for query, table, length in zip(q, block_tables, seq_lens, strict=True):
        grouped = query.reshape(num_kv_heads, -1, head_dim)
        spans = [(int(table[i // block_size]), min(block_size, int(length) - i)) for i in range(0, length, block_size)]
        scores = [grouped @ key_cache[block, :, :n].mT * head_dim**-0.5 for block, n in spans]
        if not spans:
            results.append(torch.zeros_like(query))
            continue
        largest = torch.stack([one.amax(-1) for one in scores]).amax(0)[..., None]
        weights = [(one - largest).exp() for one in scores]
        total = sum(one.sum(-1, keepdim=True) for one in weights)
        mixed = sum(w @ value_cache[block, :, :n] for w, (block, n) in zip(weights, spans, strict=True))
        results.append((mixed / total).reshape(query.shape))
    return torch.stack(results)


@right
def in_double_precision_and_base_two(q, key_cache, value_cache, block_tables, seq_lens):
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    out = torch.zeros_like(q, dtype=torch.float64)
    scale = math.log2(math.e) / math.sqrt(head_dim)
    for i, length in enumerate(seq_lens.tolist()):
        for kv_head in range(num_kv_heads):
            heads = slice(kv_head * q.shape[1] // num_kv_heads, (kv_head + 1) * q.shape[1] // num_kv_heads)
            top, bottom, largest = 0.0, 0.0, -math.inf
            for start in range(0, length, block_size):
                block, n = block_tables[i, start // block_size], min(block_size, length - start)
                scores = q[i, heads].double() @ key_cache[block, kv_head, :n].double().T * scale
                new = max(largest, float(scores.max()))  # one maximum for the whole group is safe in double precision
                weights = torch.exp2(scores - new)
                top = top * 2 ** (largest - new) + weights @ value_cache[block, kv_head, :n].double()
                bottom = bottom * 2 ** (largest - new) + weights.sum(-1, keepdim=True)
                largest = new
            if length:
                out[i, heads] = top / bottom
    return out.to(q.dtype)


@right
def online_softmax_in_base_two(q, key_cache, value_cache, block_tables, seq_lens):
    """log2(e) is part of the scale, so exp2 does what exp would."""
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    out = torch.zeros_like(q)
    for i, length in enumerate(seq_lens.tolist()):
        grouped = q[i].reshape(num_kv_heads, -1, head_dim) * (math.log2(math.e) / math.sqrt(head_dim))
        largest = torch.full((*grouped.shape[:2], 1), -math.inf)
        total, mixed = torch.zeros_like(largest), torch.zeros_like(grouped)
        for start in range(0, length, block_size):
            block, n = block_tables[i, start // block_size], min(block_size, length - start)
            scores = grouped @ key_cache[block, :, :n].transpose(1, 2)
            new = torch.maximum(largest, scores.amax(-1, keepdim=True))
            shrink, weights = torch.exp2(largest - new), torch.exp2(scores - new)
            total = total * shrink + weights.sum(-1, keepdim=True)
            mixed = mixed * shrink + weights @ value_cache[block, :, :n]
            largest = new
        if length:
            out[i] = (mixed / total).reshape(q[i].shape)
    return out
