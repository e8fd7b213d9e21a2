"""Whether what a run is made of is still what was planned: inputs, weights, manifest, parts."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from featuremill.status.problems import Mend, Problem
from featuremill.status.shards import Shard, has_size
from featuremill.store.files import read_json, sha256_of
from featuremill.store.plan import Settings
from featuremill.store.results import Results
from featuremill.workload.recipe import other_versions_here

MOST_HASHED = 100_000_000
"""Bytes of an input that was written after the plan and is hashed at once: Snakemake plans a larger
one again, whatever is in it, so a sentence that it may have changed does not stand for ever."""


def check_inputs(
    folder: Results, plan: dict[str, Any], is_merged: bool, verifies: bool
) -> list[Problem]:
    """Return which inputs are not what was planned."""
    problems = []
    for entry in plan["inputs"]:
        path = placed(folder.root, entry["path"])
        mend = Mend("plan", seen_by="snakemake" if is_newer(path, folder.plan) else "start")
        if not path.exists():
            code, what = "input_missing", "is gone, so nobody can tell whether it changed"
            mend = Mend(by_hand="Put it back before anything is planned again.")
        elif not has_size(path, entry["bytes"]):
            code, what = "input_changed", "has changed since it was planned"
        elif _has_other_bytes(path, entry, folder.plan, verifies):
            code, what = "input_changed", "has changed since it was planned"
            if not is_newer(path, folder.plan):
                mend = Mend("plan", seen_by="nobody")
        elif not verifies and is_newer(path, folder.plan) and entry["bytes"] > MOST_HASHED:
            code, what = (
                "input_newer",
                "is newer than the plan; --verify tells if it changed",
            )
        else:
            continue
        is_in_the_way = code != "input_missing" or not is_merged
        problems.append(Problem(code, f"{entry['path']}: this input {what}.", mend, is_in_the_way))
    return problems


def _has_other_bytes(path: Path, entry: dict[str, Any], planned: Path, verifies: bool) -> bool:
    is_small = entry["bytes"] <= MOST_HASHED
    if verifies or (is_small and is_newer(path, planned)):
        return sha256_of(path) != str(entry["sha256"])
    return False


def is_newer(path: Path, than: Path) -> bool:
    """Tell whether `path` was written to after `than`; not when it is not there."""
    return path.exists() and path.stat().st_mtime > than.stat().st_mtime


def check_weights(folder: Results, plan: dict[str, Any], has_work: bool) -> list[Problem]:
    """Return what is wrong with the weights; that is in nobody's way when nothing is left to do."""
    if not plan.get("weights"):
        return []
    name, path = plan["weights"], placed(folder.root, plan["weights"])
    model = plan["settings"]["options"].get("model", "MODEL")
    verb = f"featuremill weights {shlex.quote(model)} --output {shlex.quote(name)}"
    if not path.exists():
        what, mend = "the weights are gone", Mend(verb=verb)
    elif not {"path", "bytes", "sha256"} <= set(entry := read_json(path) or {}):
        what, mend = "this cannot be read as weights", Mend(remove=(path,), verb=verb)
    elif not has_size(placed(folder.root, entry["path"]), entry["bytes"]):
        what = f"its weights {entry['path']} are gone or not whole"
        mend = Mend(remove=(path,), verb=verb)
    elif entry["sha256"] != plan["settings"].get("weights_sha256"):
        what, mend = "these are other weights than those of the plan", Mend("plan")
    else:
        return []
    code = "weights_changed" if mend.again else "weights_missing"
    return [Problem(code, f"{name}: {what}.", mend, has_work)]


def check_versions(plan: dict[str, Any]) -> list[Problem]:
    """Return whether the plan is for other versions than those here, whose values would differ."""
    others = other_versions_here(Settings.model_validate(plan["settings"]))  # border
    what = f"plan.json: here is {others}, which it was made for; the next run computes all anew."
    return [Problem("version_changed", what, Mend("plan"))] if others else []


def check_manifest(
    folder: Results, plan: dict[str, Any], is_readable: bool, verifies: bool
) -> list[Problem]:
    """Return what is wrong with manifest.parquet."""
    path, mend = folder.manifest, Mend("plan")
    if not path.exists():
        what = f"{path.name}: it is gone; it says which record is where."
    elif not _is_parquet(path):
        what = f"{path.name}: it cannot be read."
    elif verifies and sha256_of(path) != plan["manifest_sha256"]:
        what = f"{path.name}: it does not belong to plan.json."
        mend = Mend("plan", seen_by="nobody")
    elif not is_readable:
        what = f"{path.name}: it cannot be read."
        mend = Mend("plan", seen_by="nobody")
    else:
        return []
    return [Problem("manifest_missing", what, mend)]


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


def check_parts(
    folder: Results, plan: dict[str, Any], shards: list[Shard], verifies: bool
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
    if verifies and (damaged := [s.name for s in shards if _is_damaged(folder, plan, s)]):
        what = f"{_named(damaged)}: the bytes of a part are not those that were written."
        mend = Mend("extract", tuple(damaged), seen_by="nobody")
        problems.append(Problem("part_damaged", what, mend))
    return problems


def _named(shards: list[str]) -> str:
    """Return the first of `shards` as the verbs call it, and how many more there are."""
    more = f" and {len(shards) - 1:,} more" if len(shards) > 1 else ""
    return f"shard {shards[0][:8]}{more}"


def _is_damaged(folder: Results, plan: dict[str, Any], shard: Shard) -> bool:
    from featuremill.store.journal import digest_of_file

    if shard.state != "finished" or not shard.receipt:
        return False
    return digest_of_file(folder.part(plan["recipe"], shard.name)) != str(shard.receipt["part"])


def placed(root: Path, path: str) -> Path:
    """Return where `path` of a plan lies: verbs get paths from the folder that holds results/."""
    beside = root.parent.parent / path
    return beside if beside.exists() else Path(path)
