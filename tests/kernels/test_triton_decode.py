"""Decode in Triton, by the strict interpreter, against softmax attention in float64 from the definition.

`make_pages` has NaN wherever no token is, block 0 included; here whatever a kernel should write is NaN before, too.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from pagedlab.gpu import mode  # noqa: E402

if not mode.is_interpreting():
    pytest.skip("these tests interpret; `pytest -m gpu` runs those that compile", allow_module_level=True)

from pagedlab.attention import merge_partials  # noqa: E402
from pagedlab.gpu.strict import strict  # noqa: E402
from pagedlab.gpu.trace import trace  # noqa: E402
from pagedlab.kernels import decode as decode_module  # noqa: E402
from pagedlab.kernels import decode_steps  # noqa: E402
from pagedlab.kernels.decode import decode_launch, paged_decode, paged_decode_kernel  # noqa: E402
from pagedlab.kernels.launch import LaunchError, launch  # noqa: E402
from pagedlab.kernels.merge import CHUNK, merge_launch, merge_splits, merge_splits_kernel  # noqa: E402
from pagedlab.kernels.splits import choose_num_splits  # noqa: E402
from tests.kernels.pages import make_pages, random_queries  # noqa: E402

ERRORS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def decode(q, pages, order="in order", **choices):
    """As `paged_decode`, strictly, with NaN in everything that is still to be written."""
    grid, arguments, options = decode_launch(q, *pages.attention_args(), **choices)
    out, lse = arguments["out"], arguments["lse"]
    out.fill_(torch.nan)
    with strict(order):
        if lse is None:
            launch(paged_decode_kernel, grid, arguments, **options)
            return out.to(q.dtype)
        lse.fill_(torch.nan)
        launch(paged_decode_kernel, grid, arguments, **options)
        grid, arguments, options = merge_launch(out, lse, q.dtype)
        arguments["out"].fill_(torch.nan)
        launch(merge_splits_kernel, grid, arguments, **options)
        return arguments["out"].to(q.dtype)


def softmax_attention(q, pages, scale=None, window=0, softcap=0.0, sinks=None):
    """`[num_seqs, num_heads, head_dim]` in float64."""
    num_seqs, num_heads, head_dim = q.shape
    out = torch.zeros(q.shape, dtype=torch.float64)
    for i, (keys, values) in enumerate(zip(pages.keys, pages.values, strict=True)):
        num_kv_heads, num_tokens, _ = keys.shape
        for head in range(num_heads):
            kv_head = head // (num_heads // num_kv_heads)
            seen = slice(max(0, num_tokens - window) if window else 0, num_tokens)
            scores = keys[kv_head, seen].double() @ q[i, head].double() * (head_dim**-0.5 if scale is None else scale)
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            sink = [] if sinks is None else [sinks[head].double()[None]]
            weights = torch.softmax(torch.cat([scores, *sink]), 0)[: len(scores)]
            out[i, head] = weights @ values[kv_head, seen].double()
    return out


def assert_decodes(q, pages, order="in order", **choices):
    out = decode(q, pages, order, **choices)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    meaning = {name: choices[name] for name in ("scale", "window", "softcap", "sinks") if name in choices}
    torch.testing.assert_close(out.double(), softmax_attention(q, pages, **meaning), atol=ERRORS[q.dtype], rtol=0)
    return out


def pages_and_queries(seq_lens, num_kv_heads=1, group_size=2, head_dim=16, dtype=torch.float16, **layout):
    pages = make_pages(seq_lens, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype, **layout)
    return random_queries(len(seq_lens), num_kv_heads * group_size, head_dim, dtype=dtype), pages


@settings(max_examples=25, deadline=None)
@given(
    seq_lens=st.lists(st.integers(0, 20) | st.integers(60, 70) | st.sampled_from([128, 130]), max_size=3),
    layout=st.fixed_dictionaries(
        {
            "num_kv_heads": st.integers(1, 2),
            "block_size": st.sampled_from([1, 3, 8, 12, 16, 48, 544]),
            "head_dim": st.sampled_from([1, 8, 16, 72, 80, 128]),
            "dtype": st.sampled_from(list(ERRORS)),
            "interleaved": st.booleans(),
            "token_major": st.booleans(),
            "extra_columns": st.integers(0, 2),
            "padding": st.sampled_from([-1, 0, 10**6]),
            "seed": st.integers(0, 10**6),
        }
    ),
    group_size=st.sampled_from([1, 3, 5, 8, 17]),
    choices=st.fixed_dictionaries(
        {},
        optional={
            "tile": st.sampled_from([16, 32, 128]),
            "window": st.integers(1, 80),
            "softcap": st.sampled_from([1.0, 30.0]),
            "scale": st.sampled_from([0.0, 0.3]),
        },
    ),
    parts=st.sampled_from([{}, {"num_splits": 2}, {"num_splits": 5}, {"tokens_per_split": 48}]),
    has_sinks=st.booleans(),
    order=st.sampled_from(["in order", "shuffled"]),
)
def test_any_batch(seq_lens, layout, group_size, choices, parts, has_sinks, order):
    q, pages = pages_and_queries(seq_lens, group_size=group_size, **layout)
    if has_sinks:
        choices = {**choices, "sinks": random_queries(q.shape[1], seed=5, spread=3.0)}
    assert_decodes(q, pages, order, **choices, **parts)


@pytest.mark.parametrize("group_size", [1, 2, 3, 5, 7, 12, 16, 17, 24, 33])
def test_any_group(group_size):
    """More than 32 heads of a group are two programs; the second may be nearly empty."""
    q, pages = pages_and_queries([9, 2], num_kv_heads=2, group_size=group_size)
    assert_decodes(q, pages)
    grid, _, _ = decode_launch(q, *pages.attention_args())
    assert grid == (2, 2 * (1 if group_size <= 32 else 2), 1), "keys and values are read once for up to 32 heads"


@pytest.mark.parametrize("head_dim", [1, 7, 16, 24, 64, 72, 80, 96, 100, 120, 128, 192, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_any_head_dim(head_dim, dtype):
    assert_decodes(*pages_and_queries([70, 3], head_dim=head_dim, dtype=dtype, block_size=16))


@pytest.mark.parametrize("block_size", [1, 2, 8, 12, 16, 48, 64, 100, 544])
def test_any_block_size(block_size):
    """A tile is 64 tokens, whatever the blocks: parts of one, or many."""
    assert_decodes(*pages_and_queries([63, 64, 65, 150], block_size=block_size, extra_columns=0))


@pytest.mark.parametrize("num_splits", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("seq_lens", [[0, 1, 16, 17, 97], [3], [0]])
def test_splits_with_and_without_work(num_splits, seq_lens):
    assert_decodes(*pages_and_queries(seq_lens, num_kv_heads=2), num_splits=num_splits, tile=16)


def test_one_split_writes_the_output_itself():
    q, pages = pages_and_queries([5])
    grid, arguments, _ = decode_launch(q, *pages.attention_args())
    assert grid == (1, 1, 1) and arguments["lse"] is None and arguments["out"].dtype == torch.float16
    grid, arguments, _ = decode_launch(q, *pages.attention_args(), num_splits=4)
    assert grid == (1, 1, 4) and arguments["out"].shape == (1, 2, 4, 16) and arguments["out"].dtype == torch.float32


def test_the_parts_lse():
    """To base 2; -inf where there is nothing, and then no output is written: in a mixed batch most parts are empty."""
    q, pages = pages_and_queries([40, 0], dtype=torch.float32)
    grid, arguments, options = decode_launch(q, *pages.attention_args(), tokens_per_split=16)
    arguments["out"].fill_(torch.nan)
    launch(paged_decode_kernel, grid, arguments, **options)
    scores = pages.keys[0][0] @ q[0].T * 16**-0.5  # [num_tokens, num_heads]
    right = torch.stack([part.logsumexp(0) / math.log(2) for part in scores.split(16)], 1)
    torch.testing.assert_close(arguments["lse"][0], right)
    assert (arguments["lse"][1] == -math.inf).all()
    assert not arguments["out"][0].isnan().any() and arguments["out"][1].isnan().all()


def test_longer_than_a_tile_many_times_over():
    q, pages = pages_and_queries([700], num_kv_heads=2, group_size=4, head_dim=128, block_size=16)
    for parts in ({}, {"num_splits": 4}):
        assert_decodes(q, pages, **parts)


def test_tables_and_queries_that_are_views():
    q, pages = pages_and_queries([9, 40], num_kv_heads=2, block_size=4)
    fused = torch.full((2, 9, 48), torch.nan, dtype=q.dtype)
    fused[:, 1:5, 16:32] = q
    wide = torch.full((7, 30), 10**6, dtype=torch.int64)
    wide[1::3][:2, : pages.block_tables.shape[1]] = pages.block_tables
    out = decode(q, pages)
    pages.block_tables, pages.seq_lens = wide[1::3][:2], pages.seq_lens.long()
    assert torch.equal(decode(fused[:, 1:5, 16:32], pages), out)


def test_the_whole_call():
    q, pages = pages_and_queries([9, 40, 0], num_kv_heads=2)
    out = paged_decode(q, *pages.attention_args())
    torch.testing.assert_close(out.double(), softmax_attention(q, pages), atol=2e-3, rtol=0)
    split = paged_decode(q, *pages.attention_args(), num_splits=2, tile=16)
    torch.testing.assert_close(split, out, atol=1e-3, rtol=0)
    nobody = paged_decode(q[:0], *pages.attention_args()[:2], pages.block_tables[:0], pages.seq_lens[:0])
    assert nobody.shape == (0, 4, 16)


def test_what_is_chosen_for_a_gpu(monkeypatch):
    """Splits from the kv heads, the multiprocessors there are, and what a window leaves to see."""
    h100 = SimpleNamespace(multi_processor_count=132, shared_memory_per_multiprocessor=228 * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: h100)
    q, cache = torch.empty(2, 32, 128), torch.empty(1, 8, 16, 128)
    lens = torch.tensor([5, 30_000])
    assert decode_module._splits_that_fill_the_gpu(q, cache, lens, 0) == 1, "the interpreter has one program at a time"
    monkeypatch.setattr(mode, "is_interpreting", lambda: False)
    for window, seen in ((0, 30_000), (1000, 1000)):
        right = choose_num_splits(2, 32, 8, seen, tile=256, num_sms=132, blocks_per_sm=4)
        assert decode_module._splits_that_fill_the_gpu(q, cache, lens, window) == right > 1
    on_gpu = SimpleNamespace(is_cuda=True, device=0, element_size=lambda: 2)
    assert decode_module._step(on_gpu, tile_dim=128) == (64, 3)
    assert decode_module._step(on_gpu, tile_dim=64) == (64, 3)
    assert decode_module._step(on_gpu, tile_dim=256) == (32, 3)
    h100.shared_memory_per_multiprocessor = 100 * 1024
    assert decode_module._step(on_gpu, tile_dim=128) == (32, 3)
    assert decode_module._step(on_gpu, tile_dim=1024) == (16, 3)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert decode_module._step(on_gpu, tile_dim=128) == (32, 1)


def test_a_kernel_of_ones_own():
    """It may name fewer arguments. One that names no `lse` cannot be given splits."""
    q, pages = pages_and_queries([9, 40, 1], num_kv_heads=2)
    caches = pages.attention_args()
    out = paged_decode(q, *caches, kernel=decode_steps.paged_decode_kernel_step_3)
    torch.testing.assert_close(out.double(), softmax_attention(q, pages), atol=2e-3, rtol=0)
    assert torch.equal(paged_decode(q, *caches, kernel=decode_steps.paged_decode_kernel_step_3, num_splits=1), out)
    for parts in ({"num_splits": 2}, {"tokens_per_split": 16}):
        with pytest.raises(LaunchError, match="paged_decode_kernel_step_3 knows no splits: it has no parameter `lse`"):
            paged_decode(q, *caches, kernel=decode_steps.paged_decode_kernel_step_3, **parts)


# To the last bit


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_sequence_alone_and_in_a_batch(dtype):
    """With parts of a fixed size. Alone, a sequence may be one part, and need no merge at all."""
    lengths = [5, 150, 33, 0, 64]
    q, pages = pages_and_queries(lengths, num_kv_heads=2, head_dim=24, dtype=dtype)
    caches, tables = (pages.key_cache, pages.value_cache), pages.block_tables
    for choices in ({}, {"sinks": random_queries(4, seed=4)}, {"window": 40}):
        choices = {"tokens_per_split": 32, "tile": 16, **choices}
        together = paged_decode(q, *caches, tables, pages.seq_lens, **choices)
        for i in range(len(lengths)):
            one = slice(i, i + 1)
            alone = paged_decode(q[one], *caches, tables[one, : -(-lengths[i] // 4)], pages.seq_lens[one], **choices)
            assert torch.equal(alone, together[one])


def test_trailing_empty_parts_do_not_change_a_bit():
    out, lse = random_queries(1, 2, 5, 24), random_queries(1, 2, 5, seed=3)
    right = merge_splits(out, lse)
    for more in (1, CHUNK, 3 * CHUNK + 1):
        wider = torch.cat([out, torch.full((1, 2, more, 24), torch.nan)], 2)
        assert torch.equal(merge_splits(wider, torch.cat([lse, torch.full((1, 2, more), -math.inf)], 2)), right)


@pytest.mark.parametrize("parts", [{}, {"num_splits": 3}])
def test_where_the_blocks_lie_and_what_stands_behind_the_table(parts):
    lengths = [5, 70, 33]
    q, pages = pages_and_queries(lengths, num_kv_heads=2, block_size=3)
    out = decode(q, pages, tile=16, **parts)
    for seed in range(3):
        moved = torch.randperm(len(pages.key_cache), generator=torch.Generator().manual_seed(seed))
        key_cache, value_cache = torch.empty_like(pages.key_cache), torch.empty_like(pages.value_cache)
        key_cache[moved], value_cache[moved] = pages.key_cache, pages.value_cache
        tables = torch.full((3, pages.block_tables.shape[1] + seed), seed - 1)
        tables[:, : pages.block_tables.shape[1]] = moved[pages.block_tables.long()]
        again = paged_decode(q, key_cache, value_cache, tables, pages.seq_lens, tile=16, **parts)
        assert torch.equal(again, out)


# What is read


def test_every_key_and_value_is_read_once_for_its_group():
    """And nothing else of the pool, and of the tables only the entries in use."""
    lengths = [37, 0, 64, 5]
    q, pages = pages_and_queries(lengths, num_kv_heads=2, group_size=6, head_dim=24, block_size=4)
    grid, arguments, _ = decode_launch(q, *pages.attention_args(), num_splits=2, tile=16)
    traced = trace(paged_decode_kernel, grid, arguments)
    read = {"key_cache": [], "value_cache": [], "block_tables": []}
    for program in traced.programs:
        for event in program.events:
            if event.tensor in read:
                read[event.tensor] += event.elements.tolist()
    bytes_of = {name: len(elements) * 2 for name, elements in read.items()}
    assert bytes_of["key_cache"] == bytes_of["value_cache"] == sum(lengths) * 2 * 24 * 2
    for name in ("key_cache", "value_cache"):
        assert len(set(read[name])) == len(read[name])
        elements = arguments[name].flatten()[torch.tensor(read[name])]
        assert not elements.isnan().any()
    width = pages.block_tables.shape[1]
    used = [row * width + column for row, length in enumerate(lengths) for column in range(-(-length // 4))]
    assert sorted(set(read["block_tables"])) == used


def test_a_window_reads_its_own_tokens_only():
    q, pages = pages_and_queries([50, 7], block_size=4)
    grid, arguments, _ = decode_launch(q, *pages.attention_args(), window=18, tile=16)
    traced = trace(paged_decode_kernel, grid, arguments)
    for seq, (first, num_steps) in enumerate(((32, 2), (0, 1))):
        program = traced.program(seq)
        assert program.num_steps == num_steps, "no step before the window"
        for cache in (pages.key_cache, pages.value_cache):
            name = "key_cache" if cache is pages.key_cache else "value_cache"
            touched = {block for step in program.blocks(name, cache.stride(0)) for block in step}
            length = int(pages.seq_lens[seq])
            assert touched == set(pages.block_tables[seq, first // 4 : -(-length // 4)].tolist())


# Merging


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 20) | st.sampled_from([CHUNK - 1, CHUNK + 1, 2 * CHUNK + 5]),
    st.sampled_from([1, 16, 80, 128]),
    st.sampled_from([1.0, 100.0]),
    st.sampled_from(list(ERRORS)),
    st.integers(0, 10**6),
)
def test_merging_is_merging_two_by_two(num_splits, head_dim, spread, dtype, seed):
    """`merge_partials` in float64 and natural logarithms. Parts may be empty, with NaN for an output."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(2, 3, num_splits, head_dim, generator=generator)
    lse = torch.randn(2, 3, num_splits, generator=generator) * spread
    empty = torch.rand(2, 3, num_splits, generator=generator) < 0.3
    empty[1, 2] = True
    out[empty], lse[empty] = torch.nan, -math.inf
    with strict():
        merged = merge_splits(out, lse, dtype)
    right = torch.zeros(2, 3, head_dim, dtype=torch.float64), torch.full((2, 3), -math.inf, dtype=torch.float64)
    for split in range(num_splits):
        right = merge_partials(*right, out[:, :, split].double(), lse[:, :, split].double() * math.log(2))
    torch.testing.assert_close(
        merged.double(), right[0], atol=ERRORS[dtype], rtol=0 if dtype != torch.bfloat16 else 1e-2
    )
    assert merged.dtype == dtype and not merged[1, 2].any()


@pytest.mark.parametrize("num_splits", [3, CHUNK + 1, 2 * CHUNK + 5])
@pytest.mark.parametrize("lse", [-1000.0, 1000.0])
def test_parts_that_weigh_the_same(num_splits, lse):
    """All of them, and only them: the next power of 2 has more lanes than there are parts."""
    out = random_queries(1, 2, num_splits, 16)
    merged = merge_splits(out, torch.full(out.shape[:3], lse))
    torch.testing.assert_close(merged, out.mean(2))


def test_a_part_that_outweighs_all_others():
    out = random_queries(1, 1, 40, 16)
    for heavy in (0, 21, 39):
        lse = torch.arange(40.0)[None, None].clone()
        lse[..., heavy] = 5000.0
        torch.testing.assert_close(merge_splits(out, lse), out[:, :, heavy])


def test_parts_of_any_strides():
    out, lse = random_queries(5, 2, 3, 8), random_queries(5, 2, 3, seed=2)
    parts = out.permute(1, 2, 0, 3), lse.permute(1, 2, 0).contiguous()
    assert torch.equal(merge_splits(*parts), merge_splits(parts[0].contiguous(), parts[1]))


@pytest.mark.parametrize(
    ("out", "lse", "error", "words"),
    [
        (torch.zeros(2, 3, 4, 8), torch.zeros(2, 4, 3), ValueError, r"partial_lse is \[2, 4, 3\].* needs \[2, 3, 4\]"),
        (torch.zeros(2, 3, 4, 8).half(), torch.zeros(2, 3, 4), TypeError, "parts are torch.float16"),
        (torch.zeros(2, 3, 8, 4).transpose(2, 3), torch.zeros(2, 3, 4), LaunchError, "last dimension of partial_out"),
    ],
)
def test_parts_that_do_not_fit(out, lse, error, words):
    with pytest.raises(error, match=words):
        merge_splits(out, lse)


# Calls that are refused


@pytest.mark.parametrize(
    ("choices", "error", "words"),
    [
        (dict(tile=8), ValueError, "tile is 8; it must be a power of 2 and at least 16"),
        (dict(tile=48), ValueError, "tile is 48"),
        (dict(num_splits=0), ValueError, "num_splits"),
        (dict(tokens_per_split=0), ValueError, "tokens_per_split"),
        (dict(num_splits=2, tokens_per_split=16), ValueError, "choose one of the two"),
        (dict(num_splits=70_000), ValueError, "70000 splits are more than the 65,535"),
        (dict(window=-1), ValueError, "window is -1"),
        (dict(window=True), TypeError, "window must be a whole number, not True"),
        (dict(tile=16.0), TypeError, "tile must be a whole number, not 16.0"),
        (dict(softcap=-1.0), ValueError, "softcap -1.0"),
        (dict(softcap=math.inf), ValueError, "softcap inf: both are finite"),
        (dict(softcap=math.nan), ValueError, "softcap nan: both are finite"),
        (dict(sinks=torch.zeros(3)), ValueError, r"sinks are \[3\]: a contiguous \[2\] is needed"),
    ],
)
def test_choices_that_cannot_be(choices, error, words):
    q, pages = pages_and_queries([5])
    with pytest.raises(error, match=words):
        paged_decode(q, *pages.attention_args(), **choices)


def test_tensors_that_cannot_be():
    q, pages = pages_and_queries([5])
    caches = pages.key_cache, pages.value_cache
    rest = pages.block_tables, pages.seq_lens
    for wrong, words in (
        ((q.double(), caches[0].double(), caches[1].double()), "q is torch.float64.*backend='torch'"),
        ((q.float(), *caches), "q is torch.float32, the cache torch.float16"),
    ):
        with pytest.raises(TypeError, match=words):
            paged_decode(*wrong, *rest)
    with pytest.raises(LaunchError, match="last dimension of seq_lens has stride 2"):
        paged_decode(q.expand(2, -1, -1), *caches, rest[0].expand(2, -1), torch.tensor([5, 0, 5, 0])[::2])
    with pytest.raises(LaunchError, match="last dimension of key_cache has stride 4"):
        paged_decode(q, caches[0].transpose(2, 3).contiguous().transpose(2, 3), caches[1], *rest)
    with pytest.raises(ValueError, match="2 query heads cannot share 3 kv heads"):
        paged_decode(q, *(cache.expand(-1, 3, -1, -1) for cache in caches), *rest)
    for wrong in (
        (q[..., :8], *caches, *rest),
        (q, caches[0], caches[1][:, :, :1], *rest),
        (q, *caches, rest[0].expand(2, -1), rest[1]),
        (q.expand(2, -1, -1), *caches, rest[0].expand(2, -1), rest[1]),
    ):
        with pytest.raises(ValueError, match="the same shape, and q's head_dim|need a row and a length each"):
            paged_decode(*wrong)


def test_a_window_longer_than_any_sequence():
    q, pages = pages_and_queries([5])
    arguments = q, *pages.attention_args()
    assert torch.equal(paged_decode(*arguments, window=2**40), paged_decode(*arguments))
