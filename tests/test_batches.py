"""Batches: each row once, within the budget, the same every time."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from featuremill.batches import make_batches


@given(st.lists(st.integers(1, 50), max_size=200), st.integers(0, 120))
def test_each_row_is_in_one_batch_within_the_budget(costs, budget):
    batches = make_batches(costs, budget)
    assert sorted(row for rows in batches for row in rows) == list(range(len(costs)))
    for rows in batches:
        assert len(rows) == 1 or sum(costs[row] for row in rows) <= budget
    flat = [costs[row] for rows in batches for row in rows]
    assert flat == sorted(costs, reverse=True), "dearest first"
    for rows, following in itertools.pairwise(batches):
        together = sum(costs[row] for row in rows) + costs[following[0]]
        assert together > budget, "no batch ends before the next record is too much"
