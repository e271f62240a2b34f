"""Lesson 05: joining two partial results of attention, and attention over blocks."""

import math

import torch
from hypothesis import strategies as st

from pagedlab.attention import merge_partials as right_merge
from pagedlab.course.attention_probe import expect_attention
from pagedlab.course.paged_inputs import BLOCK_SIZES, PagedInputs, lengths
from pagedlab.course.promise import Exercise, Wrong, calling, count, promise
from pagedlab.course.tensors import Suspect, expect_tensor, expect_untouched, randn

SEED = st.integers(0, 50)

# --- merge_partials ---------------------------------------------------------------------------------------------------

TOKENS = st.integers(1, 6)  # in one part
NAMES = ("out_a", "lse_a", "out_b", "lse_b")


def part(seed: int, rows: tuple[int, ...], num_tokens: int, head_dim: int, shift: float = 0.0):
    """Attention over some tokens: out [*rows, head_dim], lse [*rows]. `shift` is added to all scores."""
    scores = 2 * randn(seed, *rows, num_tokens) + shift
    values = randn(seed + 1, *rows, num_tokens, head_dim)
    return (scores.softmax(-1).unsqueeze(-2) @ values).squeeze(-2), scores.logsumexp(-1)


def merge_call(rows: tuple[int, ...], head_dim: int) -> str:
    out, lse = list((*rows, head_dim)), list(rows)
    return f"merge_partials(out_a{out}, lse_a{lse}, out_b{out}, lse_b{lse})"


def expect_merged(got, want, call: str, hint: str, rows: tuple[str, ...] = ("head",)) -> None:
    """Both results, out first. rows: what the dimensions of lse count; out has one more."""
    axes = {"out": (*rows, "dimension"), "lse": rows}
    for (name, its_axes), got_one, want_one in zip(axes.items(), got, want, strict=True):
        expect_tensor(got_one, want_one, f"{call}\nits {name}:", its_axes, hint)


def merged(answer, parts, call: str):
    """Call the answer on copies; it must give back two things."""
    calling(call)
    try:
        result = answer(*(tensor.clone() for tensor in parts))
    except RuntimeError as error:
        if "ambiguous" not in str(error):
            raise
        raise Wrong(
            "One `if` can't decide for all heads at once.",
            f"{call}\nraised {type(error).__name__}: {error}",
            "torch.where and masked_fill decide for each row by itself.",
        ) from error
    if not isinstance(result, tuple | list) or len(result) != 2:
        kind = (
            f"{type(result).__name__} of {len(result)}" if isinstance(result, tuple | list) else type(result).__name__
        )
        raise Wrong(
            "Two results are needed: the merged out, and its lse, so that the next part can be merged too.",
            f"{call} returned {kind}",
            "return out, lse",
        )
    return result


def out_mistakes(out_a, lse_a, out_b, lse_b) -> tuple[Suspect, ...]:
    """What the usual slips give."""
    largest = torch.maximum(lse_a, lse_b)
    weight_a, weight_b = ((lse - largest).exp().unsqueeze(-1) for lse in (lse_a, lse_b))
    wide_a, wide_b = lse_a.unsqueeze(-1), lse_b.unsqueeze(-1)
    two_a, two_b = (torch.exp2(lse - largest).unsqueeze(-1) for lse in (lse_a, lse_b))
    exp_a, exp_b = wide_a.exp(), wide_b.exp()
    return (
        Suspect(
            (out_a + out_b) / 2,
            "Both parts got the same weight.",
            "A part with large scores counts for more. How large is each part's sum of exp(score)?",
        ),
        Suspect(
            out_a + out_b,
            "The two results were added as they are.",
            "Each is an average already: its weights sum to 1. The shares of the two parts must sum to 1 as well.",
        ),
        Suspect(
            (weight_b * out_a + weight_a * out_b) / (weight_a + weight_b),
            "Each part got the other's weight.",
            "The part with the larger lse has the larger weight.",
        ),
        Suspect(
            (wide_a * out_a + wide_b * out_b) / (wide_a + wide_b),
            "The lse themselves were used as weights.",
            "An lse is a logarithm, and may be negative. The weight is the sum it was taken of: exp(lse).",
        ),
        Suspect(
            (two_a * out_a + two_b * out_b) / (two_a + two_b),
            "The weights were taken as powers of 2.",
            "These lse are natural logarithms: exp undoes them, exp2 does not.",
        ),
        Suspect(
            weight_a * out_a + weight_b * out_b,
            "The weights don't sum to 1.",
            "Divide each by the sum of the two.",
        ),
        Suspect(
            exp_a * out_a + exp_b * out_b,
            "The weights don't sum to 1.",
            "Divide each by the sum of the two.",
        ),
        *(
            Suspect(one, "One of the two parts was left out.", "It may weigh less than the other, but not nothing.")
            for one in (torch.where(wide_a >= wide_b, out_a, out_b), out_a, out_b)
        ),
    )


@promise("out is attention over both parts", seed=SEED, num_heads=st.integers(1, 3), num_a=TOKENS, num_b=TOKENS)
def merge_out(answer, seed, num_heads, num_a, num_b):
    parts = *part(seed, (num_heads,), num_a, 4), *part(seed + 100, (num_heads,), num_b, 4)
    call = merge_call((num_heads,), 4)
    out, _ = merged(answer, parts, call)
    expect_tensor(
        out,
        right_merge(*parts)[0],
        f"# part a saw {num_a}, part b {num_b} tokens\n{call}\nits out:",
        ("head", "dimension"),
        "Each part's share is exp(its lse), divided by the sum of both.",
        out_mistakes(*parts),
    )


@promise(
    "lse is the logarithm of both sums together", seed=SEED, num_heads=st.integers(1, 3), num_a=TOKENS, num_b=TOKENS
)
def merge_lse(answer, seed, num_heads, num_a, num_b):
    parts = *part(seed, (num_heads,), num_a, 4), *part(seed + 100, (num_heads,), num_b, 4)
    _, lse_a, _, lse_b = parts
    call = merge_call((num_heads,), 4)
    _, lse = merged(answer, parts, call)
    largest = torch.maximum(lse_a, lse_b)
    total = (lse_a - largest).exp() + (lse_b - largest).exp()
    expect_tensor(
        lse,
        right_merge(*parts)[1],
        f"# with lse_a {lse_a.tolist()!r:.60} and lse_b {lse_b.tolist()!r:.60}\n{call}\nits lse:",
        ("head",),
        "The sum of exp(score) over both parts is exp(lse_a) + exp(lse_b). Return its logarithm.",
        (
            Suspect(largest, "The larger lse was returned.", "That leaves out what the other part adds."),
            Suspect(
                lse_a + lse_b,
                "The logarithms were added, which multiplies the sums.",
                "Add the sums, then take the logarithm.",
            ),
            Suspect((lse_a + lse_b) / 2, "The lse is an average of the two.", "Sums add up: both parts count in full."),
            Suspect(
                torch.log(total),
                "The largest was taken off before exp, and never put back.",
                "log(exp(x - m) + exp(y - m)) is m too small.",
            ),
            Suspect(
                torch.exp(lse_a) + torch.exp(lse_b),
                "The sum was returned, not its logarithm.",
                "The result must be good for merging again, so it must be what came in: an lse.",
            ),
            Suspect(
                torch.log2(torch.exp(lse_a) + torch.exp(lse_b)),
                "The logarithm was taken to base 2.",
                "What came in were natural logarithms: torch.log.",
            ),
            Suspect(
                largest + torch.log2(total),
                "The logarithm was taken to base 2.",
                "What came in were natural logarithms: torch.log.",
            ),
            Suspect(total, "The sum was returned, not its logarithm.", "Return largest + log(sum)."),
            Suspect(lse_a, "The first part's lse came back unchanged.", "The second part adds to the sum."),
        ),
    )


@promise(
    "Any number of dimensions in front",
    seed=SEED,
    rows=st.sampled_from([(), (2,), (2, 3), (3, 3), (2, 1, 3)]),
    head_dim=st.sampled_from([3, 1, 2]),
)
def merge_rows(answer, seed, rows, head_dim):
    parts = *part(seed, rows, 3, head_dim), *part(seed + 100, rows, 2, head_dim)
    call = merge_call(rows, head_dim)
    try:
        got = merged(answer, parts, call)
    except (RuntimeError, IndexError) as error:
        raise Wrong(
            f"It doesn't work for lse of shape {list(rows)}.",
            f"{call} raised {type(error).__name__}: {error}",
            "Every row has one lse and head_dim numbers. `lse.unsqueeze(-1)` lines them up, whatever the rows are.",
        ) from error
    names = tuple(("sequence", "head", "query")[: len(rows)])
    hint = "Every row has a weight of its own: `lse.unsqueeze(-1)` lines it up with the head_dim numbers of out."
    expect_merged(got, right_merge(*parts), call, hint, names)


@promise(
    "Large and very negative scores do no harm",
    seed=SEED,
    num_a=TOKENS,
    shift_a=st.sampled_from([0.0, 100.0, 1000.0, -200.0, -1000.0]),
    shift_b=st.sampled_from([0.0, 100.0, 1000.0, -200.0, -1000.0]),
)
def merge_large(answer, seed, num_a, shift_a, shift_b):
    parts = *part(seed, (2,), num_a, 2, shift_a), *part(seed + 100, (2,), 2, 2, shift_b)
    call = f"{merge_call((2,), 2)}\n# lse_a about {shift_a:g}, lse_b about {shift_b:g}"
    expect_merged(
        merged(answer, parts, call),
        right_merge(*parts),
        call,
        "exp(100) is too large for float32, and exp(-200) is 0. Only the difference of the two lse matters: take the "
        "larger one off both, before exp.",
    )


@promise(
    "An empty part counts for nothing, whatever it holds",
    seed=SEED,
    empty=st.sampled_from(["b", "a"]),
    which=st.sampled_from([(True,), (True, False), (False, True, True)]),
    shift=st.sampled_from([0.0, -300.0]),
    holds=st.sampled_from([0.0, 7.0, math.nan, math.inf]),
)
def merge_empty(answer, seed, empty, which, shift, holds):
    rows = (len(which),)
    gone = torch.tensor(which)
    out, lse = part(seed, rows, 3, 2, shift)
    other_out, other_lse = part(seed + 100, rows, 2, 2, shift)
    other_out[gone], other_lse[gone] = holds, -math.inf
    want_out, want_lse = right_merge(out, lse, other_out, other_lse)
    parts = (out, lse, other_out, other_lse) if empty == "b" else (other_out, other_lse, out, lse)
    where = " and ".join(f"head {head}" for head in range(len(which)) if which[head])
    call = f"{merge_call(rows, 2)}\n# part {empty} is empty for {where}: lse_{empty} is -inf there"
    call += f", and its out holds {holds:g}"
    got = merged(answer, parts, call)
    hint = "Its weight is exp(-inf) = 0. Which of your steps turns that into something else?"
    if not math.isfinite(holds):
        name = "NaN" if math.isnan(holds) else "inf"
        hint = f"A weight of 0 is no protection: 0 * {name} is NaN. Take the row out first, by its lse (masked_fill, "
        hint += "torch.where)."
    elif not all(which):
        hint = "Rows differ: one may be empty while another isn't. Did all of them get the same treatment?"
    expect_merged(got, (want_out, want_lse), call, hint)


@promise(
    "Two empty parts stay empty",
    holds=st.sampled_from([0.0, math.nan, math.inf]),
    which=st.sampled_from([(True,), (False, True)]),
)
def merge_both_empty(answer, holds, which):
    rows, gone = (len(which),), torch.tensor(which)
    parts = [*part(0, rows, 3, 2), *part(100, rows, 2, 2)]
    for out, lse in (parts[:2], parts[2:]):
        out[gone], lse[gone] = holds, -math.inf
    call = f"{merge_call(rows, 2)}\n# both are empty for head {len(which) - 1}: both lse are -inf there"
    expect_merged(
        merged(answer, parts, call),
        right_merge(*parts),
        call,
        "Nothing and nothing: out is 0, lse is -inf. But -inf - (-inf) is NaN, and so is 0 / 0. Which of your steps "
        "meets one of them?",
    )


@promise("What it is given stays as it was", examples=20, seed=SEED)
def merge_pure(answer, seed):
    parts = [*part(seed, (2,), 3, 4), *part(seed + 100, (2,), 2, 4)]
    given = dict(zip(NAMES, parts, strict=True))
    before = {name: tensor.clone() for name, tensor in given.items()}
    answer(*parts)
    expect_untouched(before, given, merge_call((2,), 4))


# --- paged_attention --------------------------------------------------------------------------------------------------

BLOCK_SIZE = st.sampled_from(BLOCK_SIZES)
KV_HEADS = st.sampled_from([1, 2, 3])
# All different: two blocks at -60,000 could not be weighed against each other through their lse in float32.
SHIFTS = st.lists(st.sampled_from([0, -400, 400, -60_000, 3_000]), min_size=1, max_size=4, unique=True)


def queries(pages: PagedInputs, group: int = 1, spread: float = 1.5):
    return spread * randn(pages.seed + 1000, pages.num_seqs, pages.num_kv_heads * group, pages.head_dim)


@promise("One sequence in one full block", seed=SEED, block_size=BLOCK_SIZE, heads=KV_HEADS)
def pages_one_block(answer, seed, block_size, heads):
    pages = PagedInputs([block_size], block_size, heads, head_dim=4, seed=seed)
    expect_attention(answer, pages, queries(pages), "Scores, softmax over the tokens, weighted sum of the values.")


@promise(
    "Several full blocks, wherever they lie",
    seed=SEED,
    block_size=BLOCK_SIZE,
    num_blocks=st.integers(2, 4),
    heads=KV_HEADS,
)
def pages_many_blocks(answer, seed, block_size, num_blocks, heads):
    pages = PagedInputs([num_blocks * block_size], block_size, heads, head_dim=4, seed=seed)
    expect_attention(answer, pages, queries(pages), "Block by block, in the order of the table.")


@promise(
    "Nothing behind the last token is read",
    seed=SEED,
    block_size=st.sampled_from([2, 3, 16]),
    full=st.integers(0, 2),
    tail=st.integers(1, 15),
)
def pages_tail(answer, seed, block_size, full, tail):
    length = full * block_size + min(tail, block_size - 1)
    pages = PagedInputs([length], block_size, 1, head_dim=4, seed=seed)
    expect_attention(answer, pages, queries(pages), "The last block holds length - block_number * block_size tokens.")


@st.composite
def batches(draw, at_least: int = 1):
    block_size = draw(BLOCK_SIZE)
    lens = draw(st.lists(lengths(block_size, at_least), min_size=2, max_size=4))
    return PagedInputs(
        lens,
        block_size,
        draw(st.sampled_from([1, 2])),
        head_dim=4,
        seed=draw(SEED),
        extra_columns=draw(st.integers(0, 2)),
    )


@promise("Every sequence of a batch by its own table and length", pages=batches())
def pages_batch(answer, pages):
    expect_attention(answer, pages, queries(pages), "seq_lens[i] and block_tables[i] belong to q[i].")


@promise(
    "Two sequences may share a block",
    seed=SEED,
    block_size=st.sampled_from([2, 1, 3]),
    shared=st.integers(1, 2),
    tails=st.lists(st.integers(0, 3), min_size=2, max_size=3),
)
def pages_shared(answer, seed, block_size, shared, tails):
    lens = [shared * block_size + tail for tail in tails]
    pages = PagedInputs(lens, block_size, 1, head_dim=4, seed=seed, shared_blocks=shared)
    expect_attention(
        answer, pages, queries(pages), "Nobody owns a block alone: whose tokens it holds is said by the tables only."
    )


@promise(
    "What a table says behind the last block means nothing",
    seed=SEED,
    block_size=BLOCK_SIZE,
    lens=st.lists(st.integers(1, 5), min_size=2, max_size=3),
    extra=st.integers(1, 2),
)
def pages_leftovers(answer, seed, block_size, lens, extra):
    pages = PagedInputs(lens, block_size, 1, head_dim=4, seed=seed, extra_columns=extra, leftovers=True)
    hint = "The length says how many blocks to read. What stands behind them may be -1, or a number left over."
    try:
        expect_attention(answer, pages, queries(pages), hint)
    except (IndexError, RuntimeError) as error:
        raise Wrong(
            "It doesn't work when a row of block_tables goes on behind the sequence's last block.",
            f"{pages.told()}\nraised {type(error).__name__}: {error}",
            hint,
        ) from error


@promise(
    "Query heads share a kv head",
    seed=SEED,
    kv_heads=KV_HEADS,
    group=st.sampled_from([2, 3, 4]),
    head_dim=st.sampled_from([4, 2, 5]),
    length=st.integers(1, 7),
)
def pages_groups(answer, seed, kv_heads, group, head_dim, length):
    pages = PagedInputs([length, 3], 3, kv_heads, head_dim, seed, extra_columns=1)
    hint = f"{group} query heads read each kv head: head h reads kv head h // {group}."
    try:
        expect_attention(answer, pages, queries(pages, group), hint)
    except (IndexError, RuntimeError) as error:
        raise Wrong(
            f"It doesn't work for {kv_heads * group} query heads and {count(kv_heads, 'kv head')}.",
            f"{pages.told()}\nq is [2, {kv_heads * group}, {head_dim}]\nraised {type(error).__name__}: {error}",
            hint,
        ) from error


@promise(
    "A sequence without tokens gets zeros", examples=40, seed=SEED, lens=st.sampled_from([[0], [3, 0], [0, 2, 0, 5]])
)
def pages_empty(answer, seed, lens):
    pages = PagedInputs(lens, 2, 1, head_dim=4, seed=seed, extra_columns=1)
    expect_attention(
        answer,
        pages,
        queries(pages, 2),
        "A length of 0 means: nothing read, a sum of 0. 0 / 0 is NaN; the result must be 0.",
    )


@promise("Large and very negative scores do no harm", seed=SEED, shifts=SHIFTS, block_size=st.sampled_from([2, 1, 3]))
def pages_large(answer, seed, shifts, block_size):
    """Blocks of very different scores. All are multiples of 1/4 and come out exact, whatever the order of the sum.

    Where they are in the thousands, a block's scores are all the same: an answer in base 2 multiplies them by log2(e),
    and float32 rounds the product there by more than the weights may differ.
    """
    pages = PagedInputs([len(shifts) * block_size], block_size, 1, head_dim=4, seed=seed)
    small = (4 * randn(seed, len(shifts) * block_size)).round().clamp(-6, 6) / 4
    keys = torch.zeros(len(shifts) * block_size, 4)
    keys[:, 0] = torch.tensor(shifts, dtype=torch.float32).repeat_interleave(block_size)
    keys[:, 1] = small.masked_fill(keys[:, 0].abs() > 1000, 0)
    for position, key in enumerate(keys):
        block, slot = pages.where(0, position)
        pages.key_cache[block, 0, slot] = key
    q = torch.tensor([[[2.0, 2.0, 0.0, 0.0]]])  # the scale is 1/2, so a score is shift + small
    told = ", ".join(f"{shift:,}" for shift in shifts)
    expect_attention(
        answer,
        pages,
        q,
        "exp overflows above 88 and is 0 below -104. Subtract the largest score so far. What is the largest of nothing "
        "yet? No real score may lie below it.",
        f"# scores in its blocks are about {told}\n",
    )


@promise("What it is given stays as it was", examples=20, seed=SEED)
def pages_pure(answer, seed):
    pages = PagedInputs([3, 5], 2, 1, head_dim=4, seed=seed)
    given = {"q": queries(pages, 2), "block_tables": pages.block_tables, "seq_lens": pages.seq_lens}
    given |= {"key_cache": pages.key_cache, "value_cache": pages.value_cache}
    before = {name: tensor.clone().nan_to_num(0) for name, tensor in given.items()}
    answer(given["q"], given["key_cache"], given["value_cache"], given["block_tables"], given["seq_lens"])
    expect_untouched(before, {name: tensor.nan_to_num(0) for name, tensor in given.items()}, "paged_attention(...)")


EXERCISES = (
    Exercise(
        id="merge_partials",
        title="Two parts make a whole",
        kind="function",
        reference="pagedlab.attention:merge_partials",
        promises=(
            merge_out,
            merge_lse,
            merge_rows,
            merge_large,
            merge_empty,
            merge_both_empty,
            merge_pure,
        ),
        hints=(
            "Undo the averages: exp(lse) is a part's sum of weights. Add up both parts' weighted values, add up both "
            "sums, divide.",
            "exp(lse) may be too large or too small for float32. Only the ratio of the two counts, so subtract the "
            "same number from both lse first. Which number is safe? And what goes back on at the end?",
            "Empty parts: if both lse are -inf, the number you subtract must not be -inf. And a part whose lse is -inf "
            "may hold NaN: set its out to 0 with masked_fill((lse == -math.inf).unsqueeze(-1), 0). Rows differ: one "
            "may be empty while another isn't, so an `if` for all of them is too coarse.",
            "lse = torch.logaddexp(lse_a, lse_b) does the hard half, -inf included. Then each part's share is "
            "exp(its lse - lse), except where lse is -inf: there, use 0.",
        ),
    ),
    Exercise(
        id="paged_attention",
        title="Attention over blocks",
        kind="function",
        reference="pagedlab.kernels.ops:paged_decode",
        promises=(
            pages_one_block,
            pages_many_blocks,
            pages_tail,
            pages_batch,
            pages_shared,
            pages_leftovers,
            pages_groups,
            pages_empty,
            pages_large,
            pages_pure,
        ),
        hints=(
            "Take one sequence at a time, and for each its blocks in order. One block is one step of the loop in this "
            "lesson: a maximum, a sum and a weighted sum of values so far, for all heads together.",
            "Block number i of a sequence holds tokens i * block_size up to its length. How many is that in the last "
            "one? key_cache[block, :, :n] is [num_kv_heads, n, head_dim], with nothing in it that nobody wrote.",
            "Heads in groups: q[i].reshape(num_kv_heads, group, head_dim) @ keys.transpose(1, 2) gives the scores "
            "[num_kv_heads, group, n]. Then the maximum, the sum and the weighted sum are [num_kv_heads, group, ...] "
            "each.",
            "For each block: part = scores.softmax(-1) @ values, part_lse = scores.logsumexp(-1), then "
            "out, lse = merge_partials(out, lse, part, part_lse). Before a sequence's first block, out is zeros and "
            "lse is -inf everywhere. That leaves zeros for a sequence without tokens, too.",
        ),
    ),
)
