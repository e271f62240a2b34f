"""What the sandbox's server loads once, so that each check doesn't have to."""

import hypothesis  # noqa: F401
import torch  # noqa: F401

import pagedlab.course.exercises.l00  # noqa: F401
import pagedlab.course.promise  # noqa: F401
