"""merge: gather the parts into results in input order, and account for every record.

Reads plan.json, manifest.parquet, the receipts and the parts; writes what the run asks for,
failed.tsv and, last, manifest.json. Refuses to deliver unless input = ok + failed + refused +
duplicate, every part's bytes are those of its receipt, and every row has the sha256 it should.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import fcntl
import json
import logging
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from featuremill import __version__
from featuremill.errors import IntegrityError, UserError
from featuremill.gather import Gatherer
from featuremill.outputs import FILES, Target, open_writer
from featuremill.parts import Part, open_part
from featuremill.receipts import device_name, devices_of, is_on_gpu
from featuremill.store import RunFolder, replacing, sha256_of, write_json

MANIFEST_VERSION = 1
FAILED_COLUMNS = ("id", "source", "line", "status", "reason")
log = logging.getLogger("featuremill.merge")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill merge`."""
    parser.add_argument("run_folder", type=Path, help="results/<run>")
    parser.add_argument("--outputs", nargs="*", default=[], choices=list(FILES))
    parser.add_argument("--max-failed", type=int, default=0)


def run(arguments: argparse.Namespace) -> None:
    """Carry out `featuremill merge`."""
    folder = RunFolder(arguments.run_folder)
    with (folder.store / "merge.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merge(folder, arguments.outputs, arguments.max_failed)


def merge(folder: RunFolder, outputs: list[str], max_failed: int) -> dict[str, Any]:
    """Write the results of `folder`'s plan and return what manifest.json says.

    Raises:
        IntegrityError: when a part is not what its receipt says, or the sums don't agree.
        UserError: when more records failed than `max_failed`; nothing is lost.
    """
    plan = json.loads(folder.plan.read_text("utf-8"))
    if sha256_of(folder.manifest) != plan["manifest_sha256"]:
        raise IntegrityError(
            f"{folder.manifest}: it does not belong to {folder.plan.name}; delete both and run the "
            "same command again."
        )
    names = [shard["shard"] for shard in plan["shards"]]
    parts = _open_parts(folder, plan)
    _clear(folder, outputs)
    gatherer = Gatherer(folder.manifest, names, parts)
    counts = _account(gatherer, plan, folder.store / "failed.tsv")
    if counts["failed"] > max_failed:
        raise UserError(
            f"{counts['failed']:,} of {counts['input']:,} records failed and max_failed is "
            f"{max_failed:,}: {folder.store / 'failed.tsv'} has each one's reason; raise "
            "max_failed to get the results of the others, which are computed and kept."
        )
    files = _write(gatherer, folder, outputs, plan, counts["ok"])
    with replacing(folder.root / "failed.tsv") as temporary:
        temporary.write_bytes((folder.store / "failed.tsv").read_bytes())
    result = _manifest(plan, parts, counts, files)
    write_json(folder.root / "manifest.json", result)
    _say(folder, result)
    return result


def _open_parts(folder: RunFolder, plan: dict[str, Any]) -> list[Part]:
    """Return every part; when some are not right, all of them are set aside before the error."""
    parts, problems = [], []
    for shard in plan["shards"]:
        try:
            parts.append(open_part(folder, plan["recipe"], shard["shard"], shard["records"]))
        except IntegrityError as problem:
            problems.append(problem)
    if problems:
        others = f" ({len(problems) - 1} more like it)" if len(problems) > 1 else ""
        raise IntegrityError(f"{problems[0]}{others}")
    return parts


def _clear(folder: RunFolder, outputs: list[str]) -> None:
    """Remove what would contradict the new results: old ones, and halves of a killed merge."""
    (folder.root / "manifest.json").unlink(missing_ok=True)
    for name, file in FILES.items():
        if name not in outputs:
            (folder.root / file).unlink(missing_ok=True)
        for half in folder.root.glob(f".{file}.*"):
            half.unlink()


def _account(gatherer: Gatherer, plan: dict[str, Any], failed_tsv: Path) -> dict[str, int]:
    """Count every input record, list those without values, and check the sums."""
    counts: Counter[str] = Counter()
    with (
        replacing(failed_tsv) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as handle,
    ):
        table = csv.writer(handle, delimiter="\t", lineterminator="\n")
        table.writerow(FAILED_COLUMNS)
        for block in gatherer.blocks():
            counts.update(block.status.tolist())
            listed = (block.status == "failed") | (block.status == "refused")
            for position in listed.nonzero()[0]:
                row = block.rows.slice(int(position), 1).to_pylist()[0]
                status, reason = block.status[position], block.reasons[position]
                table.writerow([row["id"], row["source"], row["line"], status, reason])
    totals = {kind: counts[kind] for kind in ("ok", "failed", "refused", "duplicate")}
    planned = plan["counts"]
    if sum(totals.values()) != planned["input"] or any(
        totals[kind] != planned[kind] for kind in ("refused", "duplicate")
    ):
        raise IntegrityError(
            f"merge: the records don't add up: plan.json says {planned}, manifest and parts "
            f"{totals}; delete plan.json and run the same command again."
        )
    return {"input": planned["input"], **totals}


def _write(
    gatherer: Gatherer, folder: RunFolder, outputs: list[str], plan: dict[str, Any], num_ok: int
) -> dict[str, Any]:
    """Write every output in one pass over the blocks; return each file's size and sha256."""
    provenance = _provenance(plan)
    paths = {name: folder.root / FILES[name] for name in outputs}
    with ExitStack() as stack:
        writers = []
        for name, path in paths.items():
            temporary = stack.enter_context(replacing(path))
            writer = open_writer(name, Target(temporary, gatherer.values, num_ok, provenance))
            stack.callback(writer.close)
            writers.append(writer)
        num_written = 0
        for block in gatherer.blocks():
            values = gatherer.values_of(block)
            num_written += values.num_rows
            for writer in writers:
                writer.write(values)
        if num_written != num_ok:
            raise IntegrityError(f"merge: {num_written} rows written for {num_ok} ok records.")
    return {path.name: _describe(path) for path in paths.values()}


def _describe(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _provenance(plan: dict[str, Any]) -> dict[str, str]:
    settings = plan["settings"]
    return {
        "model_name": str(settings["options"].get("model", plan["workload"])),
        "workload": plan["workload"],
        "workload_version": plan["workload_version"],
        "options": json.dumps(settings["options"], sort_keys=True),
        "weights_sha256": settings["weights_sha256"] or "",
        "recipe": plan["recipe"],
        "featuremill_version": __version__,
    }


def _manifest(
    plan: dict[str, Any], parts: list[Part], counts: dict[str, int], files: dict[str, Any]
) -> dict[str, Any]:
    receipts = [part.receipt for part in parts]
    on_gpu = [r["seconds"]["total"] * len(devices_of(r)) for r in receipts if is_on_gpu(r)]
    return {
        "version": MANIFEST_VERSION,
        "run": plan["run"],
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "recipe": plan["recipe"],
        "settings": plan["settings"],
        "inputs": plan["inputs"],
        "plan": plan["counts"],
        "lengths": plan["lengths"],
        "notes": plan["notes"],
        "refusals": plan["refusals"],
        "counts": counts,
        "outputs": files,
        "parts": {receipt["shard"]: receipt["part"] for receipt in receipts},
        "gpu_seconds": round(sum(on_gpu), 3),
        "warnings": _warnings(receipts),
        "receipts": receipts,
    }


def _warnings(receipts: list[dict[str, Any]]) -> list[str]:
    """Say what differs between parts that may change values in their last bits."""
    found = []
    devices = sorted({device_name(receipt) for receipt in receipts})
    if len(devices) > 1:
        found.append(f"parts were computed on different devices: {', '.join(devices)}.")
    for package in ("torch", "featuremill"):
        versions = sorted({receipt["versions"].get(package, "none") for receipt in receipts})
        if len(versions) > 1:
            found.append(f"parts were computed with different {package}: {', '.join(versions)}.")
    return found


def _say(folder: RunFolder, result: dict[str, Any]) -> None:
    counts = result["counts"]
    rest = [f"{counts[k]:,} {k}" for k in ("failed", "refused", "duplicate") if counts[k]]
    log.info(
        "%s of %s records ok%s: all accounted for",
        f"{counts['ok']:,}",
        f"{counts['input']:,}",
        "".join(f", {text}" for text in rest),
    )
    for line in result["warnings"]:
        log.warning("%s", line)
    log.info("results are in %s: %s", folder.root, ", ".join([*result["outputs"], "failed.tsv"]))
