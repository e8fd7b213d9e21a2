"""Recompute records, and compare their values with those of the results."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.features.records import Record, Records
from featuremill.kit.devices import DeviceChoice
from featuremill.kit.errors import UserError
from featuremill.kit.processes import versions
from featuremill.kit.runs import Delivery, Results, read_shard
from featuremill.kit.workloads import find_workload, records_of
from featuremill.steps.transfer.recipe import Origin, Recipe

BOUNDS = {"bf16": 2e-2, "fp16": 5e-3}
"""The bound of the mean relative L2 for 16-bit dtypes, as in `featuremill audit`."""
BOUND = 1e-5
"""The bound for other number types on different devices."""
SPREADS = 10
"""With equal device and versions, the bound is this factor times the difference between a record in
a batch and alone; if that is zero, the bits must be equal."""
FARTHEST = 4
"""The bound of a single record, as a multiple of the bound of the mean."""
log = logging.getLogger("featuremill.verify")


class Stored(NamedTuple):
    """Results, and the problems of their files."""

    folder: Results
    delivery: Delivery
    records: Records | None
    """The rows of the table; None if there is no readable table."""
    num_files: int
    """The number of results that were compared with manifest.json."""
    num_parts: int
    """The number of parts in the store that were compared with manifest.json."""
    problems: list[str]


class Drawn(NamedTuple):
    """The records to recompute."""

    seed: int | None
    """The seed of the sample; None for records that the user named."""
    records: dict[int, Record]


class Column(NamedTuple):
    """The comparison of a column with recomputed values."""

    name: str
    records: int
    same: int
    largest: float
    """The largest relative L2 of a record's values; for texts, 1 if they differ."""
    mean: float
    allowed: float
    """The bound of the mean."""
    farthest: str
    """The id of the record with the largest difference."""

    @property
    def holds(self) -> bool:
        return self.mean <= self.allowed and self.largest <= FARTHEST * self.allowed

    @property
    def line(self) -> str:
        """A line with the differences."""
        how = "within" if self.holds else "beyond"
        if self.same == self.records:
            return f"{self.name}: the same bits"
        return (
            f"{self.name}: relative L2 at most {self.largest:.1e} ({self.farthest}), on average "
            f"{self.mean:.1e}: {how} {self.allowed:.0e}; {self.same:,} of {self.records:,} have "
            "the same bits"
        )


def again(
    stored: Stored,
    drawn: Drawn,
    payloads: Mapping[str, bytes],
    device: DeviceChoice | None,
    weights: Path | None,
) -> tuple[list[Column], list[str]]:
    """Compute `payloads` (by sha256), and compare them with the rows of `drawn`. Return the
    comparison of each column, and the problems.

    Raises:
        UserError: the recipe cannot be computed here.
    """
    delivery, folder = stored.delivery, stored.folder
    assert stored.records is not None
    origin = Origin(str(folder.root), delivery.settings, delivery.recipe, "", folder, folder)
    recipe = Recipe(origin, device, [weights] if weights else [], log)
    computed, why = _compute(recipe, payloads)
    problems = [
        f"{record.id!r} has values, and here it fails: {why[record.sha256]}"
        for record in drawn.records.values()
        if record.sha256 in why
    ]
    rows = [row for row, record in drawn.records.items() if record.sha256 in computed]
    if not rows:
        return [], problems
    first = computed[drawn.records[rows[0]].sha256]
    names = [name for name in stored.records.table.schema.names if name in first]
    bound = BOUNDS.get(str(delivery.settings.options.get("dtype", "")), BOUND)
    allowed = dict.fromkeys(names, bound)
    if is_alike(delivery, recipe):
        log.info("device and versions are those of the results; each record is computed alone, too")
        alone = {key: _compute(recipe, {key: payload})[0] for key, payload in payloads.items()}
        for name in names:
            spread = [difference(alone[key][key][name], computed[key][name]) for key in computed]
            allowed[name] = min(bound, SPREADS * max(spread))
    differences: dict[str, list[float]] = {name: [] for name in names}
    ids: list[str] = []
    for number, stored_values in _rows(stored, rows, names):
        record = drawn.records[rows[number]]
        ids.append(record.id)
        for name in names:
            here = computed[record.sha256][name]
            differences[name].append(difference(stored_values[name], here))
    columns = []
    for name, values in differences.items():
        same, most = sum(value == 0.0 for value in values), int(np.argmax(values))
        facts = same, values[most], float(np.mean(values)), allowed[name], ids[most]
        columns.append(Column(name, len(values), *facts))
    problems += [column.line for column in columns if not column.holds]
    return columns, problems


def _compute(
    recipe: Recipe, payloads: Mapping[str, bytes]
) -> tuple[dict[str, dict[str, pa.Scalar[Any]]], dict[str, str]]:
    """Return by sha256 the values of `payloads`, and the reasons of those that failed."""
    sha256, why = list(payloads), dict[str, str]()
    computed: dict[str, dict[str, pa.Scalar[Any]]] = {}
    batches = recipe.batches(
        list(payloads.values()), lambda index, reason: why.update({sha256[index]: reason})
    )
    for places, values in batches:
        for row, equal in enumerate(places):
            of_row = {name: values.column(name)[row] for name in values.schema.names}
            computed |= {sha256[index]: of_row for index in equal}
    return computed, why


def is_alike(delivery: Delivery, recipe: Recipe) -> bool:
    """Return whether all values were computed with the device and versions of this machine."""
    devices = {each.device_name for each in delivery.receipts}
    devices |= {each.device for each in delivery.taken}
    all_versions = [each.versions for each in delivery.receipts]
    all_versions += [each.versions for each in delivery.taken]
    here = versions(all_versions[0]) if all_versions else {}
    return devices == {recipe.device.name} and all(each == here for each in all_versions)


def _rows(
    stored: Stored, rows: Sequence[int], names: Sequence[str]
) -> Iterator[tuple[int, dict[str, pa.Scalar[Any]]]]:
    """Yield the index in `rows` and the values of the table, for each of `rows`."""
    assert stored.records is not None
    for places, batch in stored.records.table.pieces(np.array(rows, np.int64), names):
        for number, index in enumerate(places.tolist()):
            yield index, {name: batch.column(name)[number] for name in names}


def difference(stored: pa.Scalar[Any], here: pa.Scalar[Any]) -> float:
    """Return the relative L2 of two values, 0 if the bits are equal; for texts and values of
    different shapes, 1 if they differ."""
    written, expected = _numbers(stored), _numbers(here)
    if written is None or expected is None or written.shape != expected.shape:
        return float(stored.as_py() != here.as_py())
    expected = expected.astype(written.dtype)  # outputs may have a smaller dtype
    if written.tobytes() == expected.tobytes():
        return 0.0
    size = np.linalg.norm(expected.astype(np.float64))
    distance = np.linalg.norm(written.astype(np.float64) - expected.astype(np.float64))
    return float(distance / size) if size and np.isfinite(distance) else 1.0


def _numbers(scalar: pa.Scalar[Any]) -> npt.NDArray[Any] | None:
    """Return the numbers of a value or a nested list, flattened; None for other types."""
    values = scalar.values if hasattr(scalar, "values") else pa.array([scalar.as_py()], scalar.type)
    while values is not None and hasattr(values.type, "value_type"):
        values = values.flatten()
    if values is None or values.null_count:
        return None
    numbers = values.to_numpy(zero_copy_only=False)
    return numbers if numbers.dtype.kind in "fiu" else None


def payloads_of(
    stored: Stored, records: Mapping[int, Record], inputs: Sequence[Path]
) -> tuple[dict[str, bytes], list[str]]:
    """Return the payloads of `records` by sha256, and the problems.

    Raises:
        UserError: the payloads are not available.
    """
    wanted = {record.sha256 for record in records.values()}
    if not inputs:
        payloads, problems = _from_shards(stored, wanted)
        if wanted <= payloads.keys() or problems:
            return payloads, problems
    plan, rows = stored.folder.find_plan(), stored.records
    if not inputs and plan and rows and not rows.id_columns.keys:
        inputs = [stored.folder.placed(entry.path) for entry in plan.inputs]
    if not inputs or not all(path.is_file() for path in inputs):
        raise UserError(
            f"{stored.folder.root}: its store has no sequences, and its inputs are not here; name "
            "the files with the records (--input FILE), or check digests alone (--recompute 0)."
        )
    return _from_files(stored, records, inputs)


def _from_shards(stored: Stored, wanted: set[str]) -> tuple[dict[str, bytes], list[str]]:
    payloads, problems = dict[str, bytes](), list[str]()
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
            payloads[hashlib.sha256(payload).hexdigest()] = payload
    return payloads, problems


def _from_files(
    stored: Stored, records: Mapping[int, Record], inputs: Sequence[Path]
) -> tuple[dict[str, bytes], list[str]]:
    settings = stored.delivery.settings
    workload = find_workload(settings.workload)
    options = workload.Options.model_validate(settings.options)
    sha256_of_id = {record.id: record.sha256 for record in records.values()}
    wanted, payloads = {*sha256_of_id.values()}, dict[str, bytes]()
    problems: list[str] = []
    for record in records_of(settings.workload, workload, inputs, options):
        if record.reason:
            continue
        sha256 = hashlib.sha256(record.payload).hexdigest()
        if sha256 in wanted:
            payloads[sha256] = record.payload
        if sha256_of_id.get(record.id, sha256) != sha256:
            problems.append(
                f"{record.source}:{record.line}: {record.id!r} has another sequence than the "
                "results have of it"
            )
    named = ", ".join(map(str, inputs))
    problems += [
        f"{named}: no record has the sequence of {id!r}"
        for id, sha256 in sha256_of_id.items()
        if sha256 not in payloads
    ]
    return payloads, problems
