import pytest

from pagedlab.engine.request import Request, RequestStatus


def test_the_newest_token_counts_before_it_is_stored():
    request = Request("a", [5, 6, 7, 8], max_tokens=3)
    assert (request.num_tokens, request.num_new_tokens) == (4, 4)
    request.num_computed_tokens += 4
    assert request.is_idle  # sampled, and no token chosen yet
    request.output_token_ids.append(9)
    assert (request.num_tokens, request.num_computed_tokens, request.num_new_tokens) == (5, 4, 1)
    assert not request.is_idle
    assert request.token_ids == [5, 6, 7, 8, 9]


def test_the_last_token_is_never_stored():
    assert Request("a", [1, 2, 3], max_tokens=1).max_num_tokens_stored == 3
    assert Request("a", [1, 2, 3], max_tokens=5).max_num_tokens_stored == 7


def test_tokens_of_a_range():
    request = Request("a", [0, 1, 2], max_tokens=9)
    request.output_token_ids += [3, 4, 5]
    for start in range(7):
        for end in range(start, 7):
            assert request.tokens(start, end) == list(range(start, min(end, 6)))


def test_a_request_keeps_its_own_prompt():
    prompt = [1, 2]
    request = Request("a", prompt, max_tokens=1)
    prompt.append(3)
    request.token_ids.append(4)
    assert request.token_ids == [1, 2]


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        (("a", [], 1), {}, "empty prompt"),
        (("a", [1], 0), {}, "max_tokens is 0"),
        (("a", [1], 1), {"n": 0}, "n is 0"),
    ],
)
def test_bad_numbers(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        Request(*arguments, **options)


def test_bad_types():
    with pytest.raises(TypeError, match="max_tokens must be a whole number, not 2.5"):
        Request("a", [1], 2.5)
    with pytest.raises(TypeError, match="priority must be a whole number, not 'high'"):
        Request("a", [1], 2, priority="high")


def test_finish_reasons():
    reasons = {status.name: status.finish_reason for status in RequestStatus}
    assert reasons == {
        "WAITING": None,
        "RUNNING": None,
        "PREEMPTED": None,
        "SWAPPED": None,
        "FINISHED_STOPPED": "stop",
        "FINISHED_LENGTH": "length",
        "FINISHED_ABORTED": "abort",
    }
    assert all(status.is_finished == (status.finish_reason is not None) for status in RequestStatus)
