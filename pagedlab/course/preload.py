"""What the sandbox's server loads once, so that each check doesn't have to."""

import contextlib
import importlib

import torch  # noqa: F401
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from pagedlab.course.exercises import MODULES
from pagedlab.course.promise import Exercise, Judge, promise
from pagedlab.gpu import mode
from pagedlab.paths import cache_dir

set_hypothesis_home_dir(cache_dir() / "hypothesis")  # not in the folder of the notebook

mode.interpret()  # a check interprets kernels, with a GPU and without
with contextlib.suppress(ImportError):  # Triton is for Linux only
    importlib.import_module("triton")

# A search of a moment, because Hypothesis loads much of itself only when it is first used.
_nothing = promise("It returns", number=st.integers(0, 9), examples=2)(lambda answer, number: None)
Judge({}).judge(Exercise("", "", "function", "", (_nothing,), ()), None)

for _module in dict.fromkeys(MODULES.values()):
    importlib.import_module(f"pagedlab.course.exercises.{_module}")
