"""What the sandbox's server loads once, so that each check doesn't have to."""

import importlib

import hypothesis  # noqa: F401
import torch  # noqa: F401

import pagedlab.course.promise  # noqa: F401
from pagedlab.course.exercises import MODULES

for _module in dict.fromkeys(MODULES.values()):
    importlib.import_module(f"pagedlab.course.exercises.{_module}")
