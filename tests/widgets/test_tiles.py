"""The tile viewer without a browser: what it reads out of a trace, what it says and refuses."""

import base64
import json
import re
from xml.etree import ElementTree

import pytest
import torch
import traitlets
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.gpu.trace import ProgramTrace, Trace, trace
from pagedlab.kernels.merge import merge_launch, merge_splits_kernel
from pagedlab.kernels.prefill import paged_prefill_kernel, prefill_launch
from pagedlab.widgets import TileViewer
from pagedlab.widgets.tiles_layout import (
    PROGRAMS_HIGH,
    PROGRAMS_WIDE,
    SIDE,
    SLOTS_HIGH,
    lay_out_blocks,
    lay_out_programs,
)
from pagedlab.widgets.tiles_picture import WRITTEN
from pagedlab.widgets.tiles_story import Strided, slot_runs
from tests.widgets.tile_traces import BLOCK_TABLES, HEAD_DIM, SEQ_LENS, TABLES, caches, decode, write

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def decoding():
    return decode()


@pytest.fixture(scope="module")
def writing():
    return write()


@pytest.fixture
def shown(decoding):
    return TileViewer(decoding, **TABLES, program=(0, 1), step=1, rows=4, axes=("sequence", "KV head"))


def runs(viewer, part):
    return [run for access in viewer.now["accesses"] if access["part"] == part for run in access["runs"]]


class TestWhatItReads:
    def test_a_tile_is_its_blocks_in_the_order_of_the_sequence(self, shown):
        assert runs(shown, "k") == runs(shown, "v") == [[7, 0, 15], [2, 0, 15]]
        assert shown.now["says"] == "reads K and V of positions 0 to 31, in blocks 7 and 2"
        shown.step = 2
        assert runs(shown, "k") == [[9, 0, 7]]  # position 40 is the first that is not a token
        assert [access["on"] for access in shown.now["accesses"]] == [8, 8 * HEAD_DIM, 8 * HEAD_DIM]
        assert [access["lanes"] for access in shown.now["accesses"]] == [32, 32 * HEAD_DIM, 32 * HEAD_DIM]

    def test_every_program_reads_exactly_the_tokens_of_its_sequence(self, decoding):
        viewer = TileViewer(decoding, **TABLES)
        assert len(viewer.story["programs"]) == 6
        for pid in [(x, y) for x in range(3) for y in range(2)]:
            viewer.program = pid
            slots = []
            for step in range(len(viewer._chosen["steps"])):
                viewer.step = step
                slots += [(block, slot) for block, first, last in runs(viewer, "k") for slot in range(first, last + 1)]
            length = int(SEQ_LENS[pid[0]])
            assert slots == [(int(BLOCK_TABLES[pid[0], at // 16]), at % 16) for at in range(length)]
            assert (viewer._chosen["sequence"], viewer._chosen["head"]) == pid

    def test_interleaved_and_permuted_caches_are_taken_apart_by_their_strides(self):
        both = torch.randn(12, 2, 2, 16, HEAD_DIM).half()  # K and V of a block side by side
        token_major = torch.randn(12, 16, 2, HEAD_DIM).half().transpose(1, 2)
        for kv in ((both[:, 0], both[:, 1]), (token_major, token_major.clone())):
            viewer = TileViewer(decode(kv=kv), **TABLES, program=(0, 1), step=1)
            assert runs(viewer, "k") == runs(viewer, "v") == [[7, 0, 15], [2, 0, 15]]
            assert viewer._chosen["head"] == 1

    def test_the_source_line_of_each_access(self, shown):
        lines = [shown.story["source"][str(access["line"])] for access in shown.now["accesses"]]
        assert [line.split(" = ")[0] for line in lines] == ["blocks", "keys", "values"]
        assert all("tl.load(" in line for line in lines)

    def test_the_running_maximum_and_sum_at_the_end_of_each_step(self, shown, decoding):
        program = decoding.program(0, 1)
        for step in (1, 2):
            shown.step = step
            told = {name: now for name, _, now in shown.now["values"]}
            for name in ("running_max", "running_sum"):
                expected = program.variables[step - 1][name][:4]
                assert [float(number) for number in told[name]] == pytest.approx(expected.tolist(), rel=1e-3)
        assert [old for _, old, _ in shown.now["values"]][0][0] == f"{program.variables[0]['running_max'][0]:.4g}"
        shown.step = 0
        assert shown.now["values"] == [] and shown.now["label"] == "before the loop"

    def test_other_tensors_are_told_by_their_indices(self, shown):
        shown.program, shown.step = (2, 1), 1
        tables = shown.now["accesses"][0]
        assert (tables["tensor"], tables["says"]) == ("block_tables", "[2, 0 to 1]")
        shown.step = 3
        assert shown.now["says"] == "writes out" and shown.now["label"] == "after the loop"
        assert shown.now["accesses"][0]["says"] == f"[2, 4 to 7, 0 to {HEAD_DIM - 1}]"

    def test_a_kernel_without_a_loop_and_a_slot_that_is_skipped(self, writing):
        viewer = TileViewer(writing, axes=("token", "KV head"), program=(3, 1))
        assert viewer.now["says"] == "writes K and V of slot 15 of block 9"
        assert [a["kind"] for a in viewer.now["accesses"]] == ["load", "load", "load", "store", "store"]
        viewer.program = (1, 0)
        assert viewer.now["says"] == "reads slot_mapping"

    def test_some_programs_only(self):
        viewer = TileViewer(write(programs=[(2, 1)]))
        assert viewer.program == [2, 1, 0] and viewer.story["grid"] == [4, 2, 1]
        with pytest.raises(traitlets.TraitError, match=r"program \(0, 0, 0\) was not traced; traced were \(2, 1, 0\)"):
            viewer.program = (0, 0, 0)

    def test_a_block_that_is_not_there_is_told(self):
        """A wrong kernel may read outside its cache; here the cache that is described is smaller than the one read."""
        traced = decode()
        traced.tensors["key_cache"].shape = (4, *traced.tensors["key_cache"].shape[1:])
        viewer = TileViewer(traced, program=(0, 0), step=1)
        assert viewer.now["accesses"][1]["says"].endswith("; block 7 is not in the pool")
        ElementTree.fromstring(viewer.svg())

    def test_an_empty_sequence(self):
        viewer = TileViewer(decode(seq_lens=torch.tensor([40, 0, 64], dtype=torch.int32)), **TABLES, program=(1, 0))
        assert "touches" not in viewer.now["says"] and not runs(viewer, "k")

    def test_a_large_pool_is_drawn_where_it_is_used(self):
        key_cache = torch.zeros(5000, 1, 1, HEAD_DIM).half()
        tables = torch.tensor([[4999, 17, 3000]], dtype=torch.int32)
        lens = torch.tensor([3], dtype=torch.int32)
        viewer = TileViewer(decode(16, tables, lens, (key_cache, key_cache)), block_tables=tables, seq_lens=lens)
        pool = viewer.story["pool"]
        assert pool["blocks"] == [17, 3000, 4999] and pool["left_out"] == 4997
        assert "4,997 other blocks are not drawn" in viewer.svg()

    def test_kernels_with_other_tensors_and_splits(self):
        """Split decode has a third axis; the merge that follows has no cache, and its watched variables are numbers."""
        viewer = TileViewer(decode(num_splits=2), **TABLES, axes=("sequence", "KV head", "split"), program=(2, 0, 1))
        assert viewer.headline() == "Program (2, 0, 1): sequence 2, KV head 0, split 1"
        viewer.step = 1
        assert viewer.now["says"] == "reads K and V of positions 32 to 63, in blocks 5 and 0"
        assert {"split 0", "split 1"} <= set(ElementTree.fromstring(viewer.svg()).itertext())
        grid, arguments, _ = merge_launch(torch.zeros(1, 2, 20, HEAD_DIM), torch.zeros(1, 2, 20))
        viewer = TileViewer(trace(merge_splits_kernel, grid, arguments), axes=("sequence", "head"))
        assert viewer.story["pool"]["blocks"] == []
        assert "partial_lse" in str(viewer.table())
        ElementTree.fromstring(viewer.svg())

    def test_prefill_reads_the_tokens_that_its_queries_may_see(self):
        key_cache, value_cache = caches()
        lens, starts = torch.tensor([40], dtype=torch.int32), torch.tensor([0, 20], dtype=torch.int32)
        q = torch.zeros(20, 8, HEAD_DIM).half()
        grid, arguments, _ = prefill_launch(q, key_cache, value_cache, BLOCK_TABLES[:1], lens, starts)
        viewer = TileViewer(trace(paged_prefill_kernel, grid, arguments), block_tables=BLOCK_TABLES[:1], seq_lens=lens)
        seen, sequences = set(), set()
        for program in viewer.story["programs"]:
            sequences.add(program["sequence"])
            for step in program["steps"]:
                for access in step["accesses"]:
                    seen |= {(block, slot) for block, a, b in access["runs"] for slot in range(a, b + 1)}
        assert seen == {(int(BLOCK_TABLES[0, at // 16]), at % 16) for at in range(40)} and 0 in sequences


class TestTraits:
    def test_a_shorter_program_keeps_the_step_as_far_as_it_goes(self, shown):
        shown.step, shown.access = 3, 0
        shown.program = (1, 1, 0)
        assert (shown.step, shown.access) == (2, -1)
        shown.step = 1
        shown.access = 2
        shown.step = 0
        assert shown.access == -1

    def test_wrong_values_are_refused_with_the_numbers(self, shown):
        for name, wrong, says in (
            ("program", (3, 0), r"program is \(3, 0\); the grid is \(3, 2, 1\)"),
            ("program", (0, 0, 0, 0), "the grid is"),
            ("step", 4, "step is 4; this program has steps 0 to 3"),
            ("step", True, "step"),
            ("access", 3, "access is 3; this step has 3: -1 for all, or below 3"),
        ):
            before = shown.program, shown.step, shown.access
            with pytest.raises(traitlets.TraitError, match=says):
                setattr(shown, name, wrong)
            assert (shown.program, shown.step, shown.access) == before
        with pytest.raises(traitlets.TraitError):
            shown.story = {}

    def test_what_a_browser_sends_arrives_as_one(self, shown):
        shown.set_state({"access": -1, "step": 2, "program": [1, 0, 0]})
        assert (shown.program, shown.step, shown.access) == ([1, 0, 0], 2, -1)


class TestArguments:
    def test_what_it_cannot_draw(self, decoding):
        for arguments, says in (
            (dict(trace=[1]), "expected a Trace, as pagedlab.gpu.trace.trace.* returns; got list"),
            (dict(trace=Trace("k", (0, 1, 1), [], 1, [], {})), "the trace has no programs"),
            (dict(trace=decoding, block_tables=BLOCK_TABLES), "give block_tables and seq_lens together"),
            (dict(trace=decoding, block_tables=BLOCK_TABLES, seq_lens=[1]), "3 rows and seq_lens 1 lengths"),
            (
                dict(trace=decoding, block_tables=[[7]], seq_lens=[17]),
                "17 tokens needs 2 blocks of 16; its table has 1",
            ),
            (
                dict(trace=decoding, block_tables=[[7, 12]], seq_lens=[17]),
                "names block 12; .* blocks 0 to 11",
            ),
            (dict(trace=decoding, block_tables=[[7, -1]], seq_lens=[17]), "names block -1"),
            (dict(trace=decoding, block_tables=[[7]], seq_lens=[-1]), "a length is 0 or more"),
            (dict(trace=decoding, rows=0), "rows is 0; it must be at least 1"),
            (dict(trace=decoding, key_argument="q"), r"q has shape \[3, 8, 32\]; expected \[num_blocks"),
            (dict(trace=decoding, **TABLES, key_argument="a", value_argument="b"), "no tensor a or b"),
        ):
            with pytest.raises(ValueError, match=says):
                TileViewer(**arguments)
        many = Trace("k", (1000, 1, 1), [""], 1, [ProgramTrace((i, 0, 0)) for i in range(1000)], {})
        with pytest.raises(ValueError, match=r"1,000 programs; the viewer shows 900 at most: trace fewer programs"):
            TileViewer(many)

    def test_a_program_of_a_grid_of_one_dimension_may_be_a_number(self, decoding):
        assert TileViewer(decoding, program=2).program == [2, 0, 0]
        with pytest.raises(traitlets.TraitError, match=r"program is \(2, 0, 0, 1\)"):
            TileViewer(decoding, program=(2, 0, 0, 1))

    def test_lists_will_do_for_tables(self, decoding):
        lists = TileViewer(decoding, block_tables=BLOCK_TABLES.tolist(), seq_lens=SEQ_LENS.tolist())
        assert lists.story == TileViewer(decoding, **TABLES).story

    def test_without_tables_the_pool_stands_alone(self, decoding):
        viewer = TileViewer(decoding, program=(0, 1), step=1)
        assert viewer.now["says"] == "reads K and V of 32 slots in blocks 7 and 2"
        assert viewer._chosen["sequence"] == -1


class TestWords:
    def test_the_sentence_is_the_same_every_time(self, shown, decoding):
        again = TileViewer(decoding, **TABLES, program=(0, 1), step=1, rows=4, axes=("sequence", "KV head"))
        assert repr(shown) == repr(again) and shown.svg() == again.svg()
        assert repr(shown).startswith(
            "TileViewer of 6 programs of a grid of 3 x 2 x 1. Program (0, 1): sequence 0, KV head 1. "
            "Step 1 of 3, iteration 1: reads K and V of positions 0 to 31, in blocks 7 and 2. "
            "Sequence A has 40 tokens in blocks 7, 2 and 9. running_max: "
        )
        shown.access = 2
        assert "values" not in repr(shown)
        assert re.search(
            r"Line \d+ reads value_cache: block 7, slots 0 to 15; block 2, slots 0 to 15 \(KV head 1\)", repr(shown)
        )

    def test_the_table(self, shown):
        table = shown.table()
        assert table.columns == ("line", "", "tensor", "lanes", "what")
        assert [row[1:4] for row in table.rows] == [
            ("read", "block_tables", "32 of 32 lanes on"),
            ("read", "key_cache", "1,024 of 1,024 lanes on"),
            ("read", "value_cache", "1,024 of 1,024 lanes on"),
        ]
        assert "running_sum: " in str(table)

    def test_where_it_cannot_be_live_it_is_a_picture(self, shown):
        data, _ = shown._repr_mimebundle_()
        image = ElementTree.fromstring(data["text/html"].replace(">", "/>"))
        assert image.get("alt") == repr(shown) == data["text/plain"]
        assert base64.b64decode(image.get("src").partition(",")[2]).decode() == shown.svg()
        words = [text.text for text in ElementTree.fromstring(shown.svg()).iter(f"{SVG}text")]
        assert {"7 A", "0 → 7", "Pool, KV head 1", "read in this step"} <= set(words)
        assert "written in this step" not in words

    def test_writes_are_marked(self, writing):
        viewer = TileViewer(writing, program=(3, 1))
        fills = [rect.get("fill") for rect in ElementTree.fromstring(viewer.svg()).iter(f"{SVG}rect")]
        assert fills.count("url(#written)") == 3  # K, V, and the legend
        assert WRITTEN in viewer.svg()

    def test_the_story_is_plain_and_small(self, decoding):
        assert len(json.dumps(TileViewer(decoding, **TABLES).story)) < 20_000


class TestLayout:
    @given(
        st.lists(st.integers(0, 30), min_size=1, max_size=60),
        st.lists(st.integers(0, 30), min_size=60, max_size=60),
    )
    def test_runs_hold_each_slot_once(self, blocks, slots):
        pairs = list(zip(blocks, slots, strict=False))
        found = slot_runs(*torch.tensor(pairs).T.numpy())
        flat = [(block, slot) for block, first, last in found for slot in range(first, last + 1)]
        assert flat == list(dict.fromkeys(pairs))

    @given(st.permutations(range(4)), st.tuples(*[st.integers(2, 5)] * 4), st.integers(0, 3))
    def test_offsets_are_taken_apart_for_any_order_of_dimensions(self, order, shape, padding):
        sizes = [shape[dim] for dim in order]
        tensor = torch.zeros(*sizes[:-1], sizes[-1] + padding)[..., : sizes[-1]]
        tensor = tensor.permute([order.index(dim) for dim in range(4)])
        index = torch.cartesian_prod(*(torch.arange(size) for size in tensor.shape))
        offsets = (index * torch.tensor(tensor.stride())).sum(1).numpy()
        found = Strided(tuple(tensor.shape), tensor.stride()).indices(offsets)
        assert torch.equal(torch.tensor([list(each) for each in found]), index.T)

    @settings(max_examples=200)
    @given(st.floats(240, 1000), st.integers(1, 3000), st.sampled_from([1, 2, 12, 16, 48, 544]), st.integers(1, 2))
    def test_blocks_do_not_leave_the_drawing_or_lie_on_each_other(self, width, count, size, parts):
        at = lay_out_blocks(width, count, size, parts)
        right = at.corner(min(count, at.per_line) - 1)[0] + at.cell
        assert SIDE < right <= width + 0.01
        assert at.height <= 2 * SLOTS_HIGH or at.cell == 5
        assert at.corner(1)[0] >= SIDE + at.cell or at.per_line == 1
        assert at.line >= at.head + parts * at.part
        assert at.corner(count - 1)[1] + parts * at.part <= at.height

    def test_a_grid_too_large_to_draw_is_a_list_of_what_was_traced(self):
        assert lay_out_programs(30, 8, 1).width <= PROGRAMS_WIDE
        assert lay_out_programs(5000, 8, 1).width > PROGRAMS_WIDE or lay_out_programs(5000, 8, 1).height > PROGRAMS_HIGH
        traced = [ProgramTrace((i * 100, 1, 0)) for i in range(10)]
        viewer = TileViewer(Trace("k", (5000, 8, 1), [""], 1, traced, {}))
        assert viewer.story["listed"] and viewer.story["shape"] == [8, 2, 1]
        assert viewer.story["cells"][9] == [1, 1, 0]
        ElementTree.fromstring(viewer.svg())


def test_what_a_front_end_loads_is_small_and_complete_in_itself(shown):
    esm, css = shown._esm, shown._css
    assert len(esm.encode()) < 50_000 and len(css.encode()) < 12_000
    assert "import " not in esm and "import(" not in esm and "@import" not in css
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", esm + css)
    for selector in re.findall(r"^([^@\s/*}][^{]*)\{", css, flags=re.MULTILINE):
        assert all(re.match(r"(body\[[^]]*\] )?\.plw-", part.strip()) for part in selector.split(",\n")), selector
