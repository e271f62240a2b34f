"""A step happens as a whole or not at all: errors in the model, Ctrl-C, closed streams."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from pagedlab.engine.engine import Engine
from pagedlab.engine.interrupts import HeldInterrupt
from pagedlab.engine.params import SamplingParams
from pagedlab.model.generate import generate
from tests.engine.plain import PlainAllocator, PlainScheduler
from tests.engine.poison import assert_empty, exact_llama, poisoned_engine

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 9], [8, 8], [30, 31, 32, 33, 34, 35, 36, 37, 38]]
GREEDY = SamplingParams(max_tokens=6)

WAYS = {
    "recompute": dict(),
    "swap": dict(preemption_mode="swap", num_cpu_blocks=14),
    "no prefix cache": dict(enable_prefix_caching=False),
}


@pytest.fixture(scope="module")
def tiny():
    return exact_llama()


class Interruption(BaseException):
    """Not an Exception, like KeyboardInterrupt."""


class Saboteur:
    """Raises when the given layer is reached for the n-th time, once."""

    def __init__(self, engine, layer, call):
        self.calls_left, self.layer, self.attend = call, layer, engine.runner._attend
        engine.runner._attend = self

    def __call__(self, batch, layer, q, keys, values):
        if layer == self.layer:
            self.calls_left -= 1
            if self.calls_left == 0:
                raise Interruption
        return self.attend(batch, layer, q, keys, values)

    @property
    def has_struck(self):
        return self.calls_left <= 0


def small_engine(model, way):
    """So small that requests are preempted, with prompts in chunks."""
    return poisoned_engine(model, num_blocks=11, block_size=2, max_num_batched_tokens=8, **WAYS[way])


def every_strike(model, way, act):
    """Run `act(engine, saboteur)` with a strike at every forward pass and layer there is."""
    for layer in range(2):
        call = 0
        while True:
            call += 1
            engine = small_engine(model, way)
            saboteur = Saboteur(engine, layer, call)
            act(engine, saboteur)
            assert_empty(engine)
            if not saboteur.has_struck:
                break
        assert call > 8


@pytest.fixture(scope="module")
def expected(tiny):
    return [generate(tiny, prompt, 6) for prompt in PROMPTS]


@pytest.mark.parametrize("way", WAYS)
def test_step_can_go_on_after_an_error_anywhere(tiny, expected, way):
    preemptions = 0

    def act(engine, saboteur):
        nonlocal preemptions
        ids = [engine.add(prompt, GREEDY) for prompt in PROMPTS]
        finished = {}
        while engine.has_unfinished:
            try:
                finished |= {output.request_id: output for output in engine.step() if output.finished}
            except Interruption:
                engine.check_invariants()
        assert [list(finished[request_id].token_ids) for request_id in ids] == expected
        preemptions += engine.metrics.num_preemptions

    every_strike(tiny, way, act)
    assert preemptions > 0


@pytest.mark.parametrize("way", WAYS)
def test_requests_can_be_aborted_after_an_error_anywhere(tiny, way):
    def act(engine, saboteur):
        ids = [engine.add(prompt, GREEDY) for prompt in PROMPTS]
        try:
            while engine.has_unfinished:
                engine.step()
        except Interruption:
            for request_id in ids:
                engine.abort(request_id)
                engine.check_invariants()

    every_strike(tiny, way, act)


@pytest.mark.parametrize("way", WAYS)
def test_generate_can_be_called_again_after_an_error_anywhere(tiny, expected, way):
    def act(engine, saboteur):
        try:
            outputs = engine.generate(PROMPTS, GREEDY, progress=False)
        except Interruption:
            assert_empty(engine)
            outputs = engine.generate(PROMPTS, GREEDY, progress=False)
        assert [list(output.token_ids) for output in outputs] == expected

    every_strike(tiny, way, act)


def test_a_plain_scheduler_goes_on_too(tiny, expected):
    for call in range(1, 12):
        allocator = PlainAllocator(11)
        engine = Engine(tiny, scheduler=PlainScheduler(allocator, 2), check_invariants=True, backend="torch")
        Saboteur(engine, layer=1, call=call)
        ids, finished = [engine.add(prompt, GREEDY) for prompt in PROMPTS], {}
        while engine.has_unfinished:
            try:
                finished |= {output.request_id: output for output in engine.step() if output.finished}
            except Interruption:
                engine.check_invariants()
        assert [list(finished[request_id].token_ids) for request_id in ids] == expected
        assert allocator.num_free == 11


def test_generate_leaves_other_requests_alone_when_it_fails(tiny):
    engine = poisoned_engine(tiny, num_blocks=40, block_size=2)
    engine.add(PROMPTS[0], GREEDY, request_id="other")
    Saboteur(engine, layer=1, call=3)
    with pytest.raises(Interruption):
        engine.generate(PROMPTS[1:], GREEDY, progress=False)
    assert [request.request_id for request in engine.scheduler.running] == ["other"]
    while engine.has_unfinished:
        (output,) = engine.step()
    assert list(output.token_ids) == generate(tiny, PROMPTS[0], 6)
    assert_empty(engine)


def test_samples_and_beams_go_on_after_an_error(tiny):
    for params in (
        SamplingParams(max_tokens=5, n=3, temperature=1.0, seed=1),
        SamplingParams(max_tokens=5, beam_width=3),
    ):
        (undisturbed,) = poisoned_engine(tiny, num_blocks=40, block_size=2).generate(
            [[1, 2, 3]], params, progress=False
        )
        for call in range(1, 7):
            engine = poisoned_engine(tiny, num_blocks=40, block_size=2)
            Saboteur(engine, layer=1, call=call)
            engine.add([1, 2, 3], params)
            while engine.has_unfinished:
                try:
                    outputs = engine.step()
                except Interruption:
                    engine.check_invariants()
            assert outputs[-1].outputs == undisturbed.outputs
            assert_empty(engine)


def test_an_error_in_sampling_undoes_the_step(tiny, monkeypatch):
    engine = poisoned_engine(tiny, num_blocks=40, block_size=2)
    engine.add([1, 2, 3], GREEDY)
    engine.step()
    logits = engine.model.logits
    monkeypatch.setattr(engine.model, "logits", lambda hidden: logits(hidden) * float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        engine.step()
    monkeypatch.undo()
    engine.check_invariants()
    while engine.has_unfinished:
        (output,) = engine.step()
    assert list(output.token_ids) == generate(tiny, [1, 2, 3], 6)


# Ctrl-C.


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_in_every_part_of_a_step(tiny, expected, way):
    """While the scheduler works, in the model, while tokens are chosen, and while they are counted."""
    parts = {
        "schedule": lambda engine: (engine.scheduler, "schedule"),
        "move": lambda engine: (engine.runner, "move"),
        "attend": lambda engine: (engine.runner, "_attend"),
        "choose": lambda engine: (engine, "_choose"),
        "commit": lambda engine: (engine, "_commit"),
        "finish": lambda engine: (engine, "_finish"),
    }
    for name, place in parts.items():
        for at in (1, 2, 4):
            engine = small_engine(tiny, way)
            owner, attribute = place(engine)
            original, calls = getattr(owner, attribute), []

            def and_interrupt(*args, original=original, calls=calls, at=at):
                calls.append(args)
                if len(calls) == at:
                    interrupt()
                return original(*args)

            setattr(owner, attribute, and_interrupt)
            ids, interrupts, finished = [engine.add(prompt, GREEDY) for prompt in PROMPTS], 0, {}
            while engine.has_unfinished:
                try:
                    finished |= {output.request_id: output for output in engine.step() if output.finished}
                except KeyboardInterrupt:
                    interrupts += 1
                engine.check_invariants()
            finished |= {output.request_id: output for output in engine.step()}
            assert interrupts == 1, name
            assert [list(finished[request_id].token_ids) for request_id in ids] == expected
            assert_empty(engine)


def test_held_interrupts():
    order = []
    with pytest.raises(KeyboardInterrupt):
        with HeldInterrupt() as held:
            held.raise_if_any()
            interrupt()
            order.append("held")
    assert order == ["held"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    with HeldInterrupt() as held:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            held.raise_if_any()
        held.raise_if_any()  # once is enough

    with pytest.raises(KeyboardInterrupt):
        with HeldInterrupt():
            with HeldInterrupt():
                interrupt()
            order.append("still held")
    assert order == ["held", "still held"]


def test_an_error_inside_is_not_lost_and_the_handler_comes_back():
    with pytest.raises(ZeroDivisionError):
        with HeldInterrupt():
            raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_of_others_are_used_and_ignored_signals_stay_ignored():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *args: seen.append(args))
    try:
        with HeldInterrupt():
            interrupt()
            assert not seen
        assert len(seen) == 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with HeldInterrupt():
            interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_have_nothing_to_hold(tiny):
    results = []

    def work():
        engine = poisoned_engine(tiny, num_blocks=40, block_size=2)
        results.extend(engine.generate([PROMPTS[0]], GREEDY, progress=False))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert list(results[0].token_ids) == generate(tiny, PROMPTS[0], 6)


def test_ctrl_c_from_outside_in_the_middle_of_generate():
    """A whole process, stopped at a moment nobody chose, as by a notebook's stop button."""
    script = textwrap.dedent(
        """
        from pagedlab.engine.params import SamplingParams
        from pagedlab.model.generate import generate
        from tests.engine.poison import assert_empty, exact_llama, poisoned_engine

        model = exact_llama()
        engine = poisoned_engine(model, num_blocks=400, block_size=4)
        prompts = [[i, 2, 3] for i in range(8)]
        engine.generate(prompts, SamplingParams(max_tokens=2), progress=False)
        try:
            print("ready", flush=True)
            while True:
                engine.generate(prompts, SamplingParams(max_tokens=150), progress=False)
        except KeyboardInterrupt:
            pass
        assert_empty(engine)
        (output,) = engine.generate([[7, 7]], SamplingParams(max_tokens=5), progress=False)
        assert list(output.token_ids) == generate(model, [7, 7], 5)
        print("fine")
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (out, process.returncode) == ("fine\n", 0), err
