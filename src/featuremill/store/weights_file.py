"""weights/<name>.json: the converted weights of a model, and their path."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from featuremill.store.files import JsonFile, Record


class CheckpointFile(Record):
    kind: str
    """bundled, published or local."""
    location: str
    """Its path or URL."""
    sha256: str
    bytes: int


class FileOfWeights(Record):
    path: str
    """Relative to the folder."""
    bytes: int
    sha256: str


class WeightsFile(JsonFile):
    """The content of weights/<name>.json, and of the file beside the weights in the cache."""

    name: str
    path: str
    bytes: int
    """Of the file `path`, or of all files in the folder."""
    sha256: str
    files: list[FileOfWeights] = Field(default_factory=list)
    """The files in `path`, if it is a folder."""
    source: CheckpointFile | None = None
    metadata: dict[str, str]

    def is_at(self, path: Path) -> bool:
        files = {path / file.path: file.bytes for file in self.files} or {path: self.bytes}
        return all(file.is_file() and file.stat().st_size == n for file, n in files.items())

    @property
    def is_there(self) -> bool:
        """Whether the weights are at their path, with their sizes."""
        return self.is_at(Path(self.path))
