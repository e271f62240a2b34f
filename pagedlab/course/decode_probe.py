"""Launches made to catch mistakes in a kernel for paged decode, and what such a mistake has read instead.

The pool is that of `paged_inputs.py` (blocks in random order, NaN in every slot without a token, block 0 nobody's), in
float16. Around it: tensors that are slices of wider ones, so that strides have to be used; NaN in the output, so that a
row nobody writes shows; and the strict interpreter, which knows whose memory a pointer may touch.

When a result is wrong, the same launch is made again with other values in the pool: 1 in a place of its own for each
slot. What comes back then are the weights that every slot got (see `attention_probe.py`).
"""

import contextlib
import math
import warnings
from collections import Counter

import torch

from pagedlab.course.attention_probe import explain_places, explain_weights
from pagedlab.course.kernel_probe import LAUNCH_SECONDS, at_most, telling
from pagedlab.course.paged_inputs import NAMES, PagedInputs
from pagedlab.course.promise import Wrong, calling
from pagedlab.course.tensors import randn, shown
from pagedlab.course.words import error_text
from pagedlab.kernels.launch import cache_strides
from pagedlab.kernels.ops import paged_decode

CLOSE = 3e-3  # three times what rounding weights and results to float16 may come to, for values up to 2
UNWRITTEN = 0x7E55  # the bits of a float16 NaN that no arithmetic makes

tally = {"tried": 0, "right": 0, "explained": 0}  # launches, in a process that tries one answer


class DecodeInputs:
    """One launch: its tensors, its numbers, and the names that a kernel knows them by.

    lens .. leftovers: the pool, as in `PagedInputs`. group_size: query heads a kv head. tile: tokens a step.
    head_grid: one program a query head (steps 1 and 2), not one a kv head.
    sliced: which of "q", "out" and "block_tables" are slices of wider tensors.
    layout: how the caches lie: "apart", "interleaved" (a block's values behind its keys, in one tensor), "slots first"
    ([num_blocks, block_size, num_kv_heads, head_dim]), or "padded values" (8 unused numbers behind every value).
    first_block: is added to all block ids. The caches are then the end of a much larger pool (see `_far_away`).
    scale: None for 1 / sqrt(head_dim). unused: what slots without a token hold.
    """

    def __init__(
        self,
        lens,
        block_size=16,
        num_kv_heads=1,
        group_size=1,
        head_dim=16,
        tile=16,
        head_grid=False,
        sliced=(),
        layout="apart",
        first_block=0,
        scale=None,
        unused=math.nan,
        seed=0,
        **pool,
    ):
        self.pages = PagedInputs(lens, block_size, num_kv_heads, head_dim, seed, **pool)
        self.group_size, self.tile, self.head_grid = group_size, tile, head_grid
        self.sliced, self.layout, self.first_block = sliced, layout, first_block
        self.num_heads = num_kv_heads * group_size
        self.q = (1.5 * randn(seed + 1000, len(self.pages.lens), self.num_heads, head_dim)).half()
        self.keys, self.values = (
            cache.half().nan_to_num(unused) for cache in (self.pages.key_cache, self.pages.value_cache)
        )
        self.unused = unused
        self.scale = 1 / math.sqrt(head_dim) if scale is None else scale
        self.story = ""  # what else a reader should know
        if scale is not None:
            self.story = f"scale is {scale:g}, and 1 / sqrt(HEAD_DIM) would be {1 / math.sqrt(head_dim):.4g}"
        if not math.isnan(unused):
            self.story = f"slots that hold no token hold {unused:g}"

    @property
    def grid(self) -> tuple[int, int]:
        return len(self.pages.lens), self.num_heads if self.head_grid else self.pages.num_kv_heads

    def arguments(self, keys=None, values=None) -> dict[str, object]:
        """Everything a kernel may name; new tensors on every call. keys, values: what the caches hold instead."""
        heads = self.num_heads
        q = _slice(self.q, wider=2 * self.pages.num_kv_heads) if "q" in self.sliced else self.q.clone()
        unwritten = torch.full(self.q.shape, UNWRITTEN, dtype=torch.int16).view(torch.float16)
        out = _slice(unwritten, wider=heads) if "out" in self.sliced else unwritten
        key_cache, value_cache = _lay_out(
            self.keys if keys is None else keys, self.values if values is None else values, self.layout
        )
        tables, seq_lens = self.pages.block_tables.clone(), self.pages.seq_lens.clone()
        if "block_tables" in self.sliced:
            tables = torch.cat([tables, torch.full_like(tables, 10**6)], dim=1)[:, : tables.shape[1]]
        if self.first_block:
            tables[tables >= 0] += self.first_block
            key_cache, value_cache = (_far_away(cache, self.first_block) for cache in (key_cache, value_cache))
        head_dim, group_size = self.pages.head_dim, self.group_size
        return {
            "out": out,
            "q": q,
            "key_cache": key_cache,
            "value_cache": value_cache,
            "block_tables": tables,
            "seq_lens": seq_lens,
            "scale": self.scale,
            "q_seq_stride": q.stride(0),
            "q_head_stride": q.stride(1),
            "out_seq_stride": out.stride(0),
            "out_head_stride": out.stride(1),
            "table_stride": tables.stride(0),
            **cache_strides(key_cache, value_cache),
            "GROUP_SIZE": group_size,
            "BLOCK_SIZE": self.pages.block_size,
            "HEAD_DIM": head_dim,
            "ROWS": max(16, power_of_two(group_size)),
            "TILE": self.tile,
            "TILE_DIM": max(16, power_of_two(head_dim)),
        }

    def run(self, answer, order: str = "in order", keys=None, values=None, strictly: bool = True) -> torch.Tensor:
        """Launch in the interpreter. Returns out `[num_seqs, num_heads, head_dim]`."""
        from pagedlab.gpu.strict import strict
        from pagedlab.kernels.launch import launch

        arguments = self.arguments(keys, values)
        with warnings.catch_warnings(), strict(order=order) if strictly else contextlib.nullcontext():
            warnings.simplefilter("ignore")  # numpy's, of NaN
            with at_most(LAUNCH_SECONDS):
                launch(answer, self.grid, arguments)
        return arguments["out"]

    def right(self, scale=None, values=None) -> torch.Tensor:
        """What should come out, in float32."""
        values = self.values if values is None else values
        tensors = (self.q, self.keys, values)
        scale = self.scale if scale is None else scale
        q, keys, values = (tensor.float() for tensor in tensors)
        return paged_decode(q, keys, values, self.pages.block_tables, self.pages.seq_lens, scale, backend="torch")

    def told(self) -> str:
        """The launch in words, as an example in a report."""
        numbers = {"BLOCK_SIZE": self.pages.block_size, "HEAD_DIM": self.pages.head_dim, "TILE": self.tile}
        if not self.head_grid:
            numbers = {"GROUP_SIZE": self.group_size, **numbers, "ROWS": max(16, power_of_two(self.group_size))}
        elif self.group_size > 1:
            numbers = {"GROUP_SIZE": self.group_size, **numbers}
        numbers["TILE_DIM"] = max(16, power_of_two(self.pages.head_dim))
        listed = ", ".join(f"{name}={number}" for name, number in numbers.items())
        lines = [self.pages.told()]
        if self.first_block:
            lines.append(f"all block ids are {self.first_block:,} larger: the end of a large pool")
        lines += [f"{name} is a slice of a wider tensor" for name in self.sliced]
        lines += {
            "apart": [],
            "interleaved": ["keys and values are slices of one tensor [num_blocks, 2, kv_heads, slots, head_dim]"],
            "slots first": ["the caches lie in memory as [num_blocks, slots, kv_heads, head_dim]"],
            "padded values": ["behind every value lie 8 unused numbers: values and keys differ in their strides"],
        }[self.layout]
        if self.layout != "apart":
            caches = zip(("key", "value"), _lay_out(self.keys, self.values, self.layout), strict=True)
            lines += [f"{name}_block, _head and _slot_stride: {cache.stride()[:3]}" for name, cache in caches]
        lines += [self.story] if self.story else []
        return "\n".join([*lines, f"kernel[{self.grid}](..., {listed})"])


def power_of_two(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (number - 1).bit_length()


def _slice(tensor: torch.Tensor, wider: int) -> torch.Tensor:
    """The same numbers as the first of more heads, as the queries of a fused qkv are, each with 8 more behind it."""
    num_seqs, num_heads, head_dim = tensor.shape
    whole = torch.full((num_seqs, num_heads + wider, head_dim + 8), math.nan, dtype=tensor.dtype)
    return whole[:, :num_heads, :head_dim].copy_(tensor)


def _lay_out(keys: torch.Tensor, values: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The same two caches, lying differently in memory."""
    if layout == "interleaved":
        return torch.stack([keys, values], dim=1).unbind(1)
    if layout == "slots first":
        return tuple(cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (keys, values))
    if layout == "padded values":
        return keys.clone(), torch.cat([values, values[..., :8]], dim=-1)[..., : values.shape[-1]]
    return keys.clone(), values.clone()


def _far_away(cache: torch.Tensor, first_block: int) -> torch.Tensor:
    """A cache with `first_block` more blocks in front. Only the end of it is memory, and only that may be touched."""
    import ctypes

    shape, (block, head, slot, _) = cache.shape, cache.stride()
    assert (head, slot) == (shape[2] * shape[3], shape[3]), "contiguous inside a block"
    start = cache.data_ptr() - first_block * block * cache.element_size()
    whole = (ctypes.c_uint8 * ((first_block + shape[0]) * block * cache.element_size())).from_address(start)
    far = torch.frombuffer(whole, dtype=cache.dtype).view(-1, *shape[1:])
    far.memory = cache  # kept as long as the view
    return far


# --- telling ----------------------------------------------------------------------------------------------------------


def expect_decode(
    answer, inputs: DecodeInputs, hint: str, order: str = "in order", close: float = CLOSE, explained: bool = True
) -> None:
    """Raise `Wrong`, saying why if that can be found out, unless the kernel attends rightly.

    explained: whether to find it out by more launches; not in a pool of many blocks. It is done once for an answer: a
    report tells the first broken promise, and names the others.
    """
    tally["tried"] += 1
    call = calling(inputs.told() + ("\n# the programs run in reversed order" if order == "reversed" else ""))
    with telling(call, lambda error: _told_error(error, call, hint)):
        got = inputs.run(answer, order)
    want = inputs.right()
    good = torch.isclose(got.float(), want, rtol=0, atol=close)
    if good.all():
        tally["right"] += 1
        return
    sequence, head, dim = good.logical_not().nonzero()[0].tolist()
    place = f"{NAMES[sequence]}, head {head}"
    example = f"{call}\nout[{sequence}, {head}, {dim}] is {shown(got[sequence, head, dim])}, "
    example += f"right is {shown(want[sequence, head, dim])}"
    unwritten = (got.contiguous().view(torch.int16) == UNWRITTEN).all(-1)
    if unwritten.any():
        sequence, head = unwritten.nonzero()[0].tolist()
        if not unwritten.all():
            example = f"{call}\nout[{sequence}, {head}] still holds what was in that memory before"
        raise Wrong(f"{NAMES[sequence]}, head {head}: its row of out was never written.", example, hint)
    if not got[sequence, head].any() and want[sequence, head].any():
        raise Wrong(f"{place}: the result is 0, as if no token had any weight.", example, hint)
    if order != "in order" and _right(answer, inputs, want, close):
        raise Wrong(
            f"{place}: the result depends on the order in which programs run. In order it is right.",
            example,
            "Two programs write the same row of out, and the last one wins. A GPU has no order: which rows are your "
            "program's own, and which only fill up the tile?",
        )
    _accuse_scale(got, inputs, example, close)
    if explained and not tally["explained"]:
        tally["explained"] = 1
        _explain(answer, inputs, example)
        _accuse_nan(answer, inputs, want, example, close)
    if got[sequence, head].isnan().any():
        raise Wrong(f"{place}: the result is NaN, not a number.", example, hint)
    raise Wrong(f"{place}: the numbers are wrong.", example, hint)


def _right(answer, inputs: DecodeInputs, want: torch.Tensor, close: float, **changed) -> bool:
    try:
        return bool(torch.isclose(inputs.run(answer, **changed).float(), want, rtol=0, atol=close).all())
    except Exception:
        return False


OUTSIDE = {
    "block_tables": "The last tile reaches behind the last token, where the table may have no entry. Mask that load by "
    "position < seq_len, and step from row to row by table_stride.",
    "seq_lens": "There is one length a sequence: seq_lens + seq.",
    "q": "q may be a slice of a wider tensor: go by q_seq_stride and q_head_stride. And mask what only fills up a "
    "tile: numbers from HEAD_DIM on, rows that are no head of the group.",
    "out": "out has its own strides, out_seq_stride and out_head_stride. And mask what only fills up a tile: numbers "
    "from HEAD_DIM on, rows that are no head of the group.",
    "key_cache": "A key lies at block * key_block_stride + kv_head * key_head_stride + slot * key_slot_stride + dim, "
    "for positions below seq_len and dims below HEAD_DIM. Nothing else may be touched, and no stride may be guessed.",
    "value_cache": "A value lies at block * value_block_stride + kv_head * value_head_stride + slot * "
    "value_slot_stride + dim, for positions below seq_len and dims below HEAD_DIM. Nothing else may be touched.",
}


def _told_error(error, call: str, hint: str) -> Wrong:
    """An error of the strict interpreter, with what it has to do with this kernel."""
    from pagedlab.gpu.strict import OutOfBounds

    first, said = error.original, str(error.original)
    message = f"The kernel raised {error_text(first)}"
    if isinstance(first, OutOfBounds):
        message, hint = f"The kernel {said}.", OUTSIDE.get(first.argument, hint)
    elif "overflow" in said:
        message = f"A 32-bit number overflowed ({said})."
        hint = (
            "Block ids and strides are 32-bit numbers, and so is their product, although a large pool has more "
            "elements than that. `.to(tl.int64)` on the block ids, before anything is multiplied."
        )
    elif "power of 2" in said:
        message = f"A tile's side must be a power of two ({said})."
        hint = (
            "GROUP_SIZE, BLOCK_SIZE and HEAD_DIM may be any number. ROWS, TILE and TILE_DIM are powers of two, large "
            "enough: count with those, and mask the rest."
        )
    elif "Input shapes should have" in said:
        message = f"It would not compile for a GPU: {said}"
        hint = "tl.dot sums over at least 16 numbers. BLOCK_SIZE may be less, TILE and TILE_DIM never are."
    elif "same dtype" in said:
        hint = (
            "tl.dot wants one type on both sides. Queries, keys and values are float16, but what tl.exp gives is "
            "float32: `.to(values.dtype)`."
        )
    elif "incompatible dimensions" in said:
        message = f"Two tiles of different shapes meet ({said})."
        hint = (
            "Which side of each is TILE, TILE_DIM or ROWS? One number a row meets a matrix as [:, None], one a column "
            "as [None, :]. tl.sum and tl.max take away the side that axis names."
        )
    elif "equal reduction dimensions" in said:
        message = f"tl.dot can't multiply these: {said}."
        hint = "It sums along the rows of the first and down the columns of the second: [.., N] by [N, ..]."
    elif "cannot be block type if pointer" in said:
        message = f"A tile goes to one pointer ({said})."
        hint = "Each number needs its own place: a pointer plus a tile of offsets, + dims at the end, as in the load."
    elif "is not iterable" in said or "not subscriptable" in said:
        message = f"A pointer has no [index] ({said})."
        hint = "tl.load(seq_lens + seq) reads entry seq: a pointer plus so many elements."
    where = f"line {error.line.number}: {error.line.text}" if error.line else ""
    return Wrong(message, f"{call}\nraised in program {tuple(error.program[:2])}", hint, where=where)


def _explain(answer, inputs: DecodeInputs, call: str) -> None:
    """Raise `Wrong` for the first head whose weights are wrong. Returns when they are right or can't be had."""
    clean = inputs.keys.nan_to_num(0, posinf=0)
    try:
        got = _weights(inputs, lambda values: inputs.run(answer, keys=clean, values=values))
    except Exception:
        return
    right = _weights(inputs, lambda values: inputs.right(values=values))
    wrong = ~torch.isclose(got, right, rtol=0.01, atol=1e-4).flatten(2).all(-1)
    if not wrong.any():
        return
    sequence, head = wrong.nonzero()[0].tolist()
    weights, wanted = got[sequence, head], right[sequence, head]
    if weights.isnan().any():
        return
    _explain_tiles(answer, weights, inputs, sequence, head, call)
    explain_places(weights, wanted, inputs.pages, sequence, head, inputs.num_heads, call)
    _explain_keys(answer, inputs, sequence, head, call)
    explain_weights(weights, wanted, inputs.pages, sequence, head, inputs.num_heads, call, inputs.tile)


def _explain_tiles(answer, weights, inputs: DecodeInputs, sequence: int, head: int, call: str) -> None:
    """Raise `Wrong` if only the last of several tiles has any weight."""
    num_tokens, kv_head = inputs.pages.lens[sequence], head // inputs.group_size
    last = (num_tokens - 1) // inputs.tile * inputs.tile
    found = [float(weights[(kv_head, *inputs.pages.where(sequence, position))]) for position in range(num_tokens)]
    if last > 0 and not any(found[:last]) and all(found[last:]):
        _explain_keys(answer, inputs, sequence, head, call)  # they may never have been read
        raise Wrong(
            f"{NAMES[sequence]}, head {head}: only its last tile counts, tokens {last} to {num_tokens - 1}. What the "
            "tiles before it added up is gone.",
            call,
            "What carries over from tile to tile? running_sum and acc are multiplied by exp(running_max - new_max): "
            "that is 0 as long as running_max is -inf.",
        )


def _explain_keys(answer, inputs: DecodeInputs, sequence: int, head: int, call: str) -> None:
    """Raise `Wrong` if the key of a token was never loaded by the program whose head it is."""
    from pagedlab.gpu.trace import trace
    from pagedlab.kernels.launch import select

    kv_head, pages = head // inputs.group_size, inputs.pages
    arguments = inputs.arguments()
    program = (sequence, head if inputs.head_grid else kv_head)
    traced = trace(answer, inputs.grid, select(answer, arguments), programs=[program], watch=())
    loaded = Counter()
    for access in traced.program(*program).events:
        if access.tensor == "key_cache":
            loaded.update(access.elements.tolist())
    steps = [arguments[f"key_{name}_stride"] for name in ("block", "head", "slot")]

    def times(position: int) -> int:
        block, slot = pages.where(sequence, position)
        return loaded[block * steps[0] + kv_head * steps[1] + slot * steps[2]]

    for position in range(pages.lens[sequence]):
        if not times(position):
            raise Wrong(
                f"{NAMES[sequence]}, head {head}: the key of token {position} was never read. It lies in "
                f"{pages.told_where(sequence, position)}, kv head {kv_head}.",
                f"{call}\nthe keys' strides: block {steps[0]}, kv head {steps[1]}, slot {steps[2]}",
                OUTSIDE["key_cache"],
                pages.picture(),
            )
    often = [position for position in range(pages.lens[sequence]) if times(position) > times(0)]
    if often:
        raise Wrong(
            f"{NAMES[sequence]}, head {head}: the key of token {often[-1]} was read {times(often[-1])} times, that of "
            f"token 0 {times(0)} time{'s' if times(0) > 1 else ''}.",
            call,
            "A step takes TILE tokens, so the next begins TILE tokens further: range(0, seq_len, TILE).",
        )


def _accuse_scale(got, inputs: DecodeInputs, call: str, close: float) -> None:
    """What the usual slips with the scale give."""
    scale, usual = inputs.scale, 1 / math.sqrt(inputs.pages.head_dim)
    suspects = (
        *(
            [(usual, "The scores were scaled by 1 / sqrt(HEAD_DIM), not by `scale`.", "Some models scale otherwise.")]
            if scale != usual
            else []
        ),
        (1.0, "The scores were not scaled.", "Multiply them by `scale`."),
        (scale * scale, "The scores were scaled twice.", "`scale` is 1 / sqrt(head_dim) already."),
        (1 / scale, "The scores were divided by `scale`.", "Multiply: it is 1 / sqrt(head_dim)."),
        (
            scale * math.log(2),
            "The weights were taken as powers of 2.",
            "exp2 needs scores multiplied by log2(e), about 1.4427. Or use exp.",
        ),
        (
            scale / math.log(2),
            "The scores were multiplied by log2(e), but the weights taken with exp.",
            "exp2 with log2(e), or exp without.",
        ),
    )
    for other, message, hint in suspects:
        if torch.isclose(inputs.right(other), got.float(), rtol=0, atol=close).all():
            raise Wrong(message, call, hint)


def _accuse_nan(answer, inputs: DecodeInputs, want, call: str, close: float) -> None:
    """The weights are right, so something else that is multiplied by them isn't: the NaN of slots nobody wrote."""
    keys, values = inputs.keys.nan_to_num(0, posinf=0), inputs.values.nan_to_num(0, posinf=0)
    what = f"{inputs.unused:g}".replace("nan", "NaN")
    clean = f"\nWith zeros instead of {what} in those slots of {{}} the result is right."
    if _right(answer, inputs, want, close, values=values):
        raise Wrong(
            f"NaN came in through the values: slots that hold no token have a weight of 0, and 0 * {what} is NaN.",
            call + clean.format("value_cache"),
            "Mask the load of the values as well, with other=0.0. Masking the scores is not enough.",
        )
    if _right(answer, inputs, want, close, keys=keys):
        raise Wrong(
            "NaN came in through the keys: what was added to the scores of unused slots doesn't take NaN away.",
            call + clean.format("key_cache"),
            "NaN + (-inf) is NaN. tl.where replaces; a sum doesn't. Or mask the load of the keys, with other=0.0.",
        )
    if _right(answer, inputs, want, close, keys=keys, values=values):
        raise Wrong(
            "NaN came in from slots that hold no token, through keys and values both.",
            call + clean.format("both caches"),
            "Mask both loads by position < seq_len, with other=0.0, and the scores by tl.where.",
        )
    if _right(answer, inputs, want, close, strictly=False):
        raise Wrong(
            "A masked load without `other` was used: on a GPU, the lanes that are off hold anything.",
            f"{call}\nHere they hold NaN. If they held 0, the result would be right.",
            "tl.load(..., mask=..., other=0.0), in every load whose masked lanes are used later.",
        )
    line = _first_nan(answer, inputs)
    if line is not None:
        raise Wrong(
            f"A NaN was made of numbers, first in {line}.",
            call,
            "-inf - (-inf), 0 * inf and 0 / 0 are NaN. Which of them can happen there?",
        )


def _first_nan(answer, inputs: DecodeInputs):
    """The line where a NaN was first made of numbers, if one was."""
    from pagedlab.gpu.strict import strict

    with strict() as strictness:
        inputs.run(answer)
    return strictness.first_nan


def _weights(inputs: DecodeInputs, run) -> torch.Tensor:
    """The weight of every slot in every result: `[num_seqs, num_heads, num_kv_heads, num_blocks, block_size]`.

    In as many runs as it takes, for a value has place for `head_dim` marks.
    """
    num_blocks, num_kv_heads, block_size, head_dim = inputs.keys.shape
    slots = num_kv_heads * num_blocks * block_size
    parts = []
    for first in range(0, slots, head_dim):
        marks = torch.zeros(slots, head_dim, dtype=torch.float16)
        for dim in range(min(head_dim, slots - first)):
            marks[first + dim, dim] = 1
        values = marks.reshape(num_kv_heads, num_blocks, block_size, head_dim).transpose(0, 1).contiguous()
        parts.append(run(values).float())
    every = torch.cat(parts, dim=-1)[..., :slots]
    return every.reshape(*every.shape[:2], num_kv_heads, num_blocks, block_size)
