"""The five operations on paged keys and values: one signature each, checked here, done by a backend.

Shapes, throughout:

    key_cache, value_cache  [num_blocks, num_kv_heads, block_size, head_dim]   one layer's pool, any strides
    keys, values            [num_tokens, num_kv_heads, head_dim]               new tokens
    q                       [.., num_heads, head_dim]                          head h reads kv head h // group_size
    block_tables            [num_seqs, max_blocks]                             -1 or anything else behind the end
    seq_lens                [num_seqs]                                         tokens stored, the query's own included
    slot_mapping            [num_tokens]                                       block * block_size + offset; -1 skips

Tables, lengths and slots are integer tensors of any width or lists. Slots that hold no token of the sequence may hold
anything, NaN too. Types: float32, bfloat16, float16 (all sums in float32), and float64.

Backend "triton" takes less: no float64, and caches in which the numbers of a head lie side by side.

Wrong shapes and numbers are a ValueError, a block or slot outside the pool an IndexError, a wrong type a TypeError.
Checks come first: nothing is written by a call that fails.
"""

import functools
import importlib
import importlib.util
import math

import torch

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import whole_number

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

BACKENDS = {
    "torch": "pagedlab.kernels.reference",
    "cpu": "pagedlab.kernels.cpu",
    "triton": "pagedlab.kernels.triton_backend",
}
"""Name to module. A module has one function an operation; it is imported when first used."""

AUTO: str | None = None
"""What "auto" means. None: "triton" on a GPU; on the CPU "cpu", compiled loops, where numba works, and else "torch"."""


def kv_write(keys, values, key_cache, value_cache, slot_mapping, backend: str = "auto") -> None:
    """Put each new token's key and value into its slot. Two tokens must not have the same slot."""
    _check_caches(key_cache, value_cache)
    num_blocks, num_kv_heads, block_size, head_dim = key_cache.shape
    for name, new, cache in (("keys", keys, key_cache), ("values", values, value_cache)):
        if new.dim() != 3 or new.shape[1:] != (num_kv_heads, head_dim):
            raise ValueError(f"{name} are {_shape(new)}; this cache takes [num_tokens, {num_kv_heads}, {head_dim}]")
        if new.dtype != cache.dtype:
            raise TypeError(f"{name} are {new.dtype}, their cache is {cache.dtype}")
        _check_device(name, new, cache)
    slots = _integers("slot_mapping", slot_mapping, dims=1, device=key_cache.device)
    if not len(keys) == len(values) == len(slots):
        raise ValueError(
            f"{len(keys)} keys, {len(values)} values and {len(slots)} slots: every token needs one of each"
        )
    if len(slots) == 0:
        return
    low, high = (int(end) for end in slots.aminmax())
    if low < -1 or high >= num_blocks * block_size:
        wrong = low if low < -1 else high
        token = int((slots == wrong).nonzero()[0])
        raise IndexError(
            f"token {token} has slot {wrong}: {num_blocks} blocks of {block_size} have slots 0 to "
            f"{num_blocks * block_size - 1} (and -1 skips a token). Nothing was written."
        )
    if len(slots) > 1:
        _check_slots_differ(slots)
    resolve(backend, key_cache).kv_write(keys.detach(), values.detach(), key_cache, value_cache, slots)


def gather_kv(key_cache, value_cache, block_table, num_tokens: int, backend: str = "auto"):
    """The first `num_tokens` keys and values of one sequence, `[num_kv_heads, num_tokens, head_dim]` each.

    block_table: `[max_blocks]`. A copy of the whole sequence: an oracle for tests, not a way to attend.
    """
    _check_caches(key_cache, value_cache)
    table = _integers("block_table", block_table, dims=1, device=key_cache.device)
    lens = _integers("num_tokens", [num_tokens], dims=1, device=key_cache.device)
    _check_tables(table[None], lens, key_cache)
    return resolve(backend, key_cache).gather_kv(key_cache, value_cache, table, int(lens[0]))


def copy_blocks(key_cache, value_cache, pairs, backend: str = "auto") -> None:
    """Copy whole blocks: `pairs` are (source, destination).

    A block may be copied to several others, but no destination may be named twice or be a source: the result would
    depend on the order, and a GPU has none.
    """
    _check_caches(key_cache, value_cache)
    pairs = [tuple(whole_number("a block to copy", block) for block in (source, copy)) for source, copy in pairs]
    if not pairs:
        return
    num_blocks = key_cache.shape[0]
    for block in (block for pair in pairs for block in pair):
        if not 0 <= block < num_blocks:
            raise IndexError(
                f"there is no block {block}: the cache has blocks 0 to {num_blocks - 1}. Nothing was copied."
            )
    destinations = [destination for _, destination in pairs]
    if len(set(destinations)) < len(destinations):
        twice = next(block for block in destinations if destinations.count(block) > 1)
        raise ValueError(f"block {twice} is a destination twice. Nothing was copied.")
    both = set(destinations) & {source for source, _ in pairs}
    if both:
        raise ValueError(f"block {min(both)} is both a source and a destination. Nothing was copied.")
    resolve(backend, key_cache).copy_blocks(key_cache, value_cache, torch.tensor(pairs, device=key_cache.device))


def paged_decode(q, key_cache, value_cache, block_tables, seq_lens, scale: float | None = None, backend: str = "auto"):
    """One new token for each sequence of a batch looks at everything its sequence has stored.

    q: `[num_seqs, num_heads, head_dim]`. `scale` defaults to `1 / sqrt(head_dim)`. Returns q's shape and type.
    A sequence of length 0 gets zeros.
    """
    tables, lens = _check_batch(q, key_cache, value_cache, block_tables, seq_lens)
    if len(q) != len(lens):
        raise ValueError(f"{len(q)} queries for {len(lens)} sequences: decode takes one each")
    return resolve(backend, q).paged_decode(q, key_cache, value_cache, tables, lens, _scale(scale, q))


def paged_prefill(
    q,
    key_cache,
    value_cache,
    block_tables,
    seq_lens,
    query_start_loc,
    scale: float | None = None,
    backend: str = "auto",
):
    """Several new tokens for each sequence of a batch, causal: a whole prompt, or a chunk of one.

    q: `[total_tokens, num_heads, head_dim]`, the sequences' queries one after the other; those of sequence i are rows
    `query_start_loc[i]` to `query_start_loc[i + 1] - 1`. They belong to the LAST of its `seq_lens[i]` positions, and
    their own keys and values must be in the cache already. Returns q's shape and type.
    """
    tables, lens = _check_batch(q, key_cache, value_cache, block_tables, seq_lens)
    starts = _integers("query_start_loc", query_start_loc, dims=1, device=q.device)
    if len(starts) != len(lens) + 1:
        raise ValueError(f"query_start_loc has {len(starts)} entries; {len(lens)} sequences need {len(lens) + 1}")
    num_new = starts.diff()
    if starts[0] != 0 or starts[-1] != len(q) or (num_new < 0).any():
        raise ValueError(f"query_start_loc must rise from 0 to {len(q)}, the number of queries: {starts.tolist()}")
    if (num_new > lens).any():
        index = int((num_new > lens).nonzero()[0])
        raise ValueError(
            f"sequence {index} has {int(num_new[index])} queries but only {int(lens[index])} positions: "
            f"a query's own key and value must be stored first"
        )
    return resolve(backend, q).paged_prefill(q, key_cache, value_cache, tables, lens, starts, _scale(scale, q))


def resolve(name: str = "auto", tensor: torch.Tensor | None = None):
    """The module that does the work for a backend. Its functions check nothing: for a caller who has checked already.

    They take the arguments of the functions here, in order, tables and lengths as int64 tensors, `scale` given.
    tensor: one of those to work on. What "auto" takes depends on where they are.
    """
    if name == "auto":
        name = AUTO or _best_for(tensor)
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r} is not one of 'auto', {', '.join(map(repr, BACKENDS))}")
    return importlib.import_module(BACKENDS[name])


def _best_for(tensor: torch.Tensor | None) -> str:
    if tensor is not None and tensor.is_cuda:
        return "triton" if tensor.dtype != torch.float64 and _triton_compiles() else "torch"
    return "cpu" if _compiled_loops_work() else "torch"


@functools.cache
def _triton_compiles() -> bool:
    from pagedlab.gpu import mode

    return importlib.util.find_spec("triton") is not None and not mode.is_interpreting()


@functools.cache
def _compiled_loops_work() -> bool:
    """Numba may be missing, or not know this Python or this processor. Then torch does everything."""
    try:
        importlib.import_module(BACKENDS["cpu"]).try_out()
    except Exception:
        return False
    return True


def _check_batch(q, key_cache, value_cache, block_tables, seq_lens):
    """What decode and prefill have in common. Returns tables and lengths as int64 tensors."""
    _check_caches(key_cache, value_cache)
    num_kv_heads, head_dim = key_cache.shape[1], key_cache.shape[3]
    if q.dim() != 3 or q.shape[2] != head_dim:
        raise ValueError(f"q is {_shape(q)}; this cache takes [.., num_heads, {head_dim}]")
    if q.shape[1] % num_kv_heads:
        raise ValueError(f"{q.shape[1]} query heads cannot share {num_kv_heads} kv heads equally")
    if q.dtype != key_cache.dtype:
        raise TypeError(f"q is {q.dtype}, the cache is {key_cache.dtype}")
    _check_device("q", q, key_cache)
    tables = _integers("block_tables", block_tables, dims=2, device=q.device)
    lens = _integers("seq_lens", seq_lens, dims=1, device=q.device)
    if len(tables) != len(lens):
        raise ValueError(f"{len(tables)} block tables for {len(lens)} sequence lengths")
    _check_tables(tables, lens, key_cache)
    return tables, lens


def _check_caches(key_cache, value_cache) -> None:
    if key_cache.dim() != 4 or key_cache.shape != value_cache.shape or 0 in key_cache.shape:
        raise ValueError(
            f"key_cache is {_shape(key_cache)}, value_cache is {_shape(value_cache)}; both must be "
            f"[num_blocks, num_kv_heads, block_size, head_dim], none of them 0"
        )
    if key_cache.dtype != value_cache.dtype or key_cache.dtype not in TYPES:
        raise TypeError(
            f"key_cache is {key_cache.dtype}, value_cache is {value_cache.dtype}: use one of "
            f"{', '.join(map(str, TYPES))} for both"
        )
    _check_device("value_cache", value_cache, key_cache)


def _check_device(name, tensor, cache) -> None:
    if tensor.device != cache.device:
        raise ValueError(f"{name} is on {tensor.device}, the cache on {cache.device}: both must be on one device")


def _check_tables(tables, lens, key_cache) -> None:
    """Every entry that a length reaches must be a block of the pool. Those behind it are not looked at."""
    num_blocks, _, block_size, _ = key_cache.shape
    if len(lens) == 0:
        return
    if (lens < 0).any():
        index = int((lens < 0).nonzero()[0])
        raise ValueError(f"sequence {index} has {int(lens[index])} tokens; a length is 0 or more")
    if int(lens.max()) > tables.shape[1] * block_size:
        index = int(lens.argmax())
        raise ValueError(
            f"sequence {index} has {int(lens[index])} tokens, which is {blocks_needed(int(lens[index]), block_size)} "
            f"blocks of {block_size}, but its table has {tables.shape[1]}"
        )
    needed = (lens + block_size - 1) // block_size
    reached = torch.arange(tables.shape[1], device=tables.device) < needed[:, None]
    wrong = reached & ((tables < 0) | (tables >= num_blocks))
    if wrong.any():
        index, entry = wrong.nonzero()[0].tolist()
        raise IndexError(
            f"sequence {index}: entry {entry} of its table is {int(tables[index, entry])}, but the cache has blocks 0 "
            f"to {num_blocks - 1}. Its {int(lens[index])} tokens need entries 0 to {int(needed[index]) - 1}."
        )


def _check_slots_differ(slots) -> None:
    used = slots[slots >= 0]
    if len(used.unique()) < len(used):
        tokens_of: dict[int, int] = {}
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0 and slot in tokens_of:
                raise ValueError(f"tokens {tokens_of[slot]} and {token} both have slot {slot}. Nothing was written.")
            tokens_of[slot] = token


def _integers(name: str, numbers, dims: int, device) -> torch.Tensor:
    """int64: a block number times a stride soon passes 2**31."""
    try:
        numbers = torch.as_tensor(numbers, device=device)
    except (RuntimeError, OverflowError, ValueError) as error:  # more than 64 bits, say
        raise ValueError(f"{name} cannot be read as whole numbers: {error}") from None
    if numbers.numel() == 0 and dims == 2 and numbers.dim() == 1:  # the tables of no sequences, as a list
        numbers = numbers.reshape(0, 0)
    if numbers.numel() and (numbers.dtype.is_floating_point or numbers.dtype == torch.bool):
        raise TypeError(f"{name} must be whole numbers, not {numbers.dtype}")
    if numbers.dim() != dims:
        raise ValueError(f"{name} has shape {_shape(numbers)}; it must have {dims} dimension{'s' * (dims > 1)}")
    return numbers.long()


def _scale(scale: float | None, q: torch.Tensor) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def _shape(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))
