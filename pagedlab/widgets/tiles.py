"""The tile viewer: the grid of programs of one kernel launch, and what each step of a program reads and writes.

It draws what `pagedlab.gpu.trace.trace` has seen in Triton's interpreter, of any kernel, the learner's included.
"""

from collections.abc import Sequence
from textwrap import wrap

import traitlets

from pagedlab.cache.allocator import whole_number
from pagedlab.gpu.trace import Trace
from pagedlab.table import TextTable
from pagedlab.widgets.base import CourseWidget, css, esm
from pagedlab.widgets.look import letters, spoken_list
from pagedlab.widgets.reservation import WholeNumber
from pagedlab.widgets.tiles_picture import lanes_in_words, picture
from pagedlab.widgets.tiles_story import Names, program_name, read_pool, story

MAX_ACCESSES = 20_000
MAX_PROGRAMS = 900
MAX_RUNS = 200_000  # of slots, in all accesses
LINE_LENGTH = 90  # of a table's title


class TileViewer(CourseWidget):
    """One launch of a kernel, program by program and step by step, forwards and backwards.

    `trace`: what `pagedlab.gpu.trace.trace(kernel, grid, arguments)` returned.
    `block_tables` `[num_seqs, max_blocks]` and `seq_lens` `[num_seqs]`: whose the blocks of the paged cache are.
    Without them the pool is drawn alone.
    `program`: the pid to begin with; `step`: where in it. `rows`: how many entries of the watched variables to show.
    `axes`: what the three axes of the grid count. `key_argument`, `value_argument`, `tables_argument`: what the kernel
    calls these tensors.

    `program` ([x, y, z]), `step` (an index into the program's steps) and `access` (an index into the step's reads and
    writes, or -1 for all of them) can be set from Python and follow what is done with mouse and keyboard. `story`
    holds all that is drawn; it crosses to the browser once.
    """

    _esm = esm("tiles_layout", "tiles_drawing", "tiles")
    _css = css("tiles")

    program = traitlets.List(WholeNumber(), help="The pid of the program shown: [x, y, z]").tag(sync=True)
    step = WholeNumber(0, help="The step shown, from 0").tag(sync=True)
    access = WholeNumber(-1, help="Which read or write of the step is in the light, or -1 for all").tag(sync=True)
    story = traitlets.Dict(read_only=True, help="All that is drawn").tag(sync=True)

    def __init__(
        self,
        trace: Trace,
        *,
        block_tables=None,
        seq_lens=None,
        program: Sequence[int] | int | None = None,
        step: int = 0,
        rows: int | None = None,
        axes: Sequence[str] = ("x", "y", "z"),
        key_argument: str = "key_cache",
        value_argument: str = "value_cache",
        tables_argument: str = "block_tables",
    ):
        _check_trace(trace)
        if rows is not None:
            rows = whole_number("rows", rows, at_least=1)
        names = Names(key_argument, value_argument, tables_argument)
        axes = [*axes, *"xyz"[len(axes) :]][:3]
        told = story(trace, read_pool(trace, names, block_tables, seq_lens), names, axes, rows)
        if (
            runs := sum(len(a["runs"]) for p in told["programs"] for s in p["steps"] for a in s["accesses"])
        ) > MAX_RUNS:
            raise ValueError(f"{runs:,} runs of slots to draw; {MAX_RUNS:,} at most: {_FEWER}")
        self._told = told
        self._trace = trace
        super().__init__()
        self.set_trait("story", told)
        first = told["programs"][0]["pid"]
        pid = [program] if isinstance(program, int) else program
        self.program = first if pid is None else [*pid, 0, 0, 0][: max(3, len(pid))]
        self.step = step

    @property
    def trace(self):
        return self._trace

    @property
    def now(self) -> dict:
        """The step that is shown: its label, what it does in words, its accesses, the watched variables."""
        return self._chosen["steps"][self.step]

    @property
    def _index(self) -> int:
        return next(at for at, each in enumerate(self._told["programs"]) if each["pid"] == list(self.program))

    @property
    def _chosen(self) -> dict:
        return self._told["programs"][self._index]

    @traitlets.validate("program")
    def _check_program(self, proposal):
        wanted = [*proposal["value"], 0, 0, 0][: max(3, len(proposal["value"]))]
        traced = [each["pid"] for each in self._told["programs"]]
        if wanted in traced:
            return wanted
        size = self._told["grid"]
        if len(wanted) > 3 or not all(0 <= at < most for at, most in zip(wanted, size, strict=True)):
            raise traitlets.TraitError(f"program is {tuple(proposal['value'])}; the grid is {tuple(size)}")
        names = spoken_list([str(tuple(pid)) for pid in traced])
        raise traitlets.TraitError(f"program {tuple(wanted)} was not traced; traced were {names}")

    @traitlets.observe("program")
    def _keep_the_step(self, change):
        """The same step of another program, as far as it has one."""
        self.step = min(self.step, len(self._chosen["steps"]) - 1)
        self.access = -1

    @traitlets.observe("step")
    def _all_of_it(self, change):
        self.access = -1

    @traitlets.validate("step")
    def _check_step(self, proposal):
        last = len(self._chosen["steps"]) - 1
        if not 0 <= proposal["value"] <= last:
            raise traitlets.TraitError(f"step is {proposal['value']}; this program has steps 0 to {last}")
        return proposal["value"]

    @traitlets.validate("access")
    def _check_access(self, proposal):
        count = len(self.now["accesses"])
        if not -1 <= proposal["value"] < count:
            raise traitlets.TraitError(
                f"access is {proposal['value']}; this step has {count}: -1 for all, or below {count}"
            )
        return proposal["value"]

    def headline(self) -> str:
        name = program_name(self._chosen, self._told["axes"], self._told["grid"])
        return name[0].upper() + name[1:]

    def _says(self) -> str:
        steps = len(self._chosen["steps"])
        where = f"Step {self.step} of {steps - 1}, {self.now['label']}" if steps > 1 else "Its only step"
        return f"{where}: {self.now['says']}."

    def sentence(self) -> str:
        told = self._told
        count = len(told["programs"])
        grid = " x ".join(str(size) for size in told["grid"])
        parts = [
            f"TileViewer of {count:,} programs of a grid of {grid}."
            if count > 1
            else f"TileViewer of one program of a grid of {grid}."
        ]
        parts += [f"{self.headline()}.", self._says()]
        sequence = self._chosen["sequence"]
        if sequence >= 0:
            pool = told["pool"]
            blocks = spoken_list([str(block) for block in pool["tables"][sequence]]) or "no blocks"
            parts.append(f"Sequence {letters(sequence)} has {pool['lens'][sequence]:,} tokens in blocks {blocks}.")
        if self.access >= 0:
            each = self.now["accesses"][self.access]
            does = "reads" if each["kind"] == "load" else "writes"
            parts.append(f"Line {each['line']} {does} {each['tensor']}: {each['says']}; {lanes_in_words(each)}.")
        for name, _, new in self.now["values"]:
            parts.append(f"{name}: {', '.join(new)}.")
        return " ".join(parts)

    def svg(self) -> str:
        return picture(self._told, self._index, self.step, self.access, self.headline(), self._says())

    def table(self) -> TextTable:
        """A row for each read and write of the step."""
        rows = [
            [
                each["line"],
                "read" if each["kind"] == "load" else "write",
                each["tensor"],
                lanes_in_words(each),
                each["says"],
            ]
            for each in self.now["accesses"]
        ]
        title = "\n".join(line for says in (f"{self.headline()}.", self._says()) for line in wrap(says, LINE_LENGTH))
        values = "".join(f"\n{name}: {', '.join(new)}" for name, _, new in self.now["values"])
        return TextTable(title + values, ["line", "", "tensor", "lanes", "what"], rows)


_FEWER = "trace fewer programs, as in trace(kernel, grid, arguments, programs=[(0, 0, 0)])"


def _check_trace(trace: object) -> None:
    if not isinstance(trace, Trace):
        raise ValueError(
            "expected a Trace, as pagedlab.gpu.trace.trace(kernel, grid, arguments) returns; "
            f"got {type(trace).__name__}"
        )
    if not trace.programs:
        raise ValueError("the trace has no programs: was the grid empty, or programs=[]?")
    if len(trace.programs) > MAX_PROGRAMS:
        raise ValueError(f"{len(trace.programs):,} programs; the viewer shows {MAX_PROGRAMS} at most: {_FEWER}")
    count = sum(len(program.events) for program in trace.programs)
    if count > MAX_ACCESSES:
        raise ValueError(f"{count:,} reads and writes; the viewer holds {MAX_ACCESSES:,} at most: {_FEWER}")
