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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill import config
from featuremill.base import faults, reasons
from featuremill.base.accession import accessions
from featuremill.base.arrays import matrices, matrix
from featuremill.base.devices import Device, DeviceChoice, devices_for, with_processors
from featuremill.base.errors import UserError
from featuremill.base.words import counted
from featuremill.inputs import in_memory
from featuremill.store.files import files_below
from featuremill.store.formats import ABOUT
from featuremill.store.plan import Settings
from featuremill.workload import (
    DEFAULT,
    Record,
    Weights,
    Workload,
    WorkloadOptions,
    option_files,
    plugin_errors,
    refuse_without_packages,
    weights,
)
from featuremill.workload.hugging_face import place_of
from featuremill.workload.in_process import Refuse, values_in_batches
from featuremill.workload.optional import TakesOtherOptions
from featuremill.workload.recipe import recipe_of, settings_of_resolved

if TYPE_CHECKING:  # it takes a third of a second to import
    import pandas as pd

Progress = Callable[[int, int], object]
"""Called after each batch with (records done, records in all); equal ones count once."""


def _arrays(column: pa.Array) -> Sequence[npt.NDArray[Any]]:
    """Return the array of each row of a column: a vector, or one a residue."""
    if pa.types.is_list(column.type):
        return matrices(pa.chunked_array([column]))
    return list(matrix(column))


class _Loaded(NamedTuple):
    """A model and what it was made of."""

    asked: tuple[object, ...]
    """The workload, its model, and what tells whether other files are there by now."""
    device: Device
    options: Any
    """Resolved ones."""
    weights: Weights | None
    model: Any


class Computed(NamedTuple):
    """Values of payloads, batch by batch."""

    schema: pa.Schema
    num_payloads: int
    batches: list[tuple[list[list[int]], pa.RecordBatch]]
    """Of each row of a batch, the places of the payloads that it is of."""
    warnings: list[str]
    settings: Settings
    """All that determines the values."""

    def cells(self, column: str, rows: Callable[[pa.Array], Sequence[Any]] = _arrays) -> list[Any]:
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
_cautions_given: set[str] = set()
"""Cautions about models, each of which this process gives once."""


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
    returns of a run with this `workload` and these `options` on the same device. Without a `model`
    in `options`, the default workload takes the demonstration network mill_t6_8M, which is not
    ESM-2, and warns once in a process.

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
    `attrs` also have `model_name`, `workload`, `workload_version`, `options`, `weights_sha256` and
    `recipe`, as the attributes of a run's files.

    `progress` is called after each batch with (records done, records in all); without it, a line on
    a terminal shows that. The model stays loaded for the next call with the same options on the
    same device; `forget_model` gives its memory back.

    Raises:
        UserError: when an option is wrong, an input cannot be read, more than `max_failed` records
            have no values, or memory runs out while the model is loaded.
    """
    paths = in_memory.paths_of(inputs)
    plain_options = {key: _plain(value) for key, value in (options or {}).items()}
    names = list(map(str, paths)) or [in_memory.STEM]
    about = {"device": device, "max_failed": max_failed, "inputs": names}
    chosen = engine(workload, plain_options, source="compute", **about)
    for name in option_files.paths_of(chosen.options):
        option_files.refuse_missing(chosen.options, name)
    records, failed = _accounted(_records(inputs, paths, chosen))
    _refuse_too_many(failed, max_failed)

    def refuse(place: int, reason: str) -> None:
        failed.append(_row(records[place], "failed", reason))
        _refuse_too_many(failed, max_failed)

    with _on_terminal() if progress is None else contextlib.nullcontext(progress) as show:
        payloads = [record.payload for record in records]
        computed = chosen.compute(payloads, refuse, show)
    notes = Counter(reasons.head_of(note) for each in records for note in each.note.split("; "))
    for text in [
        *(f"{counted(count, 'record')}: {note}." for note, count in notes.items() if note),
        *([f"{counted(len(failed), 'record')} left out; see attrs['failed']."] if failed else []),
        *computed.warnings,
    ]:
        warnings.warn(text, stacklevel=2)
    frame = _frame(records, computed)
    settings = computed.settings
    frame.attrs = {
        "model_name": weights.model_told(settings) or workload,
        "workload": workload,
        "workload_version": settings.version,
        "options": settings.options,
        "weights_sha256": settings.weights_sha256 or "",
        "recipe": recipe_of(settings),
        "failed": failed,
    }
    return frame


class Engine(NamedTuple):
    """A workload with checked options, in this process; for calls that a workload brings."""

    name: str
    workload: Workload
    options: Any
    device: DeviceChoice

    def compute(
        self, payloads: Sequence[bytes], refuse: Refuse, progress: Progress | None = None
    ) -> Computed:
        """Return the values of `payloads`; `refuse` hears of those without, and may raise. Warn
        once in a process of a model such as one for demonstrations."""
        name, workload = self.name, self.workload
        if (text := weights.caution_of(name, self.options)) and text not in _cautions_given:
            _cautions_given.add(text)
            warnings.warn(text, stacklevel=3)
        (device,) = with_processors(devices_for(self.device)[:1])
        loaded = _ready(name, workload, self.options, device)
        schema = plugin_errors.schema_of(name, workload, loaded.options, loaded.weights, ABOUT)
        settings = settings_of_resolved(name, workload, loaded.options, loaded.weights)
        computed = Computed(schema, len(payloads), [], [], settings)
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
            if progress:
                progress(num_done, num_distinct)
        _loaded[:] = [loaded]
        return computed


def engine(
    workload: str, options: Mapping[str, Any], source: str = "config", **about: Any
) -> Engine:
    """Return what computes by a workload; `about` are other keys of a config, such as device.

    Raises:
        UserError: when an option is wrong (`source` says whose), or a package is not installed.
    """
    raw = {"inputs": ["memory"], "workload": workload, "options": dict(options), **about}
    checked = config.validate(raw, source)
    refuse_without_packages(type(checked.options))
    return Engine(workload, checked.module, checked.options, checked.device)


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
        with plugin_errors.attributed_to(name, "load"):
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


def _records(inputs: Any, paths: Sequence[Path], chosen: Engine) -> list[Record]:
    """Return the records that the workload reads in `paths`, or else in `inputs`."""
    name, workload, options, _ = chosen
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
    columns = {"id": record.id, "source": record.source, "line": record.line}
    return {**columns, "status": status, "reason": reason}


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
def _on_terminal() -> Iterator[Progress | None]:
    """Yield what shows progress in a line of a terminal, and nowhere else."""
    if not sys.stderr.isatty():
        yield None
        return
    end = ""

    def show(done: int, total: int) -> None:
        nonlocal end
        end = "\n"
        sys.stderr.write(f"\rfeaturemill: {done:,} of {counted(total, 'record')}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write(end)


def _frame(records: Sequence[Record], computed: Computed) -> pd.DataFrame:
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
