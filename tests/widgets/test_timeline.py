"""The timeline without a browser: what crosses to it, what it draws by itself, what it says and refuses."""

import base64
import re
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import traitlets
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.engine.trace import LETTERS, Moment, ScheduleTrace
from pagedlab.widgets import Timeline
from pagedlab.widgets.look import COLOURS, INKS
from pagedlab.widgets.timeline_layout import AXIS, GUTTER, lay_out, runs, steps_along, ticks
from pagedlab.widgets.timeline_picture import DECODE, INK, PREEMPTED, PREFILL, SWAPPED, TOKENS
from pagedlab.widgets.timeline_story import NamedTrace, in_words, totals
from tests.engine.schedules import FIVE, TWELVE, paged, static

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def five():
    return Timeline(paged(), step=12, selected="C")


@pytest.fixture
def compared():
    return Timeline({"static": static(), "paged": paged(TWELVE, 64)}, step=10)


def two_steps(**moments):
    """A trace of one step, put together by hand."""
    trace = ScheduleTrace()
    request = SimpleNamespace(request_id="A", **moments)
    trace.record([request], [(request, 3)], None)
    trace.record([request], [(request, 1)], None)
    return trace


class TestTraits:
    def test_it_begins_at_the_first_step(self):
        shown = Timeline(paged())
        assert (shown.step, shown.selected) == (0, "")
        assert shown.now[""] is shown.traces[""][0]

    def test_the_step_can_be_set_within_bounds(self, five):
        five.step = 23
        assert five.now[""].index == 23
        for wrong in (-1, 24, True, 1.5):
            with pytest.raises(traitlets.TraitError):
                five.step = wrong
        with pytest.raises(traitlets.TraitError, match="step is 24; the timeline has steps 0 to 23"):
            five.step = 24
        assert five.step == 23

    def test_a_request_that_is_there_can_be_selected(self, five):
        five.selected = "E"
        five.selected = ""
        with pytest.raises(traitlets.TraitError, match="selected is 'X'; the requests are A, B, C, D and E"):
            five.selected = "X"

    def test_the_story_cannot_be_set(self, five):
        with pytest.raises(traitlets.TraitError):
            five.story = {}

    def test_a_part_of_a_trace_keeps_the_numbers_of_its_steps(self):
        shown = Timeline(paged()[8:14])
        assert shown.step == 8 and shown.story["first"] == 8 and len(shown.story["ends"]) == 6
        shown.step = 13
        with pytest.raises(traitlets.TraitError, match="steps 8 to 13"):
            shown.step = 14
        assert "Step 13: C prefills 14 tokens" in repr(shown)

    def test_some_of_the_requests(self):
        whole, some = Timeline(paged()), Timeline(paged(), requests=["E", "B"])
        assert some.story["names"] == ["E", "B"]
        assert some.story["traces"][0]["totals"] == whole.story["traces"][0]["totals"]
        with pytest.raises(ValueError, match="no step has a request 'Z'; the requests are A, B, C, D and E"):
            Timeline(paged(), requests=["B", "Z"])

    def test_the_same_request_has_the_same_row_in_each_trace(self, compared):
        assert compared.story["names"] == list("ABCDEFGHIJKL")
        only_b = Timeline({"one": paged(FIVE[:1]), "other": paged(FIVE[1:2])})
        assert only_b.story["names"] == ["A", "B"]
        assert [row is None for row in only_b.story["traces"][0]["rows"]] == [False, True]
        assert [row is None for row in only_b.story["traces"][1]["rows"]] == [True, False]

    def test_a_trace_that_has_ended(self, compared):
        compared.step = 71
        assert compared.now["paged"] is None and compared.now["static"].index == 71
        assert re.search(r"paged ended at step \d\d\.", repr(compared))


class TestTime:
    def seconds(num_tokens):
        return 0.004 + 0.001 * num_tokens

    def test_the_columns_are_the_ends_of_the_steps(self):
        trace = paged(seconds=TestTime.seconds)
        shown = Timeline(trace, axis="time", step=3)
        assert shown.story["ends"] == [step.time for step in trace.steps]
        assert shown.now[""].index == 3
        assert shown.story["traces"][0]["totals"]["seconds"] == trace.steps[-1].time

    def test_of_several_traces_each_shows_the_step_it_is_in(self):
        traces = {"static": static(seconds=TestTime.seconds), "paged": paged(TWELVE, 64, seconds=TestTime.seconds)}
        shown = Timeline(traces, axis="time")
        ends = shown.story["ends"]
        assert ends == sorted({step.time for trace in traces.values() for step in trace.steps})
        for column, end in enumerate(ends):
            shown.step = column
            for name, trace in traces.items():
                step = shown.now[name]
                if step is None:
                    assert end > trace.steps[-1].time
                    continue
                began = trace.steps[step.index - 1].time if step.index else 0
                assert began < end <= step.time

    def test_time_that_does_not_begin_at_zero(self):
        trace = ScheduleTrace()
        for now in (1001.0, 1001.5, 1003.0):
            trace.record([], [(SimpleNamespace(request_id="A"), 1)], None, time=now, start=now - 0.5)
        shown = Timeline(trace, axis="time")
        assert shown.story["ends"] == [0.5, 1.0, 2.5]
        assert steps_along(shown.story["traces"][0]) == [(0.0, 0.5), (0.5, 1.0), (2.0, 2.5)]  # with a break
        assert steps_along(Timeline(trace).story["traces"][0]) == [(0, 1), (1, 2), (2, 3)]

    def test_on_an_axis_of_steps_nothing_is_said_of_time(self):
        slow, fast = (Timeline(paged(seconds=lambda n, each=each: each)) for each in (1.0, 0.1))
        assert repr(slow) == repr(fast) and slow.svg() == fast.svg() and str(slow.totals()) == str(fast.totals())
        timed = Timeline(paged(seconds=lambda n: 0.25), axis="time")
        assert "24 steps, 6 s, 6.0 tokens a step" in repr(timed)

    def test_no_times_or_times_that_run_backwards(self):
        with pytest.raises(ValueError, match='no time for every step.*axis="steps"'):
            Timeline(paged(), axis="time")
        trace = ScheduleTrace()
        for now in (2.0, 1.0):
            trace.record([], [(SimpleNamespace(request_id="A"), 1)], None, time=now)
        with pytest.raises(ValueError, match="run backwards"):
            Timeline(trace, axis="time")
        assert Timeline(trace).story["ends"] == [1, 2]


class TestWhatItRefuses:
    @pytest.mark.parametrize("wrong", [None, 3, "trace", [1, 2], paged().steps])
    def test_what_is_no_trace(self, wrong):
        with pytest.raises(ValueError, match="expected a ScheduleTrace, or a dict of them by name"):
            Timeline(wrong)
        with pytest.raises(ValueError, match="the trace 'mine' is a"):
            Timeline({"mine": wrong})

    def test_an_empty_one(self):
        with pytest.raises(ValueError, match="has no steps yet: call trace.record"):
            Timeline(ScheduleTrace())
        with pytest.raises(ValueError, match="0 traces; the timeline compares 1 to 6"):
            Timeline({})
        with pytest.raises(ValueError, match="a name is a text that is not empty"):
            Timeline({"": paged()})
        with pytest.raises(ValueError, match="axis is \"tokens\"|axis is 'tokens'"):
            Timeline(paged(), axis="tokens")

    def test_too_much(self):
        trace = ScheduleTrace()
        requests = [SimpleNamespace(request_id=i) for i in range(65)]
        for _ in range(2001):
            trace.record(requests[:1], [(requests[0], 1)], None)
        with pytest.raises(ValueError, match=r"2,001 steps; the timeline draws 2,000 at most: .*trace\[-2000:\]"):
            Timeline(trace)
        assert Timeline(trace[-2000:]).step == 1
        trace.record(requests, [(requests[0], 1)], None)
        with pytest.raises(ValueError, match=r"65 requests; the timeline draws 64 rows at most: .*requests=\[...\]"):
            Timeline(trace[-2:])
        assert len(Timeline(trace[-2:], requests=range(64)).story["names"]) == 64


def replayed(row, step):
    """What the browser makes of a row: the moment at a step."""
    blocks, computed, tokens, prefills = [], 0, 0, iter(row["prefills"])
    changes = {at: (kept, added) for at, kept, added in row["blocks"]}
    computed_at, tokens_at = dict(row["computed"]), dict(row["tokens"])
    for i in range(row["from"], step + 1):
        state = row["states"][i - row["from"]]
        scheduled = {"P": lambda: next(prefills), "D": lambda: 1}.get(state, lambda: 0)()
        computed = computed_at.get(i, computed + scheduled)
        tokens = tokens_at.get(i, max(tokens, computed + 1) if scheduled else tokens)
        if i in changes:
            blocks = blocks[: changes[i][0]] + changes[i][1]
    return state, scheduled, computed, tokens, tuple(blocks)


worlds = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 10), st.integers(0, 10)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    world=worlds,
    num_blocks=st.integers(9, 30),
    cached=st.booleans(),
    swap_blocks=st.sampled_from([0, 30]),
    cut=st.booleans(),
)
def test_the_story_tells_every_moment(world, num_blocks, cached, swap_blocks, cut):
    lengths = [(f"r{i}", *each) for i, each in enumerate(world)]
    trace = paged(lengths, num_blocks, cached=cached, swap_blocks=swap_blocks, same_prompt=["r0", "r2"])
    trace = trace[len(trace) // 3 :] if cut else trace
    shown = Timeline(trace)
    told = shown.story["traces"][0]
    for name, row in zip(shown.story["names"], told["rows"], strict=True):
        there = {i: step.moments[name] for i, step in enumerate(trace.steps) if name in step.moments}
        assert sorted(there) == list(range(row["from"], row["from"] + len(row["states"])))
        for i, moment in there.items():
            expected = LETTERS[moment.state], *moment[1:5]
            assert replayed(row, i) == expected
            assert ((row["end"] or [99999])[0] <= i) == bool(moment.finish_reason)
    assert told["used"] == [step.blocks_used for step in trace.steps]
    root = ElementTree.fromstring(shown.svg())
    width, height = float(root.get("width")), float(root.get("height"))
    for rect in root.iter(f"{SVG}rect"):
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        assert x >= -3 and x + float(rect.get("width")) <= width
        assert y >= 0 and y + float(rect.get("height")) <= height


class TestSmallSums:
    def test_runs_and_ticks(self):
        assert runs("..PPD X") == [(".", 0, 2), ("P", 2, 4), ("D", 4, 5), ("X", 6, 7)]
        assert runs("") == []
        assert ticks(5, 34, True) == [0, 1, 2, 3, 4, 5]
        assert ticks(100, 9, True) == list(range(0, 101, 10))
        assert ticks(100, 33, True) == list(range(0, 101, 2))
        assert ticks(0.45, 2000, False) == pytest.approx([0.05 * i for i in range(10)])

    @pytest.mark.parametrize(("rows", "figures"), [(1, 1), (5, 1), (12, 3), (64, 1), (64, 3)])
    def test_the_measures(self, rows, figures):
        at = lay_out(900, rows, figures, 50)
        assert at.x(0) == GUTTER and at.x(50) == pytest.approx(900)
        bottoms = [at.pool_top(i) + at.pool for i in range(figures)]
        assert all(at.figure(i + 1) > bottom for i, bottom in enumerate(bottoms[:-1]))
        assert at.height == bottoms[-1] + AXIS
        assert lay_out(900, rows, figures, 50, zoom=4).scale == pytest.approx(4 * at.scale)

    def test_totals(self):
        trace = two_steps(num_prompt_tokens=3)
        assert totals(NamedTrace("", trace.steps, None)) == (2, 4, 2.0, 1.0, 0.0, 0, None)
        trace = paged()
        found = totals(NamedTrace("", trace.steps, 4))
        assert found.num_steps == 24 and found.num_preemptions == 2
        lost = trace.steps[8].moments["C"].num_computed + trace.steps[5].moments["D"].num_computed
        assert found.num_tokens == sum(prompt + outputs - 1 for _, prompt, outputs, _ in FIVE) + lost
        assert found.mean_usage == pytest.approx(sum(step.blocks_used for step in trace.steps) / 24 / 16)

    def test_every_kind_of_cell_has_words(self):
        cells = [
            (Moment("waiting", 0, 0, 9, ()), "A waits; it holds no blocks."),
            (Moment("waiting", 0, 4, 9, (2,)), "A waits; 4 of its 9 tokens stored, in block 2."),
            (Moment("prefill", 1, 1, 9, (2,)), "A prefills 1 token; 1 of its 9 tokens stored, in block 2."),
            (Moment("decode", 1, 5, 6, (2, 7)), "A decodes 1 token; 5 of its 6 tokens stored, in blocks 2, 7."),
            (Moment("decode", 1, 5, 6, (), "stop"), "A decodes 1 token and is done (stop); it holds no blocks."),
            (Moment("preempted", 0, 0, 9, ()), "A is preempted and waits; it holds no blocks."),
            (Moment("swapped", 0, 8, 9, ()), "A is swapped out and waits; 8 of its 9 tokens stored, outside the pool."),
            (Moment("finished", 0, 8, 9, (1,), "stop"), "A is finished; 8 of its 9 tokens stored, in block 1."),
            (Moment("aborted", 0, 8, 9, (), "abort"), "A is aborted; it holds no blocks."),
        ]
        assert [in_words("A", moment) for moment, _ in cells] == [says for _, says in cells]
        many = in_words("A", Moment("decode", 1, 400, 401, tuple(range(25))))
        assert many.endswith("in blocks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 9 more.")

    def test_the_marks_are_of_the_palette_and_legible(self):
        for colour in (PREFILL, DECODE, PREEMPTED, SWAPPED, TOKENS):
            assert INKS[COLOURS.index(colour)] == INK


class TestWithoutAFrontEnd:
    def test_the_sentence(self, five):
        assert repr(five) == (
            "Timeline of 5 requests: 24 steps, 6.0 tokens a step, mean batch 2.5, 58 % of the pool in use, "
            "2 preemptions. Step 12: C prefills 15 of 29 tokens again; B decodes. 9 of 16 blocks used. "
            "C prefills 15 tokens; 15 of its 29 tokens stored, in blocks 0, 1, 2, 13."
        )

    def test_the_sentence_of_several(self, compared):
        says = repr(compared)
        assert says.startswith("Timeline of 12 requests, scheduled in 2 ways: static and paged. static: 72 steps, ")
        assert "static, step 10: A, C and D decode. 48 of 64 blocks used." in says
        compared.selected = "F"
        assert "F waits; it holds no blocks." in repr(compared)

    def test_who_is_not_there(self, five):
        for step, name, says in [(0, "C", "C has not come yet."), (20, "A", "A has left.")]:
            five.step, five.selected = step, name
            assert repr(five).endswith(says)
        other = Timeline({"one": paged(FIVE[:1]), "other": paged(FIVE[1:2])}, selected="A")
        assert repr(other).endswith("A is not in this schedule.")
        other.step = 15
        assert "one ended at step 11. other, step 15" in repr(other)

    def test_the_table(self, five):
        assert str(five.table()) == "\n".join(
            [
                "Step 12: C prefills 15 of 29 tokens again; B decodes. 9 of 16 blocks used. C prefills 15",
                "tokens; 15 of its 29 tokens stored, in blocks 0, 1, 2, 13.",
                "",
                "request  state      scheduled  computed  tokens  blocks",
                "-------  ---------  ---------  --------  ------  ---------------",
                "B        decode             1        18      19  3, 4, 14, 12, 6",
                "C        prefill           15        15      29  0, 1, 2, 13",
                "D        preempted          0         0       9",
                "E        waiting            0         0      14",
            ]
        )

    def test_the_table_of_several_and_the_totals(self, compared):
        assert compared.table().columns[:2] == ("trace", "request")
        assert {row[0] for row in compared.table().rows} == {"static", "paged"}
        assert [row[0] for row in compared.totals().rows] == ["static", "paged"]
        static_row, paged_row = compared.totals().rows
        assert static_row[2] == paged_row[2]  # the same tokens, in
        assert static_row[1] > 1.4 * paged_row[1]  # far fewer steps
        timed = Timeline(paged(seconds=lambda n: 0.25), axis="time")
        assert timed.totals().columns[-1] == "seconds" and timed.totals().rows[0][-1] == "6"

    def test_same_state_same_text(self, five):
        other = Timeline(paged())
        other.step, other.selected = 12, "C"
        assert repr(other) == repr(five) and other.svg() == five.svg() and str(other.table()) == str(five.table())
        other.step = 13
        assert other.svg() != five.svg()

    def test_the_bundle_has_a_live_view_a_sentence_and_an_image(self, five):
        data, metadata = five._repr_mimebundle_()
        assert set(data) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"} and metadata == {}
        assert data["text/plain"] == repr(five)
        image = ElementTree.fromstring(data["text/html"].replace(">", "/>"))
        assert image.tag == "img" and set(image.attrib) == {"alt", "src"} and image.get("alt") == repr(five)
        kind, _, code = image.get("src").partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(code).decode() == five.svg()

    def test_the_picture_has_a_cell_for_each_prefill_and_decode(self, five):
        root = ElementTree.fromstring(five.svg())
        fills = [rect.get("fill") for rect in root.iter(f"{SVG}rect")]
        states = "".join(row["states"] for row in five.story["traces"][0]["rows"])
        assert fills.count(PREFILL) == states.count("P") + 1  # and one in the legend
        assert fills.count(DECODE) == states.count("D") + 2  # decode, and finished
        words = [text.text for text in root.iter(f"{SVG}text")]
        assert words.count("preempted") == 2 and words.count("waits") == 1
        assert [word for word in words if word in ("10", "6", "14", "8")][:4] == ["10", "6", "14", "8"]
        assert "preempted: computes again later" in words and "swapped out" not in words

    def test_the_legend_has_what_occurs_and_no_more(self):
        def legend(trace):
            return [text.text for text in ElementTree.fromstring(Timeline(trace).svg()).iter(f"{SVG}text")]

        assert "finished, still holds memory" in legend(static()) and "waiting" in legend(static())
        assert "waiting" not in legend(paged(FIVE[:1])) and "free, kept for later hits" not in legend(paged())
        assert "free, kept for later hits" in legend(paged(cached=True))
        assert "swapped out" in legend(paged(swap_blocks=16))
        assert "aborted" in legend(paged(num_blocks=64, aborts=[(9, "D")]))
        assert "aborted" not in legend(paged())

    def test_long_names_are_made_short_and_told(self):
        def shown(name):
            return Timeline(paged([(name(i), 5, 5, i) for i in range(30)], 64))

        def words(timeline):
            return [text.text for text in ElementTree.fromstring(timeline.svg()).iter(f"{SVG}text")]

        assert shown("r{}".format).story["labels"][29] == "r29" and shown("r{}".format).story["which"] == []
        numbered = shown("request-{}".format)
        assert numbered.story["labels"][10:12] == ["10", "11"]
        assert "0 is request-0, and so on" in words(numbered) and "11" in words(numbered)
        lettered = shown("{}-th request".format)
        assert lettered.story["labels"][:2] == ["A", "B"] and lettered.story["labels"][26] == "AA"
        assert "A is 0-th request" in words(lettered) and "and 18 more" in words(lettered)

    def test_a_big_one_stays_small(self):
        lengths = [(f"r{i}", 20 + i, 100, 5 * i) for i in range(64)]
        shown = Timeline(paged(lengths, 400, 16, 64))
        assert len(shown.story["ends"]) > 400
        assert len(shown.svg()) < 150_000

    def test_texts_of_others_are_escaped(self):
        trace = ScheduleTrace()
        trace.record([], [(SimpleNamespace(request_id='</text><script>&"\x07\ud800'), 1)], None)
        shown = Timeline({"<b>": trace})
        assert (
            "<script" not in shown.svg() and "".join(ElementTree.fromstring(shown.svg()).itertext()).count("<b>") >= 1
        )
        html = shown._repr_mimebundle_()[0]["text/html"]
        assert html.count("<") == 1 and html.count('"') == 4

    def test_it_works_in_a_plain_interpreter(self):
        code = (
            "from types import SimpleNamespace as N\n"
            "from pagedlab.engine.trace import ScheduleTrace\n"
            "from pagedlab.widgets import Timeline\n"
            "t = ScheduleTrace(); a = N(request_id='A'); t.record([a], [(a, 3)], None)\n"
            "w = Timeline(t); print(w); print(sorted(w._repr_mimebundle_()[0]))\n"
        )
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "A prefills 3 tokens" in done.stdout and "text/html" in done.stdout


def test_what_a_front_end_loads_is_small_and_complete_in_itself(five):
    esm, css = five._esm, five._css
    assert len(esm.encode()) < 50_000 and len(css.encode()) < 12_000
    assert "import " not in esm and "import(" not in esm and "@import" not in css
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", esm + css)
    for selector in re.findall(r"^([^@\s/*}][^{]*)\{", css, flags=re.MULTILINE):
        assert all(re.match(r"(body\[[^]]*\] )?\.plw-", part.strip()) for part in selector.split(",\n")), selector
