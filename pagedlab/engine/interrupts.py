"""Ctrl-C, or the stop button of a notebook, at a moment of our choosing.

Python raises KeyboardInterrupt between any two instructions, also halfway through handing a block from one table to
another. An engine step therefore holds the signal back, and asks between the layers of the model whether it has come:
there a step can be given up without a trace.
"""

import signal
import threading


class HeldInterrupt:
    """`with HeldInterrupt() as interrupt:` an interrupt waits until `raise_if_any()` or the end of the block.

    Python runs signal handlers in the main thread alone, so elsewhere there is nothing to hold back.
    """

    def __init__(self):
        self._received = None
        self._outer = None

    def __enter__(self) -> "HeldInterrupt":
        if threading.current_thread() is threading.main_thread():
            outer = signal.getsignal(signal.SIGINT)
            if callable(outer):  # ignored, or handled outside Python: nothing would be raised
                self._outer = outer
                signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, *exception) -> None:
        if self._outer is not None:
            signal.signal(signal.SIGINT, self._outer)
            self.raise_if_any()

    def raise_if_any(self) -> None:
        """Let a waiting interrupt go now: KeyboardInterrupt, or whatever the handler of before does."""
        if self._received is not None:
            received, self._received = self._received, None
            self._outer(*received)

    def _hold(self, *received) -> None:
        self._received = received
