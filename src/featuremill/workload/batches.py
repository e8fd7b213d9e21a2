"""Make batches of records within a cost, and smaller batches after an out-of-memory error."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

GROW_AFTER = 32
"""Successful batches after which a lowered limit is doubled. So a record that needs far more memory
than its cost does not leave a whole shard with tiny batches. If memory is still short, the failed
attempt costs little beside the time of these batches."""


def make_batches(costs: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of row numbers, filled by best fit, each within `budget` where possible.

    A batch starts with the record of the highest remaining cost and continues with the highest that
    still fits (first-fit decreasing, one batch at a time): records of similar cost, and a few small
    ones at the end. Equal costs keep the order of rows, so a shard and a budget always give the
    same batches. A record above the budget is a batch alone. Time: a sort, and a step for each cost
    in a batch.
    """
    rows_of: dict[int, list[int]] = {}
    for row in range(len(costs) - 1, -1, -1):
        rows_of.setdefault(costs[row], []).append(row)  # the last row is taken first
    prices = sorted(rows_of)
    # For each cost: its own index while it has rows, else the index of a lower cost.
    cheaper = list(range(len(prices)))
    batches: list[list[int]] = []
    while (index := _with_rows(cheaper, len(prices) - 1)) >= 0:
        batch: list[int] = []
        room = max(budget, prices[index])
        while index >= 0:
            price, rows = prices[index], rows_of[prices[index]]
            num_taken = min(len(rows), room // price) if price else len(rows)
            batch += reversed(rows[-num_taken:])
            del rows[-num_taken:]
            if not rows:
                cheaper[index] = index - 1
            room -= num_taken * price
            index = _with_rows(cheaper, min(index, bisect_right(prices, room)) - 1)
        batches.append(batch)
    return batches


def _with_rows(cheaper: list[int], index: int) -> int:
    """Return the highest index up to `index` whose cost has rows, or -1; shorten the path to it."""
    price = index
    while price >= 0 and cheaper[price] != price:
        price = cheaper[price]
    while index > price:
        cheaper[index], index = price, cheaper[index]
    return price


class Batch(NamedTuple):
    """Rows that are computed together."""

    rows: list[int]
    cost: int
    budget: int
    """The highest allowed cost of the batch, at least its own cost."""
    is_alone: bool
    """Whether no other batch may be on the device, so that an error is this batch's own."""


class Queue:
    """The remaining batches in order; after out-of-memory errors, they are split."""

    def __init__(
        self, costs: Sequence[int], budget: int, unit: str, warn: Callable[[str], object]
    ) -> None:
        """Start an empty queue. `unit` is the unit of `costs`; `warn` gets at most one sentence."""
        self.num_oom = 0
        self._costs = costs
        self._budget = self._limit = budget
        self._unit = unit
        self._warn = warn
        self._num_succeeded = 0
        self._has_warned = False
        self._waiting: deque[tuple[list[int], bool]] = deque()

    def add(self, batches: Iterable[list[int]], is_alone: bool = False) -> None:
        self._waiting.extend((rows, is_alone) for rows in batches)

    def take(self) -> Batch | None:
        """Return the next batch, or None at the end."""
        if not self._waiting:
            return None
        rows, is_alone = self._waiting.popleft()
        pieces = make_batches([self._costs[row] for row in rows], self._limit)
        first, *others = ([rows[index] for index in piece] for piece in pieces)
        if left := [row for piece in others for row in piece]:
            # A small remainder joins the next batch; otherwise each cut would leave a tiny one.
            is_small = self.cost(left) < self._limit and not is_alone
            if is_small and self._waiting and not self._waiting[0][1]:
                left += self._waiting.popleft()[0]
            self._put_in_front([left], is_alone)
        cost = self.cost(first)
        # A record above the limit is still tried: the limit came from batches of many records. Its
        # budget is its own cost, so nothing is added to it.
        return Batch(first, cost, max(self._limit, cost), is_alone)

    def put_back(self, batch: Batch) -> None:
        """Put a batch that was not run back to the front."""
        self._put_in_front([batch.rows], batch.is_alone)

    def split(self, batch: Batch, is_out_of_memory: bool) -> bool:
        """Put a failed batch back in pieces that run alone; return False if it cannot be split.

        If memory ran out, the pieces have half the budget, and later batches too. After any other
        failure, each record runs alone.
        """
        self._num_succeeded = 0
        has_slack = is_out_of_memory and batch.budget > batch.cost  # it may have been padded
        is_last_attempt = len(batch.rows) == 1 and batch.is_alone and not has_slack
        if is_out_of_memory:
            self.num_oom += 1
            if len(batch.rows) > 1 or has_slack:
                self._lower(batch)
        if is_last_attempt:
            return False
        pieces = [batch.rows] if is_out_of_memory else [[row] for row in batch.rows]
        self._put_in_front(pieces, True)
        return True

    def ran(self) -> None:
        """Count a batch that succeeded."""
        self._num_succeeded += 1
        if self._num_succeeded >= GROW_AFTER:
            self._num_succeeded = 0
            self._limit = min(self._budget, 2 * self._limit)

    @property
    def cost_left(self) -> int:
        """The cost of all waiting batches."""
        return sum(self.cost(rows) for rows, _ in self._waiting)

    def cost(self, rows: Iterable[int]) -> int:
        return sum(self._costs[row] for row in rows)

    def _lower(self, batch: Batch) -> None:
        fits = -(-batch.budget // 2)
        if fits >= self._limit:
            return
        if not self._has_warned:
            self._has_warned = True
            self._warn(
                f"out of memory: a batch of up to {batch.budget:,} {self._unit} did not fit; "
                f"continuing with {fits:,} in a batch, and fewer if need be. To begin there, set "
                "the option for the size of a batch (such as batch_tokens) to that number."
            )
        self._limit = fits

    def _put_in_front(self, batches: list[list[int]], is_alone: bool) -> None:
        self._waiting.extendleft((rows, is_alone) for rows in reversed(batches))
