"""plan.json: what is to be computed, in which shards, of which input."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from featuremill.base.words import counted
from featuremill.store.json_file import JsonFile, Record

SHARDS_A_SLOT = 2
"""At least, so that what one of them takes longer than another is less of the whole."""


class Settings(Record):
    """Everything that determines a run's values; their digest is the recipe."""

    workload: str
    version: str
    """Of the workload."""
    options: dict[str, Any]
    """The workload's own, settled, but for those that say how to compute."""
    weights_sha256: str | None
    files: dict[str, str] = {}
    """The sha256 of what each option holds that names a file or a folder."""
    engine: int = 1
    """The core's version; the first engine's plans do not tell it."""

    def other_versions(self, workload_version: str | None, engine_version: int | None) -> str:
        """Return how versions differ from the planned ones, in words; nothing where they agree, or
        where None says that nobody knows, as of early receipts."""
        compared = (
            (f"workload {self.workload}", self.version, workload_version),
            ("featuremill's engine", self.engine, engine_version),
        )
        return " and ".join(
            f"version {found} of {what} and not version {planned}"
            for what, planned, found in compared
            if found not in (None, planned)
        )


class Input(Record):
    """An input file as it was when it was planned."""

    path: str
    bytes: int
    records: int = 0
    sha256: str


class Counts(Record):
    """Records of the input: input = refused + duplicate + planned."""

    input: int
    refused: int
    duplicate: int
    planned: int
    unique: int
    """Payloads to compute, with those that only an earlier input had in shards that stay."""


class Lengths(Record):
    """Of the input's good records, in the workload's LENGTH_UNIT."""

    total: int
    longest: int
    unit: str = "residues"
    """What is counted; of proteins it is not told."""


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True))
class PlannedShard:
    """A shard of the plan. There may be very many, so each is small."""

    shard: str
    records: int
    wanted: int
    """Records that the input has now; an edit may have left others in the shard."""
    cost: int
    bytes: int
    """Of the shard's file."""


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True))
class SharedPart(PlannedShard):
    """A part of a store that holds values of the plan's records; records.parquet names it like a
    shard, by the digest of its bytes, and `bytes` are those of its file."""

    path: str


class Plan(JsonFile):
    """What plan.json says."""

    run: str
    workload: str
    workload_version: str
    cost_unit: str
    recipe: str
    settings: Settings
    execution: dict[str, Any] = {}
    """Options that say how to compute and not what, paths of files among them."""
    device: Literal["auto", "cuda", "cpu"]
    """As the config has it."""
    gpus: int = 1
    """Devices that hold one model together."""
    slots: int = 1
    """Jobs side by side for which the shards that are not begun were cut."""
    weights: str | None
    """The weights' JSON file, as the config's folder has it."""
    inputs: list[Input]
    counts: Counts
    notes: dict[str, int] = {}
    """What was fixed in records, and in how many."""
    refusals: dict[str, int] = {}
    lengths: Lengths
    records_sha256: str
    shards: list[PlannedShard]
    """What the run computes itself."""
    store: list[str] = []
    """Folders of stores: all are read, and the first is written; none, and not told, without."""
    taken: list[SharedPart] = []
    """What it takes from them."""

    @property
    def sources(self) -> list[PlannedShard]:
        """What records.parquet names: the shards, then the parts that are taken."""
        return [*self.shards, *self.taken]

    @property
    def num_taken(self) -> int:
        """Distinct records that stores have."""
        return sum(part.wanted for part in self.taken)

    @property
    def cost(self) -> int:
        """Of all records, also of those that are taken."""
        return sum(source.cost for source in self.sources)

    def too_few(self, num_left: int) -> str:
        """Return a sentence where so many shards, which are left to compute, do not give every slot
        work to the end; "" where they do."""
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
