"""What jobs have delivered of a run whose results are shard by shard, in small JSON files.

store/delivered/<key>/            the files of a shard's rows, undeclared: no rule removes them
receipts/delivered/<number>.json  what a job delivered of its shards: an output of its rule
"""

from __future__ import annotations

from pathlib import Path

from featuremill.store.files import JsonFile, Record
from featuremill.store.results import Results

FOLDER = "delivered"
ANSWER, FAILURES = "delivered.json", "failed.arrow"
"""Files beside those of a shard's rows: what was delivered, and its failed records."""
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
    """Its folder in the results, as in sample=a, if all its rows are of a sample."""


class DeliveredShard(JsonFile):
    """What was delivered of a shard: what merge needs of its part and its records."""

    shard: str
    key: str
    """The digest of all that its files are made of; their folder's name."""
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
    """Return the JSON file of the delivering job of this number."""
    return folder.root / "receipts" / FOLDER / f"{number:04d}.json"


def folder_of(folder: Results, key: str) -> Path:
    """Return the folder with the files of a shard."""
    return folder.store / FOLDER / key
