"""The result files: an output is a module with a `FORMAT` and a `Writer`.

Packages, including featuremill, register them as entry points of the group `featuremill.outputs`.
Importing such a module is cheap: only its `Writer` imports libraries.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple

from featuremill.base import entry_points
from featuremill.base.errors import IntegrityError, UserError, WorkloadError
from featuremill.base.text import clipped
from featuremill.store.files import digest_of_folder, sha256_of

if TYPE_CHECKING:
    import pyarrow as pa

GROUP = "featuremill.outputs"
OF_ITS_AUTHOR = "that is for its author to fix"
ALL_FILES = ("**/*",)
OF_SNAKEMAKE = ".snakemake_timestamp"
"""A file that Snakemake puts into each folder that a rule makes."""
RECORD = ".featuremill.jsonl"
"""A file of each folder with results: what featuremill wrote there (`store.ours`)."""
LINK = ".featuremill.link"
"""A file of a folder with results on another disk: the path of the link to it."""
KNOWN = ".known_digests.json"
"""The digests of large files of others (`store.state`)."""
BESIDE = {OF_SNAKEMAKE, RECORD, LINK, KNOWN}
"""Files in a folder that are no part of a result."""
Kind = Literal["pooled", "per_residue", "table"]
KINDS: Mapping[Kind, str] = {
    "pooled": "one vector a record",
    "per_residue": "a vector or number for each residue of a record",
    "table": "texts, single numbers, structs and lists of them",
}
"""The kinds of columns of values."""
log = logging.getLogger("featuremill.outputs")


class Format(NamedTuple):
    file: str
    """Its name in `results/<run>/`."""
    made_for: str
    """What reads it."""
    bytes_a_record: int
    """About how many bytes a record takes without its values: id, header, and the format's own."""
    kind: Kind | None = None
    """The kind of values that it holds and needs; None for all kinds."""
    columns: re.Pattern[str] | None = None
    """A pattern that all names of columns must match; None for any names."""
    columns_like: str = ""
    """An example of such a name."""
    most_records: int | None = None
    """For more records it is not sensible; None for no limit."""
    why_not_more: str = ""
    is_folder: bool = False
    holds: tuple[str, ...] = ALL_FILES
    """Patterns of the files in such a folder that hold values. Size and sha256 are of these."""
    part_name: str = ""
    """The pattern of file names in such a folder, as in part-{:05d}.parquet, if the module has a
    `PartWriter`. Then jobs may write the files in parallel, one for each shard (and sample, in a
    folder `sample=<name>`)."""
    has_sidecar: bool = False
    """Whether the attributes are in a file of their own, because the format has none."""
    files_a_record: int = 0
    also_called: tuple[str, ...] = ()
    """Other words and suffixes that people type for it; the error message suggests it."""
    times_as_large: float = 1.0
    """The size of its values in relation to binary numbers."""
    environment: Path | None = None
    """The conda environment (`--sdm conda`) of a merge that writes it; None for featuremill's."""


@functools.cache
def names() -> list[str]:
    """Return the names of all outputs: tables first, then those for any workload, those of a
    workload, and those of other packages."""
    own = entry_points.own(GROUP)
    for_any = [name for name, point in own.items() if point.module.startswith(f"{GROUP}.")]
    for_any.sort(key=lambda name: not name.startswith("parquet"))
    return [*dict.fromkeys([*for_any, *own, *entry_points.others(GROUP)])]


@functools.cache
def module_of(name: str) -> ModuleType:
    """Return the module of the output called `name`.

    Raises:
        UserError: there is none, or it is broken.
    """
    point = entry_points.find(GROUP, name)
    if point is None:
        known = ", ".join(f"`{known}`" for known in names())
        word = name.lower().lstrip(".")
        meant = [other for other, _ in _named() if word in format_of(other).also_called]
        meant += difflib.get_close_matches(word, names(), 1)
        hint = f"; you may mean `{meant[0]}`" if meant else ""
        raise UserError(f"give one of {known}, not {name!r}{hint}.")
    try:
        module = import_module(point.module)
    except Exception as error:
        raise UserError(
            f"{_who(name)} cannot be imported ({type(error).__name__}: {error}); {OF_ITS_AUTHOR}."
        ) from error
    if not isinstance(getattr(module, "FORMAT", None), Format) or not hasattr(module, "Writer"):
        raise UserError(
            f"{_who(name)} lacks its FORMAT (a featuremill.workload.outputs.Format) or its Writer; "
            f"{OF_ITS_AUTHOR}."
        )
    file = module.FORMAT.file
    taken = set(OF_THE_RUN)
    if entry_points.of_others(GROUP, name):
        taken |= {format_of(other).file for other in entry_points.own(GROUP)}
    if taken & {file, sidecar_of(file)} or Path(file).name != file or file.startswith("."):
        raise UserError(
            f"{_who(name)} cannot call its file {file!r}: it is another output's, the run's own, "
            f"or no plain name; {OF_ITS_AUTHOR}."
        )
    return module


def _who(name: str) -> str:
    point = entry_points.find(GROUP, name)
    assert point
    return f"output {name} of package {point.dist.name if point.dist else point.value}"


@contextlib.contextmanager
def errors_of(name: str, what: str) -> Iterator[None]:
    """Attribute exceptions of the output called `name` in `what` to its package, if that is not
    featuremill."""
    try:
        yield
    except (UserError, WorkloadError, IntegrityError, OSError, MemoryError):
        raise
    except Exception as error:
        if not entry_points.of_others(GROUP, name):
            raise
        log.debug("where the output raised it", exc_info=True)
        text = clipped(" ".join(f"{type(error).__name__}: {error}".split()))
        raise WorkloadError(f"{_who(name)}: {what} raised {text}; {OF_ITS_AUTHOR}.") from error


def format_of(name: str) -> Format:
    """Return the format of the output called `name`; raise UserError as `module_of` does."""
    format: Format = module_of(name).FORMAT
    return format


@functools.cache
def files() -> dict[str, str]:
    """Return the file of each output, by its name; broken ones of other packages are left out."""
    return dict(_named())


def _named() -> Iterator[tuple[str, str]]:
    """Yield the name and the file of each output; an output is imported only when it is reached."""
    for name in names():
        try:
            yield name, format_of(name).file
        except UserError:  # a config that asks for it gets the message
            if not entry_points.of_others(GROUP, name):
                raise


def outputs_of(files: Iterable[str]) -> dict[str, str]:
    """Return the output of each of the result `files`, by file, in the order of `names`."""
    sought, outputs = set(files), dict[str, str]()
    for name, file in _named() if sought else ():
        if file in sought:
            outputs[file] = name
            if len(outputs) == len(sought):
                break
    return outputs


FAILED = ("failed.tsv", "failed.fa")
"""Files of every merge beside its outputs: the records without values, as table and FASTA."""
SAMPLES = "samples.tsv"
"""A file of merge for a run with samples: how many records of each have which state."""
NOTES = "notes.tsv"
"""A file of every merge that is not partial: records that were cut or cleaned, and how."""
EXPORTS = "exports.json"
"""Lists the files of `featuremill export`; a merge removes it and them."""
PARTIAL = "partial"
"""The folder in `results/<run>/` with partial results: the same files."""
RUN = "run.json"
"""What the config asks for, as commands read it."""
OF_THE_RUN = (
    *(RUN, "plan.json", "records.parquet", "manifest.json", "receipts", "store"),
    *(*FAILED, SAMPLES, NOTES, EXPORTS, PARTIAL, "report.html", "figures", "logs"),
)
"""The other names in `results/<run>/`, which no output may have."""
ABOUT = ("id", "accession", "description", "length", "sha256")
"""Columns of a finished table without values, but for the keys of ids."""


def kind_of(kind: pa.DataType) -> Kind:
    """Return the kind of a column of values of this Arrow type."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        return "pooled"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = kind.value_type
        is_vector = pa.types.is_fixed_size_list(inner) and _is_number(inner.value_type)
        return "per_residue" if is_vector or _is_number(inner) else "table"
    return "table"


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def refuse_outputs(outputs: Iterable[str], values: pa.Schema) -> None:
    """Refuse outputs that cannot hold values of this schema, or would stay empty.

    Raises:
        UserError: with the first of them.
    """
    kinds = {field.name: kind_of(field.type) for field in values}
    for output in outputs:
        format = format_of(output)
        pattern = format.columns
        if pattern and (others := [name for name in kinds if not pattern.fullmatch(name)]):
            raise UserError(
                f"outputs: {output} holds columns such as {format.columns_like}, and not "
                f"{others[0]!r}; drop it."
            )
        if format.kind and format.kind not in kinds.values():
            kinds_here = ", ".join(f"{name} ({KINDS[kind]})" for name, kind in kinds.items())
            raise UserError(
                f"outputs: {output} holds {KINDS[format.kind]}, and the workload delivers none: "
                f"only {kinds_here}; drop it, or set outputs: [parquet]."
            )
        if check := getattr(module_of(output).Writer, "check", None):
            check(values)


def sidecar_of(file: str) -> str:
    """Return the name of the file with the attributes of the result `file`."""
    return f"{file}.json"


def index_of(file: str) -> str:
    """Return the name of the index of the ids in `file`, whose rows are in the order of shards: the
    hashes of the ids in ascending order, and the row of each."""
    return f"{file}.ids.npy"


def files_of(path: Path) -> list[Path]:
    """Return the files of a result: the file, or those in the folder except `BESIDE`."""
    if not path.is_dir():
        return [path]
    output = outputs_of([path.name]).get(path.name)
    holds = format_of(output).holds if output else ALL_FILES
    paths = {file for pattern in holds for file in path.glob(pattern) if file.name not in BESIDE}
    return sorted(path for path in paths if path.is_file())  # ids may become names of folders


def bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in files_of(path))


def digest_of_result(path: Path, sha256_by_name: Mapping[str, str] | None = None) -> str:
    """Return the sha256 of a result, as in manifest.json; `sha256_by_name` are known ones of its
    files. That of a folder is the digest of the output of `sha256sum` for its sorted files."""
    known = sha256_by_name or {}
    if not path.is_dir():
        return known.get("") or sha256_of(path)
    names = {str(file.relative_to(path)): file for file in files_of(path)}
    return digest_of_folder({name: known.get(name) or sha256_of(at) for name, at in names.items()})
