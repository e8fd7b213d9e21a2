"""What the report is about, read from a run's files in bounded memory."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featuremill.base import words
from featuremill.base.errors import IntegrityError, UserError
from featuremill.report import labels, projection, roofs, usage
from featuremill.report.labels import Labels
from featuremill.report.roofs import Roof
from featuremill.report.shards import Piece, Shard, shard_of
from featuremill.report.timeline import seconds_of, wall_seconds
from featuremill.report.usage import Usage
from featuremill.status import failed_counts
from featuremill.store import command_line
from featuremill.store.formats import FILES, PARTIAL, files_of
from featuremill.store.receipts import device_name
from featuremill.store.results import Results


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


class Facts(NamedTuple):
    """Everything that the page and the figures say."""

    manifest: dict[str, Any]
    lengths: Lengths
    shards: list[Shard]
    pieces: list[Piece]
    """What the timeline shows: the shards, and attempts that ended before theirs was done."""
    problems: failed_counts.Problems
    embedding: projection.Projection | str
    """The map of the embeddings, or the sentence that says why there is none."""
    doubts: list[str]
    """Where the files contradict the manifest; empty in every good run."""
    usage: Usage | None
    """How the devices were used; None where nothing was recorded."""
    labels: Labels | None = None
    """What the points of the map are coloured by, where that is not their length."""
    roofs: Mapping[str, Roof] = MappingProxyType({})
    """By device, where one was measured."""

    @property
    def wall_seconds(self) -> float:
        """Clock time that the timeline shows: with attempts that were cut short, without pauses."""
        return wall_seconds(piece.working for piece in self.pieces)

    def busy_seconds(self, lane: str) -> float:
        """Return the clock time in which the device of `lane` was at work."""
        return seconds_of(piece.working for piece in self.pieces if piece.lane == lane)

    @property
    def lanes(self) -> list[str]:
        """Every device that was at work, each once."""
        return sorted({piece.lane for piece in self.pieces})

    @property
    def num_distinct(self) -> int:
        """Distinct sequences of the plan; a retry computes some of them once more."""
        return int(self.manifest["plan"]["unique"])

    @property
    def cost_unit(self) -> str:
        """What the workload counts, such as "tokens"; manifests of older releases do not say."""
        return failed_counts.clipped(self.manifest.get("cost_unit", "cost"))

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)


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
    manifest_path = (root / PARTIAL if is_partial else root) / "manifest.json"
    if not manifest_path.exists():
        first = command_line.again(root)
        if is_partial:
            first = f"featuremill merge {shlex.quote(str(root))} --partial"
        raise UserError(
            f"{manifest_path}: there are no merged results here; make them first ({first})."
        )
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
    place = root / PARTIAL if is_partial else root
    problems = failed_counts.read(place / "failed.tsv")
    rows, lengths = _lengths(Results(root).manifest)
    shards = sorted(
        (shard_of(receipt) for receipt in manifest["receipts"]), key=lambda s: s.claimed
    )
    embedding: projection.Projection | str = (
        "This run wrote no embeddings.parquet; add parquet to its outputs to see the map."
    )
    found = {"manifest.parquet": rows, "failed.tsv": problems.listed}
    for output in ("parquet_dataset", "parquet"):
        path = place / FILES[output]
        if path.name in manifest["outputs"]:
            paths = files_of(path)
            num_rows = sum(pq.read_metadata(path).num_rows for path in paths)
            found["embeddings.parquet"] = num_rows
            embedding = projection.read(paths, num_rows)
    doubts = _doubts(manifest["counts"], found)
    used = usage.read(Results(root), manifest["recipe"], shards)
    pieces = [Piece(shard.name, shard.lane, shard.working, shard) for shard in shards]
    pieces += used.stopped if used else []
    return Facts(manifest, lengths, shards, pieces, problems, embedding, doubts, used)


def _doubts(counts: dict[str, int], rows: dict[str, int]) -> list[str]:
    """Compare what the manifest claims with what the files hold: two witnesses, not one."""
    claimed = {
        "manifest.parquet": counts["input"],
        "failed.tsv": counts["failed"] + counts["refused"] + counts.get("pending", 0),
        "embeddings.parquet": counts["ok"],
    }
    return [
        f"{name} holds {words.records(number)} where manifest.json says {claimed[name]:,}."
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
