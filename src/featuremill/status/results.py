"""Whether there are results, whether they are of this plan and whole, and what else lies beside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from featuremill.status.problems import Mend, Problem
from featuremill.status.shards import Shard
from featuremill.store.agreement import are_results_of
from featuremill.store.files import read_json
from featuremill.store.formats import EXPORTS, FILES, PARTIAL, bytes_of, digest_of_result
from featuremill.store.results import Results

MANIFEST = "manifest.json"
FAILED = "failed.tsv"
Merged = Literal["no", "yes", "older", "damaged"]
"""older: manifest.json is of another plan, or a part was computed again since; damaged: it cannot
be read, or an output is not what it says."""
Reported = Literal["no", "yes", "older"]


class Delivered(NamedTuple):
    """What merge and report left."""

    merged: Merged
    reported: Reported
    manifest: dict[str, Any] | None
    """manifest.json, if it can be read."""
    partial: list[str]
    """Files, and a folder, with what was computed when someone asked: not the results."""
    exported: dict[str, Any]
    """What `featuremill export` wrote beside the results, as exports.json has it."""
    problems: list[Problem]


def read_manifest(folder: Results, name: str = MANIFEST) -> dict[str, Any] | None:
    """Return what manifest.json says; None where there is none that can be read."""
    manifest = read_json(folder.root / name)
    kinds = {"outputs": dict, "parts": dict, "counts": dict, "recipe": str}
    if manifest is None or not all(isinstance(manifest.get(k), kinds[k]) for k in kinds):
        return None
    return manifest


def taken_over(folder: Results, manifest: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return the receipts that manifest.json holds and that have not been written to since."""
    receipts = (manifest or {}).get("receipts")
    if manifest is None or not isinstance(receipts, list):
        return {}
    moment = (folder.root / MANIFEST).stat().st_mtime
    where = folder.root / "receipts" / manifest["recipe"]
    try:
        with os.scandir(where) as entries:
            older = {entry.name for entry in entries if entry.stat().st_mtime < moment}
    except FileNotFoundError:
        return {}
    return {one["shard"]: one for one in receipts if f"{one['shard']}.json" in older}


def read_results(
    folder: Results,
    plan: dict[str, Any],
    manifest: dict[str, Any] | None,
    shards: list[Shard],
    verifies: bool,
) -> Delivered:
    """Return what there is of the results of `plan`."""
    path = folder.root / MANIFEST
    partial = [f"{PARTIAL}/{name}" for name in folder.partial.names()]
    merged: Merged = "no"
    problems: list[Problem] = []
    if manifest is not None:
        problems = _older(path, manifest, plan, shards)
        merged = "older" if problems else "yes"
        if merged == "yes":
            problems = _outputs(folder.root, manifest["outputs"], verifies)
            merged = "damaged" if problems else "yes"
    elif path.exists():
        what = f"{MANIFEST}: it cannot be read, so nobody can tell what the results are."
        problems = [Problem("manifest_damaged", what, Mend("merge"))]
        merged = "damaged"
    exported = read_json(folder.root / EXPORTS) or {}
    problems += _exports(folder.root, exported, verifies)
    return Delivered(merged, _reported(folder.root, path), manifest, partial, exported, problems)


def _older(
    path: Path, manifest: dict[str, Any], plan: dict[str, Any], shards: list[Shard]
) -> list[Problem]:
    """Return why the results are not of this plan and these parts."""
    if not are_results_of(plan, manifest):
        what = f"{path.name}: the results are of an earlier plan, and not of plan.json."
        return [Problem("results_older", what, Mend("merge"))]
    parts = manifest["parts"]
    again = sum(s.receipt is not None and s.receipt["part"] != parts[s.name] for s in shards)
    if again:
        what = f"{path.name}: parts that are others than those in the results: {again:,}."
        return [Problem("results_older", what, Mend("merge"))]
    return []


def _outputs(root: Path, outputs: dict[str, Any], verifies: bool) -> list[Problem]:
    """Return which results are not what manifest.json says."""
    found = _not_as_told(root, outputs, verifies)
    problems = [
        Problem(f"output_{code}", what, Mend("merge", seen_by="nobody" if is_hidden else "start"))
        for _, code, what, is_hidden in found
    ]
    if not (root / FAILED).exists():
        problems.append(Problem("output_missing", f"{FAILED}: it is gone.", Mend("merge")))
    return problems


def _exports(root: Path, exported: dict[str, Any], verifies: bool) -> list[Problem]:
    """Return which exported files are not what was written: the results are whole without them."""
    names = {file: name for name, file in FILES.items()}
    problems = []
    for file, code, what, _ in _not_as_told(root, exported, verifies):
        by_hand = f"featuremill export {root} --to {names.get(file, file)} writes it again."
        problems.append(Problem(f"export_{code}", what, Mend(by_hand=by_hand), False))
    return problems


def _not_as_told(
    root: Path, files: dict[str, Any], verifies: bool
) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the name of each file that is not what was written, in a word what it is, how, and
    whether only hashing tells."""
    for name, about in files.items():
        path = root / name
        if not path.exists():
            yield name, "missing", f"{path.name}: it is gone.", False
        elif (size := bytes_of(path)) != about["bytes"]:
            what = f"{path.name}: it has {size:,} bytes, and {about['bytes']:,} were written."
            yield name, "damaged", what, False
        elif verifies and digest_of_result(path) != about["sha256"]:
            yield name, "damaged", f"{path.name}: its bytes are not those that were written.", True


def _reported(root: Path, manifest: Path) -> Reported:
    report = root / "report.html"
    if not report.exists():
        return "no"
    is_older = manifest.exists() and report.stat().st_mtime < manifest.stat().st_mtime
    return "older" if is_older or not manifest.exists() else "yes"
