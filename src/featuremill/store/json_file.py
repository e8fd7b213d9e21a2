"""JSON files of a run as typed, frozen objects: written whole and sealed, checked when read.

Keys that this version does not know are kept: a file goes back as it came. A file of a newer
version is not read at all, as its keys may mean something else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from featuremill.base.errors import IntegrityError, UserError
from featuremill.store.files import SEAL, seal_of, sealed, write_json

Number = int | float
"""A count or a measure, written as it was: 0 and 0.0 are other bytes."""


class Record(BaseModel):
    """What stands in such a file, or in a part of it."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object: keys in the order of the fields, those that were never told left
        out."""
        return self.model_dump(mode="json", exclude_unset=True)


class JsonFile(Record):
    """A whole file."""

    NEWEST: ClassVar[int] = 1
    """The newest `version` that is understood."""
    REMEDY: ClassVar[str] = "delete it and run the same command again: what is computed is kept"
    IS_SEALED: ClassVar[bool] = True
    """Whether it is written with a digest of itself. One that is read without it counts as whole:
    older files have none."""

    version: int = 1
    seal: str | None = Field(default=None, exclude=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what the file `path` says.

        Raises:
            FileNotFoundError: when there is none.
            IntegrityError: when it is not what was written.
            UserError: when a newer featuremill wrote it.
        """
        found = cls._parsed(path)
        if found is None:
            raise IntegrityError(f"{path}: its content is not what was written; {cls.REMEDY}.")
        return found

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Return what the file `path` says; None when it is not there, or not what was written.

        Raises:
            UserError: when a newer featuremill wrote it.
        """
        try:
            return cls._parsed(path)
        except FileNotFoundError:
            return None

    @classmethod
    def _parsed(cls, path: Path) -> Self | None:
        try:
            text = path.read_text("utf-8")
            value = json.loads(text)
        except FileNotFoundError:
            raise
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        version = value.get("version", 1)
        if isinstance(version, int) and version > cls.NEWEST:
            raise UserError(
                f"{path}: a newer featuremill wrote it (version {version} of this file, and here "
                f"{cls.NEWEST} is the newest that is known); use that featuremill, or a new `run`."
            )
        if value.pop(SEAL, None) not in (None, seal_of(value)):
            return None
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

    def write(self, path: Path, is_synced: bool = True) -> None:
        """Write the file `path` as `replacing` does, readable by people."""
        value = self.as_json()
        write_json(path, sealed(value) if self.IS_SEALED else value, is_synced)
