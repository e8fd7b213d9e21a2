"""Times the batches of a worker: for the receipt, and to end one that hangs."""

from __future__ import annotations

import contextlib
import faulthandler
import time

SLOWER = 20
"""A batch that takes this many times what was predicted hangs."""


class Watch:
    """How long the device was at work, on what; and the timer that ends the process."""

    def __init__(self, stall_seconds: float, stacks: int) -> None:
        """`stacks` is the descriptor of the file that gets the stacks before a hang is ended."""
        self.started = time.monotonic()
        self.busy_seconds = 0.0
        self.cost_run = 0
        self._stall_seconds = stall_seconds
        self._stacks = stacks
        self.done_at = 0.0
        """When the last batch was complete."""
        self._first = (0.0, 0)
        """Seconds and cost of the first batch, in which much happens that never does again."""

    def arm(self, cost: int) -> None:
        """Restart the timer for all that is on the device: it fires even when C code holds the
        interpreter."""
        self.arm_for(max(self._stall_seconds, SLOWER * self._predicted(cost)))

    def arm_for(self, seconds: float) -> None:
        """Restart the timer, to fire after `seconds`."""
        # The timer is a thread. Where memory is so short that none can start (a limit on addresses,
        # as some schedulers set), this batch goes unwatched, and the next one is watched again.
        with contextlib.suppress(RuntimeError):
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._stacks)

    def done(self, cost: int, launched: float) -> None:
        """Note that a batch which was launched then is complete now; call in order.

        The device may have been busy with the batch before it for a part of that time.
        """
        now = time.monotonic()
        self.busy_seconds += max(0.0, now - max(launched, self.done_at))
        self.cost_run += cost
        self.done_at = now
        if not self._first[1]:
            self._first = (self.busy_seconds, self.cost_run)

    def _predicted(self, cost: int) -> float:
        seconds, cost_run = self.busy_seconds, self.cost_run
        if cost_run > self._first[1]:  # the others tell better how fast this device is
            seconds, cost_run = seconds - self._first[0], cost_run - self._first[1]
        return cost * seconds / cost_run if cost_run else 0.0
