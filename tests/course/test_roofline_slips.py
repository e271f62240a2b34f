"""Each way to miscount bytes, FLOPs or seconds is told by its own message."""

import pytest

from pagedlab.course.exercises.l11 import counts_bytes, counts_flops, gives_intensity, gives_seconds
from pagedlab.course.promise import Wrong
from pagedlab.gpu.gpus import GPUS
from pagedlab.gpu.roofline import decode_roofline

SHAPE = {"num_seqs": 3, "length": 1000, "kv_heads": 5, "group": 7, "dim": 128, "width": 4}


def without(promise, **changes):
    """What the promise says of an answer that is right but for these fields."""

    def answer(*call):
        it = decode_roofline(*call)
        return it._replace(**{field: change(it, *call) for field, change in changes.items()})

    asked = SHAPE | {"gpu": GPUS["H200"]}
    with pytest.raises(Wrong) as told:
        promise.holds(answer, **{name: asked[name] for name in promise.inputs})
    return told.value.message


@pytest.mark.parametrize(
    "count, says",
    [
        (lambda n, t, h, kv, d, w: n * 2 * t * h * d * w, "counted for 35 heads; 5 are stored"),
        (lambda n, t, h, kv, d, w: n * (2 * t * kv + h) * d * w, "one of them is missing"),
        (lambda n, t, h, kv, d, w: n * (2 * t * kv + 2 * kv) * d * w, "a query for every query head"),
        (lambda n, t, h, kv, d, w: (n * 2 * t * kv + 2 * h) * d * w, "has a query and an output of its own"),
        (lambda n, t, h, kv, d, w: (2 * t * kv + n * 2 * h) * d * w, "has keys and values of its own"),
        (lambda n, t, h, kv, d, w: n * (2 * (t + 1) * kv + 2 * h) * d * w, "a token too many"),
        (lambda n, t, h, kv, d, w: n * (2 * t * kv + 2 * h) * w, "head_dim is missing"),
        (lambda n, t, h, kv, d, w: n * (2 * t * kv + 2 * h * d) * w, "head_dim is missing"),
        (lambda n, t, h, kv, d, w: n * (2 * t * kv + 2 * h) * d, "numbers, not bytes"),
        (lambda n, t, h, kv, d, w: n * (2 * t * kv + 2 * h) * d * w * 8, "bits"),
    ],
)
def test_bytes(count, says):
    assert says in without(counts_bytes, bytes=lambda it, *call: count(*call[:6]))


@pytest.mark.parametrize(
    "wrong, says",
    [
        (lambda it, *call: it.flops // 4, "That is a quarter"),
        (lambda it, *call: it.flops // call[0], "That is one sequence"),
        (lambda it, *call: it.flops // call[4], "head_dim is missing"),
        (lambda it, *call: it.flops * call[5], "not bytes"),
        (lambda it, *call: it.flops + 1, "`flops` is wrong"),
        (lambda it, *call: it.bytes, "That is bytes, in the place of flops"),
        (lambda it, *call: "many", "this is str"),
    ],
)
def test_flops(wrong, says):
    assert says in without(counts_flops, flops=wrong)


def test_intensity():
    assert "cut off" in without(gives_intensity, intensity=lambda it, *call: it.flops // it.bytes)
    assert "ridge" in without(
        gives_intensity, intensity=lambda it, *call: call[6].fp16_flops / call[6].memory_bandwidth
    )


def test_seconds():
    assert "Here moving takes longer" in without(gives_seconds, seconds=lambda it, *call: it.flops / call[6].fp16_flops)
    assert "milliseconds" in without(gives_seconds, seconds=lambda it, *call: it.seconds * 1e3)
