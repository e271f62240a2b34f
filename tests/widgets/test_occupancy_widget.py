"""The occupancy explorer without a browser: what it compiles, what it shows meanwhile, what it says and refuses.

Kernels of a few lines are compiled for real. Where the order of events matters, compiling waits for the test.
"""

import base64
import json
import re
import threading
from xml.etree import ElementTree

import pytest
import traitlets
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.errors import PagedLabError
from pagedlab.gpu import mode

mode.choose()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from pagedlab.gpu.compiled import CompiledKernel, Pointer  # noqa: E402
from pagedlab.gpu.occupancy import occupancy  # noqa: E402
from pagedlab.gpu.targets import TARGETS, find  # noqa: E402
from pagedlab.widgets import OccupancyExplorer  # noqa: E402
from pagedlab.widgets.occupancy_layout import chart, ticks  # noqa: E402
from pagedlab.widgets.occupancy_story import blocks_at, by_registers, by_shared_memory  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


@triton.jit
def add_one(x, out, n, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0) + 1, mask=at < n)


@triton.jit
def add_two(x, out, n, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0) + 2, mask=at < n)


ARGUMENTS = {"x": Pointer("float32"), "out": Pointer("float32"), "n": 4096, "TILE": 1024}
FEW = {"targets": ("sm_80", "sm_90"), "tiles": (1000, 1024), "warps": (4, 8), "stages": (3,)}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def explorer(own_cache):
    return OccupancyExplorer(add_one, ARGUMENTS, **FEW)


def made(registers: int, shared_bytes: int, num_warps: int = 4, target: str = "sm_80") -> CompiledKernel:
    """A record as compiling gives one, with figures of our choice."""
    return CompiledKernel("made", find(target), num_warps, 3, registers, 0, shared_bytes, "", "")


class Held:
    """Holds the explorer's compiling up until it is let go, and answers with figures that name the choice."""

    def __init__(self, explorer):
        self.asked, self.go, self.begun = [], threading.Semaphore(0), threading.Event()
        explorer._compile = self
        self.shown = []
        explorer.observe(self._note, "state")

    def _note(self, change):
        if not change.new["busy"]:
            self.shown.append((change.new["shown"]["target"], change.new["shown"]["num_warps"]))

    def __call__(self, choice):
        self.asked.append((choice["target"], choice["num_warps"]))
        self.begun.set()
        assert self.go.acquire(timeout=30)
        return [made(choice["num_warps"] * 8, 0, choice["num_warps"], choice["target"])]


class TestCompiling:
    def test_the_first_choice_is_there_at_once_and_is_what_the_compiler_says(self, explorer):
        compiled = explorer.compiled
        assert not explorer.busy and explorer.error == ""
        assert compiled.target.name == "sm_80" and compiled.num_warps == 4 and compiled.registers > 0
        expected = occupancy(compiled.registers, compiled.shared_bytes, 4, "sm_80")
        assert explorer.occupancy == expected
        figures = explorer.state["kernels"][0]["figures"]
        assert (figures["registers"], figures["blocks"]) == (compiled.registers, expected.blocks_per_sm)
        assert figures["limiter"] == expected.limiter and figures["lift"] == expected.lift()

    def test_another_choice_is_really_compiled(self, explorer):
        before = explorer.compiled
        assert explorer.choose(num_warps=8) is explorer
        assert explorer.compiled.num_warps == 8 and explorer.compiled.sass != before.sass
        assert explorer.state["shown"] == {"target": "sm_80", "num_warps": 8, "num_stages": 3, "tile": 1024}

    def test_what_does_not_compile_is_told_and_not_raised(self, explorer):
        explorer.choose(tile=1000)
        assert "power of 2" in explorer.error and explorer.compiled is None and explorer.occupancy is None
        assert explorer.error in repr(explorer)
        assert explorer.table().rows[0][1:] == (None, None, None, None, None, "", explorer.error)
        assert explorer.state["charts"] == []
        ElementTree.fromstring(explorer.svg())
        explorer.choose(tile=1024)
        assert explorer.error == "" and explorer.compiled

    def test_two_kernels_stand_beside_each_other(self):
        both = OccupancyExplorer(add_one, ARGUMENTS, reference=add_two, **FEW)
        labels = [told["label"] for told in both.state["kernels"]]
        assert labels == ["yours (add_one)", "the reference"]
        assert len(both.state["charts"][0]["curves"]) == len(both.table().rows) == 2
        assert repr(both).count("registers a thread") == 2 and "The reference: " in repr(both)


class TestBeside:
    """Compiling goes on in another thread."""

    def test_only_the_newest_choice_is_ever_shown(self, explorer):
        held = Held(explorer)
        explorer.target = "sm_90"
        assert held.begun.wait(30)
        explorer.num_warps = 8  # both come while it compiles
        explorer.target = "sm_80"
        assert explorer.busy and explorer.state["busy"] and "Another choice is being compiled" in repr(explorer)
        assert explorer.state["choice"] == {"target": "sm_80", "num_warps": 8, "num_stages": 3, "tile": 1024}
        assert explorer.state["shown"]["target"] == "sm_80" and explorer.compiled.num_warps == 4
        for _ in range(3):
            held.go.release()
        explorer.wait(30)
        assert held.shown == [("sm_80", 8)]
        assert len(held.asked) == 2 and held.asked[1] == ("sm_80", 8)  # the one between was not even compiled
        assert not explorer.busy and explorer.compiled.registers == 64

    def test_a_choice_taken_back_is_answered_too(self, explorer):
        held = Held(explorer)
        explorer.target = "sm_90"
        explorer.target = "sm_80"
        for _ in range(3):
            held.go.release()
        explorer.wait(30)
        assert held.shown == [("sm_80", 4)] and not explorer.state["busy"]

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.tuples(st.sampled_from(["sm_80", "sm_90"]), st.sampled_from([4, 8]), st.booleans()), max_size=8))
    def test_whatever_the_order_the_last_choice_is_what_stays(self, choices):
        explorer = OccupancyExplorer(add_one, ARGUMENTS, **FEW)
        held = Held(explorer)
        for target, num_warps, let_go in choices:
            explorer.target, explorer.num_warps = target, num_warps
            if let_go:
                held.go.release()
        for _ in range(2 * len(choices) + 1):
            held.go.release()
        explorer.wait(30)
        now = explorer.target, explorer.num_warps
        assert (explorer.state["shown"]["target"], explorer.state["shown"]["num_warps"]) == now
        assert not explorer.state["busy"] and all(shown in held.asked for shown in held.shown)

    def test_an_error_nobody_expected_is_told_too(self, explorer, monkeypatch):
        def fails(*_, **__):
            raise OSError("no space left")

        monkeypatch.setattr("pagedlab.widgets.occupancy.compile_many", fails)
        explorer.choose(target="sm_90")
        assert explorer.error == "OSError: no space left" and not explorer.busy

    def test_waiting_has_an_end(self, explorer):
        held = Held(explorer)
        explorer.target = "sm_90"
        with pytest.raises(TimeoutError, match="still compiling after 0.05 s"):
            explorer.wait(0.05)
        held.go.release()
        explorer.wait(30)


class TestArguments:
    def test_wrong_choices_are_refused_with_what_can_be_chosen(self, explorer):
        for name, wrong, says in (
            ("target", "sm_70", "target is 'sm_70'; it can be 'sm_80' and 'sm_90'"),
            ("num_warps", 3, "num_warps is 3; it can be 4 and 8"),
            ("num_stages", 2, "num_stages is 2; it can be 3"),
            ("tile", 64, "tile is 64; it can be 1000 and 1024"),
        ):
            with pytest.raises(traitlets.TraitError, match=says):
                explorer.choose(**{name: wrong})
            assert not explorer.busy
        with pytest.raises(traitlets.TraitError, match="tile is 64"):
            explorer.choose(num_warps=8, tile=64)  # nothing, not the half of it
        assert not explorer.busy and explorer.num_warps == explorer.state["shown"]["num_warps"] != 8
        with pytest.raises(TypeError, match="'warps' cannot be chosen; these can: target, num_warps"):
            explorer.choose(warps=4)
        with pytest.raises(traitlets.TraitError):
            explorer.state = {}

    def test_what_it_cannot_begin_with(self):
        for arguments, error, says in (
            (dict(kernel=len, arguments={}), ValueError, "not what @triton.jit makes"),
            (dict(kernel=add_one), ValueError, "arguments are missing"),
            (dict(arguments=ARGUMENTS), ValueError, "belong to a kernel"),
            (dict(kernel=add_one, arguments=ARGUMENTS, reference=3), ValueError, "reference is 3"),
            (dict(kernel=add_one, arguments=ARGUMENTS, target="sm_1"), PagedLabError, "No target is called 'sm_1'"),
            (dict(kernel=add_one, arguments=ARGUMENTS, warps=(0,)), ValueError, "num_warps is 0"),
            (dict(kernel=add_one, arguments=[1]), ValueError, r"arguments are \[1\]; expected a dictionary"),
            (dict(kernel=add_one, arguments={**ARGUMENTS, "TILE": None}), TypeError, "TILE must be a whole number"),
            (dict(kernel=add_one, arguments=ARGUMENTS, tile=4, tile_argument="B"), ValueError, "no argument 'B'"),
        ):
            with pytest.raises(error, match=says):
                OccupancyExplorer(**arguments)

    def test_a_kernel_without_a_tile_has_none_to_choose(self):
        explorer = OccupancyExplorer(add_one, ARGUMENTS, tile_argument="BLOCK", targets=("sm_80",))
        assert explorer.tile is None and explorer.choices["tile"] == []
        assert "tile" not in repr(explorer)

    def test_a_missing_argument_is_told_in_the_picture(self):
        explorer = OccupancyExplorer(add_one, {"x": ARGUMENTS["x"], "TILE": 1024})
        assert explorer.error.startswith("add_one asks for out, n.")


class TestWords:
    def test_the_same_choice_gives_the_same_words_and_picture(self, explorer):
        again = OccupancyExplorer(add_one, ARGUMENTS, **FEW)
        assert repr(explorer) == repr(again) and explorer.svg() == again.svg()
        registers = explorer.compiled.registers
        assert repr(explorer).startswith(
            f"OccupancyExplorer for sm_80 (A100), 4 warps, 3 stages, a tile of 1024. add_one: {registers} registers a "
            "thread, no spill, 0 B of shared memory a block. 16 blocks fit on a multiprocessor: 64 of 64 warps, 100 %. "
        )

    def test_where_it_cannot_be_live_it_is_a_picture(self, explorer):
        data, _ = explorer._repr_mimebundle_()
        image = ElementTree.fromstring(data["text/html"].replace(">", "/>"))
        assert image.get("alt") == repr(explorer) == data["text/plain"]
        assert base64.b64decode(image.get("src").partition(",")[2]).decode() == explorer.svg()
        words = [text.text for text in ElementTree.fromstring(explorer.svg()).iter(f"{SVG}text")]
        assert {"registers a thread", "blocks per SM", "shared memory", "KiB of shared memory a block"} <= set(words)

    def test_what_crosses_to_the_browser_is_plain_and_small(self, explorer):
        assert len(json.dumps([explorer.state, explorer.choices])) < 8_000


class TestCurves:
    @settings(max_examples=60, deadline=None)
    @given(
        st.sampled_from(sorted(TARGETS)),
        st.integers(1, 512),
        st.integers(0, 300_000),
        st.sampled_from([1, 2, 4, 8, 16]),
        st.integers(0, 300_000),
    )
    def test_every_point_of_a_curve_is_what_occupancy_says(self, name, registers, shared_bytes, num_warps, other):
        target = find(name)
        compiled = made(registers, shared_bytes, num_warps, name)
        steps = by_registers(compiled)
        assert [steps[0][0], steps[-1][1]] == [1, target.max_registers_per_thread]
        at = 1 + other % target.max_registers_per_thread
        assert blocks_at(steps, at) == occupancy(at, shared_bytes, num_warps, target).blocks_per_sm
        steps = by_shared_memory(compiled)
        assert [steps[0][0], steps[-1][1]] == [0, target.max_shared_per_block]
        at = other % (target.max_shared_per_block + 1)
        assert blocks_at(steps, at) == occupancy(registers, at, num_warps, target).blocks_per_sm
        for (_, last, blocks), (first, _, fewer) in zip(steps, steps[1:], strict=False):
            assert first == last + 1 and fewer < blocks  # more shared memory, fewer blocks

    def test_the_kernels_own_point_lies_on_its_curve(self):
        one, two = made(119, 39_168), made(72, 21_504)
        curves = [(by_registers(each), each.registers, each.occupancy.blocks_per_sm) for each in (one, two)]
        told = chart("registers", 1, 255, curves)
        for path, (x, y), (steps, value, blocks) in zip(told["curves"], told["points"], curves, strict=True):
            assert blocks_at(steps, value) == blocks
            numbers = [float(number) for number in re.findall(r"[\d.]+", path)]
            assert min(numbers) <= x <= max(numbers) and y in numbers
        assert told["points"][0][1] > told["points"][1][1]  # fewer blocks lie lower

    @given(st.floats(1, 1e6), st.integers(2, 8))
    def test_ticks_are_few_round_and_begin_at_nothing(self, most, about):
        found = ticks(most, about)
        assert found[0] == 0 and len(found) <= about + 2 and found[-1] <= most


def test_what_a_front_end_loads_is_small_and_complete_in_itself(explorer):
    esm, css = explorer._esm, explorer._css
    assert len(esm.encode()) < 50_000 and len(css.encode()) < 12_000
    assert "import " not in esm and "import(" not in esm and "@import" not in css
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", esm + css)
    outside = re.sub(r"@keyframes [^{]*\{[^{]*\{[^}]*\}\s*\}", "", css)
    for selector in re.findall(r"^([^@\s/*}][^{]*)\{", outside, flags=re.MULTILINE):
        assert all(re.match(r"(body\[[^]]*\] )?\.plw-", part.strip()) for part in selector.split(",\n")), selector
