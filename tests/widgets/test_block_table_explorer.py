"""The block-table explorer without a browser: what goes in, what it says and draws, and what crosses to the browser."""

import base64
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import traitlets
from hypothesis import given, settings
from hypothesis import strategies as st

import pagedlab.widgets
from pagedlab.cache.allocator import BlockAllocator, OutOfBlocksError
from pagedlab.cache.prefix import PrefixCache, prefix_hash_chain
from pagedlab.cache.recorder import PoolState, Recorder, SequenceState
from pagedlab.cache.table import BlockTable
from pagedlab.widgets import BlockTableExplorer, block_picture, pool_state
from pagedlab.widgets.explorer import MAX_BLOCKS
from pagedlab.widgets.explorer_layout import TOP, lay_out
from pagedlab.widgets.explorer_moment import hues, kept_words, labels, problems, slot_arithmetic
from pagedlab.widgets.explorer_picture import shortened
from pagedlab.widgets.explorer_story import story
from pagedlab.widgets.look import COLOURS


def cat_and_time() -> Recorder:
    """Two sequences, a fork and a copy on write, a sequence that ends, and a call that fails."""
    recorder = Recorder(BlockAllocator(8), block_size=4)
    a = recorder.table("A", texts=["The", " cat", " sat", " on", " the", " mat", " and"])
    b = recorder.table("B", texts=["Once", " upon", " a"])
    a.append_tokens(6)
    b.append_tokens(3)
    a.append_tokens(1)
    with recorder.step("fork", "C", "C is forked from A"):
        recorder.share(a.blocks)
        forked = BlockTable(4)
        forked.blocks, forked.num_tokens = list(a.blocks), a.num_tokens
        c = recorder.table("C", forked, texts=a.texts)
    with recorder.step("copy on write", "C", "C writes into a shared block"):
        (new,) = recorder.allocate(1)
        recorder.copied([(forked.blocks[1], new)])
        recorder.free([forked.blocks[1]])
        forked.blocks[1] = new
    c.append_tokens(1)
    b.free()
    with pytest.raises(OutOfBlocksError):
        c.append_tokens(100)
    return recorder


@pytest.fixture
def recorder():
    return cat_and_time()


@pytest.fixture
def explorer(recorder):
    return BlockTableExplorer(recorder)


class TestWhatItSays:
    def test_at_its_last_step(self, explorer):
        assert explorer.step == len(explorer.steps) - 1 == 8
        assert repr(explorer).startswith("BlockTableExplorer at step 8 of 8: C appends 100 tokens. allocate(25) raises")
        assert "5 of 8 blocks are free. A has 7 tokens in blocks 0 and 1. C has 8 tokens in blocks 0 and 3." in repr(
            explorer
        )

    def test_the_way_to_a_slot(self, explorer):
        explorer.step = 3
        explorer.selected = {"sequence": "A", "position": 6}
        way = "block_table[6 // 4] * 4 + 6 % 4 = block_table[1] * 4 + 2 = 1 * 4 + 2 = slot 6"
        assert repr(explorer).endswith(f"Token 6 of A: {way}.")
        assert way in " ".join(" ".join(texts_of(explorer.svg())).split())
        explorer.step = 1  # A has six tokens then
        assert repr(explorer).endswith("Token 6 of A has no slot at this step.")
        assert "block_table[" not in explorer.svg()

    def test_the_example_of_the_course(self):
        state = pool_state({"A": ([3, 9, 7], 40)}, num_blocks=12, block_size=16)
        assert slot_arithmetic(state, "A", 37) == (
            "block_table[37 // 16] * 16 + 37 % 16 = block_table[2] * 16 + 5 = 7 * 16 + 5 = slot 117"
        )

    def test_a_token_that_is_not_there(self, explorer):
        with pytest.raises(KeyError, match="no sequence 'Q'"):
            slot_arithmetic(explorer.state, "Q", 0)
        with pytest.raises(IndexError, match="token 7 of A has no slot: A has 7 tokens in 2 blocks of 4"):
            slot_arithmetic(explorer.state, "A", 7)

    def test_a_block(self, explorer):
        explorer.step, explorer.selected = 4, {"block": 0}
        assert repr(explorer).endswith("Block 0 is logical block 0 of A and logical block 0 of C; its ref count is 2.")
        explorer.selected = {"block": 7}
        assert repr(explorer).endswith("Block 7 is free.")

    def test_the_table(self, explorer):
        explorer.step = 5
        assert str(explorer.table()) == (
            "Step 5 of 8: C writes into a shared block. allocate(1) gives block 3. free([1]): no block\n"
            "becomes free. Block 1 is copied to block 3.\n"
            "Free, next first: 4, 5, 6 and 7\n"
            "\n"
            "sequence  logical  block  tokens  filled  ref count  words\n"
            "--------  -------  -----  ------  ------  ---------  --------------\n"
            "A               0      0  0 to 3  4 of 4          2  The cat sat on\n"
            "A               1      1  4 to 6  3 of 4          1  the mat and\n"
            "B               0      2  0 to 2  3 of 4          1  Once upon a\n"
            "C               0      0  0 to 3  4 of 4          2  The cat sat on\n"
            "C               1      3  4 to 6  3 of 4          1  the mat and"
        )

    def test_the_table_fits_a_notebook(self):
        recorder = Recorder(BlockAllocator(200), block_size=16)
        table = recorder.table("A", texts=[f" word{i}" for i in range(1600)])
        table.append_tokens(1600)
        lines = str(BlockTableExplorer(recorder).table()).splitlines()
        assert max(map(len, lines)) <= 90
        assert lines[-1].split() == "A 99 99 1584 to 1599 16 of 16 1 word1584 word1585 word1586\u2026".split()
        words = {line[-28:].strip() for line in lines if line.endswith("\u2026")}
        assert len(words) == 100 and "word0 word1 word2 word3 wor\u2026" in words

    def test_the_same_recording_says_and_draws_the_same(self, explorer):
        other = BlockTableExplorer(cat_and_time())
        assert repr(explorer) == repr(other) and explorer.svg() == other.svg() and explorer.story == other.story
        assert "0x" not in repr(explorer)

    def test_it_can_be_shown_where_nothing_is_live(self, explorer):
        data, _ = explorer._repr_mimebundle_()
        assert data["text/plain"] == repr(explorer)
        alt, image = re.fullmatch(r'<img alt="(.*)" src="data:image/svg\+xml;base64,(.*)">', data["text/html"]).groups()
        assert "allocate(25) raises OutOfBlocksError" in alt
        assert base64.b64decode(image).decode() == explorer.svg()

    def test_one_moment_has_no_steps_to_speak_of(self):
        explorer = BlockTableExplorer.of_tables({"A": ([5, 2], 5)}, num_blocks=6, block_size=4)
        assert repr(explorer) == "BlockTableExplorer: 4 of 6 blocks are free. A has 5 tokens in blocks 5 and 2."
        assert explorer.state.ref_counts == (0, 0, 1, 0, 0, 1)


class TestTraits:
    @pytest.mark.parametrize("value", [9, -1, 0.5, "2", None, True])
    def test_a_bad_step_changes_nothing(self, explorer, value):
        explorer.step = 3
        with pytest.raises(traitlets.TraitError, match="step"):
            explorer.step = value
        assert explorer.step == 3 and explorer.state is explorer.steps[3].state

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({"block": 8}, "selected is block 8; the pool has blocks 0 to 7"),
            ({"block": "8"}, "use .*'block'|use"),
            ({"sequence": "Z", "position": 1}, "a token of 'Z'; the sequences are A, B and C"),
            ({"sequence": "A", "position": -1}, "use"),
            ({"sequence": "A"}, "use"),
            ({"block": 1, "sequence": "A", "position": 1}, "use"),
            (7, "selected"),
        ],
    )
    def test_a_bad_selection_changes_nothing(self, explorer, value, message):
        explorer.selected = {"block": 3}
        with pytest.raises(traitlets.TraitError, match=message):
            explorer.selected = value
        assert explorer.selected == {"block": 3}

    def test_the_story_cannot_be_set(self, explorer):
        with pytest.raises(traitlets.TraitError, match="read-only"):
            explorer.story = {}

    def test_it_begins_where_it_is_told(self, recorder):
        assert BlockTableExplorer(recorder, step=0).step == 0
        assert BlockTableExplorer(recorder, step=-2).step == 7
        assert BlockTableExplorer(recorder, selected={"block": 1}).selected == {"block": 1}
        with pytest.raises(traitlets.TraitError, match="step is 40; the story has steps 0 to 8"):
            BlockTableExplorer(recorder, step=40)

    def test_refresh_takes_in_what_came_after(self, recorder, explorer):
        explorer.step = 2
        recorder.allocate(1)
        assert len(explorer.steps) == 9
        explorer.refresh()
        assert explorer.step == 9 and len(explorer.story["steps"]) == 10

    def test_not_a_recording(self):
        with pytest.raises(ValueError, match="expected a Recorder, its steps, or a PoolState; got BlockAllocator"):
            BlockTableExplorer(BlockAllocator(3))
        with pytest.raises(ValueError, match="got list"):
            BlockTableExplorer([])
        with pytest.raises(ValueError, match="60,000 blocks; the explorer draws 50,000 at most"):
            BlockTableExplorer(pool_state({}, num_blocks=60_000))
        assert MAX_BLOCKS == 50_000


class TestAMomentByHand:
    def test_tables_in_any_reasonable_form(self):
        table, allocator = BlockTable(4), BlockAllocator(9)
        table.append_tokens(5, allocator)
        state = pool_state({"A": table, "B": [7, 8], "C": ([3], 2)}, num_blocks=9, texts={"C": ["x"]})
        assert state.block_size == 4
        assert [(s.name, s.blocks, s.num_tokens) for s in state.sequences] == [
            ("A", (0, 1), 5),
            ("B", (7, 8), 8),
            ("C", (3,), 2),
        ]
        assert state.sequences[2].texts == ("x", "")
        assert not state.free_order_known and state.free_blocks == (2, 4, 5, 6)

    def test_counts_and_free_list_as_told(self):
        state = pool_state({"A": ([0], 1)}, num_blocks=3, block_size=2, ref_counts={2: 5}, free=[1])
        assert (state.ref_counts, state.free_blocks, state.free_order_known) == ((1, 0, 5), (1,), True)

    def test_bad_input_is_named(self):
        with pytest.raises(ValueError, match="how many tokens does A have"):
            pool_state({"A": [1]}, num_blocks=3)
        with pytest.raises(ValueError, match="the table of A is 7"):
            pool_state({"A": 7}, num_blocks=3, block_size=2)
        with pytest.raises(ValueError, match="ref_counts names block 3; the pool has blocks 0 to 2"):
            pool_state({}, num_blocks=3, ref_counts={3: 1})
        with pytest.raises(ValueError, match="num_blocks is 0"):
            pool_state({}, num_blocks=0)

    @pytest.mark.parametrize("block_size, error", [(-2, ValueError), (0, ValueError), (2.0, TypeError)])
    def test_a_block_size_that_is_none(self, block_size, error):
        with pytest.raises(error, match="block_size"):
            pool_state({"A": ([0], 2)}, num_blocks=2, block_size=block_size)

    def test_names_in_blocks(self):
        assert labels(["A", "B2"]) == ["A", "B2"]
        assert labels(["request 7", "B"]) == ["A", "B"]


def broken(tables=(), counts=(1, 1, 0, 0), free=(2, 3), order_known=True):
    sequences = tuple(SequenceState(name, tuple(blocks), tokens, ("",) * tokens) for name, blocks, tokens in tables)
    return PoolState(len(counts), 2, tuple(counts), tuple(free), order_known, len(free), sequences)


class TestProblems:
    @pytest.mark.parametrize(
        ("state", "block", "says"),
        [
            (
                broken([("A", [0, 1], 4), ("B", [1], 2)]),
                1,
                "Block 1 is in the tables of A and B, but its ref count is 1.",
            ),
            (broken([("A", [2], 1)], free=(3,)), 2, "Block 2 is in the table of A, but it is free."),
            (broken([("A", [0, 0], 4)]), 0, "Block 0 is 2 times in the table of A."),
            (broken([("A", [4], 1)]), 4, "Logical block 0 of A is block 4; the pool has blocks 0 to 3."),
            (broken([("A", [-1], 1)]), -1, "Logical block 0 of A is block -1; the pool has blocks 0 to 3."),
            (broken(free=(2, 3, 2)), 2, "Block 2 is 2 times on the free list."),
            (broken(free=(2, 9)), 9, "The free list has block 9; the pool has blocks 0 to 3."),
            (broken(free=(1, 2)), 1, "Block 1 is on the free list, but its ref count is 1."),
            (
                broken([("A", [0], 2)], free=(0, 2)),
                0,
                "Block 0 is on the free list, but it is in the table of A.",
            ),
        ],
    )
    def test_what_cannot_be_right_is_said_and_marked(self, state, block, says):
        assert problems(state) == [(block, says)]
        picture = block_picture(state)
        assert says.replace("'", "&#x27;") in picture.replace("\n", " ")
        assert says in repr(BlockTableExplorer(state))

    def test_what_may_be(self):
        assert problems(broken([("A", [0, 1], 3), ("B", [1], 2)], counts=(1, 2, 0, 0))) == []
        assert problems(broken(counts=(3, 1, 0, 0))) == []  # held by somebody without a table
        assert problems(broken(free=(0, 0), order_known=False)) == []

    def test_none_in_a_correct_story(self, recorder):
        assert [problem for step in recorder.steps for problem in problems(step.state)] == []


def texts_of(svg: str) -> list[str]:
    return [node.text for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


class TestBlockPicture:
    def test_words_numbers_and_letters_are_there(self, recorder):
        texts = texts_of(block_picture(recorder.steps[5], before=recorder.steps[4].state))
        for word in ("The", "mat", "Once", "\u2192 3", "AC", "\u00d72", "free", "31", "7 tokens in 2 blocks"):
            assert word in texts
        assert texts.count("mat") == 4  # in two tables and, copied, in two blocks
        assert texts.count("The") == 3  # in two tables and one shared block

    def test_a_problem_pointed_at(self):
        state = pool_state({}, num_blocks=8, ref_counts={0: 1, 5: 1})
        plain = block_picture(state)
        marked = block_picture(state, problem=5, note="allocate(1) gave block 5, which is in use.", title="Step 3")
        assert "!" not in texts_of(plain) and texts_of(marked).count("!") == 1
        assert "allocate(1) gave block 5, which is in use." in texts_of(marked) and "Step 3" in texts_of(marked)
        assert texts_of(block_picture(state, problem=[5, 0])).count("!") == 2

    def test_a_small_pool_makes_a_small_picture_with_text_as_large(self):
        def sizes(state, **how):
            svg = block_picture(state, **how)
            root = ElementTree.fromstring(svg)
            texts = root.iter("{http://www.w3.org/2000/svg}text")
            return int(root.get("width")), {node.text: float(node.get("font-size")) for node in texts}

        small = pool_state({"A": ([0, 1], 2), "B": ([1], 1)}, num_blocks=4)
        width, fonts = sizes(small, problem=1)
        wide, _ = sizes(pool_state({"A": (list(range(60)), 60)}, num_blocks=130))
        assert width <= 640 and wide == 960
        assert fonts["AB"] == 13 and fonts["free block"] == 12
        long = "a title that is far too long for one line of a narrow card, as the story of a failed check may well be"
        words = pool_state({"A": ([0], 3)}, num_blocks=4, block_size=4)
        for state in (small, words):
            svg = block_picture(state, title=long, note=long, problem=1)
            room = int(ElementTree.fromstring(svg).get("width")) - 48
            assert all(len(line) * 7 < room for line in texts_of(svg)) and max(map(len, texts_of(svg))) > 50

    @pytest.mark.parametrize("block_size", [None, 1, 4])
    def test_the_badge_of_a_problem_hides_no_number(self, block_size):
        state = pool_state({"A": ([0, 1], 2), "B": ([1], 1)}, num_blocks=4, block_size=block_size)
        root = ElementTree.fromstring(block_picture(state, problem=1))
        shapes = list(root.iter())
        badges = [(float(node.get("cx")), float(node.get("cy"))) for node in shapes if node.tag.endswith("circle")]
        counts = [node for node in shapes if node.text == "\u00d72"]
        assert len(badges) == 3 and counts
        for node in counts:
            x, y = float(node.get("x")), float(node.get("y"))
            assert all(abs(x - to_x) > 26 or not y - 18 < to_y < y + 8 for to_x, to_y in badges)

    def test_a_name_has_its_colour_in_every_picture(self):
        assert hues("AB") == [0, 1] and hues("B") == [1] and hues("CB") == [2, 1]
        assert hues(["request 7", "B"]) == [0, 1] and hues(["first", "second", "third"]) == [0, 1, 2]
        assert len(set(hues("AHBO"))) == 4, "A and H have the same colour though others are free"
        assert len(hues("ABCDEFGHIJ")) == 10 and set(hues("ABCDEFGHIJ")) == set(range(7))
        alone = block_picture(pool_state({"B": ([0], 2)}, num_blocks=2, block_size=2))
        tags = re.findall(r'height="22.0*" fill="(#\w+)"|height="22" fill="(#\w+)"', alone)
        assert {colour for pair in tags for colour in pair if colour} == {COLOURS[1]}

    def test_the_legend_shows_blocks_as_they_are_drawn(self):
        def legend(block_size):
            svg = block_picture(pool_state({"A": (list(range(40)), 1270)}, num_blocks=500, block_size=block_size))
            swatches = re.findall(r'height="16" fill="(#\w+)" rx="3"(?: fill-opacity="([\d.]+)")?', svg)
            return swatches, texts_of(svg)

        swatches, texts = legend(32)
        assert swatches[:2] == [(COLOURS[0], "0.3"), (COLOURS[0], "")]  # a full part on a pale ground
        assert "block in use, as far as it is filled" in texts
        swatches, texts = legend(None)
        assert swatches[0] == (COLOURS[0], "") and "block in use" in texts

    def test_where_slots_are_too_small_to_frame_the_blocks_that_got_tokens_are(self):
        recorder = Recorder(BlockAllocator(400), block_size=4)
        table = recorder.table("A")
        table.append_tokens(158)
        table.append_tokens(1)
        svg = BlockTableExplorer(recorder).svg()
        assert recorder.steps[-1].taken == () and "changed by this step" in texts_of(svg)
        assert svg.count('stroke="#0072B2" stroke-width="2"') + svg.count('stroke="#0072B2" stroke-width="1.25"') == 3

    def test_what_a_learner_wrote_is_escaped(self):
        state = pool_state({"<b>": ([0], 1)}, num_blocks=2, block_size=2, texts={"<b>": ["<i>&"]})
        svg = block_picture(state, title='"<script>"', note="a < b")
        assert "<i>&" in texts_of(svg) and '"<script>"' in texts_of(svg)

    @pytest.mark.parametrize(
        "sign", ["\x00", "\x1b[31m", "\ud800", "\udc80", "\ufffe", "\x7f\x80", "\r\n", "\t", "\U0001f600"]
    )
    def test_what_no_document_can_carry_is_replaced(self, sign):
        class Failing(BlockAllocator):
            def allocate(self, n):
                raise ValueError(f"error{sign}")

        recorder = Recorder(Failing(4), block_size=2)
        table = recorder.table(f"name{sign}", texts=[f"text{sign}", 1])
        table.table.blocks, table.table.num_tokens = [0], 2
        with pytest.raises(ValueError):
            table.append_tokens(3)
        state = pool_state(
            {f"name{sign}": ([0], 2)}, num_blocks=2, block_size=2, texts={f"name{sign}": [f"text{sign}", 1]}
        )
        explorer = BlockTableExplorer(recorder)
        explorer.selected = {"sequence": explorer.state.sequences[0].name, "position": 1}
        pictures = [
            explorer.svg(),
            block_picture(state),
            block_picture(state, title=f"title{sign}", note=f"note{sign}"),
        ]
        for picture in pictures:
            ElementTree.fromstring(picture.encode())
        data, _ = explorer._repr_mimebundle_()
        json.dumps(
            [data["text/plain"], data["text/html"], str(explorer.table()), explorer.story], ensure_ascii=False
        ).encode()
        assert (
            "error" in explorer.sentence()
            and state.sequences[0].texts[1] == explorer.state.sequences[0].texts[1] == "1"
        )

    def test_a_pool_of_thousands_stays_small(self):
        tables = {f"request {i}": (list(range(i * 400, i * 400 + 256)), 4000) for i in range(16)}
        explorer = BlockTableExplorer.of_tables(tables, num_blocks=10_000, block_size=16)
        assert len(explorer.svg()) < 400_000
        assert len(json.dumps(explorer.story)) < 400_000

    def test_neither_torch_nor_a_widget_is_needed(self):
        code = (
            "import sys\nfrom pagedlab.widgets import block_picture, pool_state\n"
            "block_picture(pool_state({'A': ([1], 2)}, num_blocks=2, block_size=2))\n"
            "print([name for name in ('torch', 'anywidget', 'traitlets', 'IPython') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"

    @pytest.mark.parametrize(
        ("word", "shown"),
        [
            (" cat", "cat"),
            (" ", "\u2423"),
            ("\n", "\u23ce"),
            ("", ""),
            (" extraordinarily", "extraor\u2026"),
            ("\x07", "\ufffd"),
            ("\u732b\u732b\u732b\u732b\u732b", "\u732b\u732b\u732b\u2026"),
        ],
    )
    def test_words_in_slots(self, word, shown):
        assert shortened(word, 58) == shown


@settings(deadline=None, max_examples=40)
@given(
    num_blocks=st.integers(1, 40),
    block_size=st.sampled_from([0, 1, 2, 3, 4, 8, 16, 17]),
    moments=st.lists(st.lists(st.integers(0, 12), max_size=6), min_size=1, max_size=4),
    width=st.integers(500, 1100),
)
def test_nothing_lies_on_anything_else_or_outside(num_blocks, block_size, moments, width):
    at = lay_out(width, num_blocks, block_size, moments)
    for sizes in moments:
        boxes = [at.pool(block) for block in range(num_blocks)]
        for size, (top, _) in zip(sizes, at.tables(sizes), strict=True):
            boxes += [at.logical(top, logical) for logical in range(size)]
        for x, y, w, h in boxes:
            assert w > 0 and h > 0
            assert -0.01 <= x and x + w <= width + 0.01 and TOP <= y and y + h <= at.height + 0.01
        for i, (x, y, w, h) in enumerate(boxes):
            for other_x, other_y, other_w, other_h in boxes[:i]:
                apart = x >= other_x + other_w - 0.01 or other_x >= x + w - 0.01
                assert apart or y >= other_y + other_h - 0.01 or other_y >= y + h - 0.01


def replayed(told: dict, to: int) -> tuple:
    """The state after step `to`, from the changes alone: what the browser does."""
    counts, free, sequences, cached = [0] * told["num_blocks"], [], [], []
    for step in told["steps"][: to + 1]:
        for block, count in step["counts"]:
            counts[block] = count
        cached = cached if step["cached"] is None else step["cached"]
        at, gone, come = step["free"]
        free[at : at + gone] = come
        for i, kept, added, tokens, kept_texts, texts in step["sequences"]:
            old_blocks, _, old_texts = sequences[i] if i < len(sequences) else ([], 0, [])
            texts = [""] * texts if isinstance(texts, int) else texts
            sequences[i : i + 1] = [(old_blocks[:kept] + added, tokens, old_texts[:kept_texts] + texts)]
    return counts, free, sequences, cached


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("append truncate free raw".split()), st.integers(0, 3), st.integers(0, 9))
)


@settings(deadline=None, max_examples=40)
@given(operations=OPERATIONS, block_size=st.integers(1, 5))
def test_the_changes_add_up_to_every_state(operations, block_size):
    recorder = Recorder(BlockAllocator(6), block_size=block_size)
    tables = {}
    for verb, which, n in operations:
        try:
            if verb == "raw":
                recorder.allocate(which)
                continue
            if which not in tables:
                tables[which] = recorder.table("WXYZ"[which], texts=[f" w{i}" for i in range(7)])
            if verb == "append":
                tables[which].append_tokens(n)
            elif verb == "truncate":
                tables[which].truncate(min(n, tables[which].num_tokens))
            else:
                tables[which].free()
        except OutOfBlocksError:
            pass
    told = json.loads(json.dumps(story(recorder.steps)))
    for step in recorder.steps:
        counts, free, sequences, cached = replayed(told, step.index)
        assert cached == []
        assert tuple(counts) == step.state.ref_counts and tuple(free) == step.state.free_blocks
        assert [(tuple(blocks), tokens, tuple(texts)) for blocks, tokens, texts in sequences] == [
            (sequence.blocks, sequence.num_tokens, sequence.texts) for sequence in step.state.sequences
        ]
    explorer = BlockTableExplorer(recorder, step=len(recorder.steps) // 2)
    ElementTree.fromstring(explorer.svg())
    str(explorer.table()), repr(explorer)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_state_a_broken_allocator_leaves_can_be_drawn(data):
    entry = st.one_of(st.integers(-2, 7), st.sampled_from([None, "3", 2.5]))
    tables = data.draw(st.lists(st.tuples(st.lists(entry, max_size=5), st.integers(0, 30)), max_size=3))
    sequences = tuple(
        SequenceState("ABC"[i], tuple(blocks), tokens, ("",) * tokens) for i, (blocks, tokens) in enumerate(tables)
    )
    counts = tuple(data.draw(st.lists(st.integers(-2, 4), min_size=5, max_size=5)))
    free = tuple(data.draw(st.lists(entry, max_size=6)))
    size = data.draw(st.sampled_from([None, 1, 3]))
    state = PoolState(5, size, counts, free, data.draw(st.booleans()), None, sequences)
    explorer = BlockTableExplorer(state)
    for block in range(5):
        explorer.selected = {"block": block}
        ElementTree.fromstring(explorer.svg())
    for sequence in sequences:
        explorer.selected = {"sequence": sequence.name, "position": 4}
        ElementTree.fromstring(explorer.svg())
        str(explorer.table()), repr(explorer)
    json.dumps(explorer.story)


def told_again() -> Recorder:
    """A prompt is published, forked, written on, given back; another request finds two of its blocks."""
    recorder = Recorder(PrefixCache(BlockAllocator(8)), block_size=4)
    words = " You are a kind cat . Say hi to".split()
    a = recorder.table("A", texts=words)
    a.append_tokens(9)
    for block, block_hash in zip(a.blocks, prefix_hash_chain(range(9), 4), strict=False):
        recorder.publish(block, block_hash)
    b = a.fork(name="B")
    b.copy_on_write()
    b.append_tokens(1)
    a.free()
    b.free()
    found = recorder.lookup(prefix_hash_chain([*range(8), 77], 4))
    c = recorder.table("C", texts=[*words[:8], "at", "Eve"])
    c.adopt(found, 8)
    c.append_tokens(2)
    return recorder


class TestSharing:
    def step(self, explorer, verb):
        explorer.step = next(step.index for step in explorer.steps if step.verb == verb)
        return ElementTree.fromstring(explorer.svg())

    def texts(self, root):
        return [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]

    def test_a_forked_block_is_drawn_with_all_its_holders(self):
        explorer = BlockTableExplorer(told_again())
        words = self.texts(self.step(explorer, "fork"))
        assert words.count("AB") == 3 and words.count("\u00d72") == 3
        assert "B is forked from A. share([0, 1, 2]) adds a holder to blocks 0, 1 and 2." in " ".join(words)
        explorer.selected = {"block": 1}
        assert repr(explorer).endswith("Block 1 is logical block 1 of A and logical block 1 of B; its ref count is 2.")

    def test_a_copy_has_an_arrow_and_words(self):
        explorer = BlockTableExplorer(told_again())
        root = self.step(explorer, "copy on write")
        arrows = [
            path for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("marker-end") == "url(#copied)"
        ]
        assert len(arrows) == 2  # from block 2 to block 3, and in the legend
        assert explorer.steps[explorer.step].copies == ((2, 3),)
        words = self.texts(root)
        assert "contents copied" in words and "Block 2 is copied to block 3." in " ".join(words)
        explorer.step += 1
        assert "contents copied" not in self.texts(ElementTree.fromstring(explorer.svg()))

    def test_cached_blocks_are_free_and_keep_their_words(self):
        explorer = BlockTableExplorer(told_again())
        self.step(explorer, "hit")
        explorer.step -= 1
        assert explorer.state.cached_blocks == (1, 0)
        words = self.texts(ElementTree.fromstring(explorer.svg()))
        assert words.count("cached") == 2 and words.count("free") == 6
        assert "8 of 8 free, 2 of them cached \u00b7 4 slots each" in words
        assert [word for word in ("You", "kind", "cat", "hi", "to") if word in words] == ["You", "kind", "cat", "hi"]
        assert "8 of 8 blocks are free, 2 of them cached." in repr(explorer)
        explorer.selected = {"block": 1}
        assert repr(explorer).endswith("Block 1 is free, but the cache finds what it holds.")
        assert "of these cached: 1 and 0" in str(explorer.table())

    def test_a_hit_takes_them_and_a_table_adopts_them(self):
        explorer = BlockTableExplorer(told_again())
        words = self.texts(self.step(explorer, "hit"))
        assert "lookup(2 hashes) finds blocks 0 and 1." in words
        assert words.count("used") == 2 and "cached" not in words and "kind" in words
        words = self.texts(self.step(explorer, "adopt"))
        assert words.count("C") == 1 + 2 and words.count("kind") == 2  # in its table, and in the pool

    def test_what_crosses_to_the_browser(self):
        recorder = told_again()
        told = json.loads(json.dumps(story(recorder.steps)))
        for step in recorder.steps:
            counts, free, _, cached = replayed(told, step.index)
            assert (tuple(counts), tuple(free)) == (step.state.ref_counts, step.state.free_blocks)
            assert tuple(cached) == step.state.cached_blocks

    def test_the_words_are_those_of_the_last_who_named_the_block(self):
        recorder = Recorder(BlockAllocator(2), block_size=2)
        for name, words in (("A", ["a", "b"]), ("B", ["c", ""])):
            table = recorder.table(name, texts=words)
            table.append_tokens(2)
            table.free()
        recorder.allocate(2)
        assert kept_words(recorder.steps) == {0: ["c", "B1"]}


def test_the_scripts_are_small_and_load_nothing():
    static = Path(pagedlab.widgets.__file__).parent / "static"
    for path in static.glob("explorer*.js"):
        source = path.read_text(encoding="utf-8")
        assert len(source.encode()) < 20_000, path.name
        assert "import(" not in source and "http" not in source and "innerHTML" not in source, path.name
    selectors = re.findall(r"^([^\s@/}*][^{]*)\{", (static / "explorer.css").read_text(encoding="utf-8"), re.MULTILINE)
    assert selectors and all(".plw-" in part for selector in selectors for part in selector.split(","))
