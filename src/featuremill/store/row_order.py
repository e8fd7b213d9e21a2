"""The order of the rows of results: that of the input, or shard by shard.

Results in input order are written by one process, which sorts all values. Results by shard are
written by parallel jobs, which read each part once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from featuremill.base.errors import UserError
from featuremill.base.id_columns import SAMPLE
from featuremill.store.formats import format_of
from featuremill.store.plan import Plan
from featuremill.store.results import Results

RowOrder = Literal["auto", "input", "shard"]
FROM_RECORDS = 5_000_000
"""The number of records from which on `auto` means by shard."""
MOST_FILES = 20_000
"""If shards times samples exceed this, `auto` means the order of the input: each sample has files
of its own."""
LEAST_JOBS, MOST_JOBS = 4, 64
RECORDS_A_JOB = 500_000
"""The number of `deliver` jobs of a run, and records for each: a job takes seconds to start."""


def why_not_in_order(order: str, outputs: Sequence[str]) -> str:
    """Return why the option `order` does not allow `outputs`; "" if it does."""
    others = [name for name in outputs if not format_of(name).part_name]
    if order != "shard" or not others:
        return ""
    return (
        f"{', '.join(others)} cannot be written shard by shard; leave it out, or drop `order`; "
        "featuremill export writes it later"
    )


def is_by_shard(order: str, outputs: Sequence[str], folder: Results, plan: Plan) -> bool:
    """Return whether the results of a planned run are written by shard.

    Raises:
        UserError: `order` is "shard", and an output cannot be written so.
    """
    if problem := why_not_in_order(order, outputs):
        raise UserError(f"outputs: {problem}.")
    if not will_be_by_shard(order, outputs, plan) or order == "shard":
        return order == "shard"
    from featuremill.store.records import samples_of  # not above: Arrow takes its time

    num_samples = len(samples_of(folder.records).get(SAMPLE, [""]))
    return num_samples * len(plan.sources) <= MOST_FILES


def will_be_by_shard(order: str, outputs: Sequence[str], plan: Plan) -> bool:
    """Return whether results will be written by shard, unless there are very many samples."""
    if order != "auto":
        return order == "shard"
    is_large = plan.counts.planned >= FROM_RECORDS
    return is_large and bool(outputs) and not why_not_in_order("shard", outputs)


def num_jobs_of(plan: Plan, num_sources: int) -> int:
    wanted = max(LEAST_JOBS, plan.counts.planned // RECORDS_A_JOB)
    return min(wanted, MOST_JOBS, num_sources)


def groups_of(plan: Plan) -> list[range]:
    """Return the shards of each `deliver` job, by their numbers among the plan's sources."""
    num_sources = len(plan.sources)
    num_jobs = num_jobs_of(plan, num_sources)
    edges = [num_sources * number // num_jobs for number in range(num_jobs + 1)] if num_jobs else []
    return [range(first, end) for first, end in itertools.pairwise(edges)]
