"""The trace of a schedule: written by hand, of the course's scheduler, and of what has next to no fields."""

import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.table import BlockTable
from pagedlab.engine.trace import STATES, Moment, ScheduleTrace
from tests.engine.schedules import TWELVE, paged, static


def states(trace, name):
    """The letters of one request's row."""
    line = next(line for line in trace.rows().splitlines() if line.split()[0] == name)
    return line[len(name) :].strip()


class TestTheCoursesScheduler:
    def test_a_row_for_each_request_and_a_letter_for_each_step(self):
        assert paged().rows() == "\n".join(
            [
                "step    0         10        20",
                "A       PDDDDDDDDDDD",
                "B       PPDDDDDDDDDDDDDDD",
                "C        PPDDDDDDXXXPP",
                "D         PDDDXXXXXXXPPDDDDD",
                "E             ........PPDDDDDDDD",
                ". waiting, P prefill, D decode, X preempted, S swapped, - finished, A aborted",
            ]
        )

    def test_the_moments_have_the_numbers(self):
        steps = paged().steps
        assert steps[0].moments == {
            "A": Moment("prefill", 10, 10, 11, (0, 1, 2)),
            "B": Moment("prefill", 6, 6, 7, (3, 4)),
        }
        assert steps[1].moments["A"] == Moment("decode", 1, 11, 12, (0, 1, 2))
        assert steps[1].moments["B"] == Moment("prefill", 1, 7, 8, (3, 4))
        assert steps[11].moments["A"] == Moment("decode", 1, 21, 22, (), "length")
        assert "A" not in steps[12].moments and "E" not in steps[5].moments
        assert steps[8].moments["E"] == Moment("waiting", 0, 0, 14, ())
        assert (steps[0].blocks_used, steps[0].num_blocks, steps[0].token_slots_used) == (5, 16, 16)
        assert (steps[0].num_scheduled, steps[0].num_running) == (16, 2)
        assert [step.index for step in steps] == list(range(24))
        assert {step.time for step in steps} == {None}

    def test_the_steps_in_words(self):
        notes = [step.note for step in paged().steps]
        assert notes[0] == "A prefills 10 tokens; B prefills 6 tokens"
        assert notes[1] == "B prefills 1 token; C prefills 14 of 22 tokens; A decodes"
        assert notes[6] == "D preempted: 2 blocks back; A, B and C decode"
        assert notes[11] == "A and B decode; A is done (length): 6 blocks back"
        assert notes[12] == "C prefills 15 of 29 tokens again; B decodes"

    def test_swapped_out_and_in_again(self):
        trace = paged(swap_blocks=16)
        assert states(trace, "D") == "PDDDSSSSSSDDDDDD"
        out = next(step for step in trace.steps if "swapped out" in step.note)
        assert out.note == "D swapped out: 2 blocks back; A, B and C decode"
        assert out.moments["D"].num_computed == 8 and out.moments["D"].blocks == ()
        back = next(step for step in trace.steps if "D swapped in" in step.note)
        assert back.moments["D"].state == "decode" and back.moments["D"].num_computed == 9

    def test_a_prefix_hit_is_told_and_cached_blocks_are_counted(self):
        trace = paged(cached=True, num_blocks=32, same_prompt="AE")
        notes = [step.note for step in trace.steps]
        assert notes[6] == "E prefills 6 tokens (8 found in the cache); A, B, C and D decode"
        last = trace.steps[-1]
        assert last.blocks_used == 0 and last.blocks_cached > 0 and last.num_blocks == 32
        shared = trace.steps[7]
        held = [block for moment in shared.moments.values() for block in moment.blocks]
        assert len(held) == len(set(held)) + 2  # two blocks are shared, and their tokens count once
        stored = sum(moment.num_computed for moment in shared.moments.values())
        assert shared.token_slots_used == stored - 8 and shared.blocks_used == len(set(held))

    def test_forked_and_aborted(self):
        trace = paged(num_blocks=64, forks=[(5, "B", "B2")], aborts=[(9, "D")])
        assert trace.requests == ("A", "B", "B2", "C", "D", "E")  # forks count as old as the request they come from
        assert trace.steps[5].note.startswith("B2 forked from B; ")
        assert states(trace, "D")[-1] == "A"
        assert trace.steps[9].moments["D"].finish_reason == "abort"
        assert "D aborted" in trace.steps[9].note and "D" not in trace.steps[10].moments
        first = trace.steps[5].moments["B2"]
        assert (first.state, first.num_scheduled) == ("decode", 1)

    def test_who_is_done_and_holds_memory_stays(self):
        trace = static(TWELVE[:4])
        assert states(trace, "B") == "P" + 4 * "D" + 21 * "-"  # until D, the longest, is done
        assert trace.steps[10].moments["B"].finish_reason == "length"
        assert len(trace.steps[10].moments["B"].blocks) == 12
        assert trace.steps[4].note == "A, B, C and D decode; B is done (length)"
        assert trace.steps[5].note == "A, C and D decode"
        assert trace.steps[25].note == (
            "D decodes; A leaves: 12 blocks back; B leaves: 12 blocks back; C leaves: 12 blocks back; "
            "D is done (length): 12 blocks back"
        )

    def test_a_part_of_it(self):
        trace = paged(seconds=lambda num_tokens: 0.5)
        some = trace[8:14]
        assert [step.index for step in some.steps] == [8, 9, 10, 11, 12, 13] and len(some) == 6
        assert some.start == 4.0 and trace.start == 0.0 and trace[:3].start == 0.0
        assert some.rows().splitlines()[0].split() == ["step", "8"]
        assert some.requests == trace.requests and some.block_size == 4
        assert trace.rows(8, 14) == some.rows()
        for wrong in (3, slice(0, 9, 2)):
            with pytest.raises(TypeError, match=r"trace\[start:stop\]"):
                trace[wrong]

    def test_it_pickles_and_its_steps_stay_as_they_are(self):
        trace = paged()
        again = pickle.loads(pickle.dumps(trace))
        assert again.steps == trace.steps and again.requests == trace.requests and again.rows() == trace.rows()
        with pytest.raises(AttributeError):
            trace.steps[0].note = "something else"

    def test_a_request_that_waits_is_kept_once(self):
        steps = paged().steps
        assert steps[8].moments["E"] is steps[9].moments["E"]
        assert steps[8].moments["D"] is steps[9].moments["D"]


def bare(name, **fields):
    return SimpleNamespace(request_id=name, **fields)


class Forgetful:
    """An allocator with nothing but the five verbs."""

    def __init__(self, num_blocks):
        self._inner = BlockAllocator(num_blocks)
        for verb in ("allocate", "share", "free", "ref_count"):
            setattr(self, verb, getattr(self._inner, verb))

    @property
    def num_free(self):
        return self._inner.num_free


class TestWithHardlyAnyFields:
    def test_names_and_tokens_are_enough(self):
        trace, a, b = ScheduleTrace(), bare("A"), bare("B")
        trace.record([a, b], [(a, 5)], None)
        trace.record([a, b], [(a, 1), (b, 3)], None)
        trace.record([a, b], None, None)
        assert states(trace, "A") == "PD." and states(trace, "B") == ".P."
        assert [step.moments["A"].num_computed for step in trace.steps] == [5, 6, 6]
        assert trace.steps[2].note == "nothing runs, 2 wait"
        assert (trace.steps[1].blocks_used, trace.steps[1].num_blocks) == (0, 0)

    def test_a_pool_that_does_not_say_its_size(self):
        pool, trace = Forgetful(6), ScheduleTrace()
        request = bare("A", table=BlockTable(2))
        request.table.append_tokens(5, pool)
        step = trace.record([request], [(request, 5)], pool)
        assert (step.blocks_used, step.num_blocks, step.blocks_cached) == (3, 6, 0)
        assert step.moments["A"].blocks == (0, 1, 2) and step.token_slots_used == 5 and trace.block_size == 2

    def test_preempted_without_a_word(self):
        trace = ScheduleTrace()
        a = bare("A", num_prompt_tokens=4, output_token_ids=[1, 2], num_computed_tokens=5)
        trace.record([a], [(a, 5)], None)
        a.num_computed_tokens = 0
        for _ in range(2):
            trace.record([a], [], None)
        a.num_computed_tokens = 6
        trace.record([a], [(a, 6)], None)
        assert states(trace, "A") == "PXXP"
        assert trace.steps[0].moments["A"].num_tokens == 6
        assert trace.steps[3].note == "A prefills 6 tokens again"

    def test_scheduled_but_not_among_the_requests(self):
        a, trace = bare(7), ScheduleTrace()
        step = trace.record([], [(a, 2)], None)
        assert step.moments[7].num_scheduled == 2 and trace.requests == (7,)

    def test_ids_in_place_of_requests(self):
        trace = ScheduleTrace()
        trace.record([], SimpleNamespace(scheduled=[("x", 3)], preempted=["y"]), None)
        assert trace.requests == ("x",) and trace.steps[0].moments["x"].state == "prefill"

    def test_wiped_when_it_finished(self):
        done = SimpleNamespace(name="FINISHED_STOPPED")
        a = bare("A", num_computed_tokens=4)
        trace = ScheduleTrace()
        trace.record([a], [(a, 4)], None)
        a.num_computed_tokens, a.status = 0, done
        step = trace.record([a], [(a, 1)], None)
        assert step.moments["A"] == Moment("decode", 1, 5, 5, (), "stop")
        assert trace.record([a], [], None).moments == {}
        assert trace.steps[2].note == "nothing to do"

    def test_time_begins_where_the_first_step_did(self):
        trace, a = ScheduleTrace(), bare("A")
        trace.record([a], [(a, 1)], None, time=1000.5, start=1000.0)
        trace.record([a], [(a, 1)], None, time=1001.5, start=1001.0)
        assert trace.start == 1000.0 and [step.time for step in trace.steps] == [1000.5, 1001.5]

    def test_an_empty_trace(self):
        assert ScheduleTrace().rows().splitlines()[0].split() == ["step"]
        assert ScheduleTrace().requests == () and len(ScheduleTrace()) == 0


worlds = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    world=worlds,
    num_blocks=st.integers(10, 40),
    block_size=st.sampled_from([4, 5, 16]),
    budget=st.integers(3, 40),
    cached=st.booleans(),
    swap_blocks=st.sampled_from([0, 4, 40]),
)
def test_the_trace_adds_up(world, num_blocks, block_size, budget, cached, swap_blocks):
    lengths = [(f"r{i}", *each) for i, each in enumerate(world)]
    trace = paged(
        lengths, num_blocks, block_size, budget, cached=cached, swap_blocks=swap_blocks, same_prompt=["r0", "r1"]
    )
    assert set(trace.requests) == {name for name, *_ in lengths}
    over = {}
    before = {}
    for step in trace.steps:
        held = {block for moment in step.moments.values() for block in moment.blocks}
        assert step.blocks_used == len(held) and step.num_blocks == num_blocks
        assert 0 <= step.token_slots_used <= len(held) * block_size
        assert step.num_scheduled <= budget
        for name, moment in step.moments.items():
            was = before.get(name)
            assert moment.state in STATES and name not in over
            assert (moment.num_scheduled > 0) == (moment.state in ("prefill", "decode"))
            if moment.state == "decode":
                assert moment.num_scheduled == 1
            if moment.state == "preempted":
                assert moment.num_computed == 0 and not moment.blocks
            if moment.num_scheduled and was:
                assert moment.num_computed >= was.num_computed + moment.num_scheduled  # more with a hit
            if moment.finish_reason:
                over[name] = moment.finish_reason
        before = step.moments
    assert set(over.values()) == {"length"} and len(over) == len(lengths)
    for name, prompt, outputs, _ in lengths:
        moments = [step.moments[name] for step in trace.steps if name in step.moments]
        assert moments[-1].num_computed == prompt + outputs - 1 and moments[-1].num_tokens == prompt + outputs
        # Nothing is skipped but what was found in the cache, and nothing is done twice but what was lost.
        if not cached and not any(moment.state == "preempted" for moment in moments):
            assert sum(moment.num_scheduled for moment in moments) == prompt + outputs - 1
