"""One audit: the options of a run, on a device, in which dtypes; does it fit; what comes of it."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from featuremill import config
from featuremill.base.errors import UserError
from featuremill.doctor import host
from featuremill.doctor.audit.sample import Protein, Sample, draw
from featuremill.inputs.residues import NUCLEOTIDES
from featuremill.lease.devices import devices_for, with_processors
from featuremill.store import files
from featuremill.workload import (
    Device,
    TellsMemory,
    Weights,
    Workload,
    find_workload,
    refuse_without_packages,
    weights,
)

OUTSIDE = 1
REFERENCE = "fp32"
FLOAT_BYTES = 4
VALUES_BYTES = 2**28
"""What the values of one batch may take in memory: more layers, or wider ones, smaller batches."""
NUM_COPIES = 4
"""Of a batch's values at once: found and expected, each with a copy that is being made."""
log = logging.getLogger("featuremill.audit")


class Asked(NamedTuple):
    """What the user asked for, checked but for what only the model and the device can tell."""

    inputs: tuple[Path, ...]
    workload: Workload
    options: Any
    device: Device
    dtypes: tuple[str, ...]


class Task(NamedTuple):
    """What is computed."""

    workload: Workload
    options: Any
    """The run's own, resolved: its dtype is the one that a run would take here."""
    dtypes: tuple[str, ...]
    device: Device
    weights: Weights

    def options_in(self, dtype: str) -> Any:
        """Return the options to compute with: every residue's values, unrounded."""
        more = {"dtype": dtype, "per_residue": True, "output_dtype": "float32"}
        return type(self.options).model_validate(self.options.model_dump() | more)

    def cost(self, payload: bytes) -> int:
        """Return the work in one protein."""
        return self.workload.cost(payload, self.options)

    @property
    def width(self) -> int:
        return int(self.weights.metadata["embed_dim"])

    @property
    def values_bytes(self) -> int:
        """What one residue's values take, in fp32."""
        return self.width * len(self.options.layers) * FLOAT_BYTES

    @property
    def budget(self) -> int:
        """What a batch may cost: as in a run, or less if its values would take too much."""
        fitting = max(1, VALUES_BYTES // self.values_bytes)
        return min(self.workload.batch_cost(self.options, self.device), fitting)

    def memory_mb(self, dtype: str, batch_cost: int) -> int:
        """Return what the model in `dtype` takes on the device, at most; 0 where nobody tells."""
        if not isinstance(self.workload, TellsMemory):
            return 0
        options = self.options_in(dtype)
        return self.workload.memory_mb(options, self.device, self.weights, batch_cost)


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill audit`; return 0 when every dtype is within the bounds, else 1."""
    from featuremill.doctor.audit import page, report
    from featuremill.doctor.audit.measure import measure

    wanted = asked(arguments)
    sample = draw(wanted.workload.records(wanted.inputs, wanted.options), arguments.sample)
    if not sample.proteins:
        raise UserError(_nothing_left(wanted.inputs, sample))
    if 2 * sample.notes[NUCLEOTIDES] > sample.num_records - sample.refused.total():
        log.warning("these look like nucleotides, not proteins; translate them first.")
    task = settle(wanted)
    check_room(task, sample)
    reference, *found = measure(task, sample.proteins)
    if (precision := report.matmul_precision()) != "highest":
        log.warning(
            "torch is set to compute fp32 products less exactly (%s), and so was the reference; "
            "unset TORCH_ALLOW_TF32_CUBLAS_OVERRIDE.",
            precision,
        )
    answer = report.as_json(wanted, task, sample, reference, found)
    sys.stdout.write("\n".join(page.lines(answer)) + "\n")
    if arguments.json:
        files.write_json(arguments.json, answer)
    return 0 if answer["within"] else OUTSIDE


def asked(arguments: argparse.Namespace) -> Asked:
    """Check the command line and the config together."""
    if arguments.sample < 1:
        raise UserError(f"--sample {arguments.sample}: give the number of proteins, 1 or more.")
    for path in arguments.inputs:
        if path.suffix in (".yaml", ".yml"):
            raise UserError(f"{path}: this is a config; say --config {path}.")
    run = config.read(arguments.config) if arguments.config else None
    name = run.workload if run else config.Config.model_fields["workload"].default
    workload = find_workload(name)
    if "dtype" not in workload.Options.model_fields:
        raise UserError(
            f"{arguments.config}: workload {name} has no dtype to audit; "
            "give a config with workload: esm2."
        )
    inputs = arguments.inputs or [Path(name) for name in (run.inputs if run else ())]
    if not inputs:
        raise UserError("audit: there is no input; name a FASTA file, or a config with --config.")
    options: dict[str, Any] = dict(run.options) if run else {}
    for key in ("model", "layers"):
        if (value := getattr(arguments, key)) is not None:
            options[key] = value
    settings = {"inputs": [str(path) for path in inputs], "workload": name, "options": options}
    checked = workload.Options.model_validate(config.validate(settings, "audit").options)
    refuse_without_packages(workload.Options)
    _check_json(arguments.json, [*inputs, *filter(None, [arguments.config])])
    choice = arguments.device or (run.device if run else "auto")
    (device,) = with_processors(devices_for(choice)[:1])
    dtypes = tuple(dict.fromkeys(arguments.dtype or _usual(device, checked.dtype)))
    if not dtypes:
        raise UserError(
            f"audit: {device.name} has no bf16, so a run computes in fp32 here, which is the "
            "reference; audit where the GPU is, or say --dtype fp16 (slow on a CPU)."
        )
    return Asked(tuple(inputs), workload, checked, device, dtypes)


def _usual(device: Device, own: str) -> list[str]:
    """Return the dtypes that the device multiplies fast, and the config's own."""
    usual = ["bf16"] if device.has_bf16 else []
    usual += ["fp16"] if device.kind == "cuda" else []
    return usual + ([own] if own in ("bf16", "fp16") else [])


def _check_json(path: Path | None, read: Sequence[Path]) -> None:
    """Refuse a place for the JSON before the computing and not after it."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"--json {path}: this is a folder; name a file in it.")
    if any(path.resolve() == other.resolve() for other in read):
        raise UserError(f"--json {path}: this file is read here; name another one.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(f"--json {path}: {error.strerror}; choose another place.") from None


def settle(wanted: Asked) -> Task:
    """Find the model and settle what depends on it; raise UserError for what cannot be done."""
    workload, options = wanted.workload, wanted.options
    found = weights.weights_of(weights.convert(workload.weights(options) or ""))
    for dtype in wanted.dtypes:
        chosen = type(options).model_validate(options.model_dump() | {"dtype": dtype})
        workload.resolve(chosen, wanted.device, found)
    options = workload.resolve(options, wanted.device, found)
    return Task(workload, options, wanted.dtypes, wanted.device, found)


def check_room(task: Task, sample: Sample) -> None:
    """Refuse what would fill the memory or the folder for temporary files; a GPU tells by itself.

    Models are loaded one after the other, so memory has to hold the largest, in fp32.
    """
    batch_cost = max(task.budget, *(task.cost(protein.payload) for protein in sample.proteins))
    pooled_bytes = 3 * len(sample.proteins) * len(task.options.pools) * task.values_bytes
    needed_mb = (NUM_COPIES * batch_cost * task.values_bytes + pooled_bytes) // 2**20
    if task.device.kind == "cpu":
        needed_mb += max(task.memory_mb(dtype, batch_cost) for dtype in (REFERENCE, *task.dtypes))
    if needed_mb > (free_mb := host.memory_free_mb()):
        raise UserError(
            f"audit: {task.weights.name} and these proteins take about {needed_mb:,} MB of memory, "
            f"and {free_mb:,} MB are free; lower batch_tokens in the config or --sample, drop "
            "layers, or take a machine with more."
        )
    spooled = sum(num_residues(protein, task.options) for protein in sample.proteins)
    folder = tempfile.gettempdir()
    needed, free = spooled * task.values_bytes / 1e9, shutil.disk_usage(folder).free / 1e9
    if needed > free:
        raise UserError(
            f"{folder}: the sample's values in fp32 take {needed:.1f} GB, and {free:.1f} GB are "
            "free here; set TMPDIR to another folder, or lower --sample."
        )


def num_residues(protein: Protein, options: Any) -> int:
    """Return how many residues of a protein get a vector."""
    length = len(protein.payload)
    return min(length, options.max_residues) if options.long == "truncate" else length


def _nothing_left(inputs: Sequence[Path], sample: Sample) -> str:
    (reason, count), *_ = sample.refused.most_common()
    number = sample.num_records
    all_of_them = "the only record was" if number == 1 else f"all {number:,} records were"
    return (
        f"{', '.join(map(str, inputs))}: {all_of_them} refused, "
        f"{count:,} because: {reason} (first: {sample.first_refused[reason]}); "
        "give a file of proteins."
    )
