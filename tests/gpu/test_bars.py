"""What the package's kernels must compile to, with no GPU: the bars, and the traps that only a compiler shows.

`python tests/gpu/test_bars.py` writes `expected_figures.json` anew, after a change that was meant.
"""

import dataclasses
import json
import linecache
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from pagedlab.gpu import mode

pytest.importorskip("triton")
mode.choose()

import torch  # noqa: E402

from pagedlab.gpu.compiled import CompiledKernel, CompileError, compile_many  # noqa: E402
from pagedlab.gpu.targets import TARGETS  # noqa: E402
from pagedlab.gpu.trace import trace  # noqa: E402
from pagedlab.kernels import decode  # noqa: E402
from pagedlab.kernels.figures import CASES, decode_case, prefill_case, row  # noqa: E402

EXPECTED = Path(__file__).with_name("expected_figures.json")
BIG, SMALL = ("sm_80", "sm_90", "sm_100"), ("sm_86", "sm_89", "sm_120")  # by their shared memory
EXPECTED_CASES = ("decode", "decode, one split", "prefill, tile 64", "write", "copy", "merge, 8 splits")
DECODE = {"tile": 64, "num_warps": 4, "num_stages": 3}


def variant(pattern: str, replacement: str):
    """The decode kernel with one thing changed, and how often it stood there: a learner's mistake to be compiled."""
    text, times = re.subn(pattern, replacement, Path(decode.__file__).read_text())
    name = f"<decode, changed {times} times>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    assert times
    return names["paged_decode_kernel"]


def jobs() -> dict[tuple[str, str], tuple]:
    """(name, target) to (kernel, arguments, target, options)."""
    found = {(case, target): (CASES[case](), target) for case in EXPECTED_CASES for target in BIG}
    found["prefill, tile 64", "gfx942"] = prefill_case(), "gfx942"
    for target in (*SMALL, "gfx942"):
        found["decode, tile 32", target] = decode_case(tile=32), target
    for target in ("sm_80", *SMALL):
        found["prefill, tile 32", target] = prefill_case(tile=32), target
    for head_dim in (72, 96, 120):
        found[f"head_dim {head_dim}", "sm_80"] = decode_case(head_dim, **DECODE), "sm_80"
    found["group 1", "sm_80"] = decode_case(group_size=1, **DECODE), "sm_80"
    found["tile 32, 2 stages", "sm_80"] = decode_case(tile=32, num_stages=2), "sm_80"
    found["bfloat16", "sm_75"] = decode_case(dtype=torch.bfloat16, tile=32), "sm_75"
    found["bfloat16", "sm_90"] = decode_case(dtype=torch.bfloat16), "sm_90"
    found["float32", "sm_80"] = decode_case(dtype=torch.float32), "sm_80"
    found["head_dim 256, 5 stages", "sm_86"] = decode_case(256, tile=64, num_stages=5), "sm_86"
    found["5 stages", "gfx942"] = decode_case(num_stages=5), "gfx942"

    _, arguments, options = decode_case(**DECODE)
    found["tile 8", "sm_80"] = (decode.paged_decode_kernel, arguments | {"TILE": 8}, options), "sm_80"
    plain_strides = variant(r"(\w+_stride): tl.constexpr", r"\1")
    found["plain strides", "sm_80"] = (plain_strides, arguments, options), "sm_80"
    _, arguments, options = decode_case(120, **DECODE)
    found["plain strides, head_dim 120", "sm_80"] = (plain_strides, arguments, options), "sm_80"
    _, arguments, options = decode_case(dtype=torch.float32)
    found["float32, as tl.dot likes", "sm_80"] = (variant(', input_precision="ieee"', ""), arguments, options), "sm_80"
    return {key: (*description[:2], target, description[2]) for key, (description, target) in found.items()}


@pytest.fixture(scope="session")
def made():
    todo = jobs()
    plain = todo["plain strides", "sm_80"]
    found = dict(zip(todo, compile_many(todo.values(), keep_errors=True), strict=True))
    return found | {("no hints", "sm_80"): compile_many([plain], hints=False, keep_errors=True)[0]}


def accesses(made: CompiledKernel, name: str) -> list[tuple[str, int]]:
    """(kind, bytes) of each access in the lines that name this."""
    found = made.instructions.accesses
    return [pair for one in found if name in made.line(one) for pair in [(one.kind, one.bytes)] * one.count]


def no_spill(made: CompiledKernel) -> bool:
    return (made.spill_bytes, made.instructions.local_loads, made.instructions.local_stores) == (0, 0, 0)


# 1-3, 5, 6: decode with a head_dim of 128.


@pytest.mark.parametrize("case", ["decode", "decode, one split"])
@pytest.mark.parametrize("target", BIG)
def test_decode(made, case, target):
    found = made[case, target]
    assert (found.num_warps, found.num_stages) == (4, 3)
    assert no_spill(found)
    assert accesses(found, "key_cache +") == accesses(found, "value_cache +") == [("async copy", 16)] * 16
    assert all(kind == "async copy" for kind, _ in accesses(found, "block_tables +"))
    assert len(accesses(found, "block_tables +")) >= 2
    assert found.instructions.waits > 0
    assert found.instructions.other_loads <= 4
    assert found.instructions.tensor_cores == {"HMMA": 32}
    assert found.registers <= 128
    assert found.occupancy.blocks_per_sm >= 4
    assert found.shared_bytes <= 40 * 1024
    assert found.advice() == []


@pytest.mark.parametrize("target", SMALL)
def test_decode_with_less_shared_memory(made, target):
    found = made["decode, tile 32", target]
    assert no_spill(found) and found.registers <= 128
    assert found.occupancy.blocks_per_sm >= 4
    assert accesses(found, "key_cache +") == accesses(found, "value_cache +") == [("async copy", 16)] * 8
    assert found.instructions.tensor_core_kind == "HMMA"


def test_decode_with_small_tiles_has_many_programs(made):
    assert made["tile 32, 2 stages", "sm_80"].occupancy.blocks_per_sm >= 7


def test_shared_memory_fits_every_target(made):
    least = min(target.max_shared_per_block for target in TARGETS.values() if target.backend == "cuda")
    assert all(made["decode", target].shared_bytes <= least for target in BIG)


@pytest.mark.parametrize("head_dim", [72, 96, 120])
def test_a_head_dim_that_is_no_power_of_two_is_wide_too(made, head_dim):
    found = made[f"head_dim {head_dim}", "sm_80"]
    assert no_spill(found)
    assert accesses(found, "key_cache +") == accesses(found, "value_cache +") == [("async copy", 16)] * 16


def test_bfloat16_is_as_good(made):
    found = made["bfloat16", "sm_90"]
    assert no_spill(found) and found.instructions.tensor_cores == {"HMMA": 32}


def test_amd(made):
    found = made["decode, tile 32", "gfx942"]
    assert no_spill(found)
    assert found.instructions.tensor_core_kind == "MFMA"
    assert accesses(found, "key_cache +") and set(accesses(found, "key_cache +")) == {("load", 16)}
    assert accesses(found, "value_cache +") and set(accesses(found, "value_cache +")) == {("load", 16)}


# 4: matrices of 64 rows.


@pytest.mark.parametrize(("target", "kind"), [("sm_90", "HGMMA"), ("sm_100", "UTCMMA"), ("gfx942", "MFMA")])
def test_prefill_uses_the_large_tensor_core_instructions(made, target, kind):
    found = made["prefill, tile 64", target]
    assert found.instructions.tensor_core_kind == kind
    assert "HMMA" not in found.instructions.tensor_cores
    assert no_spill(found)
    assert {size for kind, size in accesses(found, "key_cache")} == {16}


@pytest.mark.parametrize("target", ["sm_80", *SMALL])
def test_prefill_where_tiles_are_smaller(made, target):
    found = made["prefill, tile 32", target]
    assert no_spill(found) and found.instructions.tensor_core_kind == "HMMA"
    assert set(accesses(found, "key_cache")) == {("async copy", 16)}


# 8: the kernels that only move.


@pytest.mark.parametrize("case", ["write", "copy"])
@pytest.mark.parametrize("target", BIG)
def test_moving_is_wide(made, case, target):
    found = made[case, target].instructions
    assert (found.loads_16b, found.stores_16b) == {"write": (2, 2), "copy": (4, 4)}[case]
    assert found.other_stores == 0
    assert found.other_loads == {"write": 1, "copy": 2}[case]  # the slot, the pair
    assert made[case, target].registers <= 32 and no_spill(made[case, target])


@pytest.mark.parametrize("target", BIG)
def test_the_merge_fills_a_multiprocessor(made, target):
    found = made["merge, 8 splits", target]
    assert found.occupancy.fraction == 1.0 and no_spill(found)
    assert set(accesses(found, "partial_out +")) == {("load", 16)}


# 9: how much is read.


def test_keys_and_values_are_read_once_for_each_kv_head(made):
    """However many query heads share them."""
    for name in ("group 1", "decode"):
        assert len(accesses(made[name, "sm_80"], "key_cache +")) == 16


def test_bytes_are_those_of_the_model():
    """2 * sequences * tokens * kv heads * head_dim elements of keys and values, whatever the group and the splits."""
    for group_size, num_splits in ((1, 1), (4, 1), (4, 2), (7, 3)):
        lens = [80, 16, 33]
        q = torch.zeros(len(lens), 2 * group_size, 16, dtype=torch.float16)
        key_cache = torch.zeros(8, 2, 16, 16, dtype=torch.float16)
        tables = torch.arange(15, dtype=torch.int32).reshape(3, 5) % 8
        grid, arguments, _ = decode.decode_launch(
            q, key_cache, key_cache.clone(), tables, torch.tensor(lens), num_splits=num_splits, tile=32
        )
        traced = trace(decode.paged_decode_kernel, grid, arguments)
        for name in ("key_cache", "value_cache"):
            read = sum(len(one.elements) for program in traced.programs for one in program.events if one.tensor == name)
            assert read == sum(lens) * 2 * 16


# Traps that only a compiler shows.


def test_hint_cliff(made):
    """Compiled without what a launch says of the arguments, the same kernel is another one."""
    found, hinted = made["no hints", "sm_80"], made["plain strides", "sm_80"]
    assert found.registers > 200 and found.spill_bytes > 0
    assert found.instructions.async_copies_16b == found.instructions.loads_16b == 0
    assert found.instructions.other_loads > 100
    assert any("bytes at a time are read" in one for one in found.advice())
    assert hinted.spill_bytes == 0 and hinted.instructions.async_copies_16b == 32


def test_trap_38(made):
    """A page of 8 tokens as the tile: the interpreter multiplies it, a GPU can't."""
    error = made["tile 8", "sm_80"]
    assert isinstance(error, CompileError)
    assert "sums over at least 16 numbers" in str(error) and "tl.dot" in error.line


def test_trap_40(made):
    """A head_dim of 120 with plain strides: 16 does not divide them, so numbers are read one by one."""
    broken, right = made["plain strides, head_dim 120", "sm_80"], made["head_dim 120", "sm_80"]
    assert broken.spill_bytes > 0 and broken.instructions.async_copies_16b == 0
    assert broken.instructions.other_loads > 100
    assert right.spill_bytes == 0 and right.instructions.async_copies_16b == 32


def test_trap_44(made):
    """float32 through tensor cores is TF32, if one does not ask for more."""
    broken, right = made["float32, as tl.dot likes", "sm_80"], made["float32", "sm_80"]
    assert broken.instructions.tf32 == broken.instructions.tensor_core > 0
    assert any("rounded to TF32" in one for one in broken.advice())
    assert right.instructions.tf32 == 0 and not any("TF32" in one for one in right.advice())


def test_trap_47(made):
    """sm_75 compiles, bfloat16 too, and no tensor core is used."""
    found = made["bfloat16", "sm_75"]
    assert found.instructions.tensor_core == found.instructions.async_copies_16b == 0
    assert any("`tl.dot` uses no tensor core of sm_75" in one for one in found.advice())


@pytest.mark.parametrize("key", [("head_dim 256, 5 stages", "sm_86"), ("5 stages", "gfx942")])
def test_trap_49(made, key):
    """More shared memory than a block may have: Triton compiles it, and the launch fails."""
    error = made[key]
    limit = TARGETS[key[1]].max_shared_per_block
    assert isinstance(error, CompileError) and error.compiled.shared_bytes > limit
    assert f"{error.compiled.shared_bytes:,} bytes of shared memory" in str(error) and f"at most {limit:,}" in str(
        error
    )


# The figures as they were, so that a change is seen. Small ones are let pass.


def rows(made) -> dict[str, dict]:
    keys = [(case, target) for case in EXPECTED_CASES for target in BIG] + [("decode, tile 32", "gfx942")]
    return {f"{case} on {target}": dataclasses.asdict(row(case, target, made[case, target])) for case, target in keys}


def test_figures_are_as_they_were(made):
    expected = json.loads(EXPECTED.read_text())
    if version("triton") != expected["triton"]:
        pytest.skip(f"the figures are those of Triton {expected['triton']}")
    assert rows(made).keys() == expected["figures"].keys()
    for name, found in rows(made).items():
        was = expected["figures"][name]
        assert abs(found["registers"] - was["registers"]) <= 8, name
        assert abs(found["shared_bytes"] - was["shared_bytes"]) <= 2048, name
        same = (
            "num_warps",
            "num_stages",
            "spill_bytes",
            "wide",
            "wide_stores",
            "narrow_stores",
            "tensor_cores",
            "error",
        )
        assert {key: found[key] for key in same} == {key: was[key] for key in same}, name


def write() -> None:
    todo = jobs()
    found = dict(zip(todo, compile_many(todo.values(), keep_errors=True), strict=True))
    content = {"triton": version("triton"), "figures": rows(found)}
    EXPECTED.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    write()
