"""Kernels as answers: told apart from functions, sent to another process with their text, stopped, explained."""

import linecache
import time

import pytest
import triton
import triton.language as tl

from pagedlab import check
from pagedlab.course.checking import _wrong_kind
from pagedlab.course.exercises import find
from pagedlab.course.kernel_probe import LAUNCH_SECONDS, SECONDS, compiled_notes
from pagedlab.course.parts import your_parts
from pagedlab.course.promise import TimeUp, Wrong
from pagedlab.gpu import compiled


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_HOME", str(tmp_path))


@pytest.fixture
def cell():
    """Run text as a notebook cell: its file exists only in linecache, its names only in a namespace."""
    made = []

    def run(text: str) -> dict:
        path = f"/nowhere/ipykernel_1/{len(made)}.py"
        made.append(path)
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        namespace = {"triton": triton, "tl": tl, "__name__": "__main__"}
        exec(compile(text, path, "exec"), namespace)
        return namespace

    yield run
    for path in made:
        del linecache.cache[path]


HEAD = '''
@triton.jit
def kv_write_kernel(
    keys, values, key_cache, value_cache, slot_mapping,
    keys_token_stride, keys_head_stride, values_token_stride, values_head_stride,
    key_block_stride, key_head_stride, key_slot_stride, value_block_stride, value_head_stride, value_slot_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_DIM: tl.constexpr,
):
    """A key and a value into their slot."""
'''

RIGHT = """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        dims = lanes(TILE_DIM)
        mask = dims < HEAD_DIM
        key = tl.load(keys + token * keys_token_stride + head * keys_head_stride + dims, mask=mask, other=0.0)
        there = block * key_block_stride + head * key_head_stride + place * key_slot_stride
        tl.store(key_cache + there + dims, key, mask=mask)
        value = tl.load(values + token * values_token_stride + head * values_head_stride + dims, mask=mask, other=0.0)
        there = block * value_block_stride + head * value_head_stride + place * value_slot_stride
        tl.store(value_cache + there + dims, value, mask=mask)
"""

HELPER = """
@triton.jit
def lanes(n: tl.constexpr):
    return tl.arange(0, n)
"""


def test_a_kernel_of_a_cell_is_judged_compiled_saved_and_handed_on(cell):
    result = check("kv_write_kernel", cell(HELPER + HEAD + RIGHT)["kv_write_kernel"])
    assert result.passed, result
    assert "On sm_80: " in str(result) and "On sm_90: " in str(result) and "registers" in str(result)
    parts = your_parts("kv_write_kernel")
    assert parts.origin["kv_write_kernel"] == "✓ yours"
    again = check("kv_write_kernel", parts.kv_write_kernel, keep=False)  # its text has come along, the helper's too
    assert again.passed, again


def test_a_stub_is_not_attempted(cell):
    stub = cell(HEAD + "    raise NotImplementedError  # your code here: about 10 lines\n")["kv_write_kernel"]
    assert check("kv_write_kernel", stub).status == "not attempted"


def test_half_a_stub_is_not_attempted(cell):
    text = HELPER + HEAD + RIGHT.replace("    if slot >= 0:", "    raise NotImplementedError\n    if slot >= 0:")
    assert check("kv_write_kernel", cell(text)["kv_write_kernel"]).status == "not attempted"


def test_the_line_of_an_error_is_shown(cell):
    text = HELPER + HEAD + RIGHT.replace("slot % BLOCK_SIZE", "slot % BLOCK_SIZ")
    (failure, *_) = check("kv_write_kernel", cell(text)["kv_write_kernel"]).failures
    assert "BLOCK_SIZ" in failure.message
    assert "block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZ" in failure.where


def test_the_line_of_an_error_within_a_function_of_tritons(cell):
    text = HELPER + HEAD + RIGHT.replace("mask=mask, other=0.0)", "mask=mask, other=tl.max(slot, 1))", 1)
    (failure, *_) = check("kv_write_kernel", cell(text)["kv_write_kernel"]).failures
    assert failure.message.startswith("Your answer raised ")
    assert "other=tl.max(slot, 1)" in failure.where


def test_an_endless_loop_is_stopped(cell):
    text = HELPER + HEAD + RIGHT + "        while slot >= 0:\n            slot = slot + 0\n"
    started = time.monotonic()
    (failure, *_) = check("kv_write_kernel", cell(text)["kv_write_kernel"]).failures
    assert "still running" in failure.message
    assert LAUNCH_SECONDS < time.monotonic() - started < SECONDS  # one launch ends it, not the whole check


def test_an_argument_that_there_is_not(cell):
    text = HELPER + HEAD.replace("slot_mapping,", "slots,") + RIGHT.replace("slot_mapping", "slots")
    (failure, *_) = check("kv_write_kernel", cell(text)["kv_write_kernel"]).failures
    assert "asks for slots" in failure.message and "slot_mapping" in failure.message


def test_bare_names_of_tritons_are_told(cell):
    text = "from triton.language import *\n" + (HELPER + HEAD + RIGHT).replace("tl.", "")
    (failure, *_) = check("kv_write_kernel", cell(text)["kv_write_kernel"]).failures
    assert "by a bare name" in failure.message and "tl.load" in failure.hint


def test_a_compiler_that_takes_too_long_is_no_endless_loop(monkeypatch):
    def compile_many(jobs):
        raise TimeUp

    monkeypatch.setattr(compiled, "compile_many", compile_many)
    with pytest.raises(Wrong, match="the compiler was still at work"):
        compiled_notes(None, {}, "kernel[(1,)]()")


def test_a_decorator_above_triton_jit_is_told(cell):
    decorated = triton.heuristics({"TILE_DIM": lambda arguments: 4})(cell(HELPER + HEAD + RIGHT)["kv_write_kernel"])
    assert "a decorator above @triton.jit" in _wrong_kind(find("kv_write_kernel"), decorated).message


def test_what_is_no_kernel():
    def plain():
        pass

    exercise = find("kv_write_kernel")
    assert "@triton.jit" in _wrong_kind(exercise, plain).message
    assert "without launching" in _wrong_kind(exercise, None).message
