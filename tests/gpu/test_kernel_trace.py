import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from pagedlab.errors import PagedLabError
from pagedlab.gpu import interpreter as hands
from pagedlab.gpu import mode
from pagedlab.gpu.strict import KernelError, strict
from pagedlab.gpu.trace import trace
from pagedlab.widgets import TileViewer

pytestmark = pytest.mark.skipif(not mode.is_interpreting(), reason="watches the interpreter")


@triton.jit
def add_kernel(x, y, out, n, TILE: tl.constexpr):
    offsets = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def load_tile(pages, block, mask, BLOCK_SIZE: tl.constexpr):
    return tl.load(pages + block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE), mask=mask, other=0.0)


@triton.jit
def paged_sum_kernel(pages, tables, lens, out, table_stride, BLOCK_SIZE: tl.constexpr):
    """Sums and largest numbers of sequences that lie in pages."""
    row = tl.program_id(0)
    length = tl.load(lens + row)
    running_max = float("-inf")
    running_sum = 0.0
    for start in range(
        0,
        length,
        BLOCK_SIZE,
    ):
        block = tl.load(tables + row * table_stride + start // BLOCK_SIZE)
        mask = start + tl.arange(0, BLOCK_SIZE) < length
        numbers = load_tile(pages, block, mask, BLOCK_SIZE)
        if start > 0:
            running_sum += 0.0
        running_sum += tl.sum(numbers, 0)
        running_max = tl.maximum(running_max, tl.max(numbers, 0))
    tl.store(out + row, running_sum)


def paged():
    return {
        "pages": torch.arange(40, dtype=torch.float32),
        "tables": torch.tensor([[7, 2, 9], [4, -1, -1]], dtype=torch.int32),
        "lens": torch.tensor([10, 3], dtype=torch.int32),
        "out": torch.zeros(2),
        "table_stride": 3,
        "BLOCK_SIZE": 4,
    }


def test_loads_and_stores_of_every_program():
    x, y, out = torch.arange(6.0), torch.ones(6), torch.zeros(6)
    traced = trace(add_kernel, (2,), {"x": x, "y": y, "out": out, "n": 6, "TILE": 4, "unknown": 3})
    assert out.tolist() == [1, 2, 3, 4, 5, 6]
    assert traced.grid == (2, 1, 1) and [one.pid for one in traced.programs] == [(0, 0, 0), (1, 0, 0)]
    seen = [(e.kind, e.tensor, e.elements.tolist(), e.lanes, e.shape, e.step) for e in traced.program(1).events]
    assert seen == [
        ("load", "x", [4, 5], 4, (4,), 0),
        ("load", "y", [4, 5], 4, (4,), 0),
        ("store", "out", [4, 5], 4, (4,), 0),
    ]
    assert {traced.source[event.line - 1].strip()[:8] for event in traced.program(0).events} == {"tl.store"}
    assert traced.program(0).num_steps == 0 and traced.program(0).blocks("x", 2) == [[0, 1], []]
    assert traced.tensors["x"].shape == (6,) and "n" not in traced.tensors


def test_steps_of_a_loop_and_its_running_numbers():
    arguments = paged()
    traced = trace(paged_sum_kernel, (2,), arguments)
    long, short = traced.programs
    assert arguments["out"].tolist() == [28 + 29 + 30 + 31 + 8 + 9 + 10 + 11 + 36 + 37, 16 + 17 + 18]
    assert long.blocks("pages", 4) == [[], [7], [2], [9], []]
    assert short.blocks("pages", 4) == [[], [4], []]
    assert [event.step for event in long.events] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert long.at(3)[1].elements.tolist() == [36, 37]
    assert [float(step["running_max"]) for step in long.variables] == [31, 31, 37]
    assert [float(step["running_sum"]) for step in long.variables] == [118, 156, 229]
    assert [traced.source[event.line - 1].split("=")[0].strip() for event in long.events[:3]] == [
        "length",
        "block",
        "numbers",
    ]


def test_a_length_of_zero_has_no_steps():
    arguments = paged()
    arguments["lens"][0] = 0
    program = trace(paged_sum_kernel, (2,), arguments).program(0)
    assert program.num_steps == 0 and [event.tensor for event in program.events] == ["lens", "out"]


def test_only_the_programs_that_were_asked_for_but_all_of_them_run():
    arguments = paged()
    traced = trace(paged_sum_kernel, (2,), arguments, programs=[1], watch=["numbers", "block", "start", "nothing"])
    assert [one.pid for one in traced.programs] == [(1, 0, 0)] and arguments["out"][0] != 0
    last = traced.programs[0].variables[0]
    assert last["numbers"].tolist() == [16, 17, 18, 0] and last["block"] == 4 and last["block"].shape == ()
    assert sorted(last) == ["block", "numbers", "start"]
    with pytest.raises(PagedLabError, match="program \\(0, 0, 0\\) was not traced"):
        traced.program(0)


def test_views_and_shared_storage_keep_their_names():
    both = torch.zeros(5, 2, 4)  # interleaved
    x, out = both[:, 0], both[:, 1]

    @triton.jit
    def rows_kernel(x, out, x_stride, out_stride, TILE: tl.constexpr):
        row, lanes = tl.program_id(0), tl.arange(0, TILE)
        tl.store(out + row * out_stride + lanes, tl.load(x + row * x_stride + lanes))

    traced = trace(rows_kernel, (5,), {"x": x, "out": out, "x_stride": 8, "out_stride": 8, "TILE": 4}, programs=[3])
    assert [(event.tensor, event.elements.tolist()) for event in traced.programs[0].events] == [
        ("x", [24, 25, 26, 27]),
        ("out", [24, 25, 26, 27]),
    ]
    assert traced.tensors["out"].strides == (8, 1)


@triton.jit
def while_kernel(out, n):
    running_sum = 0
    while n > 0:
        running_sum += n
        if running_sum > 9:
            for lane in range(2):
                tl.store(out + lane, running_sum)
            n = 0
        n -= 1
    for _ in tl.static_range(2):
        running_sum += 1
    tl.store(out + 2, running_sum)


def test_while_loops_one_after_the_other_and_inside():
    program = trace(while_kernel, (1,), {"out": torch.zeros(3, dtype=torch.int32), "n": 4}).programs[0]
    assert [int(step["running_sum"]) for step in program.variables] == [4, 7, 9, 10, 11, 12]
    assert [event.step for event in program.events] == [4, 4, 7]


@triton.jit
def break_kernel(x, out, n):
    total = 0.0
    for i in range(n):
        number = tl.load(x + i)
        total += number
        if number > 2:
            return
    tl.store(out, total)


def test_a_return_within_the_loop_ends_an_iteration():
    program = trace(
        break_kernel, (1,), {"x": torch.arange(9.0), "out": torch.zeros(1), "n": 9}, watch=["total"]
    ).programs
    assert [float(step["total"]) for step in program[0].variables] == [0, 1, 3, 6]


def test_a_trace_is_plain_data():
    traced = trace(paged_sum_kernel, (2,), paged())
    again = pickle.loads(pickle.dumps(traced))
    assert json.dumps(again.as_dict()) == json.dumps(traced.as_dict())
    assert isinstance(traced.as_dict()["programs"][0]["events"][1]["elements"], list)


def test_strict_and_trace_together():
    with strict(order="reversed"):
        traced = trace(paged_sum_kernel, (2,), paged())
        assert [one.pid[0] for one in traced.programs] == [1, 0]
        assert traced.program(0).blocks("pages", 4) == [[], [7], [2], [9], []]
        with pytest.raises(KernelError, match="lens, whose last one is 1"):
            trace(paged_sum_kernel, (3,), paged())


def test_several_threads():
    alone = trace(paged_sum_kernel, (2,), paged()).as_dict()
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(trace, paged_sum_kernel, (2,), paged()) for _ in range(6)]:
            assert done.result().as_dict() == alone


def test_everything_is_put_back():
    def seen(*_):
        return None

    paged_sum_kernel[(2,)](**paged())
    before = dict(vars(hands.builder), grid_idx=0, grid_dim=0)
    previous = sys.gettrace()
    sys.settrace(seen)
    try:
        trace(paged_sum_kernel, (2,), paged())
        with pytest.raises(Exception, match="power of 2"):
            trace(paged_sum_kernel, (2,), {**paged(), "BLOCK_SIZE": 3})
        assert sys.gettrace() is seen
    finally:
        sys.settrace(previous)
    assert dict(vars(hands.builder), grid_idx=0, grid_dim=0) == before


def test_what_cannot_be_traced():
    with pytest.raises(PagedLabError, match="asks for lens; there are"):
        trace(paged_sum_kernel, (2,), {name: value for name, value in paged().items() if name != "lens"})
    with pytest.raises(PagedLabError, match="not function"):
        trace(test_what_cannot_be_traced, (2,), {})


def test_elements_are_int64_even_far_away():
    x = torch.zeros(1).expand(2**33)

    @triton.jit
    def far_kernel(x, out, offset):
        tl.store(out, tl.load(x + offset * 0) + offset)

    traced = trace(far_kernel, (1,), {"x": x, "out": torch.zeros(1), "offset": 2**32})
    assert traced.programs[0].events[0].elements.dtype == np.int64


def test_without_its_text_it_shows_where_but_not_how():
    x, y, out = torch.arange(8.0), torch.ones(8), torch.zeros(8)
    traced = trace(add_kernel, (2,), {"x": x, "y": y, "out": out, "n": 8, "TILE": 4})
    hidden = traced.without_text()
    assert traced.source and hidden.source == [] and hidden.programs == traced.programs
    assert "tl.store" in TileViewer(traced).svg() and "tl.store" not in TileViewer(hidden).svg()
