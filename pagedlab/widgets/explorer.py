"""The block-table explorer: block tables on the left, the pool on the right, and a recorded story to step through.

It draws what a `pagedlab.cache.recorder.Recorder` has seen, of any allocator and any tables, the learner's included.
"""

from collections.abc import Iterable, Mapping
from textwrap import wrap

import traitlets

from pagedlab.cache.recorder import PoolState, Recorder, Step
from pagedlab.table import TextTable
from pagedlab.widgets.base import CourseWidget, css, esm
from pagedlab.widgets.explorer_moment import (
    Holder,
    block_number,
    filled,
    holders,
    kept_words,
    pool_state,
    slot_arithmetic,
)
from pagedlab.widgets.explorer_picture import block_picture
from pagedlab.widgets.explorer_story import story
from pagedlab.widgets.look import plural, spoken_list
from pagedlab.widgets.reservation import WholeNumber

MAX_BLOCKS = 50_000  # cells of 4 pixels; more could be neither seen nor drawn quickly
MAX_STEPS = 20_000
LINE_LENGTH = 90  # of the table: what a notebook's column holds
MOST_WORDS = 28  # characters of a block's words in the table


class BlockTableExplorer(CourseWidget):
    """A story of blocks, one step at a time, forwards and backwards.

    `recording`: a `Recorder`, or its `steps`, or a single `PoolState`; then there is one step only.
    `step`: where to begin; -1 (the default) is the last step. `selected`: as the trait.

    `step` and `selected` can be set from Python and follow what is done with mouse and keyboard. `selected` is
    {"sequence": "A", "position": 37} for a token, {"block": 7} for a block of the pool, {} for nothing. `state` is the
    pool after the step, a `PoolState`. `story` holds all that is drawn; it crosses to the browser once.
    """

    _esm = esm("explorer_layout", "explorer_play", "explorer_drawing", "explorer_over", "explorer")
    _css = css("explorer")

    step = WholeNumber(0, help="The step shown, from 0").tag(sync=True)
    selected = traitlets.Dict(help="A token, a block, or nothing").tag(sync=True)
    story = traitlets.Dict(read_only=True, help="All that is drawn").tag(sync=True)

    def __init__(
        self, recording: Recorder | PoolState | tuple[Step, ...], *, step: int = -1, selected: dict | None = None
    ):
        self._recording = recording
        self._steps = _read_steps(recording)
        super().__init__()
        self.set_trait("story", story(self._steps))
        self.step = len(self._steps) + step if step < 0 else step
        self.selected = selected or {}

    @classmethod
    def of_tables(cls, tables: Mapping[str, object], *, selected: dict | None = None, **pool) -> "BlockTableExplorer":
        """One moment, put together by hand: see `pool_state` for what `tables` and `pool` may be."""
        return cls(pool_state(tables, **pool), selected=selected)

    def refresh(self) -> None:
        """Take in what has been recorded since, and go to the newest step."""
        self._steps = _read_steps(self._recording)
        self.set_trait("story", story(self._steps))
        self.step = len(self._steps) - 1

    @property
    def steps(self) -> tuple[Step, ...]:
        return self._steps

    @property
    def state(self) -> PoolState:
        """The pool after the step that is shown."""
        return self._steps[self.step].state

    @traitlets.validate("step")
    def _check_step(self, proposal):
        if not 0 <= proposal["value"] < len(self._steps):
            raise traitlets.TraitError(f"step is {proposal['value']}; the story has steps 0 to {len(self._steps) - 1}")
        return proposal["value"]

    @traitlets.validate("selected")
    def _check_selected(self, proposal):
        chosen = proposal["value"]
        last = self._steps[-1].state
        if not chosen:
            return {}
        if set(chosen) == {"block"} and type(chosen["block"]) is int:
            if 0 <= chosen["block"] < last.num_blocks:
                return chosen
            raise traitlets.TraitError(
                f"selected is block {chosen['block']}; the pool has blocks 0 to {last.num_blocks - 1}"
            )
        if set(chosen) == {"sequence", "position"} and type(chosen["position"]) is int:
            names = [sequence.name for sequence in last.sequences]
            if chosen["sequence"] not in names:
                raise traitlets.TraitError(
                    f"selected is a token of {chosen['sequence']!r}; the sequences are {spoken_list(names) or 'none'}"
                )
            if chosen["position"] >= 0:
                return chosen
        raise traitlets.TraitError(
            f'selected is {chosen!r}; use {{"sequence": "A", "position": 37}}, {{"block": 7}}, or {{}} for nothing'
        )

    def sentence(self) -> str:
        step, state = self._steps[self.step], self.state
        where = f" at step {self.step:,} of {len(self._steps) - 1:,}: {step.caption}" if len(self._steps) > 1 else ":"
        parts = [f"BlockTableExplorer{where}"]
        free = sum(count <= 0 for count in state.ref_counts)
        cached = f", {len(state.cached_blocks):,} of them cached" if state.cached_blocks else ""
        parts.append(f"{free:,} of {plural(state.num_blocks, 'block')} {'is' if free == 1 else 'are'} free{cached}.")
        for sequence in [s for s in state.sequences if s.blocks][:8]:
            blocks = spoken_list([str(block_number(block)) for block in sequence.blocks])
            word = "block" if len(sequence.blocks) == 1 else "blocks"
            parts.append(f"{sequence.name} has {plural(sequence.num_tokens, 'token')} in {word} {blocks}.")
        parts += [says for _, says in self.story["steps"][self.step]["problems"][:4]]
        parts.append(self._selection_in_words())
        return " ".join(part for part in parts if part)

    def _selection_in_words(self) -> str:
        state = self.state
        if "block" in self.selected:
            return describe_block(state, self.selected["block"])
        if not self.selected:
            return ""
        name, position = self.selected["sequence"], self.selected["position"]
        for sequence in state.sequences:
            if sequence.name == name and position < min(
                sequence.num_tokens, len(sequence.blocks) * (state.block_size or 0)
            ):
                return f"Token {position} of {name}: {slot_arithmetic(state, name, position)}."
        return f"Token {position} of {name} has no slot at this step."

    def svg(self) -> str:
        before = self._steps[self.step - 1].state if self.step else None
        step = self._steps[self.step]
        moment = step if len(self._steps) > 1 else step.state
        return block_picture(
            moment,
            before=before,
            selected=self.selected,
            moments=(each.state for each in self._steps),
            kept=kept_words(self._steps[: self.step + 1]),
        )

    def table(self) -> TextTable:
        """One row a logical block: the block of the pool that it is, and what is in it."""
        state, size, rows = self.state, self.state.block_size or 0, []
        for i, sequence in enumerate(state.sequences):
            for logical, block in enumerate(sequence.blocks):
                first, has = logical * size, filled(state, Holder(i, logical))
                block = block_number(block)
                in_pool = 0 <= block < state.num_blocks
                words = "".join(sequence.texts[first : first + has]).replace("\n", "\u23ce").strip()
                words = words if len(words) <= MOST_WORDS else words[: MOST_WORDS - 1].rstrip() + "\u2026"
                rows.append(
                    [
                        *(sequence.name, logical, block),
                        f"{first} to {first + has - 1}" if has else "none",
                        f"{has} of {size}" if size else "",
                        state.ref_counts[block] if in_pool else None,
                        words,
                    ]
                )
        free = spoken_list([str(block) for block in state.free_blocks], at_most=16) or "none"
        order = ", next first" if state.free_order_known else ""
        if state.cached_blocks:
            free += f"; of these cached: {spoken_list([str(block) for block in state.cached_blocks], at_most=16)}"
        says = f"Step {self.step:,} of {len(self._steps) - 1:,}: {self._steps[self.step].caption}"
        title = "\n".join([*wrap(says, LINE_LENGTH), *wrap(f"Free{order}: {free}", LINE_LENGTH)])
        return TextTable(title, ["sequence", "logical", "block", "tokens", "filled", "ref count", "words"], rows)


def describe_block(state: PoolState, block: int) -> str:
    """One block of the pool in words: who holds it, and how much of it."""
    count = state.ref_counts[block]
    held = holders(state).get(block, [])
    if not held:
        kept = "free, but the cache finds what it holds" if block in state.cached_blocks else "free"
        return f"Block {block} is {'in use' if count > 0 else kept}."
    parts = [f"logical block {holder.logical} of {state.sequences[holder.sequence].name}" for holder in held]
    return f"Block {block} is {spoken_list(parts)}; its ref count is {count}."


def _read_steps(recording) -> tuple[Step, ...]:
    if isinstance(recording, PoolState):
        recording = (Step(0, "start", None, (), (), None, "One moment.", recording),)
    steps = getattr(recording, "steps", recording)
    steps = tuple(steps) if isinstance(steps, Iterable) else ()
    if not steps or not all(isinstance(step, Step) for step in steps):
        raise ValueError(f"expected a Recorder, its steps, or a PoolState; got {type(recording).__name__}")
    num_blocks = steps[-1].state.num_blocks
    if num_blocks > MAX_BLOCKS:
        raise ValueError(f"a pool of {num_blocks:,} blocks; the explorer draws {MAX_BLOCKS:,} at most")
    if len(steps) > MAX_STEPS:
        raise ValueError(f"{len(steps):,} steps; the explorer holds {MAX_STEPS:,} at most: pass steps[-{MAX_STEPS}:]")
    return steps
