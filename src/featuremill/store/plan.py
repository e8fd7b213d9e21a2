"""plan.json: the input, the shards to compute, and the settings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from featuremill.base.words import counted
from featuremill.store.files import JsonFile, Record

SHARDS_A_SLOT = 2
"""Fewer shards for each slot leave slots idle at the end, as some shards take longer."""


class Settings(Record):
    """The settings that determine the values of a run; their digest is the recipe."""

    workload: str
    version: str
    """The workload's VERSION."""
    options: dict[str, Any]
    """The workload's resolved options, without those of `Plan.execution`."""
    weights_sha256: str | None
    files: dict[str, str] = {}
    """The sha256 of the file or folder that an option names, by option."""
    engine: int = 1
    """The core's version; plans of the first version do not have it."""

    def other_versions(self, workload_version: str | None, engine_version: int | None) -> str:
        """Describe how versions differ from the planned ones; "" if they agree, or are None, as in
        early receipts."""
        compared = (
            (f"workload {self.workload}", self.version, workload_version),
            ("featuremill's engine", self.engine, engine_version),
        )
        return " and ".join(
            f"version {actual} of {what} and not version {planned}"
            for what, planned, actual in compared
            if actual not in (None, planned)
        )


class Input(Record):
    path: str
    bytes: int
    records: int = 0
    sha256: str


class Counts(Record):
    """Numbers of records of the input: input = refused + duplicate + planned."""

    input: int
    refused: int
    duplicate: int
    planned: int
    unique: int
    """Payloads to compute. Kept shards may have some that only an earlier input had."""


class Lengths(Record):
    """Lengths of the input's good records, in the workload's LENGTH_UNIT."""

    total: int
    longest: int
    costliest: int = 0
    """The highest cost of a record, in the workload's COST_UNIT; early plans do not have it."""
    unit: str = "residues"
    """The unit of the other lengths; not written for proteins."""


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True))
class PlannedShard:
    """A shard of the plan. A plan may have very many, so each takes little memory."""

    shard: str
    records: int
    wanted: int
    """Records that the input has; after an edit of it, the shard may have others, too."""
    cost: int
    bytes: int
    """The size of the shard's file."""


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True))
class SharedPart(PlannedShard):
    """A part of a store that has values of the plan's records. Its name in records.parquet is the
    digest of its bytes, and `bytes` is the size of its file."""

    path: str


class Plan(JsonFile):
    run: str
    workload: str
    workload_version: str
    cost_unit: str
    recipe: str
    settings: Settings
    execution: dict[str, Any] = {}
    """Options that do not determine the values, such as paths of files."""
    asked: dict[str, Any] = {}
    """The options that do, as in the config, unresolved; early plans do not have it."""
    device: Literal["auto", "cuda", "cpu"]
    gpus: int = 1
    """Devices that share one model."""
    slots: int = 1
    """Number of parallel jobs for which the shards were cut."""
    weights: str | None
    """The path of weights/<name>.json."""
    inputs: list[Input]
    counts: Counts
    notes: dict[str, int] = {}
    """Number of changed records, by the description of the change."""
    refusals: dict[str, int] = {}
    lengths: Lengths
    records_sha256: str
    shards: list[PlannedShard]
    store: list[str] = []
    """Folders of shared stores: all are read, and the first is written."""
    taken: list[SharedPart] = []
    """The parts that the run takes from stores."""

    @property
    def sources(self) -> list[PlannedShard]:
        """All sources of values in records.parquet: the shards, then the parts of stores."""
        return [*self.shards, *self.taken]

    @property
    def num_taken(self) -> int:
        """Distinct records whose values are taken from stores."""
        return sum(part.wanted for part in self.taken)

    @property
    def cost(self) -> int:
        """The cost of all distinct records, of stores too."""
        return sum(source.cost for source in self.sources)

    def too_few(self, num_left: int) -> str:
        """Return a warning if the `num_left` shards to compute are too few for the slots, or ""."""
        if self.slots == 1 or not 0 < num_left < SHARDS_A_SLOT * self.slots:
            return ""
        slots = (
            f"{self.slots:,} slots of {self.gpus} GPUs"
            if self.gpus > 1
            else f"{self.slots:,} GPU slots"
        )
        idle = self.slots - num_left
        effect = "some wait while others finish"
        if idle > 0:
            effect = f"{idle:,} of them {'gets' if idle == 1 else 'get'} no work"
        return f"{counted(num_left, 'shard')} for {slots}: {effect}."
