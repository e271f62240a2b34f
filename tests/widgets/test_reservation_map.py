"""The reservation map without a browser: what goes in, what it computes, what it says and draws."""

import base64
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest
import traitlets
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pagedlab.cache.accounting import LiveRequest, Waste, waste_breakdown
from pagedlab.widgets import ReservationMap
from pagedlab.widgets.reservation import MAX_REQUESTS
from pagedlab.widgets.reservation_layout import GROUPS, Lengths, admit, describe, lay_out, slots_per_row
from pagedlab.widgets.reservation_picture import picture

# OPT-13B on a 40 GB GPU has 15,728 slots (the vLLM paper, Table 1).
LENGTHS = [(310, 520), (760, 1240), (95, 410), (1320, 1990), (240, 300), (655, 1480)]
LENGTHS += [(130, 150), (900, 1100), (60, 700), (420, 610), (1500, 2300), (15, 80)]


@pytest.fixture
def reservation_map():
    return ReservationMap(LENGTHS, num_slots=15_728, max_len=2048)


class TestWhoFits:
    def test_the_papers_seven_requests(self, reservation_map):
        assert len(reservation_map.admitted) == 7
        assert reservation_map.state["headline"] == "7 of 12 requests fit \u00b7 22 % of the cache holds tokens"
        assert reservation_map.state["reason"] == (
            "5 requests wait: each needs 2,048 slots in one piece, and the free tail has 1,392."
        )
        assert reservation_map.state["cut"] == "1 request would be cut off at max_len: K."

    def test_moving_max_len_changes_who_fits_and_who_is_cut(self, reservation_map):
        reservation_map.max_len = 1500
        assert len(reservation_map.admitted) == 10
        assert reservation_map.state["cut"] == "2 requests would be cut off at max_len: D and K."
        reservation_map.max_len = 4096
        assert len(reservation_map.admitted) == 3
        assert reservation_map.state["cut"] == "None would be cut off: the longest will hold 2,300 tokens."

    def test_a_request_that_would_outgrow_max_len_is_counted_up_to_it(self, reservation_map):
        reservation_map.max_len = 100
        assert reservation_map.admitted[0] == LiveRequest(100, 100, 100)
        request = reservation_map.state["requests"][0]
        assert request["cut"] and request["says"].endswith("It would be cut off at max_len, 420 tokens short.")

    def test_all_fit(self):
        shown = ReservationMap([(1, 2), (3, 4)], num_slots=100, max_len=10)
        assert shown.state["reason"] == "None waits: 2 \u00d7 10 slots are set aside, and 80 stay free."

    def test_one_waits(self):
        shown = ReservationMap([(1, 2), (3, 4)], num_slots=10, max_len=6)
        assert shown.state["reason"] == "1 request waits: it needs 6 slots in one piece, and the free tail has 4."

    def test_none_fits_and_the_reason_is_given(self):
        shown = ReservationMap(LENGTHS, num_slots=1000, max_len=1001)
        assert shown.admitted == []
        assert shown.waste == Waste(0, 0, 0, 1000)
        assert shown.state["reason"] == (
            "No request fits: each needs 1,001 slots in one piece, and the whole cache has 1,000."
        )
        assert "0 of 12 requests fit" in repr(shown)

    def test_no_requests(self):
        shown = ReservationMap([], num_slots=64, max_len=16)
        assert shown.state["reason"] == "There are no requests: all 64 slots are free."
        assert shown.waste == Waste(0, 0, 0, 64)
        assert "0 of 0 requests fit" in repr(shown)
        ElementTree.fromstring(shown.svg())

    def test_a_request_of_no_tokens_still_takes_its_piece(self):
        shown = ReservationMap([(0, 0)], num_slots=8, max_len=8)
        assert shown.waste == Waste(0, 0, 8, 0)


class TestWhatGoesIn:
    @pytest.mark.parametrize(
        "queue",
        [
            [(1, 2), (3, 4)],
            [[1, 2], [3, 4]],
            np.array([[1, 2], [3, 4]]),
            ((a, a + 1) for a in (1, 3)),
            [SimpleNamespace(num_tokens=1, final_tokens=2), LiveRequest(3, 4, 2048)],
        ],
        ids=["tuples", "lists", "array", "generator", "objects"],
    )
    def test_lengths_in_any_reasonable_form(self, queue):
        assert ReservationMap(queue, num_slots=16, max_len=8).lengths == (Lengths(1, 2), Lengths(3, 4))

    @pytest.mark.parametrize(
        ("lengths", "num_slots", "max_len", "message"),
        [
            ([(1, 2)], 0, 8, "num_slots is 0; expected at least 1 slot"),
            ([(1, 2)], -5, 8, "num_slots is -5; expected at least 1 slot"),
            ([(1, 2)], 2.5, 8, "num_slots is 2.5; expected a whole number"),
            ([(1, 2)], True, 8, "num_slots is True; expected a whole number"),
            ([(1, 2)], 16, 0, "max_len is 0; expected at least 1 slot"),
            ([(1, 2)], 16, "8", "max_len is '8'; expected a whole number"),
            ([(5, 2)], 16, 8, "request 0 has num_tokens=5 and final_tokens=2"),
            ([(1, 2), (-1, 2)], 16, 8, "request 1 has num_tokens=-1 and final_tokens=2"),
            ([(1, 2), 7], 16, 8, r"request 1 is 7; expected two whole numbers, \(num_tokens, final_tokens\)"),
            ([(1, 2, 3)], 16, 8, r"request 0 is \(1, 2, 3\); expected two whole numbers"),
            ([(0.5, 2)], 16, 8, r"request 0 is \(0.5, 2\); expected two whole numbers"),
            ([(1, 1)] * (MAX_REQUESTS + 1), 16, 8, r"1,000 requests at most; pass lengths\[:1000\]"),
        ],
    )
    def test_bad_input_is_named_with_its_numbers(self, lengths, num_slots, max_len, message):
        with pytest.raises(ValueError, match=message):
            ReservationMap(lengths, num_slots=num_slots, max_len=max_len)

    def test_bad_slider_settings(self):
        with pytest.raises(ValueError, match="step is 0"):
            ReservationMap(LENGTHS, num_slots=16, max_len=8, step=0)
        with pytest.raises(ValueError, match="limit is -1"):
            ReservationMap(LENGTHS, num_slots=16, max_len=8, limit=-1)


class TestTraits:
    @pytest.mark.parametrize("value", [0, -1, 1.5, "64", None, True, [64]])
    def test_a_bad_max_len_changes_nothing(self, reservation_map, value):
        before = reservation_map.state
        with pytest.raises(traitlets.TraitError, match="max_len"):
            reservation_map.max_len = value
        assert reservation_map.max_len == 2048
        assert reservation_map.state == before

    @pytest.mark.parametrize("value", [12, -2, 0.5, "A", None, False])
    def test_a_bad_selection_changes_nothing(self, reservation_map, value):
        reservation_map.selected = 3
        with pytest.raises(traitlets.TraitError, match="selected"):
            reservation_map.selected = value
        assert reservation_map.selected == 3

    def test_numpy_integers_are_whole_numbers(self, reservation_map):
        reservation_map.max_len = np.int64(512)
        assert type(reservation_map.max_len) is int and reservation_map.state["max_len"] == 512

    def test_state_cannot_be_set(self, reservation_map):
        with pytest.raises(traitlets.TraitError, match="read-only"):
            reservation_map.state = {}

    def test_what_the_browser_sends_is_checked_like_the_rest(self, reservation_map):
        reservation_map.set_state({"max_len": 512, "selected": 2})
        assert (reservation_map.max_len, reservation_map.selected) == (512, 2)
        assert reservation_map.state["fit"] == 12
        with pytest.raises(traitlets.TraitError):
            reservation_map.set_state({"max_len": -1})
        assert reservation_map.max_len == 512 and reservation_map.state["max_len"] == 512

    def test_observers_see_a_picture_that_belongs_to_the_new_max_len(self, reservation_map):
        seen = []
        reservation_map.observe(
            lambda change: seen.append((reservation_map.max_len, change["new"]["max_len"])), "state"
        )
        reservation_map.max_len = 700
        assert seen == [(700, 700)]

    def test_max_len_of_one_is_drawn_too(self):
        assert ReservationMap(LENGTHS, num_slots=5, max_len=1).state["fit"] == 5

    def test_the_slider_reaches_what_python_sets(self, reservation_map):
        assert reservation_map.state["limit"] == 4096  # a power of two that covers the longest request
        reservation_map.max_len = 9000
        assert reservation_map.state["limit"] == 9000
        reservation_map.max_len = 64
        assert reservation_map.state["limit"] == 4096

    def test_two_maps_share_nothing(self):
        one = ReservationMap(LENGTHS, num_slots=15_728, max_len=2048)
        other = ReservationMap(LENGTHS, num_slots=15_728, max_len=2048)
        one.max_len, one.selected = 100, 5
        assert (other.max_len, other.selected, other.state["max_len"]) == (2048, -1, 2048)


class TestTheLearnersBreakdown:
    def show(self, breakdown, max_len=2048):
        return ReservationMap(LENGTHS, num_slots=15_728, max_len=max_len, breakdown=breakdown)

    def test_a_right_one_is_used_without_a_word(self):
        calls = []

        def breakdown(requests, num_slots):
            calls.append((requests, num_slots))
            return waste_breakdown(requests, num_slots)

        shown = self.show(breakdown)
        assert calls == [(shown.admitted, 15_728)]
        assert shown.state["note"] == ""
        shown.max_len = 512
        assert len(calls) == 2 and len(calls[1][0]) == 12

    def test_a_plain_tuple_will_do(self):
        assert self.show(lambda requests, num_slots: tuple(waste_breakdown(requests, num_slots))).state["note"] == ""

    def test_one_that_differs_is_shown_and_compared(self):
        shown = self.show(lambda requests, num_slots: Waste(num_slots, 0, 0, 0))
        assert shown.waste == Waste(15_728, 0, 0, 0)
        assert "100 % of the cache holds tokens" in shown.state["headline"]
        assert shown.state["note"] == (
            "The numbers shown are your breakdown's; counting the slots drawn gives "
            "token_states 3,510, reserved 2,580, internal 8,246, external 1,392."
        )

    def not_written(requests, num_slots):
        raise NotImplementedError

    def wrong_key(requests, num_slots):
        return {}["waste"]

    @pytest.mark.parametrize(
        ("breakdown", "note"),
        [
            (not_written, "Your breakdown is not written yet."),
            (wrong_key, "Your breakdown raised KeyError: 'waste'."),
            (lambda requests: 1, "Your breakdown raised TypeError: "),
            (lambda requests, num_slots: None, "Your breakdown returned NoneType, not four whole numbers"),
            (lambda requests, num_slots: object(), "Your breakdown returned object, not four whole numbers"),
            (lambda requests, num_slots: (1, 2, 3), "Your breakdown returned 3 values, not four whole numbers"),
            (lambda requests, num_slots: (0.25,) * 4, "Your breakdown returned 4 values, not four whole numbers"),
            (lambda requests, num_slots: "1234", "Your breakdown returned str, not four whole numbers"),
            (lambda requests, num_slots: (num_slots + 1, 0, 0, -1), "Your breakdown returned a number below 0"),
            (lambda requests, num_slots: (1, 2, 3, 4), "Your breakdown adds up to 10 of 15,728 slots"),
        ],
    )
    def test_a_wrong_one_is_named_and_the_map_goes_on(self, breakdown, note):
        shown = self.show(breakdown)
        assert shown.state["note"].startswith(note)
        assert shown.state["note"].endswith("The numbers shown are the reference's.")
        assert " at 0x" not in shown.state["note"]
        assert shown.waste == Waste(3510, 2580, 8246, 1392)
        shown.max_len = 4096
        assert shown.state["fit"] == 3 and shown.state["note"].startswith(note)
        assert shown.state["note"] in repr(shown)

    def test_one_that_spoils_its_input_spoils_only_its_own_copy(self):
        shown = self.show(lambda requests, num_slots: requests.clear() or (0, 0, 0, num_slots))
        assert shown.state["fit"] == 7 and len(shown.admitted) == 7


queues = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 300)).map(lambda pair: Lengths(min(pair), sum(pair))), max_size=40
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(queue=queues, num_slots=st.integers(1, 5000), max_len=st.integers(1, 700))
@example(queue=[Lengths(3, 3)], num_slots=9, max_len=9)
def test_every_slot_is_drawn_once_and_counted_once(queue, num_slots, max_len):
    admitted = admit(queue, num_slots, max_len)
    waste = waste_breakdown(admitted, num_slots)
    assert len(admitted) == min(len(queue), num_slots // max_len)
    assert sum(waste) == num_slots
    assert sum(waste.shares()) == pytest.approx(1)

    rows = lay_out(admitted, num_slots)
    width = slots_per_row(num_slots)
    assert len(rows) <= 8 and [row["start"] for row in rows] == list(range(0, num_slots, width))
    drawn = dict.fromkeys(GROUPS, 0)
    at = 0
    owners = {}
    for row in rows:
        assert row["start"] < row["end"] <= row["start"] + width
        for cell in row["cells"]:
            for group, start, end in cell["pieces"]:
                assert start == at < end <= row["end"]  # no gap, no overlap, nothing beyond the row
                at = end
                drawn[group] += end - start
                owners.setdefault(cell["request"], []).append((start, end))
        assert at == row["end"]
    assert at == num_slots
    assert tuple(drawn.values()) == tuple(waste)
    for owner, pieces in owners.items():
        if owner >= 0:
            assert (pieces[0][0], pieces[-1][1]) == (owner * max_len, (owner + 1) * max_len)
    named = [cell["request"] for row in rows for cell in row["cells"] if cell["named"]]
    assert sorted(named) == sorted(owners)

    state = describe(queue, admitted, num_slots, max_len, waste)
    assert [request["letter"] for request in state["requests"] if request["start"] >= 0] == [
        request["letter"] for request in state["requests"][: len(admitted)]
    ]
    for request, lengths in zip(state["requests"], queue, strict=True):
        assert sum(request["counts"]) == max_len and min(request["counts"]) >= 0
        assert request["cut"] == (lengths.final_tokens > max_len)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(queue=queues, num_slots=st.integers(1, 5000), max_len=st.integers(1, 700), data=st.data())
def test_the_picture_is_well_formed_and_stays_on_its_card(queue, num_slots, max_len, data):
    admitted = admit(queue, num_slots, max_len)
    state = describe(queue, admitted, num_slots, max_len, waste_breakdown(admitted, num_slots)) | {"note": ""}
    selected = data.draw(st.integers(-1, len(queue) - 1))
    root = ElementTree.fromstring(picture(state, selected))
    width, height = float(root.get("width")), float(root.get("height"))
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        assert x >= 0 and x + float(rect.get("width")) <= width
        assert y >= 0 and y + float(rect.get("height")) <= height


class TestWithoutAFrontEnd:
    def test_the_sentence(self, reservation_map):
        assert repr(reservation_map) == (
            "ReservationMap at max_len = 2,048: 7 of 12 requests fit \u00b7 22 % of the cache holds tokens. "
            "5 requests wait: each needs 2,048 slots in one piece, and the free tail has 1,392. "
            "1 request would be cut off at max_len: K. "
            "15,728 slots: token_states 22 % (3,510), reserved 16 % (2,580), internal 53 % (8,246), "
            "external 9 % (1,392)."
        )

    def test_the_sentence_names_the_selected_request(self, reservation_map):
        reservation_map.selected = 2
        assert repr(reservation_map).endswith(
            "Request C owns 2,048 slots: 95 hold tokens, 315 are reserved for later, 1,638 will never be used."
        )
        reservation_map.selected = 10
        assert repr(reservation_map).endswith(
            "Request K waits for 2,048 slots in one piece; it will hold 2,300 tokens at its end. "
            "It would be cut off at max_len, 252 tokens short."
        )

    def test_the_table(self):
        shown = ReservationMap([(310, 520), (5, 3000), (1, 2)], num_slots=4096, max_len=2048)
        assert str(shown.table()) == "\n".join(
            [
                "max_len = 2,048: 2 of 3 requests fit \u00b7 8 % of the cache holds tokens",
                "",
                "request         from slot  token_states  reserved  internal  note",
                "-------  -----  ---------  ------------  --------  --------  -------------------------",
                "A        fits           0           310       210     1,528",
                "B        fits       2,048             5     2,043         0  cut off at 2,048 of 3,000",
                "C        waits",
            ]
        )
        assert repr(shown.table()) == str(shown.table())

    def test_the_empty_table(self):
        assert "request" in str(ReservationMap([], num_slots=8, max_len=4).table())

    def test_same_state_same_text(self, reservation_map):
        other = ReservationMap(LENGTHS, num_slots=15_728, max_len=64)
        other.max_len = 2048
        assert repr(other) == repr(reservation_map)
        assert other.svg() == reservation_map.svg()
        assert str(other.table()) == str(reservation_map.table())

    def test_the_bundle_has_a_live_view_a_sentence_and_an_image(self, reservation_map):
        data, metadata = reservation_map._repr_mimebundle_()
        assert set(data) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
        assert data["text/plain"] == repr(reservation_map)
        assert " at 0x" not in data["text/plain"] + data["text/html"]
        assert metadata == {}

        image = ElementTree.fromstring(data["text/html"].replace(">", "/>"))
        assert image.tag == "img" and set(image.attrib) == {"alt", "src"}
        assert image.get("alt") == repr(reservation_map)
        for number in ("7 of 12", "22 %", "3,510", "8,246"):
            assert number in image.get("alt")
        kind, _, code = image.get("src").partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(code).decode() == reservation_map.svg()

    def test_texts_of_others_are_escaped(self):
        def breakdown(requests, num_slots):
            raise RuntimeError('</text><script>alert("&")</script>')

        shown = ReservationMap(LENGTHS, num_slots=15_728, max_len=2048, breakdown=breakdown)
        texts = "".join(ElementTree.fromstring(shown.svg()).itertext())
        assert '</text><script>alert("&")</script>' in texts
        html = shown._repr_mimebundle_()[0]["text/html"]
        assert "<script" not in html and html.count("<") == 1 and html.count('"') == 4

    def test_control_characters_do_not_break_the_picture(self):
        def breakdown(requests, num_slots):
            raise RuntimeError("bell \x07 and null \x00 and \ud800")

        shown = ReservationMap(LENGTHS, num_slots=15_728, max_len=2048, breakdown=breakdown)
        ElementTree.fromstring(shown.svg())
        shown._repr_mimebundle_()

    def test_the_picture_draws_each_admitted_request_and_each_cut(self, reservation_map):
        root = ElementTree.fromstring(reservation_map.svg())
        letters = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text") if len(text.text) == 1]
        # A to G on their strips, and again, with the five that wait, in the queue; "0" is the first row's address.
        assert sorted(letters) == sorted("ABCDEFG" + "ABCDEFGHIJKL" + "0")

    def test_it_works_in_a_plain_interpreter(self):
        code = (
            "from pagedlab.widgets import ReservationMap\n"
            "w = ReservationMap([(1, 2)], num_slots=16, max_len=8)\n"
            "w.max_len = 4\n"
            "print(w); print(sorted(w._repr_mimebundle_()[0]))\n"
        )
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "1 of 1 request fits" in done.stdout and "text/html" in done.stdout


def test_what_a_front_end_loads_is_small_and_complete_in_itself(reservation_map):
    esm, css = reservation_map._esm, reservation_map._css
    assert len(esm.encode()) < 24_000 and len(css.encode()) < 12_000
    assert "import " not in esm and "import(" not in esm and "@import" not in css
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", esm + css)
    for selector in re.findall(r"^([^@\s/*}][^{]*)\{", css, flags=re.MULTILINE):
        assert all(part.strip().startswith(".plw-") for part in selector.split(",\n")), selector
