"""What `pack` takes along works alone elsewhere, and what can't be taken is named."""

import contextlib
import functools
import importlib
import linecache
import subprocess
import sys
import threading
import types

import cloudpickle
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from pagedlab.course.answer import LARGEST, CannotKeepError, code_key, pack, unpack

LOCK = threading.Lock()
BIG = np.zeros(LARGEST + 1, dtype=np.uint8)
TWO_HALVES = [np.zeros(LARGEST * 2 // 3, dtype=np.uint8), np.zeros(LARGEST * 2 // 3, dtype=np.uint8)]


def elsewhere(payload: bytes, expression: str) -> str:
    """The value of an expression about the unpacked `answer`, in a fresh process that knows none of our modules."""
    script = "import pickle, sys; answer = pickle.loads(sys.stdin.buffer.read()); print(eval(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, expression], input=payload, capture_output=True, cwd="/")
    assert not done.returncode, done.stderr.decode()
    return done.stdout.decode().strip()


# Cells of a notebook whose answer leans on nearly everything that Python has.
CELLS = [
    "import math, functools, contextlib, dataclasses, enum\nimport numpy as np, torch\nfrom pagedlab import check",
    "K = 1\nROW = np.arange(5)\nONES = torch.ones(3)\ndef helper(n, b):\n    return math.ceil(n / b) * K",
    "class Base:\n    scale = 1\n    def go(self, n, b):\n        return helper(n, b)",
    "class Child(Base):\n    @property\n    def by(self):\n        return self.scale\n"
    "    def go(self, n, b):\n        return super().go(n, b) * self.by",
    "@dataclasses.dataclass\nclass Pair:\n    n: int\n    b: int = 1\n"
    "    more: list = dataclasses.field(default_factory=list)\n"
    "class Colour(enum.Enum):\n    RED = 1",
    "@contextlib.contextmanager\ndef one():\n    yield 1",
    "@functools.cache\ndef count(n, b):\n    return 0 if n <= 0 else 1 + count(n - b, b)",
    "def outside(f):\n    @functools.wraps(f)\n    def inside(*a):\n        return f(*a)\n    return inside",
    "def steps(n, b):\n    yield from range(0, n, b)\nsquare = lambda x: x * x",
    "@outside\ndef blocks_needed(n, b):\n    pair = Pair(n, b)\n    assert Colour(1) is Colour.RED\n"
    "    with one() as factor:\n        blocks = Child().go(pair.n, pair.b) * factor\n"
    "    assert blocks == count(n, b) == sum(1 for _ in steps(n, b)), 'they differ'\n"
    "    assert int(ROW[1]) == 1 and float(ONES.sum()) == 3 and square(3) == 9\n"
    "    assert dataclasses.replace(pair, n=3).n == 3 and len(dataclasses.fields(pair)) == 3\n    return blocks",
    "print(check('blocks_needed', blocks_needed))",
    "def helper(n, b):\n\n    return [1 / 0 for _ in range(2)][0]",
    "print(check('blocks_needed', blocks_needed))",
    "%%time\ndef stub(n, b):\n    raise NotImplementedError",
    "print(check('blocks_needed', stub))",
    "# one\n# two\ndef stub(n, b):\n    raise NotImplementedError\nprint(check('blocks_needed', stub))",
    "import beside\nprint(check('blocks_needed', beside.blocks_needed))",
]


def run_cells(cells, folder) -> list[str]:
    """What each cell prints, in a kernel of its own."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]


def test_answers_of_a_real_notebook(tmp_path, monkeypatch):
    home, work = tmp_path / "my löcal home", tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("PAGEDLAB_HOME", str(home))
    (work / "beside_too.py").write_text("def up(a, b):\n    return -(-a // b)\n")
    (work / "beside.py").write_text("import beside_too\n\ndef blocks_needed(n, b):\n    return beside_too.up(n, b)\n")
    passed, broken, timed, stub = [text for text in run_cells(CELLS[:-1], work) if "blocks_needed:" in text]
    assert "passed" in passed
    assert "ZeroDivisionError" in broken and "at line 3: return [1 / 0 for _ in range(2)][0]" in broken
    assert "not attempted" in timed  # a cell under %%time has no text to be found, yet a stub is a stub
    assert "not attempted" in stub and "(line 4)" in stub

    later = [
        "from pagedlab import your_parts\nparts = your_parts('blocks_needed')\nprint(parts)",
        "print([parts.blocks_needed(n, 16) for n in (0, 1, 16, 17)])",
        CELLS[-1].replace("import beside", "from pagedlab import check\nimport beside"),
    ]
    said = run_cells(later, work)
    assert "✓ yours" in said[0]
    assert said[1].strip() == "[0, 1, 1, 2]"
    assert "passed" in said[2]
    source = (home / "answers" / "blocks_needed.py").read_text()
    assert "beside_too.up" in source and "-(-a // b)" in source

    (work / "beside.py").unlink()
    (work / "beside_too.py").unlink()
    assert "[0, 3]" in run_cells([later[0], "print([parts.blocks_needed(n, 16) for n in (0, 33)])"], work)[1]


def counts(n, b):
    return 0 if n <= 0 else 1 + cached_counts(n - b, b)


cached_counts = functools.lru_cache(maxsize=7, typed=True)(counts)


class WithCachedMethod:
    @functools.cache  # noqa: B019
    def go(self, n, b):
        return counts(n, b)

    @functools.cached_property
    def two(self):
        return 2


class Callable:
    def __call__(self, n, b):
        return counts(n, b)


@pytest.mark.parametrize(
    "answer, expression",
    [
        (cached_counts, "(answer(33, 16), answer.cache_parameters() == dict(maxsize=7, typed=True)) == (3, True)"),
        (WithCachedMethod, "answer().go(33, 16) == 3 and answer().two == 2"),
        (functools.partial(counts, b=16), "answer(33) == 3"),
        (Callable(), "answer(33, 16) == 3"),
        (Callable().__call__, "answer(33, 16) == 3"),
        (max, "answer(33, 16) == 33"),
    ],
    ids=["cached", "cached method", "partial", "object", "method", "builtin"],
)
def test_callables_of_every_kind_work_alone_and_know_their_lines(answer, expression):
    packed = pack(answer)
    assert elsewhere(packed.payload, expression) == "True"
    if answer is not max:
        assert code_key(counts.__code__) in packed.written


def uses_lock(n, b):
    with LOCK:
        return n


class KeepsLock:
    guard = LOCK

    def go(self):
        return self.guard


def make_closure():
    stream = (number for number in range(3))
    return lambda n, b: stream


def helped(n, b):
    return uses_lock(n, b)


@pytest.mark.parametrize(
    "answer, name",
    [(uses_lock, "LOCK"), (KeepsLock, "KeepsLock.guard"), (make_closure(), "stream"), (helped, "LOCK")],
    ids=["global", "class attribute", "closure", "through a helper"],
)
def test_what_cannot_be_saved_is_named(answer, name):
    with pytest.raises(CannotKeepError, match=f"`{name}`.*cannot pickle"):
        pack(answer)


def test_an_attribute_is_not_mistaken_for_a_global_of_the_same_name():
    def answer(thing):
        return thing.LOCK, thing.BIG

    pack(answer)


def uses_big(n, b):
    return BIG[n]


def uses_both(n, b):
    return TWO_HALVES[n]


@pytest.mark.parametrize("answer, name", [(uses_big, "BIG"), (uses_both, "TWO_HALVES")])
def test_too_much_data_is_named_and_not_copied_first(answer, name, monkeypatch):
    with pytest.raises(CannotKeepError, match=f"more than 20 MiB.*`{name}`"):
        pack(answer)


def test_an_error_that_cannot_be_printed_is_no_trouble():
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError

    class Stubborn:
        def __reduce__(self):
            raise Unprintable

    stubborn = Stubborn()
    with pytest.raises(CannotKeepError, match="Unprintable"):
        pack(lambda n, b: stubborn)


def test_packing_leaves_the_registry_of_modules_as_it_was():
    before = set(cloudpickle.list_registry_pickle_by_value())
    cloudpickle.register_pickle_by_value(sys.modules["tests.corpus"]) if "tests.corpus" in sys.modules else None
    during = set(cloudpickle.list_registry_pickle_by_value())
    with contextlib.suppress(CannotKeepError):
        pack(uses_lock)
    pack(counts)
    assert set(cloudpickle.list_registry_pickle_by_value()) == during
    for name in during - before:
        cloudpickle.unregister_pickle_by_value(sys.modules[name])


def test_a_file_that_was_edited_and_reloaded_shows_its_new_lines(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "edited_answer.py"
    path.write_text("def f(n, b):\n    return 'old'\n")
    module = importlib.import_module("edited_answer")
    try:
        assert "'old'" in pack(module.f).source
        path.write_text("# a new line\ndef f(n, b):\n    return 'new text'\n")
        importlib.reload(module)
        assert "'new text'" in pack(module.f).source and "'old'" not in pack(module.f).source
    finally:
        del sys.modules["edited_answer"]


def test_lines_of_libraries_are_not_the_learners():
    @contextlib.contextmanager
    def one():
        yield 1

    packed = pack(lambda n, b: one())
    assert code_key(one.__code__) not in packed.written  # contextlib's
    assert code_key(one.__wrapped__.__code__) in packed.written
    assert set(packed.written.values()) == {"".join(linecache.getlines(__file__))}


def test_functions_with_the_same_bytecode_are_told_apart():
    def compiled(name, text):
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        module = types.ModuleType("__main__")
        exec(compile(text, name, "exec"), vars(module))
        return module.f

    first, second = compiled("<cell 1>", "f = lambda n: n + 1_000"), compiled("<cell 2>", "f = lambda n: n + 2_000")
    written = pack(lambda n: first(n) + second(n)).written
    assert written[code_key(first.__code__)] != written[code_key(second.__code__)]


def test_unpacking_gives_the_answer_back():
    assert unpack(pack(counts).payload)(33, 16) == 3


def test_odd_objects_in_reach_end_in_a_word_about_them():
    class Odd:
        __module__ = ["not a name"]

    with pytest.raises(CannotKeepError, match="something that can't be saved"):
        pack(lambda n, b: Odd)
