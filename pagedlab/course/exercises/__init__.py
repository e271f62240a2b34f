"""The exercises, one module a lesson. `find` gives one by its id; `reference` our own implementation of it."""

import difflib
import importlib

from pagedlab.course.promise import Exercise

MODULES = {
    "blocks_needed": "l00",
    "attend": "l01",
    "growing_cache": "l01",
    "generate_cached": "l01",
    "kv_bytes_per_token": "l02",
    "static_cache": "l02",
    "waste_breakdown": "l02",
    "block_allocator": "l03",
    "slot_mapping": "l04",
    "write_kv": "l04",
    "gather_kv": "l04",
    "element_offset": "l04",
    "merge_partials": "l05",
    "paged_attention": "l05",
    "fork_and_copy_on_write": "l06",
    "prefix_hash_chain": "l06",
    "prefix_cache": "l06",
    "scheduler": "l07",
    "chunked_prefill": "l07",
    "kv_write_kernel": "l08",
    "paged_decode_kernel_step_1": "l09",
    "paged_decode_kernel_step_2": "l09",
    "paged_decode_kernel": "l09",
    "choose_num_splits": "l10",
    "merge_splits_kernel": "l10",
    "occupancy": "l11",
    "decode_roofline": "l11",
}


def find(exercise_id: str) -> Exercise:
    """Raises ValueError, naming the nearest ids, when there is no such exercise."""
    if exercise_id not in MODULES:
        near = difflib.get_close_matches(str(exercise_id), MODULES, n=3) or list(MODULES)
        raise ValueError(f"there is no exercise {exercise_id!r}; did you mean {' or '.join(map(repr, near))}?")
    module = importlib.import_module(f"pagedlab.course.exercises.{MODULES[exercise_id]}")
    return next(exercise for exercise in module.EXERCISES if exercise.id == exercise_id)


def reference(exercise_id: str):
    module, name = find(exercise_id).reference.split(":")
    return getattr(importlib.import_module(module), name)
