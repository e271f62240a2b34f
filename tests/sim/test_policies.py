"""Each policy keeps its promise about memory: by hand, and on random sequences of admit, grow and finish."""

from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pagedlab.cache.accounting import LiveRequest, waste_breakdown
from pagedlab.sim.policies import POLICIES, NeverFitsError, OrcaMax, OrcaOracle, OrcaPow2, Paged
from pagedlab.sim.workload import SimRequest


@pytest.mark.parametrize(
    ("policy", "slots"),
    [(OrcaMax, 2048), (OrcaPow2, 100 + 32), (OrcaOracle, 100 + 25)],  # 25 -> 32: the paper's own example
)
def test_what_is_reserved_for_100_prompt_and_25_output_tokens(policy, slots):
    memory = policy(4096)
    assert memory.admit(1, SimRequest(100, 25))
    assert memory.live_requests() == [LiveRequest(100, 125, slots)]
    assert memory.grow(1)
    assert memory.live_requests() == [LiveRequest(101, 125, slots)]
    memory.finish(1)
    assert memory.live_requests() == []


@pytest.mark.parametrize(("output", "guess"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_pow2_rounds_the_output_up(output, guess):
    assert OrcaPow2(4096).slots_to_reserve(SimRequest(10, output)) == 10 + guess


def test_pow2_never_reserves_more_than_the_model_allows():
    assert OrcaPow2(4096).slots_to_reserve(SimRequest(1000, 1030)) == 2048


def test_max_takes_seven_requests_and_not_an_eighth():
    memory = OrcaMax(15_728)
    assert [memory.admit(i, SimRequest(10, 10)) for i in range(8)] == [True] * 7 + [False]
    assert len(memory.live_requests()) == 7
    memory.finish(3)
    assert memory.admit(7, SimRequest(10, 10))


def test_what_the_buddy_allocator_adds_counts_as_external():
    memory = OrcaOracle(64)
    assert memory.admit(1, SimRequest(20, 13))  # 33 slots, from a chunk of 64
    assert not memory.admit(2, SimRequest(1, 1))
    waste = waste_breakdown(memory.live_requests(), 64)
    assert (waste.internal, waste.external) == (0, 31)


def test_paged_takes_a_block_when_the_last_one_is_full():
    memory = Paged(64, block_size=4, watermark=0)
    assert memory.admit(1, SimRequest(7, 10))
    assert memory.num_free_blocks == 14
    assert memory.grow(1)
    assert memory.num_free_blocks == 14  # the eighth token fills the second block
    assert memory.grow(1)
    assert memory.num_free_blocks == 13
    assert memory.live_requests() == [LiveRequest(9, 9, 12)]
    memory.finish(1)
    assert memory.num_free_blocks == 16


def test_paged_refuses_to_grow_without_a_block_and_changes_nothing():
    memory = Paged(8, block_size=4, watermark=0)
    assert memory.admit(1, SimRequest(4, 4))
    assert memory.admit(2, SimRequest(3, 4))
    before = memory.live_requests()
    assert not memory.grow(1)
    assert memory.live_requests() == before
    assert memory.grow(2)  # it has a slot of its own left
    memory.finish(2)
    assert memory.grow(1)


def test_paged_keeps_the_watermark_free_for_those_that_run():
    memory = Paged(100, block_size=1, watermark=0.1)
    assert memory.admit(1, SimRequest(50, 1))
    assert not memory.admit(2, SimRequest(41, 1))
    assert memory.admit(2, SimRequest(40, 1))
    assert all(memory.grow(i) for i in (1, 2))  # growing may use it
    memory.finish(1)
    memory.finish(2)
    assert memory.admit(3, SimRequest(99, 1))  # nobody runs: nobody to keep it for


def test_a_pool_that_block_size_does_not_divide_leaves_a_rest():
    memory = Paged(70, block_size=16)
    assert memory.num_blocks == 4
    assert waste_breakdown(memory.live_requests(), 70).external == 70


def test_requests_that_can_never_fit():
    with pytest.raises(NeverFitsError, match="2049 tokens, more than max_model_len=2048"):
        OrcaMax(15_728).admit(1, SimRequest(2048, 1))
    with pytest.raises(NeverFitsError, match="reserves 2048 slots in one piece.*1500 slots can give is 1024"):
        OrcaMax(1500).admit(1, SimRequest(10, 10))
    with pytest.raises(NeverFitsError, match="65 tokens; the pool holds 4 blocks of 16, 64 tokens"):
        Paged(64).admit(1, SimRequest(64, 1))
    assert Paged(64).admit(1, SimRequest(63, 1))


def test_nonsense_is_refused():
    for policy in POLICIES:
        memory = policy(4096)
        assert memory.admit(1, SimRequest(5, 1))
        with pytest.raises(ValueError, match="request 1 is running already"):
            memory.admit(1, SimRequest(5, 1))
        for call in (memory.grow, memory.finish):
            with pytest.raises(KeyError):
                call(2)
    memory = OrcaOracle(64)
    memory.admit(1, SimRequest(5, 1))
    memory.grow(1)
    with pytest.raises(ValueError, match="complete with its 6 tokens"):
        memory.grow(1)
    with pytest.raises(ValueError, match="watermark is 1.5"):
        Paged(64, watermark=1.5)
    for block_size in (0, 65):
        with pytest.raises(ValueError, match=f"block_size is {block_size}"):
            Paged(64, block_size=block_size)


class PolicyRules(RuleBasedStateMachine):
    """What holds for every policy, whoever decides whom to admit and whom to throw out."""

    @initialize(
        policy=st.sampled_from(
            [
                partial(OrcaMax, max_model_len=32),
                partial(OrcaPow2, max_model_len=32),
                partial(OrcaOracle, max_model_len=32),
                partial(Paged, block_size=1),
                partial(Paged, block_size=4, watermark=0.2),
                Paged,
            ]
        ),
        num_slots=st.integers(32, 150),
    )
    def make(self, policy, num_slots):
        self.policy, self.num_slots = policy, num_slots
        self.memory = policy(num_slots)
        self.tokens = {}  # request_id -> (stored, final)
        self.next_id = 0

    @rule(prompt=st.integers(1, 16), output=st.integers(1, 16))
    def admit(self, prompt, output):
        before = self.memory.live_requests()
        if self.memory.admit(self.next_id, SimRequest(prompt, output)):
            self.tokens[self.next_id] = (prompt, prompt + output)
        else:
            assert self.tokens, "an empty pool refused a request that fits"
            assert self.memory.live_requests() == before
        self.next_id += 1

    @rule(data=st.data())
    def grow(self, data):
        growing = [i for i, (stored, final) in self.tokens.items() if stored < final]
        if growing:
            request_id = data.draw(st.sampled_from(growing))
            before = self.memory.live_requests()
            if self.memory.grow(request_id):
                stored, final = self.tokens[request_id]
                self.tokens[request_id] = (stored + 1, final)
            else:
                assert self.memory.live_requests() == before
                assert len(self.tokens) > 1, "a request alone did not get its slot"

    @rule(data=st.data())
    def finish(self, data):
        if self.tokens:
            request_id = data.draw(st.sampled_from(sorted(self.tokens)))
            self.memory.finish(request_id)
            del self.tokens[request_id]

    @invariant()
    def live_requests_are_the_ones_we_know(self):
        live = self.memory.live_requests()
        assert [request.num_tokens for request in live] == [stored for stored, _ in self.tokens.values()]
        assert sum(waste_breakdown(live, self.num_slots)) == self.num_slots
        if isinstance(self.memory, Paged):
            free = self.memory.num_free_blocks
            size = self.memory.block_size
            assert 0 <= free <= self.memory.num_blocks
            assert sum(request.reserved_slots for request in live) == (self.memory.num_blocks - free) * size
            assert all(request.reserved_slots - request.num_tokens < size for request in live)
        else:
            assert [request.final_tokens for request in live] == [final for _, final in self.tokens.values()]

    def teardown(self):
        if hasattr(self, "memory"):
            for request_id in self.tokens:
                self.memory.finish(request_id)
            fresh = self.policy(self.num_slots)
            answers = [[m.admit(i, SimRequest(16, 16)) for i in range(12)] for m in (self.memory, fresh)]
            assert answers[0] == answers[1], "a pool that was used and emptied holds less than a new one"


TestPolicyRules = PolicyRules.TestCase
TestPolicyRules.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
