"""Batches: each row once, within the budget, the same every time."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from featuremill.batches import GROW_AFTER, Queue, make_batches


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


def queue_of(costs, budget, warnings=None):
    queue = Queue(costs, budget, "tokens", ([] if warnings is None else warnings).append)
    queue.add(make_batches(costs, budget))
    return queue


def drain(queue, capacity, most=10_000):
    """Run a queue where batches of more than `capacity` fail; return what ran and what never did.

    The pretended workload fills every batch up to its budget.
    """
    ran, never = [], []
    while batch := queue.take():
        assert (most := most - 1), "it never ends"
        assert batch.cost <= batch.budget
        if batch.budget <= capacity:
            queue.ran()
            ran.append(batch)
        elif not queue.split(batch, is_out_of_memory=True):
            never += batch.rows
    return ran, never


@given(st.lists(st.integers(1, 50), max_size=200), st.integers(1, 200), st.integers(1, 200))
def test_everything_that_fits_alone_runs_however_little_memory_there_is(costs, budget, capacity):
    ran, never = drain(queue_of(costs, budget), capacity)
    rows = [row for batch in ran for row in batch.rows]
    assert sorted(rows + never) == list(range(len(costs)))
    assert never == [row for row in never if costs[row] > capacity]


def test_what_did_not_fit_is_remembered_and_said_once():
    said = []
    queue = queue_of([10] * 64, 160, said)
    ran, never = drain(queue, 45)
    assert [batch.cost for batch in ran] == [40] * 16 and not never
    assert queue.num_oom == 2, "160 and 80"
    (sentence,) = said
    assert "a batch of up to 160 tokens did not fit; going on with 80" in sentence
    assert all(batch.budget == 40 for batch in ran)
    assert [batch.is_alone for batch in ran] == [True] * 4 + [False] * 12


def test_a_lowered_limit_grows_again():
    queue = queue_of([10] * 16 * GROW_AFTER, 80)
    batch = queue.take()
    assert queue.split(batch, is_out_of_memory=True)
    sizes = []
    while batch := queue.take():
        queue.ran()
        sizes.append(batch.cost)
    assert sizes[:GROW_AFTER] == [40] * GROW_AFTER
    assert sizes[GROW_AFTER:] == [80] * (len(sizes) - GROW_AFTER)


def test_a_record_dearer_than_the_limit_is_tried_with_its_own_cost():
    queue = queue_of([50, 10, 10], 20)
    dear = queue.take()
    assert (dear.rows, dear.budget, dear.is_alone) == ([0], 50, False)
    assert queue.split(dear, is_out_of_memory=True), "something else may have been beside it"
    again = queue.take()
    assert (again.rows, again.budget, again.is_alone) == ([0], 50, True)
    assert not queue.split(again, is_out_of_memory=True)
    assert queue.take() == ([1, 2], 20, 20, False), "and batches of many stay as they were"


def test_any_other_failure_leaves_each_record_by_itself():
    queue = queue_of([10] * 4, 40)
    batch = queue.take()
    assert queue.split(batch, is_out_of_memory=False)
    alone = [queue.take() for _ in range(4)]
    assert [(one.rows, one.is_alone) for one in alone] == [([row], True) for row in range(4)]
    assert not queue.split(alone[0], is_out_of_memory=False)
    assert queue.take() is None
    queue.put_back(alone[3])
    assert queue.take() == alone[3]
