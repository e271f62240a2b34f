import os

import pytest

from pagedlab.gpu import mode

# Before torch is imported: its threads wait for each other asleep, not spinning. Other work runs beside the tests, and
# a spinning thread that waits for a descheduled one makes tiny operations many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def smollm():
    """The course's model in float32, loaded once for the whole run (fetched first where it is missing)."""
    from pagedlab.model.load import load

    return load()


def pytest_configure(config):
    """Kernels are interpreted, before anything imports Triton; `pytest -m gpu` is the run that compiles them."""
    if config.option.markexpr != "gpu":
        mode.interpret()
