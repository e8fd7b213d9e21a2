"""Which records go to the device together, and how many of them once memory ran out."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

GROW_AFTER = 32
"""Batches without trouble before a lowered limit is doubled again. One record that needs far more
memory than its cost tells must not leave the rest of a shard with tiny batches; where memory really
is short, the try that fails costs a small part of what these batches took."""


def make_batches(costs: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of row numbers, each within `budget` where it can be, filled by best fit.

    A batch begins with the dearest record that is left and continues with the dearest that still
    fits: a run of records that cost about the same, and a few small ones in the rest. That is
    first-fit decreasing, made batch by batch. Equal costs keep the order of rows, so the same shard
    and budget always give the same batches. A record that is dearer than the budget is a batch of
    its own. What takes time is the sort, and a step for each cost that a batch has.
    """
    rows_of: dict[int, list[int]] = {}
    for row in range(len(costs) - 1, -1, -1):
        rows_of.setdefault(costs[row], []).append(row)  # the last of each list is the next one
    prices = sorted(rows_of)
    # Of each price, itself while it has rows, else one below: a step towards the next that has.
    cheaper = list(range(len(prices)))
    batches: list[list[int]] = []
    while (place := _with_rows(cheaper, len(prices) - 1)) >= 0:
        batch: list[int] = []
        room = max(budget, prices[place])
        while place >= 0:
            price, rows = prices[place], rows_of[prices[place]]
            num_taken = min(len(rows), room // price) if price else len(rows)
            batch += reversed(rows[-num_taken:])
            del rows[-num_taken:]
            if not rows:
                cheaper[place] = place - 1
            room -= num_taken * price
            place = _with_rows(cheaper, min(place, bisect_right(prices, room)) - 1)
        batches.append(batch)
    return batches


def _with_rows(cheaper: list[int], place: int) -> int:
    """Return the dearest price up to `place` that has rows, -1 for none; shortens the way there."""
    found = place
    while found >= 0 and cheaper[found] != found:
        found = cheaper[found]
    while place > found:
        cheaper[place], place = found, cheaper[place]
    return found


class Batch(NamedTuple):
    """Rows that are computed together."""

    rows: list[int]
    cost: int
    budget: int
    """What the batch may cost; never less than what it does."""
    is_alone: bool
    """Whether nothing else may be on the device meanwhile, so that what happens is its doing."""


class Queue:
    """The batches that are left, in order, cut to what memory was seen to hold."""

    def __init__(
        self, costs: Sequence[int], budget: int, unit: str, warn: Callable[[str], object]
    ) -> None:
        """Start an empty queue; `unit` is what `costs` count, `warn` gets at most one sentence."""
        self.num_oom = 0
        self._costs = costs
        self._budget = self._limit = budget
        self._unit = unit
        self._warn = warn
        self._num_well = 0
        self._has_warned = False
        self._waiting: deque[tuple[list[int], bool]] = deque()

    def add(self, batches: Iterable[list[int]], is_alone: bool = False) -> None:
        """Put planned batches at the end."""
        self._waiting.extend((rows, is_alone) for rows in batches)

    def take(self) -> Batch | None:
        """Return the next batch, or None at the end."""
        if not self._waiting:
            return None
        rows, is_alone = self._waiting.popleft()
        first, *others = self._within_limit(rows)
        if left := [row for piece in others for row in piece]:
            # What is no batch any more goes along with the next one, or each would leave a crumb.
            is_crumb = self.cost(left) < self._limit and not is_alone
            if is_crumb and self._waiting and not self._waiting[0][1]:
                left += self._waiting.popleft()[0]
            self._put_in_front([left], is_alone)
        cost = self.cost(first)
        # A record that alone is dearer than the limit still gets its try: the limit came from
        # batches of many. Its budget is its own cost then, so that nothing is filled up on top.
        return Batch(first, cost, max(self._limit, cost), is_alone)

    def put_back(self, batch: Batch) -> None:
        """Put a batch that was not run back to the front."""
        self._put_in_front([batch.rows], batch.is_alone)

    def split(self, batch: Batch, is_out_of_memory: bool) -> bool:
        """Put a failed batch back in pieces that run alone; False when there is no other way to
        try it.

        Memory is short: pieces of half the budget, and later batches as well. Any other failure:
        each record by itself.
        """
        self._num_well = 0
        has_slack = is_out_of_memory and batch.budget > batch.cost  # filled up, perhaps
        is_last_try = len(batch.rows) == 1 and batch.is_alone and not has_slack
        if is_out_of_memory:
            self.num_oom += 1
            if len(batch.rows) > 1 or has_slack:
                self._lower(batch)
        if is_last_try:
            return False
        pieces = [batch.rows] if is_out_of_memory else [[row] for row in batch.rows]
        self._put_in_front(pieces, True)
        return True

    def ran(self) -> None:
        """Note that a batch ran well."""
        self._num_well += 1
        if self._num_well >= GROW_AFTER:
            self._num_well = 0
            self._limit = min(self._budget, 2 * self._limit)

    @property
    def cost_left(self) -> int:
        """What is still in the queue costs."""
        return sum(self.cost(rows) for rows, _ in self._waiting)

    def cost(self, rows: Iterable[int]) -> int:
        """Return what `rows` cost together."""
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

    def _within_limit(self, rows: list[int]) -> list[list[int]]:
        pieces = make_batches([self._costs[row] for row in rows], self._limit)
        return [[rows[place] for place in piece] for piece in pieces]

    def _put_in_front(self, batches: list[list[int]], is_alone: bool) -> None:
        self._waiting.extendleft((rows, is_alone) for rows in reversed(batches))
