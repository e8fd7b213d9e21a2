"""Decides which files of a planned run are out of date, damaged or gone, and what to run again.

`status` prints it, and the start of a run reruns it (`flow.reruns`). A single product (plan,
results, report, the files of a step) is compared with its record by `step.Product.differences`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from featuremill.base.errors import IntegrityError
from featuremill.base.log import last_error
from featuremill.base.words import Change, in_words
from featuremill.config import Run, products
from featuremill.status.commands import Again, Fix, Problem, RerunBy, shown
from featuremill.status.results import DeliveryState, digest_by_looks
from featuremill.status.shards import Shard, has_size
from featuremill.store import run_lock
from featuremill.store.files import digest_at, identity_of, sha256_of
from featuremill.store.journal_log import digest_of_file
from featuremill.store.plan import Plan, SharedPart
from featuremill.store.results import Results
from featuremill.store.state import (
    LARGE,
    Seen,
    State,
    came_at,
    known_sha256_of,
    looks,
    planned_inputs,
)
from featuremill.store.weights_file import WeightsFile
from featuremill.workload import recipe, weights

CHANGED = "has changed since it was planned"
OTHER_RECORDS = "it does not belong to plan.json"


def is_computed(results: str) -> bool:
    """Return whether all of the last plan is computed: by its receipts, or by the results
    (`keep: results` removes receipts)."""
    folder = Results(Path(results))
    plan = folder.find_plan()
    if plan is None or recipe.other_versions_here(plan.settings):
        return False
    receipts = (folder.receipt(plan.recipe, entry.shard) for entry in plan.shards)
    return all(path.exists() for path in receipts) or is_merged(results)


def is_merged(results: str) -> bool:
    """Return whether there are results of the last plan."""
    folder = Results(Path(results))
    plan, delivery = folder.find_plan(), folder.find_delivery()
    return bool(plan and delivery and delivery.is_of(plan))


def problem_of_config(
    config: Run,
    plan: Plan,
    results: Results,
    is_merged: bool,
    of_report: Sequence[Change] = (),
    at: Path = Path(),
) -> Problem | None:
    """Return the problem that the plan, the results or the report were made from another config
    than this one, whose paths are relative to `at`."""
    root = results.root
    of_plan = products.changes_since(plan, config, at)
    of_plan += products.planned(config, root).differences().changes
    of_results = products.merged(config, root).differences().changes if is_merged else ()
    if changes := of_plan or of_results or of_report:
        again: Again = "plan" if of_plan else "merge" if of_results else ""
        what = f"the config has changed ({in_words(changes)})"
        fix = Fix(again, rerun_by="snakemake" if again else "start")
        return Problem("config_changed", what, fix, changes=tuple(changes))
    return None


def since_plan(config: Run, plan: Plan, results: Results) -> str:
    """Describe what has changed since the `plan` and affects values or records: keys of the
    `config`, versions, or files; "" if nothing has."""
    if changes := products.changes_since(plan, config):
        return in_words(changes)
    if others := recipe.other_versions_here(plan.settings):
        return others
    files = *_check_inputs(results, plan, True, False), *_check_options(results, plan, True)
    changed = (each.what for each in files if each.code in ("input_changed", "option_changed"))
    return next(changed, "").rstrip(".")


def problems_of_files(
    results: Results,
    plan: Plan,
    shards: list[Shard],
    delivery: DeliveryState,
    *,
    are_records_readable: bool,
    verifies: bool,
) -> Iterator[Problem]:
    """Yield the problems of the run's files; hash all of them if it `verifies`."""
    is_merged, has_work = delivery.is_merged, not all(shard.has_ended for shard in shards)
    yield from _check_parts(results, plan, shards, verifies)
    yield from _check_taken(results, plan, is_merged, verifies)
    yield from _check_records(results, plan, are_records_readable, verifies)
    yield from _check_inputs(results, plan, is_merged, verifies)
    yield from _check_weights(results, plan, has_work)
    if others := recipe.other_versions_here(plan.settings):
        what = (
            f"plan.json: here is {others}, which it was made for; the next run computes all anew."
        )
        yield Problem("version_changed", what, Fix("plan"))
    yield from _check_options(results, plan, is_merged)
    for problem in delivery.problems:
        # While shards are left to compute, older results are expected.
        is_expected = problem.code == "results_older" and has_work
        yield problem._replace(is_in_the_way=problem.is_in_the_way and not is_expected)


def _check_options(results: Results, plan: Plan, is_merged: bool) -> Iterator[Problem]:
    for name, sha256 in plan.settings.files.items():
        option = str(plan.execution.get(name))
        path, shown = results.placed(option), f"options.{name}: {option}"
        if not path.exists():
            yield _gone("option", shown, is_merged)
        elif digest_at(path) != sha256:
            yield Problem("option_changed", f"{shown} {CHANGED}.", Fix("plan"))


def _check_inputs(
    results: Results, plan: Plan, is_merged: bool, verifies: bool
) -> Iterator[Problem]:
    record = State.find(planned_inputs(results.root))
    for entry in plan.inputs:
        path, shown = results.placed(entry.path), f"{entry.path}: this input"
        is_late = is_newer(path, results.plan)
        if not path.exists():
            yield _gone("input", shown, is_merged)
            continue
        # Snakemake does not notice a replacement that has an older time.
        if record:
            seen = Seen(sha256=entry.sha256, looks=looks(path))
            is_touched = record.inputs.get(entry.path) != seen
        else:  # of an earlier featuremill
            is_touched = came_at(path) > results.plan.stat().st_mtime
        if not has_size(path, entry.bytes):
            fix = Fix("plan", rerun_by="snakemake" if is_late else "start")
            yield Problem("input_changed", f"{shown} {CHANGED}.", fix)
        elif is_late and entry.bytes >= LARGE and not verifies:
            # Snakemake reruns plan, whatever the content.
            what = f"{shown} is newer than the plan; --verify checks whether it changed."
            yield Problem("input_newer", what, Fix("plan", rerun_by="snakemake"))
        elif verifies or is_touched:
            sha256 = sha256_of(path) if verifies else known_sha256_of(path, results.store)
            if sha256 != entry.sha256:
                otherwise: RerunBy = "start" if is_touched else "forcerun"
                fix = Fix("plan", rerun_by="snakemake" if is_late else otherwise)
                yield Problem("input_changed", f"{shown} {CHANGED}.", fix)


def _gone(kind: str, shown: str, is_merged: bool) -> Problem:
    """Return the problem of a missing source file; it blocks nothing once results are merged."""
    what = f"{shown} is gone, so it is not known whether it changed."
    fix = Fix(by_hand="Put it back before anything is planned again.")
    return Problem(f"{kind}_missing", what, fix, not is_merged)


def is_newer(path: Path, than: Path) -> bool:
    """Return whether both files exist and `path` has a later modification time than `than`."""
    return path.exists() and than.exists() and path.stat().st_mtime > than.stat().st_mtime


def _check_weights(results: Results, plan: Plan, has_work: bool) -> Iterator[Problem]:
    if not plan.weights:
        return
    path = results.placed(plan.weights)
    checkpoint = weights.model_in(plan.workload, plan.asked)
    is_path = weights.is_path(checkpoint, plan.workload)
    source = str(results.placed(checkpoint)) if is_path else checkpoint
    now = weights.sha256_now(path, source, plan.workload) if checkpoint else ""
    if now not in ("", plan.settings.weights_sha256):
        yield Problem("weights_changed", f"{checkpoint}: this checkpoint {CHANGED}.", Fix("plan"))
        return
    model = weights.model_name_of(plan.settings) or "MODEL"
    verb = weights.command_for(model, plan.workload, plan.weights)
    if not path.exists():
        what, fix = "the weights are gone", Fix(verb=verb)
    elif (entry := WeightsFile.find(path)) is None:
        what, fix = "this cannot be read as weights", Fix(remove=(path,), verb=verb)
    elif not entry.is_at(results.placed(entry.path)):
        what = f"its weights {entry.path} are gone or incomplete"
        fix = Fix(remove=(path,), verb=verb)
    elif entry.sha256 != plan.settings.weights_sha256:
        what, fix = "these are other weights than those of the plan", Fix("plan")
    else:
        return
    code = "weights_changed" if fix.again else "weights_missing"
    yield Problem(code, f"{plan.weights}: {what}.", fix, has_work)


def _check_records(
    results: Results, plan: Plan, is_readable: bool, verifies: bool
) -> Iterator[Problem]:
    path, fix = results.records, Fix("plan")
    if not path.exists():
        what = "it is gone; it lists which record is where"
    elif not _is_parquet(path):
        what = "it cannot be read"
    elif digest_by_looks(results, path) != plan.records_sha256:
        what = OTHER_RECORDS
    elif verifies and sha256_of(path) != plan.records_sha256:
        what, fix = OTHER_RECORDS, Fix("plan", rerun_by="forcerun")
    elif not is_readable:
        what, fix = "it cannot be read", Fix("plan", rerun_by="forcerun")
    else:
        return
    yield Problem("records_missing", f"{path.name}: {what}.", fix)


def _is_parquet(path: Path) -> bool:
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
) -> Iterator[Problem]:
    def problem(code: str, shard_names: list[str], what: str, fix: Fix) -> Iterator[Problem]:
        if shard_names:
            more = f" and {len(shard_names) - 1:,} more" if len(shard_names) > 1 else ""
            yield Problem(code, f"shard {shard_names[0][:8]}{more}: {what}.", fix)

    lost = [shard.name for shard in shards if shard.state == "lost"]
    what = "a part is gone, although there is a receipt"
    yield from problem("part_missing", lost, what, Fix("extract", tuple(lost)))
    bad = [shard.name for shard in shards if shard.trouble == "receipt"]
    what = "a receipt is damaged; extract writes it anew"
    yield from problem("receipt_damaged", bad, what, Fix("extract", tuple(bad)))
    gone = [shard.name for shard in shards if shard.trouble == "records"]
    what = "the file in store/shards is gone or incomplete"
    yield from problem("shard_missing", gone, what, Fix("plan"))
    if verifies:
        damaged = [
            shard.name
            for shard in shards
            if shard.state == "finished" and shard.receipt
            if digest_of_file(results.part(plan.recipe, shard.name)) != shard.receipt.part
        ]
        what = "the bytes of a part are not those that were written"
        fix = Fix("extract", tuple(damaged), rerun_by="forcerun")
        yield from problem("part_damaged", damaged, what, fix)


def _check_taken(
    results: Results, plan: Plan, is_merged: bool, verifies: bool
) -> Iterator[Problem]:
    gone, bad = list[str](), list[str]()
    for part in plan.taken:
        if (identity := identity_of(Path(part.path))) is None:
            gone.append(part.path)
        elif identity[0] != part.bytes or (verifies and not _is_as_published(results, plan, part)):
            bad.append(part.path)
    # Merge must come first: it notes the unusable parts, which plan would else take again.
    for code, paths, what, fix in (
        ("part_missing", gone, "is gone", Fix("plan")),
        ("part_damaged", bad, "is not what was published", Fix("merge", rerun_by="snakemake")),
    ):
        if paths:
            more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
            sentence = f"{paths[0]}{more}: a part taken from the store {what}."
            yield Problem(code, sentence, fix, not is_merged)


def _is_as_published(results: Results, plan: Plan, part: SharedPart) -> bool:
    from featuremill.store.parts import open_taken  # brings pyarrow

    try:
        open_taken(results, plan, part, only_look=True)
    except IntegrityError:
        return False
    return True


def problems_before_plan(results: Results, weights: str) -> list[Problem]:
    """Return the error of the job that made the file `weights`, if it is missing, else plan's."""
    path = run_lock.working_folder(results.root) / weights
    if weights and not path.exists():
        log = path.with_suffix(".log")
        if failed := error_in_log("weights_failed", "making the weights", log):
            return failed
    return error_in_log("plan_failed", "the last plan", results.logs / "plan.log")


def error_in_log(code: str, what: str, log: Path, is_in_the_way: bool = True) -> list[Problem]:
    """Return the problem that the job with this `log` failed, if it did."""
    if not (error := last_error(log)):
        return []
    fix = Fix(by_hand=f"Fix that, and run the same command again. The log: {shown(log)}")
    return [Problem(code, f"{what} failed: {error}", fix, is_in_the_way)]
