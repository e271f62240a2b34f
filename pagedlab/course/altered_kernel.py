"""A kernel with a line or two changed, as if somebody had written it so: for lessons and corpora of wrong kernels."""

import inspect
import itertools
import linecache

_numbers = itertools.count(1)


def altered(kernel, *changes: tuple[str, str]):
    """Another kernel whose text is that of `kernel` (a `@triton.jit` function of a file) with each (old, new) replaced.

    Every `old` must stand in the text exactly once; ValueError if not.
    """
    text = inspect.getsource(kernel.fn)
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} stands {text.count(old)} times in {kernel.fn.__name__}, not once")
        text = text.replace(old, new)
    # Triton reads a kernel's text from its file. A notebook cell has none either; linecache stands in.
    file = f"<{kernel.fn.__name__} altered, {next(_numbers)}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    names = dict(vars(inspect.getmodule(kernel.fn)))
    exec(compile(text, file, "exec"), names)
    return names[kernel.fn.__name__]
