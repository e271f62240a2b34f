"""The occupancy explorer: a kernel really compiled for a GPU, and how many blocks of it one multiprocessor holds.

The choices (target, warps, stages, tile) change what the compiler makes of the kernel, so each of them is compiled when
it is asked for. That takes a second or two and happens beside the notebook, which stays alive.
"""

import threading
from collections.abc import Mapping, Sequence

import traitlets

from pagedlab.cache.allocator import whole_number
from pagedlab.errors import PagedLabError
from pagedlab.gpu import carry, targets
from pagedlab.gpu.compiled import CompiledKernel, CompileError, compile_many
from pagedlab.gpu.occupancy import Occupancy
from pagedlab.table import TextTable
from pagedlab.widgets.base import CourseWidget, css, esm
from pagedlab.widgets.look import spoken_list
from pagedlab.widgets.occupancy_layout import KIB, chart
from pagedlab.widgets.occupancy_picture import picture
from pagedlab.widgets.occupancy_story import (
    by_registers,
    by_shared_memory,
    error_text,
    figures,
    gpus_of,
    in_words,
    limiters,
)
from pagedlab.widgets.reservation import WholeNumber

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
PATIENCE = 300  # seconds that `wait` waits
CHOICES = ("target", "num_warps", "num_stages", "tile")


class OccupancyExplorer(CourseWidget):
    """Compile a kernel for a GPU that need not be there, and see what fits on a multiprocessor, and why not more.

    `kernel`: a `@triton.jit` kernel, for example your own; without it the package's `paged_decode_kernel`, with heads
    of 128 float16 numbers, 4 query heads to a KV head and blocks of 16. `arguments`: by parameter name, as for a
    launch.
    `reference`: a second kernel to be drawn beside it; its `reference_arguments` are the same if not given.
    `target`, `num_warps`, `num_stages`, `tile`: where to begin; `targets`, `warps`, `stages`, `tiles`: what can be
    chosen. The tile takes the place of the argument `tile_argument`; without such an argument there is none to choose.

    The first choice is compiled before the constructor returns. After that the four can be set from Python and follow
    what is clicked, and compiling goes on in another thread: `wait()` waits for it, `choose(num_warps=8)` sets and
    waits. `state` holds all that is drawn. What does not compile is told in `error` and in the picture.
    """

    _esm = esm("occupancy_drawing", "occupancy")
    _css = css("occupancy")

    target = traitlets.Unicode(help="The architecture that is compiled for").tag(sync=True)
    num_warps = WholeNumber(4, help="Warps of a block").tag(sync=True)
    num_stages = WholeNumber(3, help="Stages of the loop that loads ahead").tag(sync=True)
    tile = WholeNumber(None, allow_none=True, help="Tokens that a step takes, or None").tag(sync=True)
    state = traitlets.Dict(read_only=True, help="All that is drawn").tag(sync=True)
    choices = traitlets.Dict(read_only=True, help="What can be chosen").tag(sync=True)

    def __init__(
        self,
        kernel=None,
        arguments: Mapping[str, object] | None = None,
        *,
        reference=None,
        reference_arguments: Mapping[str, object] | None = None,
        target: str = "sm_80",
        num_warps: int = 4,
        num_stages: int = 3,
        tile: int | None = None,
        targets: Sequence[str] = TARGETS,
        warps: Sequence[int] = (1, 2, 4, 8),
        stages: Sequence[int] = (1, 2, 3, 4, 5),
        tiles: Sequence[int] = (16, 32, 64, 128),
        tile_argument: str = "TILE",
    ):
        self._kernels = _read_kernels(kernel, arguments, reference, reference_arguments)
        self._tile_argument = tile_argument
        has_tile = any(tile_argument in arguments for _, _, arguments in self._kernels)
        if tile is None and has_tile:
            given = next(a[tile_argument] for _, _, a in self._kernels if tile_argument in a)
            tile = whole_number(f"the argument {tile_argument}", given, at_least=1)
        if tile is not None and not has_tile:
            known = spoken_list(sorted(self._kernels[0][2]))
            raise ValueError(f"tile is {tile}, but there is no argument {tile_argument!r}; the arguments are {known}")
        self._compiled: list[CompiledKernel | None] = []
        self._lock = threading.RLock()  # of the three below, and of `state`
        self._settled = threading.Condition(self._lock)
        self._asked = self._answered = 0  # numbers of choices: the newest one, and the newest that is compiled
        self._worker: threading.Thread | None = None
        self._ready = False
        super().__init__()
        self.set_trait("choices", _read_choices(target, num_warps, num_stages, tile, targets, warps, stages, tiles))
        self.target, self.num_warps, self.num_stages, self.tile = target, num_warps, num_stages, tile
        self._ready = True
        self._show(self._choice(), self._compile(self._choice()))

    # What is shown.

    @property
    def busy(self) -> bool:
        """Whether a choice is still being compiled."""
        with self._lock:
            return self._asked != self._answered

    @property
    def compiled(self) -> CompiledKernel | None:
        """The first kernel as it was compiled last; None if that failed."""
        return self._compiled[0]

    @property
    def occupancy(self) -> Occupancy | None:
        return self.compiled and self.compiled.occupancy

    @property
    def error(self) -> str:
        """Why the first kernel cannot be had, or ""."""
        return self.state["kernels"][0]["error"]

    # Choosing.

    def choose(self, **choice) -> "OccupancyExplorer":
        """`choose(target="sm_90", tile=32)`: set some of the four, wait until they are compiled, return the widget."""
        unknown = [name for name in choice if name not in CHOICES]
        if unknown:
            raise TypeError(f"{unknown[0]!r} cannot be chosen; these can: {spoken_list(CHOICES)}")
        for name, value in choice.items():  # all of them, or none
            self._check(name, value)
        with self._lock:
            for name, value in choice.items():
                setattr(self, name, value)
        return self.wait()

    def wait(self, seconds: float = PATIENCE) -> "OccupancyExplorer":
        """Until what was chosen last is compiled. TimeoutError if that takes longer."""
        with self._settled:
            if not self._settled.wait_for(lambda: self._asked == self._answered, seconds):
                raise TimeoutError(f"still compiling after {seconds:g} s")
        return self

    @traitlets.validate(*CHOICES)
    def _check_choice(self, proposal):
        self._check(proposal["trait"].name, proposal["value"])
        return proposal["value"]

    def _check(self, name: str, value) -> None:
        allowed = [each["value"] for each in self.choices[name]] or [None]
        if value not in allowed:
            raise traitlets.TraitError(
                f"{name} is {value!r}; it can be {spoken_list([repr(one) for one in allowed], 20)}"
            )

    @traitlets.observe(*CHOICES)
    def _chosen(self, change):
        if not self._ready:
            return
        with self._lock:
            self._asked += 1
            self.set_trait("state", {**self.state, "busy": True, "choice": self._choice()})
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="compiling", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        """In a thread: compile the newest choice, until there is no newer one. An older one is never shown."""
        while True:
            with self._lock:
                if self._asked == self._answered:
                    self._worker = None
                    self._settled.notify_all()
                    return
                number, choice = self._asked, self._choice()
            found = self._compile(choice)
            with self._lock:
                if number == self._asked:
                    self._show(choice, found)
                    self._answered = number

    def _choice(self) -> dict:
        return {name: getattr(self, name) for name in CHOICES}

    def _compile(self, choice: dict) -> list:
        """For each kernel a CompiledKernel, or the error."""
        options = {"num_warps": choice["num_warps"], "num_stages": choice["num_stages"]}
        jobs = []
        for _, kernel, arguments in self._kernels:
            if self._tile_argument in arguments:
                arguments = {**arguments, self._tile_argument: choice["tile"]}
            jobs.append((kernel, arguments, choice["target"], options))
        try:
            return compile_many(jobs, keep_errors=True)
        except Exception as error:  # whatever it is, the widget says so and can be used on
            return [error] * len(jobs)

    def _show(self, choice: dict, found: list) -> None:
        self._compiled = [_figures_of(one) for one in found]
        told = []
        for (label, _, _), one, compiled in zip(self._kernels, found, self._compiled, strict=True):
            error = error_text(one, isinstance(one, PagedLabError)) if isinstance(one, Exception) else ""
            told.append({"label": label, "error": error, "figures": compiled and figures(compiled)})
        drawn = [at for at, compiled in enumerate(self._compiled) if compiled]
        state = {"busy": False, "choice": choice, "shown": choice, "kernels": told, "drawn": drawn}
        state["charts"] = _charts([self._compiled[at] for at in drawn])
        state["says"] = [in_words(each["label"], each) for each in told]
        self.set_trait("state", state)

    # In words, as a picture, as a table.

    def headline(self) -> str:
        shown = self.state["shown"]
        gpus = gpus_of(shown["target"])
        parts = [
            shown["target"] + (f" ({gpus})" if gpus else ""),
            f"{shown['num_warps']} {'warp' if shown['num_warps'] == 1 else 'warps'}",
            f"{shown['num_stages']} {'stage' if shown['num_stages'] == 1 else 'stages'}",
        ]
        return ", ".join(parts + ([f"a tile of {shown['tile']}"] if shown["tile"] is not None else []))

    def sentence(self) -> str:
        busy = " Another choice is being compiled." if self.state["busy"] else ""
        return f"OccupancyExplorer for {self.headline()}. {' '.join(self.state['says'])}{busy}"

    def svg(self) -> str:
        return picture(self.state, f"For {self.headline()}")

    def table(self) -> TextTable:
        """A row for each kernel."""
        heads = ["kernel", "registers", "spill B", "shared B", "blocks per SM", "warps", "limited by", "lifted by"]
        rows = []
        for told in self.state["kernels"]:
            f = told["figures"]
            if f is None:
                rows.append([told["label"], *[None] * 5, "", told["error"]])
                continue
            figures_ = [f["registers"], f["spill"], f["shared"], f["blocks"], f["warps"]]
            rows.append([told["label"], *figures_, limiters(f), told["error"] or f["lift"]])
        return TextTable(f"For {self.headline()}", heads, rows)


def _figures_of(found) -> CompiledKernel | None:
    """What there is of a compiled kernel; also of one that compiles and cannot start."""
    if isinstance(found, CompileError):
        return found.compiled
    return None if isinstance(found, Exception) else found


def _charts(compiled: Sequence[CompiledKernel]) -> list[dict]:
    if not compiled:
        return []
    blocks = [one.occupancy.blocks_per_sm for one in compiled]
    registers = [(by_registers(one), one.registers, at) for one, at in zip(compiled, blocks, strict=True)]
    shared = [(by_shared_memory(one), one.shared_bytes, at) for one, at in zip(compiled, blocks, strict=True)]
    target = compiled[0].target
    return [
        chart("registers a thread", 1, target.max_registers_per_thread, registers),
        chart("KiB of shared memory a block", KIB, target.max_shared_per_block, shared),
    ]


def _read_kernels(kernel, arguments, reference, reference_arguments) -> list[tuple[str, object, dict]]:
    """(label, kernel, arguments) of one or two kernels."""
    if kernel is None:
        if arguments is not None or reference is not None:
            raise ValueError("arguments and reference belong to a kernel: pass it as the first argument")
        kernel, arguments = _decode_kernel()
    if not carry.is_kernel(kernel):
        raise ValueError(f"{kernel!r} is not what @triton.jit makes of a function")
    if arguments is None:
        raise ValueError(
            "arguments are missing: what the kernel would be launched with, by parameter name, as in "
            "`_, arguments, _ = decode_launch(q, key_cache, value_cache, block_tables, seq_lens)`"
        )
    for what, given in (("arguments", arguments), ("reference_arguments", reference_arguments)):
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(f"{what} are {given!r}; expected a dictionary from parameter names to values")
    name = carry.function(kernel).__name__
    if reference is None:
        return [(name, kernel, dict(arguments))]
    if not carry.is_kernel(reference):
        raise ValueError(f"reference is {reference!r}; it must be what @triton.jit makes of a function")
    other = dict(arguments if reference_arguments is None else reference_arguments)
    return [(f"yours ({name})", kernel, dict(arguments)), ("the reference", reference, other)]


def _decode_kernel() -> tuple[object, dict]:
    """The package's kernel with what a model of 32 heads and 8 KV heads would launch it with."""
    import torch

    from pagedlab.kernels.decode import decode_launch, paged_decode_kernel

    key_cache, value_cache = (torch.empty(4, 8, 16, 128, dtype=torch.float16) for _ in range(2))
    q = torch.empty(1, 32, 128, dtype=torch.float16)
    tables, lens = torch.zeros(1, 16, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    _, arguments, _ = decode_launch(q, key_cache, value_cache, tables, lens)
    return paged_decode_kernel, arguments


def _read_choices(target, num_warps, num_stages, tile, target_names, warps, stages, tiles) -> dict:
    """What can be chosen, with what it is called; where the widget begins is always among it."""
    names = [targets.find(name).name for name in dict.fromkeys([*target_names, target])]

    def numbers(name: str, given: Sequence[int], first: int) -> list[dict]:
        for each in (*given, first):
            if isinstance(each, bool) or not isinstance(each, int) or each < 1:
                raise ValueError(f"{name} is {each!r}; expected a whole number of at least 1")
        return [{"value": each, "name": f"{each}"} for each in sorted({*given, first})]

    return {
        "target": [{"value": name, "name": name, "gpus": gpus_of(name)} for name in names],
        "num_warps": numbers("num_warps", warps, num_warps),
        "num_stages": numbers("num_stages", stages, num_stages),
        "tile": [] if tile is None else numbers("tile", tiles, tile),
    }
