"""Lesson 11: how many blocks of a kernel fit on a multiprocessor, and how fast decoding could be at best."""

import math
from dataclasses import replace
from itertools import product

from hypothesis import strategies as st

from pagedlab.course.occupancy_slips import DECIDES, diagnose
from pagedlab.course.promise import Exercise, Wrong, calling, promise
from pagedlab.gpu.gpus import GPUS
from pagedlab.gpu.occupancy import LIMITERS, Occupancy, occupancy
from pagedlab.gpu.roofline import decode_roofline, ridge
from pagedlab.gpu.targets import TARGETS

# --- occupancy --------------------------------------------------------------------------------------------------------

NVIDIA = [name for name, target in TARGETS.items() if target.backend == "cuda"]
NAMES = ", ".join(f'"{name}"' for name in LIMITERS)

SIZES = (32_560, 17_630, 22_960, 45_665, 33_105, 16_040, 32_325)  # a little below a share of the whole


def kernels(limiter, *slips, registers=(24,), sizes=(0,), warps=(4, 8), names=("sm_80", "sm_90", "sm_86", "sm_120")):
    """Kernels that only `limiter` limits, and for which each of the slips (functions of an Occupancy) counts wrong."""
    found = []
    for kernel in product(registers, sizes, warps, names):
        it = occupancy(*kernel)
        if it.scarcest == (limiter,) and all(slip(it) != it.blocks_per_sm for slip in slips):
            found.append(kernel)
    return found


def a_warp(it: Occupancy) -> int:
    """Registers that a warp is given."""
    return -(-it.registers * 32 // it.target.register_unit) * it.target.register_unit


def one_large_file(it: Occupancy) -> int:
    return it.target.registers_per_sm // (a_warp(it) * it.num_warps)


def no_units(it: Occupancy) -> int:
    return it.target.registers_per_partition // (it.registers * 32) * 4 // it.num_warps


def no_reserve(it: Occupancy) -> int:
    return it.target.shared_per_sm // it.shared_bytes


def no_shared_units(it: Occupancy) -> int:
    return it.target.shared_per_sm // (it.shared_bytes + it.target.reserved_shared)


UNITS = kernels("registers", no_units, registers=(33, 41, 57, 105), warps=(4, 8))
FILES = kernels("registers", one_large_file, registers=(96, 152, 168, 80, 104, 112), warps=(1, 2, 16))
RESERVED = kernels("shared memory", no_reserve, sizes=(16_384, 12_288, 81_920, 40_448), warps=(4, 8))
RESERVED += [(24, 21_000, 4, "sm_75")]  # nothing is reserved there
SHARED = kernels("shared memory", no_shared_units, sizes=SIZES, warps=(4,))
SHARED += [(24, 40_960, 4, "sm_80")]  # four of them fill it to the last byte
SHARED += [(24, 10_800, 4, "sm_75")]  # the oldest has larger units
WARPS = kernels("warps", registers=(16, 24), sizes=(512, 1024), names=("sm_90", "sm_86", "sm_75"))
BLOCKS = kernels("blocks", registers=(16, 32), sizes=(0, 512), warps=(1,))
TIES = [(128, 40_960, 4, "sm_80"), (32, 0, 16, "sm_90"), (64, 0, 1, "sm_80"), (24, 28_160, 8, "sm_90")]
TOO_LARGE = [(32, 170_000, 4, "sm_80"), (32, 102_000, 4, "sm_86"), (255, 0, 16, "sm_90"), (130, 0, 32, "sm_80")]
NO_SHARED = [(32, 0, 4, "sm_75"), (40, 0, 8, "sm_75")]


PROBES = [one for group in (UNITS, FILES, RESERVED, SHARED, WARPS, BLOCKS) for one in group[:4] + group[-2:]]
PROBES += kernels("registers", registers=(33, 41), warps=(2,), names=("sm_80",))  # rounding each warp, or the block
PROBES += NO_SHARED[:1]


def sum_of(it: Occupancy) -> str:
    """ "registers 12, shared memory 164, warps 16, blocks 32"."""
    return ", ".join(f"{name} {it.limits[name]}" for name in LIMITERS)


def plain(value):
    """A number of torch's or NumPy's as Python's."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def expect_blocks(answer, registers: int, shared_bytes: int, num_warps: int, name: str) -> None:
    it = occupancy(registers, shared_bytes, num_warps, name)
    call = calling(f'occupancy({registers}, {shared_bytes}, {num_warps}, find("{name}"))')
    try:
        got = answer(registers, shared_bytes, num_warps, it.target)
    except ZeroDivisionError as error:
        if it.limits["shared memory"] != math.inf:
            raise
        message = f"A kernel of 0 bytes takes no shared memory at all on {name}, where the driver keeps nothing."
        raise Wrong(message, call, "Then shared memory is no limit: math.inf blocks.") from error
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise Wrong(
            "Two things are asked for: how many blocks, and what limits them.",
            f"{call} returned {got!r:.80}",
            "return blocks_per_sm, limiter",
        )
    blocks, limiter = map(plain, got)
    example = f"{call} returned ({blocks!r:.20}, {limiter!r:.30}), right is ({it.blocks_per_sm}, {it.limiter!r})"
    if isinstance(blocks, str):
        raise Wrong("The number of blocks comes first, then the name.", example, "return blocks_per_sm, limiter")
    if isinstance(blocks, bool) or not isinstance(blocks, int):
        hint = "A block fits or it doesn't. `//` rounds down, `/` gives a float."
        raise Wrong(f"A number of blocks is a whole number; this is {type(blocks).__name__}.", example, hint)
    if blocks != it.blocks_per_sm:
        example = f"{example}\nblocks for each: {sum_of(it)}"
        if it.blocks_per_sm == 0:
            raise Wrong(f"Not even one block fits: {it.limiter} won't do.", example, "`//` gives that 0 by itself.")
        slip = diagnose(answer, it, blocks, PROBES)
        if slip is not None:
            raise Wrong(slip.says(it), example, slip.hint)
        if blocks == it.warps_per_sm:
            raise Wrong("Those are the warps on the SM, not the blocks.", example, "Blocks are asked for.")
        raise Wrong("The number of blocks is wrong.", example, DECIDES)
    if limiter not in LIMITERS:
        raise Wrong(f"{limiter!r:.30} is none of the four names.", example, f"One of {NAMES}.")
    if limiter != it.limiter:
        example = f"{example}\nblocks for each: {sum_of(it)}"
        if limiter in it.scarcest:
            tied = " and ".join(it.scarcest)
            raise Wrong(
                f"Here {tied} allow equally few blocks, and {it.limiter} comes first.",
                example,
                "The order is registers, shared memory, warps, blocks. `min` keeps the first of equals.",
            )
        message = (
            f"{limiter} would allow {it.limits[limiter]} blocks; {it.limiter} allow{'s' if ' ' in it.limiter else ''} "
        )
        raise Wrong(
            f"{message}{it.blocks_per_sm}.", example, "The limiter is the name that belongs to the smallest number."
        )


def right_for(kernels, name: str):
    """The promise that the answer is right for some kernels: (registers, shared bytes, warps, target) each."""
    return promise(name, kernel=st.sampled_from(kernels))(lambda answer, kernel: expect_blocks(answer, *kernel))


counts_units = right_for(UNITS, "A warp takes whole units of registers")
counts_files = right_for(FILES, "A warp's registers lie in one sub-partition")
counts_reserved = right_for(RESERVED, "The driver keeps a little of every block's shared memory")
counts_shared = right_for(SHARED, "A block takes whole units of shared memory")
counts_warps = right_for(WARPS, "There are places for so many warps")
counts_blocks = right_for(BLOCKS, "There are places for so many blocks")
names_the_first = right_for(TIES, "Of equals, the first is named")
none_fits = right_for(TOO_LARGE, "What one SM hasn't got, no block gets")
no_shared = right_for(NO_SHARED, "A kernel may use no shared memory")


@promise(
    "Any kernel, on any of NVIDIA's GPUs",
    examples=300,
    registers=st.integers(1, 255),
    shared_bytes=st.integers(0, 240_000),
    num_warps=st.sampled_from([4, 1, 2, 8, 16, 32]),
    target=st.sampled_from(NVIDIA),
)
def counts_any(answer, registers, shared_bytes, num_warps, target):
    expect_blocks(answer, registers, shared_bytes, num_warps, target)


# --- decode_roofline --------------------------------------------------------------------------------------------------

NUM_SEQS = st.sampled_from([3, 1, 16])
LENGTH = st.sampled_from([1000, 4096, 37])
KV_HEADS = st.sampled_from([5, 8, 1])
GROUP = st.sampled_from([7, 4, 1])
DIM = st.sampled_from([128, 64])
WIDTH = st.sampled_from([4, 2, 1])
GPU = st.sampled_from([GPUS["H200"], GPUS["A100"], GPUS["MI300X"]])
FIELDS = ("bytes", "flops", "intensity", "seconds", "bound")
SLOW = replace(
    GPUS["H200"], name="slow at sums", fp16_flops=2e12
)  # so that a group of 4 is enough to be bound by compute


class Asked:
    """One call, what came back, and what is right."""

    def __init__(self, answer, num_seqs, length, kv_heads, group, dim, width, gpu):
        self.gpu = gpu
        self.shape = (num_seqs, length, kv_heads * group, kv_heads, dim, width)
        self.right = decode_roofline(*self.shape, gpu)
        self.call = calling(f"decode_roofline({', '.join(map(str, self.shape))}, gpu)  # gpu: {gpu.name}")
        got = answer(*self.shape, gpu)
        if not isinstance(got, tuple | list) or len(got) != len(FIELDS):
            message = f"Five things are asked for: {', '.join(FIELDS)}."
            raise Wrong(
                message, f"{self.call} returned {got!r:.80}", "return Roofline(bytes, flops, intensity, seconds, bound)"
            )
        self.got = dict(zip(FIELDS, map(plain, got), strict=True))

    def expect(self, field: str, slips) -> None:
        """slips: (value, message, hint)."""
        got, right = self.got[field], getattr(self.right, field)
        example = f"{self.call}\n{field}: {self.told(got)}, right is {self.told(right)}"
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise Wrong(
                f"`{field}` is a number; this is {type(got).__name__}.", example, f"The order: {', '.join(FIELDS)}."
            )
        if same(got, right):
            return
        for value, message, hint in slips:
            if same(got, value):
                raise Wrong(message, example, hint)
        for other in FIELDS[:4]:
            if same(got, getattr(self.right, other)):
                raise Wrong(f"That is {other}, in the place of {field}.", example, f"The order: {', '.join(FIELDS)}.")
        raise Wrong(f"`{field}` is wrong.", example, "Count one sequence first, by hand, with small numbers.")

    @staticmethod
    def told(value) -> str:
        if isinstance(value, int):
            return f"{value:,}"
        return (
            f"{value:,.1f}"
            if isinstance(value, float) and value > 100
            else f"{value:.4g}"
            if isinstance(value, float)
            else repr(value)
        )


def same(a: float, b: float) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return math.isclose(a, b, rel_tol=1e-6)  # float32 will do; the smallest slip is one token in 9,000


def byte_slips(asked: Asked):
    num_seqs, length, heads, kv_heads, dim, width = asked.shape
    keys = length * kv_heads * dim * width
    q = heads * dim * width
    group = heads // kv_heads
    once = "Query heads of a group share one kv head, and a good kernel reads it once for all of them."
    yield (
        num_seqs * (2 * keys * group + 2 * q),
        f"Keys and values were counted for {heads} heads; {kv_heads} are stored.",
        once,
    )
    yield num_seqs * 2 * keys * group, f"Keys and values were counted for {heads} heads; {kv_heads} are stored.", once
    both = "A token leaves a key and a value, and both are read."
    yield num_seqs * (keys + 2 * q), "Only one of keys and values was counted.", both
    yield num_seqs * keys, "Only one of keys and values was counted.", both
    small = "Each is num_heads * head_dim numbers for a sequence. Little beside the cache, but it is moved."
    yield num_seqs * 2 * keys, "The queries and the output were left out.", small
    yield num_seqs * (2 * keys + q), "Queries are read and the output is written: one of them is missing.", small
    yield num_seqs * (2 * keys + 2 * kv_heads * dim * width), "There is a query for every query head.", small
    yield num_seqs * (2 * keys + 2 * dim * width), "There is a query for every query head.", small
    yield (
        num_seqs * (2 * (keys + kv_heads * dim * width) + 2 * q),
        f"That is a token too many: the new one is among the {length}.",
        "A sequence attends over seq_len tokens, its newest included.",
    )
    yield num_seqs * (2 * keys // dim + 2 * q), "head_dim is missing.", "A key is head_dim numbers, and so is a value."
    yield asked.right.bytes // dim, "head_dim is missing.", "A key is head_dim numbers, and so is a value."
    yield (
        num_seqs * 2 * keys + 2 * q,
        "Every sequence has a query and an output of its own.",
        "Times num_seqs, for all of it.",
    )
    yield (
        2 * keys + num_seqs * 2 * q,
        "Every sequence has keys and values of its own.",
        "Times num_seqs, for all of it.",
    )
    yield 2 * keys + 2 * q, "That is one sequence.", "Times num_seqs, for all of it."
    size = "Each number takes bytes_per_element bytes."
    yield asked.right.bytes // width, "Those are numbers, not bytes.", size
    yield asked.right.bytes * 8, "Those are bits.", size
    for usual in (2, 4):
        yield asked.right.bytes // width * usual, f"Every number was taken to have {usual} bytes; it has {width}.", size


def flop_slips(asked: Asked):
    num_seqs, length, heads, kv_heads, dim, width = asked.shape
    right = asked.right.flops
    two = "A product of two numbers that is added to a sum is two FLOPs, and each number of a key or value needs one."
    yield (
        right // 2,
        f"That is half: {length} keys and {length} values, and a multiplication and an addition for each number.",
        two,
    )
    yield right // 4, "That is a quarter: keys and values, and a multiplication and an addition for each number.", two
    group = heads // kv_heads
    yield (
        right // group,
        f"{kv_heads} kv heads are read, but {heads} query heads calculate.",
        "Reading is shared, arithmetic isn't.",
    )
    yield right // num_seqs, "That is one sequence.", "Times num_seqs."
    yield right // dim, "head_dim is missing.", "A score is a sum over head_dim products."
    for each in range(1, 7):
        extra = each * num_seqs * heads * length
        yield right + extra, "The softmax was counted, too.", "It is little beside the products. Leave it out."
    yield right * width, "FLOPs are counted, not bytes.", "How wide a number is does not matter for this count."
    yield (
        right * length,
        "That would be prefill: every token asks.",
        "In a decode step one token of each sequence asks.",
    )


@promise(
    "Keys and values are read once for each kv head",
    num_seqs=NUM_SEQS,
    length=LENGTH,
    kv_heads=KV_HEADS,
    group=GROUP,
    dim=DIM,
    width=WIDTH,
)
def counts_bytes(answer, num_seqs, length, kv_heads, group, dim, width):
    asked = Asked(answer, num_seqs, length, kv_heads, group, dim, width, GPUS["H200"])
    asked.expect("bytes", byte_slips(asked))


@promise(
    "Every query head does its arithmetic",
    num_seqs=NUM_SEQS,
    length=LENGTH,
    kv_heads=KV_HEADS,
    group=GROUP,
    dim=DIM,
    width=WIDTH,
)
def counts_flops(answer, num_seqs, length, kv_heads, group, dim, width):
    asked = Asked(answer, num_seqs, length, kv_heads, group, dim, width, GPUS["H200"])
    asked.expect("flops", flop_slips(asked))


@promise("Intensity is FLOPs for a byte", num_seqs=NUM_SEQS, length=LENGTH, group=GROUP, width=WIDTH, gpu=GPU)
def gives_intensity(answer, num_seqs, length, group, width, gpu):
    asked = Asked(answer, num_seqs, length, 2, group, 64, width, gpu)
    right = asked.right
    by = "FLOPs divided by bytes: how much is calculated with what is fetched."
    asked.expect(
        "intensity",
        [
            (right.bytes / right.flops, "That is bytes for a FLOP, upside down.", by),
            (right.flops // right.bytes, "The fraction is cut off.", "`/` keeps it; `//` rounds down."),
            (ridge(gpu), "That is the GPU's ridge. The kernel's intensity does not depend on the GPU.", by),
        ],
    )


@promise(
    "The floor is the slower of moving and calculating",
    length=LENGTH,
    group=GROUP,
    gpu=st.sampled_from([GPUS["H200"], SLOW, GPUS["A100"], GPUS["B200"]]),
)
def gives_seconds(answer, length, group, gpu):
    asked = Asked(answer, 4, length, 2, group, 64, 2, gpu)
    right = asked.right
    moving, computing = right.bytes / gpu.memory_bandwidth, right.flops / gpu.fp16_flops
    larger = f"moving takes {moving * 1e6:.3g} us, calculating {computing * 1e6:.3g} us"
    slower = "Both happen at the same time. The one that takes longer decides: max."
    asked.expect(
        "seconds",
        [
            (moving, f"Here calculating takes longer: {larger}.", slower),
            (computing, f"Here moving takes longer: {larger}.", slower),
            (moving + computing, f"They overlap, so they don't add up: {larger}.", slower),
            (right.seconds * 1e6, "Those are microseconds.", "Seconds are asked for: bytes / (bytes per second)."),
            (right.seconds * 1e3, "Those are milliseconds.", "Seconds are asked for: bytes / (bytes per second)."),
            (
                max(right.bytes / gpu.fp16_flops, right.flops / gpu.memory_bandwidth),
                "The two rates are swapped.",
                "Bytes go through memory_bandwidth, FLOPs through fp16_flops.",
            ),
            (right.seconds / 4, "That is one sequence.", "Use the bytes and FLOPs of all of them."),
        ],
    )


@promise(
    "It says which of the two it is",
    length=LENGTH,
    group=st.sampled_from([8, 4, 1]),
    gpu=st.sampled_from([GPUS["H200"], SLOW, GPUS["RTX 4090"]]),
)
def names_the_bound(answer, length, group, gpu):
    asked = Asked(answer, 2, length, 2, group, 64, 2, gpu)
    got, right = asked.got["bound"], asked.right.bound
    if got == right:
        return
    where = f"intensity {asked.right.intensity:.2f}, ridge {ridge(gpu):.2f}"
    example = f"{asked.call}\nbound: {got!r:.40}, right is {right!r} ({where})"
    if got not in ("memory", "compute"):
        raise Wrong(f"{got!r:.40} is neither of the two names.", example, 'One of "memory", "compute".')
    side, awaited = ("below", "memory") if right == "memory" else ("above", "its arithmetic")
    raise Wrong(
        f"The intensity is {side} the ridge, so the kernel waits for {awaited}.",
        example,
        '"memory" if moving takes longer than calculating, else "compute".',
    )


@promise(
    "Any shape",
    examples=200,
    num_seqs=st.integers(1, 64),
    length=st.integers(1, 9000),
    kv_heads=st.integers(1, 16),
    group=st.integers(1, 16),
    dim=st.sampled_from([128, 64, 80, 256]),
    width=WIDTH,
    gpu=st.sampled_from([*GPUS.values(), SLOW]),
)
def any_shape(answer, num_seqs, length, kv_heads, group, dim, width, gpu):
    asked = Asked(answer, num_seqs, length, kv_heads, group, dim, width, gpu)
    for field in FIELDS[:4]:
        asked.expect(field, ())


EXERCISES = (
    Exercise(
        id="occupancy",
        title="How many blocks fit",
        kind="function",
        reference="pagedlab.gpu.occupancy:blocks_and_limiter",
        promises=(
            counts_units,
            counts_files,
            counts_reserved,
            counts_shared,
            counts_warps,
            counts_blocks,
            names_the_first,
            none_fits,
            no_shared,
            counts_any,
        ),
        hints=(
            "Four things are shared out. For each: how much does one block take, and for how many blocks has the SM "
            "got that? Then take the smallest.",
            "Registers go in three steps: what a warp takes, rounded up; how many such warps one sub-partition holds, "
            "times the sub-partitions; how many blocks that is.",
            "a_warp = round_up(registers * target.warp_size, target.register_unit)\n"
            "warps = target.registers_per_partition // a_warp * target.sub_partitions\n"
            "a_block = round_up(shared_bytes + target.reserved_shared, target.shared_unit)  # can be 0",
            "Put the four numbers into a dict in the order of their names. min(limits, key=limits.get) is the name of "
            "the smallest, and of the first of several.",
        ),
    ),
    Exercise(
        id="decode_roofline",
        title="The floor under decoding",
        kind="function",
        reference="pagedlab.gpu.roofline:decode_roofline",
        promises=(counts_bytes, counts_flops, gives_intensity, gives_seconds, names_the_bound, any_shape),
        hints=(
            "One sequence, one kv head: which tensors are read, which is written? Then multiply.",
            "Bytes: seq_len keys and values of head_dim numbers for each kv head; a query and an output of head_dim "
            "numbers for each query head. FLOPs: 2 * head_dim for each key and each value, for each query head.",
            "moving = bytes / gpu.memory_bandwidth; computing = flops / gpu.fp16_flops; the floor is the larger.",
        ),
    ),
)
