"""Whether what a run is made of is still what was planned: inputs, weights, manifest, parts; and
what the verbs' own logs say of weights, a plan or a report that failed."""

from __future__ import annotations

import os
from pathlib import Path

from featuremill.base.log import last_error
from featuremill.status.problems import Mend, Problem
from featuremill.status.shards import Shard, has_size
from featuremill.store.files import digest_at, sha256_of
from featuremill.store.plan import Input, Plan
from featuremill.store.results import Results
from featuremill.store.weights_file import WeightsFile
from featuremill.workload import weights
from featuremill.workload.recipe import other_versions_here

MOST_HASHED = 100_000_000
"""Bytes of an input that was written after the plan and is hashed at once: Snakemake plans a larger
one again, whatever is in it, so a sentence that it may have changed does not stand for ever."""
FAILED = {"weights": "making the weights", "plan": "the last plan", "report": "the last report"}
"""What failed, where a verb's log ends with an error."""


def check_sources(
    results: Results,
    plan: Plan,
    shards: list[Shard],
    *,
    is_merged: bool,
    is_manifest_readable: bool,
    verifies: bool,
) -> list[Problem]:
    """Return what is wrong with what the run is made of; all of it is hashed if it `verifies`."""
    has_work = not all(shard.has_ended for shard in shards)
    return [
        *_check_parts(results, plan, shards, verifies),
        *_check_manifest(results, plan, is_manifest_readable, verifies),
        *_check_inputs(results, plan, is_merged, verifies),
        *_check_weights(results, plan, has_work),
        *_check_versions(plan),
        *_check_option_files(results, plan, is_merged),
    ]


def _check_inputs(results: Results, plan: Plan, is_merged: bool, verifies: bool) -> list[Problem]:
    """Return which inputs are not what was planned."""
    problems = []
    for entry in plan.inputs:
        path = results.placed(entry.path)
        is_late = is_newer(path, results.plan)
        mend = Mend("plan", seen_by="snakemake" if is_late else "start")
        if not path.exists():
            code, what = "input_missing", "is gone, so nobody can tell whether it changed"
            mend = Mend(by_hand="Put it back before anything is planned again.")
        elif not has_size(path, entry.bytes):
            code, what = "input_changed", "has changed since it was planned"
        elif _has_other_bytes(path, entry, is_late, verifies):
            code, what = "input_changed", "has changed since it was planned"
            mend = mend if is_late else Mend("plan", seen_by="nobody")
        elif not verifies and is_late and entry.bytes > MOST_HASHED:
            code, what = "input_newer", "is newer than the plan; --verify tells if it changed"
        else:
            continue
        is_in_the_way = code != "input_missing" or not is_merged
        problems.append(Problem(code, f"{entry.path}: this input {what}.", mend, is_in_the_way))
    return problems


def _has_other_bytes(path: Path, entry: Input, is_late: bool, verifies: bool) -> bool:
    if verifies or (is_late and entry.bytes <= MOST_HASHED):
        return sha256_of(path) != entry.sha256
    return False


def is_newer(path: Path, than: Path) -> bool:
    """Tell whether `path` was written to after `than`; not when it is not there."""
    return path.exists() and path.stat().st_mtime > than.stat().st_mtime


def _check_weights(results: Results, plan: Plan, has_work: bool) -> list[Problem]:
    """Return what is wrong with the weights; that is in nobody's way when nothing is left to do."""
    if not plan.weights:
        return []
    path = results.placed(plan.weights)
    model = weights.model_told(plan.settings) or "MODEL"
    verb = weights.command_for(model, plan.workload, plan.weights)
    if not path.exists():
        what, mend = "the weights are gone", Mend(verb=verb)
    elif (entry := WeightsFile.find(path)) is None:
        what, mend = "this cannot be read as weights", Mend(remove=(path,), verb=verb)
    elif not entry.is_at(results.placed(entry.path)):
        what = f"its weights {entry.path} are gone or not whole"
        mend = Mend(remove=(path,), verb=verb)
    elif entry.sha256 != plan.settings.weights_sha256:
        what, mend = "these are other weights than those of the plan", Mend("plan")
    else:
        return []
    code = "weights_changed" if mend.again else "weights_missing"
    return [Problem(code, f"{plan.weights}: {what}.", mend, has_work)]


def _check_versions(plan: Plan) -> list[Problem]:
    """Return whether the plan is for other versions than those here, whose values would differ."""
    others = other_versions_here(plan.settings)
    what = f"plan.json: here is {others}, which it was made for; the next run computes all anew."
    return [Problem("version_changed", what, Mend("plan"))] if others else []


def _check_option_files(results: Results, plan: Plan, is_merged: bool) -> list[Problem]:
    """Return which files that options name do not hold what they held when it was planned."""
    problems = []
    for name, sha256 in plan.settings.files.items():
        path = results.placed(str(plan.execution.get(name)))
        code, what = "option_changed", "has changed since it was planned"
        mend = Mend("plan", seen_by="start")
        if not path.exists():
            code, what = "option_missing", "is gone, so nobody can tell whether it changed"
            mend = Mend(by_hand="Put it back before anything is planned again.")
        elif digest_at(path) == sha256:
            continue
        is_in_the_way = code != "option_missing" or not is_merged
        shown = f"options.{name}: {plan.execution.get(name)} {what}."
        problems.append(Problem(code, shown, mend, is_in_the_way))
    return problems


def _check_manifest(
    results: Results, plan: Plan, is_readable: bool, verifies: bool
) -> list[Problem]:
    """Return what is wrong with manifest.parquet; who read in it knows whether it `is_readable`."""
    path, mend = results.manifest, Mend("plan")
    if not path.exists():
        what = "it is gone; it says which record is where"
    elif not _is_parquet(path):
        what = "it cannot be read"
    elif verifies and sha256_of(path) != plan.manifest_sha256:
        what, mend = "it does not belong to plan.json", Mend("plan", seen_by="nobody")
    elif not is_readable:
        what, mend = "it cannot be read", Mend("plan", seen_by="nobody")
    else:
        return []
    return [Problem("manifest_missing", f"{path.name}: {what}.", mend)]


def _is_parquet(path: Path) -> bool:
    """Tell whether the file begins and ends as a Parquet file that is whole."""
    size = path.stat().st_size
    if size < 12:
        return False
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(-8, os.SEEK_END)
        tail = file.read(8)
    return head == tail[4:] == b"PAR1" and int.from_bytes(tail[:4], "little") + 12 <= size


def _check_parts(
    results: Results, plan: Plan, shards: list[Shard], verifies: bool
) -> list[Problem]:
    """Return which parts, receipts and shards are lost or damaged."""
    problems = []
    if lost := [shard.name for shard in shards if shard.state == "lost"]:
        what = f"{_named(lost)}: a part is gone, although there is a receipt."
        problems.append(Problem("part_missing", what, Mend("extract", tuple(lost))))
    if bad := [shard.name for shard in shards if shard.trouble == "receipt"]:
        what = f"{_named(bad)}: a receipt is damaged; extract writes it anew."
        problems.append(Problem("receipt_damaged", what, Mend("extract", tuple(bad))))
    if gone := [shard.name for shard in shards if shard.trouble == "records"]:
        what = f"{_named(gone)}: the file in store/shards is gone or not whole."
        problems.append(Problem("shard_missing", what, Mend("plan")))
    if verifies and (damaged := [s.name for s in shards if _is_damaged(results, plan, s)]):
        what = f"{_named(damaged)}: the bytes of a part are not those that were written."
        mend = Mend("extract", tuple(damaged), seen_by="nobody")
        problems.append(Problem("part_damaged", what, mend))
    return problems


def _named(shards: list[str]) -> str:
    """Return the first of `shards` as the verbs call it, and how many more there are."""
    more = f" and {len(shards) - 1:,} more" if len(shards) > 1 else ""
    return f"shard {shards[0][:8]}{more}"


def _is_damaged(results: Results, plan: Plan, shard: Shard) -> bool:
    from featuremill.store.journal import digest_of_file  # brings pyarrow

    if shard.state != "finished" or not shard.receipt:
        return False
    return digest_of_file(results.part(plan.recipe, shard.name)) != shard.receipt.part


def check_logs_before_plan(root: Path, weights: str) -> list[Problem]:
    """Return what failed on the way to a plan: the `weights`, which come first, or the plan."""
    project = root.parent.parent
    if weights and not (project / weights).exists():
        log = project / "logs" / "weights" / f"{Path(weights).stem}.log"
        if problems := check_log(root, "weights", log=log):
            return problems
    return check_log(root, "plan")


def check_log(
    root: Path, verb: str, is_in_the_way: bool = True, log: Path | None = None
) -> list[Problem]:
    """Return what `verb` ended with the last time, if that was an error.

    Nothing where it was not Snakemake's: logs are in logs/<run>/ beside results/<run>/ (`root`),
    if `log` is not given.
    """
    log = log or root.parent.parent / "logs" / root.name / f"{verb}.log"
    error = last_error(log) if root.parent.name == "results" else ""
    if not error:
        return []
    shown = log.relative_to(Path.cwd()) if log.is_relative_to(Path.cwd()) else log
    mend = Mend(by_hand=f"Mend that, and run the same command again. The log: {shown}")
    return [Problem(f"{verb}_failed", f"{FAILED[verb]} failed: {error}", mend, is_in_the_way)]
