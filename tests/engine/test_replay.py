"""A decode step that is played again computes what it computes when it runs, to the last bit."""

import threading

import pytest
import torch

from pagedlab.kernels import gemm, ops
from pagedlab.model.llama import Llama
from pagedlab.model.tiny import tiny_llama
from tests.engine.test_runner import World


@pytest.fixture(scope="module")
def tiny():
    return tiny_llama(fast=True)


@pytest.fixture(autouse=True)
def everything_is_compiled():
    if not gemm.works(torch.float32):
        pytest.skip("torch multiplies the matrices on this processor, so nothing is recorded")
    assert ops.resolve("auto").__name__ == ops.BACKENDS["cpu"]


def worlds(model, block_size=4, num_blocks=60):
    """Two alike, the second one without replay."""
    pair = [World(model, block_size, num_blocks, backend="auto") for _ in range(2)]
    pair[1].runner._replay._works = False
    return pair


def steps(world, lengths, num_steps):
    """Logits of every step, for prompts of these lengths; each token is the largest of the last logits."""
    requests = [world.request(str(i), [(7 * i + k) % 97 for k in range(n)]) for i, n in enumerate(lengths)]
    all_logits = [world.step([(request, len(request.prompt_token_ids)) for request in requests])]
    for _ in range(num_steps):
        for request in requests:
            request.output_token_ids.append(int(all_logits[-1][request.request_id].argmax()))
        all_logits.append(world.step([(request, 1) for request in requests]))
    return all_logits


def assert_equal(first, second):
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_played_is_run(tiny, block_size, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        played, run = worlds(tiny, block_size, num_blocks=200)
        assert_equal(steps(played, [5, 2, 9, 1], 6), steps(run, [5, 2, 9, 1], 6))
    finally:
        torch.set_num_threads(before)
    assert list(played.runner._replay._steps) == [(4, 1)] and not run.runner._replay._steps


def test_recordings_share_a_workspace_and_do_not_disturb_each_other(tiny):
    played, run = worlds(tiny, num_blocks=200)
    for lengths in ([3, 3], [6], [1, 2, 3], [8, 1], [4]):
        assert_equal(steps(played, lengths, 3), steps(run, lengths, 3))
    assert list(played.runner._replay._steps) == [(2, 1), (1, 1), (3, 1)]


def test_a_context_that_grows_into_another_piece(tiny):
    length = ops.resolve("cpu").PIECE_TOKENS
    config = tiny.config
    assert length + 4 <= config.max_position_embeddings
    played, run = worlds(tiny, 16, num_blocks=100)
    assert_equal(steps(played, [length - 2, 3], 5), steps(run, [length - 2, 3], 5))
    assert list(played.runner._replay._steps) == [(2, 1), (2, 2)]


def test_layers_are_announced_and_a_step_that_was_stopped_can_be_repeated(tiny):
    played, run = worlds(tiny)
    for stop_at in (None, 1, 0):  # recorded, then played
        logits = []
        for world in (played, run):
            request = world.request("a", [1])
            request.table.append_tokens(1, world.allocator)
            calls = []

            def before_layer(calls=calls, stop_at=stop_at):
                if len(calls) == stop_at:
                    raise KeyboardInterrupt
                calls.append(1)

            if stop_at is not None:
                with pytest.raises(KeyboardInterrupt):
                    world.runner.execute([(request, 1)], before_layer)
            calls.clear()
            logits.append(world.runner.execute([(request, 1)], lambda calls=calls: calls.append(1))[0])
            assert len(calls) == len(tiny.layers)
        assert torch.equal(*logits)


def test_a_recording_that_was_stopped_is_not_kept(tiny):
    world = World(tiny, 4, backend="auto")
    request = world.request("a", [1])
    request.table.append_tokens(1, world.allocator)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.runner.execute([(request, 1)], stop)
    assert not world.runner._replay._steps
    first, _ = world.runner.execute([(request, 1)])
    again, _ = world.runner.execute([(request, 1)])
    assert torch.equal(first, again) and list(world.runner._replay._steps) == [(1, 1)]


def wrong_token(request, world):
    request.prompt_token_ids[0] = 97
    return ValueError, "token id 97"


def wrong_position(request, world):
    request.num_computed_tokens = 4096
    request.prompt_token_ids *= 4097
    request.num_prompt_tokens = 4097
    request.table.blocks.extend([3] * 4096)
    return ValueError, "position 4096"


def wrong_block(request, world):
    request.table.blocks[0] = 60
    return IndexError, "block|slot"


@pytest.mark.parametrize("spoil", [wrong_token, wrong_position, wrong_block])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_batch_that_is_not_sound_gets_its_error(tiny, spoil, recorded):
    world = World(tiny, 4, backend="auto")
    if recorded:
        world.step([(world.request("first", [1]), 1)])
    request = world.request("a", [1])
    request.table.append_tokens(1, world.allocator)
    kind, words = spoil(request, world)
    with pytest.raises(kind, match=words):
        world.runner.execute([(request, 1)])


def test_two_requests_with_one_slot_get_their_error(tiny):
    world = World(tiny, 2, backend="auto")
    requests = [world.request(name, [1]) for name in "ab"]
    for request in requests:
        request.table.adopt([7], 1)
    with pytest.raises(ValueError, match="slot 14"):
        world.runner.execute([(request, 1) for request in requests])


def test_only_what_can_be_recorded_is(tiny):
    class Mine(Llama):
        pass

    own = tiny_llama(fast=True)
    own.__class__ = Mine
    for world in (World(own, 4, backend="auto"), World(tiny, 4, backend="torch")):
        steps(world, [2, 3], 2)
        assert not world.runner._replay._steps


def test_what_torch_computes_makes_a_recording_void(tiny):
    from pagedlab.kernels.cpu_recording import Workspace, record

    assert record(Workspace(), lambda recording: torch.empty(3) + 1) is None
    assert record(Workspace(), lambda recording: torch.empty(3, 4)[1:].view(-1)).play(lambda: None).shape == (8,)
    model = tiny_llama(fast=True)
    inner = model.layers[1].attention.out
    model.layers[1].attention.out = lambda x: inner(x) * 1
    played, run = worlds(model)
    assert_equal(steps(played, [2, 3], 3), steps(run, [2, 3], 3))
    assert not played.runner._replay._steps


def test_another_thread_is_not_recorded(tiny):
    from pagedlab.kernels.cpu_recording import Workspace, record
    from pagedlab.model import pointwise

    x, weight = torch.randn(3, 8), torch.ones(8)

    def both(recording):
        other = threading.Thread(target=pointwise.rms_norm, args=(x, weight, 1e-5))
        other.start()
        other.join()
        assert record(Workspace(), lambda recording: x) is None  # one at a time
        return pointwise.rms_norm(x, weight, 1e-5)

    recording = record(Workspace(), both)
    assert len(recording._counters) == 1
    right = recording.result.clone()
    recording.result.zero_()
    assert torch.equal(recording.play(lambda: None), right)


def test_few_recordings_are_kept(tiny, monkeypatch):
    monkeypatch.setattr("pagedlab.engine.replay.MOST_KEPT", 2)
    played, run = worlds(tiny, num_blocks=200)
    for count in (1, 2, 3, 1, 3):
        assert_equal(steps(played, [2] * count, 2), steps(run, [2] * count, 2))
        assert len(played.runner._replay._steps) <= 2
