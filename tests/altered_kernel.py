"""A kernel with a line or two changed: see `pagedlab/course/altered_kernel.py`."""

from pagedlab.course.altered_kernel import altered

__all__ = ["altered"]
