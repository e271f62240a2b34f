"""What is said of the arguments is what a launch would say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.errors import PagedLabError
from pagedlab.gpu import mode
from pagedlab.gpu.specialize import Pointer, specialize
from pagedlab.gpu.targets import find

pytest.importorskip("triton")
mode.choose()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402


@triton.jit(do_not_specialize=["never", 3], do_not_specialize_on_alignment=["unaligned"])
def kernel(a, never, unaligned, fourth, annotated: tl.int64, single: tl.float32, N: tl.constexpr, d=16):
    tl.store(a, d)


NAMES = ("a", "never", "unaligned", "fourth", "annotated", "single", "d")
whole = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.builds(lambda power, offset: 2**power + offset, st.integers(0, 62), st.integers(-2, 2)),
)
values = st.one_of(
    st.booleans(),
    st.floats(),
    st.none(),
    whole,
    st.builds(
        Pointer, st.sampled_from(["float16", "torch.bfloat16", "int32", "float8_e5m2"]), *[st.integers(0, 2**48)] * 2
    ),
    st.builds(lambda skip: torch.zeros(8, dtype=torch.float16)[skip:], st.integers(0, 3)),
)


@given(st.fixed_dictionaries({name: values for name in NAMES}), st.sampled_from(["sm_80", "gfx942"]))
def test_it_is_what_a_launch_says(arguments, target):
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    target = find(target)
    arguments["N"] = 64
    options = {"do_not_specialize": ["never", 3], "do_not_specialize_on_alignment": ["unaligned"]}
    jit = JITFunction(kernel.fn, **options)
    backend = make_backend(GPUTarget(target.backend, target.arch, target.warp_size))
    bound, known, _ = create_function_from_signature(jit.signature, jit.params, backend)(**arguments)
    found = specialize(kernel, arguments, target)
    assert list(found.types) == list(bound)
    for number, (name, (kind, fact)) in enumerate(zip(bound, known, strict=True)):
        assert found.types[name] == kind
        assert (number,) in found.constants if kind == "constexpr" else (number,) not in found.constants
        assert found.facts.get((number,), []) == (
            backend.parse_attr(fact) if isinstance(fact, str) and kind != "constexpr" else []
        )


def facts(value, hints: bool = True):
    special = specialize(kernel, dict.fromkeys(NAMES, value) | {"N": 64}, find("sm_80"), hints)
    return special.types["a"], special.facts.get((0,)), special.constants.get((0,))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (32, ("i32", [["tt.divisibility", 16]], None)),
        (17, ("i32", [], None)),
        (1, ("constexpr", None, 1)),
        (np.int64(1), ("constexpr", None, 1)),
        (tl.constexpr(48), ("i32", [["tt.divisibility", 16]], None)),
        (2**40, ("i64", [["tt.divisibility", 16]], None)),
        (Pointer("float16"), ("*fp16", [["tt.divisibility", 16]], None)),
        (Pointer("float16", 8), ("*fp16", [], None)),
    ],
)
def test_sixteen_and_one(value, expected):
    assert facts(value) == expected
    types_only = facts(value, hints=False)
    assert types_only == ("i32" if expected[0] == "constexpr" else expected[0], None, None)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("abc", "a is a str"),
        ((1, 2), "a is a tuple"),
        (Pointer("float12"), "type 'float12'"),
        (1j, "a is a complex"),
        (2**64, "64 bits"),
    ],
)
def test_what_no_kernel_takes(value, said):
    with pytest.raises(PagedLabError, match=said):
        facts(value)


def test_what_is_missing():
    with pytest.raises(PagedLabError, match="kernel asks for a, never, .*, N. There is x."):
        specialize(kernel, {"x": 3}, find("sm_80"))
