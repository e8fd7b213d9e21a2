"""Times the batches of a worker, for the receipt and to end a batch that hangs."""

from __future__ import annotations

import contextlib
import faulthandler
import time

SLOWER = 20
"""A batch that takes this many times the predicted seconds counts as hung."""


class Watch:
    """Seconds and cost of computed batches, and the timer that ends the process."""

    def __init__(self, stall_seconds: float, stacks: int) -> None:
        """`stacks` is the descriptor of the file for the stacks of a hung process."""
        self.started = time.monotonic()
        self.busy_seconds = 0.0
        self.cost_run = 0
        self._stall_seconds = stall_seconds
        self._stacks = stacks
        self.done_at = 0.0
        """When the last batch was complete."""
        self._first = (0.0, 0)
        """Seconds and cost of the first batch, which includes one-time work."""

    def arm(self, cost: int) -> None:
        """Restart the timer for all batches on the device. It fires even if C code holds the
        interpreter."""
        self.arm_for(max(self._stall_seconds, SLOWER * self._predicted(cost)))

    def arm_for(self, seconds: float) -> None:
        """Restart the timer, to fire after `seconds`."""
        # The timer is a thread. If memory is too short to start it (a limit on addresses, as some
        # schedulers set), this batch is not timed; the next one is tried again.
        with contextlib.suppress(RuntimeError):
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._stacks)

    def done(self, cost: int, launched: float) -> None:
        """Record that a batch launched at `launched` is complete; call in order.

        The device may have computed the batch before it for a part of that time.
        """
        now = time.monotonic()
        self.busy_seconds += max(0.0, now - max(launched, self.done_at))
        self.cost_run += cost
        self.done_at = now
        if not self._first[1]:
            self._first = (self.busy_seconds, self.cost_run)

    def _predicted(self, cost: int) -> float:
        seconds, cost_run = self.busy_seconds, self.cost_run
        if cost_run > self._first[1]:  # later batches give the better speed
            seconds, cost_run = seconds - self._first[0], cost_run - self._first[1]
        return cost * seconds / cost_run if cost_run else 0.0
