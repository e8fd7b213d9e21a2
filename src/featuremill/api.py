"""Compute features from Python, without the files of a run: `compute` and `engine`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from featuremill import beside, config
from featuremill.base import faults, reasons
from featuremill.base.arrays import matrices
from featuremill.base.devices import Device, devices_for, planning_device, with_processors
from featuremill.base.errors import DeviceError, UserError
from featuremill.base.id_columns import accessions
from featuremill.base.progress import CallBack, on_terminal
from featuremill.base.words import counted
from featuremill.beside import Gpus
from featuremill.inputs import distinct_records, in_memory
from featuremill.lease import Lease, Request
from featuremill.lease.acquire import acquire
from featuremill.lease.environment import LEASED
from featuremill.store.files import files_below, identity_of
from featuremill.store.formats import ABOUT
from featuremill.store.plan import Settings
from featuremill.workload import (
    DEFAULT,
    Record,
    Weights,
    Workload,
    WorkloadOptions,
    option_files,
    optional,
    plugin_errors,
    refuse_without_packages,
    weights,
)
from featuremill.workload.compute import Refuse, free_device_memory, values_in_batches
from featuremill.workload.hugging_face import place_of
from featuremill.workload.option_files import execution_of
from featuremill.workload.recipe import recipe_of, settings_of_resolved, settled

if TYPE_CHECKING:  # it takes a third of a second to import
    import pandas as pd


class _Loaded(NamedTuple):
    """A loaded model, and what it was loaded from."""

    key: tuple[object, ...]
    """The workload, the model, and the identity of each file."""
    device: Device
    options: Any
    weights: Weights | None
    model: Any


class Job(NamedTuple):
    """The payloads (by index) that one process computed."""

    device: str
    seconds: float
    indices: list[int]


class Computed(NamedTuple):
    """The values of payloads, in batches."""

    schema: pa.Schema
    num_payloads: int
    batches: list[tuple[list[list[int]], pa.RecordBatch]]
    """For each batch: the indices of the payloads of each row, and the values."""
    warnings: list[str]
    settings: Settings
    jobs: list[Job]

    def cells(self, column: str, rows: Callable[[pa.Array], Sequence[Any]] = matrices) -> list[Any]:
        """Return the cells of payloads, None for failed ones; `rows` converts a batch's column."""
        cells: list[Any] = [None] * self.num_payloads
        for indices, values in self.batches:
            for equal, cell in zip(indices, rows(values.column(column)), strict=True):
                for index in equal:
                    cells[index] = cell
        return cells


_loaded: list[_Loaded] = []
"""The model of the last call; empty while a call uses it, so that no other thread does."""
_leases: list[Lease] = []
"""The lease of this process's GPU, held until it ends, because CUDA keeps memory on the GPU."""
_shown_cautions: set[str] = set()


def forget_model() -> None:
    """Free the memory of the model that `compute` and `embed` keep for the next call."""
    _loaded.clear()
    free_device_memory()


def compute(
    inputs: Any,
    workload: str = DEFAULT,
    options: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    gpus: Gpus | None = None,
    workers: int | None = None,
    lease: bool = True,
    max_failed: int = 0,
    progress: CallBack | None = None,
) -> pd.DataFrame:
    """Return the features of records as a DataFrame: one row per record, indexed by id.

    The values are those of a run with this `workload` and these `options` on the same device.
    Without a `model` in `options`, the default workload uses the demonstration network mill_t6_8M,
    which is not ESM-2, and warns once per process.

    `inputs` is one of these:

    * the path of a file, or a list of `pathlib.Path`, of any format that the workload reads;
    * sequences: a mapping from ids to sequences, a Series with ids as its index, or a list, whose
      ids are "0", "1" and so on;
    * a DataFrame, which is read like a table in a file: columns are found by their names or by
      `options`. A named index is a column; any index has the ids if no column does;
    * an AnnData, of which X, layers, raw, obs and var are read.

    Inputs in memory are written to a temporary file that only the user can read.

    If at most `max_failed` records are refused or fail, they are left out with a warning, and
    `attrs["failed"]` lists them as failed.tsv does. There are also warnings about truncated and
    cleaned records. Duplicate records have one row. `attrs` also have `model_name`, `workload`,
    `workload_version`, `options`, `weights_sha256` and `recipe`, like the attributes of a run's
    files, and `jobs`: the `device`, `seconds` and `ids` of each process.

    Devices:

    * `device` is "auto" (the first visible GPU, or the CPU), "cpu", "cuda" or, with torch's index,
      "cuda:1";
    * `gpus` is a number of GPUs, "all", or a list of nvidia-smi's numbers, such as [0, 2], or of
      UUIDs. Each GPU has a process, which computes a share of the records;
    * `workers` is a number of processes on the CPU.

    GPUs are leased: `featuremill lease --list` shows them, and runs and other calls do not use
    them. The lease of the GPU that this process uses ends with the process. If that GPU is leased
    by others, the call uses another, or waits. Use `lease=False` in programs that hold a lease.

    Processes that die are restarted; a record that ends two processes fails. The values do not
    depend on the number of processes. Their results are in the folder for temporary files (TMPDIR)
    until the call ends. Ctrl-C ends the processes.

    `progress` is called after each batch with (records done, number of records); without it,
    terminals and notebooks show a progress line. The model stays loaded for the next call with the
    same options on the same device; `forget_model` frees its memory.

    Raises:
        UserError: an option is wrong, an input cannot be read, more than `max_failed` records have
            no values, or memory runs out while the model is loaded.
        DeviceError: all devices fail.
    """
    paths = in_memory.paths_of(inputs)
    if not isinstance(options or {}, Mapping):
        raise UserError(f"options={options!r}: give a dictionary, such as {{'model': …}}.")
    plain_options = {key: plain(value) for key, value in (options or {}).items()}
    names = list(map(str, paths)) or [in_memory.STEM]
    where: dict[str, Any] = {"device": device, "gpus": gpus, "workers": workers, "lease": lease}
    about: dict[str, Any] = {"max_failed": max_failed, "inputs": names}
    chosen = engine(workload, plain_options, "compute", **where, **about)
    for name in option_files.paths_of(chosen.options):
        option_files.refuse_missing(chosen.options, name)
    good, refused = distinct_records(_records(inputs, paths, chosen))
    records = [*good.values()]
    failed = [_row(record, "refused", reason) for record, reason in refused.values()]
    _refuse_too_many(failed, max_failed)

    def refuse(index: int, reason: str) -> None:
        failed.append(_row(records[index], "failed", reason))
        _refuse_too_many(failed, max_failed)

    with on_terminal() if progress is None else contextlib.nullcontext(progress) as show:
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
        "model_name": weights.model_name_of(settings) or workload,
        "workload": workload,
        "workload_version": settings.version,
        "options": settings.options,
        "weights_sha256": settings.weights_sha256 or "",
        "recipe": recipe_of(settings),
        "failed": failed,
        "jobs": [
            {"device": device, "seconds": seconds, "ids": [records[index].id for index in indices]}
            for device, seconds, indices in computed.jobs
        ],
    }
    return frame


class Engine(NamedTuple):
    """A workload with checked options and devices; functions such as `embed` call it."""

    name: str
    workload: Workload
    options: Any
    jobs: beside.Jobs
    """The processes; with 0 processes, this process computes."""
    takes_lease: bool

    def compute(
        self, payloads: Sequence[bytes], refuse: Refuse, progress: CallBack | None = None
    ) -> Computed:
        """Return the values of `payloads`; call `refuse`, which may raise, for payloads that fail.
        Issue each caution about a model once per process."""
        if (text := weights.caution_of(self.name, self.options)) and text not in _shown_cautions:
            _shown_cautions.add(text)
            warnings.warn(text, stacklevel=3)
        if self.jobs.number:
            return self._in_jobs(self.jobs, payloads, refuse, progress)
        (device,) = with_processors(devices_for(self.jobs.device)[:1])
        if self.takes_lease and device.kind == "cuda" and not _hold(device):
            return self._in_jobs(self.jobs._replace(number=1), payloads, refuse, progress)
        return self._here(device, payloads, refuse, progress)

    def _here(
        self, device: Device, payloads: Sequence[bytes], refuse: Refuse, progress: CallBack | None
    ) -> Computed:
        name, workload, started = self.name, self.workload, time.monotonic()
        loaded = _ready(name, workload, self.options, device)
        schema = plugin_errors.schema_of(name, workload, loaded.options, loaded.weights, ABOUT)
        settings = settings_of_resolved(name, workload, loaded.options, loaded.weights)
        computed = Computed(schema, len(payloads), [], [], settings, [])
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
        seconds = time.monotonic() - started
        computed.jobs.append(Job(str(device), seconds, list(range(len(payloads)))))
        _loaded[:] = [loaded]
        return computed

    def _in_jobs(
        self,
        jobs: beside.Jobs,
        payloads: Sequence[bytes],
        refuse: Refuse,
        progress: CallBack | None,
    ) -> Computed:
        forget_model()
        name, workload = self.name, self.workload
        model = workload.weights(self.options)
        record = weights.convert(model, workload=name) if model else None
        network = weights.weights_of(record) if record else None
        device = planning_device(jobs.device)
        options, settings = settled(name, workload, self.options, device, network)
        schema = plugin_errors.schema_of(name, workload, options, network, ABOUT)
        computed = Computed(schema, len(payloads), [], [], settings, [])
        indices: dict[bytes, list[int]] = {}
        for index, payload in enumerate(payloads):
            indices.setdefault(hashlib.sha256(payload).digest(), []).append(index)
        distinct = [payloads[indices[digest][0]] for digest in sorted(indices)]
        work = beside.Work(
            settings,
            options.model_dump(mode="json", include={*execution_of(type(options))}),
            workload.COST_UNIT,
            record,
            distinct,
            plugin_errors.costs_of(name, workload, distinct, options),
        )

        def report_progress(num_done: int) -> None:
            if progress:
                progress(num_done, len(distinct))

        def report_wait(sentence: str) -> None:  # a wait may take hours
            print(f"featuremill: {sentence}", file=sys.stderr)

        with tempfile.TemporaryDirectory(prefix="featuremill-") as folder:
            for part in beside.parts(
                Path(folder), work, jobs, recipe_of(settings), report_progress, report_wait
            ):
                receipt, of_job = part.receipt, list[int]()
                for batch in part.batches():
                    rows = [indices[digest] for digest in batch.column("sha256").to_pylist()]
                    why = batch.column("reason").to_pylist()
                    for equal, reason in zip(rows, why, strict=True):
                        of_job += equal
                        for index in equal if reason is not None else ():
                            refuse(index, reason)
                    good = [row for row, reason in zip(rows, why, strict=True) if reason is None]
                    values = batch.filter(batch.column("reason").is_null()).select(schema.names)
                    computed.batches.append((good, values))
                computed.warnings.extend(set(receipt.warnings) - {*computed.warnings})
                names = " + ".join(map(str, receipt.devices))
                computed.jobs.append(Job(names, receipt.working_seconds, sorted(of_job)))
        return computed


def engine(
    workload: str,
    options: Mapping[str, Any],
    source: str = "config",
    *,
    device: str = "auto",
    gpus: Gpus | None = None,
    workers: int | None = None,
    lease: bool = True,
    **about: Any,
) -> Engine:
    """Return the engine of a workload; `about` are other keys of a config, such as max_failed.

    Raises:
        UserError: an option is wrong (`source` begins the message), a package is not installed, or
            a GPU cannot be used.
    """
    jobs = beside.jobs_of(device, gpus, workers)
    raw = {"inputs": ["memory"], "workload": workload, "options": dict(options), **about}
    checked = config.validate(raw | {"device": jobs.device}, source)
    refuse_without_packages(type(checked.options))
    if jobs.number and jobs.device != checked.device:
        raise UserError(
            f"{source}: workload {workload} computes on the CPU; workers=4 computes there in 4 "
            "processes."
        )
    if jobs.number and not lease:
        raise UserError(f"{source}: lease=False is for a call in this process; leave it out.")
    return Engine(
        workload, checked.module, checked.options, jobs._replace(device=checked.device), lease
    )


def _hold(device: Device) -> bool:
    """Lease the GPU for this process if it is free; return whether this process has a lease."""
    if not _leases:
        request = Request.from_environment({"devices": device.uuid, "wait_seconds": 0})
        with contextlib.suppress(DeviceError):
            held = acquire("cuda", request)
            _leases.append(held)
            # Child processes may use the GPU as well.
            LEASED.set(",".join(filter(None, [held.environment[LEASED.name], LEASED.value()])))
    return bool(_leases)


def _ready(name: str, workload: Workload, options: WorkloadOptions, device: Device) -> _Loaded:
    """Return the model with its resolved options; reuse the loaded model if it is the same."""
    last = _loaded.pop() if _loaded else None
    key = _key_of(name, workload, options)
    if last and last.key == key:
        network = last.weights
    else:
        model = workload.weights(options)
        network = weights.weights_of(weights.convert(model, workload=name)) if model else None
    resolved = plugin_errors.resolved(name, workload, options, device, network)
    if last and (last.key, last.device) == (key, device):
        kept = last.model
        if last.options != resolved:
            kept = optional(workload, "with_options")(last.model, resolved)
        if kept is not None:
            return last._replace(options=resolved, model=kept)
    last = None  # free its memory before the next model is loaded
    try:
        with plugin_errors.attributed_to(name, "load"):
            loaded = workload.load(resolved, [device], network)
    except Exception as error:
        if not faults.is_out_of_memory(error):
            raise
        raise UserError(
            f"{name}: memory ran out while the model was loaded ({faults.one_line(error)}); take "
            "another device or a smaller model."
        ) from None
    return _Loaded(key, device, resolved, network, loaded)


def _key_of(name: str, workload: Workload, options: WorkloadOptions) -> tuple[object, ...]:
    paths = [Path(path) for path in option_files.paths_of(options).values()]
    model = workload.weights(options)
    if model and weights.is_path(model, name):
        weights.refuse_missing(model, name)
        paths.append(place_of(model))
    identities = {
        str(path / inside): identity_of(path / inside)
        for path in map(Path.resolve, paths)
        for inside in (files_below(path) if path.is_dir() else [""])
    }
    return name, model, *identities.items()


def plain(value: Any) -> Any:
    """Return the value of an option as in a config: without paths and types of NumPy."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _records(inputs: Any, paths: Sequence[Path], chosen: Engine) -> list[Record]:
    name, workload, options = chosen[:3]
    if paths:
        return list(plugin_errors.records_of(name, workload, paths, options))
    if hasattr(inputs, "__len__") and not len(inputs):
        raise UserError(f"{in_memory.STEM}: there is no record in it; give at least one.")
    with tempfile.TemporaryDirectory(prefix="featuremill-") as folder:
        path, options = in_memory.write(inputs, workload, options, Path(folder))
        try:
            records = list(plugin_errors.records_of(name, workload, [path], options))
        except UserError as error:
            raise UserError(str(error).replace(str(path), in_memory.STEM)) from None
    return [record._replace(source=in_memory.STEM) for record in records]


def _row(record: Record, status: str, reason: str) -> dict[str, Any]:
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


def _frame(records: Sequence[Record], computed: Computed) -> pd.DataFrame:
    """Return the DataFrame of the records with values, with the columns of `featuremill.load`."""
    import pandas as pd

    has_values = [False] * len(records)
    for indices, _ in computed.batches:
        for index in (index for equal in indices for index in equal):
            has_values[index] = True
    kept = [record for record, is_kept in zip(records, has_values, strict=True) if is_kept]
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
        cells = computed.cells(field.name, matrices if is_vector else pa.Array.to_pylist)
        cells = [cell for cell, is_kept in zip(cells, has_values, strict=True) if is_kept]
        values = list(np.array(cells)) if is_vector else cells  # rows of one matrix, none shared
        frame[field.name] = pd.Series(values, index=frame.index, dtype=object)
    return frame
