"""JSON files of a run as typed, frozen objects: written atomically and sealed, checked when read.

Keys that this version does not have are kept when a file is written again. A file of a newer
version is refused, as its keys may mean something else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from featuremill.base.errors import IntegrityError, UserError
from featuremill.store.files import SEAL, seal_of, sealed, write_json

Number = int | float
"""A count or a measure; 0 and 0.0 are written differently, and stay as they were."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object: keys in the order of the fields, without those that were not
        set."""
        return self.model_dump(mode="json", exclude_unset=True)


class JsonFile(Record):
    NEWEST: ClassVar[int] = 1
    """The newest `version` that this class reads."""
    REMEDY: ClassVar[str] = "delete it and run the same command again: what is computed is kept"
    IS_SEALED: ClassVar[bool] = True
    """Whether the file is written with its own digest. A file without one is read unchecked: early
    files have none."""

    version: int = 1
    seal: str | None = Field(default=None, exclude=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the content of the file `path`.

        Raises:
            FileNotFoundError: when there is none.
            IntegrityError: when it is not what was written.
            UserError: when a newer featuremill wrote it.
        """
        content = cls._parsed(path)
        if content is None:
            raise IntegrityError(f"{path}: its content is not what was written; {cls.REMEDY}.")
        return content

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Return the content of the file `path`; None when it is not there or damaged.

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
        """Write the file `path`, readable by people; readers see the old or the new content."""
        write_json(path, self.content(), is_synced)

    def content(self) -> dict[str, Any]:
        value = self.as_json()
        return sealed(value) if self.IS_SEALED else value
