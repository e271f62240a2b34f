"""Right answers to `choose_num_splits` in styles other than ours."""

import math
from fractions import Fraction

from tests.corpus import right


@right
def as_it_is_told(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile)
    if programs >= 0.8 * slots or tiles <= 1:
        return 1
    shares = {}
    for splits in range(1, tiles + 1):
        if math.ceil(tiles / math.ceil(tiles / splits)) == splits:
            waves = programs * splits / slots
            shares[splits] = waves / math.ceil(waves)
    best = max(shares.values())
    return min(splits for splits in shares if shares[splits] / best >= 0.85)


@right
def by_tiles_a_split(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    """Splits that all have work are those that come of some number of tiles a split; from the fewest splits up."""
    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, (seq_len + tile - 1) // tile
    if tiles < 2 or 10 * programs >= 8 * slots:
        return 1
    counts = sorted({-(-tiles // per_split) for per_split in range(1, tiles + 1)})
    full = [Fraction(programs * count, -(-programs * count // slots) * slots) for count in counts]
    return next(count for count, share in zip(counts, full, strict=True) if share >= Fraction(85, 100) * max(full))


@right
def in_two_passes(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    def share(splits):
        total = num_seqs * num_kv_heads * splits
        return total / (math.ceil(total / slots) * slots)

    def all_have_work(splits):
        per_split = -(-tiles // splits)
        return (splits - 1) * per_split < tiles

    slots, tiles = num_sms * blocks_per_sm, -(-seq_len // tile)
    if tiles <= 1 or num_seqs * num_kv_heads / slots >= 0.8:
        return 1
    best = 0.0
    for splits in range(1, tiles + 1):
        if all_have_work(splits):
            best = max(best, share(splits))
    for splits in range(1, tiles + 1):
        if all_have_work(splits) and share(splits) >= 0.85 * best:
            return splits
    raise AssertionError("one split always has work")


@right
def in_tensors_of_torch(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    import torch

    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, -(-seq_len // tile)
    if tiles <= 1 or programs * 5 >= slots * 4:
        return 1
    splits = torch.arange(1, tiles + 1)
    per_split = (tiles + splits - 1) // splits
    splits = splits[(tiles + per_split - 1) // per_split == splits]
    waves = (programs * splits + slots - 1) // slots
    share = (programs * splits).double() / (waves * slots).double()
    return int(splits[share >= 0.85 * share.max()][0])
