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
    """All that determines a run's values; their digest is the recipe."""

    workload: str
    version: str
    """Of the workload."""
    options: dict[str, Any]
    """The workload's settled options, without those of `Plan.execution`."""
    weights_sha256: str | None
    files: dict[str, str] = {}
    """The sha256 of the file or folder that an option names, by option."""
    engine: int = 1
    """The core's version; plans of the first version do not have it."""

    def other_versions(self, workload_version: str | None, engine_version: int | None) -> str:
        """Return how versions differ from the planned ones, in words; "" where they agree, or are
        None, as in early receipts."""
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
    """Payloads to compute, with those that only an earlier input had in shards that stay."""


class Lengths(Record):
    """Lengths of the input's good records, in the workload's LENGTH_UNIT."""

    total: int
    longest: int
    costliest: int = 0
    """The highest cost of one, in the workload's COST_UNIT; early plans do not have it."""
    unit: str = "residues"
    """What is counted; not written for proteins."""


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True))
class PlannedShard:
    """A shard of the plan. A plan may have very many, so each takes little memory."""

    shard: str
    records: int
    wanted: int
    """Records that the input has; an edit of it may have left others in the shard."""
    cost: int
    bytes: int
    """Of the shard's file."""


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
    """The options that do, as the config has them, with "auto" where that stands there; early plans
    do not have it."""
    device: Literal["auto", "cuda", "cpu"]
    """As the config has it."""
    gpus: int = 1
    """Devices that share one model."""
    slots: int = 1
    """Parallel jobs for which shards without computed records were cut."""
    weights: str | None
    """The weights' JSON file, as seen from the config's folder."""
    inputs: list[Input]
    counts: Counts
    notes: dict[str, int] = {}
    """How many records were changed, by what was changed."""
    refusals: dict[str, int] = {}
    lengths: Lengths
    records_sha256: str
    shards: list[PlannedShard]
    """The shards that the run computes."""
    store: list[str] = []
    """Folders of stores: all are read, and the first is written; not written without a store."""
    taken: list[SharedPart] = []
    """The parts that the run takes from them."""

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
        """Return a sentence if the `num_left` shards to compute are too few for the slots; "" if
        not."""
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
