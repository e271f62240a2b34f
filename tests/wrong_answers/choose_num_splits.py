"""Plausible wrong answers to `choose_num_splits`."""

import math

from tests.corpus import wrong

FULL = "A batch that fills the GPU is not cut"
ONE_TILE = "What fits into one tile is not cut"
WORK = "Every split has work"
FILL = "Waves are at least 0.85 times as full as they can be"
SMALLEST = "No more splits than that takes"
EVERYWHERE = "The same rule for short and long, few and many"


def search(programs, slots, tiles, part=0.85, all_used=True, full=0.8, largest=None, pick=min):
    """The right rule, with a screw for each mistake."""
    if programs >= full * slots or tiles <= 1:
        return 1
    counts = range(1, min(tiles, largest or tiles) + 1)
    shares = {
        splits: programs * splits / (math.ceil(programs * splits / slots) * slots)
        for splits in counts
        if not all_used or math.ceil(tiles / math.ceil(tiles / splits)) == splits
    }
    best = max(shares.values())
    return pick(splits for splits in shares if shares[splits] >= part * best)


@wrong(FILL, "query heads")
def counts_the_query_heads(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile))


@wrong(FULL, "nothing to win")
def cuts_unless_all_slots_are_taken(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile), full=1.0)


@wrong(FULL, "nothing to win")
def never_asks_whether_the_gpu_is_full(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile), full=math.inf)


@wrong(FULL, "nothing to win")
def looks_at_one_sequence(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile))


@wrong(FULL, "nothing to win")
def a_program_a_sequence(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs, num_sms * blocks_per_sm, math.ceil(seq_len / tile))


@wrong(ONE_TILE)
def divides_by_no_tiles(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    if num_seqs * num_kv_heads >= 0.8 * num_sms * blocks_per_sm:
        return 1
    tiles = math.ceil(seq_len / tile)
    per_split = math.ceil(tiles / min(tiles, num_sms * blocks_per_sm // (num_seqs * num_kv_heads)))  # tiles is 0
    return math.ceil(tiles / per_split)


@wrong(ONE_TILE, "nobody reads")
def no_tiles_no_splits(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    if seq_len == 0:
        return 0
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile))


@wrong(WORK, "without work")
def more_splits_than_tiles(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    programs, slots = num_seqs * num_kv_heads, num_sms * blocks_per_sm
    return 1 if programs >= 0.8 * slots or seq_len <= tile else slots // programs


@wrong(WORK, "without work")
def never_asks_whether_all_have_work(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile), all_used=False)


@wrong(WORK, "Slots divided by programs")
def divides_the_slots(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile)
    return 1 if programs >= 0.8 * slots or tiles <= 1 else max(1, min(tiles, slots // programs))


@wrong(WORK, "without work")
def always_eight(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return 1 if num_seqs * num_kv_heads >= 0.8 * num_sms * blocks_per_sm or seq_len <= tile else 8


@wrong(WORK, "Tokens were counted")
def counts_tokens(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return 1 if seq_len <= tile else search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, seq_len)


@wrong(FILL, "Another count fills")
def never_cuts(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return 1


@wrong(FILL, "run one program at a time")
def one_program_an_sm(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    if num_seqs * num_kv_heads >= 0.8 * num_sms * blocks_per_sm:
        return 1
    return search(num_seqs * num_kv_heads, num_sms, math.ceil(seq_len / tile))


@wrong(FILL, "query heads")
def searches_with_the_query_heads(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    if num_seqs * num_kv_heads >= 0.8 * num_sms * blocks_per_sm:
        return 1
    return search(num_seqs * num_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile))


@wrong(FILL, "Another count fills")
def at_most_sixteen(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    programs, slots = num_seqs * num_kv_heads, num_sms * blocks_per_sm
    return search(programs, slots, math.ceil(seq_len / tile), largest=16)


@wrong(FILL, "Another count fills")
def waves_are_not_whole(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile)
    if programs >= 0.8 * slots or tiles <= 1:
        return 1
    wanted = slots / programs  # so that programs * splits is one wave; rounded up, it is one and a bit
    return next((s for s in range(1, tiles + 1) if s >= wanted and math.ceil(tiles / math.ceil(tiles / s)) == s), tiles)


@wrong(SMALLEST, "smaller one is nearly as good")
def takes_the_best(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile), part=1.0)


@wrong(SMALLEST, "largest good count")
def takes_the_largest(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile), pick=max)


@wrong(SMALLEST, "sometimes no count can")
def wants_85_percent_of_everything(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile)
    if programs >= 0.8 * slots or tiles <= 1:
        return 1
    counts = [s for s in range(1, tiles + 1) if math.ceil(tiles / math.ceil(tiles / s)) == s]
    waves = [programs * s / slots for s in counts]
    return next((s for s, w in zip(counts, waves, strict=True) if w / math.ceil(w) >= 0.85), counts[-1])


@wrong(WORK, "not full")
def leaves_the_last_tile_out(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, seq_len // tile)


@wrong(EVERYWHERE, "")
def short_ones_are_never_cut(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    if seq_len < 2048:
        return 1
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile))


@wrong(FULL, "whole number")
def returns_a_float(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return float(search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile)))
