"""Which slots an answer to `paged_attention` reads, and with what weight.

Attention gives back a mixture of values. So give every slot of the pool a value that is 1 in a place of its own and 0
elsewhere: what comes back is the list of weights. From it one can say in plain words what went wrong: "B read block 3
slot 1, which holds token 1 of A".
"""

import math

import torch

from pagedlab.course.paged_inputs import NAMES, PagedInputs
from pagedlab.course.promise import Wrong, calling
from pagedlab.course.tensors import Suspect, expect_tensor, shown
from pagedlab.course.words import count
from pagedlab.kernels.ops import paged_decode

CLOSE = 1e-4
FEW = 1e-3  # of the right weight: below that a token counts as not read


def expect_attention(answer, pages: PagedInputs, q: torch.Tensor, hint: str, call: str = "") -> None:
    """Raise `Wrong`, saying why if that can be found out, unless the answer attends rightly.

    q: `[num_seqs, num_heads, head_dim]`.
    """
    shapes = f"q{list(q.shape)}, key_cache{list(pages.key_cache.shape)}, ..."
    call = calling(f"{pages.told()}\n{call}paged_attention({shapes})")
    try:
        got = _run(answer, pages, q)
    except IndexError as error:
        if q.shape[1] != pages.num_kv_heads:  # then it may be about heads
            raise
        raise _beyond_the_end(error, pages, call) from error
    want = paged_decode(q, *_arguments(pages))
    as_it_should = isinstance(got, torch.Tensor) and got.shape == want.shape and got.dtype == want.dtype
    if as_it_should and not torch.isclose(got, want, rtol=CLOSE, atol=CLOSE).all():
        _accuse_scale(got, pages, q, call, want)
        explain(answer, pages, q, call)
        _accuse_nan(answer, pages, q, call, want)
    expect_tensor(got, want, call, ("sequence", "head", "dimension"), hint)


def _beyond_the_end(error: IndexError, pages: PagedInputs, call: str) -> Wrong:
    length, blocks = pages.lens[0], len(pages.tables[0])
    return Wrong(
        f"An index is out of range: {error}.",
        f"{call}\nraised IndexError: {error}",
        f"Was a block asked for behind the table's end? {count(length, 'token')} in blocks of {pages.block_size}: that "
        f"is {count(blocks, 'block')}, so the block numbers are range({blocks}).",
        pages.picture(),
    )


def explain(answer, pages: PagedInputs, q: torch.Tensor, call: str) -> None:
    """Raise `Wrong` for the first head whose weights are wrong. Returns when the weights are right or can't be had."""
    try:
        got = weights_read(answer, pages, q)
    except Exception:  # the answer did something else with this pool; its numbers will be told instead
        return
    if got is None:
        return
    right = weights_read(paged_decode, pages, q)
    wrong = ~torch.isclose(got, right, rtol=1e-3, atol=1e-5).flatten(2).all(-1)
    if wrong.any():
        sequence, head = wrong.nonzero()[0].tolist()
        weights, wanted = got[sequence, head], right[sequence, head]
        if not weights.isnan().any():
            explain_places(weights, wanted, pages, sequence, head, q.shape[1], call)
            explain_weights(weights, wanted, pages, sequence, head, q.shape[1], call)


def weights_read(answer, pages: PagedInputs, q: torch.Tensor) -> torch.Tensor | None:
    """The weight of every slot in every result: `[num_seqs, num_heads, num_kv_heads, num_blocks, block_size]`.

    Slots without a token hold zeros here, so that reading them shows as a weight and not as NaN. None: what came back
    is not a tensor of the right shape.
    """
    num_blocks, num_kv_heads, block_size, head_dim = pages.key_cache.shape
    wide = head_dim
    while wide < num_kv_heads * num_blocks * block_size:
        wide *= 4  # so that the square root below is a whole number and changes no score
    keys = torch.zeros(num_blocks, num_kv_heads, block_size, wide)
    keys[..., :head_dim] = pages.key_cache.nan_to_num(0)
    marks = torch.eye(num_kv_heads * num_blocks * block_size, wide)
    values = marks.reshape(num_kv_heads, num_blocks, block_size, wide).transpose(0, 1).contiguous()
    wide_q = torch.zeros(*q.shape[:2], wide)
    wide_q[..., :head_dim] = q * math.sqrt(wide / head_dim)  # the same scores, although head_dim is another
    got = answer(wide_q, keys, values, pages.block_tables.clone(), pages.seq_lens.clone())
    if not isinstance(got, torch.Tensor) or got.shape != wide_q.shape:
        return None
    slots = got.detach()[..., : num_kv_heads * num_blocks * block_size]
    return slots.reshape(*q.shape[:2], num_kv_heads, num_blocks, block_size)


def explain_places(got, right, pages: PagedInputs, sequence: int, head: int, num_heads: int, call: str) -> None:
    """Raise `Wrong` if a slot was read that should not be, or one was not that should be.

    got, right: `[num_kv_heads, num_blocks, block_size]`, the weights that one head of one sequence gave to the slots.
    """
    name, length = NAMES[sequence], pages.lens[sequence]
    table = pages.tables[sequence]
    whose = f"{name}, head {head}"
    own = torch.zeros_like(right[0], dtype=torch.bool)
    for position in range(length):
        own[pages.where(sequence, position)] = True

    strange = (got.abs().sum(0) > CLOSE) & ~own
    if strange.any():
        block, slot = strange.nonzero()[0].tolist()
        holds = pages.owner(block, slot)
        message = f"{whose}: block {block} slot {slot} was read, which holds {holds}."
        hint = f"{name}'s block table is {table}."
        if block in table:
            message = f"{whose}: block {block} slot {slot} was read, behind {name}'s last token."
            hint = f"{name} has {count(length, 'token')}. How many of them are in its last block?"
        elif holds == "a slot nobody wrote":
            message = f"{whose}: block {block} slot {slot} was read, a slot that nobody wrote."
        behind = pages.block_tables[sequence, len(table) :].tolist()
        before = next((NAMES[other] for other in range(sequence) if block in pages.tables[other]), None)
        if not table:
            hint = f"{name} has no tokens, so nothing may be read for it."
        elif block in behind:
            hint += f" Behind it, the row goes on with {behind}, which means nothing: the length says where to stop."
        elif block == pages.num_blocks - 1 and (pages.block_tables[sequence] < 0).any():
            hint += f" Its row ends in -1, and key_cache[-1] is the last block, {block}: was that read as well?"
        if before is not None and block not in table:
            hint += f" Was another row of block_tables read, or was something of {before}'s carried over into {name}, "
            hint += "such as its largest, sum or values so far?"
        raise _wrong(message, hint, call, pages, block)

    kv_head = head * pages.num_kv_heads // num_heads
    of_heads = got.abs().flatten(1).sum(1)
    for other in range(pages.num_kv_heads):
        if other != kv_head and of_heads[other] > CLOSE:
            group = num_heads // pages.num_kv_heads
            raise _wrong(
                f"{whose}: the values of kv head {other} were read; right is kv head {kv_head}.",
                f"Head h reads kv head h // {group}: {count(group, 'neighbour')} share one."
                if group > 1
                else "Here every query head has a kv head of its own.",
                call,
                pages,
            )

    weights, wanted = (_of_tokens(one[kv_head], pages, sequence) for one in (got, right))
    unread = (weights.abs() < FEW * wanted) & (wanted > CLOSE)
    if unread.any():
        position = int(unread.nonzero()[0])
        block, _ = pages.where(sequence, position)
        raise _wrong(
            f"{whose}: token {position} was not read. It lies in {pages.told_where(sequence, position)}.",
            f"{name} has {count(length, 'token')}: positions 0 to {length - 1}. Its block table is {table}.",
            call + _listed(weights, wanted, name, head),
            pages,
            block,
        )


def explain_weights(
    got, right, pages: PagedInputs, sequence: int, head: int, num_heads: int, call: str, tile: int = 0
) -> None:
    """Raise `Wrong`: all the right tokens were read, and no others; their weights are wrong.

    tile: how many tokens the answer takes in one step, if that is not a block.
    """
    kv_head = head * pages.num_kv_heads // num_heads
    weights, wanted = (_of_tokens(one[kv_head], pages, sequence) for one in (got, right))
    whose, size, part = f"{NAMES[sequence]}, head {head}", tile or pages.block_size, "tile" if tile else "block"
    call += _listed(weights, wanted, NAMES[sequence], head)
    ratio = torch.where(wanted > CLOSE, weights / wanted, 1.0)
    blocks = ratio.split(size)
    even = all(torch.allclose(block, block[:1].expand_as(block), rtol=1e-2) for block in blocks)
    factors = torch.stack([block[0] for block in blocks])
    total = float(weights.sum())
    if len(blocks) > 1 and even and not torch.allclose(factors, factors[:1].expand_as(factors), rtol=1e-2):
        sums = [float(block.sum()) for block in weights.split(size)]
        if all(abs(one - sums[0]) < 3e-3 for one in sums):
            message = f"{whose}: every {part} got the same weight in all, {sums[0]:.3g}."
            hint = f"A softmax for each {part} makes each one's weights sum to 1. Those with larger scores count more."
        else:
            message = f"{whose}: inside each {part} the weights are right, but {part} against {part} they are not."
            hint = (
                "What was added up before a new maximum was measured against the old one. What must it be multiplied "
                "by, sum and values both?"
            )
        raise _wrong(message, hint, call, pages)
    if abs(total - 1) > 1e-3:
        hint = "Which sum are they divided by, and when? It must hold every token once, and be measured against the "
        hint += "same maximum as the values."
        if total < 1 and len(weights) % size:
            hint = "Something else is in the sum. A slot behind the end with a score of 0 weighs exp(0), not nothing."
        raise _wrong(
            f"{whose}: the weights sum to {total:.3g}, not to 1.",
            hint,
            call,
            pages,
        )
    if _scores_off_by_one_factor(weights, wanted):
        raise _wrong(
            f"{whose}: the scores are all too large, or all too small, by the same factor.",
            "What are they divided by? It must be the square root of head_dim, and head_dim is q.shape[-1].",
            call,
            pages,
        )
    worst = int((ratio - 1).abs().argmax())
    raise _wrong(
        f"{whose}: token {worst} got the weight {shown(weights[worst])}; right is {shown(wanted[worst])}.",
        "The right values were read, so look at the scores: is it the key of the same token, of the same kv head?",
        call,
        pages,
    )


def _of_tokens(weights, pages: PagedInputs, sequence: int):
    """Of one kv head's weights `[num_blocks, block_size]`, those of a sequence's tokens, in order."""
    places = [pages.where(sequence, position) for position in range(pages.lens[sequence])]
    return torch.stack([weights[place] for place in places]) if places else weights.new_zeros(0)


def _listed(weights, wanted, name: str, head: int) -> str:
    return f"\nthe weights of {name}'s tokens, head {head}: {_numbers(weights)}\nright is {_numbers(wanted)}"


def _scores_off_by_one_factor(weights, wanted) -> bool:
    """Whether the weights are those of c * score, with one c. Three tokens are needed: with two, some c always fits."""
    if len(weights) < 3 or (weights <= 0).any() or (wanted <= 0).any():
        return False
    got, right = (one.double().log() for one in (weights, wanted))
    got, right = got - got.mean(), right - right.mean()
    return bool(((got @ right) / (right @ right) * right - got).abs().max() < 1e-3)


def _wrong(message: str, hint: str, example: str, pages: PagedInputs, block: int | None = None) -> Wrong:
    picture = pages.picture() if block is None else pages.picture(problem=block, note=message)
    return Wrong(message, example, hint, picture)


def _accuse_scale(got, pages, q, call: str, want) -> None:
    head_dim = q.shape[-1]
    suspects = (
        Suspect(
            paged_decode(q, *_arguments(pages), scale=1.0),
            "The scores were not scaled.",
            "Divide by the square root of head_dim before exp.",
        ),
        Suspect(
            paged_decode(q, *_arguments(pages), scale=1 / head_dim),
            "The scores were divided by head_dim, not by its square root.",
            "As in lesson 1: the square root.",
        ),
        Suspect(
            paged_decode(q, *_arguments(pages), scale=1 / 8),
            "The scores were divided by 8, the square root of 64.",
            f"That fits the real model. Here head_dim is {head_dim}: take it from q's shape.",
        ),
        Suspect(
            paged_decode(q, *_arguments(pages), scale=math.sqrt(head_dim)),
            "The scores were multiplied by the square root of head_dim.",
            "Divide by it.",
        ),
        Suspect(
            paged_decode(q, *_arguments(pages), scale=math.log(2) / math.sqrt(head_dim)),
            "The weights were taken as powers of 2.",
            "exp2 needs scores multiplied by log2(e). Or use exp.",
        ),
    )
    if any(torch.allclose(one.tensor, got, rtol=CLOSE, atol=CLOSE) for one in suspects):
        expect_tensor(got, want, call, ("sequence", "head", "dimension"), "", suspects)


def _accuse_nan(answer, pages, q, call: str, want) -> None:
    """The weights are right, so something else that is multiplied by them isn't: the NaN of slots nobody wrote."""

    def right_with(**clean) -> bool:
        try:
            got = _run(answer, pages, q, **clean)
            return torch.allclose(got, want, rtol=CLOSE, atol=CLOSE)
        except Exception:
            return False

    if right_with(values=pages.value_cache.nan_to_num(0)):
        raise Wrong(
            "NaN came in through the values: slots that nobody wrote have a weight of 0, and 0 * NaN is NaN.",
            f"{call}\nWith zeros instead of NaN in those slots of value_cache the result is right.",
            "Leave those slots out before you multiply: a slice, masked_fill or torch.where on the values too.",
            pages.picture(),
        )
    if right_with(keys=pages.key_cache.nan_to_num(0)):
        raise Wrong(
            "NaN came in through the keys: what was added to the scores of slots nobody wrote doesn't take NaN away.",
            f"{call}\nWith zeros instead of NaN in those slots of key_cache the result is right.",
            "NaN + (-inf) is NaN. masked_fill and torch.where replace; a sum or a product doesn't.",
            pages.picture(),
        )
    if right_with(keys=pages.key_cache.nan_to_num(0), values=pages.value_cache.nan_to_num(0)):
        raise Wrong(
            "NaN came in from slots that nobody wrote, through keys and values both.",
            f"{call}\nWith zeros instead of NaN in those slots the result is right.",
            "0 * NaN is NaN, and so is NaN + (-inf). Leave those slots out: a slice of the block, masked_fill, or "
            "torch.where.",
            pages.picture(),
        )


def _arguments(pages: PagedInputs):
    return pages.key_cache, pages.value_cache, pages.block_tables, pages.seq_lens


def _run(answer, pages: PagedInputs, q, keys=None, values=None):
    """Call the answer on copies of everything."""
    keys = pages.key_cache if keys is None else keys
    values = pages.value_cache if values is None else values
    return answer(q.clone(), keys.clone(), values.clone(), pages.block_tables.clone(), pages.seq_lens.clone())


def _numbers(weights) -> str:
    """The first weights of a list, short."""
    few = ", ".join(f"{float(weight):.3f}" for weight in weights[:8])
    return f"{few}, ..." if len(weights) > 8 else few
