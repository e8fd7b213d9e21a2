"""manifest.json: the results, their plan and parts; exports.json: files of later exports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from featuremill.base.words import counted
from featuremill.store.files import JsonFile, Number, Record
from featuremill.store.formats import bytes_of, digest_of_result
from featuremill.store.plan import Counts, Input, Lengths, Plan, Settings
from featuremill.store.receipt import Receipt

SAME = ("run", "recipe", "inputs", "lengths")
"""Keys of plan.json that manifest.json repeats, and that identify its results. The recipe is the
digest of the settings."""


class Written(Record):
    """Size and digest of a result as it was written; of a folder, of all its files together."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path, sha256_by_name: Mapping[str, str]) -> Self:
        """Return size and digest of the result at `path`, whose files have these digests by their
        paths inside it; that of a file is ""."""
        return cls(bytes=bytes_of(path), sha256=digest_of_result(path, sha256_by_name))

    def is_at(self, path: Path) -> bool:
        """Return whether the result at `path` still has this size and digest."""
        return bytes_of(path) == self.bytes and digest_of_result(path) == self.sha256


class Exported(Written):
    """An entry of exports.json: a file that `export` wrote."""

    results: str = ""
    """The sha256 of the manifest.json of the exported results; "" in early files."""


class Accounts(Record):
    """How many input records have which state: `input` is the sum of the others."""

    input: int
    ok: int
    failed: int
    refused: int
    duplicate: int
    pending: int = 0
    """Not computed yet; only partial results have any."""
    taken: int = 0
    """How many of `ok` have their values from a store; only written for a run with a store."""

    @property
    def has_all(self) -> bool:
        """Whether every record has features: none failed, was refused or is pending."""
        return not (self.failed or self.refused or self.pending)

    @property
    def in_words(self) -> str:
        """How many records have features, and the state of the others, in words."""
        have = "has" if self.ok == 1 else "have"
        whole = f"{self.ok:,} of {counted(self.input, 'record')} {have} features"
        if self.taken:
            whole += f" ({self.taken:,} from the store)"
        kinds = (
            (self.failed, "failed"),
            (self.refused, "was refused" if self.refused == 1 else "were refused"),
            (self.duplicate, "is a duplicate" if self.duplicate == 1 else "are duplicates"),
            (self.pending, "is not computed yet" if self.pending == 1 else "are not computed yet"),
        )
        return ", ".join([whole, *(f"{number:,} {what}" for number, what in kinds if number)])


class Taken(Record):
    """A part of a store whose values are in the results, and how it was computed."""

    part: str
    path: str
    records: int
    """Distinct records of the input with values from it."""
    device: str
    versions: dict[str, str] = {}
    host: str = ""
    finished: str = ""


class Delivery(JsonFile):
    """The content of manifest.json, of results or of partial ones."""

    IS_SEALED: ClassVar[bool] = False
    REMEDY: ClassVar[str] = "delete it and run the same command again: merge writes it anew"

    partial: bool = False
    version: int = 1
    run: str
    finished: str = ""
    """ISO 8601, UTC."""
    recipe: str
    records_sha256: str | None = None
    """Of records.parquet; early results do not have it."""
    settings: Settings
    cost_unit: str = ""
    inputs: list[Input]
    plan: Counts
    lengths: Lengths
    notes: dict[str, int] = {}
    refusals: dict[str, int] = {}
    counts: Accounts
    outputs: dict[str, Written]
    """By file name."""
    beside: list[str] = []
    """The files that merge wrote besides them; early results and partial ones do not have it."""
    row_order: str = "input"
    """"shard" where the rows are shard by shard; not written otherwise."""
    parts: dict[str, str]
    """The digest of each shard's part."""
    gpu_seconds: Number = 0
    gpu_energy_j: Number | None = None
    gpu_energy_j_per_million: Number | None = None
    """In the unit of `lengths`."""
    warnings: list[str] = []
    receipts: list[Receipt] = []
    taken: list[Taken] = []

    def is_of(self, plan: Plan) -> bool:
        """Return whether these are results of `plan`; partial ones are of some of its parts."""
        parts, shards = set(self.parts), {source.shard for source in plan.sources}
        return (
            self.records_sha256 in (None, plan.records_sha256)
            and self.plan == plan.counts
            and (parts <= shards if self.partial else parts == shards)
            and all(getattr(self, key) == getattr(plan, key) for key in SAME)
        )
