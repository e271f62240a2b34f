"""Compiling for GPUs that are not there: figures, reasons, and a process that is always gone afterwards."""

import gzip
import importlib
import linecache
import os
import re
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from pagedlab.errors import PagedLabError
from pagedlab.gpu import carry, compile_cache, compile_jobs, compiled, mode
from pagedlab.gpu.compiled import CompileError, Pointer, compile_kernel, compile_many

pytest.importorskip("triton")
mode.choose()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

PLAIN = 7
FACTOR = tl.constexpr(3.0)


@triton.jit
def scaled(x):
    return x * FACTOR


@triton.jit
def copy(out, x, stride, N: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, N)
    tl.store(out + at, scaled(tl.load(x + at)))


@triton.jit
def product(out, x, ROWS: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr = None):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, N)
    x = tl.load(x + rows[:, None] * N + columns[None, :])
    y = tl.dot(x, tl.trans(x), input_precision=PRECISION)
    tl.store(out + rows[:, None] * ROWS + rows[None, :], y)


@triton.jit
def cumbersome(out, x, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x + at)
    tl.store(out + at, x * tl.sum(x, 0)[None, :])


@triton.jit
def to_be_written(out):
    raise NotImplementedError("your code")


@triton.jit
def unknown_name(out):
    tl.store(out, missing)  # noqa: F821


@triton.jit
def unknown_name_in_helper(out):
    tl.store(out, helper_with_a_mistake(1))


@triton.jit
def helper_with_a_mistake(x):
    return x + missing  # noqa: F821


@triton.jit
def plain_global(out):
    tl.store(out, PLAIN)


@triton.jit
def odd_tile(out):
    tl.store(out + tl.arange(0, 12), 0)


@triton.jit
def tile_as_condition(out, N: tl.constexpr):
    if tl.arange(0, N) > 3:
        tl.store(out, 0)


@triton.jit
def changing_type(out, N: tl.constexpr):
    acc = 0
    for _ in range(0, 4):
        acc = acc + tl.zeros([N], tl.float32)
    tl.store(out + tl.arange(0, N), acc)


@triton.jit
def bad_assembly(out):
    tl.store(out, tl.inline_asm_elementwise("no.such.instruction $0, $1;", "=r,r", [1], tl.int32, True, 1))


class Surprise:
    """Arriving in the other process, it does something there."""

    def __init__(self, *does):
        self.does = does

    def __reduce__(self):
        return self.does[0], self.does[1:]


@triton.jit
def takes_a_constant(out, CONSTANT: tl.constexpr):
    tl.store(out, 0)


@triton.constexpr_function
def modules():
    return "torch" in sys.modules, "TRITON_INTERPRET" in os.environ and os.environ["TRITON_INTERPRET"]


@triton.jit
def says_where_it_is(out):
    tl.static_assert(modules()[0] == False, "torch was imported")  # noqa: E712
    tl.static_assert(modules()[1] == "0", "it interprets")
    tl.store(out, 0)


F16, F32, BF16 = Pointer("float16"), Pointer("float32"), Pointer("bfloat16")
COPY = {"out": F16, "x": F16, "stride": 1024, "N": 1024}
SQUARE = {"out": F32, "x": F16, "ROWS": 64, "N": 64}
ONE_WARP = {"num_warps": 1}

JOBS = {
    "copy": (copy, COPY, "sm_80", {}),
    "copy of a tensor": (copy, COPY | {"x": torch.empty(2048, dtype=torch.float16)[1024:]}, "sm_80", {}),
    "copy from an odd address": (copy, COPY | {"x": torch.empty(2048, dtype=torch.float16)[1:]}, "sm_80", {}),
    "copy with an odd stride": (copy, COPY | {"stride": 1000}, "sm_80", {}),
    "copy for AMD": (copy, COPY | {"N": 2048}, "gfx942", {}),
    "product": (product, SQUARE, "sm_80", {}),
    "product on sm_75": (product, SQUARE, "sm_75", {}),
    "product on sm_90": (product, SQUARE, "sm_90", {}),
    "product on sm_100": (product, SQUARE | {"ROWS": 128}, "sm_100", {}),
    "product for AMD": (product, SQUARE, "gfx942", {}),
    "product for AMD's gfx1100": (product, SQUARE, "gfx1100", {}),
    "product of float32": (product, SQUARE | {"x": F32}, "sm_80", {}),
    "exact product of float32": (product, SQUARE | {"x": F32, "PRECISION": "ieee"}, "sm_80", {}),
    "cumbersome": (cumbersome, {"out": F32, "x": F32, "N": 64}, "sm_80", ONE_WARP),
    "cumbersome in few registers": (cumbersome, {"out": F32, "x": F32, "N": 64}, "sm_80", ONE_WARP | {"maxnreg": 32}),
    "to_be_written": (to_be_written, {"out": F32}),
    "unknown_name": (unknown_name, {"out": F32}),
    "unknown_name_in_helper": (unknown_name_in_helper, {"out": F32}),
    "plain_global": (plain_global, {"out": F32}),
    "odd_tile": (odd_tile, {"out": F32}),
    "tile_as_condition": (tile_as_condition, {"out": F32, "N": 16}),
    "changing_type": (changing_type, {"out": F32, "N": 16}),
    "bad_assembly": (bad_assembly, {"out": F32}),
    "small product": (product, SQUARE | {"N": 8}, "sm_80", {}),
    "float8 on sm_80": (product, SQUARE | {"x": Pointer("float8_e4m3fn")}, "sm_80", {}),
    "float8 on sm_89": (product, SQUARE | {"x": Pointer("float8_e4m3fn")}, "sm_89", {}),
    "three warps": (copy, COPY, "sm_80", {"num_warps": 3}),
    "too many warps": (copy, COPY, "sm_80", {"num_warps": 64}),
    "crashes": (takes_a_constant, {"out": F32, "CONSTANT": Surprise(os._exit, 3)}),
    "says_where_it_is": (says_where_it_is, {"out": F32}),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder of our own: everything here is really compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def made(cache):
    """What became of JOBS, by name; the order in which they were ready under "order"."""
    order = []
    results = compile_many(JOBS.values(), keep_errors=True, done=lambda number, result: order.append(number))
    return dict(zip(JOBS, results, strict=True)) | {"order": order}


def test_all_are_done_in_order(made):
    assert made["order"] == list(range(len(JOBS)))


def test_a_copy_is_wide(made):
    found = made["copy"].instructions
    assert (found.loads_16b, found.stores_16b) == (1, 1)
    assert (found.other_loads, found.other_stores, found.local_loads, found.local_stores) == (0, 0, 0, 0)
    assert found.tensor_core == 0 and found.tensor_core_kind == ""
    assert made["copy"].spill_bytes == made["copy"].shared_bytes == 0
    assert 8 <= made["copy"].registers <= 32
    assert made["copy"].advice() == []


def test_figures_agree_with_the_texts(made):
    for result in made.values():
        if isinstance(result, compiled.CompiledKernel) and result.target.backend == "cuda":
            highest = max(int(number) for number in re.findall(r"\bR(\d+)\b", result.sass))
            assert highest < result.registers <= highest + 16
            assert f".target {result.target.name}" in result.ptx
            assert bool(result.spill_bytes) == bool(result.instructions.local_stores), result


def test_what_is_known_of_the_arguments_counts(made):
    """The address, and whether 16 divides a stride: without, two bytes at a time."""
    assert made["copy of a tensor"] == made["copy"]
    read, written = made["copy from an odd address"].instructions, made["copy with an odd stride"].instructions
    assert (read.loads_16b, read.other_loads, read.stores_16b) == (0, 8, 1)
    assert (written.loads_16b, written.stores_16b) == (0, 0) and written.other_stores == 8


def test_without_hints_only_types_count(made):
    found = compile_many([JOBS["copy"]], hints=False)[0]
    assert (found.instructions.loads_16b, found.instructions.other_loads) == (0, 8)
    (advice,) = [one for one in found.advice() if "read" in one]
    line = copy.fn.__code__.co_firstlineno + 3
    assert f"2 bytes at a time are read instead of 16 in line {line}, by 8" in advice
    assert "tl.load(x + at)" in advice


def test_accesses_have_their_lines(made):
    (load,) = [one for one in made["copy"].instructions.accesses if one.kind == "load"]
    assert made["copy"].line(load) == "tl.store(out + at, scaled(tl.load(x + at)))"
    assert (load.bytes, load.count, os.path.basename(load.file)) == (16, 1, os.path.basename(__file__))


def test_tensor_cores(made):
    kinds = {name: made[name].instructions.tensor_core_kind for name in JOBS if name.startswith("product")}
    assert kinds == {
        "product": "HMMA",
        "product on sm_75": "",
        "product on sm_90": "HGMMA",
        "product on sm_100": "UTCMMA",
        "product for AMD": "MFMA",
        "product for AMD's gfx1100": "WMMA",
        "product of float32": "HMMA",
    }
    assert any("no tensor core of sm_75" in one for one in made["product on sm_75"].advice())
    assert not any("tensor core" in one for one in made["product"].advice())


def test_float32_is_rounded_by_tensor_cores(made):
    rounded, exact = made["product of float32"], made["exact product of float32"]
    assert rounded.instructions.tf32 == rounded.instructions.tensor_core > 0
    assert any("TF32" in one for one in rounded.advice())
    assert exact.instructions.tensor_core == exact.instructions.tf32 == made["product"].instructions.tf32 == 0


def test_spills(made):
    free, tight = made["cumbersome"], made["cumbersome in few registers"]
    assert free.registers > 100 and free.spill_bytes == 0
    assert tight.registers == 32 and tight.spill_bytes > 100
    assert tight.instructions.local_loads > 0 and tight.instructions.local_stores > 0
    assert any("do not fit into registers" in one for one in tight.advice())
    assert tight.occupancy.limits["registers"] > free.occupancy.limits["registers"]


def test_amd(made):
    found = made["copy for AMD"]
    assert (found.instructions.loads_16b, found.instructions.stores_16b) == (1, 1)
    assert (found.ptx, found.spill_bytes) == ("", 0) and found.registers > 0
    assert "s_endpgm" in found.assembly


def test_a_summary_is_one_line(made):
    product = made["product"]
    assert product.summary() == (
        f"sm_80: {product.registers} registers, no spill, {product.shared_bytes:,} B shared, "
        f"{product.occupancy.blocks_per_sm} blocks per SM, {product.instructions.loads_16b} loads of 16 bytes, "
        f"{product.instructions.stores_16b} stores of 16 bytes, {product.instructions.tensor_core} HMMA"
    )
    assert repr(product) == f"<product, {product.summary()}>"
    assert f"{made['cumbersome in few registers'].spill_bytes:,} B spilled" in repr(made["cumbersome in few registers"])


def test_it_shows_itself_in_a_notebook(made):
    page = made["cumbersome in few registers"]._repr_html_()
    assert "<summary>PTX</summary>" in page and "<summary>SASS</summary>" in page
    assert "limited by" in page and "STL" in page and "do not fit into registers" in page
    assert os.path.dirname(__file__) not in page  # a notebook's output is the same wherever it runs
    assert "<summary>Assembly</summary>" in made["copy for AMD"]._repr_html_()
    assert "tl.store" in page and "tl.store" not in made["cumbersome in few registers"].without_text()._repr_html_()


REASONS = {
    "to_be_written": "a kernel can't raise",
    "unknown_name": "the name `missing` is not defined",
    "unknown_name_in_helper": "the name `missing` is not defined",
    "plain_global": "`PLAIN = tl.constexpr(...)`",
    "odd_tile": "must be a power of 2",
    "tile_as_condition": "`tl.where` or a mask",
    "changing_type": "`acc` begins a loop as int32",
    "small product": "sums over at least 16 numbers",
}


@pytest.mark.parametrize("name", REASONS)
def test_a_reason_and_its_line(made, name):
    error = made[name]
    assert isinstance(error, CompileError) and isinstance(error, PagedLabError)
    assert REASONS[name] in str(error) and "does not compile for sm_80" in str(error)
    assert f"`{error.line}`" in str(error) and f"Line {error.line_number}" in str(error)
    assert linecache.getline(__file__, error.line_number).strip() == error.line != ""


def test_a_mistake_in_a_helper_is_found_there(made):
    assert made["unknown_name_in_helper"].line == "return x + missing  # noqa: F821"
    assert "of helper_with_a_mistake" in str(made["unknown_name_in_helper"])


def test_reasons_without_a_line(made):
    assert "the assembler says: " in str(made["bad_assembly"]) and "Unknown modifier '.such'" in str(
        made["bad_assembly"]
    )
    assert "must be a power of 2" in str(made["three warps"])
    assert "has 64 warps in a block, and sm_80 takes 32" in str(made["too many warps"])
    assert made["too many warps"].compiled.num_warps == 64


def test_what_a_target_can_not_do(made):
    assert "sm_80 has no float8 e4m3 (fp8e4nv); sm_89 and later have" in str(made["float8 on sm_80"])
    assert made["float8 on sm_89"].instructions.tensor_core > 0


def test_a_crash_is_the_error_of_one_kernel(made):
    assert "process ended (exit code 3)" in str(made["crashes"])
    assert isinstance(made["says_where_it_is"], compiled.CompiledKernel)  # by the next process, without torch


def test_the_first_error_is_raised(cache):
    with pytest.raises(CompileError, match="power of 2"):
        compile_many([JOBS["copy"], JOBS["odd_tile"]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(target="sm_1"), "No target is called 'sm_1'"),
        (dict(arguments={"out": F16, "N": 16}), "asks for x, stride. There is N, out"),
        (dict(arguments=COPY | {"x": "abc"}), "x is a str. A kernel takes tensors and numbers"),
        (dict(arguments=COPY | {"x": (1, 2)}), "x is a tuple"),
        (dict(arguments=COPY | {"x": Pointer("float12")}), "x has numbers of type 'float12'"),
        (dict(options={"warps": 4}), "no option warps. There are num_warps, num_stages"),
        (dict(options={"maxnreg": 64}, target="gfx942"), "gfx942 has no option maxnreg"),
        (dict(options={"num_stages": "three"}), "num_stages must be a whole number, not 'three'"),
        (dict(arguments=COPY | {"x": np.zeros(3)}), "x is a ndarray"),
        (dict(kernel=len), "is not a kernel: decorate"),
    ],
)
def test_bad_input(change, said):
    job = {"kernel": copy, "arguments": COPY, "target": "sm_80", "options": {}} | change
    with pytest.raises(PagedLabError, match=said.replace("(", r"\(")):
        compile_many([tuple(job.values())])


def test_a_kernel_takes_what_it_names(made):
    assert compile_kernel(copy, COPY | {"seq_lens": F32, "TILE": 4}, num_stages=None) == made["copy"]


def test_options_may_be_numpys(cache):
    assert compile_kernel(copy, COPY, num_warps=np.int64(8)) == compile_kernel(copy, COPY, num_warps=8)


def test_quotes_in_the_name_of_a_file(cache, tmp_path):
    text = "\n@triton.jit\ndef kernel(out):\n    tl.store(out + tl.arange(0, 1024), 1.0)\n"
    path = str(tmp_path / 'a "kernel" of\'s' / "cell.py")
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    names = {"__name__": "__main__", "triton": triton, "tl": tl}
    exec(compile(text, path, "exec"), names)
    made = compile_kernel(names["kernel"], {"out": F16})
    assert {made.line(one) for one in made.instructions.accesses} == {"tl.store(out + tl.arange(0, 1024), 1.0)"}


def test_kernels_of_cells(cache, tmp_path):
    names = {"__name__": "__main__", "triton": triton, "tl": tl}
    cells = (
        "\n\n@triton.jit\ndef helper(x):\n    return tl.load(x + tl.arange(0, 1024))\n",
        "@triton.jit\ndef kernel(out, x):\n    tl.store(out + tl.arange(0, 1024), helper(x))\n",
    )
    for number, text in enumerate(cells):
        path = str(tmp_path / f"cell_{number}.py")
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        exec(compile(text, path, "exec"), names)
    made = compile_kernel(names["kernel"], {"out": F16, "x": F16})
    assert {(one.kind, one.bytes, one.line, made.line(one)) for one in made.instructions.accesses} == {
        ("load", 16, 5, "return tl.load(x + tl.arange(0, 1024))"),
        ("store", 16, 3, "tl.store(out + tl.arange(0, 1024), helper(x))"),
    }


# What is compiled once is kept.


@pytest.fixture
def no_process(monkeypatch):
    def run(kernels, jobs, seconds=0):
        assert not jobs, "it is compiled again"
        return iter(())

    monkeypatch.setattr(compile_jobs, "run", run)


def test_it_comes_from_the_cache(made, no_process):
    again = compile_many([job for name, job in JOBS.items() if isinstance(made[name], compiled.CompiledKernel)])
    assert again == [result for result in made.values() if isinstance(result, compiled.CompiledKernel)]


@pytest.mark.parametrize(
    "other", [{"stride": 2048}, {"stride": 160}, {"x": Pointer("float16", address=32)}, {"x": torch.zeros(4).half()}]
)
def test_arguments_that_make_no_difference(made, no_process, other):
    assert compile_kernel(copy, COPY | other) == made["copy"]


@pytest.mark.parametrize("other", [{"stride": 1}, {"stride": 2**31}, {"x": BF16}, {"N": 512}])
def test_arguments_that_make_one(made, no_process, other):
    with pytest.raises(AssertionError, match="compiled again"):
        compile_kernel(copy, COPY | other)


def test_a_damaged_entry_is_made_again(made):
    (path,) = [path for path in _entries() if compile_cache.get(path.stem)["assembly"] == made["copy"].assembly]
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-9] + b"wrong bit", gzip.compress(b"[]"), gzip.compress(b"{}")):
        path.write_bytes(damaged)
        assert compile_cache.get(path.stem) is None
    assert compile_kernel(copy, COPY) == made["copy"]
    assert path.read_bytes() == whole


def test_the_text_of_helpers_and_constants_count(tmp_path, monkeypatch):
    text = "import triton\nimport triton.language as tl\nTWO = tl.constexpr(2)\n\n"
    text += "@triton.jit\ndef helper(x):\n    return x + TWO\n\n\n"
    text += "@triton.jit\ndef kernel(out):\n    tl.store(out, helper(1))\n"
    keys = []
    monkeypatch.syspath_prepend(tmp_path)
    for number, (old, new) in enumerate(
        [("", ""), ("(2)", "(3)"), ("x +", "x -"), ("out, ", "out + 1, "), ("\n\n\n", "\n\n\n\n")]
    ):
        (tmp_path / f"kernels_{number}.py").write_text(text.replace(old, new, 1))
        keys.append(compile_cache.key(importlib.import_module(f"kernels_{number}").kernel, ""))
    assert len(set(keys)) == len(keys)
    (tmp_path / "kernels_again.py").write_text(text)
    assert compile_cache.key(importlib.import_module("kernels_again").kernel, "") == keys[0]


def test_only_so_many_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGEDLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(compile_cache, "MOST", 3)
    for number in range(5):
        compile_cache.put(f"entry{number}", {"assembly": str(number)})
        os.utime(compile_cache.folder() / f"entry{number}.gz", (number, number))
        if number == 2:
            assert compile_cache.get("entry0") == {"assembly": "0"}  # used, so the newest now
    assert {path.stem for path in _entries()} == {"entry0", "entry3", "entry4"}


def test_a_cache_that_can_not_be_written_is_no_reason_to_stop(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGEDLAB_CACHE", str(tmp_path / "file"))
    assert compile_kernel(plain_store, {"out": F32}).registers > 0


@triton.jit
def plain_store(out):
    tl.store(out, 1.0)


def _entries():
    return list(compile_cache.folder().glob("*.gz"))


# The process is gone afterwards, whatever happens.


def _children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if "compile_child" in " ".join(_command(one))]


def _command(process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _jobs(*constants) -> tuple[list, list]:
    """For compile_jobs.run: one kernel, compiled with each of these constants."""
    requests = [compiled._request(takes_a_constant, {"out": F32, "CONSTANT": one}, hints=True) for one in constants]
    return [carry.dump(takes_a_constant, by_value=True)], [
        compile_jobs.Job(0, request.target, request.special) for request in requests
    ]


NEVER_READY = Surprise(time.sleep, 1000)


def test_a_compilation_that_takes_for_ever_is_stopped_and_the_next_one_done():
    answers = dict(compile_jobs.run(*_jobs(NEVER_READY, 1), seconds=5.0))
    assert answers[0]["error"]["message"] == "it was still compiling after 5 seconds"
    assert "assembly" in answers[1] and not _children()


def test_an_interrupt_ends_the_process():
    running = compile_jobs.run(*_jobs(1, NEVER_READY), seconds=30.0)
    next(running)
    assert len(_children()) == 1
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt())
    assert not _children()


def test_the_process_ends_with_the_one_that_started_it(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pagedlab.gpu import mode; mode.interpret()\n"
        "import test_compiled as test\n"
        "running = test.compile_jobs.run(*test._jobs(1, test.NEVER_READY))\n"
        "next(running); print(test._children()[0].pid, flush=True); import os; os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, os.path.dirname(__file__)],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    with parent:
        pid = int(parent.stdout.readline())
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            assert list(tmp_path.iterdir()) == []
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    raise AssertionError("it was still there after ten seconds")


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such limit")
def test_two_gigabytes_are_enough(tmp_path):
    """What an exercise's check has, on top of what it begins with."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pagedlab.gpu import mode; mode.interpret()\n"
        "import test_compiled as test, resource\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + 2 * 2**30, resource.RLIM_INFINITY))\n"
        "names = ['product', 'product on sm_100', 'product for AMD']\n"
        "print(*test.compile_many([test.JOBS[name] for name in names]), sep='\\n')\n"
    )
    environment = os.environ | {"PAGEDLAB_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", program, os.path.dirname(__file__)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert [line.partition(",")[2].split(":")[0] for line in done.stdout.splitlines()] == [
        " sm_80",
        " sm_100",
        " gfx942",
    ], done.stderr
