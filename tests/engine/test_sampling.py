"""Sampling against a slow plain reference, and the draws against the distribution they should follow."""

import math
import random
import subprocess
import sys

import pytest
import torch

from pagedlab.engine import sampling
from pagedlab.engine.params import SamplingParams
from pagedlab.engine.sampling import log_probabilities, sample, uniform


def plain_probabilities(row, params):
    """The distribution of one row, token by token, in Python's floats."""
    scaled = [(value - max(row)) / params.temperature for value in row]
    order = sorted(range(len(row)), key=lambda token: -scaled[token])
    if params.top_k:
        order = order[: params.top_k]
    weights = {token: math.exp(scaled[token] - scaled[order[0]]) for token in order}
    total, kept, covered = sum(weights.values()), {}, 0.0
    for token in order:
        if covered >= params.top_p * total:
            break
        kept[token] = weights[token]
        covered += weights[token]
    return {token: weight / covered for token, weight in kept.items()}


SHAPES = [
    dict(temperature=1.0),
    dict(temperature=0.3),
    dict(temperature=5.0),
    dict(temperature=1e-300),
    dict(temperature=1.0, top_k=1),
    dict(temperature=0.7, top_k=5),
    dict(temperature=1.0, top_k=10**9),
    dict(temperature=1.0, top_p=0.5),
    dict(temperature=2.0, top_p=0.9),
    dict(temperature=1.0, top_p=1e-9),
    dict(temperature=1.5, top_k=8, top_p=0.6),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("first_try", [4, 1024])
def test_draws_follow_the_plain_distribution(monkeypatch, shape, first_try):
    monkeypatch.setattr(sampling, "FIRST_TRY", first_try)
    params = SamplingParams(**shape)
    row = torch.randn(40, generator=torch.Generator().manual_seed(1))
    expected = plain_probabilities(row.tolist(), params)
    count = 4000
    numbers = [(i + 0.5) / count for i in range(count)]  # evenly spread: frequencies are exact, not lucky
    tokens = sample(row.expand(count, -1), [params] * count, numbers)
    found = {token: tokens.count(token) / count for token in set(tokens)}
    assert set(found) <= set(expected)
    for token, probability in expected.items():
        assert found.get(token, 0) == pytest.approx(probability, abs=2 / count)


def test_rows_of_all_kinds_in_one_batch_are_as_each_alone():
    rng = random.Random(0)
    kinds = [dict(temperature=0.0), *SHAPES]
    params = [SamplingParams(**rng.choice(kinds)) for _ in range(60)]
    logits = torch.randn(60, 50, generator=torch.Generator().manual_seed(0))
    numbers = [rng.random() for _ in range(60)]
    together = sample(logits, params, numbers)
    alone = [sample(logits[i : i + 1], [params[i]], [numbers[i]])[0] for i in range(60)]
    assert together == alone
    greedy = [i for i in range(60) if params[i].temperature == 0]
    assert greedy and all(together[i] == int(logits[i].argmax()) for i in greedy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_first_of_the_largest(dtype):
    logits = torch.zeros(3, 9, dtype=dtype)
    logits[0, 4] = logits[0, 7] = 2
    logits[1, 8] = 0.5
    assert sample(logits, [SamplingParams()] * 3, [0.0] * 3) == [4, 8, 0]


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_hit_tokens_that_are_possible(number):
    logits = torch.full((4, 30), -torch.inf)
    logits[:, [3, 17]] = 0.0
    params = [SamplingParams(temperature=1.0, **more) for more in ({}, {"top_k": 20}, {"top_p": 0.99}, {"top_k": 1})]
    for token in sample(logits, params, [number] * 4):
        assert token in (3, 17)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, top_k=3)])
def test_nan_is_an_error(params):
    logits = torch.zeros(2, 5)
    logits[1, 3] = torch.nan
    with pytest.raises(ValueError, match="row 1 of the logits has NaN"):
        sample(logits, [params] * 2, [0.5] * 2)


def test_no_rows():
    assert sample(torch.zeros(0, 5), [], []) == []


def test_uniform_numbers():
    numbers = [uniform(seed, index, place) for seed in range(10) for index in range(10) for place in range(100)]
    assert all(0 <= number < 1 for number in numbers) and len(set(numbers)) == len(numbers)
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.015)
    for tenth in range(10):
        share = sum(tenth / 10 <= number < (tenth + 1) / 10 for number in numbers) / len(numbers)
        assert share == pytest.approx(0.1, abs=0.015)
    assert uniform(2**64 + 5, 0, 0) == uniform(5, 0, 0)
    assert uniform(-1, 2, 3) != uniform(1, 2, 3)


def test_uniform_numbers_are_the_same_in_every_process():
    code = "from pagedlab.engine.sampling import uniform; print(repr(uniform(7, 1, 2)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(printed) == uniform(7, 1, 2)


def test_log_probabilities():
    row = torch.tensor([0.0, 3.0, 1.0, 2.0])
    expected = row.log_softmax(0).tolist()
    assert log_probabilities(row, 0, 2) == pytest.approx({0: expected[0], 1: expected[1], 3: expected[3]})
    assert list(log_probabilities(row, 0, 2)) == [0, 1, 3]
    assert log_probabilities(row, 1, 0) == pytest.approx({1: expected[1]})
    assert len(log_probabilities(row, 1, 99)) == 4


@pytest.mark.parametrize(
    "field, value, error",
    [
        ("max_tokens", 0, ValueError),
        ("max_tokens", -3, ValueError),
        ("max_tokens", 2.5, TypeError),
        ("max_tokens", "9", TypeError),
        ("temperature", math.nan, ValueError),
        ("temperature", math.inf, ValueError),
        ("temperature", -0.1, ValueError),
        ("temperature", "hot", TypeError),
        ("temperature", None, TypeError),
        ("temperature", True, TypeError),
        ("top_k", -1, ValueError),
        ("top_k", 1.0, TypeError),
        ("top_p", 0, ValueError),
        ("top_p", 1.1, ValueError),
        ("top_p", math.nan, ValueError),
        ("seed", 1.5, TypeError),
        ("n", 0, ValueError),
        ("stop", 7, TypeError),
        ("stop", ["a", 7], TypeError),
        ("stop", None, TypeError),
        ("stop", ["a", ""], ValueError),
        ("stop_token_ids", 7, TypeError),
        ("stop_token_ids", "7", TypeError),
        ("stop_token_ids", [1, -1], ValueError),
        ("stop_token_ids", [1.0], TypeError),
        ("ignore_eos", 1, TypeError),
        ("logprobs", -1, ValueError),
        ("logprobs", True, TypeError),
        ("beam_width", 0, ValueError),
        ("length_penalty", math.nan, ValueError),
        ("length_penalty", 11, ValueError),
    ],
)
def test_params_that_make_no_sense(field, value, error):
    with pytest.raises(error) as raised:
        SamplingParams(**{field: value})
    named = {"stop_token_ids": "stop"}.get(field, field)
    assert named in str(raised.value).replace("a stop token id", "stop")
    number = value[-1] if isinstance(value, list) else value
    assert str(number) in str(raised.value)


@pytest.mark.parametrize(
    "params, message",
    [
        (dict(n=2), "n is 2 but temperature is 0"),
        (dict(beam_width=2, n=2, temperature=1.0), "beam_width is 2"),
        (dict(beam_width=2, stop="x"), "beam_width is 2"),
    ],
)
def test_params_that_exclude_each_other(params, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**params)


def test_params_take_what_is_meant():
    params = SamplingParams(stop="end", stop_token_ids=[3, 4], temperature=1, top_p=1)
    assert params.stop == ("end",) and params.stop_token_ids == (3, 4)
    assert isinstance(params.temperature, float) and hash(params) == hash(SamplingParams(**params.__dict__))
    assert SamplingParams(beam_width=4).num_sequences == 4 and SamplingParams(n=3, temperature=1.0).num_sequences == 3
