"""weights/<name>.json: which converted weights a model has, and where they lie."""

from __future__ import annotations

from pathlib import Path

from pydantic import field_validator

from featuremill.store.json_file import JsonFile, Record

ARCHITECTURE = ("num_layers", "embed_dim")
"""Whole numbers that `metadata` has of every model."""


class CheckpointFile(Record):
    """The checkpoint that the weights were made of."""

    kind: str
    """bundled, published or local."""
    location: str
    """The path or URL that it is known by."""
    sha256: str
    bytes: int


class WeightsFile(JsonFile):
    """What weights/<name>.json says; the file in the cache beside the weights says the same."""

    name: str
    path: str
    bytes: int
    """Of the file `path`."""
    sha256: str
    source: CheckpointFile | None = None
    metadata: dict[str, str]

    @field_validator("metadata")
    @classmethod
    def _has_numbers(cls, metadata: dict[str, str]) -> dict[str, str]:
        if not all(metadata.get(key, "").isdecimal() for key in ARCHITECTURE):
            raise ValueError(f"{' and '.join(ARCHITECTURE)} are numbers")
        return metadata

    @property
    def is_there(self) -> bool:
        """Whether the weights are where this says, of the size that they had."""
        path = Path(self.path)
        return path.is_file() and path.stat().st_size == self.bytes
