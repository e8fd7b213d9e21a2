"""A folder that a step fills: its tensors, and a card, written last, that has their digest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol, Self, TypeVar

from featuremill.base.errors import IntegrityError, UserError
from featuremill.store import ours
from featuremill.store.files import sha256_of

__all__ = ["read", "refuse_other_folder"]


class Card(Protocol):
    """What the file in JSON says."""

    REMEDY: ClassVar[str]
    sha256: str

    @classmethod
    def read(cls, path: Path) -> Self: ...


One = TypeVar("One", bound=Card)


def read(folder: Path, card: type[One], name: str, tensors: str, missing: str) -> One:
    """Return the card called `name` in `folder`; `missing` ends the message where there is none.

    Raises:
        UserError: when there is none.
        IntegrityError: when `tensors` are not what it tells of.
    """
    try:
        content = card.read(folder / name)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder}: {missing}") from None
    path = folder / tensors
    if not path.is_file() or sha256_of(path) != content.sha256:
        raise IntegrityError(
            f"{path}: it is gone, or its digest is not that in {name}; {content.REMEDY}."
        )
    return content


def refuse_other_folder(
    folder: Path, is_ours: Callable[[str], object], is_file: str, is_other: str
) -> None:
    """Raise UserError where `folder` is a file or in one, or has files of others."""
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise UserError(f"{path}: this is a file; {is_file}.")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if other := next((name for name in names if not (is_ours(name) or ours.is_beside(name))), None):
        raise UserError(f"{folder}: this folder holds {other!r}, which is {is_other}.")
