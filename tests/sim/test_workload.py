"""The drawn lengths have the paper's means, stay within the model's limit, and are the same everywhere."""

from itertools import islice
from statistics import fmean

import pytest

from pagedlab.sim.workload import ALPACA, SHAREGPT, Lengths, SimRequest


@pytest.mark.parametrize("lengths", [SHAREGPT, ALPACA], ids=lambda lengths: lengths.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_means_after_clipping_are_the_papers(lengths, seed):
    requests = lengths.requests(60_000, seed)
    assert fmean(request.prompt_tokens for request in requests) == pytest.approx(lengths.mean_prompt, rel=0.02)
    assert fmean(request.output_tokens for request in requests) == pytest.approx(lengths.mean_output, rel=0.02)
    assert min(request.prompt_tokens for request in requests) >= 1
    assert min(request.output_tokens for request in requests) >= 1
    assert max(request.final_tokens for request in requests) <= 2048


def test_the_papers_numbers():
    # Figure 11; ShareGPT is 8.4 and 5.8 times longer.
    assert SHAREGPT.mean_prompt / ALPACA.mean_prompt == pytest.approx(8.4, abs=0.05)
    assert SHAREGPT.mean_output / ALPACA.mean_output == pytest.approx(5.8, abs=0.05)


def test_the_spread_of_outputs_is_the_one_figure_2_implies():
    outputs = [request.output_tokens for request in SHAREGPT.requests(60_000, seed=3)]
    to_come = sum(n * n for n in outputs) / sum(outputs) / 2  # of a request met at a random moment
    assert 7 * to_come / 15_728 == pytest.approx(0.133, abs=0.004)


def test_clipping_is_allowed_for_when_it_cuts_deep():
    lengths = Lengths("wide", mean_prompt=60, mean_output=150, sigma_prompt=1.0, sigma_output=1.2, max_model_len=512)
    requests = lengths.requests(60_000)
    assert sum(request.final_tokens == 512 for request in requests) > 1000
    assert fmean(request.output_tokens for request in requests) == pytest.approx(150, rel=0.03)


def test_the_same_seed_gives_the_same_requests_on_every_machine():
    assert SHAREGPT.requests(3, seed=0) == [SimRequest(127, 223), SimRequest(195, 270), SimRequest(73, 331)]
    assert ALPACA.requests(2, seed=7) == [SimRequest(14, 53), SimRequest(11, 20)]
    assert SHAREGPT.requests(50, seed=0) != SHAREGPT.requests(50, seed=1)


def test_a_longer_list_begins_with_the_shorter_one():
    assert SHAREGPT.requests(1000)[:300] == SHAREGPT.requests(300) == list(islice(SHAREGPT.stream(), 300))
    assert SHAREGPT.requests(0) == []


@pytest.mark.parametrize("numbers", [(0, 5), (5, 0), (-1, 5)])
def test_requests_have_at_least_one_token_each_way(numbers):
    with pytest.raises(ValueError, match=f"not {numbers[0]} and {numbers[1]}"):
        SimRequest(*numbers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean_prompt": 0}, "mean lengths are 0 and 100"),
        ({"mean_prompt": float("nan")}, "mean lengths are nan and 100"),
        ({"sigma_output": 0}, "sigmas are 0.5 and 0"),
        ({"mean_output": 1000}, "more than half of max_model_len=2048"),
    ],
)
def test_lengths_that_make_no_sense(change, message):
    good = {"mean_prompt": 100, "mean_output": 100, "sigma_prompt": 0.5, "sigma_output": 0.5}
    with pytest.raises(ValueError, match=message):
        Lengths("odd", **(good | change))
