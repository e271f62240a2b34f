"""Savings by sharing: exact where they can be worked out, and in the paper's order where they can not."""

import pytest

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.table import BlockTable
from pagedlab.sim.sharing import BEAM, FIGURE_15, SAMPLING, figure_15, sharing, succeed, table
from pagedlab.sim.workload import ALPACA, SHAREGPT, SimRequest


class Always:
    """A workload of one request, again and again."""

    name = "always"

    def __init__(self, prompt_tokens, output_tokens):
        self.request = SimRequest(prompt_tokens, output_tokens)

    def requests(self, n, seed=0):
        return [self.request] * n


def test_two_samples_by_hand():
    # A prompt of 6 in blocks of 4: a full one, and a half full one that the first writer copies. After each of the two
    # tokens there are 3 blocks in use, and each table has 2; the third token needs a block for each: 5 for 3 and 3.
    run = sharing(SAMPLING, Always(6, 3), n=2, num_requests=1, block_size=4)
    assert (run.blocks_in_use, run.table_entries, run.num_copies) == (3 + 3 + 5, 4 + 4 + 6, 1)
    assert run.saved == pytest.approx(1 - 11 / 14)


@pytest.mark.parametrize("method", [SAMPLING, BEAM])
def test_one_sequence_saves_nothing(method):
    run = sharing(method, Always(6, 9), n=1, num_requests=2, block_size=4)
    assert (run.saved, run.num_copies) == (0, 0)


def test_full_blocks_need_no_copies():
    assert sharing(SAMPLING, Always(8, 9), n=4, num_requests=1, block_size=4).num_copies == 0
    assert sharing(BEAM, Always(5, 30), n=4, num_requests=1, block_size=1).num_copies == 0


def test_beams_by_hand():
    allocator, root = BlockAllocator(8), BlockTable(2)
    root.append_tokens(2, allocator)
    a, b = root, root.fork(allocator)
    for each in (a, b):
        each.append_tokens(1, allocator)
    assert (a.blocks, b.blocks) == ([0, 1], [0, 2])
    first, second = succeed([a, b], [1, 1], allocator)  # b goes on twice, a ends
    assert first is b and second.blocks == [0, 2]
    assert [allocator.ref_count(block) for block in range(3)] == [2, 0, 2]
    assert succeed([first, second], [1, 0], allocator) == [second, first]
    assert [allocator.ref_count(block) for block in range(3)] == [2, 0, 2]


@pytest.fixture(scope="module")
def runs():
    return figure_15([ALPACA, SHAREGPT], num_requests=15)


def test_figure_15(runs):
    """The paper's order everywhere, and its numbers within a factor of 1.6 (beams: within 15 percent points)."""
    saved = {(run.workload, run.method, run.n): run.saved for run in runs}
    for workload, method in FIGURE_15:
        two, four, six = (saved[workload, method, n] for n in (2, 4, 6))
        assert two < four < six, "more sequences share more"
        assert four - two > six - four, "and ever less is left to gain"
    for n in (2, 4, 6):
        for method in (SAMPLING, BEAM):
            assert saved["Alpaca", method, n] < saved["ShareGPT", method, n], "longer prompts share more"
        for workload in ("Alpaca", "ShareGPT"):
            assert saved[workload, SAMPLING, n] < saved[workload, BEAM, n] / 2, "beams share what they write"
    compared = [run for run in runs if run.paper is not None]
    assert len(compared) == 10
    for run in compared:
        if run.method == SAMPLING:
            assert 1 / 1.6 < run.saved / run.paper < 1.6, run
        else:
            assert abs(run.saved - run.paper) < 0.15, run


def test_smaller_blocks_share_more():
    saved = [sharing(SAMPLING, ALPACA, 4, num_requests=10, block_size=size).saved for size in (1, 4, 16, 64)]
    assert saved == sorted(saved, reverse=True)


def test_the_same_every_time():
    once = sharing(BEAM, ALPACA, 3, num_requests=5, seed=1)
    assert once == sharing(BEAM, ALPACA, 3, num_requests=5, seed=1) != sharing(BEAM, ALPACA, 3, num_requests=5, seed=2)


def test_your_own_parts():
    made = []

    class Table(BlockTable):
        def __init__(self, block_size):
            super().__init__(block_size)
            made.append(self)

    class Watched(BlockAllocator):
        pass

    own = sharing(BEAM, ALPACA, 3, num_requests=2, table_class=Table, allocator_class=Watched)
    assert own == sharing(BEAM, ALPACA, 3, num_requests=2) and len(made) > 6

    class Leaking(BlockTable):
        def free(self, allocator):
            self.blocks, self.num_tokens = [], 0

    with pytest.raises(RuntimeError, match="blocks were not given back"):
        sharing(SAMPLING, ALPACA, 2, num_requests=1, table_class=Leaking)


def test_as_text(runs):
    lines = table(runs).splitlines()
    assert len(lines) == 13 and lines[1].startswith("Alpaca, parallel sampling     2") and lines[1].endswith(" 6.1 %")
    assert lines[8].endswith("-")


def test_wrong_questions():
    with pytest.raises(ValueError, match="method is 'best of'"):
        sharing("best of", ALPACA, 2)
    with pytest.raises(ValueError, match="n is 0"):
        sharing(BEAM, ALPACA, 0)
