"""Traps of real GPU kernels, restated as tests of this package's Triton kernels where the operations cannot show them.

`test_kernel_cases.py` runs every backend through the traps that a caller can meet; `test_strict_cases.py` has those
that the interpreter hides. These are about what only the kernels have: splits, windows, sinks, softcap, and what they
compile to. Each was reported in public, for the project and under the number its docstring names. The same mistake is
made in the package's kernel, in a line or two, and must be seen: the case is hard enough.
"""

import math

import pytest
import torch

pytest.importorskip("triton")

from pagedlab.gpu import mode  # noqa: E402

if not mode.is_interpreting():
    pytest.skip("these tests interpret, and compile in a process of its own", allow_module_level=True)

from pagedlab.course.altered_kernel import altered  # noqa: E402
from pagedlab.gpu import targets  # noqa: E402
from pagedlab.gpu.compiled import CompileError, compile_many  # noqa: E402
from pagedlab.gpu.specialize import specialize  # noqa: E402
from pagedlab.gpu.strict import KernelError, strict  # noqa: E402
from pagedlab.kernels import decode, merge, prefill, write  # noqa: E402
from pagedlab.kernels.launch import launch  # noqa: E402
from pagedlab.kernels.splits import choose_num_splits  # noqa: E402
from tests.kernels.pages import dense_decode, make_pages, random_queries  # noqa: E402

# Decode


def decoded(q, pages, kernel=decode.paged_decode_kernel, merge_kernel=merge.merge_splits_kernel, grid=None, **choices):
    """Everything that is to be written is NaN before. `ROWS` and other arguments may be among the choices."""
    arguments_to_set = {name: choices.pop(name) for name in list(choices) if name.isupper()}
    usual_grid, arguments, options = decode.decode_launch(q, *pages.attention_args(), **choices)
    arguments.update(arguments_to_set)
    arguments["out"].fill_(torch.nan)
    with strict():
        if arguments["lse"] is None:
            launch(kernel, grid or usual_grid, arguments, **options)
            return arguments["out"].double()
        arguments["lse"].fill_(torch.nan)
        launch(kernel, grid or usual_grid, arguments, **options)
        return merge.merge_splits(arguments["out"], arguments["lse"], q.dtype, kernel=merge_kernel).double()


def is_right(out, right):
    return torch.allclose(out, right, atol=2e-3, rtol=0)


def pages_and_queries(lengths, num_kv_heads=1, group_size=2, head_dim=16, dtype=torch.float16, **layout):
    pages = make_pages(lengths, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype, **layout)
    return random_queries(len(lengths), num_kv_heads * group_size, head_dim, dtype=dtype), pages


def test_trap_16_a_window_whose_blocks_before_it_are_freed():
    """vllm-project/vllm#30887: their scores were masked; their values, NaN by then, still met a weight of 0."""
    window, lengths = 21, [70, 33, 5]
    q, pages = pages_and_queries(lengths, block_size=4)
    right = torch.cat(
        [
            dense_decode(q[i, None], make_part(pages, i, slice(max(0, length - window), length)))
            for i, length in enumerate(lengths)
        ]
    )
    for i, length in enumerate(lengths):
        for column in range(max(0, length - window) // 4):
            pages.key_cache[pages.block_tables[i, column]] = torch.nan
            pages.value_cache[pages.block_tables[i, column]] = torch.nan
    masks_scores_only = altered(
        decode.paged_decode_kernel,
        ("start = first + split * tokens_per_split", "start = split * tokens_per_split"),
        ("tl.where(is_token[None, :], scores", "tl.where((is_token & (positions >= first))[None, :], scores"),
    )
    assert decoded(q, pages, masks_scores_only, window=window).isnan().any()
    for parts in ({}, {"num_splits": 3}):
        assert is_right(decoded(q, pages, window=window, tile=16, **parts), right)

    for i, length in enumerate(lengths):  # and the table no longer names them
        pages.block_tables[i, : max(0, length - window) // 4] = -1
    with pytest.raises(KernelError, match="in front of key_cache"):
        decoded(q, pages, masks_scores_only, window=window)
    assert is_right(decoded(q, pages, window=window, tile=16), right)


def make_part(pages, index, tokens):
    """Some tokens of one sequence, as pages that only `dense_decode` looks at."""
    part = make_pages([1])
    part.keys, part.values = [pages.keys[index][:, tokens]], [pages.values[index][:, tokens]]
    return part


@pytest.mark.parametrize("num_splits", [1, 3])
def test_trap_20_a_maximum_that_does_not_go_below_0(num_splits):
    """With 0 as the least running maximum, scores that are all below about -150 have a sum of 0."""
    q, pages = pages_and_queries([40, 3], group_size=1, head_dim=16, dtype=torch.float32)
    for keys in (*pages.keys, pages.key_cache):
        keys[..., 0] = 1.0
    q[..., 0] = -1000.0
    right = dense_decode(q, pages)
    clamped = altered(
        decode.paged_decode_kernel,
        ("new_max = tl.maximum(running_max, tl.max(scores, 1))", "new_max = tl.maximum(tl.max(scores, 1), 0.0)"),
    )
    assert not decoded(q, pages, clamped, num_splits=num_splits).any()
    assert torch.allclose(decoded(q, pages, num_splits=num_splits), right, atol=1e-3)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # the largest of what the altered kernel leaves
@pytest.mark.parametrize("num_splits", [5, 16, 17])
def test_trap_25_more_splits_than_tiles(num_splits):
    """ROCm/aiter#3641, ROCm/aiter#4420: the scratch of a split that had nothing to do was merged."""
    q, pages = pages_and_queries([40, 3, 0])
    right = dense_decode(q, pages)
    writes_if_busy = altered(
        decode.paged_decode_kernel,
        (
            "running_max + tl.log2(total), mask=rows < GROUP_SIZE",
            "running_max + tl.log2(total), mask=rows < tl.where(start < end, GROUP_SIZE, 0)",
        ),
    )
    choices = {"num_splits": num_splits, "tile": 16}
    assert not is_right(decoded(q, pages, writes_if_busy, **choices), right)
    assert is_right(decoded(q, pages, **choices), right)


def test_trap_25_an_empty_split_may_have_left_anything():
    """vllm-project/vllm#47188: a weight of 0 does not help against a scratch of NaN."""
    out, lse = random_queries(1, 1, 4, 8), random_queries(1, 1, 4, seed=2)
    out[0, 0, 1], lse[0, 0, 1] = torch.nan, -math.inf
    trusts = altered(merge.merge_splits_kernel, ('(lse != -float("inf"))', "is_split"))
    assert merge.merge_splits(out, lse, kernel=trusts).isnan().all()
    having = [0, 2, 3]
    assert torch.allclose(
        merge.merge_splits(out, lse), merge.merge_splits(out[:, :, having], lse[:, :, having].clone())
    )


def test_trap_27_parts_weighed_in_another_base():
    """flashinfer-ai/flashinfer#4485, sgl-project/sglang#40903: an LSE to base 2 that was taken for a natural one."""
    q, pages = pages_and_queries([200], block_size=16)
    right = dense_decode(q, pages)
    natural = altered(merge.merge_splits_kernel, ("weights = tl.exp2(", "weights = tl.exp("))
    # 200 tokens in parts of 64: the last has 8, and should weigh little.
    assert not is_right(decoded(q, pages, merge_kernel=natural, tokens_per_split=64), right)
    assert is_right(decoded(q, pages, tokens_per_split=64), right)


@pytest.mark.parametrize("parts", [{}, {"num_splits": 3}, {"num_splits": 9}, {"tokens_per_split": 16}])
def test_trap_28_a_sink_counts_once(parts):
    """ROCm/rocm-libraries#12227: in every split, or in the last one, which is empty for a short sequence."""
    q, pages = pages_and_queries([70, 33, 5, 0], num_kv_heads=2)
    sinks = torch.tensor([2.0, -1.0, -math.inf, 50.0])  # as good as most, as a few, as none, as all of the tokens
    # A token more, with a value of 0 and the sink's score: what a sink is.
    right = torch.zeros(q.shape, dtype=torch.float64)
    for i, (keys, values) in enumerate(zip(pages.keys, pages.values, strict=True)):
        for head in range(4):
            scores = torch.cat([keys[head // 2].double() @ q[i, head].double() * 0.25, sinks[head, None].double()])
            if len(scores) > 1:
                right[i, head] = torch.softmax(scores, 0)[:-1] @ values[head // 2].double()
    assert is_right(decoded(q, pages, sinks=sinks, tile=16, **parts), right)
    if parts:
        every = altered(
            decode.paged_decode_kernel, ("tl.where(split == 0, sink * LOG2E,", "tl.where(split >= 0, sink * LOG2E,")
        )
        assert not is_right(decoded(q, pages, every, sinks=sinks, tile=16, **parts), right)
        last_if_busy = altered(
            decode.paged_decode_kernel,
            ("tl.where(split == 0, sink", "tl.where((split == tl.num_programs(2) - 1) & (start < end), sink"),
        )
        assert not is_right(decoded(q, pages, last_if_busy, sinks=sinks, tile=16, **parts), right)


def test_trap_29_splits_counted_from_the_heads_that_are_programs():
    """vllm-project/vllm#54191, sgl-project/sglang#27786: a count from the query heads, or with a fixed cap."""
    shape = {"num_seqs": 2, "seq_len": 65_536, "tile": 256, "num_sms": 132, "blocks_per_sm": 4}
    splits = choose_num_splits(num_heads=64, num_kv_heads=8, **shape)
    assert splits == choose_num_splits(num_heads=8, num_kv_heads=8, **shape)
    assert choose_num_splits(num_heads=64, num_kv_heads=64, **shape) < splits, "heads that do not share are programs"
    q, pages = pages_and_queries([100, 100], num_kv_heads=2, group_size=8)
    for count in (2, 5):
        grid, _, _ = decode.decode_launch(q, *pages.attention_args(), num_splits=count, tile=16)
        assert math.prod(grid) == 2 * 2 * count
    # sgl-project/sglang#35801: one sequence of any length fills the GPU, as soon as there is enough of it.
    for seq_len in (2**17, 2**19, 2**21):
        programs = 8 * choose_num_splits(1, 64, 8, seq_len, tile=256, num_sms=132, blocks_per_sm=4)
        assert 0.8 * 528 <= programs, f"{programs} of 528"


def test_trap_30_parts_cut_by_the_batch():
    """sgl-project/sglang#10425: a neighbour's length moved the cuts, and a sequence's last bits with them."""
    q, pages = pages_and_queries([100, 333], head_dim=32, block_size=16, dtype=torch.float32)
    caches, tables = (pages.key_cache, pages.value_cache), pages.block_tables

    def both_ways(**parts):
        alone = decode.paged_decode(q[:1], *caches, tables[:1], pages.seq_lens[:1], tile=16, **parts)
        return alone, decode.paged_decode(q, *caches, tables, pages.seq_lens, tile=16, **parts)[:1]

    counted, fixed = both_ways(num_splits=4), both_ways(tokens_per_split=64)
    assert not torch.equal(*counted) and torch.allclose(*counted, atol=1e-6)
    assert torch.equal(*fixed)


def test_trap_34_a_row_of_heads_across_two_kv_heads():
    """vllm-project/vllm#40792, FlashML-org/FreeToken#177: 24 heads a group in rows of 16, dealt out regardless."""
    q, pages = pages_and_queries([40, 3], num_kv_heads=2, group_size=24)
    right = dense_decode(q, pages)
    regardless = altered(
        decode.paged_decode_kernel,
        ("(tl.program_id(1) // row_tiles)", "(tl.program_id(1) * ROWS // GROUP_SIZE)"),
        ("rows = tl.program_id(1) % row_tiles * ROWS + tl.arange(0, ROWS)", "rows = tl.arange(0, ROWS)"),
        ("heads = kv_head * GROUP_SIZE + rows", "heads = tl.program_id(1) * ROWS + rows"),
    )
    assert not is_right(decoded(q, pages, regardless, grid=(2, 3, 1), ROWS=16), right)
    assert is_right(decoded(q, pages, grid=(2, 4, 1), ROWS=16), right)
    assert is_right(decoded(q, pages), right)


def test_trap_42_a_softcap_of_large_scores():
    """vllm-project/vllm#56578: (e**x - e**-x) / (e**x + e**-x) is inf/inf from about 88 on."""
    q, pages = pages_and_queries([40], group_size=1, dtype=torch.float32, spread=30.0)
    q *= 30
    scores = (pages.keys[0].double() @ q[0, 0].double() * 0.25)[0]
    assert scores.abs().max() / 5.0 > 88 and scores.abs().min() / 5.0 < 5, "large ones, and some that are not"
    right = (torch.softmax(5.0 * torch.tanh(scores / 5.0), 0) @ pages.values[0].double())[0]
    overflows = altered(
        decode.paged_decode_kernel,
        (
            "scores = softcap(scores, SOFTCAP)",
            "up, down = tl.exp(scores / SOFTCAP), tl.exp(-scores / SOFTCAP)\n"
            "            scores = SOFTCAP * (up - down) / (up + down)",
        ),
    )
    assert decoded(q, pages, overflows, softcap=5.0).isnan().all()
    assert torch.allclose(decoded(q, pages, softcap=5.0)[0, 0], right, atol=2e-4)


# What decode compiles to


def shapes_of(head_dim=128, dtype=torch.float16, **choices):
    q, cache = torch.empty(2, 8, head_dim, dtype=dtype), torch.empty(64, 2, 16, head_dim, dtype=dtype)
    tables, lens = torch.zeros(2, 64, dtype=torch.int32), torch.full((2,), 1000, dtype=torch.int32)
    _, arguments, options = decode.decode_launch(q, cache, cache.clone(), tables, lens, num_splits=4, **choices)
    return arguments, options


def test_traps_40_44_47_and_49_seen_without_a_gpu():
    """40: a head_dim of 72 or 120 that is copied number by number, because 16 does not divide the slots' distance.
    44, triton-lang/triton#5895: float32 products that are TF32, on a GPU only. 47, ModelTC/LightLLM#1029: sm_75 has
    no tensor-core instruction that Triton uses. 49, vllm-project/vllm#39018: more shared memory than a block may
    have."""
    kernel = decode.paged_decode_kernel
    tf32 = altered(
        kernel,
        ('tl.trans(keys), input_precision="ieee")', "tl.trans(keys))"),
        ('acc * rescale[:, None], input_precision="ieee")', "acc * rescale[:, None])"),
    )
    strides = [f"{cache}_{what}_stride" for cache in ("key", "value") for what in ("block", "head", "slot")]
    unknown_strides = altered(kernel, *((f"{name}: tl.constexpr", name) for name in strides))
    jobs = {
        "72": (kernel, shapes_of(72), "sm_80"),
        "120": (kernel, shapes_of(120), "sm_90"),
        "120, strides unknown": (unknown_strides, shapes_of(120), "sm_90"),
        "float32": (kernel, shapes_of(dtype=torch.float32), "sm_80"),
        "TF32": (tf32, shapes_of(dtype=torch.float32), "sm_80"),
        "sm_75": (kernel, shapes_of(tile=32), "sm_75"),
        "too much": (kernel, shapes_of(256, tile=128), "sm_75"),
    }
    compiled = compile_many(
        [(fn, arguments, target, options) for fn, (arguments, options), target in jobs.values()], keep_errors=True
    )
    compiled = dict(zip(jobs, compiled, strict=True))
    for head_dim in ("72", "120"):
        assert compiled[head_dim].spill_bytes == 0
        assert compiled[head_dim].instructions.async_copies_16b == 32
    assert compiled["120, strides unknown"].instructions.async_copies_16b == 0

    assert compiled["float32"].instructions.tensor_core == 0 and compiled["float32"].spill_bytes == 0
    assert compiled["TF32"].instructions.tensor_core > 0

    assert compiled["sm_75"].instructions.tensor_core == 0 and compiled["sm_75"].spill_bytes == 0
    too_much = compiled["too much"]
    assert isinstance(too_much, CompileError) or too_much.occupancy.blocks_per_sm == 0


# Launching


def test_trap_50_what_changes_with_every_batch_makes_no_new_kernel():
    """NVIDIA/TensorRT-LLM#11355: a number of the batch was part of the key, so each step was compiled anew.

    Triton compiles again for every other constant, and for every other type. Of whole numbers it also asks whether 16
    divides them and whether they are 1; as each of those is met once, they make few kernels, not one a step.
    """
    caches = torch.zeros(2, 9, 2, 4, 16, dtype=torch.float16).unbind(0)

    def launches(lengths, width, tokens_per_split):
        q = torch.zeros(len(lengths), 4, 16, dtype=torch.float16)
        batch = torch.zeros(len(lengths), width, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)
        _, parts, _ = decode.decode_launch(q, *caches, *batch, tokens_per_split=tokens_per_split)
        starts = torch.arange(len(lengths) + 1, dtype=torch.int32)
        new = torch.zeros(2, len(lengths), 2, 16, dtype=torch.float16)
        yield decode.paged_decode_kernel, parts
        yield prefill.paged_prefill_kernel, prefill.prefill_launch(q, *caches, *batch, starts)[1]
        yield write.kv_write_kernel, write.write_launch(*new, *caches, torch.arange(len(lengths)))[1]

    constants, kernels = {}, {}
    for num_seqs in (1, 2, 3, 5, 8, 17, 40):
        for longest in (5, 17, 36):
            lengths = [longest, *[3] * (num_seqs - 1)]
            for kernel, arguments in launches(lengths, width=-(-longest // 4) + num_seqs % 3, tokens_per_split=4):
                special = specialize(kernel, arguments, targets.find("sm_90"))
                marked = {name: arguments[name] for name, kind in kernel.fn.__annotations__.items()}
                constants.setdefault(kernel.fn.__name__, set()).add(str(marked))
                kernels.setdefault(kernel.fn.__name__, set()).add(str(special))
    assert all(len(different) == 1 for different in constants.values()) and len(constants) == 3
    assert all(len(different) <= 8 for different in kernels.values()), kernels
