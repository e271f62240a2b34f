"""A learner's answer as something that can be kept: it must work alone, in a fresh process, tomorrow.

An answer in a notebook leans on what other cells imported and defined. `pack` takes all of that along by value, and
says which name stands in the way when something can't be taken. A check runs on the packed answer, never on the
original, so whatever passes is known to work after unpacking.
"""

import contextlib
import dis
import functools
import io
import linecache
import sys
import sysconfig
import types
from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle

from pagedlab.course.words import error_text
from pagedlab.errors import PagedLabError
from pagedlab.gpu import carry

LARGEST = 20 * 2**20  # bytes; an answer is code, so more than this means that it drags data along
CACHED = type(functools.cache(lambda: None))  # what functools.cache and lru_cache make of a function
WRAPPERS = (staticmethod, classmethod, property, functools.cached_property, functools.partial, types.MethodType, CACHED)


class CannotKeepError(PagedLabError):
    """The answer leans on something that can't be saved with it."""


@dataclass(frozen=True)
class PackedAnswer:
    """payload: the pickled answer. source: the cells it came from, for people.

    written: for each function of the answer, by `code_key`, the text it was compiled from ("" if that is not known).
    Pickled code forgets its file, and a report wants to show the line where something went wrong.
    """

    payload: bytes
    source: str
    written: dict[tuple, str] = field(default_factory=dict)


def code_key(code: types.CodeType) -> tuple:
    """What stays the same about a piece of code when it is pickled and unpickled."""
    constants = tuple(constant for constant in code.co_consts if not isinstance(constant, types.CodeType))
    return code.co_name, code.co_firstlineno, code.co_code, code.co_names, code.co_varnames, constants


def pack(answer) -> PackedAnswer:
    """Pack a function or class with the helpers, imports and constants it uses.

    Raises CannotKeepError, naming the variable, when one of them can't be saved.
    """
    with _own_modules_by_value():
        try:
            payload = _dump(answer)
        except _TooMuch:
            raise CannotKeepError(
                f"Your answer takes more than {LARGEST / 2**20:.0f} MiB of data along, most of it in the variable "
                f"`{_largest(answer)}`. Pass data in as an argument instead."
            ) from None
        except Exception as error:
            name = _culprit(answer)
            used = f"the variable `{name}`, which can't be saved with it" if name else "something that can't be saved"
            raise CannotKeepError(
                f"Your answer uses {used} ({error_text(error)}). Make it inside the answer or pass it as an argument."
            ) from error
    written = _written(answer)
    cells = dict.fromkeys(text.strip() for text in reversed(written.values()) if text)  # helpers first, the answer last
    return PackedAnswer(payload, "\n\n".join(cells) + "\n", written)


def unpack(payload: bytes):
    """The answer again. Only for payloads a learner's own check has saved: unpickling runs code."""
    import pickle

    return pickle.loads(payload)


class _TooMuch(Exception):
    pass


class _Bounded(io.BytesIO):
    """Stops a model of many gigabytes before it has been copied."""

    def write(self, data) -> int:
        if self.tell() + memoryview(data).nbytes > LARGEST:
            raise _TooMuch
        return super().write(data)


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, and what functools has for caching, and Triton's kernels.

    A function under functools.cache would be taken by its name only, which is nothing in a fresh notebook; a
    cached_property holds a lock up to Python 3.11. A kernel needs its text wherever it goes.
    """

    def reducer_override(self, thing):
        if carry.is_kernel(thing):
            return carry.reduce(thing)
        if type(thing) is CACHED and not _is_foreign(thing):
            return _cached, (thing.__wrapped__, *thing.cache_parameters().values())
        if type(thing) is functools.cached_property:
            return _cached_property, (thing.func, thing.attrname)
        return super().reducer_override(thing)


def _cached(function, maxsize, typed):
    return functools.lru_cache(maxsize, typed)(function)


def _cached_property(function, name):
    made = functools.cached_property(function)
    made.__set_name__(None, name)
    return made


def _dump(thing) -> bytes:
    file = _Bounded()
    _Pickler(file).dump(thing)
    return file.getvalue()


@contextlib.contextmanager
def _own_modules_by_value():
    """What the learner keeps in files beside the notebook is saved by value too: those files may change or go."""
    before = cloudpickle.list_registry_pickle_by_value()
    mine = [module for module in list(sys.modules.values()) if _is_own(module) and module.__name__ not in before]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module) -> bool:
    if not issubclass(type(module), types.ModuleType):
        return False
    name, path = vars(module).get("__name__"), vars(module).get("__file__")
    return bool(path) and name != "__main__" and sys.modules.get(name) is module and not _installed(path)


@functools.cache
def _installed(path: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to this one, and not to the learner."""
    if "site-packages" in path or "dist-packages" in path:
        return True
    python = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    homes = [Path(__file__).resolve().parents[1], *(Path(folder).resolve() for folder in python)]
    return any(Path(path).resolve().is_relative_to(home) for home in homes)


def _is_foreign(thing) -> bool:
    """Whether a function or class comes with a package. What is neither in a module nor in a file is the learner's."""
    name = getattr(thing, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is not None and name != "__main__" and not _is_own(module)


def _reach(answer):
    """Pairs (name, thing) of the answer and of all that it names; the learner's own functions and classes opened up."""
    seen, todo = {}, [("your answer", answer)]
    while todo:
        name, thing = todo.pop(0)
        if id(thing) not in seen:
            seen[id(thing)] = thing  # kept, so that its id is not given to another thing
            yield name, thing
            todo += _inside(thing)


def _inside(thing):
    if isinstance(thing, WRAPPERS):
        parts = ("__wrapped__", "__func__", "__self__", "func", "args", "keywords", "fget", "fset", "fdel")
        yield from ((part, getattr(thing, part)) for part in parts if getattr(thing, part, None) is not None)
    elif carry.is_kernel(thing):
        yield thing.fn.__name__, thing.fn
    elif isinstance(thing, types.ModuleType):
        if _is_own(thing):
            yield from vars(thing).items()
    elif isinstance(thing, type):
        if not _is_foreign(thing):
            yield from ((base.__name__, base) for base in thing.__bases__)
            yield from ((f"{thing.__name__}.{name}", member) for name, member in vars(thing).items())
    elif isinstance(thing, types.FunctionType):
        if not _is_foreign(thing):
            yield "__wrapped__", getattr(thing, "__wrapped__", None)
            names = [name for code in _codes(thing.__code__) for name in _globals_named(code)]
            yield from ((name, thing.__globals__[name]) for name in names if name in thing.__globals__)
            for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # a cell that is still empty
                    yield name, cell.cell_contents
            yield from (("a default argument", value) for value in thing.__defaults__ or ())
            yield from ((name, value) for name, value in (thing.__kwdefaults__ or {}).items())
    elif not _is_foreign(type(thing)):  # an object of the learner's own class
        yield type(thing).__name__, type(thing)


def _codes(code: types.CodeType):
    """A function's code and that of the functions written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _globals_named(code: types.CodeType):
    """`co_names` has the names of attributes too."""
    return (one.argval for one in dis.get_instructions(code) if "GLOBAL" in one.opname or one.opname == "LOAD_NAME")


def _written(answer) -> dict[tuple, str]:
    written = {}
    for _, thing in _reach(answer):
        if isinstance(thing, types.FunctionType) and not _is_foreign(thing):
            path = thing.__code__.co_filename
            if not _installed(path):  # a decorator from a package may have put its own function around the learner's
                linecache.checkcache(path)
                text = "".join(linecache.getlines(path))
                written.update({code_key(code): text for code in _codes(thing.__code__)})
    return written


def rewritten(answer, written: dict[tuple, str]) -> dict[tuple, str]:
    """More of `written`: Triton's interpreter runs a copy of each kernel, rewritten but with the lines of the text."""
    more = {}
    for _, thing in _reach(answer):
        if carry.is_kernel(thing) and hasattr(thing, "rewrite"):
            text = written.get(code_key(thing.fn.__code__), "")
            more.update({code_key(code): text for code in _codes(thing.rewrite().__code__)})
    return more


def _values(answer):
    """The data among all that an answer reaches: what is not code."""
    code = (types.FunctionType, type, types.GetSetDescriptorType, types.MemberDescriptorType, *WRAPPERS)
    return ((name, thing) for name, thing in _reach(answer) if not isinstance(thing, code))


def _culprit(answer) -> str:
    for name, value in _values(answer):
        try:
            _dump(value)
        except Exception:
            return name
    return ""


def _largest(answer) -> str:
    def size(value) -> int:
        try:
            return len(_dump(value))
        except Exception:
            return LARGEST

    return max(((size(value), name) for name, value in _values(answer)), default=(0, "?"))[1]
