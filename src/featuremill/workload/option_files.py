"""Options that name a file or a folder. The recipe has the digest of the content, not the path.

An edit therefore computes every record again; moving, renaming or touching a file does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args

from pydantic import Field

from featuremill.base.errors import UserError
from featuremill.store.files import digest_at, files_below

if TYPE_CHECKING:
    from featuremill.workload.contract import WorkloadOptions


Result = TypeVar("Result")


class PathOption(NamedTuple):
    """Marks the type of an option that names a file or a folder."""

    is_folder: bool
    is_weights: bool = False

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        format = "path" if self.is_weights else "directory-path" if self.is_folder else "file-path"
        return {**handler(schema), "format": format}


OptionFile = Annotated[str, Field(min_length=1), PathOption(is_folder=False)]
"""Type of an option that names a file, such as a vocabulary. Its content is part of the recipe, its
path is not. Write `OptionFile | None` for an optional file. Read it in `load`."""
OptionFolder = Annotated[str, Field(min_length=1), PathOption(is_folder=True)]
"""Type of an option that names a folder. Names in it that begin with a dot do not count."""
OptionWeights = Annotated[str, Field(min_length=1), PathOption(False, is_weights=True)]
"""Type of the option whose path `weights` returns, for weights that are not converted."""


def kinds_of(options: type[WorkloadOptions]) -> dict[str, PathOption]:
    """Return the options of type `OptionFile`, `OptionFolder` or `OptionWeights`, by name."""
    kinds = {}
    for name, field in options.model_fields.items():
        inner = (getattr(part, "__metadata__", ()) for part in get_args(field.annotation))
        for mark in (*field.metadata, *(mark for marks in inner for mark in marks)):
            if isinstance(mark, PathOption):
                kinds[name] = mark
    return kinds


def execution_of(options: type[WorkloadOptions]) -> frozenset[str]:
    """Return the names of options that do not change the values, such as those of paths."""
    return options.EXECUTION | kinds_of(options).keys()


def paths_of(options: WorkloadOptions) -> dict[str, str]:
    """Return the paths in `options` by option; weights are left out, as they have a digest."""
    kinds = kinds_of(type(options)).items()
    paths = {name: getattr(options, name) for name, kind in kinds if not kind.is_weights}
    return {name: str(path) for name, path in paths.items() if path}


def digests(options: WorkloadOptions) -> dict[str, str]:
    """Return the sha256 of the content of each path of `options`, by the option's name; for a
    folder that of `digest_of_folder`.

    Raises:
        UserError: if a path is missing, of the other kind, or cannot be read.
    """
    return {name: _checked(options, name, digest_at) for name in paths_of(options)}


def refuse_missing(options: WorkloadOptions, name: str) -> None:
    """Raise UserError if `digests` would for the option `name`; files are opened, not read."""

    def open_each(path: Path) -> None:
        for file in (path / inside for inside in files_below(path)) if path.is_dir() else [path]:
            file.open("rb").close()

    _checked(options, name, open_each)


def _checked(options: WorkloadOptions, name: str, read: Callable[[Path], Result]) -> Result:
    """Return `read` of the path of an option; UserError if the path cannot be used."""
    is_folder = kinds_of(type(options))[name].is_folder
    path = Path(paths_of(options)[name])
    expected, actual = ("folder", "file") if is_folder else ("file", "folder")
    try:
        if not path.exists():
            raise _refusal(name, path, f"there is no such {expected}")
        if path.is_dir() != is_folder:
            raise _refusal(name, path, f"this is a {actual}, and a {expected} is meant")
        if not is_folder and not path.is_file():
            raise _refusal(name, path, "this is no regular file, so it cannot be read twice")
        if is_folder and not files_below(path):
            raise _refusal(name, path, "there is no file in this folder")
        return read(path)
    except OSError as error:
        problem = f"it cannot be read ({error.strerror})"
        raise _refusal(name, error.filename or path, problem) from None


def refuse_others(options: WorkloadOptions, planned: Mapping[str, str], plan: Path) -> None:
    """Raise UserError if a digest differs from the `planned` digest of an option."""
    paths = paths_of(options)
    for name, sha256 in digests(options).items():
        if sha256 != planned.get(name):
            raise UserError(
                f"options.{name}: {paths[name]}: it has changed since {plan} was made; run the "
                "same command again: it plans anew."
            )


def _refusal(name: str, path: Path | str, problem: str) -> UserError:
    return UserError(f"options.{name}: {path}: {problem}; name another one.")
