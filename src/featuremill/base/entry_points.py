"""The entry points of this and other packages: workloads, outputs, steps and commands."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any

from featuremill.base.errors import UserError

PACKAGE = "featuremill"
PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
"""The pyproject.toml of a checkout; an installed package has none."""


def metadata() -> Path:
    """Return the folder with the metadata of the featuremill that is installed here."""
    installed = distribution(PACKAGE)
    return Path(str(installed.locate_file(f"{PACKAGE}-{installed.version}.dist-info")))


@functools.cache
def own(group: str) -> Mapping[str, EntryPoint]:
    """Return featuremill's own entry points in a group, by name, in alphabetical order.

    Raises:
        UserError: the installed featuremill has none.
    """
    try:
        registered = distribution(PACKAGE).entry_points.select(group=group)
        points = {point.name: point for point in registered}
    except PackageNotFoundError:
        points = {}
    if not points:
        raise older()
    return dict(sorted(points.items()))


def others(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of other packages in a group, without names of featuremill's own."""
    ours = own(group)
    points = _all(tuple((folder, _changed(folder)) for folder in sys.path)).select(group=group)
    registered = {point.name: point for point in points}
    return {name: registered[name] for name in sorted(registered.keys() - ours.keys())}


def _changed(folder: str) -> int | None:
    """Return the mtime in ns of a folder on Python's path: an install changes it."""
    try:
        return Path(folder or ".").stat().st_mtime_ns
    except OSError:
        return None


@functools.lru_cache(maxsize=1)
def _all(_: tuple[tuple[str, int | None], ...]) -> Any:
    """Return all entry points, from a cache: a run looks them up dozens of times."""
    return entry_points()


def of_others(group: str, name: str) -> EntryPoint | None:
    """Return the entry point `name` of another package; None for featuremill's own names."""
    return None if name in own(group) else others(group).get(name)


def find(group: str, name: str) -> EntryPoint | None:
    """Return the entry point `name` in a group; other packages are searched only if featuremill has
    none of that name.

    Raises:
        UserError: this checkout has one, and was installed before that was added.
    """
    point = own(group).get(name) or of_others(group, name)
    if point is None and PYPROJECT.exists():
        import tomllib

        registered = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["entry-points"]
        if name in registered.get(group, ()):
            raise older()
    return point


def older() -> UserError:
    """Return the error of an install that lacks an entry point of this checkout."""
    how = "install it again with pip"
    if PYPROJECT.exists():
        how = f"type: pip install --no-deps --editable {PYPROJECT.parent}"
    return UserError(
        f"what is installed of {PACKAGE} in this Python ({sys.executable}) is older than the entry "
        f"points by which its own commands, workloads, outputs and steps are found; {how}"
    )
