"""A kernel as bytes: from a notebook to a check, to a file, or to a process in which Triton compiles.

`@triton.jit` makes an object that can't be pickled, and Triton reads a kernel's text from the file that it was written
in, which a notebook cell is not. So a kernel travels as its plain Python function, with the helpers and constants that
it names, the arguments of its decorator and the text around it; `load` decorates it again, in the mode of the process
that it arrives in. The kernels of an installed package travel by their name alone.
"""

import ast
import hashlib
import importlib
import inspect
import io
import linecache
import os
import pickle
import sys
import textwrap
import types
from collections.abc import Iterator

import cloudpickle

from pagedlab.errors import PagedLabError
from pagedlab.gpu import mode

OPTIONS = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline", "repr")
"""What `@triton.jit(...)` takes and may matter elsewhere."""


class NoTextError(PagedLabError):
    """Triton compiles from the text of a kernel, and that is not to be had."""


class CallsItselfError(PagedLabError):
    """Kernels that call themselves, directly or not, neither compile nor can they be carried."""


def is_kernel(thing) -> bool:
    """Whether this is what `@triton.jit` or `@triton.constexpr_function` made of a function, in either mode."""
    return _decorator(thing) is not None


def no_kernel(thing) -> str:
    """Why this is no kernel: a sentence that goes on after what it is called."""
    if is_kernel(getattr(thing, "fn", None)) or type(thing).__name__ in ("Autotuner", "Heuristics"):
        return (
            f"has a decorator above @triton.jit (it is a {type(thing).__name__} now), which chooses numbers at the "
            "launch. They are given here: leave that decorator out"
        )
    return "is not a kernel: decorate the function with @triton.jit"


def function(kernel) -> types.FunctionType:
    """The Python function as it was before `@triton.jit`."""
    return kernel.fn


def options(kernel) -> dict[str, object]:
    """The arguments of its `@triton.jit(...)` that are not the default."""
    interpreted = getattr(kernel, "kwargs", None)  # the interpreter's form keeps them together
    if interpreted is None:
        interpreted = {name: getattr(kernel, "_repr" if name == "repr" else name, None) for name in OPTIONS}
    return {name: interpreted[name] for name in OPTIONS if interpreted.get(name)}


def text(kernel) -> str:
    """All of the file or cell that the kernel was written in; "" if that is gone."""
    return "".join(linecache.getlines(function(kernel).__code__.co_filename, function(kernel).__globals__))


def source(kernel) -> str:
    """The function's own lines, decorators included; "" if they are gone."""
    try:
        return textwrap.dedent(inspect.getsource(function(kernel)))
    except (OSError, TypeError):
        return ""


def scope(kernel) -> dict[str, object]:
    """What the function's text names and does not define: globals, and variables of functions around it."""
    raw = function(kernel)
    try:
        names = {node.id for node in ast.walk(ast.parse(source(kernel))) if isinstance(node, ast.Name)}
    except SyntaxError:  # the lines are not a function alone
        names = set()
    names -= set(raw.__code__.co_varnames)
    around = inspect.getclosurevars(raw).nonlocals
    there = {name: raw.__globals__[name] for name in sorted(names) if name in raw.__globals__}
    return there | around


def reach(kernel) -> Iterator:
    """The kernel, and all those that it calls, directly or not, Triton's own left out."""
    seen, todo = [], [kernel]
    while todo:
        one = todo.pop(0)
        if one not in seen and not _is_tritons(function(one).__module__):
            seen.append(one)
            yield one
            named = scope(one)
            todo += [value for value in named.values() if is_kernel(value)]
            for module in (value for value in named.values() if isinstance(value, types.ModuleType)):
                if not _is_tritons(module.__name__):
                    attributes = (vars(module).get(name) for name in function(one).__code__.co_names)
                    todo += [value for value in attributes if is_kernel(value)]


def dump(kernel, by_value: bool = False) -> bytes:
    """The kernel as bytes.

    by_value: take along the text of an installed package's kernels too, so that the package need not be imported
    where the kernel is loaded. Triton's own always go by name.
    """
    file = io.BytesIO()
    _Pickler(file, by_value).dump(kernel)
    return file.getvalue()


def load(data: bytes):
    """The kernel again. Only for bytes of your own: unpickling runs code."""
    return pickle.loads(data)


def reduce(thing, by_value: bool = False):
    """For a pickler's `reducer_override`: how to pickle a kernel; NotImplemented for anything else."""
    decorator = _decorator(thing)
    if decorator is None:
        return NotImplemented
    raw = function(thing)
    module, name = raw.__module__, raw.__qualname__
    if _can_be_imported(thing, module, name) and (_is_tritons(module) or not by_value):
        return _imported, (module, name)
    written = text(thing)
    if not written:
        raise NoTextError(
            f"The text of the kernel `{raw.__name__}` is not to be had ({raw.__code__.co_filename} is gone). Define it "
            "in a cell of the notebook or in a file that stays."
        )
    if any(value is thing for one in reach(thing) for value in scope(one).values()):
        raise CallsItselfError(f"The kernel `{raw.__name__}` calls itself, and no GPU can do that. Use a loop.")
    only_written = {name: value for name, value in scope(thing).items() if name not in raw.__code__.co_names}
    return _decorated, (decorator, raw, options(thing), raw.__code__.co_filename, written, only_written)


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file, by_value: bool):
        super().__init__(file)
        self.by_value = by_value

    def reducer_override(self, thing):
        reduced = reduce(thing, self.by_value)
        return super().reducer_override(thing) if reduced is NotImplemented else reduced


def _decorator(thing) -> str | None:
    """The name of the decorator in `triton` that made this thing. Does not import Triton: no import, no kernels."""
    if type(thing).__module__ not in ("triton.runtime.jit", "triton.runtime.interpreter"):
        return None
    return {"JITFunction": "jit", "InterpretedFunction": "jit", "ConstexprFunction": "constexpr_function"}.get(
        type(thing).__name__
    )


def _is_tritons(module: str) -> bool:
    return module.partition(".")[0] == "triton"


def _can_be_imported(thing, module: str, name: str) -> bool:
    found = sys.modules.get(module)
    if found is None or module == "__main__" or module in cloudpickle.list_registry_pickle_by_value():
        return False
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


def _imported(module: str, name: str):
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _decorated(decorator: str, raw: types.FunctionType, arguments: dict, path: str, written: str, only_written: dict):
    """What `@triton.jit` made, again. Its text goes where Python looks for the text of a file that is not there."""
    for name, value in only_written.items():  # pickled code takes along what it loads; Triton reads annotations too
        raw.__globals__.setdefault(name, value)
    mode.choose()
    import triton

    path = path.replace('"', "'")  # NVIDIA's assembler takes names between double quotes, and knows no escape
    lines = written.splitlines(keepends=True)
    linecache.checkcache(path)
    if linecache.getlines(path) != lines:
        if path in linecache.cache or os.path.exists(path):  # another text has this name
            path = f"{path}-{hashlib.sha256(written.encode()).hexdigest()[:12]}"
        linecache.cache[path] = (len(written), None, lines, path)  # None: not a file, so never out of date
    raw.__code__ = raw.__code__.replace(co_filename=path)  # pickled code forgets its file
    decorate = getattr(triton, decorator)
    return decorate(raw, **arguments) if arguments else decorate(raw)
