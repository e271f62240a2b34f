"""Lesson 02: what a token costs, a cache that reserves its memory, and where reserved memory goes to waste."""

import numbers
import operator
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from pagedlab.cache.accounting import LiveRequest
from pagedlab.cache.static import CacheFullError
from pagedlab.course.promise import Exercise, Wrong, calling, count, promise

# --- kv_bytes_per_token -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A model as far as its cache is concerned, under the names of `ModelConfig`."""

    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_size: int


# The first of each are the ones a report shows. No two of them, left out or put in by mistake, give the same number.
LAYERS = st.sampled_from([7, 30, 40, 1])
KV_HEADS = st.sampled_from([5, 3, 8, 1])
GROUP = st.sampled_from([6, 3, 4])
HEAD_DIM = st.sampled_from([64, 128, 96])
BYTES = st.sampled_from([1, 4, 2])


def bytes_mistakes(config: Shape, size: int):
    """(result, message, hint) of the usual slips."""
    layers, heads, kv_heads, dim = (
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    right = 2 * layers * kv_heads * dim * size
    stored = "Which heads does the cache store? Look at the shape of `keys` in lesson 1."
    derived = config.hidden_size // heads
    yield 2 * layers * heads * dim * size, "The query heads were counted.", stored
    yield 2 * layers * config.hidden_size * size, "hidden_size is as wide as all query heads together.", stored
    yield (
        2 * layers * kv_heads * derived * size,
        "hidden_size / num_attention_heads is not this model's head_dim.",
        "Models may choose head_dim freely. Read it from the config.",
    )
    yield right // 2, "That is half of it.", "A token leaves a key and a value."
    yield right // layers, "That is one layer's share.", "Every layer has keys and values of its own."
    yield right // kv_heads, "That is one kv head's share.", "Each kv head stores a key and a value."
    yield right // dim, "head_dim is missing.", "A key is not one number, it is head_dim numbers."
    yield right // size, "Those are numbers, not bytes.", "Each number takes bytes_per_element bytes."
    yield right * 8, "Those are bits.", "bytes_per_element is in bytes already."
    yield (
        right * kv_heads,
        "The kv heads were counted twice.",
        "Keys and values have the same heads: one factor 2 does.",
    )
    for usual in (2, 4):
        message = f"Every number was taken to have {usual} bytes, also where it has {count(size, 'byte')}."
        yield right // size * usual, message, "The caller says how many: bytes_per_element."


def expect_bytes(answer, config: Shape, size: int):
    told = ", ".join(f"{name}={value}" for name, value in vars(config).items())
    call = calling(f"config: {told}\nkv_bytes_per_token(config, {size})")
    got = answer(config, size)
    if isinstance(got, bool) or not isinstance(got, numbers.Integral):
        raise Wrong(
            f"A number of bytes is a whole number; this is {type(got).__name__}.",
            f"{call} returned {got!r:.60}",
            "Only products are needed. If you divide, `/` gives a float and `//` doesn't.",
        )
    right = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * size
    if got == right:
        return
    example = f"{call} returned {got:,}, right is {right:,}"
    for result, message, hint in bytes_mistakes(config, size):
        if got == result:
            raise Wrong(message, example, hint)
    raise Wrong("The number of bytes is wrong.", example, "Multiply: what, for how many, how large?")


@promise("Every query head has a kv head of its own", layers=LAYERS, heads=KV_HEADS, head_dim=HEAD_DIM, size=BYTES)
def bytes_plain(answer, layers, heads, head_dim, size):
    expect_bytes(answer, Shape(layers, heads, heads, head_dim, heads * head_dim), size)


@promise(
    "Several query heads share a kv head",
    layers=LAYERS,
    kv_heads=KV_HEADS,
    group=GROUP,
    head_dim=HEAD_DIM,
    size=BYTES,
)
def bytes_grouped(answer, layers, kv_heads, group, head_dim, size):
    heads = kv_heads * group
    expect_bytes(answer, Shape(layers, heads, kv_heads, head_dim, heads * head_dim), size)


@promise(
    "The model says how wide a head is", layers=LAYERS, kv_heads=KV_HEADS, group=GROUP, head_dim=HEAD_DIM, size=BYTES
)
def bytes_free_head_dim(answer, layers, kv_heads, group, head_dim, size):
    heads = kv_heads * group
    expect_bytes(answer, Shape(layers, heads, kv_heads, head_dim, heads * (head_dim + 32)), size)


# --- static_cache -----------------------------------------------------------------------------------------------------

NUM_KV_HEADS, HEAD_SIZE = 2, 3
NEW = st.integers(1, 3)
STEPS = st.lists(NEW, min_size=1, max_size=3)  # tokens of each step
ROW_STEPS = st.lists(st.tuples(st.integers(0, 2), NEW), min_size=2, max_size=6).filter(  # (row, tokens)
    lambda steps: all(sum(new for row, new in steps if row == one) < 9 for one in range(3))
)
NOT_WRITTEN = float("nan")


PLACE = 0.25 * torch.arange(NUM_KV_HEADS).view(-1, 1, 1) + 0.05 * torch.arange(HEAD_SIZE)


def token_numbers(layer: int, row: int, start: int, end: int) -> torch.Tensor:
    """Keys `[kv_heads, tokens, head_dim]` that say whose they are: about 100 * (layer + 1) + 10 * row + token."""
    first = 100 * (layer + 1) + 10 * row
    return torch.arange(first + start, first + end).view(1, -1, 1) + PLACE


def whose(number: float, head: int, dim: int) -> str:
    """What `token_numbers` has to say about a number found somewhere; values are keys with a minus."""
    if number != number or number == 0:
        return "an empty slot"
    code = round(abs(number) - 0.25 * head - 0.05 * dim)
    layer, rest = divmod(code, 100)
    row, token = divmod(rest, 10)
    return f"the {'key' if number > 0 else 'value'} of token {token}, row {row}, layer {layer - 1}"


class Filling:
    """An answer's cache, what was done to it, and what it must hold by now."""

    def __init__(self, answer, layers: int, batch: int, max_len: int):
        self.sizes = (layers, batch, NUM_KV_HEADS, max_len, HEAD_SIZE)
        self.layers, self.batch, self.max_len = layers, batch, max_len
        self.story = [calling(f"cache = StaticCache{self.sizes}")]
        self.cache = answer(*self.sizes)
        self.tokens = [0] * batch
        for name in ("keys", "values"):
            for layer in range(layers):
                self.memory(name, layer).detach().fill_(NOT_WRITTEN)

    @property
    def told(self) -> str:
        return "\n".join(self.story)

    def memory(self, name: str, layer: int) -> torch.Tensor:
        """`cache.keys[layer]` or `cache.values[layer]`, as reserved."""
        hint = (
            f"Make both in __init__: for each layer a tensor [batch_size, num_kv_heads, max_len, head_dim], in {name}."
        )
        try:
            tensor = getattr(self.cache, name)[layer]
        except (AttributeError, TypeError, LookupError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise Wrong(f"`{name}[{layer}]` can't be read.", f"{self.told}\n{problem}", hint) from None
        if not isinstance(tensor, torch.Tensor):
            kind = type(tensor).__name__
            raise Wrong(f"`{name}[{layer}]` is {kind}, not a tensor.", f"{self.told}\nkind: {kind}", hint)
        return tensor

    def snapshot(self) -> list[torch.Tensor]:
        return [self.memory(name, layer).clone() for name in ("keys", "values") for layer in range(self.layers)]

    def append(self, layer: int, row: int, num_new: int):
        keys = token_numbers(layer, row, self.tokens[row], self.tokens[row] + num_new)
        values = -keys
        call = f"cache.append({layer}, {row}, keys, values)"
        self.story.append(f"{call}  # {count(num_new, 'token')}")
        calling(self.told)
        result = self.cache.append(layer, row, keys, values)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise Wrong(
                "append gives back two tensors: all keys and all values of that row.",
                f"{self.told}\nreturned {type(result).__name__}",
                "return all_keys, all_values",
            )
        result = [one.clone() if isinstance(one, torch.Tensor) else one for one in result]
        keys.fill_(NOT_WRITTEN)  # the caller may use its tensors for something else now
        values.fill_(NOT_WRITTEN)
        return result

    def step(self, row: int, num_new: int) -> None:
        """The same tokens through all layers, and a look at what comes back."""
        total = self.tokens[row] + num_new
        for layer in range(self.layers):
            result = self.append(layer, row, num_new)
            self.look(layer, row, total, num_new, *result)
        self.tokens[row] = total

    def look(self, layer: int, row: int, total: int, num_new: int, keys, values) -> None:
        for name, got, sign in (("keys", keys, 1), ("values", values, -1)):
            want = sign * token_numbers(layer, row, 0, total)
            story = f"{self.told}\nits {name}:"
            if not isinstance(got, torch.Tensor):
                raise Wrong(f"append returned {type(got).__name__} for its {name}.", story, "Return tensors.")
            got = got.detach()
            if got.shape != want.shape:
                self.wrong_shape(story, layer, row, tuple(got.shape), tuple(want.shape), num_new)
            if got.dtype != want.dtype:
                raise Wrong(
                    f"The {name} came back as {got.dtype}; they went in as {want.dtype}.",
                    story,
                    "Reserve with dtype=torch.float32, or leave dtype out. Other types round the numbers.",
                )
            if not torch.equal(got, want):  # stored and read, not computed: the very same numbers
                differs = got != want
                head, token, dim = (int(index) for index in differs.nonzero()[0])
                found = whose(float(got[head, token, dim]), head, dim)
                right = whose(float(want[head, token, dim]), head, dim)
                if found == right:
                    found = "a number from another kv head or dimension"
                raise Wrong(
                    f"Where {right} should be, there is {found}.",
                    f"{story} at kv head {head}, token {token}",
                    "A token belongs to one layer, one row and one slot. The row's next free slot is the number of "
                    "tokens it holds, the same for all layers of a step.",
                )

    def wrong_shape(self, story: str, layer: int, row: int, got: tuple, want: tuple, num_new: int):
        heads, total, dim = want
        example = f"{story} shape {list(got)}, right is {list(want)}"
        if got == (heads, self.max_len, dim):
            raise Wrong(
                f"All {self.max_len} slots of the row came back; {count(total, 'token')} went in.",
                example,
                "The rest of the row is empty, and attention must not see it. Cut it off.",
            )
        if got == (heads, num_new, dim):
            raise Wrong("Only the new tokens came back.", example, "Attention needs every token of the row so far.")
        if len(got) == 4:
            message = "That is a whole batch; one row was asked for."
            raise Wrong(message, example, "Pick the row: what comes back has three dimensions.")
        if got[0] == heads and got[2:] == (dim,):
            raise Wrong(
                f"{count(got[1], 'token')} came back; row {row} has {total} in layer {layer}.",
                example,
                "A step brings the same tokens to every layer, and belongs to one row. Which count moved on, and when?",
            )
        raise Wrong("The result has the wrong shape.", example, "Right is [num_kv_heads, tokens so far, head_dim].")

    def number_of_tokens(self, row: int) -> int:
        ask = f"cache.num_tokens({row})"
        method = getattr(self.cache, "num_tokens", None)
        if not callable(method):
            raise Wrong(
                "num_tokens is a method: it is asked about a row.", f"{self.told}\n{ask}", "def num_tokens(self, row)"
            )
        value = method(row)
        try:
            return operator.index(value)
        except TypeError:
            raise Wrong(
                "num_tokens gives a whole number.",
                f"{self.told}\n{ask} is {value!r:.60}",
                "One number for the row that was asked about.",
            ) from None


@promise("The memory is reserved up front", examples=15, layers=st.integers(1, 2), batch=st.integers(1, 3), extra=NEW)
def cache_reserves(answer, layers, batch, extra):
    filling = Filling(answer, layers, batch, max_len=4 + extra)
    want = [batch, NUM_KV_HEADS, filling.max_len, HEAD_SIZE]
    for name in ("keys", "values"):
        for layer in range(layers):
            tensor = filling.memory(name, layer)
            if list(tensor.shape) != want:
                raise Wrong(
                    f"`{name}[{layer}]` has shape {list(tensor.shape)}; room for every row is {want}.",
                    f"{filling.told}\ncache.{name}[{layer}].shape",
                    "Each layer has [batch_size, num_kv_heads, max_len, head_dim].",
                )
    parts = [filling.memory(name, layer) for name in ("keys", "values") for layer in range(layers)]
    for part in parts:  # parts that share memory would all change when one is written
        part.detach().fill_(0.0)
    for number, part in enumerate(parts, start=1):
        part.detach().fill_(float(number))
    if any(bool((part != number).any()) for number, part in enumerate(parts, start=1)):
        raise Wrong(
            "Some of the reserved tensors are the same memory.",
            f"{filling.told}\nwriting into one of them changed another",
            "`[tensor] * n` repeats one tensor, and keys and values need one each. `expand` reserves nothing.",
        )


@promise("Every token comes back, oldest first", examples=25, steps=STEPS)
def static_order(answer, steps):
    filling = Filling(answer, 1, 1, max_len=sum(steps) + 2)
    for num_new in steps:
        filling.step(0, num_new)


@promise("Layers don't mix", examples=25, steps=STEPS, layers=st.integers(2, 3))
def static_layers(answer, steps, layers):
    filling = Filling(answer, layers, 1, max_len=sum(steps) + 2)
    for num_new in steps:
        filling.step(0, num_new)


@promise("Rows don't mix", examples=25, steps=ROW_STEPS, layers=st.integers(1, 2))
def static_rows(answer, steps, layers):
    filling = Filling(answer, layers, 3, max_len=10)
    for row, num_new in steps:
        filling.step(row, num_new)


@promise("num_tokens counts each token of a row once", examples=25, steps=ROW_STEPS, layers=st.integers(1, 3))
def static_counts(answer, steps, layers):
    filling = Filling(answer, layers, 3, max_len=10)
    expect_counts(filling)
    for row, num_new in steps:
        filling.step(row, num_new)
        expect_counts(filling)


def expect_counts(filling: Filling, hint: str = "") -> None:
    """Only between steps: in the middle of one, the number before and the number after would both do."""
    for row, right in enumerate(filling.tokens):
        got = filling.number_of_tokens(row)
        if got != right:
            raise Wrong(
                f"Row {row} holds {count(right, 'token')}, but num_tokens says {got}.",
                f"{filling.told}\ncache.num_tokens({row}) is {got}",
                hint or "A token passes every layer, and is one token all the same. Each row has a number of its own.",
            )


@promise("Tokens lie in the reserved memory, which never moves", examples=25, steps=ROW_STEPS, layers=st.integers(1, 2))
def static_in_place(answer, steps, layers):
    filling = Filling(answer, layers, 3, max_len=10)
    places = [(name, layer) for name in ("keys", "values") for layer in range(layers)]
    before = {place: filling.memory(*place).data_ptr() for place in places}
    for row, num_new in steps:
        filling.step(row, num_new)
        for place in places:
            name, layer = place
            memory = filling.memory(name, layer)
            if memory.data_ptr() != before[place] or memory.shape[2] != filling.max_len:
                raise Wrong(
                    f"`{name}[{layer}]` is another tensor than before the step.",
                    f"{filling.told}\ncache.{name}[{layer}].shape is {list(memory.shape)}",
                    "`torch.cat` makes a new tensor each time. Write into the one you have: `memory[...] = new`.",
                )
        for name, layer in places:
            want = token_numbers(layer, row, 0, filling.tokens[row]) * (1 if name == "keys" else -1)
            held = filling.memory(name, layer)[row, :, : filling.tokens[row]]
            if not torch.equal(held, want):
                raise Wrong(
                    f"The tokens are not in `{name}[{layer}]`.",
                    f"{filling.told}\ncache.{name}[{layer}][{row}, :, :{filling.tokens[row]}] holds something else",
                    "Token p of row r lies in slot p of row r.",
                )


def refuse(filling: Filling, row: int, num_new: int) -> CacheFullError | None:
    """A step that must not fit, layer after layer until it is refused. None: nobody refused it."""
    try:
        for layer in range(filling.layers):
            filling.append(layer, row, num_new)
    except CacheFullError as error:
        return error
    except (NotImplementedError, Wrong):
        raise
    except Exception as error:
        raise Wrong(
            f"A full row must raise CacheFullError; this is {type(error).__name__}.",
            f"{filling.told}\nraised {type(error).__name__}: {str(error):.200}",
            "raise CacheFullError(row, stored, asked, max_len), before anything is written.",
        ) from None
    return None


@promise("A row takes max_len tokens, and not one more", examples=25, steps=STEPS, extra=NEW, layers=st.integers(1, 2))
def static_full(answer, steps, extra, layers):
    filling = Filling(answer, layers, 2, max_len=sum(steps))
    for num_new in steps:
        try:
            filling.step(1, num_new)
        except CacheFullError as error:
            raise Wrong(
                f"{count(num_new, 'token')} would have fitted exactly, but CacheFullError was raised.",
                f"{filling.told}\nraised CacheFullError: {str(error):.200}",
                "The row may be filled to the last slot. Compare what is stored plus what is new with max_len.",
            ) from None
    if refuse(filling, 1, extra) is None:
        raise Wrong(
            f"{filling.max_len + extra} tokens went into {count(filling.max_len, 'slot')}, and nothing was raised.",
            filling.told,
            "Before writing, compare what the row will hold with max_len. A slice that is too long is cut in silence.",
        )


@promise(
    "CacheFullError says the numbers",
    examples=25,
    steps=STEPS,
    room=st.integers(0, 2),
    extra=NEW,
    layers=st.integers(1, 3),
)
def static_error_numbers(answer, steps, room, extra, layers):
    filling = Filling(answer, layers, 2, max_len=sum(steps) + room)
    for num_new in steps:
        filling.step(1, num_new)
    error = refuse(filling, 1, room + extra)
    right = {"row": 1, "stored": sum(steps), "asked": room + extra, "max_len": filling.max_len}
    got = {name: getattr(error, name, None) for name in right}
    if error is not None and got != right:
        wrong = next(name for name in right if got[name] != right[name])
        raise Wrong(
            f"The error says {wrong}={got[wrong]}; it should be {right[wrong]}.",
            f"{filling.told}\nraised CacheFullError({', '.join(f'{name}={value}' for name, value in got.items())})",
            "stored: tokens of the row so far, each counted once. asked: tokens of this step. In this order: row, "
            "stored, asked, max_len.",
        )


@promise(
    "A refused step changes nothing",
    examples=25,
    steps=STEPS,
    room=st.integers(0, 2),
    extra=NEW,
    layers=st.integers(1, 2),
)
def static_refuses_whole(answer, steps, room, extra, layers):
    filling = Filling(answer, layers, 2, max_len=sum(steps) + room)
    filling.step(0, 1)
    for num_new in steps:
        filling.step(1, num_new)
    before = filling.snapshot()
    if refuse(filling, 1, room + extra) is None:
        raise Wrong("The step was not refused.", filling.told, "The row is full: raise CacheFullError.")
    filling.story.append("# CacheFullError")
    hint = "First see whether it fits, already in layer 0, and only then write and count."
    for old, new in zip(before, filling.snapshot(), strict=True):
        if old.shape != new.shape or not torch.equal(old.nan_to_num(-1.0), new.nan_to_num(-1.0)):
            raise Wrong("The step was refused, but part of it was written.", filling.told, hint)
    expect_counts(filling, hint)
    if room:
        filling.step(1, room)
        expect_counts(filling, hint)


@promise("Two caches know nothing of each other", examples=5, steps=STEPS)
def static_separate(answer, steps):
    first = Filling(answer, 2, 2, max_len=sum(steps) + 2)
    for num_new in steps:
        first.step(1, num_new)
    second = Filling(answer, 2, 2, max_len=sum(steps) + 2)
    second.story.insert(0, "# after another cache was filled")
    expect_counts(second, "What stands in the class body is shared by all caches. Make it in __init__.")
    second.step(1, 1)


# --- waste_breakdown --------------------------------------------------------------------------------------------------

GROUPS = ("token_states", "reserved", "internal", "external")


@st.composite
def live_requests(draw):
    """Up to three requests, each with something stored, to come and never used, and a pool that has room for them."""
    requests = []
    for _ in range(draw(st.integers(0, 3))):
        stored, to_come, unused = draw(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)))
        requests.append(LiveRequest(stored, stored + to_come, stored + to_come + unused))
    return requests, max(1, sum(request.reserved_slots for request in requests) + draw(st.integers(0, 9)))


LIVE = live_requests()


def four_counts(answer, requests, num_slots) -> tuple[str, dict[str, int]]:
    """How the call reads, and the four numbers by name."""
    listed = ", ".join(f"LiveRequest({r.num_tokens}, {r.final_tokens}, {r.reserved_slots})" for r in requests)
    call = calling(f"# LiveRequest(num_tokens, final_tokens, reserved_slots)\nwaste_breakdown([{listed}], {num_slots})")
    result = answer(list(requests), num_slots)
    shape = "Return a tuple: token_states, reserved, internal, external."
    if isinstance(result, dict | set | str):
        raise Wrong(
            f"Four numbers in order were expected; this is {type(result).__name__}.",
            f"{call} returned {result!r:.90}",
            shape,
        )
    try:
        items = list(result)
    except TypeError:
        kind = type(result).__name__
        raise Wrong(f"Four numbers were expected; this is {kind}.", f"{call} returned {result!r:.90}", shape) from None
    if len(items) != 4:
        raise Wrong(f"Four numbers were expected; these are {len(items)}.", f"{call} returned {result!r:.90}", shape)
    try:
        return call, dict(zip(GROUPS, map(operator.index, items), strict=True))
    except TypeError:
        raise Wrong(
            "Slots are counted in whole numbers.",
            f"{call} returned {tuple(items)!r:.90}",
            "Counts, not fractions of the pool.",
        ) from None


def right_counts(requests, num_slots) -> dict[str, int]:
    stored = sum(request.num_tokens for request in requests)
    final = sum(request.final_tokens for request in requests)
    owned = sum(request.reserved_slots for request in requests)
    return {
        "token_states": stored,
        "reserved": final - stored,
        "internal": owned - final,
        "external": num_slots - owned,
    }


def expect_count(answer, live, group: str, hint: str) -> None:
    requests, num_slots = live
    call, got = four_counts(answer, requests, num_slots)
    right = right_counts(requests, num_slots)
    if got[group] == right[group]:
        return
    example = f"{call} returned {tuple(got.values())}, right is {tuple(right.values())}"
    message = f"{group} is {got[group]}; right is {right[group]}."
    total = sum(got.values())
    if total != num_slots:
        message += f" The four add up to {total}, but the pool has {count(num_slots, 'slot')}."
    raise Wrong(message, example, hint)


@promise("token_states: slots that hold a token now", live=LIVE)
def counts_token_states(answer, live):
    expect_count(answer, live, "token_states", "Add up what every request has stored: num_tokens.")


@promise("reserved: slots whose token is still to come", live=LIVE)
def counts_reserved(answer, live):
    expect_count(answer, live, "reserved", "From what it holds now to what it will hold at its end.")


@promise("internal: slots a request owns and will never use", live=LIVE)
def counts_internal(answer, live):
    expect_count(answer, live, "internal", "From what it will hold at its end to what was set aside for it.")


@promise("external: slots nobody owns", live=LIVE)
def counts_external(answer, live):
    expect_count(answer, live, "external", "The pool, less everything that was set aside for somebody.")


@promise("The same question gets the same answer", examples=20, live=LIVE)
def counts_again(answer, live):
    requests, num_slots = live
    _, first = four_counts(answer, requests, num_slots)
    call, again = four_counts(answer, requests, num_slots)
    if first != again:
        raise Wrong(
            "Asked twice, it gave two answers.",
            f"{call} returned {tuple(first.values())}, then {tuple(again.values())}",
            "Does something outlive the call? Start counting at 0 inside the function.",
        )


@promise("What it is given stays as it was", examples=20, live=LIVE)
def requests_stay(answer, live):
    requests, num_slots = live
    given = list(requests)
    calling(f"waste_breakdown({requests}, {num_slots})")
    answer(given, num_slots)
    if given != requests:
        raise Wrong(
            "The list of requests is not what it was before the call.",
            f"{count(len(requests), 'request')} before: {requests}\nafter the call: {given}",
            "The list belongs to the caller. `pop`, `clear` and `sort` change it: read it in a loop instead.",
        )


EXERCISES = (
    Exercise(
        id="kv_bytes_per_token",
        title="What a token costs",
        kind="function",
        reference="pagedlab.cache.accounting:kv_bytes_per_token",
        promises=(bytes_plain, bytes_grouped, bytes_free_head_dim),
        hints=(
            "Count what the cache keeps for one token: first in one head, then in all heads, then in all layers.",
            "One head of one layer keeps a key and a value: 2 * head_dim numbers. Which heads keep something?",
            "A product of five: 2, the layers, the kv heads, head_dim, bytes_per_element.",
        ),
    ),
    Exercise(
        id="static_cache",
        title="A cache that reserves its memory",
        kind="class",
        reference="pagedlab.cache.static:StaticCache",
        promises=(
            cache_reserves,
            static_order,
            static_layers,
            static_rows,
            static_counts,
            static_in_place,
            static_full,
            static_error_numbers,
            static_refuses_whole,
            static_separate,
        ),
        hints=(
            "Two things to keep: the memory, and how many tokens each row holds. Where does the next token go?",
            "Writing: self.keys[layer][row, :, start:end] = keys. What are start and end? And what comes back?",
            "A step passes every layer. Count per layer, or count the row once, when the last layer has its tokens: "
            "until then, start must stay the same.",
            "start = self.stored[layer][row]; end = start + keys.shape[1]\n"
            "if end > self.max_len: raise CacheFullError(row, start, keys.shape[1], self.max_len)\n"
            "then write both, set self.stored[layer][row] = end, and return both, cut off at end.",
        ),
    ),
    Exercise(
        id="waste_breakdown",
        title="Where the slots go",
        kind="function",
        reference="pagedlab.cache.accounting:waste_breakdown",
        promises=(counts_token_states, counts_reserved, counts_internal, counts_external, counts_again, requests_stay),
        hints=(
            "Draw one request as a row of boxes: num_tokens of them full, then up to final_tokens, then up to "
            "reserved_slots. That is three of the four groups.",
            "Each group is a difference of two neighbours in: 0, num_tokens, final_tokens, reserved_slots, num_slots.",
            "Add up num_tokens, final_tokens and reserved_slots over all requests. Then: stored, final - stored, "
            "owned - final, num_slots - owned.",
        ),
    ),
)
