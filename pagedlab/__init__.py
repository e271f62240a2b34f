"""Build PagedAttention yourself.

The verbs a notebook needs stand here: `check`, `hint`, `your_parts` and `progress`. Everything else is one floor
further down: `pagedlab.cache`, `pagedlab.model`, `pagedlab.sim`, `pagedlab.widgets`. Importing `pagedlab` itself is
quick: torch and friends load when something needs them.
"""

__version__ = "0.1.0"
__all__ = ["check", "hint", "progress", "your_parts"]


def __getattr__(name):
    if name in __all__:
        from pagedlab import course

        return getattr(course, name)
    raise AttributeError(f"module 'pagedlab' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
