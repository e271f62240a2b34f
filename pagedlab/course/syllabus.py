"""The fourteen lessons in order: what each is called, how long it takes, what it asks, what the learner builds.

Pure data, read by the progress map, the workspace and the command line. A lesson listed here may not be written yet:
`lessons_available()` gives those whose notebook ships with this copy of the course.
"""

from dataclasses import dataclass
from pathlib import Path

from pagedlab.errors import PagedLabError


@dataclass(frozen=True)
class Lesson:
    number: str  # "03"
    name: str  # "03_block_allocator": the notebook's file name without its ending
    title: str
    minutes: int
    question: str
    part: str
    exercises: tuple[str, ...]  # exercise ids, in the order the lesson asks them


PARTS = ("I. One request", "II. Pages", "III. The kernel", "IV. At scale")


def _lesson(part: int, name: str, title: str, minutes: int, question: str, *exercises: str) -> Lesson:
    return Lesson(name[:2], name, title, minutes, question, PARTS[part - 1], exercises)


LESSONS: tuple[Lesson, ...] = (
    _lesson(
        1,
        "00_start_here",
        "Start here",
        15,
        "Does everything work here, and what will I have built at the end?",
        "blocks_needed",
    ),
    _lesson(
        1,
        "01_incremental_decoding",
        "Incremental decoding",
        60,
        "Why keep K and V at all?",
        "attend",
        "growing_cache",
        "generate_cached",
    ),
    _lesson(
        1,
        "02_static_allocation",
        "Static allocation",
        60,
        "Why does a contiguous cache waste most of its memory?",
        "kv_bytes_per_token",
        "static_cache",
        "waste_breakdown",
    ),
    _lesson(
        2,
        "03_block_allocator",
        "The block allocator",
        75,
        "Who owns which block?",
        "block_allocator",
    ),
    _lesson(
        2,
        "04_block_table",
        "The block table",
        75,
        "How does token 37 find its slot?",
        "slot_mapping",
        "write_kv",
        "gather_kv",
        "element_offset",
    ),
    _lesson(
        2,
        "05_paged_attention",
        "Paged attention",
        90,
        "How do you attend over memory that isn't contiguous?",
        "merge_partials",
        "paged_attention",
    ),
    _lesson(
        2,
        "06_sharing",
        "Sharing",
        90,
        "How can two sequences own the same block?",
        "fork_and_copy_on_write",
        "prefix_hash_chain",
        "prefix_cache",
    ),
    _lesson(
        2,
        "07_continuous_batching",
        "Continuous batching",
        90,
        "Who runs in this step?",
        "scheduler",
        "chunked_prefill",
    ),
    _lesson(
        3,
        "08_gpu_memory_and_triton",
        "GPU memory and Triton",
        60,
        "What is close to the arithmetic and what is far?",
        "kv_write_kernel",
    ),
    _lesson(
        3,
        "09_paged_decode_kernel",
        "The paged decode kernel",
        90,
        "How does one kernel attend over pages?",
        "paged_decode_kernel_step_1",
        "paged_decode_kernel_step_2",
        "paged_decode_kernel",
    ),
    _lesson(
        3,
        "10_tiling_and_split_kv",
        "Tiling and split KV",
        75,
        "How is the work cut, and who merges the pieces?",
        "choose_num_splits",
        "merge_splits_kernel",
    ),
    _lesson(
        3,
        "11_occupancy_and_roofline",
        "Occupancy and roofline",
        75,
        "How full is the GPU, and does that matter?",
        "occupancy",
        "decode_roofline",
    ),
    _lesson(
        4,
        "12_capacity_and_vision_tokens",
        "Capacity and vision tokens",
        60,
        "How many requests fit when every request carries a receipt photo?",
        "vision_tokens",
        "admit_by_peak_usage",
    ),
    _lesson(
        4,
        "13_beyond_one_gpu",
        "Beyond one GPU",
        60,
        "How do two devices share one block table, and where does vLLM take over?",
        "shard_kv_heads",
        "agree_num_blocks",
    ),
)


def shipped_lessons() -> Path:
    """The folder of the notebooks this copy of the course ships: inside the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "lessons"
    return inside if inside.is_dir() else package.parent / "lessons"


def lessons_available() -> tuple[Lesson, ...]:
    """The lessons whose notebook ships with this copy of the course, in order."""
    folder = shipped_lessons()
    return tuple(lesson for lesson in LESSONS if (folder / f"{lesson.name}.ipynb").is_file())


def find_lesson(text: str) -> Lesson:
    """The lesson meant by '3', '03', '03_block_allocator', '03_block_allocator.ipynb' or 'block_allocator'.

    Raises `PagedLabError` naming the lessons there are when none is meant.
    """
    wanted = text.strip().lower().removesuffix(".ipynb").replace("-", "_").replace(" ", "_")
    for lesson in LESSONS:
        names = {lesson.number, str(int(lesson.number)), lesson.name, lesson.name[3:]}
        if wanted in names:
            return lesson
    known = ", ".join(lesson.name for lesson in LESSONS)
    raise PagedLabError(f"There is no lesson {text!r}. The lessons are: {known}.")
