"""What goes wrong with model files."""

from pagedlab.errors import PagedLabError


class ModelFileError(PagedLabError):
    """A model file or directory that cannot be used. The message says what was expected and what was found."""
