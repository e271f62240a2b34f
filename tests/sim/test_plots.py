"""Pictures of serving: the numbers are written in, and said in words."""

from io import BytesIO

import pytest
from matplotlib.image import imread

from pagedlab.sim.plots import plot_sharing, plot_watermark
from pagedlab.sim.sharing import BEAM, SAMPLING, SharingRun
from pagedlab.sim.watermark import watermark_curve
from pagedlab.sim.workload import ALPACA

SHARING = [
    SharingRun("Alpaca", SAMPLING, 2, 90, 100, 1),
    SharingRun("Alpaca", BEAM, 2, 50, 100, 1),
    SharingRun("Alpaca", BEAM, 3, 40, 100, 1),
]


@pytest.fixture(scope="module")
def curve():
    return watermark_curve([0, 0.05], ALPACA, num_requests=12, num_blocks=30)


def test_sharing():
    picture = plot_sharing(SHARING)
    axes = picture.figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Alpaca, n = 2", "Alpaca, n = 2", "Alpaca, n = 3"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([10, 50, 60])
    assert len({bar.get_hatch() for bar in axes.patches}) == 2, "methods are told apart by colour alone"
    assert [text.get_text() for text in axes.texts] == ["10.0", "50.0", "60.0"]
    assert [line.get_xdata()[0] for line in axes.lines] == [6.09, 37.56]  # the paper has no n = 3
    assert "Alpaca, beam search, n=2: 50.0 (paper 37.6). Alpaca, beam search, n=3: 60.0." in repr(picture)


def test_watermark(curve):
    picture = plot_watermark(curve)
    above, below = picture.figure.axes
    assert list(above.lines[0].get_ydata()) == [run.num_preemptions for run in curve.values()]
    assert list(below.lines[0].get_ydata()) == [run.throughput for run in curve.values()]
    assert list(below.lines[0].get_xdata()) == [0, 5]
    assert f"0 %: {curve[0].num_preemptions:,} preemptions" in repr(picture)


def test_a_notebook_shows_an_opaque_png_with_alternative_text(curve):
    for picture in (plot_sharing(SHARING), plot_watermark(curve)):
        data, metadata = picture._repr_mimebundle_()
        assert len(data["image/png"]) < 60_000
        assert metadata["image/png"]["alt"] == data["text/plain"] == repr(picture) != ""
        pixels = imread(BytesIO(data["image/png"]))
        assert (pixels[0, 0] == 1).all() and (pixels.shape[2] == 3 or (pixels[..., 3] == 1).all())


def test_nothing_to_draw():
    for plot, nothing in ((plot_sharing, []), (plot_watermark, {})):
        with pytest.raises(ValueError, match="nothing to draw"):
            plot(nothing)
