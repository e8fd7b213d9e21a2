"""What the report is about, read from a run's files in bounded memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featuremill.errors import IntegrityError, UserError
from featuremill.outputs import FILES, file_name, files_of
from featuremill.receipts import device_name, devices_of, is_on_gpu
from featuremill.report import failures, labels, projection, roofs, words
from featuremill.report.labels import Labels
from featuremill.report.roofs import Roof
from featuremill.report.timeline import Interval, seconds_of, wall_seconds
from featuremill.store import RunFolder


class Lengths(NamedTuple):
    """How long the planned records are: each length that occurs, and how often."""

    values: np.ndarray
    counts: np.ndarray

    @property
    def total(self) -> int:
        return int((self.values * self.counts).sum())

    def quantile(self, share: float) -> int:
        """Return the length that `share` of the records do not exceed."""
        reached = np.searchsorted(self.counts.cumsum(), share * self.counts.sum())
        return int(self.values[min(int(reached), len(self.values) - 1)])


class Shard(NamedTuple):
    """One receipt, as the figures use it."""

    name: str
    host: str
    device: str
    """The device's model, such as "NVIDIA H200" or "2 × NVIDIA L4"."""
    lane: str
    """The device, or those that held one model together: model, identity and host."""
    tokens: int
    rows: int
    failed: int
    resumed_batches: int
    crashes: int
    oom_splits: int
    seconds: dict[str, float]
    """By stage, and in total. `prepare` and `write` go on beside `run`."""
    claimed: Interval
    """From the job's start, waiting for a device included."""
    working: Interval
    """On the device."""

    @property
    def rate(self) -> float:
        """Tokens a second on the device, loading included."""
        return self.tokens / max(self.working.end - self.working.begin, 1e-3)

    @property
    def running_rate(self) -> float | None:
        """Tokens a second while it computed; None where that was too short to say."""
        return self.tokens / self.seconds["run"] if self.seconds["run"] >= 0.01 else None


class Piece(NamedTuple):
    """What a device did at one time: a shard's last attempt, or an earlier one."""

    name: str
    """The shard's."""
    lane: str
    working: Interval
    shard: Shard | None
    """None for an attempt that ended before the shard was done."""


class Facts(NamedTuple):
    """Everything that the page and the figures say."""

    manifest: dict[str, Any]
    lengths: Lengths
    shards: list[Shard]
    problems: failures.Problems
    embedding: projection.Projection | str
    """The map of the embeddings, or the sentence that says why there is none."""
    doubts: list[str]
    """Where the files contradict the manifest; empty in every good run."""
    labels: Labels | None = None
    """What the points of the map are coloured by, where that is not their length."""
    roofs: Mapping[str, Roof] = MappingProxyType({})
    """By device, where one was measured."""

    @property
    def wall_seconds(self) -> float:
        """Clock time from the first shard to the last; long pauses, when nothing ran, left out."""
        return wall_seconds(shard.claimed for shard in self.shards)

    def busy_seconds(self, lane: str) -> float:
        """Return the clock time in which the device of `lane` was at work."""
        return seconds_of(shard.working for shard in self.shards if shard.lane == lane)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def pieces(self) -> list[Piece]:
        """All that the timeline shows."""
        return [Piece(s.name, s.lane, s.working, s) for s in self.shards]


class Wishes(NamedTuple):
    """What the report is asked to take in besides the run's own files."""

    label_file: Path | None = None
    label: str = ""
    """The column of `label_file`."""
    roofs: tuple[Path, ...] = ()
    """Records of a benchmark."""


NO_WISHES = Wishes()


def read(root: Path, is_partial: bool = False, wishes: Wishes = NO_WISHES) -> Facts:
    """Return the facts of the merged run in `root`; raise UserError where there is none."""
    manifest_path = root / file_name("manifest.json", is_partial)
    if not manifest_path.exists():
        first = f"featuremill merge {root} --partial" if is_partial else "snakemake"
        raise UserError(f"{manifest_path}: there are no merged results here; run {first} first.")
    try:
        manifest = json.loads(manifest_path.read_text("utf-8"))
        facts = _read(root, manifest, is_partial)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        # Damaged JSON can lack any key, and a damaged table raises what its reader likes.
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise IntegrityError(
            f"{manifest_path}: it, or a file that it names, is damaged or gone ({problem}); "
            "delete manifest.json and run the same command again."
        ) from error
    if wishes.label_file is not None and not isinstance(facts.embedding, str):
        found = labels.read(wishes.label_file, wishes.label, facts.embedding.ids)
        facts = facts._replace(labels=found)
    threads = {device_name(r): r["threads"] for r in manifest["receipts"]}
    return facts._replace(roofs=roofs.measured(wishes.roofs, manifest["settings"], threads))


def _read(root: Path, manifest: dict[str, Any], is_partial: bool) -> Facts:
    problems = failures.read(root / file_name("failed.tsv", is_partial))
    rows, lengths = _lengths(RunFolder(root).manifest)
    shards = sorted((_shard(receipt) for receipt in manifest["receipts"]), key=lambda s: s.claimed)
    embedding: projection.Projection | str = (
        "This run wrote no embeddings.parquet; add parquet to its outputs to see the map."
    )
    found = {"manifest.parquet": rows, "failed.tsv": problems.listed}
    for output in ("parquet_dataset", "parquet"):
        path = root / file_name(FILES[output], is_partial)
        if path.name in manifest["outputs"]:
            paths = files_of(path)
            num_rows = sum(pq.read_metadata(path).num_rows for path in paths)
            found["embeddings.parquet"] = num_rows
            embedding = projection.read(paths, num_rows)
    doubts = _doubts(manifest["counts"], found)
    return Facts(manifest, lengths, shards, problems, embedding, doubts)


def _doubts(counts: dict[str, int], rows: dict[str, int]) -> list[str]:
    """Compare what the manifest claims with what the files hold: two witnesses, not one."""
    claimed = {
        "manifest.parquet": counts["input"],
        "failed.tsv": counts["failed"] + counts["refused"] + counts.get("pending", 0),
        "embeddings.parquet": counts["ok"],
    }
    return [
        f"{name} holds {number:,} records where manifest.json says {claimed[name]:,}."
        for name, number in rows.items()
        if number != claimed[name]
    ]


def _lengths(path: Path) -> tuple[int, Lengths]:
    """Return the number of input records, the planned ones' lengths, by batches."""
    lengths = Counter[int]()
    with pq.ParquetFile(path, buffer_size=2**20) as file:
        for batch in file.iter_batches(columns=["status", "length"]):
            status = batch.column("status").cast(pa.string())
            planned = batch.column("length").filter(pc.equal(status, "planned"))
            for pair in planned.value_counts().to_pylist():
                lengths[pair["values"]] += pair["counts"]
        rows = file.metadata.num_rows
    ordered = sorted(lengths)
    counts = np.array([lengths[value] for value in ordered], np.int64)
    return rows, Lengths(np.array(ordered, np.int64), counts)


def _shard(receipt: dict[str, Any]) -> Shard:
    devices, host = devices_of(receipt), failures.clipped(receipt["host"])
    seconds: dict[str, float] = receipt["seconds"]
    started, finished = words.parsed(receipt["started"]), words.parsed(receipt["finished"])
    # A receipt may carry whole seconds; its durations are finer.
    finished = max(finished, started + seconds["total"])
    name = failures.clipped(device_name(receipt))
    uuids = "+".join(sorted(device["uuid"].removeprefix("GPU-")[:8] for device in devices))
    identity = f" {uuids}" if is_on_gpu(receipt) else ""
    return Shard(
        name=receipt["shard"],
        host=host,
        device=name,
        lane=f"{name}{identity} · {host}",
        tokens=receipt["cost"],
        rows=receipt["rows"],
        failed=receipt["failed"],
        resumed_batches=receipt["resumed_batches"],
        crashes=receipt["retries"],
        oom_splits=receipt["oom_splits"],
        seconds=seconds,
        claimed=Interval(started, finished),
        working=Interval(min(started + seconds["wait"], finished), finished),
    )
