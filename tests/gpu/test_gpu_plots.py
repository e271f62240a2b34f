"""Pictures of GPUs: the numbers are written in, said in words, and right."""

import subprocess
import sys
from io import BytesIO
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from pagedlab.errors import PagedLabError
from pagedlab.gpu.gpus import GPUS, find
from pagedlab.gpu.hierarchy import clock, levels
from pagedlab.gpu.plots import FIVE, Waves, memory_hierarchy, roofline_plot, size_in_words, waves_plot
from pagedlab.gpu.roofline import decode_roofline, prefill_roofline, ridge
from pagedlab.kernels.splits import wave_efficiency
from pagedlab.picture import Picture


def words(picture: Picture) -> list[str]:
    return [text.get_text() for axes in picture.figure.axes for text in axes.texts]


class TestHierarchy:
    # Boost clocks that the vendors state, in GHz: A100 whitepaper; Ada and RTX Blackwell whitepapers, appendix A;
    # MI300X data sheet. The clock that is reckoned with comes from FLOP/s, so this ties the two together.
    @pytest.mark.parametrize("name, stated", [("A100", 1.41), ("RTX 4090", 2.52), ("RTX 5090", 2.407), ("MI300X", 2.1)])
    def test_the_clock_is_the_one_the_vendor_states(self, name, stated):
        assert clock(name) / 1e9 == pytest.approx(stated, rel=0.01)

    @pytest.mark.parametrize("name", sorted(GPUS))
    def test_nearer_is_faster_and_memory_is_by_far_the_largest(self, name):
        found = levels(name)
        stated = [level.bandwidth for level in found if level.bandwidth is not None]
        assert stated == sorted(stated, reverse=True)
        assert found[-1].bytes > 100 * max(level.bytes for level in found[:-1])
        assert 1.2e9 < clock(name) < 3e9

    def test_shared_memory_of_an_a100(self):
        """108 multiprocessors, 32 banks of 4 bytes, 1.41 GHz: the 19.5 TB/s that are commonly named."""
        shared = levels("A100")[1]
        assert shared.bytes == 108 * 164 * 1024 and shared.bandwidth == pytest.approx(19.5e12, rel=0.005)
        assert shared.reckoned and not levels("A100")[-1].reckoned

    def test_the_picture_has_each_number_once(self):
        picture = memory_hierarchy()
        for name in FIVE:
            for level in levels(name):
                assert any(text.startswith(size_in_words(level.bytes)) for text in words(picture))
        assert len(picture.figure.axes[0].patches) == sum(len(levels(name)) for name in FIVE) == 21
        assert len({bar.get_hatch() for bar in picture.figure.axes[0].patches}) == 5, "told apart by colour alone"
        assert "H100: registers 33 MiB 371 TB/s*, shared memory 29.4 MiB" in repr(picture)
        assert [row[0] for row in picture.table().rows] == ["registers", "shared memory", "L2", "L3", "memory"]
        assert picture.table().rows[2][3:5] == ("50 MiB", "not stated")

    def test_larger_is_wider(self):
        bars = memory_hierarchy(["A100", "B200"]).figure.axes[0].patches
        sizes = [level.bytes for name in ("A100", "B200") for level in levels(name)]
        by_size = sorted(zip(sizes, (bar.get_width() for bar in bars), strict=True))
        widths = [width for _, width in by_size]
        assert widths == sorted(widths) and widths[-1] < 1

    def test_what_it_cannot_draw(self):
        with pytest.raises(PagedLabError, match="No GPU is called 'H900'"):
            memory_hierarchy(["H900"])
        with pytest.raises(PagedLabError, match="No GPU is called 5"):
            memory_hierarchy(5)
        with pytest.raises(ValueError, match="0 GPUs; the picture holds 1 to 6"):
            memory_hierarchy([])


class TestRoofline:
    def test_slope_roof_and_ridge(self):
        axes = roofline_plot(["A100", "H200"]).figure.axes[0]
        for gpu, line, circle in zip(("A100", "H200"), axes.lines[::2], axes.lines[1::2], strict=True):
            x, y = line.get_data()
            facts = find(gpu)
            assert y[0] == pytest.approx(x[0] * facts.memory_bandwidth / 1e12)
            assert (x[1], y[1]) == pytest.approx((ridge(gpu), facts.fp16_flops / 1e12))
            assert y[2] == y[1] and [each[0] for each in circle.get_data()] == [x[1], y[1]]
        assert len({line.get_linestyle() for line in axes.lines[::2]}) == 2, "told apart by colour alone"
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert "FLOP per byte" in axes.get_xlabel() and "TFLOP/s" in axes.get_ylabel()

    def test_points_lie_on_the_roof_they_were_reckoned_for(self):
        points = {
            "decode": decode_roofline(64, 4096, 32, 8, 128, 2, "H200"),
            "prefill": prefill_roofline(4096, 4096, 32, 8, 128, 2, "H200"),
            "measured": (4.0, 1.7e13),
        }
        picture = roofline_plot("H200", points)
        placed = {line.get_label().split(":")[0]: line for line in picture.figure.axes[0].lines[2:]}
        facts = find("H200")
        for name in ("decode", "prefill"):
            (x,), (y,) = placed[name].get_data()
            assert y == pytest.approx(min(x * facts.memory_bandwidth, facts.fp16_flops) / 1e12)
        assert [value[0] for value in placed["measured"].get_data()] == [4.0, 17.0]
        assert len({line.get_marker() for line in placed.values()}) == 3
        assert "decode: 4 FLOP per byte, 19.2 TFLOP/s" in repr(picture)
        assert [row[0] for row in picture.table().rows] == ["H200, ridge", "decode", "prefill", "measured"]

    def test_what_it_cannot_draw(self):
        for points, says in (
            ({"a": 3}, "the point 'a' is 3; expected a Roofline"),
            ({"a": (0, 1)}, "both must be above 0"),
            ({"a": (float("inf"), 1e12)}, "at inf FLOP per byte"),
            ([(1, 2)], r"points are \[\(1, 2\)\]; expected a dictionary"),
            ({f"{i}": (1, 1) for i in range(9)}, "9 points; the picture holds 8"),
        ):
            with pytest.raises(ValueError, match=says):
                roofline_plot("A100", points)


class TestWaves:
    def test_one_sequence_leaves_most_of_an_h100_idle(self):
        picture = waves_plot({"1 split": 8, "16 splits": 128}, 132)
        first, second = picture.figure.axes
        assert [bar.get_width() for bar in first.patches] == [132, 8]  # the slots, and those at work
        assert [bar.get_width() for bar in second.patches] == [132, 128]
        assert "1 split: 8 programs for 132 slots, 1 wave, 6 % at work; 124 of 132 SMs have nothing to do." in repr(
            picture
        )
        assert picture.table().rows[1] == ("16 splits", 128, 1, 128, "97 %")

    def test_a_last_wave_that_is_nearly_empty(self):
        says = repr(waves_plot(110, 108))
        assert "110 programs for 108 slots, 2 waves, 51 % at work; the last wave has 2; 106 of 108 SMs" in says

    @given(st.integers(1, 5000), st.integers(1, 200), st.integers(1, 8))
    def test_every_program_is_drawn_once(self, programs, num_sms, blocks_per_sm):
        waves = Waves(programs, num_sms, blocks_per_sm)
        slots = num_sms * blocks_per_sm
        rows = waves.rows()
        assert waves.count == ceil(programs / slots) and len(rows) == min(12, waves.count) * blocks_per_sm
        assert sum(rows) == min(programs, 12 * slots)
        assert waves.share == pytest.approx(wave_efficiency(programs, slots))
        for start in range(0, len(rows), blocks_per_sm):  # nobody has a second one before all have a first
            wave = rows[start : start + blocks_per_sm]
            assert wave == sorted(wave, reverse=True)
            assert all(more == num_sms for more, fewer in zip(wave, wave[1:], strict=False) if fewer)

    def test_many_waves_are_told(self):
        picture = waves_plot(5000, 100)
        assert "(the first 12 waves are drawn)" in picture.figure.axes[0].get_title(loc="left")
        assert "50 waves" in repr(picture)

    def test_what_it_cannot_draw(self):
        for arguments, says in (
            ((0, 132), "num_programs is 0"),
            (({"a": 1.5}, 132), "a is 1.5"),
            ((8, 0), "num_sms is 0"),
            ((8, 132, True), "blocks_per_sm is True"),
            (({}, 132), "0 launches"),
        ):
            with pytest.raises(ValueError, match=says):
                waves_plot(*arguments)


def test_dollars_in_a_name_are_dollars():
    wrong = r"$\frac{$"  # as a formula, an error when the figure is drawn
    assert roofline_plot("A100", {wrong: (5, 1e12)}).png() and waves_plot({wrong: 5}, 108, title=wrong).png()


def test_a_notebook_shows_an_opaque_png_with_alternative_text():
    for picture in (memory_hierarchy(), roofline_plot("H200"), waves_plot(8, 132)):
        data, metadata = picture._repr_mimebundle_()
        assert len(data["image/png"]) < 60_000
        assert metadata["image/png"]["alt"] == data["text/plain"] == repr(picture) != ""
        pixels = imread(BytesIO(data["image/png"]))
        assert (pixels[0, 0] == 1).all() and (pixels.shape[2] == 3 or (pixels[..., 3] == 1).all())


def test_a_picture_without_numbers_says_so():
    with pytest.raises(PagedLabError, match="no table; in words: a line"):
        Picture(None, "a line").table()


def test_importing_the_plots_is_quick():
    slow = ("torch", "triton", "matplotlib")
    code = f"import sys, pagedlab.gpu.plots; sys.exit(any(name in sys.modules for name in {slow}))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
