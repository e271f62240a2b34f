"""A bar where somebody is looking, silence elsewhere."""

import sys

import pytest

from pagedlab.engine import progress
from pagedlab.engine.params import SamplingParams
from pagedlab.model.tiny import tiny_llama
from tests.engine.poison import poisoned_engine


@pytest.fixture
def generate():
    engine = poisoned_engine(tiny_llama(), num_blocks=20, block_size=4)
    return lambda **options: engine.generate([[1], [2], [3]], SamplingParams(max_tokens=2), **options)


def test_silent_in_a_pipe(capsys, generate):
    generate()
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(capsys, generate, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    generate(progress=False)
    assert capsys.readouterr() == ("", "")
    generate()
    printed = capsys.readouterr()
    assert printed.out == "" and "prompts" in printed.err and "0/3" in printed.err


def test_a_bar_in_a_notebook(monkeypatch):
    class Shell:
        kernel = object()

    import IPython

    monkeypatch.setitem(sys.modules, "ipykernel", object())
    monkeypatch.setattr(IPython, "get_ipython", lambda: Shell())
    assert progress._somebody_is_looking()
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    assert not progress._somebody_is_looking()
    monkeypatch.setattr(sys, "stderr", None)  # as in a process without a console
    assert not progress._somebody_is_looking()


def test_it_counts_finished_prompts(monkeypatch):
    engine = poisoned_engine(tiny_llama(), num_blocks=20, block_size=4)
    counts = []

    class Bar:
        def __enter__(self):
            return self

        def __exit__(self, *exception):
            counts.append("closed")

        def update(self, count):
            counts.append(count)

    monkeypatch.setattr("pagedlab.engine.engine.progress_bar", lambda total, wanted: Bar())
    params = [SamplingParams(max_tokens=length) for length in (1, 3, 3)]
    engine.generate([[1], [2], [3]], params)
    assert counts == [1, 0, 2, "closed"]
