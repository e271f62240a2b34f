"""Lesson 04: from a position to a slot, writing and reading by slot, and where a number lies in memory."""

import operator

import torch
from hypothesis import strategies as st

from pagedlab.cache.layout import element_offset, heads_first
from pagedlab.cache.table import slot_mapping
from pagedlab.course.paged_inputs import PagedInputs, lengths, paged_inputs, shuffled
from pagedlab.course.promise import Exercise, Wrong, calling, count, promise

# --- for all of them --------------------------------------------------------------------------------------------------


def shown(numbers: list[int], as_tensor: bool) -> str:
    """As a learner would type it."""
    return f"torch.tensor({numbers})" if as_tensor else f"{numbers}"


def stays(before: list[int], given, told: str, what: str) -> None:
    """A list or tensor of whole numbers that was given to an answer is as it was."""
    after = given.tolist() if isinstance(given, torch.Tensor) else list(given)
    if after != before:
        raise Wrong(
            f"The call changed the {what}, which belongs to the caller.",
            f"{told}\nafterwards the {what} is {after}",
            "It is needed again: in the next layer, and in the next step. Leave it alone, or change a copy.",
        )


# --- slot_mapping -----------------------------------------------------------------------------------------------------


def whole_numbers(got, call: str) -> list[int]:
    """What an answer returned as a list of ints."""
    if isinstance(got, torch.Tensor):
        got = got.tolist()
    try:
        got = list(got)
    except TypeError:
        raise Wrong(
            f"A list of slots was expected; this is {type(got).__name__}.",
            f"{call} returned {got!r:.60}",
            "One slot for each position, in a list.",
        ) from None
    slots = []
    for slot in got:
        try:
            slots.append(operator.index(slot))
        except TypeError:
            raise Wrong(
                f"A slot is a whole number; this is {type(slot).__name__}.",
                f"{call} returned {got!r:.80}",
                "`/` gives a float, `//` doesn't. And one flat list: no lists in it.",
            ) from None
    return slots


def slot_mistakes(table: list[int], start: int, end: int, b: int):
    """(slots, message, hint) of the usual slips. Those that a short table makes impossible are left out."""
    positions = range(start, end)

    def entry(index):
        return table[index % len(table)]

    order = "First which block: position // block_size. Then the place in it: position % block_size."
    times = "Every block is block_size slots long: block n begins at slot n * block_size."
    yield (
        [entry(p // b) * b + (p - start) % b for p in positions],
        "The place in the block was counted from `start`.",
        "A position is counted from the sequence's first token, wherever the range begins.",
    )
    yield (
        [entry((p - start) // b) * b + (p - start) % b for p in positions],
        "The positions were counted from 0; this range begins later.",
        "Go from `start` to `end - 1`.",
    )
    yield list(positions), "The positions came back as they are: the table was not asked.", order
    yield (
        [entry(p // b) + p % b for p in positions],
        "A block was taken to be one slot long.",
        times,
    )
    yield [entry(p // b) * b for p in positions], "Every token lies in its block's first slot.", order
    yield [entry(p // b) for p in positions], "Those are blocks, not slots.", times
    yield [entry(p % b) * b + p // b for p in positions], "`//` and `%` have changed places.", order
    yield (
        [entry(0) * b + p for p in positions],
        "Only the first entry of the table was asked; the next block was taken to lie right behind it.",
        "Blocks lie anywhere. Ask the table again for every position.",
    )
    yield (
        [entry(p // b) * 16 + p % 16 for p in positions],
        "Blocks were taken to have 16 slots, whatever block_size says.",
        "The caller says how long a block is.",
    )
    yield (
        [entry(p // 16) * 16 + p % 16 for p in positions],
        "Blocks were taken to have 16 slots, whatever block_size says.",
        "The caller says how long a block is.",
    )
    yield (
        [entry(p // b) * b + p % b for p in range(start, end + 1)],
        "One slot too many: `end` itself is not in the range.",
        "As in Python's range(start, end).",
    )
    yield (
        [entry(p // b) * b + p % b for p in range(end)],
        "The slots of the positions before `start` came too.",
        "Go from `start` to `end - 1`.",
    )
    yield [entry(p // b) * b + p % b for p in range(start + 1, end + 1)], "It is one position late.", order


def expect_slots(answer, table: list[int], start: int, end: int, block_size: int, given=None) -> None:
    """given: the table in the form in which the answer gets it, if not as a list."""
    given = list(table) if given is None else given
    call = calling(f"slot_mapping({shown(table, isinstance(given, torch.Tensor))}, {start}, {end}, {block_size})")
    got = whole_numbers(answer(given, start, end, block_size), call)
    want = slot_mapping(table, start, end, block_size)
    if got == want:
        return
    example = f"{call} returned {got}, right is {want}"
    for slots, message, hint in slot_mistakes(table, start, end, block_size):
        if got == slots:
            raise Wrong(message, example, hint)
    if len(got) != len(want):
        raise Wrong(
            f"{count(len(got), 'slot')} for {count(len(want), 'position')}.",
            example,
            "One slot for each position from `start` to `end - 1`.",
        )
    if sorted(got) == sorted(want):
        raise Wrong("The slots are right, their order isn't.", example, "In the order of the positions.")
    index = next(i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
    position = start + index
    block, offset = table[position // block_size], position % block_size
    raise Wrong(
        f"Position {position} got slot {got[index]}; it lies in slot {want[index]}.",
        f"{example}\nposition {position}: block_table[{position} // {block_size}] is {block}, "
        f"{position} % {block_size} is {offset}: block {block} slot {offset}",
        "Work this one out by hand, then compare with each step of your code.",
    )


def blocks_for(num_tokens: int, block_size: int, seed: int) -> list[int]:
    """A table with room for the tokens: blocks in random order, never block 0."""
    needed = -(-num_tokens // block_size)
    return shuffled(range(1, 2 * needed + 3), seed)[:needed]


SEEDS = st.integers(0, 99)


@promise("The table says which block", examples=60, blocks=st.integers(2, 4), extra=st.integers(2, 4), seed=SEEDS)
def slots_through_table(answer, blocks, extra, seed):
    end = 4 * (blocks - 1) + extra
    expect_slots(answer, blocks_for(end, 4, seed), 0, end, 4)


@promise("A range may begin anywhere", examples=80, start=st.integers(1, 12), length=st.integers(5, 12), seed=SEEDS)
def slots_from_anywhere(answer, start, length, seed):
    expect_slots(answer, blocks_for(start + length, 4, seed), start, start + length, 4)


@promise(
    "Blocks of any size, from 1 up",
    examples=80,
    block_size=st.sampled_from([2, 3, 1, 16, 64]),
    start=st.integers(0, 70),
    length=st.integers(1, 40),
    seed=SEEDS,
)
def slots_any_block_size(answer, block_size, start, length, seed):
    expect_slots(answer, blocks_for(start + length, block_size, seed), start, start + length, block_size)


@promise("An empty range has no slots", examples=20, start=st.integers(0, 8), seed=SEEDS)
def slots_of_nothing(answer, start, seed):
    expect_slots(answer, blocks_for(start, 4, seed), start, start, 4)


@promise(
    "A table may be a tensor, and wider than needed",
    examples=60,
    start=st.integers(0, 9),
    length=st.integers(1, 6),
    padding=st.integers(0, 3),
    seed=SEEDS,
)
def slots_of_padded_tensor(answer, start, length, padding, seed):
    table = blocks_for(start + length, 4, seed) + [-1] * padding
    expect_slots(answer, table, start, start + length, 4, torch.tensor(table, dtype=torch.int32))


@promise(
    "The table stays as it was",
    examples=40,
    start=st.integers(0, 9),
    length=st.integers(1, 6),
    padding=st.integers(0, 3),
    seed=SEEDS,
    as_tensor=st.booleans(),
)
def slots_leave_the_table(answer, start, length, padding, seed, as_tensor):
    table = blocks_for(start + length, 4, seed) + [-1] * padding
    given = torch.tensor(table, dtype=torch.int32) if as_tensor else list(table)
    expect_slots(answer, table, start, start + length, 4, given)
    stays(table, given, f"slot_mapping({shown(table, as_tensor)}, {start}, {start + length}, 4)", "block table")


@promise(
    "A position without a block is an IndexError",
    examples=60,
    blocks=st.integers(1, 3),
    start=st.integers(0, 8),
    over=st.integers(1, 5),
    padding=st.integers(0, 2),
    seed=SEEDS,
    as_tensor=st.booleans(),
)
def slots_refused(answer, blocks, start, over, padding, seed, as_tensor):
    table = blocks_for(4 * blocks, 4, seed) + [-1] * padding
    end = max(4 * blocks, start) + over
    start = min(start, end - 1)
    call = calling(f"slot_mapping({shown(table, as_tensor)}, {start}, {end}, 4)")
    first = max(start, 4 * blocks)
    entry = first // 4
    there = f"entry {entry} of the table is -1" if entry < len(table) else f"the table has {len(table)} entries"
    hint = "What does your code do with an entry of -1? Ask before you multiply: raise IndexError(...)."
    try:
        got = answer(torch.tensor(table, dtype=torch.int32) if as_tensor else list(table), start, end, 4)
    except IndexError:
        return
    except NotImplementedError:
        raise
    except Exception as error:
        raise Wrong(
            f"Position {first} has no block, which is an IndexError; this is {type(error).__name__}.",
            f"{call}\n{there}\nraised {type(error).__name__}: {str(error):.120}",
            hint,
        ) from None
    raise Wrong(
        f"Position {first} has no block, but it was given a slot.",
        f"{call} returned {got!r:.120}\nposition {first}: {there}",
        hint,
    )


# --- write_kv ---------------------------------------------------------------------------------------------------------


class Writing:
    """A pool in use, new tokens for one of its sequences, and what the pool holds when they are written."""

    def __init__(self, pages: PagedInputs, num_new: int, skipped: frozenset[int] = frozenset()):
        self.before = pages
        num_new = min(num_new, pages.lens[0])
        # The same pool, with the last tokens of A not written yet: they are the new ones.
        start = pages.lens[0] - num_new
        self.positions = range(start, pages.lens[0])
        # As the model hands them over: turned to tokens first, but in memory still heads first.
        self.keys, self.values = (
            numbers[0][:, start:].contiguous().transpose(0, 1) for numbers in (pages.keys, pages.values)
        )
        self.slots = slot_mapping(pages.tables[0], start, pages.lens[0], pages.block_size)
        self.want = {"key": pages.key_cache.clone(), "value": pages.value_cache.clone()}
        self.caches = {"key": pages.key_cache.clone(), "value": pages.value_cache.clone()}
        for index, position in enumerate(self.positions):
            block, slot = pages.where(0, position)
            for kind in ("key", "value"):
                self.caches[kind][block, :, slot] = torch.nan
                if index in skipped:
                    self.want[kind][block, :, slot] = torch.nan
        self.slots = [-1 if index in skipped else slot for index, slot in enumerate(self.slots)]
        self.start = {kind: cache.clone() for kind, cache in self.caches.items()}
        self.as_tensor = False  # how the slots are given

    @property
    def told(self) -> str:
        slots = shown(self.slots, self.as_tensor)
        return f"{self.before.told()}\nwrite_kv(keys, values, key_cache, value_cache, {slots})"

    def run(self, answer, as_tensor: bool = False) -> None:
        self.as_tensor = as_tensor
        slots = torch.tensor(self.slots, dtype=torch.int64) if as_tensor else list(self.slots)
        keys, values = (new.transpose(0, 1).clone().transpose(0, 1) for new in (self.keys, self.values))
        calling(self.told)
        try:
            answer(keys, values, self.caches["key"], self.caches["value"], slots)
        except RuntimeError as error:
            if "view" not in str(error) or keys.is_contiguous():
                raise
            raise Wrong(
                "The new keys have the right shape, but do not lie in memory in that order.",
                f"{self.told}\nkeys.shape is {list(keys.shape)}, keys.stride() is {keys.stride()}\n"
                f"raised {type(error).__name__}: {str(error):.160}",
                "They were turned from [num_kv_heads, num_tokens, head_dim]. `.view` needs one piece; `.reshape` "
                "and plain indexing don't.",
            ) from error
        stays(self.slots, slots, self.told, "slot mapping")
        if not (torch.equal(keys, self.keys) and torch.equal(values, self.values)):
            raise Wrong(
                "The call changed the new keys or values, which belong to the caller.",
                self.told,
                "The next layer may need them. Write into the caches only.",
            )

    def same(self, kind: str) -> torch.Tensor:
        """Per number of a cache, whether it is right."""
        got, want = self.caches[kind], self.want[kind]
        return (got == want) | (got.isnan() & want.isnan())

    def untouched(self) -> bool:
        return all(torch.equal(self.caches[k].nan_to_num(9), self.start[k].nan_to_num(9)) for k in self.caches)

    def new_token(self, number: float) -> str:
        """A number in words, the new tokens first."""
        for kind, numbers in (("key", self.keys), ("value", self.values)):
            found = (numbers == number).nonzero()
            if len(found):
                index, head, _ = found[0].tolist()
                which = f", kv head {head}" if numbers.shape[1] > 1 else ""
                return f"the {kind} of new token {index}{which}"
        if number != number:
            return "still nothing (NaN)"
        return self.before.whose(number)


def expect_written(writing: Writing, hint: str = "") -> None:
    """Every new key and value is where its slot says."""
    pages = writing.before
    if not any(slot >= 0 for slot in writing.slots):
        return
    if writing.untouched() and -1 not in writing.slots:
        raise Wrong(
            "Nothing was written.",
            f"{writing.told}\nafterwards both caches hold what they held before",
            "The caches must change in place: cache[...] = new. `.reshape` and indexing with a list may make a copy; "
            "what is written into a copy is lost.",
        )
    for kind in ("key", "value"):
        same = writing.same(kind)
        for index, slot in enumerate(writing.slots):
            if slot < 0:
                continue
            block, offset = divmod(slot, pages.block_size)
            if same[block, :, offset].all():
                continue
            head, dim = (~same[block, :, offset]).nonzero()[0].tolist()
            found = writing.new_token(float(writing.caches[kind][block, head, offset, dim]))
            which = f", kv head {head}" if pages.num_kv_heads > 1 else ""
            elsewhere = first_place(writing, kind, index)
            other = "value" if kind == "key" else "key"
            says = hint or (
                "slot // block_size is the block, slot % block_size the place in it. The cache's dimensions are "
                "[block, kv head, place, dim]; a new key is [kv head, dim]."
            )
            if found.startswith(f"the {other} of new token {index}"):
                says = "Keys go into key_cache, values into value_cache."
            elif kind == "value" and found.startswith("still nothing") and not elsewhere:
                says = "A token leaves a key and a value. Both are stored."
            raise Wrong(
                f"The {kind} of new token {index}{which} belongs in block {block} slot {offset}; there is {found}.",
                f"{writing.told}\nnew token {index} has slot {slot}: {slot} // {pages.block_size} is block {block}, "
                f"{slot} % {pages.block_size} is place {offset} in it{elsewhere}",
                says,
                pages.picture(problem=block, note=f"Block {block} slot {offset} does not hold new token {index}."),
            )


def first_place(writing: Writing, kind: str, index: int) -> str:
    """Where a new token's key or value was put instead, in words; "" if nowhere."""
    number = (writing.keys if kind == "key" else writing.values)[index, 0, 0]
    for name, cache in writing.caches.items():
        found = (cache == number).nonzero().tolist()
        if found:
            block, head, slot, _ = found[0]
            return f"\nit was put into block {block} slot {slot}, kv head {head}, of {name}_cache"
    return ""


def expect_rest(writing: Writing, hint: str = "") -> None:
    """All other slots are as they were."""
    pages = writing.before
    targets = {divmod(slot, pages.block_size) for slot in writing.slots if slot >= 0}
    for kind in ("key", "value"):
        for block, head, slot, dim in (~writing.same(kind)).nonzero().tolist():
            if (block, slot) in targets:
                continue
            held = pages.owner(block, slot)
            now = writing.new_token(float(writing.caches[kind][block, head, slot, dim]))
            raise Wrong(
                f"Block {block} slot {slot} ({held}) was overwritten.",
                f"{writing.told}\nno slot of this call lies there; afterwards it holds {now}",
                hint or "Write single slots. Whatever else is in the block belongs to other tokens.",
                pages.picture(problem=block, note=f"Block {block} slot {slot} was overwritten."),
            )


WRITE_PAGES = paged_inputs(num_seqs=(1, 2), min_len=1)


@promise("One token goes to its slot", examples=60, pages=paged_inputs(num_seqs=(1, 1), min_len=1, block_sizes=(2, 3)))
def writes_one(answer, pages):
    writing = Writing(pages, 1)
    writing.run(answer)
    expect_written(writing)


@promise("Every token goes to its own slot", examples=80, pages=WRITE_PAGES, num_new=st.integers(1, 20))
def writes_many(answer, pages, num_new):
    writing = Writing(pages, num_new)
    writing.run(answer)
    expect_written(writing)


@promise("All other slots stay as they are", examples=60, pages=WRITE_PAGES, num_new=st.integers(1, 20))
def writes_nothing_else(answer, pages, num_new):
    writing = Writing(pages, num_new)
    writing.run(answer)
    expect_rest(writing)


@promise(
    "A token with slot -1 is not stored",
    examples=80,
    pages=WRITE_PAGES,
    num_new=st.integers(1, 8),
    skipped=st.frozensets(st.integers(0, 7), min_size=1, max_size=4),
    as_tensor=st.booleans(),
)
def writes_skip(answer, pages, num_new, skipped, as_tensor):
    num_new = min(num_new, pages.lens[0])
    skipped = frozenset(index % num_new for index in skipped)
    # The last block of the pool is in use, and full: what -1 hits by mistake belongs to somebody.
    writing = Writing(pages, num_new, skipped)
    last = pages.num_blocks - 1
    full = last not in {divmod(slot, pages.block_size)[0] for slot in writing.slots if slot >= 0}
    if full:
        for kind, sign in (("key", 1.0), ("value", -1.0)):
            for cache in (writing.caches, writing.want, writing.start):
                cache[kind][last] = 7.0 * sign
    try:
        writing.run(answer, as_tensor)
    except (NotImplementedError, Wrong):
        raise
    except Exception as error:
        raise Wrong(
            f"A slot of -1 is no error, it means: don't store this token. This is {type(error).__name__}.",
            f"{writing.told}\nraised {type(error).__name__}: {str(error):.120}",
            "Leave such tokens out before you write.",
        ) from None
    b = pages.block_size
    for kind in ("key", "value"):
        wrong = ~writing.same(kind)[last, :, b - 1]
        if wrong.any() and not any(slot == last * b + b - 1 for slot in writing.slots):
            raise Wrong(
                f"A token with slot -1 was written to block {last} slot {b - 1}, the last one of the pool.",
                f"{writing.told}\nin Python -1 // {b} is -1 and -1 % {b} is {b - 1}; "
                f"cache[-1, :, {b - 1}] is the last block's last slot",
                "Negative indices count from the end, so -1 hits somebody's data in silence. Leave those tokens out.",
                pages.picture(problem=last, note=f"Slot -1 was taken for block {last} slot {b - 1}."),
            )
    expect_written(writing, "Leave out a token together with its slot; all others keep theirs, also those behind it.")
    expect_rest(writing, "A token with slot -1 belongs nowhere. Leave it out before you write.")


@promise("Slots may come as a tensor, and there may be none", examples=40, pages=WRITE_PAGES, num_new=st.integers(0, 5))
def writes_from_tensor(answer, pages, num_new):
    writing = Writing(pages, num_new)
    writing.run(answer, as_tensor=True)
    expect_written(writing)
    expect_rest(writing)


# --- gather_kv --------------------------------------------------------------------------------------------------------


def expect_gathered(
    answer,
    pages: PagedInputs,
    sequence: int,
    padding: int = 0,
    as_tensor: bool = True,
    hint: str = "",
    watch: bool = False,
) -> None:
    """Gather one sequence, and say of the first wrong number what was read instead. watch: the table, too."""
    name, num_tokens = "ABCDEFGH"[sequence], pages.lens[sequence]
    table = pages.tables[sequence] + [-1] * padding
    given = torch.tensor(table, dtype=torch.int32) if as_tensor else list(table)
    caches = pages.key_cache.clone(), pages.value_cache.clone()
    told = calling(f"{pages.told()}\ngather_kv(key_cache, value_cache, {shown(table, as_tensor)}, {num_tokens})")
    result = answer(*caches, given, num_tokens)
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Wrong(
            f"Two tensors were expected, keys and values; this is {type(result).__name__}.",
            f"{told}\nreturned {type(result).__name__}",
            "return keys, values",
        )
    right = pages.keys[sequence], pages.values[sequence]
    for kind, got, want in zip(("key", "value"), result, right, strict=True):
        where = f"{told}\nits {kind}s:"
        if not isinstance(got, torch.Tensor):
            raise Wrong(f"The {kind}s are {type(got).__name__}, not a tensor.", where, "torch.stack joins a list.")
        got = got.detach()
        if got.shape != want.shape:
            wrong_shape(pages, where, list(got.shape), list(want.shape), kind)
        if got.dtype != want.dtype:
            raise Wrong(f"The {kind}s are {got.dtype}; the cache is {want.dtype}.", where, "Copy, don't convert.")
        differs = ~(got == want)
        if not differs.any():
            continue
        head, token, dim = differs.nonzero()[0].tolist()
        block, slot = pages.where(sequence, token)
        found = pages.whose(float(got[head, token, dim]))
        which = f", kv head {head}" if pages.num_kv_heads > 1 else ""
        says = hint or (
            "Which block, then which slot in it. The cache's dimensions are [block, kv head, slot, dim], the result's "
            "[kv head, token, dim]."
        )
        if f"block {block} slot {slot} (the {'value' if kind == 'key' else 'key'} of" in found:
            says = "Keys come from key_cache, values from value_cache, and the keys are returned first."
        raise Wrong(
            f"Token {token} of {name}{which}: its {kind} lies in block {block} slot {slot}; read was {found}.",
            f"{where} at kv head {head}, token {token}, dimension {dim}\n"
            f"block_table[{token} // {pages.block_size}] is {block}, {token} % {pages.block_size} is {slot}",
            says,
            pages.picture(problem=block, selected={"sequence": name, "position": token}),
        )
    if not torch.equal(caches[0].nan_to_num(9), pages.key_cache.nan_to_num(9)) or not torch.equal(
        caches[1].nan_to_num(9), pages.value_cache.nan_to_num(9)
    ):
        raise Wrong("Reading has changed the pool.", told, "Gather into a tensor of your own.")
    if watch:
        stays(table, given, told, "block table")


def wrong_shape(pages: PagedInputs, where: str, got: list[int], want: list[int], kind: str):
    example = f"{where} shape {got}, right is {want}"
    heads, tokens, dim = want
    b = pages.block_size
    if got == [tokens, heads, dim]:
        raise Wrong(
            "Tokens came first, heads second.", example, "Attention wants [num_kv_heads, num_tokens, head_dim]."
        )
    if len(got) == 3 and got[0] == heads and got[2] == dim and got[1] > tokens and got[1] % b == 0:
        raise Wrong(
            f"Whole blocks came back: {got[1]} slots for {count(tokens, 'token')}.",
            example,
            "The last block is rarely full, and entries behind the last block are no blocks. Stop at num_tokens.",
        )
    if len(got) == 3 and got[0] == heads and got[2] == dim and got[1] < tokens:
        raise Wrong(
            f"{count(got[1], 'token')} came back; the sequence has {tokens}.",
            example,
            f"How many blocks of {b} do {tokens} tokens need? The last one may be partly full.",
        )
    if len(got) == 4:
        raise Wrong(
            "The blocks were not joined: that is four dimensions.",
            example,
            "Bring the blocks' dimension next to the slots' one before you join the two.",
        )
    raise Wrong(f"The {kind}s have the wrong shape: {got}.", example, "Right is [num_kv_heads, num_tokens, head_dim].")


@promise(
    "The tokens of one block",
    examples=40,
    pages=paged_inputs(num_seqs=(1, 1), min_len=1, block_sizes=(3, 16), extra_columns=(0, 0)).filter(
        lambda pages: pages.lens[0] <= pages.block_size
    ),
)
def gathers_one_block(answer, pages):
    expect_gathered(answer, pages, 0)


@promise("Every token from its own block and slot", examples=80, pages=paged_inputs(num_seqs=(1, 2), min_len=1))
def gathers_all(answer, pages):
    for sequence in range(pages.num_seqs):
        expect_gathered(answer, pages, sequence)


@promise(
    "Entries behind the last block do not show in the result",
    examples=60,
    pages=paged_inputs(num_seqs=(1, 2), min_len=1),
    padding=st.integers(1, 3),
)
def gathers_padded(answer, pages, padding):
    hint = "An entry of -1 is no block, and as an index it means the pool's last one. Which entries are needed?"
    expect_gathered(answer, pages, pages.num_seqs - 1, padding, hint=hint)


@promise("The table may be a list", examples=30, pages=paged_inputs(num_seqs=(1, 1), min_len=1))
def gathers_from_list(answer, pages):
    expect_gathered(answer, pages, 0, padding=1, as_tensor=False)


@promise(
    "No tokens: two empty tensors",
    examples=20,
    block_size=st.sampled_from([2, 16]),
    padding=st.integers(0, 2),
    others=lengths(2),
)
def gathers_nothing(answer, block_size, padding, others):
    expect_gathered(answer, PagedInputs([0, others], block_size, num_kv_heads=2), 0, padding)


@promise(
    "The table stays as it was",
    examples=30,
    pages=paged_inputs(num_seqs=(1, 2)),
    padding=st.integers(0, 2),
    as_tensor=st.booleans(),
)
def gathers_and_leaves_the_table(answer, pages, padding, as_tensor):
    expect_gathered(answer, pages, 0, padding, as_tensor, watch=True)


# --- element_offset ---------------------------------------------------------------------------------------------------

# The first of each are the ones a report shows: small, and no two products of them alike.
HEADS = st.sampled_from([3, 1, 8, 5])
SLOTS = st.sampled_from([4, 1, 16, 7])
DIMS = st.sampled_from([5, 64, 128, 2])
PLACE = {"num_kv_heads": HEADS, "block_size": SLOTS, "head_dim": DIMS}


def offset_of(answer, block, head, slot, dim, sizes) -> tuple[int, str]:
    call = f"element_offset(block={block}, head={head}, slot={slot}, dim={dim}, num_kv_heads={sizes[0]}, "
    call = calling(f"{call}block_size={sizes[1]}, head_dim={sizes[2]})")
    got = answer(block, head, slot, dim, *sizes)
    try:
        return operator.index(got), call
    except TypeError:
        raise Wrong(
            f"A place in memory is a whole number; this is {type(got).__name__}.",
            f"{call} returned {got!r:.60}",
            "Multiply and add. No division is needed.",
        ) from None


# What was computed, what to say of it, and a hint. The sizes are called h, s, d: kv heads, slots, dims.
OFFSET_MISTAKES = (
    (
        lambda block, head, slot, dim, h, s, d: block * h * s * d + head * d + slot * d + dim,
        "The heads of a block overlap: a step to the next head was head_dim long.",
        "A step to the next head jumps over all slots of this one.",
    ),
    (
        lambda block, head, slot, dim, h, s, d: ((block * s + slot) * h + head) * d + dim,
        "That is the place in token-major: slots outside, heads inside.",
        "Here the heads come first: [num_blocks, num_kv_heads, block_size, head_dim].",
    ),
    (
        lambda *place: 4 * element_offset(*place),
        "Those are bytes of float32.",
        "Count numbers, not bytes.",
    ),
    (
        lambda *place: element_offset(*place) + 1,
        "One too far: places are counted from 0.",
        "The first number of the cache has offset 0.",
    ),
    (
        lambda block, head, slot, dim, h, s, d: (block + head) * s * d + slot * d + dim,
        "A block was taken to hold one kv head.",
        "A step to the next block jumps over all kv heads of this one.",
    ),
    (
        lambda block, head, slot, dim, h, s, d: block + head + slot + dim,
        "The indices were added as they are.",
        "Each one is first multiplied by its stride.",
    ),
)
ELSEWHERE = ((5, 2, 3, 4, 7, 11, 13), (0, 1, 0, 1, 3, 4, 5), (2, 0, 1, 0, 3, 4, 5))


def is_the_mistake(mistake, answer, got: int, place: tuple) -> bool:
    """One place may look like a mistake by accident, so the answer is asked at other places too."""
    if got != mistake(*place):
        return False
    try:
        return all(answer(*other) == mistake(*other) for other in ELSEWHERE)
    except Exception:
        return False


def expect_offset(answer, block, head, slot, dim, sizes, told: str = "") -> None:
    got, call = offset_of(answer, block, head, slot, dim, sizes)
    want = heads_first(*sizes).offset(block, head, slot, dim)
    if got == want:
        return
    example = f"{call} returned {got:,}, right is {want:,}"
    for mistake, message, hint in OFFSET_MISTAKES:
        if is_the_mistake(mistake, answer, got, (block, head, slot, dim, *sizes)):
            raise Wrong(message, example, hint)
    raise Wrong(
        told or f"It is {got:,}, and should be {want:,}.",
        example,
        "A step in one dimension jumps over all that is to its right: num_blocks, num_kv_heads, block_size, head_dim.",
    )


@promise("The cache begins at 0, and a key's numbers lie side by side", examples=30, dim=st.integers(0, 1), **PLACE)
def offset_dim(answer, dim, num_kv_heads, block_size, head_dim):
    told = f"Number {dim} of the very first key has offset {dim}."
    expect_offset(answer, 0, 0, 0, dim, (num_kv_heads, block_size, head_dim), told)


@promise("The next slot is one key further", examples=40, slot=st.integers(0, 15), **PLACE)
def offset_slot(answer, slot, num_kv_heads, block_size, head_dim):
    slot %= block_size
    told = f"To slot {slot} it is {count(slot, 'key')} of {head_dim} numbers."
    expect_offset(answer, 0, 0, slot, 0, (num_kv_heads, block_size, head_dim), told)


@promise("The next kv head is all slots further", examples=40, head=st.integers(0, 7), **PLACE)
def offset_head(answer, head, num_kv_heads, block_size, head_dim):
    head %= num_kv_heads
    told = f"Before kv head {head} lie {count(head, 'head')} of {block_size} slots, each {head_dim} numbers long."
    expect_offset(answer, 0, head, 0, 0, (num_kv_heads, block_size, head_dim), told)


@promise("The next block is all kv heads further", examples=40, block=st.integers(0, 9), **PLACE)
def offset_block(answer, block, num_kv_heads, block_size, head_dim):
    told = f"Before block {block} lie {count(block, 'block')} of {num_kv_heads} x {block_size} x {head_dim} numbers."
    expect_offset(answer, block, 0, 0, 0, (num_kv_heads, block_size, head_dim), told)


@promise("All together, where torch has it", examples=60, block=st.integers(0, 9), place=SEEDS, **PLACE)
def offset_anywhere(answer, block, place, num_kv_heads, block_size, head_dim):
    head, slot, dim = place % num_kv_heads, place % block_size, place % head_dim
    expect_offset(answer, block, head, slot, dim, (num_kv_heads, block_size, head_dim))


@promise("Also in a large pool", examples=10, block=st.sampled_from([200_000, 3_000_000]))
def offset_large(answer, block):
    got, call = offset_of(answer, block, 7, 15, 127, (8, 16, 128))
    want = element_offset(block, 7, 15, 127, 8, 16, 128)
    if got != want:
        raise Wrong(
            f"It should be {want:,}, and is {got:,}.",
            f"{call} returned {got:,}",
            "An integer of 32 bits ends at 2,147,483,647 and goes on with negative numbers. Python's own have no end.",
        )


EXERCISES = (
    Exercise(
        id="slot_mapping",
        title="From positions to slots",
        kind="function",
        reference="pagedlab.cache.table:slot_mapping",
        promises=(
            slots_through_table,
            slots_from_anywhere,
            slots_any_block_size,
            slots_of_nothing,
            slots_of_padded_tensor,
            slots_refused,
            slots_leave_the_table,
        ),
        hints=(
            "Do one position first, on paper: which entry of the table, which place in the block?",
            "block = block_table[position // block_size], and its first slot is block * block_size.",
            "Go through range(start, end). If block is negative, raise IndexError; else append "
            "block * block_size + position % block_size.",
        ),
    ),
    Exercise(
        id="write_kv",
        title="Store new tokens by slot",
        kind="function",
        reference="pagedlab.kernels.ops:kv_write",
        promises=(writes_one, writes_many, writes_nothing_else, writes_from_tensor, writes_skip),
        hints=(
            "A slot is a block and a place in it: the same `//` and `%` as before.",
            "One token: key_cache[block, :, place] is [num_kv_heads, head_dim], just like keys[token]. And -1?",
            "for token, slot in enumerate(slot_mapping): leave out slots below 0, then\n"
            "    key_cache[slot // block_size, :, slot % block_size] = keys[token]\n"
            "and the same for values. block_size is key_cache.shape[2].",
        ),
    ),
    Exercise(
        id="gather_kv",
        title="Back to one piece",
        kind="function",
        reference="pagedlab.kernels.ops:gather_kv",
        promises=(
            gathers_one_block,
            gathers_all,
            gathers_padded,
            gathers_from_list,
            gathers_nothing,
            gathers_and_leaves_the_table,
        ),
        hints=(
            "Each token lies where slot_mapping says. Another way: take whole blocks, join them, and cut off the rest.",
            "With index tensors blocks and places, cache[blocks, :, places] is [num_tokens, num_kv_heads, head_dim].",
            "positions = torch.arange(num_tokens)\n"
            "blocks = torch.as_tensor(block_table)[positions // block_size]\n"
            "keys = key_cache[blocks, :, positions % block_size].transpose(0, 1)",
        ),
    ),
    Exercise(
        id="element_offset",
        title="Where a number lies",
        kind="function",
        reference="pagedlab.cache.layout:element_offset",
        promises=(offset_dim, offset_slot, offset_head, offset_block, offset_anywhere, offset_large),
        hints=(
            "How many numbers are skipped when slot goes up by 1? When head goes up by 1? When block does?",
            "A step in a dimension jumps over the product of all sizes to its right.",
            "block * (num_kv_heads * block_size * head_dim) + head * ... + slot * ... + dim",
        ),
    ),
)
