"""What a learner looks at: small live pictures bound to live Python objects."""

from pagedlab.widgets.reservation import ReservationMap

__all__ = ["ReservationMap"]
