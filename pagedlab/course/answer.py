"""A learner's answer as something that can be kept: it must work alone, in a fresh process, tomorrow.

An answer in a notebook leans on what other cells imported and defined. `pack` takes all of that along by value, and
says which name stands in the way when something can't be taken. A check runs on the packed answer, never on the
original, so whatever passes is known to work after unpacking.
"""

import contextlib
import inspect
import linecache
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

from pagedlab.errors import PagedLabError

LARGEST = 20 * 2**20  # bytes; an answer is code, so more than this means that it drags data along


class CannotKeepError(PagedLabError):
    """The answer leans on something that can't be saved with it."""


@dataclass(frozen=True)
class PackedAnswer:
    """payload: the pickled answer. source: the cells it came from, for people.

    written: for each function of the answer, by `code_key`, the text it was compiled from. Pickled code forgets its
    file, and a report wants to show the line where something went wrong.
    """

    payload: bytes
    source: str
    written: dict[tuple, str] = field(default_factory=dict)


def code_key(code: types.CodeType) -> tuple:
    """What stays the same about a piece of code when it is pickled and unpickled."""
    return code.co_name, code.co_firstlineno, code.co_code


def pack(answer) -> PackedAnswer:
    """Pack a function or class with the helpers, imports and constants it uses.

    Raises CannotKeepError, naming the variable, when one of them can't be saved.
    """
    import cloudpickle

    with _by_value(answer):
        try:
            payload = cloudpickle.dumps(answer)
        except Exception as error:
            name = _culprit(answer)
            used = f"the notebook variable `{name}`, which can't be saved with it" if name else "something unsaveable"
            raise CannotKeepError(
                f"Your answer uses {used} ({type(error).__name__}: {error}). Pass it in as an argument instead."
            ) from error
        if len(payload) > LARGEST:
            name, size = _largest(answer)
            raise CannotKeepError(
                f"Your answer takes {len(payload) / 2**20:,.0f} MiB along, {size / 2**20:,.0f} MiB of it in the "
                f"notebook variable `{name}`. An answer may use {LARGEST / 2**20:.0f} MiB: pass data in as an argument."
            )
    written = _written(answer)
    cells = dict.fromkeys(text.strip() for text in reversed(written.values()))  # helpers first, the answer last
    return PackedAnswer(payload, "\n\n".join(cells) + "\n", written)


def unpack(payload: bytes):
    """The answer again. Only for payloads a learner's own check has saved: unpickling runs code."""
    import pickle

    return pickle.loads(payload)


@contextlib.contextmanager
def _by_value(answer):
    """An answer kept in a file beside the notebook is saved by value too, so that the file may change or go."""
    import cloudpickle

    module = sys.modules.get(getattr(answer, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    mine = path and module.__name__ != "__main__" and not _installed(Path(path))
    if mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        if mine:
            cloudpickle.unregister_pickle_by_value(module)


def _installed(path: Path) -> bool:
    here = Path(__file__).resolve().parents[1]
    path = path.resolve()
    return "site-packages" in path.parts or path.is_relative_to(here) or path.is_relative_to(Path(sys.base_prefix))


def _functions(thing, seen: set[int]):
    """The functions of an answer and of the notebook's own helpers that they name, the answer's own first."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    if isinstance(thing, property):
        for part in (thing.fget, thing.fset, thing.fdel):
            yield from _functions(part, seen)
    elif isinstance(thing, type):
        if not _is_foreign(thing):
            for base in thing.__mro__[:-1]:
                for member in vars(base).values():
                    yield from _functions(member, seen)
    elif isinstance(thing, types.FunctionType) and not _is_foreign(thing):
        thing = inspect.unwrap(thing)
        yield thing
        for name in _names(thing.__code__):
            if name in thing.__globals__:
                yield from _functions(thing.__globals__[name], seen)
        for cell in thing.__closure__ or ():
            with contextlib.suppress(ValueError):
                yield from _functions(cell.cell_contents, seen)


def _codes(code: types.CodeType):
    """A function's code and that of the functions written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType):
    for one in _codes(code):
        yield from one.co_names


def _is_foreign(thing) -> bool:
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    return bool(path) and getattr(module, "__name__", "") != "__main__" and _installed(Path(path))


def _written(answer) -> dict[tuple, str]:
    written = {}
    for function in _functions(answer, set()):
        text = "".join(linecache.getlines(function.__code__.co_filename))
        if text:
            written.update({code_key(code): text for code in _codes(function.__code__)})
    return written


def _globals_used(answer) -> dict:
    return {
        name: function.__globals__[name]
        for function in _functions(answer, set())
        for name in _names(function.__code__)
        if name in function.__globals__
    }


def _culprit(answer) -> str:
    import cloudpickle

    for name, value in _globals_used(answer).items():
        if isinstance(value, (types.FunctionType, type, types.ModuleType)):
            continue
        try:
            cloudpickle.dumps(value)
        except Exception:
            return name
    return ""


def _largest(answer) -> tuple[str, int]:
    import cloudpickle

    sizes = {name: len(cloudpickle.dumps(value)) for name, value in _globals_used(answer).items()}
    return max(sizes.items(), key=lambda item: item[1], default=("?", 0))
