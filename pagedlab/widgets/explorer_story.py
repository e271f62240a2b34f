"""A recording as the live view plays it: for every step only what it changed.

The browser starts from an empty pool and applies the changes of steps 0 to i to show step i; to go back it starts over.
So the whole story crosses to the browser once, and a step after that is one number.
"""

from collections.abc import Sequence

from pagedlab.cache.recorder import PoolState, Step
from pagedlab.widgets.explorer_moment import block_number, hues, labels, problems


def story(steps: Sequence[Step]) -> dict:
    """All that is drawn, as plain dicts and lists.

    A step's changes: `counts` pairs (block, ref count); `free` (at, how many go, the blocks that come) in the free
    list; `cached` the blocks that a cache finds though they are free, None if they are the same as before; `sequences`
    tuples (sequence, blocks kept, blocks added, num_tokens, texts kept, texts added).
    """
    last = steps[-1].state
    names = [sequence.name for sequence in last.sequences]
    played, before = [], _empty(last.num_blocks)
    for step in steps:
        played.append(
            {
                "says": step.caption,
                "failed": step.error is not None,
                "taken": list(step.taken),
                "shared": list(step.shared),
                "returned": list(step.returned),
                "copies": [list(pair) for pair in step.copies],
                "problems": [[block, says] for block, says in problems(step.state)],
                **_changes(before, step.state),
            }
        )
        before = step.state
    return {
        "num_blocks": last.num_blocks,
        "block_size": last.block_size or 0,
        "order_known": all(step.state.free_order_known for step in steps),
        "names": names,
        "labels": labels(names),
        "hues": hues(names),
        "steps": played,
    }


def _empty(num_blocks: int) -> PoolState:
    return PoolState(num_blocks, None, (0,) * num_blocks, (), True, 0, ())


def _changes(old: PoolState, new: PoolState) -> dict:
    counts = []
    if new.ref_counts is not old.ref_counts:
        pairs = zip(old.ref_counts, new.ref_counts, strict=True)
        counts = [[block, int(count)] for block, (before, count) in enumerate(pairs) if before != count]
    sequences = []
    for i, sequence in enumerate(new.sequences):
        before = old.sequences[i] if i < len(old.sequences) else None
        if sequence is before:
            continue
        kept = _common(before.blocks, sequence.blocks) if before else 0
        added = [block_number(block) for block in sequence.blocks[kept:]]
        kept_texts = _common(before.texts, sequence.texts) if before else 0
        texts = list(sequence.texts[kept_texts:])
        sequences.append([i, kept, added, sequence.num_tokens, kept_texts, texts if any(texts) else len(texts)])
    cached = None if new.cached_blocks == old.cached_blocks else [block_number(block) for block in new.cached_blocks]
    return {
        "counts": counts,
        "cached": cached,
        "free": _splice(old.free_blocks, new.free_blocks),
        "sequences": sequences,
    }


def _splice(old: tuple, new: tuple) -> list:
    """The one cut that turns `old` into `new`: at, how many go, what comes."""
    start = _common(old, new)
    end = min(_common(old[::-1], new[::-1]), len(old) - start, len(new) - start)
    return [start, len(old) - start - end, [block_number(block) for block in new[start : len(new) - end]]]


def _common(old: tuple, new: tuple) -> int:
    """How many items the two have in common at their beginning."""
    length = min(len(old), len(new))
    if old[:length] == new[:length]:
        return length
    return next(i for i in range(length) if old[i] != new[i])
