"""Lesson 10: into how many splits a sequence is cut, and the kernel that merges them."""

import math
import numbers
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import torch
from hypothesis import strategies as st

from pagedlab.course.kernel_probe import SECONDS, compiled_notes, run_kernel
from pagedlab.course.promise import Exercise, Wrong, calling, count, promise
from pagedlab.course.tensors import Suspect, expect_tensor, randn

# --- choose_num_splits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """The arguments of one call of choose_num_splits, and what follows from them."""

    num_seqs: int
    num_heads: int
    num_kv_heads: int
    seq_len: int
    tile: int
    num_sms: int
    blocks_per_sm: int

    @property
    def programs(self) -> int:
        """Without splits: one for each sequence and kv head."""
        return self.num_seqs * self.num_kv_heads

    @property
    def slots(self) -> int:
        """How many programs the GPU runs at a time."""
        return self.num_sms * self.blocks_per_sm

    @property
    def tiles(self) -> int:
        return -(-self.seq_len // self.tile)

    def call(self) -> str:
        return f"choose_num_splits({', '.join(f'{name}={value}' for name, value in vars(self).items())})"

    def told(self) -> str:
        return f"# {count(self.programs, 'program')} for {count(self.slots, 'slot')}; {count(self.tiles, 'tile')}"

    def used(self, splits: int) -> int:
        """How many of so many splits have a tile to read."""
        per_split = ceil(self.tiles / splits)
        return ceil(self.tiles / per_split)


def filled(programs: int, slots: int) -> Fraction:
    """The share of all slots that is busy, over all waves."""
    return Fraction(programs, ceil(programs / slots) * slots)


def percent(share) -> str:
    return f"{float(100 * share):.1f} %"


def with_work_for_all(tiles: int) -> list[int]:
    """The counts whose splits all have work: those that come about by giving each split so many tiles."""
    return sorted({-(-tiles // per_split) for per_split in range(1, tiles + 1)})


def efficiencies(work: Work) -> dict[int, Fraction]:
    """For each count whose splits all have work, how full the waves are."""
    return {splits: filled(work.programs * splits, work.slots) for splits in with_work_for_all(work.tiles)}


def smallest_good(shares: dict, part) -> int:
    best = max(shares.values())
    return next(splits for splits, share in shares.items() if share >= part * best)


FULL, GOOD = Fraction(80, 100), Fraction(85, 100)
TINY = Fraction(1, 10**9)


def right_counts(work: Work) -> set[int]:
    """What the rule gives: two numbers where rounding decides whether a share is 0.85 of the best.

    It doesn't where the best is 1, nor at 80 % of the slots: there, floats are exact in any order of the operations.
    """
    if work.tiles <= 1 or work.programs >= FULL * work.slots:
        return {1}
    shares = efficiencies(work)
    slack = 0 if max(shares.values()) == 1 else TINY
    return {smallest_good(shares, GOOD - slack), smallest_good(shares, GOOD + slack)}


def by_rule(work, programs=None, slots=None, tiles=None, full=FULL, pick=smallest_good, among=with_work_for_all) -> int:
    """The rule, with whatever a slip puts in the place of a right number."""
    programs, slots = programs or work.programs, slots or work.slots
    tiles = work.tiles if tiles is None else tiles
    if tiles <= 1 or programs >= full * slots:
        return 1
    return pick({splits: filled(programs * splits, slots) for splits in among(tiles)}, GOOD)


def from_one_up(tiles: int) -> range:
    return range(1, tiles + 1)


def divisors(tiles: int) -> list[int]:
    return [splits for splits in from_one_up(tiles) if tiles % splits == 0]


def slots_by_programs(work: Work) -> int:
    return 1 if work.programs >= 0.8 * work.slots else max(1, min(work.tiles, work.slots // work.programs))


def first_at_85_percent(shares: dict, part) -> int:
    return next((splits for splits, share in shares.items() if share >= part), max(shares))


# What a slip gives, how it is told, and what to ask.
SLIPS = (
    (
        lambda work: by_rule(work, programs=work.num_seqs * work.num_heads),
        "The query heads were counted.",
        "A program reads one kv head, for all query heads that share it. How many programs is that?",
    ),
    (
        lambda work: by_rule(work, programs=work.num_kv_heads),
        "The number of sequences was left out.",
        "Each sequence has programs of its own.",
    ),
    (
        lambda work: by_rule(work, programs=work.num_seqs),
        "The kv heads were left out.",
        "Each kv head of a sequence has a program.",
    ),
    (
        lambda work: by_rule(work, slots=work.num_sms),
        "An SM was taken to run one program at a time.",
        "It runs blocks_per_sm. How many programs does the whole GPU run at a time?",
    ),
    (
        lambda work: by_rule(work, tiles=work.seq_len // work.tile),
        "The last tile was left out, because it is not full.",
        "A tile that is not full has to be read too: round up.",
    ),
    (
        lambda work: by_rule(work, tiles=work.seq_len if work.tiles > 1 else 1),
        "Tokens were counted, not tiles.",
        "A program reads a tile in one step of its loop.",
    ),
    (
        lambda work: by_rule(work, among=from_one_up),
        "There are splits without work.",
        "A split takes ceil(tiles / splits) tiles. How many splits are there, then, until the tiles are used up?",
    ),
    (
        lambda work: by_rule(work, pick=lambda shares, part: max(shares, key=shares.get)),
        "The best count was taken; a smaller one is nearly as good.",
        "Take the smallest whose waves are at least 0.85 times as full as those of the best.",
    ),
    (
        lambda work: by_rule(work, among=divisors),
        "Only counts that divide the tiles without a rest were looked at.",
        "The last split may have fewer tiles than the others; it only must have some.",
    ),
    (
        lambda work: by_rule(work, full=FULL + TINY),
        "It was cut at exactly 80 % of the slots.",
        "80 % or more is full: >=, not >.",
    ),
    (
        lambda work: by_rule(work, pick=lambda shares, part: smallest_good(shares, part + TINY)),
        "A count was passed over whose share is exactly 0.85 of the best.",
        "At least 0.85: >=, not >.",
    ),
    (
        lambda work: by_rule(work, pick=first_at_85_percent),
        "The waves were asked to be 85 % full; sometimes no count can do that.",
        "0.85 of the best that can be had. What is the best of all counts?",
    ),
    (
        slots_by_programs,
        "Slots divided by programs, no more: the waves were not looked at.",
        "Programs that don't quite fit make another wave, nearly empty. And is every split left with work?",
    ),
)

# One number may come of many slips. Who makes a slip makes it here too; no two of them agree on all of these.
WITNESSES = (
    Work(3, 20, 4, 8200, 64, 132, 2),
    Work(2, 9, 3, 2500, 64, 108, 3),
    Work(7, 28, 4, 5001, 32, 148, 4),
    Work(1, 32, 8, 33_000, 64, 132, 4),
    Work(60, 32, 8, 4096, 64, 132, 4),
)


def accuse(answer, work: Work, got: int, example: str) -> None:
    """Raise `Wrong` if the answer gives here and elsewhere what one of the slips gives."""
    others = None
    for slip, message, hint in SLIPS:
        if slip(work) == got:
            others = others or [(witness, answer(**vars(witness))) for witness in WITNESSES]
            if all(slip(witness) == its for witness, its in others):
                raise Wrong(message, example, hint)


def chosen(answer, work: Work) -> tuple[int, str]:
    """What the answer gives, and the call as it is told; a count that can't be is told at once."""
    call = calling(work.call())
    got = answer(**vars(work))
    example = f"{work.told()}\n{call} returned {got!r:.60}"
    if isinstance(got, bool) or not isinstance(got, numbers.Integral):
        hint = "A function without `return` gives None." if got is None else "int, or `//`."
        raise Wrong(f"A number of splits is a whole number; this is {type(got).__name__}.", example, hint)
    if got < 1:
        raise Wrong(f"With {got} splits nobody reads the sequence.", example, "There is always one: the whole.")
    return int(got), example


def expect_splits(answer, work: Work, broken) -> None:
    """Raise `Wrong` if `broken(splits)` has something to say: (message, what would be right, hint)."""
    got, example = chosen(answer, work)
    said = None if got in right_counts(work) else broken(got)
    if said is None:
        return
    message, instead, hint = said
    example = f"{example}, {instead}"
    accuse(answer, work, got, example)
    raise Wrong(message, example, hint)


# The first of each are the ones a report shows.
SHAPES = st.sampled_from([(28, 4), (9, 3), (32, 8), (64, 8), (16, 16), (12, 1)])
NUM_SMS = st.sampled_from([132, 108, 148, 24, 40])  # of 40, 80 % and 85 % are whole numbers
BLOCKS_PER_SM = st.sampled_from([4, 2, 1, 7])
TILES = st.sampled_from([64, 32, 128])
LONG = st.sampled_from([32_768, 8192, 4096, 2048, 10_000, 131_072, 5001])


def not_one(splits: int):
    if splits == 1:
        return None
    hint = "Before any search: from 80 % of the slots on, and with a single tile, the answer is 1."
    return "It was cut, though there is nothing to win.", "right is 1", hint


@promise(
    "A batch that fills the GPU is not cut",
    shape=SHAPES,
    num_sms=st.one_of(NUM_SMS, st.just(40)),
    blocks=BLOCKS_PER_SM,
    more=st.sampled_from([0, 1, 3, 100]),
    seq_len=LONG,
)
def splits_full(answer, shape, num_sms, blocks, more, seq_len):
    heads, kv_heads = shape
    num_seqs = ceil(FULL * num_sms * blocks / kv_heads) + more
    expect_splits(answer, Work(num_seqs, heads, kv_heads, seq_len, 64, num_sms, blocks), not_one)


@promise(
    "What fits into one tile is not cut",
    shape=SHAPES,
    tile=TILES,
    short=st.sampled_from([0, 1, 20, -1]),
    num_seqs=st.integers(1, 4),
)
def splits_one_tile(answer, shape, tile, short, num_seqs):
    seq_len = {-1: 0}.get(short, tile - short)
    expect_splits(answer, Work(num_seqs, *shape, seq_len, tile, 132, 4), not_one)


@promise(
    "Every split has work",
    shape=SHAPES,
    tile=TILES,
    tiles=st.integers(2, 40),
    less=st.sampled_from([0, 5]),
    num_sms=NUM_SMS,
)
def splits_all_used(answer, shape, tile, tiles, less, num_sms):
    work = Work(1, *shape, tiles * tile - less, tile, num_sms, 4)

    def idle(splits):
        used = work.used(splits)
        if used == splits:
            return None
        return (
            "There are splits without work.",
            f"but at {count(ceil(work.tiles / splits), 'tile')} a split there is work for {used} only",
            "A split takes ceil(tiles / splits) tiles. How many splits are there, then, until the tiles are used up?",
        )

    expect_splits(answer, work, idle)


def work_with(draw_from) -> st.SearchStrategy:
    """Calls in which there is something to decide."""
    batch = st.one_of(st.integers(1, 8), st.integers(1, 64))
    made = st.builds(
        lambda num_seqs, shape, seq_len, tile, num_sms, blocks: Work(num_seqs, *shape, seq_len, tile, num_sms, blocks),
        batch, SHAPES, draw_from, TILES, NUM_SMS, BLOCKS_PER_SM,
    )  # fmt: skip
    return made.filter(lambda work: work.programs < Fraction(79, 100) * work.slots and work.tiles > 1)


@promise("Waves are at least 0.85 times as full as they can be", examples=100, work=work_with(LONG))
def splits_fill(answer, work):
    shares = efficiencies(work)
    best = max(shares, key=shares.get)

    def thin(splits):
        share = shares.get(splits) or filled(work.programs * splits, work.slots)
        if share >= GOOD * shares[best]:
            return None
        return (
            "Another count fills the waves better.",
            f"which fills {percent(share)} of them; {best} would fill {percent(shares[best])}",
            "Waves are whole: programs * splits over what ceil(programs * splits / slots) waves have room for.",
        )

    expect_splits(answer, work, thin)


EXACTLY = Work(1, 32, 8, 32_768, 64, 40, 4)  # 17 splits fill 136 of 160 slots: 0.85 of what 20 fill


@promise("No more splits than that takes", examples=100, work=st.one_of(work_with(LONG), st.just(EXACTLY)))
def splits_smallest(answer, work):
    right = smallest_good(efficiencies(work), GOOD)
    expect_splits(
        answer,
        work,
        lambda splits: (
            "A smaller count is good enough.",
            f"right is {right}",
            "The smallest count that has work for all, and waves at least 0.85 times as full as the best of these.",
        ),
    )


@promise(
    "The same rule for short and long, few and many",
    examples=100,
    num_seqs=st.integers(1, 300),
    shape=SHAPES,
    seq_len=st.one_of(st.integers(0, 3000), LONG),
    tile=TILES,
    num_sms=NUM_SMS,
    blocks=BLOCKS_PER_SM,
)
def splits_everywhere(answer, num_seqs, shape, seq_len, tile, num_sms, blocks):
    work = Work(num_seqs, *shape, seq_len, tile, num_sms, blocks)
    right = " or ".join(map(str, sorted(right_counts(work))))
    expect_splits(
        answer, work, lambda splits: ("The number of splits is wrong.", f"right is {right}", "Read the rule once more.")
    )


# --- merge_splits_kernel ----------------------------------------------------------------------------------------------

GONE = -math.inf  # the lse of a split without tokens
UNWRITTEN = -7777.0  # what `out` holds before
SEED = st.integers(0, 50)


class Splits:
    """What the splits of a batch have left, and room for the result. All float32.

    lse: `[num_seqs][num_heads][num_splits]`, to base 2. `empty`: what the output of a split without tokens holds.
    """

    def __init__(self, lse, head_dim: int, seed: int = 0, empty: float = math.nan):
        lse = torch.as_tensor(lse, dtype=torch.float32)
        self.shape = num_seqs, num_heads, num_splits, head_dim = *lse.shape, head_dim
        outs = randn(seed, *self.shape)
        outs[lse == GONE] = empty
        # No stride follows from a shape, and what lies between the rows is NaN.
        self.lse = spaced(lse, (num_seqs, num_heads + 1, num_splits + 3))
        self.outs = spaced(outs, (num_seqs, num_heads, num_splits + 2, head_dim + 5))
        self.out = spaced(
            torch.full((num_seqs, num_heads, head_dim), UNWRITTEN), (num_seqs, num_heads + 2, head_dim + 7)
        )

    def arguments(self) -> dict:
        from pagedlab.kernels.merge import merge_launch  # Triton's mode is chosen by then

        _, arguments, _ = merge_launch(self.outs, self.lse)
        strides = {"out_seq_stride": self.out.stride(0), "out_head_stride": self.out.stride(1)}
        return {**arguments, "out": self.out, **strides}

    def told(self, what: str = "") -> str:
        """The launch, as a learner would write it."""
        arguments = self.arguments()
        sizes = ", ".join(f"{name}={arguments[name]}" for name in ("num_splits", "SPLITS", "HEAD_DIM", "TILE_DIM"))
        grid = f"({self.shape[0]}, {self.shape[1]})"
        return f"{what}merge_splits_kernel[{grid}](out, partial_out, partial_lse, ..., {sizes})"

    def mixed(self, weights: torch.Tensor, heads=slice(None)) -> torch.Tensor:
        """The outputs of the splits (of certain heads), `weights` `[num_seqs, num_heads, num_splits]` of each."""
        outs = torch.where((self.lse == GONE).unsqueeze(-1), 0.0, self.outs.double())[:, heads]
        return (weights.unsqueeze(-1) * outs).sum(-2).float()

    def powers(self, base: float = 2.0) -> torch.Tensor:
        """base ** lse, by the largest of each head, so that it can be said in numbers."""
        largest = self.lse.double().amax(-1, keepdim=True)
        return base ** (self.lse.double() - torch.where(largest == GONE, 0.0, largest))

    def shares(self, base: float = 2.0) -> torch.Tensor:
        powers = self.powers(base)
        total = powers.sum(-1, keepdim=True)
        return powers / torch.where(total == 0, 1.0, total)

    def slips(self) -> tuple[Suspect, ...]:
        """What the usual slips give."""
        num_splits, lse = self.shape[2], self.lse.double()
        ones = torch.ones_like(lse)
        kept = (lse > GONE).double()
        padding = power_of_two(num_splits) - num_splits
        powers = torch.exp2(lse.clamp(max=100))
        by_largest, total = self.powers(), self.powers().sum(-1, keepdim=True)
        so_far = torch.exp2((lse - lse.cummax(-1).values).nan_to_num(GONE))  # by the largest up to there
        sum_so_far = so_far.sum(-1, keepdim=True)
        return (
            Suspect(
                torch.zeros_like(self.out),
                "Every weight was rounded to 0.",
                "2 to the power of -200 is 0 in float32. Which number has to be taken off every lse first?",
            ),
            Suspect(
                self.mixed(self.shares(math.e)),
                "The lse were taken for natural logarithms.",
                "They are to base 2: tl.exp2 undoes them, tl.exp does not.",
            ),
            Suspect(self.mixed(ones / num_splits), "Each split got the same weight.", BY_SHARE),
            Suspect(self.mixed(kept / kept.sum(-1, keepdim=True)), "Each split got the same weight.", BY_SHARE),
            *(
                Suspect(self.mixed(weights), "The weights don't sum to 1.", "Divide by the sum of all weights.")
                for weights in (by_largest, powers, by_largest / num_splits, ones)
            ),
            *(
                Suspect(
                    self.mixed(weights / number),
                    "When a larger lse came, what had been summed up before was not rescaled.",
                    "Multiply the sum of the weights and the sum of the rows by exp2(old largest - new largest).",
                )
                for weights, number in ((by_largest, sum_so_far), (so_far, total), (so_far, sum_so_far))
            ),
            Suspect(
                self.mixed(self.shares(), heads=slice(1)),
                "Every head got the outputs of head 0.",
                "partial_out has a stride for the head, too.",
            ),
            Suspect(
                self.mixed(powers / (powers.sum(-1, keepdim=True) + padding)),
                f"SPLITS is {num_splits + padding}, and what is no split was counted too.",
                "Which lse stands for a split that isn't there? Look at `other` of tl.load.",
            ),
        )


BY_SHARE = (
    "An output is an average already. Its share is 2 to the power of its lse, divided by the sum over all splits."
)


def spaced(tensor: torch.Tensor, room: tuple[int, ...]) -> torch.Tensor:
    """The same numbers as a view into a larger tensor of that shape, which is NaN everywhere else."""
    view = torch.full(room, math.nan)[tuple(slice(0, size) for size in tensor.shape)]
    return view.copy_(tensor)


def power_of_two(number: int) -> int:
    """The next one."""
    return 1 << (number - 1).bit_length()


def expect_merge(answer, splits: Splits, call: str, hint: str) -> None:
    """Run the answer, and raise `Wrong` unless it wrote the merged outputs and nothing else."""
    arguments = splits.arguments()
    given = {name: arguments[name].clone() for name in ("partial_out", "partial_lse")}
    run_kernel(answer, splits.shape[:2], arguments, call)
    for name, before in given.items():
        if not torch.equal(before.nan_to_num(UNWRITTEN), arguments[name].nan_to_num(UNWRITTEN)):
            raise Wrong(f"The kernel wrote into `{name}`.", call, "It writes `out`, and reads the other two.")
    missing = (splits.out == UNWRITTEN).nonzero()
    if len(missing):
        seq, head, dimension = missing[0].tolist()
        raise Wrong(
            "A part of `out` was never written.",
            f"{call}\nout[{seq}, {head}, {dimension}] holds what it held before ({count(len(missing), 'number')} do)",
            "A program writes HEAD_DIM numbers, for its own sequence and head.",
        )
    want = splits.mixed(splits.shares())
    expect_tensor(splits.out, want, f"{call}\nin out:", ("sequence", "head", "dimension"), hint, splits.slips())


def lses(seed: int, *shape: int) -> torch.Tensor:
    """As a rule most of the weight is in a middle split: then no slip looks like another."""
    lse = 2 * randn(seed + 100, *shape)
    lse[..., shape[-1] // 2] += 2
    return lse


@promise("A single split comes out as it is", examples=10, seed=SEED, lse=st.sampled_from([3.0, 0.0, -20.0]))
def merge_one(answer, seed, lse):
    splits = Splits([[[lse]]], 16, seed)
    expect_merge(answer, splits, splits.told(f"# one split, its lse is {lse:g}\n"), "Its share is 1.")


@promise("Each split counts by its share", examples=25, seed=SEED, num_splits=st.sampled_from([4, 2, 8]))
def merge_shares(answer, seed, num_splits):
    splits = Splits(lses(seed, 1, 1, num_splits), 16, seed)
    told = ", ".join(f"{lse:.2f}" for lse in splits.lse.flatten().tolist())
    expect_merge(answer, splits, splits.told(f"# partial_lse: [{told}]\n"), BY_SHARE)


@promise(
    "Every sequence and head has its own, by the strides",
    examples=25,
    seed=SEED,
    num_seqs=st.integers(1, 3),
    num_heads=st.integers(1, 3),
)
def merge_strides(answer, seed, num_seqs, num_heads):
    splits = Splits(lses(seed, num_seqs, num_heads, 2), 16, seed)
    strides = ", ".join(f"{name}={value}" for name, value in splits.arguments().items() if "stride" in name)
    hint = "program_id(0) is the sequence, program_id(1) the head. Each tensor has strides of its own."
    expect_merge(answer, splits, splits.told(f"# {strides}\n"), hint)


@promise(
    "Any number of splits, any head_dim",
    examples=25,
    seed=SEED,
    num_splits=st.sampled_from([2, 3, 5, 7, 20, 70]),
    head_dim=st.sampled_from([16, 3, 80, 24, 200]),
)
def merge_sizes(answer, seed, num_splits, head_dim):
    splits = Splits(lses(seed, 1, 2, num_splits), head_dim, seed)
    hint = "SPLITS and TILE_DIM are the next powers of 2, because tl.arange needs one. What lies beyond needs a mask, "
    hint += "and an `other` that counts for nothing."
    expect_merge(answer, splits, splits.told(), hint)


@promise(
    "Large and very negative lse do no harm",
    examples=25,
    seed=SEED,
    shift=st.sampled_from([200.0, -200.0, 3000.0, -60_000.0]),
    num_splits=st.sampled_from([2, 3]),
)
def merge_large(answer, seed, shift, num_splits):
    lse = lses(seed, 1, 1, num_splits) + shift
    if abs(shift) > 1000:  # a float32 of that size has no room for small differences
        lse = shift - 200 * torch.arange(num_splits).view(1, 1, -1)
    splits = Splits(lse, 16, seed)
    hint = "2 ** 200 is too large for float32, and 2 ** -200 is 0. Only the differences matter: take the largest lse "
    hint += "off all of them first."
    expect_merge(answer, splits, splits.told(f"# every lse is about {shift:g}\n"), hint)


@promise(
    "An empty split counts for nothing, whatever it holds",
    examples=30,
    seed=SEED,
    which=st.sampled_from([(False, True), (True, False), (False, True, True), (True, False, True, False)]),
    shift=st.sampled_from([0.0, -300.0]),
    holds=st.sampled_from([7.0, math.nan, math.inf]),
)
def merge_empty(answer, seed, which, shift, holds):
    lse = lses(seed, 1, 2, len(which)) + shift
    lse[:, 1, torch.tensor(which)] = GONE
    splits = Splits(lse, 16, seed, empty=holds)
    name = f"{holds:g}".replace("nan", "NaN")
    where = " and ".join(f"split {one}" for one, gone in enumerate(which) if gone)
    call = splits.told(f"# head 1: {where} had no tokens, so lse is -inf, and partial_out holds {name}\n")
    hint = "Its weight is exp2(-inf) = 0. Which of your steps turns that into something else?"
    if not math.isfinite(holds):
        hint = f"Its weight is 0, but 0 * {name} is NaN. Put 0 in its place (tl.where), or don't load it (mask)."
    expect_merge(answer, splits, call, hint)


@promise("Without any tokens the result is zeros", examples=10, num_splits=st.sampled_from([1, 2, 3]))
def merge_all_empty(answer, num_splits):
    lse = lses(0, 1, 2, num_splits)
    lse[:, 1] = GONE
    splits = Splits(lse, 16)
    call = splits.told("# head 1: no split has tokens, so every lse is -inf, and partial_out holds NaN\n")
    hint = "The largest lse is -inf, too, and -inf - (-inf) is NaN. So is 0 / 0. Which of them do you meet?"
    expect_merge(answer, splits, call, hint)


@promise("It compiles for an A100 and an H100", of_right_answers=True)
def merge_compiles(answer):
    from pagedlab.kernels.merge import merge_launch

    grid, arguments, options = merge_launch(torch.zeros(1, 32, 8, 128), torch.zeros(1, 32, 8), torch.float16)
    call = f"merge_splits_kernel[{grid}](out, partial_out, partial_lse, ..., num_splits=8, HEAD_DIM=128)"
    compiled_notes(answer, arguments, call, **options)


EXERCISES = (
    Exercise(
        id="choose_num_splits",
        title="Into how many splits",
        kind="function",
        reference="pagedlab.kernels.splits:choose_num_splits",
        promises=(
            splits_full,
            splits_one_tile,
            splits_all_used,
            splits_fill,
            splits_smallest,
            splits_everywhere,
        ),
        hints=(
            "Three numbers say it all: programs, one for each sequence and kv head; slots, the programs that the GPU "
            "runs at a time; tiles, the steps of one program's loop. Two cases need no search.",
            "Which counts are worth trying? Those from 1 to tiles whose splits all have work. A split takes "
            "ceil(tiles / splits) tiles; so many tiles a split, over all tiles, is how many splits have work.",
            "How full the waves are: total = programs * splits; waves = ceil(total / slots); total / (waves * slots).",
            "counts = [s for s in range(1, tiles + 1) if math.ceil(tiles / math.ceil(tiles / s)) == s]. Compute how "
            "full the waves are for each, take the best, and return the first count with at least 0.85 of it.",
        ),
    ),
    Exercise(
        id="merge_splits_kernel",
        title="Merging the splits",
        kind="kernel",
        reference="pagedlab.kernels.merge:merge_splits_kernel",
        promises=(
            merge_one,
            merge_shares,
            merge_strides,
            merge_sizes,
            merge_large,
            merge_empty,
            merge_all_empty,
            merge_compiles,
        ),
        hints=(
            "One program has one sequence and one head. It loads num_splits lse, makes weights of them, loads "
            "num_splits rows of HEAD_DIM numbers, and stores one row.",
            "splits = tl.arange(0, SPLITS) with a mask splits < num_splits, and other=-float('inf'): what is no split "
            "is an empty split. The rows are a tile of SPLITS x TILE_DIM: splits[:, None], dims[None, :].",
            "weights = tl.exp2(lse - the largest lse). If the largest is -inf, subtract 0 instead. Then "
            "tl.sum(weights[:, None] * rows, 0) / tl.sum(weights, 0), and for a sum of 0, divide by 1.",
            "An empty split's row may hold NaN, and its weight of 0 doesn't help. Leave it out of the load: "
            "mask=(lse > -float('inf'))[:, None] & (dims < HEAD_DIM)[None, :], other=0.0.",
        ),
        seconds=SECONDS,
    ),
)
