"""A progress bar for a batch of prompts, where somebody is looking."""

import sys


def progress_bar(total: int, wanted: bool):
    """A tqdm bar that counts finished prompts. Silent unless `wanted`, and in files and pipes."""
    from tqdm.auto import tqdm  # draws a widget in a notebook and text in a terminal

    return tqdm(total=total, desc="prompts", unit="", leave=False, disable=not (wanted and _somebody_is_looking()))


def _somebody_is_looking() -> bool:
    if "ipykernel" in sys.modules:
        from IPython import get_ipython

        if getattr(get_ipython(), "kernel", None) is not None:  # a notebook
            return True
    return sys.stderr is not None and sys.stderr.isatty()
