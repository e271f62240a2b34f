"""The watermark's curve has the shape that was published."""

from pagedlab.sim.watermark import PUBLISHED, watermark_curve
from pagedlab.sim.workload import ALPACA


def shape(points):
    """Does it never rise, and where is the throughput highest?"""
    preemptions, throughput = zip(*points, strict=True)
    falls = list(preemptions) == sorted(preemptions, reverse=True)
    return falls, throughput.index(max(throughput)) not in (0, len(points) - 1)


def test_preemptions_fall_and_throughput_has_a_maximum_in_between():
    assert shape(PUBLISHED.values()) == (True, True)
    curve = watermark_curve()
    assert list(curve) == list(PUBLISHED)
    points = [(run.num_preemptions, run.throughput) for run in curve.values()]
    assert shape(points) == (True, True)
    none, some = points[0], points[1]
    assert none[0] > 5 * points[-1][0] and none[0] - some[0] > points[-2][0] - points[-1][0], "steep at first"
    assert [run.mean_batch_size for run in curve.values()] == sorted(
        (run.mean_batch_size for run in curve.values()), reverse=True
    )
    assert len({run.num_output_tokens for run in curve.values()}) == 1, "the same answers, whatever it costs"


def test_options_reach_the_scheduler():
    few = watermark_curve([0.05], ALPACA, num_requests=20, num_blocks=30, max_num_seqs=1)
    assert few[0.05].mean_batch_size == 1 and few[0.05].scheduler == "watermark 5 %"
