"""What was computed of each record: from the store in the folder, or from files of records."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from featuremill.features.records import Record
from featuremill.kit.errors import UserError
from featuremill.kit.runs import read_shard
from featuremill.kit.workloads import find_workload, records_of
from featuremill.steps.transfer.verify.written import Stored


def payloads_of(
    stored: Stored, records: Mapping[int, Record], inputs: Sequence[Path]
) -> tuple[dict[str, bytes], list[str]]:
    """Return the payloads of `records` by their sha256, and what is wrong with them.

    Raises:
        UserError: they are nowhere.
    """
    wanted = {record.sha256 for record in records.values()}
    if not inputs:
        found, problems = _of_shards(stored, wanted)
        if wanted <= found.keys() or problems:
            return found, problems
    plan, rows = stored.folder.find_plan(), stored.records
    if not inputs and plan and rows and not rows.id_columns.keys:
        inputs = [stored.folder.placed(entry.path) for entry in plan.inputs]
    if not inputs or not all(path.is_file() for path in inputs):
        raise UserError(
            f"{stored.folder.root}: its store has no sequences, and its inputs are not here; name "
            "the files with the records (--input FILE), or check digests alone (--recompute 0)."
        )
    return _of_files(stored, records, inputs)


def _of_shards(stored: Stored, wanted: set[str]) -> tuple[dict[str, bytes], list[str]]:
    found, problems = dict[str, bytes](), list[str]()
    sought = pa.array([bytes.fromhex(sha256) for sha256 in wanted], pa.binary(32))
    for shard in stored.delivery.parts:
        path = stored.folder.shard(shard)
        if not path.is_file():
            continue
        try:
            table = read_shard(path)
        except pa.ArrowInvalid:
            problems.append(f"{path}: its bytes are not those that were written")
            continue
        for payload in table.filter(pc.is_in(table["sha256"], sought))["payload"].to_pylist():
            found[hashlib.sha256(payload).hexdigest()] = payload
    return found, problems


def _of_files(
    stored: Stored, records: Mapping[int, Record], inputs: Sequence[Path]
) -> tuple[dict[str, bytes], list[str]]:
    settings = stored.delivery.settings
    workload = find_workload(settings.workload)
    options = workload.Options.model_validate(settings.options)
    sha256_of_id = {record.id: record.sha256 for record in records.values()}
    wanted, found = {*sha256_of_id.values()}, dict[str, bytes]()
    problems: list[str] = []
    for record in records_of(settings.workload, workload, inputs, options):
        if record.reason:
            continue
        sha256 = hashlib.sha256(record.payload).hexdigest()
        if sha256 in wanted:
            found[sha256] = record.payload
        if sha256_of_id.get(record.id, sha256) != sha256:
            problems.append(
                f"{record.source}:{record.line}: {record.id!r} has another sequence than the "
                "results have of it"
            )
    named = ", ".join(map(str, inputs))
    problems += [
        f"{named}: no record has the sequence of {id!r}"
        for id, sha256 in sha256_of_id.items()
        if sha256 not in found
    ]
    return found, problems
