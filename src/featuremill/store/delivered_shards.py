"""The files that `deliver` jobs write for results by shard, described in small JSON files.

store/delivered/<key>/            the files of a shard's rows, undeclared: no rule removes them
receipts/delivered/<number>.json  the files of a job's shards, an output of its rule
"""

from __future__ import annotations

from pathlib import Path

from featuremill.store.files import JsonFile, Record
from featuremill.store.results import Results

FOLDER = "delivered"
ANSWER, FAILURES = "delivered.json", "failed.arrow"
"""Files beside those of a shard's rows: the DeliveredShard, and the failed records."""
IDENTITIES = "identities"
"""The folder of a store with records.parquet laid out by shard."""


class DeliveredFile(Record):
    """A file of rows of one shard."""

    output: str
    path: str
    """Inside the folder of its shard."""
    rows: int
    bytes: int
    sha256: str
    mtime_ns: int
    folder: str = ""
    """Its folder in the results, such as sample=a, if all its rows are of one sample."""


class DeliveredShard(JsonFile):
    """The files of a shard's rows, and facts about its part and its records for merge."""

    shard: str
    key: str
    """The digest of everything that determines the files, and the name of their folder."""
    part: str
    """The digest of its part."""
    values: str
    """The digest of its part's columns."""
    rows: int
    """Records that were planned."""
    failed: int
    files: list[DeliveredFile]
    part_mtime_ns: int


class Delivered(JsonFile):
    """What a job delivered."""

    records_sha256: str
    recipe: str
    outputs: list[str]
    shards: list[DeliveredShard]


def receipt_of(folder: Results, number: int) -> Path:
    return folder.root / "receipts" / FOLDER / f"{number:04d}.json"


def folder_of(folder: Results, key: str) -> Path:
    return folder.store / FOLDER / key
