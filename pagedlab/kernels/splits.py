"""Into how many parts decode should split each sequence's tokens, so that every multiprocessor has work.

One program reads the keys and values of one sequence and kv head. With few sequences there are fewer programs than the
GPU runs at a time, and most of it idles however long the sequences are. Splitting the tokens makes more programs; each
leaves a part result, and merging those costs a little. Two ways to choose:

- a number of parts that fills the GPU: `choose_num_splits`. The best number changes with the batch, and with it the
  order of the additions: a sequence's last bits depend on its neighbours.
- a fixed number of tokens in a part (`tokens_per_split` of decode): always the same parts, so always the same bits.
"""

import math


def choose_num_splits(
    num_seqs: int, num_heads: int, num_kv_heads: int, seq_len: int, tile: int, num_sms: int, blocks_per_sm: int
) -> int:
    """How many parts to split `seq_len` tokens into. At least 1; never more than there are tiles.

    tile: tokens a program reads in a step, and the smallest part. num_sms, blocks_per_sm: the GPU's multiprocessors,
    and how many programs each of them runs at a time.

    Query heads do not count. Those of a group are rows of one program, which reads their kv head once.

    1 if the programs fill 80 % of the GPU anyway. Otherwise the smallest number whose parts all have work and whose
    last wave is nearly as full as that of the best number: 85 % of its efficiency. The rule is FlashAttention's
    (`num_splits_heuristic`, Dao-AILab/flash-attention).
    """
    for name, value in (
        ("num_heads", num_heads),
        ("num_kv_heads", num_kv_heads),
        ("tile", tile),
        ("num_sms", num_sms),
    ):
        if value < 1:
            raise ValueError(f"{name} is {value}; it is at least 1")
    if blocks_per_sm < 1:
        raise ValueError(f"blocks_per_sm is {blocks_per_sm}: a kernel of which no program fits runs nowhere")
    if num_seqs < 0 or seq_len < 0:
        raise ValueError(f"{num_seqs} sequences of {seq_len} tokens: neither can be negative")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} kv heads equally")
    programs = num_seqs * num_kv_heads
    slots = num_sms * blocks_per_sm
    tiles = math.ceil(seq_len / tile)
    if tiles <= 1 or programs == 0 or programs >= 0.8 * slots:
        return 1

    # Nine tiles in six parts are two each, and the sixth has none: six is really five.
    efficiency = {
        splits: wave_efficiency(programs * splits, slots)
        for splits in range(1, tiles + 1)
        if math.ceil(tiles / math.ceil(tiles / splits)) == splits
    }
    enough = 0.85 * max(efficiency.values())
    return min(splits for splits, value in efficiency.items() if value >= enough)


def wave_efficiency(programs: int, slots: int) -> float:
    """The share of the GPU at work while `programs` of equal length run, `slots` at a time: 1 is all of it.

    They run in waves. 110 programs in 108 slots are two waves, and the second has 2 of 108: 51 %.
    """
    if programs < 1 or slots < 1:
        raise ValueError(f"{programs} programs in {slots} slots: both are at least 1")
    return programs / (math.ceil(programs / slots) * slots)
