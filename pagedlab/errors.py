"""The root of the errors this package raises on purpose: catch `PagedLabError` to catch them all."""


class PagedLabError(Exception):
    """Something a reader can act on. The message gives the numbers and a way out."""
