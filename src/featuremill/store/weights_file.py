"""weights/<name>.json: which converted weights a model has, and where they lie."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from featuremill.store.json_file import JsonFile, Record


class CheckpointFile(Record):
    """The checkpoint that the weights were made of."""

    kind: str
    """bundled, published or local."""
    location: str
    """The path or URL that it is known by."""
    sha256: str
    bytes: int


class FileOfWeights(Record):
    """One of the files of weights that are a folder."""

    path: str
    """Inside the folder."""
    bytes: int
    sha256: str


class WeightsFile(JsonFile):
    """What weights/<name>.json says; the file in the cache beside the weights says the same."""

    name: str
    path: str
    bytes: int
    """Of the file `path`, or of all files in the folder."""
    sha256: str
    files: list[FileOfWeights] = Field(default_factory=list)
    """Where `path` is a folder: what is in it."""
    source: CheckpointFile | None = None
    metadata: dict[str, str]

    def is_at(self, path: Path) -> bool:
        """Tell whether the weights are at `path`, of the sizes that they had."""
        files = {path / file.path: file.bytes for file in self.files} or {path: self.bytes}
        return all(file.is_file() and file.stat().st_size == n for file, n in files.items())

    @property
    def is_there(self) -> bool:
        """Whether the weights are where this says, of the sizes that they had."""
        return self.is_at(Path(self.path))
