"""What a learner looks at: small live pictures bound to live Python objects.

Each name is loaded when it is first asked for: a still picture needs none of what live widgets need.
"""

from importlib import import_module

_HOMES = {
    "BlockTableExplorer": "explorer",
    "OccupancyExplorer": "occupancy",
    "ReservationMap": "reservation",
    "TileViewer": "tiles",
    "Timeline": "timeline",
    "block_picture": "explorer_picture",
    "pool_state": "explorer_moment",
}
__all__ = list(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__():
    return sorted({*globals(), *__all__})
