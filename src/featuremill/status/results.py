"""The state of a run's results, exports and report: missing, current, older, or damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from featuremill.status.commands import Fix, Problem
from featuremill.status.shards import Shard
from featuremill.store import ours, state
from featuremill.store.delivery import Delivery, Written
from featuremill.store.files import sha256_of
from featuremill.store.formats import (
    FAILED,
    PARTIAL,
    bytes_of,
    digest_of_result,
    files_of,
    outputs_of,
)
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results

MANIFEST = "manifest.json"
OTHER_BYTES = "its bytes are not those that were written"
Merged = Literal["no", "yes", "older", "damaged"]
"""older: manifest.json belongs to another plan, or a part was computed again since; damaged: it
cannot be read, or an output differs from it."""
Reported = Literal["no", "yes", "older"]


class DeliveryState(NamedTuple):
    """The state of what merge, export and report wrote."""

    merged: Merged = "no"
    reported: Reported = "no"
    delivery: Delivery | None = None
    partial: Sequence[str] = ()
    """Files and a folder of partial results, which `merge --partial` wrote."""
    exported: Mapping[str, Written] = MappingProxyType({})
    problems: Sequence[Problem] = ()

    @property
    def is_merged(self) -> bool:
        """Whether the results exist, are complete, and belong to this plan."""
        return self.merged == "yes"


def manifest_receipts(results: Results, delivery: Delivery | None) -> dict[str, Receipt]:
    """Return the receipts in manifest.json whose own files are older than manifest.json."""
    if delivery is None:
        return {}
    moment = (results.root / MANIFEST).stat().st_mtime
    try:
        with os.scandir(results.root / "receipts" / delivery.recipe) as entries:
            older = {entry.name for entry in entries if entry.stat().st_mtime < moment}
    except FileNotFoundError:
        return {}
    return {
        receipt.shard: receipt for receipt in delivery.receipts if f"{receipt.shard}.json" in older
    }


def read_delivery_state(
    results: Results, plan: Plan, delivery: Delivery | None, shards: list[Shard], verifies: bool
) -> DeliveryState:
    """Return the state of the results of `plan`; hash them if it `verifies`."""
    root = results.root
    merged: Merged = "no"
    problems: list[Problem] = []
    if delivery and (older := _older(delivery, plan, shards)):
        merged = "older"
        problems = [Problem("results_older", f"{MANIFEST}: {older}.", Fix("merge"))]
    elif delivery:
        for _, code, what, is_hidden in _not_as_written(results, delivery.outputs, verifies):
            fix = Fix("merge", rerun_by="forcerun" if is_hidden else "start")
            problems.append(Problem(f"output_{code}", what, fix))
        for name in delivery.beside or FAILED[:1]:
            path = root / name
            if not path.exists():
                problems.append(Problem("output_missing", f"{name}: it is gone.", Fix("merge")))
            elif state.damaged([str(path)]):
                what = f"{name}: it was changed since featuremill wrote it."
                problems.append(Problem("output_damaged", what, Fix("merge")))
        merged = "damaged" if problems else "yes"
    elif (root / MANIFEST).exists():
        what = f"{MANIFEST}: it cannot be read, so it is not known what the results are."
        problems = [Problem("manifest_damaged", what, Fix("merge"))]
        merged = "damaged"
    exported = results.find_exports()
    for file, code, what, _ in _not_as_written(results, exported, verifies):
        name = outputs_of([file]).get(file, file)
        by_hand = f"featuremill export {root} --to {name} writes it again."
        problems.append(Problem(f"export_{code}", what, Fix(by_hand=by_hand), False))
    partial = [f"{PARTIAL}/{name}" for name in results.partial.names()]
    return DeliveryState(merged, reported(results), delivery, partial, exported, problems)


def _older(delivery: Delivery, plan: Plan, shards: list[Shard]) -> str:
    """Return why the results do not belong to this plan and these parts; "" if they do."""
    if not delivery.is_of(plan):
        return "the results are of an earlier plan, and not of plan.json"
    again = sum(s.receipt.part != delivery.parts[s.name] for s in shards if s.receipt)
    return f"parts that are others than those in the results: {again:,}" if again else ""


def _not_as_written(
    results: Results, files: Mapping[str, Written], verifies: bool
) -> Iterator[tuple[str, str, str, bool]]:
    """Yield, for each changed file, its name, "missing" or "damaged", a sentence, and whether only
    hashing finds the change."""
    for name, about in files.items():
        path = results.root / name
        if not path.exists():
            yield name, "missing", f"{path.name}: it is gone.", False
        elif (size := bytes_of(path)) != about.bytes:
            what = f"{path.name}: it has {size:,} bytes, and {about.bytes:,} were written."
            yield name, "damaged", what, False
        elif digest_by_looks(results, path) != about.sha256:
            yield name, "damaged", f"{path.name}: {OTHER_BYTES}.", False
        elif verifies and digest_of_result(path) != about.sha256:
            yield name, "damaged", f"{path.name}: {OTHER_BYTES}.", True


def digest_by_looks(results: Results, path: Path) -> str:
    """Return the digest of a file or folder of the run. A file with the size, times and inode that
    it had when it was written is not read."""
    digests = dict[str, str]()
    for file in files_of(path):
        name = "" if file == path else str(file.relative_to(path))
        last = ours.latest(file)
        if last and last["seen"] == ours.looks(file):
            digests[name] = last["sha256"]
        else:
            digests[name] = state.known_sha256_of(file, results.store)
    return digest_of_result(path, digests)


def reported(folder: Results) -> Reported:
    """Return whether there is a report, and whether it is of these results: by the record of its
    inputs, or without a record by its time."""
    report, manifest = folder.root / "report.html", folder.delivery
    if not report.exists():
        return "no"
    if not manifest.exists():
        return "older"
    record = state.State.find(Path(state.path_of(folder.root, "reported")))
    is_of_report = record and record.is_of([str(report)], folder.root / state.FOLDER)
    if record and is_of_report and (of_results := record.config.get(MANIFEST)):
        return "yes" if of_results == sha256_of(manifest) else "older"
    return "yes" if report.stat().st_mtime >= manifest.stat().st_mtime else "older"
