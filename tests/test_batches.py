"""Batches: each row once, within the budget, the same every time."""

import gzip
import itertools

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from featuremill.workload.batches import GROW_AFTER, Queue, make_batches


@given(st.lists(st.integers(0, 50), max_size=200), st.integers(0, 120))
def test_each_row_is_in_one_batch_within_the_budget(costs, budget):
    batches = make_batches(costs, budget)
    assert sorted(row for rows in batches for row in rows) == list(range(len(costs)))
    left = sorted(range(len(costs)), key=lambda row: (-costs[row], row))
    for rows in batches:
        together = sum(costs[row] for row in rows)
        assert together <= budget or len([row for row in rows if costs[row]]) == 1
        assert rows == sorted(rows, key=left.index), "dearest first, and then by row"
        assert rows[0] == left[0], "the dearest of all begins the first batch"
        left = [row for row in left if row not in rows]
        for row in left:
            before = sum(costs[other] for other in rows if costs[other] >= costs[row])
            assert before + costs[row] > budget, "and nothing is left out that would have fitted"


def lengths_of_a_human_proteome(count):
    """Return lengths as of human proteins, drawn, not real: lognormal, with the proteome's median
    (415) and mean (560), up to the 35,000 residues of titin."""
    random = np.random.default_rng(1)
    lengths = random.lognormal(np.log(415), np.sqrt(2 * np.log(560 / 415)), count)
    return np.clip(np.rint(lengths), 2, 35_000).astype(int).tolist()


def lengths_of_e_coli(count):
    """Return as many lengths as E. coli has proteins: those of the sample, over and over."""
    with gzip.open(ROOT / "bench" / "ecoli.fasta.gz", "rt") as file:
        proteins = file.read().split(">")[1:]
    sample = [len("".join(protein.split("\n")[1:])) for protein in proteins]
    return list(itertools.islice(itertools.cycle(sample), count))


@pytest.mark.parametrize(
    "lengths",
    [lengths_of_e_coli(4300), lengths_of_a_human_proteome(20_000)],
    ids=["E. coli", "human"],
)
def test_batches_of_a_gpu_are_full(lengths):
    """At an H200's budget; a list that is sorted and cut fills 98.7 % and 98.0 % of them."""
    budget = 16_896
    costs = [min(length, 1022) + 2 for length in lengths]
    batches = make_batches(costs, budget)
    *filled, rest = [sum(costs[row] for row in rows) for rows in batches]
    assert sum(filled) / len(filled) / budget > 0.9997
    assert len(batches) == -(-sum(costs) // budget), "no fewer could hold them"
    assert rest == min([*filled, rest]), "the last one, with which a worker begins, is the cheapest"


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
    assert "a batch of up to 160 tokens did not fit; continuing with 80" in sentence
    assert all(batch.budget == 40 for batch in ran)
    assert [batch.is_alone for batch in ran] == [True] * 4 + [False] * 12


def test_under_a_lowered_limit_crumbs_of_batches_go_along_with_the_next_ones():
    """Batches of four and a small one; once two of them fit, the small ones fill a batch."""
    queue = queue_of([40] * 32 + [20] * 8, 180)
    assert queue.split(queue.take(), is_out_of_memory=True)
    ran, never = drain(queue, 90)
    assert not never and sum(batch.cost for batch in ran) == 40 * 32 + 20 * 8
    assert [batch.cost for batch in ran if batch.is_alone] == [80, 80, 20]
    costs = [batch.cost for batch in ran if not batch.is_alone]
    assert len(costs) == 14 + 2, "seven batches make two each, and their crumbs two in all"


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
