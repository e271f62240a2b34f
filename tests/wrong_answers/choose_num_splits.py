"""Plausible wrong answers to `choose_num_splits`."""

import math

from tests.corpus import wrong

FULL = "A batch that fills the GPU is not cut"
ONE_TILE = "What fits into one tile is not cut"
WORK = "Every split has work"
FILL = "Waves are at least 0.85 times as full as they can be"
SMALLEST = "No more splits than that takes"


def search(
    programs, slots, tiles, full=lambda share: share >= 0.8, good=lambda share, best: share >= 0.85 * best, work=None
):
    """The right rule, with a screw for each mistake. work: whether all of so many splits have some."""
    if full(programs / slots) or tiles <= 1:
        return 1
    work = work or (lambda splits: math.ceil(tiles / math.ceil(tiles / splits)) == splits)
    shares = {
        splits: programs * splits / (math.ceil(programs * splits / slots) * slots)
        for splits in range(1, tiles + 1)
        if work(splits)
    }
    best = max(shares.values())
    return min(splits for splits in shares if good(shares[splits], best))


@wrong(FILL, "query heads")
def counts_the_query_heads(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile))


@wrong(FULL, "number of sequences")
def looks_at_one_sequence(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile))


@wrong(FULL, "kv heads were left out")
def a_program_a_sequence(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs, num_sms * blocks_per_sm, math.ceil(seq_len / tile))


@wrong(FILL, "one program at a time")
def one_program_an_sm(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_kv_heads, num_sms, math.ceil(seq_len / tile))


@wrong(FULL, "nothing to win")
def never_asks_whether_the_gpu_is_full(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile), full=lambda share: False)


@wrong(FULL, "exactly 80 %")
def more_than_80_percent(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(
        num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile), full=lambda share: share > 0.8
    )


@wrong(ONE_TILE, "")
def forgets_what_has_no_tiles(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile)
    if programs >= 0.8 * slots:
        return 1
    per_split = {math.ceil(tiles / splits) for splits in range(1, tiles + 1)}
    most = math.ceil(tiles / min(per_split))  # of nothing, there is no smallest
    return search(programs, slots, most)


@wrong(WORK, "not full")
def leaves_the_last_tile_out(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, seq_len // tile)


@wrong(WORK, "Tokens were counted")
def counts_tokens(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return 1 if seq_len <= tile else search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, seq_len)


@wrong(WORK, "without work")
def never_asks_whether_all_have_work(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile), work=lambda splits: True)


@wrong(SMALLEST, "without a rest")
def tries_divisors_only(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    tiles = math.ceil(seq_len / tile)
    return search(num_seqs * num_kv_heads, num_sms * blocks_per_sm, tiles, work=lambda splits: tiles % splits == 0)


@wrong(WORK, "Slots divided by programs")
def divides_the_slots(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile)
    return 1 if programs >= 0.8 * slots or tiles <= 1 else max(1, min(tiles, slots // programs))


@wrong(FILL, "Another count fills")
def waves_are_not_whole(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile)
    if programs >= 0.8 * slots or tiles <= 1:
        return 1
    return next(  # the best is 1 if the last wave is thought to be full
        splits
        for splits in range(1, tiles + 1)
        if math.ceil(tiles / math.ceil(tiles / splits)) == splits
        and programs * splits / slots >= 0.85 * min(1, programs * tiles / slots)
    )


@wrong(SMALLEST, "smaller one is nearly as good")
def takes_the_best(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(
        num_seqs * num_kv_heads,
        num_sms * blocks_per_sm,
        math.ceil(seq_len / tile),
        good=lambda share, best: share == best,
    )


@wrong(SMALLEST, "exactly 0.85")
def more_than_85_percent(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    return search(
        num_seqs * num_kv_heads,
        num_sms * blocks_per_sm,
        math.ceil(seq_len / tile),
        good=lambda share, best: share > 0.85 * best,
    )


@wrong(SMALLEST, "sometimes no count can")
def wants_85_percent_of_everything(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile)
    if programs >= 0.8 * slots or tiles <= 1:
        return 1
    counts = [s for s in range(1, tiles + 1) if math.ceil(tiles / math.ceil(tiles / s)) == s]
    waves = [programs * s / slots for s in counts]
    return next((s for s, w in zip(counts, waves, strict=True) if w / math.ceil(w) >= 0.85), counts[-1])
