"""Lesson 08: the first Triton kernel, which stores new keys and values by slot."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from pagedlab.cache.table import padded
from pagedlab.course.exercises.l04 import Writing, expect_rest, expect_written, stays
from pagedlab.course.kernel_probe import SECONDS, compiled_notes, run_kernel
from pagedlab.course.paged_inputs import PagedInputs, paged_inputs
from pagedlab.course.promise import Exercise, Wrong, calling, promise


@dataclass(frozen=True)
class Lying:
    """How tensors lie in memory. heads_first: the new keys and values. cache: the two caches."""

    keys_heads_first: bool = True
    values_heads_first: bool = True
    key_cache: str = "dense"
    value_cache: str = "dense"

    def __repr__(self):
        keys, values = (
            "heads first" if one else "tokens first" for one in (self.keys_heads_first, self.values_heads_first)
        )
        return f"keys {keys}, values {values}, key_cache {self.key_cache}, value_cache {self.value_cache}"


class Launching(Writing):
    """The writing of lesson 04, done by a kernel: numbers of any head_dim, caches that lie in any way."""

    def __init__(self, pages: PagedInputs, num_new: int, skipped=frozenset(), lying: Lying = Lying(), wider: int = 1):
        super().__init__(pages, num_new, skipped)
        self.lying, self.tile = lying, wider << (pages.head_dim - 1).bit_length()  # a power of 2
        self.keys, self.values = (
            new if heads_first else new.contiguous()
            for new, heads_first in (
                (self.keys, lying.keys_heads_first),
                (self.values, lying.values_heads_first),
            )
        )
        shape = pages.key_cache.shape
        both = torch.full((shape[0], 2, *shape[1:]), torch.nan)  # keys and values of a block one behind the other
        for index, (kind, how) in enumerate((("key", lying.key_cache), ("value", lying.value_cache))):
            if how == "interleaved":
                place = both[:, index]
            elif how == "tokens first":
                place = torch.full((shape[0], shape[2], shape[1], shape[3]), torch.nan).transpose(1, 2)
            else:
                continue
            self.caches[kind] = place.copy_(self.caches[kind])

    @property
    def told(self) -> str:
        keys, values, caches = self.keys, self.values, self.caches
        lines = [
            self.before.told(),
            f"slot_mapping is {self.slots}",
            f"kv_write_kernel[({len(self.slots)}, {self.before.num_kv_heads})](...), "
            f"HEAD_DIM={self.before.head_dim}, TILE_DIM={self.tile}",
        ]
        if self.lying != Lying():
            lines.append(
                f"strides: keys {list(keys.stride())}, values {list(values.stride())}, "
                f"key_cache {list(caches['key'].stride())}, value_cache {list(caches['value'].stride())}"
            )
        return "\n".join(lines)

    def launch(self, keys, values, slots):
        from pagedlab.kernels.write import write_launch

        grid, arguments, options = write_launch(keys, values, self.caches["key"], self.caches["value"], slots)
        return grid, {**arguments, "TILE_DIM": self.tile}, options

    def behind_a_head(self, strayed) -> bool:
        """Whether the lanes behind a head's last number strayed from a cache, and not its first one."""
        kind = strayed.argument.removesuffix("_cache")
        block_stride, head_stride, slot_stride, _ = self.caches[kind].stride()
        starts = (
            slot // self.before.block_size * block_stride
            + head * head_stride
            + slot % self.before.block_size * slot_stride
            for slot in self.slots
            for head in range(self.before.num_kv_heads)
        )
        return any(self.before.head_dim <= strayed.element - start < self.tile for start in starts)

    def run(self, answer, as_tensor: bool = True) -> None:
        slots = torch.tensor(self.slots, dtype=torch.int64)
        keys, values = (new.clone(memory_format=torch.preserve_format) for new in (self.keys, self.values))
        grid, arguments, options = self.launch(keys, values, slots)
        try:
            run_kernel(answer, grid, arguments, self.told, **options)
        except Wrong as wrong:
            strayed, argument = wrong.__cause__, getattr(wrong.__cause__, "argument", "")
            if argument == "slot_mapping":
                raise Wrong(
                    f"A program asks for the slot of token {strayed.element}; there are {len(slots)}.",
                    wrong.example,
                    "The grid is (num_tokens, num_kv_heads): tl.program_id(0) is the token, tl.program_id(1) the head.",
                    where=wrong.where,
                ) from strayed
            if argument in ("key_cache", "value_cache") and strayed.element > 0 and not self.behind_a_head(strayed):
                raise Wrong(wrong.message, wrong.example, WHERE, where=wrong.where) from strayed
            raise
        stays(self.slots, slots, self.told, "slot mapping")
        if not (torch.equal(keys, self.keys) and torch.equal(values, self.values)):
            raise Wrong(
                "The kernel changed the new keys or values, which belong to the caller.",
                self.told,
                "Store through pointers into key_cache and value_cache only.",
            )


WHERE = (
    "Start from the address in key_cache: block * key_block_stride + head * key_head_stride + place * key_slot_stride. "
    "Its dims lie behind it, one by one."
)


def move_to_block_0(pages: PagedInputs) -> None:
    """Exchange the last block of A with block 0, which is otherwise nobody's."""
    last = pages.tables[0][-1]
    for cache in (pages.key_cache, pages.value_cache):
        cache[[0, last]] = cache[[last, 0]]
    pages.tables = [[{0: last, last: 0}.get(block, block) for block in table] for table in pages.tables]
    pages.block_tables = padded(pages.tables)


def pages_of(head_dims, **options):
    return paged_inputs(min_len=1, head_dims=head_dims, **options)


RETURNS = "A kernel returns nothing. What it has loaded must be put into the caches: tl.store(pointers, numbers)."


def expect_stored(writing: Launching, hint: str = WHERE, nothing: str = RETURNS) -> None:
    if writing.untouched() and any(slot >= 0 for slot in writing.slots):
        raise Wrong(
            "Nothing was stored.",
            f"{writing.told}\nafterwards both caches hold what they held before",
            nothing,
        )
    expect_whole_heads(writing)
    expect_written(writing, hint)


def expect_whole_heads(writing: Launching) -> None:
    """No head is stored in part."""
    pages = writing.before
    for kind, cache in writing.caches.items():
        same = writing.same(kind)
        for index, slot in enumerate(writing.slots):
            block, place = divmod(slot, pages.block_size)
            for head in range(pages.num_kv_heads) if slot >= 0 else ():
                right, empty = same[block, head, place], cache[block, head, place].isnan()
                if right.any() and empty.any() and (right | empty).all():
                    raise Wrong(
                        f"Of the {kind} of new token {index}, kv head {head}, {int(right.sum())} of {pages.head_dim} "
                        "numbers were stored.",
                        f"{writing.told}\nthe first that is missing is number {int(empty.nonzero()[0])}",
                        "The tile has TILE_DIM lanes, and those are on that are less than HEAD_DIM.",
                    )


@promise(
    "One token goes to its slot",
    examples=20,
    pages=pages_of((2, 4), num_seqs=(1, 1), block_sizes=(2, 3), num_kv_heads=(1,)),
)
def stores_one(answer, pages):
    writing = Launching(pages, 1)
    writing.run(answer)
    expect_stored(writing)


@promise(
    "Every head of every token", examples=30, pages=pages_of((2, 4), num_kv_heads=(3, 1, 2)), num_new=st.integers(1, 5)
)
def stores_all(answer, pages, num_new):
    writing = Launching(pages, num_new)
    writing.run(answer)
    expect_stored(
        writing, "Program (token, head) takes the key at token * keys_token_stride + head * keys_head_stride. " + WHERE
    )


@promise(
    "A head_dim that is no power of 2, and nothing beside it changes",
    examples=30,
    pages=pages_of((3, 320, 24)),  # 320: more than a tile of 64 or 256, whatever TILE_DIM says
    num_new=st.integers(1, 5),
    wider=st.sampled_from([1, 2]),
)
def stores_no_more(answer, pages, num_new, wider):
    writing = Launching(pages, 1 if pages.head_dim == 320 else num_new, wider=wider)  # a loop takes its time
    writing.run(answer)
    mask = "The tile has TILE_DIM lanes, a head has HEAD_DIM numbers. The rest of the lanes must be off: mask=."
    if not writing.untouched():
        expect_rest(writing, mask)
    expect_stored(writing, mask)


@promise(
    "Slot -1 is skipped, slot 0 is not",
    examples=30,
    pages=pages_of((4, 3)),
    num_new=st.integers(1, 5),
    skipped=st.frozensets(st.integers(0, 4), min_size=1, max_size=3),
    slot_0=st.booleans(),
)
def stores_skip(answer, pages, num_new, skipped, slot_0):
    num_new = min(num_new, pages.lens[0])
    skipped = {index % num_new for index in skipped}
    if slot_0:  # for the first token of A's last block
        move_to_block_0(pages)
        num_new = pages.lens[0]
        skipped.discard((num_new - 1) // pages.block_size * pages.block_size)
    writing = Launching(pages, num_new, frozenset(skipped))
    writing.run(answer)
    towards_zero = f"In Triton -1 // {pages.block_size} is 0. Ask for `slot >= 0` before anything is stored."
    expect_rest(writing, towards_zero)
    others = "Only the program that has slot -1 does nothing. All others keep their tokens and slots."
    expect_stored(writing, others, nothing=others)


@promise(
    "Wherever the tensors lie",
    examples=30,
    pages=pages_of((4, 3), num_kv_heads=(3, 2)),
    num_new=st.integers(2, 4),
    lying=st.builds(
        Lying,
        st.booleans(),
        st.booleans(),
        st.sampled_from(["dense", "interleaved", "tokens first"]),
        st.sampled_from(["dense", "interleaved", "tokens first"]),
    ),
)
def stores_anywhere(answer, pages, num_new, lying):
    writing = Launching(pages, num_new, lying=lying)
    writing.run(answer)
    strides = "Each of the four tensors has strides of its own. Use them all, and work none of them out."
    expect_stored(writing, strides)
    expect_rest(writing, strides)


@promise(
    "A pool of more than 2**31 numbers",
    examples=10,
    block=st.sampled_from([8_000, 20_000, 2**24 + 1]),  # the last one's slots are no numbers of float32
    place=st.integers(0, 3),
)
def stores_far(answer, block, place):
    """There is no such pool here. A right kernel is caught at exactly the address that it should have."""
    from pagedlab.gpu.strict import KernelError, OutOfBounds, strict
    from pagedlab.kernels.launch import launch
    from pagedlab.kernels.write import write_launch

    stride, head_dim = 276_480, 8
    keys, values = torch.ones(2, 1, 2, head_dim).unbind(0)
    caches = [torch.zeros(2, 2, 4, head_dim) for _ in range(2)]
    slot = 4 * block + place
    grid, arguments, options = write_launch(keys, values, *caches, torch.tensor([slot], dtype=torch.int32))
    arguments.update(TILE_DIM=8, key_block_stride=stride, value_block_stride=stride)
    call = calling(
        f"slot_mapping is [{slot}], 32 bits: block {block:,} place {place}; the stride of a block is {stride:,}\n"
        f"{block:,} * {stride:,} is {block * stride:,}, and an int32 ends at {2**31 - 1:,}"
    )
    bits = "In Triton a product of two 32-bit numbers has 32 bits. `.to(tl.int64)` on one of them, before the product."
    try:
        with strict():
            launch(answer, grid, arguments, **options)
    except KernelError as error:
        found = error.original
        if isinstance(found, OutOfBounds) and found.argument in ("key_cache", "value_cache"):
            want = block * stride + error.program[1] * 4 * head_dim + place * head_dim
            if found.element == want:
                return
            message = f"It stores at number {found.element:,} of {found.argument}; it should be {want:,}."
            if (found.element - want) % stride == 0:
                bits = "The block is another one. `/` makes a float, which rounds; a type of few bits cuts."
            raise Wrong(message, call, bits) from found
        if isinstance(found, AssertionError) and "overflow" in str(found):
            raise Wrong("The address has outgrown 32 bits and wraps around.", call, bits) from found
        raise found from None
    raise Wrong("Nothing was stored.", call, bits)


@promise("A program moves one head of one token, once", examples=10, pages=pages_of((4, 3), num_kv_heads=(3, 2)))
def stores_once(answer, pages):
    from pagedlab.gpu.strict import strict
    from pagedlab.gpu.trace import trace

    writing = Launching(pages, 3)
    grid, arguments, _ = writing.launch(writing.keys, writing.values, torch.tensor(writing.slots))
    call = calling(writing.told)
    with strict():
        traced = trace(answer, grid, arguments)
    for program in traced.programs:
        token, head, _ = program.pid
        for name, kind in (("keys", "load"), ("values", "load"), ("key_cache", "store"), ("value_cache", "store")):
            moved = sum(len(event.elements) for event in program.events if event.tensor == name and event.kind == kind)
            if moved > pages.head_dim:
                raise Wrong(
                    f"Program ({token}, {head}) {kind}s {moved} numbers of {name}; one head of one token has "
                    f"{pages.head_dim}.",
                    call,
                    "The grid has a program for each head of each token, so there is nothing to loop over.",
                )


@promise("It compiles for A100 and H100", of_right_answers=True)
def stores_compiled(answer):
    from pagedlab.kernels.write import write_launch

    keys, values = torch.zeros(2, 8, 4, 128, dtype=torch.float16).transpose(1, 2).unbind(0)
    caches = torch.zeros(2, 8, 8, 16, 128, dtype=torch.float16).unbind(0)
    slots = torch.arange(4)
    grid, arguments, options = write_launch(keys, values, *caches, slots)
    call = "float16, 8 kv heads, blocks of 16 slots, head_dim 128"
    compiled_notes(answer, arguments, call, **options)


EXERCISES = (
    Exercise(
        id="kv_write_kernel",
        title="Store keys and values by slot",
        kind="kernel",
        reference="pagedlab.kernels.write:kv_write_kernel",
        promises=(
            stores_one,
            stores_all,
            stores_no_more,
            stores_skip,
            stores_anywhere,
            stores_far,
            stores_once,
            stores_compiled,
        ),
        hints=(
            "One program: which token and head is it (tl.program_id), which slot has the token, which block and place "
            "is that? Then load a tile, store a tile, twice.",
            "A tile: dims = tl.arange(0, TILE_DIM), of which dims < HEAD_DIM count. Its pointers: a tensor, plus an "
            "index times its stride for each dimension, plus dims.",
            "slot = tl.load(slot_mapping + token)\n"
            "if slot >= 0:\n"
            "    block = (slot // BLOCK_SIZE).to(tl.int64)\n"
            "    key = tl.load(keys + token * keys_token_stride + head * keys_head_stride + dims, mask=mask)\n"
            "    target = key_cache + block * key_block_stride + head * key_head_stride\n"
            "    tl.store(target + slot % BLOCK_SIZE * key_slot_stride + dims, key, mask=mask)\n"
            "and the same for the value, with its own strides.",
        ),
        seconds=SECONDS,
    ),
)
