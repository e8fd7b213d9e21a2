"""What is to be audited: the options of a run, on a device, in which dtypes. And does it fit?"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from featuremill import config
from featuremill.base.errors import UserError
from featuremill.doctor import host
from featuremill.doctor.audit.sample import Protein, Sample
from featuremill.lease.devices import Device, devices_for, with_processors
from featuremill.workload import Weights, refuse_without_packages, weights
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import memory
from featuremill.workloads.esm2.options import Options

REFERENCE = "fp32"
VALUES_BYTES = 2**28
"""What the values of one batch may take in memory: more layers, or wider ones, smaller batches."""
NUM_COPIES = 4
"""Of a batch's values at once: found and expected, each with a copy that is being made."""


class Asked(NamedTuple):
    """What the user asked for, checked but for what only the model and the device can tell."""

    inputs: tuple[Path, ...]
    options: Options
    device: Device
    dtypes: tuple[str, ...]


class Task(NamedTuple):
    """What is computed."""

    options: Options
    """The run's own, resolved: its dtype is the one that a run would take here."""
    dtypes: tuple[str, ...]
    device: Device
    weights: Weights

    def options_in(self, dtype: str) -> Options:
        """Return the options to compute with: every residue's values, unrounded."""
        more = {"dtype": dtype, "per_residue": True, "output_dtype": "float32"}
        return Options.model_validate(self.options.model_dump() | more)

    @property
    def width(self) -> int:
        return int(self.weights.metadata["embed_dim"])

    @property
    def budget(self) -> int:
        """Tokens of a batch: those of a run, or fewer if their values would take too much."""
        values_bytes = self.width * len(self.options.layers) * memory.FLOAT_BYTES
        fitting = max(1, VALUES_BYTES // values_bytes)
        return min(esm2.batch_cost(self.options, self.device), fitting)


def asked(arguments: argparse.Namespace) -> Asked:
    """Check the command line and the config together."""
    if arguments.sample < 1:
        raise UserError(f"--sample {arguments.sample}: give the number of proteins, 1 or more.")
    for path in arguments.inputs:
        if path.suffix in (".yaml", ".yml"):
            raise UserError(f"{path}: this is a config; say --config {path}.")
    run = config.read(arguments.config) if arguments.config else None
    if run and run.workload != "esm2":
        raise UserError(
            f"{arguments.config}: workload {run.workload} has no dtype to audit; "
            "give a config with workload: esm2."
        )
    inputs = arguments.inputs or [Path(name) for name in (run.inputs if run else ())]
    if not inputs:
        raise UserError("audit: there is no input; name a FASTA file, or a config with --config.")
    options: dict[str, Any] = dict(run.options) if run else {}
    for name in ("model", "layers"):
        if (value := getattr(arguments, name)) is not None:
            options[name] = value
    settings = {"inputs": [str(path) for path in inputs], "workload": "esm2", "options": options}
    checked = Options.model_validate(config.validate(settings, "audit").options)
    refuse_without_packages(Options)
    _check_json(arguments.json, [*inputs, *filter(None, [arguments.config])])
    choice = arguments.device or (run.device if run else "auto")
    (device,) = with_processors(devices_for(choice)[:1])
    dtypes = tuple(dict.fromkeys(arguments.dtype or _usual(device, checked.dtype)))
    if not dtypes:
        raise UserError(
            f"audit: {device.name} has no bf16, so a run computes in fp32 here, which is the "
            "reference; audit where the GPU is, or say --dtype fp16 (slow on a CPU)."
        )
    return Asked(tuple(inputs), checked, device, dtypes)


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
    found = weights.weights_of(weights.convert(wanted.options.model))
    for dtype in wanted.dtypes:
        chosen = Options.model_validate(wanted.options.model_dump() | {"dtype": dtype})
        esm2.resolve(chosen, wanted.device, found)
    options = esm2.resolve(wanted.options, wanted.device, found)
    return Task(options, wanted.dtypes, wanted.device, found)


def check_room(task: Task, sample: Sample) -> None:
    """Refuse what would fill the memory or the folder for temporary files; a GPU tells by itself.

    Models are loaded one after the other, so memory has to hold the largest, in fp32.
    """
    vectors_bytes = task.width * len(task.options.layers) * memory.FLOAT_BYTES
    longest = max(esm2.cost(protein.payload, task.options) for protein in sample.proteins)
    num_tokens = max(task.budget, longest)
    pooled_bytes = 3 * len(sample.proteins) * len(task.options.pools) * vectors_bytes
    needed_mb = (NUM_COPIES * num_tokens * vectors_bytes + pooled_bytes) // 2**20
    if task.device.kind == "cpu":
        needed_mb += max(memory_mb(task, dtype, num_tokens) for dtype in (REFERENCE, *task.dtypes))
    if needed_mb > (free_mb := host.memory_free_mb()):
        raise UserError(
            f"audit: {task.weights.name} and these proteins take about {needed_mb:,} MB of memory, "
            f"and {free_mb:,} MB are free; lower batch_tokens in the config or --sample, drop "
            "layers, or take a machine with more."
        )
    spooled = sum(num_residues(protein, task.options) for protein in sample.proteins)
    folder = tempfile.gettempdir()
    needed, free = spooled * vectors_bytes / 1e9, shutil.disk_usage(folder).free / 1e9
    if needed > free:
        raise UserError(
            f"{folder}: the sample's values in fp32 take {needed:.1f} GB, and {free:.1f} GB are "
            "free here; set TMPDIR to another folder, or lower --sample."
        )


def memory_mb(task: Task, dtype: str, num_tokens: int) -> int:
    """Return what the model in `dtype` takes on the device, at most."""
    metadata = task.weights.metadata
    model = memory.Model(
        task.weights.name,
        int(metadata["num_layers"]),
        task.width,
        memory.FILE_DTYPES[metadata["dtype"]],
    )
    return memory.estimate_mb(model, task.device.kind, dtype, num_tokens)


def num_residues(protein: Protein, options: Options) -> int:
    """Return how many residues of a protein get a vector."""
    length = len(protein.payload)
    return min(length, options.max_residues) if options.long == "truncate" else length
