"""The workload `pac`: phase-amplitude coupling of signals, by Tort's modulation index.

Indices of pairs of bands are compared with those of surrogates. A record is a segment of one
channel. Each record is computed by itself, in float64, so its values do not depend on the batch.
Its permutations are divided among the devices of a lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.reasons import Kind
from featuremill.workloads.pac.options import Options as Options
from featuremill.workloads.pac.signals import BAD_SPAN, Signal, num_samples_of, signal_of
from featuremill.workloads.pac.signals import records as records

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from featuremill.workload import Device, Weights
    from featuremill.workloads.pac.coupling import Coupling

VERSION = "3"
COST_UNIT = LENGTH_UNIT = "samples"
TAKES_FILES = True
OBJECTS = "an array of signals, (records, channels, samples), with options.sampling_rate_hz"
SHARD_COST = 50_000_000
VERSIONS_OF = ("scipy",)
SPEED_OPTIONS = ("phase_bands", "amplitude_bands", "permutations", "cycles", "passes")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "pac.yaml"
COLUMNS = ("mi", "z", "p")
BATCH_SAMPLES = 100_000
BROKEN = Kind(
    "broken",
    ("samples that are not finite",),
    "Fix the recording, or name the channels that are to be computed (options.channels).",
)
FLAT = Kind(
    "flat",
    ("a flat signal",),
    "The electrode was off, or the amplifier at its limit: there is nothing to compute.",
)
REASONS = (BROKEN, FLAT, BAD_SPAN)


class Model(NamedTuple):
    options: Options
    devices: list[torch.device]
    backend: str


class Prepared(NamedTuple):
    """A record on the host, with the shift of each permutation."""

    signal: Signal
    offset_N: npt.NDArray[np.int64]


def write_object(inputs: Any, stem: Path) -> Path | None:
    """Write a NumPy array or a torch tensor of shape (records, channels, samples), (channels,
    samples) or (samples,); return None for other objects."""
    if hasattr(inputs, "detach"):  # a torch tensor
        inputs = inputs.detach().cpu().numpy()
    if not isinstance(inputs, np.ndarray) or not np.issubdtype(inputs.dtype, np.number):
        return None
    path = stem.with_suffix(".npy")
    np.save(path, inputs)
    return path


def cost(payload: bytes, options: Options) -> int:
    return max(1, num_samples_of(payload))


def weights(options: Options) -> None:
    """Return None, as there are no weights."""


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    return options


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    """Return the columns, each with a matrix (phase bands, amplitude bands) in row-major order."""
    import pyarrow as pa

    num_pairs = len(options.phase_bands) * len(options.amplitude_bands)
    names = COLUMNS if options.permutations else COLUMNS[:1]
    return pa.schema(dict.fromkeys(names, pa.list_(pa.float64(), num_pairs)))


def batch_cost(options: Options, device: Device) -> int:
    return BATCH_SAMPLES


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    import torch

    # Import this now, so that the first batch does not wait for it.
    from featuremill.workloads.pac import coupling  # noqa: F401

    # A job sees only its own GPUs, in the order of the lease.
    torch_devices = [
        torch.device("cuda", ordinal) if device.kind == "cuda" else torch.device("cpu")
        for ordinal, device in enumerate(devices)
    ]
    return Model(options, torch_devices, "torch.fft and cumulative sums, float64")


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> list[Prepared | str]:
    """Return each record on the host, or the reason why it cannot be computed."""
    from featuremill.workloads.pac.coupling import offsets

    options, records = model.options, list[Prepared | str]()
    for payload in payloads:
        signal = signal_of(payload)
        samples_T = signal.samples_T
        if num_bad := int(np.count_nonzero(~np.isfinite(samples_T))):
            records.append(BROKEN.reason(f"{num_bad:,} of {len(samples_T):,}"))
        elif samples_T.min() == samples_T.max():
            detail = f"all of {len(samples_T):,} samples are {samples_T[0]:g}"
            records.append(FLAT.reason(detail))
        else:
            shifts = offsets(payload, options.seed, len(samples_T), options.permutations)
            records.append(Prepared(signal, shifts))
    return records


def run(model: Model, batch: list[Prepared | str]) -> list[Coupling | str]:
    """Compute each record by itself. A GPU may still be computing on return."""
    import torch

    from featuremill.workloads.pac import coupling

    num_phases = len(model.options.phase_bands)
    results: list[Coupling | str] = []
    for record in batch:
        if isinstance(record, str):
            results.append(record)
            continue
        signal, offset_N = record
        bank = coupling.bank(model.options, signal.rate_hz, len(signal.samples_T))
        gain_BF = torch.from_numpy(bank.gain_BF).to(model.devices[0])
        analytic_BT = coupling.analytic(signal, bank, gain_BF)
        phase_PT, amplitude_AT = analytic_BT[:num_phases].angle(), analytic_BT[num_phases:].abs()
        results.append(coupling.coupling(phase_PT, amplitude_AT, offset_N, model.devices))
    return results


def collect(model: Model, result: list[Coupling | str]) -> pa.RecordBatch:
    """Return mi, z and p of each record, or the reason why it has none."""
    import pyarrow as pa

    columns = schema(model.options, None)
    reasons = [record if isinstance(record, str) else None for record in result]
    nothing = dict.fromkeys(columns.names)
    rows = [
        nothing
        if isinstance(record, str)
        else dict(zip(columns.names, (each.ravel() for each in record.results()), strict=True))
        for record in result
    ]
    values = pa.RecordBatch.from_pylist(rows, columns)
    return values.append_column("reason", pa.array(reasons, pa.string()))
