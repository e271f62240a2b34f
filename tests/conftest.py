import pytest


@pytest.fixture(scope="session")
def smollm():
    """The course's model in float32, loaded once for the whole run (fetched first where it is missing)."""
    from pagedlab.model.load import load

    return load()
