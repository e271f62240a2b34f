"""The search: smallest stories, stubs, limits, and answers that fight back. Here in this process, with no sandbox."""

import math
import random
import time

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pagedlab.course import promise as promise_module
from pagedlab.course.answer import pack
from pagedlab.course.promise import FEWEST, Exercise, Failure, Judge, TimeUp, Verdict, Wrong, note, promise, tell
from pagedlab.course.words import LONGEST, count, error_text, plain


@promise("It doubles", n=st.integers(0, 1000))
def doubles(answer, n):
    if answer(n) != 2 * n:
        raise Wrong(f"twice {n} is {2 * n}", f"double({n})", "Add it to itself.", "<svg/>")


@promise("It takes lists", items=st.lists(st.integers(0, 9)))
def takes_lists(answer, items):
    answer(items)


def exercise(*promises):
    return Exercise("double", "Double", "function", "math:ceil", promises or (doubles,), ("hint",))


def judge(answer, *promises, **limits) -> Verdict:
    return Judge(pack(answer).written, **limits).judge(exercise(*promises), answer)


def only_failure(verdict: Verdict) -> Failure:
    (failure,) = verdict.failures
    return failure


def test_a_right_answer_keeps_every_promise():
    verdict = judge(lambda n: n + n)
    assert verdict == Verdict(kept=["It doubles"])


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 900))
def test_the_story_told_is_the_smallest(least):
    failure = only_failure(judge(lambda n: 2 * n + (n >= least)))
    assert failure.message == f"twice {least} is {2 * least}"
    assert failure.picture == "<svg/>" and failure.hint == "Add it to itself."


def test_the_line_is_shown_as_well_where_a_promise_tells_the_error():
    @promise("It adds", n=st.integers(0, 9))
    def adds(answer, n):
        try:
            answer(n)
        except TypeError as error:
            raise Wrong("That is no number.", f"add({n})") from error

    def answer(n):
        return n + "1"

    failure = only_failure(judge(answer, adds))
    assert failure.message == "That is no number." and failure.where.endswith('return n + "1"')


def test_the_innermost_line_of_the_learners_is_shown():
    def helper(n):
        return [1 // 0 for _ in range(2)]

    def answer(n):
        return helper(n)

    failure = only_failure(judge(answer))
    assert failure.where.endswith(": return [1 // 0 for _ in range(2)]")
    assert failure.message.startswith("Your answer raised ZeroDivisionError")
    assert failure.example == "n = 0"


def test_an_error_in_looking_at_the_result_is_not_said_to_be_raised_by_the_answer():
    @promise("It is a number", n=st.integers(0, 9))
    def adds(answer, n):
        return answer(n) + 1

    assert only_failure(judge(lambda n: None, adds)).message.startswith("What your answer gave back could not be used")


def stub(n):
    raise NotImplementedError


def stub_for_some(n):
    if n > 500:
        raise NotImplementedError("later")
    return 2 * n


class StubbedMethod:
    def __call__(self, n):
        return self.rest(n)

    def rest(self, n):
        raise NotImplementedError


class StubbedInit:
    def __init__(self, n):
        raise NotImplementedError


def swallows_it_in_something_else(n):
    try:
        stub(n)
    except NotImplementedError:
        raise ValueError(n)  # noqa: B904


@pytest.mark.parametrize("answer", [stub, stub_for_some, StubbedMethod(), StubbedInit, swallows_it_in_something_else])
def test_a_stub_is_not_attempted(answer):
    verdict = judge(answer)
    assert "raise NotImplementedError" in verdict.not_attempted
    assert not verdict.failures and not verdict.kept


def test_a_stub_is_seen_through_a_promise_that_catches_errors():
    @promise("It refuses", n=st.integers(0, 9))
    def refuses(answer, n):
        try:
            answer(n)
        except ValueError:
            return
        except Exception:
            raise Wrong("the wrong error") from None

    assert judge(stub, refuses).not_attempted
    assert judge(lambda n: 1 // 0, refuses).failures


def test_not_implemented_inside_a_library_is_a_failure():
    import torch

    def answer(n):
        return torch.nn.Module()(n)

    verdict = judge(answer)
    assert not verdict.not_attempted and "NotImplementedError" in only_failure(verdict).message


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("odd")])
def test_what_ends_a_program_is_a_failure(error):
    def answer(n):
        raise error

    assert only_failure(judge(answer)).message.startswith(f"Your answer raised {type(error).__name__}")


def test_errors_that_fight_back_are_told():
    class Nasty(Exception):
        __hash__ = None

        def __str__(self):
            raise ValueError

        def __eq__(self, other):
            raise ValueError

        def __bool__(self):
            raise ValueError

    def answer(n):
        raise Nasty

    assert "Nasty" in only_failure(judge(answer)).message


def test_inputs_are_told_as_they_were_before_the_call():
    def answer(items):
        items.append("mine")
        raise ValueError

    assert only_failure(judge(answer, takes_lists)).example == "items = []"


def test_an_answer_that_changes_its_mind_is_told_so():
    calls = []

    def answer(n):
        calls.append(n)
        return 2 * n if len(calls) != 3 else -1

    assert "different results" in only_failure(judge(answer)).message


def test_promises_may_use_assume_and_data():
    @promise("It halves", data=st.data())
    def halves(answer, data):
        n = data.draw(st.integers(0, 100))
        assume(n % 2 == 0)
        if answer(n) != n // 2:
            raise Wrong(f"half of {n}")

    assert judge(lambda n: n / 2, halves).kept
    assert only_failure(judge(lambda n: n // 4, halves)).message == "half of 2"


def test_a_promise_without_inputs():
    @promise("It answers")
    def answers(answer):
        if answer() != 42:
            raise Wrong("no")

    assert judge(lambda: 42, answers).kept
    assert only_failure(judge(lambda: 41, answers)).message == "no"


class Clock:
    """Time that passes only when an answer works."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(promise_module, "monotonic", lambda: self.now)


def test_a_slow_right_answer_passes_and_every_promise_gets_its_share(monkeypatch):
    clock = Clock(monkeypatch)
    calls = []

    def answer(n):
        clock.now += 0.2
        calls.append(n)
        return 2 * n

    assert judge(answer, doubles, doubles, seconds=8).kept == ["It doubles"] * 2
    assert clock.now == pytest.approx(8 * 2 / 3, abs=0.5)
    assert len(calls) > 20


def test_a_slow_wrong_answer_gets_a_story(monkeypatch):
    clock = Clock(monkeypatch)

    def answer(n):
        clock.now += 0.5
        return n

    assert only_failure(judge(answer, seconds=8)).message.startswith("twice ")
    assert clock.now < 8 + 3


def test_an_answer_too_slow_to_be_judged_does_not_pass(monkeypatch):
    clock = Clock(monkeypatch)

    def answer(n):
        clock.now += 10 / FEWEST
        return 2 * n

    assert "still running" in only_failure(judge(answer, seconds=8)).message


def test_swallowing_the_end_of_the_time_does_not_pass(monkeypatch):
    clock = Clock(monkeypatch)

    def answer(n):
        try:
            clock.now += 9
            raise TimeUp
        except BaseException:
            return 2 * n

    assert "still running" in only_failure(judge(answer, seconds=8)).message


def test_an_answer_may_change_the_clock(monkeypatch):
    def answer(n):
        monkeypatch.setattr(time, "monotonic", lambda: math.nan)
        return n

    assert only_failure(judge(answer)).message == "twice 1 is 2"


def test_memory_errors_are_told_wherever_they_surface():
    @promise("It fits", n=st.integers(0, 9))
    def fits(answer, n):
        answer(n)

    def answer(n):
        raise MemoryError

    assert "more memory" in only_failure(judge(answer, fits)).message
    heard = Judge({}, trying=lambda *_: (_ for _ in ()).throw(MemoryError()))  # after the answer has eaten it all
    assert "more memory" in only_failure(heard.judge(exercise(fits), abs)).message


def test_verdicts_travel_as_plain_data():
    verdict = judge(lambda n: 1)
    assert Verdict.from_dict(verdict.as_dict()) == verdict


@given(st.text() | st.text(st.characters()))
def test_a_failure_holds_plain_text_only(text):
    failure = Failure("name", text, text, text, text, text)
    for said in (failure.message, failure.example, failure.hint, failure.where, failure.printed):
        said.encode("utf-8")
        assert all(letter in "\n\t" or letter.isprintable() or ord(letter) > 0x9F for letter in said)
        assert said == plain(said)


def test_long_texts_are_cut_and_addresses_hidden():
    assert len(Failure("", "x" * 10**6).message) == LONGEST
    assert plain(f"{object()}") == "<object object at 0x…>"
    assert plain("0x10 and 255") == "0x10 and 255"


class Hostile:
    """Every question put to it raises."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise RuntimeError


def test_telling_a_value_never_raises():
    import torch

    assert tell(torch.zeros(2, 3)) == "tensor[2, 3]"
    assert "RuntimeError" in tell(Hostile())
    assert "ValueError" in tell(10**100_000)
    assert len(tell(list(range(1000)))) == 160
    assert tell("\x1b[31m\ud800") == repr("\x1b[31m\ud800")
    assert error_text(ValueError()) == "ValueError"
    assert error_text(ValueError("why")) == "ValueError: why"


def test_counting():
    assert [count(n, "token") for n in (0, 1, 2, 1500)] == ["0 tokens", "1 token", "2 tokens", "1,500 tokens"]


def test_the_search_is_the_same_each_time():
    def answer(n):
        return 2 * n + (random.random() < 0.01 and n > 3)

    assert len({str(judge(answer)) for _ in range(3)}) == 1


def test_a_promise_of_right_answers_is_left_out_for_a_wrong_one():
    looked = []
    last = promise("It is quick", of_right_answers=True)(looked.append)
    verdict = Judge({}).judge(exercise(doubles, last), lambda n: 3 * n)
    assert [failure.name for failure in verdict.failures] == ["It doubles"] and not verdict.kept and not looked
    assert Judge({}).judge(exercise(doubles, last), lambda n: 2 * n).kept == ["It doubles", "It is quick"] and looked


def test_notes_are_those_of_the_last_answer():
    def noting(answer):
        note(f"it gave {answer(1)}")
        note(f"it gave {answer(1)}")  # said once

    one = exercise(promise("It is noted")(noting))
    assert Judge({}).judge(one, lambda n: 3 * n).notes == ["it gave 3"]
    assert Judge({}).judge(one, lambda n: 2 * n).notes == ["it gave 2"]
