"""Which records go to the device together: a pure function of their costs and the budget."""

from __future__ import annotations

from collections.abc import Sequence


def make_batches(costs: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of row numbers, dearest records first, each within `budget` where it can be.

    Equal costs keep the order of rows, so the same shard and budget always give the same batches. A
    record that is dearer than the budget is a batch of its own.
    """
    batches: list[list[int]] = []
    room = 0
    for row in sorted(range(len(costs)), key=lambda row: (-costs[row], row)):
        if not batches or costs[row] > room:
            batches.append([])
            room = budget
        batches[-1].append(row)
        room -= costs[row]
    return batches
