"""Streams: text piece by piece, beside other requests, and left at any moment."""

import pytest

from pagedlab.engine.engine import Engine
from pagedlab.engine.limits import NeverFitsError
from pagedlab.engine.params import SamplingParams
from pagedlab.model.generate import generate
from tests.engine.poison import assert_empty, exact_llama, poisoned_engine


class Emoji:
    """Two tokens a character, as bytes of UTF-8 would be: an even id begins one, an odd id completes it."""

    eos_token_id = None

    def encode(self, text):
        return [ord(character) % 97 for character in text]

    def decode(self, ids, skip_special_tokens=False):
        pairs = [ids[i : i + 2] for i in range(0, len(ids), 2)]
        return "".join(
            chr(0x1F600 + sum(pair) % 64) if len(pair) == 2 else "\N{REPLACEMENT CHARACTER}" for pair in pairs
        )


@pytest.fixture(scope="module")
def tiny():
    return exact_llama()


@pytest.fixture
def engine(tiny):
    return poisoned_engine(tiny, Emoji(), num_blocks=60, block_size=4)


def test_pieces_are_the_text(tiny, engine):
    params = SamplingParams(max_tokens=12)
    pieces = list(engine.stream("hello", params))
    expected = Emoji().decode(generate(tiny, Emoji().encode("hello"), 12))
    assert "".join(pieces) == expected and len(pieces) == 6
    assert engine.generate("hello", params, progress=False)[0].text == expected
    assert_empty(engine)


def test_half_a_character_at_the_end_is_in_the_last_piece(engine):
    pieces = list(engine.stream("hello", SamplingParams(max_tokens=5)))
    assert pieces[-1] == "\N{REPLACEMENT CHARACTER}"
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces[:-1])


def test_a_stop_string_is_cut(engine):
    whole = "".join(engine.stream("hello", SamplingParams(max_tokens=20)))
    stop = whole[3:5]
    engine.add("hello", SamplingParams(max_tokens=20, stop=stop), request_id="a")
    while engine.has_unfinished:
        outputs = engine.step()
    assert outputs[-1].text == whole[: whole.index(stop)]
    assert (outputs[-1].outputs[0].finish_reason, outputs[-1].outputs[0].stop_reason) == ("stop", stop)
    assert "".join(engine.stream("hello", SamplingParams(max_tokens=20, stop=[stop]))) == outputs[-1].text
    assert_empty(engine)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_stream_that_is_left_aborts_its_request(engine, taken):
    stream = engine.stream("hello", SamplingParams(max_tokens=40))
    for _ in range(taken):
        next(stream)
    assert engine.has_unfinished == (taken > 0)  # nothing is added before somebody listens
    stream.close()
    assert_empty(engine)


def test_a_loop_that_breaks_aborts_its_request(engine):
    for piece in engine.stream("hello", SamplingParams(max_tokens=40)):
        assert piece
        break
    assert_empty(engine)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("call", [1, 2, 5])
def test_a_stream_that_is_interrupted_aborts_its_request(engine, layer, call):
    attend, calls = engine.runner._attend, []

    def and_interrupt(batch, at_layer, *more):
        calls.append(at_layer)
        if calls.count(layer) == call and at_layer == layer:
            raise KeyboardInterrupt
        return attend(batch, at_layer, *more)

    engine.runner._attend = and_interrupt
    engine.add("other", SamplingParams(max_tokens=3), request_id="other")
    with pytest.raises(KeyboardInterrupt):
        for _ in engine.stream("hello", SamplingParams(max_tokens=40)):
            pass
    engine.check_invariants()
    engine.runner._attend = attend
    assert {request.request_id for request in engine.scheduler.requests.values()} <= {"other"}
    while engine.has_unfinished:
        engine.step()
    assert_empty(engine)


def test_two_streams_and_a_request_side_by_side(tiny, engine):
    params = SamplingParams(max_tokens=16)
    alone = {text: "".join(engine.stream(text, params)) for text in ("one", "other")}
    engine.add("third", params, request_id="third")
    streams = {text: engine.stream(text, params) for text in alone}
    texts = dict.fromkeys(alone, "")
    while streams:
        for text, stream in list(streams.items()):
            piece = next(stream, None)
            if piece is None:
                del streams[text]
            else:
                texts[text] += piece
    assert texts == alone
    while engine.has_unfinished:
        engine.step()
    assert_empty(engine)


def test_bad_streams_are_refused_when_they_are_asked_for(tiny, engine):
    with pytest.raises(ValueError, match="n must be 1"):
        engine.stream("hello", SamplingParams(n=2, temperature=1.0))
    with pytest.raises(ValueError, match="beam_width None"):
        engine.stream("hello", SamplingParams(beam_width=2))
    with pytest.raises(ValueError, match="empty"):
        engine.stream("")
    with pytest.raises(NeverFitsError):
        next(engine.stream("hello", SamplingParams(max_tokens=1000)))
    with pytest.raises(ValueError, match="no tokenizer"):
        Engine(tiny, num_blocks=4, backend="torch").stream([1, 2])
    assert_empty(engine)
