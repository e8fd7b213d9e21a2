"""What finished files were made of: results/<run>/.state/<product>.json.

plan.json and manifest.json say it of a plan and of results. The files of steps and the report have
such a file beside them, written last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from featuremill.base.file_times import came_at
from featuremill.store import ours
from featuremill.store.files import digest_at
from featuremill.store.json_file import JsonFile, Record
from featuremill.store.known_digests import known_sha256_of

FOLDER = ".state"


class Seen(Record):
    """A file as it was read or written."""

    sha256: str
    looks: list[int] = Field(default_factory=list)
    """Its size, both times and inode; of a folder nothing."""

    @classmethod
    def at(cls, path: Path, folder: Path) -> Seen:
        """Return how the file at `path` is; digests of large ones are kept in `folder`."""
        if path.is_dir():
            return cls(sha256=digest_at(path))
        return cls(sha256=known_sha256_of(path, folder), looks=ours.looks(path))

    def is_at(self, path: Path, folder: Path) -> bool:
        """Return whether the file at `path` has the same content."""
        if self.looks and not path.is_dir():
            now = ours.looks(path)
            if now == self.looks or now[0] != self.looks[0]:
                return now == self.looks
        return Seen.at(path, folder).sha256 == self.sha256


class State(JsonFile):
    """The file."""

    asked: dict[str, Any] = Field(default_factory=dict)
    """What the config asked for, by key."""
    sources: list[str] = Field(default_factory=list)
    """The files that were read, in their order."""
    made_of: dict[str, Seen] = Field(default_factory=dict)
    """How these were, by path, as far as that is known."""
    files: dict[str, Seen] = Field(default_factory=dict)
    """What was made, by path."""

    def is_of(self, files: Iterable[str], folder: Path) -> bool:
        """Return whether this is about `files` as they are now."""
        return all(
            (seen := self.files.get(file)) and seen.is_at(Path(file), folder) for file in files
        )

    def others(self, folder: Path) -> list[str]:
        """Return which of the files that were read are others now; what is gone is left out."""
        return [
            path
            for path in dict.fromkeys(self.sources)
            if Path(path).exists()
            and not ((seen := self.made_of.get(path)) and seen.is_at(Path(path), folder))
        ]


def path_of(folder: str, product: str) -> str:
    """Return the file about what is called `product` in the project's, or the run's, folder."""
    return f"{folder}/{FOLDER}/{product}.json"


def note(
    path: Path, files: Iterable[str], made_of: Sequence[str], asked: Mapping[str, Any]
) -> None:
    """Write that `files` were made, the last one last, of `made_of` and as it was `asked`.

    Of what came to its place after that it is not known whether it was read.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    made = {file: Seen.at(Path(file), folder) for file in files}
    finished = Path([*made][-1]).stat().st_mtime
    existing = [Path(read) for read in made_of if Path(read).exists()]
    read = {str(each): Seen.at(each, folder) for each in existing if came_at(each) <= finished}
    State(asked=dict(asked), sources=[*made_of], made_of=read, files=made).write(path)


def damaged(files: Iterable[str]) -> list[str]:
    """Return which of `files` were changed since featuremill wrote them, as far as that is
    recorded."""
    return [file for file in files if ours.latest(Path(file)) and not ours.is_ours(Path(file))]
