"""Features in this process, for notebooks and programs: the engine of a run without its files."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill import config
from featuremill.base import faults, reasons
from featuremill.base.accession import accessions
from featuremill.base.arrays import matrices, matrix
from featuremill.base.errors import UserError
from featuremill.base.words import counted
from featuremill.extract.in_process import Refuse, values_in_batches
from featuremill.inputs import in_memory, residues
from featuremill.lease.devices import Device, devices_for, with_processors
from featuremill.store.files import files_below
from featuremill.store.formats import ABOUT
from featuremill.workload import (
    DEFAULT,
    Record,
    Weights,
    Workload,
    WorkloadOptions,
    find_workload,
    option_files,
    plugin_errors,
    refuse_without_packages,
    weights,
)
from featuremill.workload.hugging_face import place_of
from featuremill.workload.optional import TakesOtherOptions

if TYPE_CHECKING:  # it takes a third of a second to import
    import pandas as pd

    from featuremill.workloads.esm2.options import Pool

DeviceChoice = Literal["auto", "cuda", "cpu"]
Features = npt.NDArray[np.float32] | list[npt.NDArray[np.floating[Any]]]
"""Vectors of sequences as one array, or an array a sequence of vectors of its residues."""
Progress = Callable[[int, int], object]
"""Called after each batch with (records done, records in all); equal ones count once."""


class _Loaded(NamedTuple):
    """A model and what it was made of."""

    asked: tuple[object, ...]
    """The workload, its model, and what tells whether other files are there by now."""
    device: Device
    options: Any
    """Resolved ones."""
    weights: Weights | None
    model: Any


class _Computed(NamedTuple):
    """Values of payloads, batch by batch."""

    schema: pa.Schema
    num_payloads: int
    batches: list[tuple[list[list[int]], pa.RecordBatch]]
    """Of each row of a batch, the places of the payloads that it is of."""
    warnings: list[str]

    def cells(self, column: str, rows: Callable[[pa.Array], Sequence[Any]]) -> list[Any]:
        """Return the cell of each payload, as `rows` makes them of a batch's column; None where a
        payload failed."""
        found: list[Any] = [None] * self.num_payloads
        for places, values in self.batches:
            for equal, cell in zip(places, rows(values.column(column)), strict=True):
                for place in equal:
                    found[place] = cell
        return found


_loaded: list[_Loaded] = []
"""The model of the last call; none while it computes, so that no other thread gets it too."""


def forget_model() -> None:
    """Give back the memory of the model that `compute` and `embed` keep for the next call."""
    _loaded.clear()
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def compute(
    inputs: Any,
    workload: str = DEFAULT,
    options: Mapping[str, Any] | None = None,
    *,
    device: DeviceChoice = "auto",
    max_failed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Return the features of records, a row a record, indexed by id: what `featuremill.load`
    returns of a run with this `workload` and these `options` on the same device.

    `inputs` is one of these:

    * the path of a file, or a list of `pathlib.Path`, of any kind that the workload reads;
    * sequences: a mapping of ids to them, a Series with ids as its index, or a list, whose ids are
      "0", "1" and so on;
    * a DataFrame, read as a table in a file is: columns are found by their names or by
      `options`. Its index counts where it has a name, and is the ids where no column holds them;
    * an AnnData, of which X, layers, raw, obs and var are read.

    What is in memory goes through a temporary file, which only the user can read.

    A record that is refused or fails is an error, unless there are at most `max_failed` of them:
    then they are left out with a warning, and `attrs["failed"]` lists them as failed.tsv does.
    Warnings also say what was cut or cleaned. A record that is there twice comes out once.

    `progress` is called after each batch with (records done, records in all); without it, a line on
    a terminal shows that. The model stays loaded for the next call with the same options on the
    same device; `forget_model` gives its memory back.

    Raises:
        UserError: when an option is wrong, an input cannot be read, more than `max_failed` records
            have no values, or memory runs out while the model is loaded.
    """
    paths = in_memory.paths_of(inputs)
    given = {key: _plain(value) for key, value in (options or {}).items()}
    names = list(map(str, paths)) or [in_memory.STEM]
    about = {"device": device, "max_failed": max_failed}
    asked = {"inputs": names, "workload": workload, "options": given, **about}
    checked = config.validate(asked, "compute")
    found = find_workload(workload)
    settled = found.Options.model_validate(checked.options)
    refuse_without_packages(found.Options)
    for name in option_files.paths_of(settled):
        option_files.refuse_missing(settled, name)
    records, failed = _accounted(_records(inputs, paths, workload, found, settled))
    _refuse_too_many(failed, max_failed)

    def refuse(place: int, reason: str) -> None:
        failed.append(_row(records[place], "failed", reason))
        _refuse_too_many(failed, max_failed)

    with _on_terminal() if progress is None else contextlib.nullcontext(progress) as show:
        payloads = [record.payload for record in records]
        computed = _computed(workload, found, settled, checked.device, payloads, refuse, show)
    notes = Counter(reasons.head_of(note) for each in records for note in each.note.split("; "))
    for text in [
        *(f"{counted(count, 'record')}: {note}." for note, count in notes.items() if note),
        *([f"{counted(len(failed), 'record')} left out; see attrs['failed']."] if failed else []),
        *computed.warnings,
    ]:
        warnings.warn(text, stacklevel=2)
    frame = _frame(records, computed)
    frame.attrs["failed"] = failed
    return frame


def embed(
    sequences: Sequence[str],
    model: str = "mill_t6_8M",
    *,
    layers: int | Sequence[int] = -1,
    pool: Pool | Sequence[Pool] = "mean",
    per_residue: bool = False,
    output_dtype: Literal["float16", "float32"] = "float16",
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto",
    long: Literal["truncate", "full", "chunk"] = "truncate",
    max_residues: int = 1022,
    chunk_overlap: int = 256,
    batch_tokens: int | None = None,
    device: DeviceChoice = "auto",
    progress: Progress | None = None,
) -> Features | dict[str, Features]:
    """Return the ESM-2 features of sequences, in their order: `compute` without ids and a table.

    With one layer and one pool: an array of shape (sequences, width), float32. With
    `pool="none", per_residue=True`: a list of one array a sequence, of shape (residues, width) and
    type `output_dtype`. Where `layers` or `pool` is a list, or both kinds are asked for: a
    dictionary of these by the names that columns of results have, such as `mean_layer_6`,
    `residues_layer_6`.

    The numbers are those of a run with the same options (config/README.md explains them) on the
    same device. Sequences are cleaned as there: lower case, white space, a '*' at the end, J. Equal
    ones are computed once. As there, only the first `max_residues` residues of a sequence count
    unless `long` says otherwise: a warning says of how many sequences more was cut off.

    Where memory runs out, batches get smaller, with one warning. The model stays loaded for the
    next call with the same one on the same device; `forget_model` gives its memory back.

    Raises:
        UserError: when an option is wrong, a sequence, named by its index, is no protein, or memory
            runs out for a single one.
    """
    is_one = isinstance(layers, int) and isinstance(pool, str)
    options = {
        "model": model,
        "layers": layers if isinstance(layers, int) else list(layers),
        "pool": pool if isinstance(pool, str) else list(pool),
        "per_residue": per_residue,
        "output_dtype": output_dtype,
        "dtype": dtype,
        "long": long,
        "max_residues": max_residues,
        "chunk_overlap": chunk_overlap,
        "batch_tokens": batch_tokens,
    }
    checked = config.validate({"inputs": ["memory"], "workload": "esm2", "options": options})
    esm2 = find_workload("esm2")
    refuse_without_packages(esm2.Options)
    payloads = _payloads(sequences)
    num_cut = sum(long == "truncate" and len(payload) > max_residues for payload in payloads)
    if num_cut:
        warnings.warn(
            f"{num_cut} of {len(payloads)} sequences are longer than {max_residues} residues and "
            "truncated; long='full' or 'chunk' computes them whole.",
            stacklevel=2,
        )
    settled, show = esm2.Options.model_validate(checked.options), progress or _pass_over
    refuse = _refusing(payloads)
    computed = _computed("esm2", esm2, settled, device, payloads, refuse, show)
    for text in computed.warnings:
        warnings.warn(text, stacklevel=2)
    found = {
        field.name: _together(field.type, computed.cells(field.name, _arrays))
        for field in computed.schema
    }
    return next(iter(found.values())) if is_one and len(found) == 1 else found


def _computed(
    name: str,
    workload: Workload,
    options: WorkloadOptions,
    choice: DeviceChoice,
    payloads: Sequence[bytes],
    refuse: Refuse,
    progress: Progress,
) -> _Computed:
    """Return the values of `payloads`; `refuse` hears of those that have none, and may raise."""
    (device,) = with_processors(devices_for(choice)[:1])
    loaded = _ready(name, workload, options, device)
    schema = plugin_errors.schema_of(name, workload, loaded.options, loaded.weights, ABOUT)
    computed = _Computed(schema, len(payloads), [], [])
    num_done, num_distinct = 0, len(set(payloads))
    for places, values in values_in_batches(
        workload,
        loaded.model,
        loaded.options,
        payloads,
        plugin_errors.batch_cost_of(name, workload, loaded.options, device),
        refuse,
        computed.warnings.append,
        name=name,
    ):
        plugin_errors.refuse_answer(name, values, len(places), schema)
        computed.batches.append((places, values))
        num_done += len(places)
        progress(num_done, num_distinct)
    _loaded[:] = [loaded]
    return computed


def _ready(name: str, workload: Workload, options: WorkloadOptions, device: Device) -> _Loaded:
    """Return the model, the one that is loaded if it is the same, with the settled options."""
    last = _loaded.pop() if _loaded else None
    asked = _asked(name, workload, options)
    if last and last.asked == asked:
        found = last.weights
    else:
        model = workload.weights(options)
        found = weights.weights_of(weights.convert(model, workload=name)) if model else None
    resolved = plugin_errors.resolved(name, workload, options, device, found)
    if last and (last.asked, last.device) == (asked, device):
        kept = last.model if last.options == resolved else None
        if kept is None and isinstance(workload, TakesOtherOptions):
            kept = workload.with_options(last.model, resolved)
        if kept is not None:
            return last._replace(options=resolved, model=kept)
    last = None  # before another one takes memory
    try:
        with plugin_errors.told(name, "load"):
            loaded = workload.load(resolved, [device], found)
    except Exception as error:
        if not faults.is_out_of_memory(error):
            raise
        raise UserError(
            f"{name}: memory ran out while the model was loaded ({faults.one_line(error)}); take "
            "another device or a smaller model."
        ) from None
    return _Loaded(asked, device, resolved, found, loaded)


def _asked(name: str, workload: Workload, options: WorkloadOptions) -> tuple[object, ...]:
    paths = [Path(path) for path in option_files.paths_of(options).values()]
    model = workload.weights(options)
    if model and weights.is_path(model, name):
        weights.refuse_missing(model, name)
        paths.append(place_of(model))
    return name, model, *(stamp for path in paths for stamp in _stamps(path.resolve()))


def _stamps(path: Path) -> Iterator[object]:
    yield str(path)
    for inside in files_below(path) if path.is_dir() else [""]:
        about = (path / inside).stat()
        yield inside, about.st_ino, about.st_size, about.st_mtime_ns


# compute


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _records(
    inputs: Any, paths: Sequence[Path], name: str, workload: Workload, options: WorkloadOptions
) -> list[Record]:
    """Return the records that the workload reads in `paths`, or else in `inputs`."""
    if paths:
        return list(plugin_errors.records_of(name, workload, paths, options))
    if hasattr(inputs, "__len__") and not len(inputs):
        raise UserError(f"{in_memory.STEM}: there is no record in it; give at least one.")
    with tempfile.TemporaryDirectory(prefix="featuremill-") as folder:
        path, options = in_memory.write(inputs, workload, options, Path(folder))
        try:
            found = list(plugin_errors.records_of(name, workload, [path], options))
        except UserError as error:
            raise UserError(str(error).replace(str(path), in_memory.STEM)) from None
    return [record._replace(source=in_memory.STEM) for record in found]


def _accounted(records: Iterable[Record]) -> tuple[list[Record], list[dict[str, Any]]]:
    """Return the records to compute, an id once, and a row for each one that is refused: for its
    own reason, or as its id stands for different payloads."""
    by_id: dict[str, list[Record]] = {}
    refused = []
    for record in records:
        if record.reason:
            refused.append(_row(record, "refused", record.reason))
        else:
            by_id.setdefault(record.id, []).append(record)
    good = []
    for first, *others in by_id.values():
        another = next((other for other in others if other.payload != first.payload), None)
        if another is None:
            good.append(first)
            continue
        for record in (first, *others):
            place = another if record.payload == first.payload else first
            reason = reasons.CONFLICT.reason(f"the other one is at {place.source}:{place.line}")
            refused.append(_row(record, "refused", reason))
    return good, refused


def _row(record: Record, status: str, reason: str) -> dict[str, Any]:
    """Return what failed.tsv says of a record."""
    told = {"id": record.id, "source": record.source, "line": record.line}
    return {**told, "status": status, "reason": reason}


def _refuse_too_many(failed: Sequence[Mapping[str, Any]], max_failed: int) -> None:
    if len(failed) <= max_failed:
        return
    first, num_others = failed[0], len(failed) - 1
    others = f", like {counted(num_others, 'other')}," if num_others else ""
    what = "failed" if first["status"] == "failed" else "is refused"
    remedy = reasons.kind_of(first["reason"]).remedy
    raise UserError(
        f"{first['source']}:{first['line']}: record {first['id'][:100]!r}{others} {what}: "
        f"{first['reason']}. {remedy} Or set max_failed, which leaves such records out."
    )


@contextlib.contextmanager
def _on_terminal() -> Iterator[Progress]:
    """Yield what shows progress in a line of a terminal, and nowhere else."""
    if not sys.stderr.isatty():
        yield _pass_over
        return
    end = ""

    def show(done: int, of: int) -> None:
        nonlocal end
        end = "\n"
        sys.stderr.write(f"\rfeaturemill: {done:,} of {counted(of, 'record')}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write(end)


def _pass_over(done: int, of: int) -> None:
    """Take what is told of progress where nobody looks."""


def _frame(records: Sequence[Record], computed: _Computed) -> pd.DataFrame:
    """Return the table of the records that have values, as `featuremill.load` gives it."""
    import pandas as pd

    is_there = [False] * len(records)
    for places, _ in computed.batches:
        for place in (place for equal in places for place in equal):
            is_there[place] = True
    kept = [record for record, is_kept in zip(records, is_there, strict=True) if is_kept]
    ids = pa.array([record.id for record in kept], pa.string())
    lengths = [len(each.payload) if each.length is None else int(each.length) for each in kept]
    about = {
        "id": ids,
        "accession": accessions(ids),
        "description": pa.array([record.description for record in kept], pa.string()),
        "length": pa.array(lengths, pa.int32()),
        "sha256": pa.array([hashlib.sha256(record.payload).hexdigest() for record in kept]),
    }
    frame: pd.DataFrame = pa.table(about).select(list(ABOUT)).to_pandas().set_index("id")
    for field in computed.schema:
        is_vector = pa.types.is_fixed_size_list(field.type)
        cells = computed.cells(field.name, _arrays if is_vector else pa.Array.to_pylist)
        cells = [cell for cell, is_kept in zip(cells, is_there, strict=True) if is_kept]
        values = list(np.array(cells)) if is_vector else cells  # rows of one matrix, none shared
        frame[field.name] = pd.Series(values, index=frame.index, dtype=object)
    return frame


# embed


def _arrays(column: pa.Array) -> Sequence[npt.NDArray[Any]]:
    """Return the array of each row of a column: a vector, or one a residue."""
    if pa.types.is_list(column.type):
        return matrices(pa.chunked_array([column]))
    return list(matrix(column))


def _together(kind: pa.DataType, arrays: list[npt.NDArray[Any]]) -> Features:
    """Return arrays as they are delivered: vectors as one matrix, matrices as a list."""
    if pa.types.is_list(kind):
        return arrays
    return np.array(arrays, np.float32).reshape(len(arrays), kind.list_size)


def _refusing(payloads: Sequence[bytes]) -> Refuse:
    """Return what says in a sentence why one of `payloads` cannot be computed."""

    def refuse(place: int, reason: str) -> None:
        if reasons.kind_of(reason) is reasons.NOT_FINITE:
            raise UserError(f"embed: {reason}, such as dtype='fp32'.")
        raise UserError(
            f"embed: memory ran out for one sequence of {len(payloads[place]):,} residues "
            f"({reason}); use long='truncate', or another device."
        )

    return refuse


def _payloads(sequences: Sequence[object]) -> list[bytes]:
    if isinstance(sequences, str):
        raise UserError("sequences: this is one string; give a list of them.")
    if isinstance(sequences, Mapping):
        raise UserError("sequences: this is a mapping; give a list, as in list(yours.values()).")
    payloads = []
    for index, sequence in enumerate(sequences):
        if not isinstance(sequence, str):
            kind = type(sequence).__name__
            raise UserError(f"sequences[{index}]: this is of type {kind}; give a string.")
        cleaned = residues.clean(sequence)
        if cleaned.reason:
            raise UserError(f"sequences[{index}]: {cleaned.reason}; remove or fix it.")
        payloads.append(cleaned.payload)
    return payloads
