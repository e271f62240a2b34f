"""A kernel goes to another process, of either mode, and does there what it did here."""

import importlib
import linecache
import os
import pickle
import subprocess
import sys

import cloudpickle
import pytest

from pagedlab.gpu import carry, mode

pytest.importorskip("triton")
mode.choose()

CELL = '''
import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.5)


@triton.constexpr_function
def twice(number):
    return 2 * number


@triton.jit
def scaled_sum(x):
    return tl.sum(x, 0) * LOG2E


@triton.jit(do_not_specialize=["n"])
def kernel(out, x, n, BLOCK: tl.constexpr = 16):
    """Does not fit into one line, and has a comment."""
    at = tl.arange(0, BLOCK)  # one block is enough
    x = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out, scaled_sum(x) + twice(BLOCK))
'''

RUN = """
import sys
from pagedlab.gpu import carry, mode
kernel = carry.load(sys.stdin.buffer.read())
import torch, triton
x, out = torch.arange(16.0), torch.zeros(1)
kernel[(1,)](out, x, 10)
print(type(kernel).__name__, out.item(), carry.options(kernel))
"""

DUMP = """
import linecache, sys
from pagedlab.gpu import carry
text = sys.stdin.read()
linecache.cache["<cell>"] = (len(text), None, text.splitlines(keepends=True), "<cell>")
names = {"__name__": "__main__"}
exec(compile(text, "<cell>", "exec"), names)
print(type(names["kernel"]).__name__, carry.dump(names["kernel"]).hex())
"""

COMPILE = """
import sys
from pagedlab.gpu import carry
kernel = carry.load(sys.stdin.buffer.read())
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
signature = {"out": "*fp32", "x": "*fp32", "n": "i32", "BLOCK": "constexpr"}
done = compile(ASTSource(kernel, signature, {"BLOCK": 16}), target=GPUTarget("cuda", 80, 32))
print(type(kernel).__name__, ".entry kernel" in done.asm["ptx"], carry.options(kernel), "torch" in sys.modules)
"""


def cell(name: str, text: str = CELL) -> dict:
    """What a notebook does with a cell: compile and run it, and keep its text under a name that is no file's."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    return names


def elsewhere(program: str, data: bytes, interpret: str, folder=None) -> str:
    environment = {**os.environ, mode.VARIABLE: interpret, "TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", program], input=data, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_a_cells_kernel_interprets_and_compiles_elsewhere(tmp_path):
    data = carry.dump(cell("<cell 1>")["kernel"])
    assert elsewhere(RUN, data, "1") == "InterpretedFunction 99.5 {'do_not_specialize': ['n']}"
    assert elsewhere(COMPILE, data, "0", tmp_path) == "JITFunction True {'do_not_specialize': ['n']} False"


def test_it_can_be_carried_on_from_there(tmp_path):
    again = carry.load(carry.dump(carry.load(carry.dump(cell("<cell 2>")["kernel"]))))
    assert elsewhere(RUN, carry.dump(again), "1").startswith("InterpretedFunction 99.5")


def test_a_kernel_that_compiles_goes_to_an_interpreter():
    kind, data = elsewhere(DUMP, CELL.encode(), "0").split()
    assert kind == "JITFunction"
    assert elsewhere(RUN, bytes.fromhex(data), "1") == "InterpretedFunction 99.5 {'do_not_specialize': ['n']}"


def test_two_cells_of_one_name_do_not_mix():
    first = carry.dump(cell("<cell 3>")["kernel"])
    other = CELL.replace("1.5", "2.5")
    second = carry.dump(cell("<cell 3>", other)["kernel"])
    one, two = carry.load(first), carry.load(second)
    assert (carry.text(one), carry.text(two)) == (CELL, other)
    assert carry.function(one).__code__.co_filename != carry.function(two).__code__.co_filename


def test_a_packages_kernel_goes_by_name_or_by_value(tmp_path, monkeypatch):
    (tmp_path / "a_package_of_kernels.py").write_text(CELL)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("a_package_of_kernels")
    try:
        by_name = carry.dump(module.kernel)
        assert len(by_name) < 200 and carry.load(by_name) is module.kernel
        data = carry.dump(module.kernel, by_value=True)  # that module cannot be imported over there
        assert elsewhere(RUN, data, "1").startswith("InterpretedFunction 99.5")
        cloudpickle.register_pickle_by_value(module)
        assert len(carry.dump(module.kernel)) > 500
        cloudpickle.unregister_pickle_by_value(module)
    finally:
        del sys.modules["a_package_of_kernels"]


def test_tritons_own_kernels_go_by_name():
    import triton.language as tl

    assert carry.load(carry.dump(tl.cdiv, by_value=True)) is tl.cdiv


@pytest.mark.parametrize("thing", [3, "kernel", len, test_tritons_own_kernels_go_by_name, pytest])
def test_other_things_are_left_to_the_pickler(thing):
    assert carry.reduce(thing) is NotImplemented and not carry.is_kernel(thing)


def test_it_fits_into_a_pickler():
    import io

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing):
            reduced = carry.reduce(thing)
            return super().reducer_override(thing) if reduced is NotImplemented else reduced

    kernel = cell("<cell 4>")["kernel"]

    class Answer:
        step = kernel

        def run(self):
            return kernel

    file = io.BytesIO()
    Pickler(file).dump(Answer)
    again = pickle.loads(file.getvalue())
    assert carry.is_kernel(again.step) and again().run() is again.step


def test_a_kernel_without_its_text_says_so():
    kernel = cell("<cell 5>")["kernel"]
    del linecache.cache["<cell 5>"]
    with pytest.raises(carry.NoTextError, match="`(kernel|scaled_sum)`.*<cell 5> is gone"):
        carry.dump(kernel)


@pytest.mark.parametrize("helper", ["kernel", "helper"])
def test_a_kernel_that_calls_itself_says_so(helper):
    text = "import triton, triton.language as tl\n@triton.jit\ndef helper(x):\n    kernel(x)\n"
    text += f"@triton.jit\ndef kernel(x):\n    {helper}(x)\n"
    with pytest.raises(carry.CallsItselfError, match="`kernel` calls itself"):
        carry.dump(cell(f"<cell 6 {helper}>", text)["kernel"])
