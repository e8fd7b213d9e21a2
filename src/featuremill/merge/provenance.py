"""What results say about themselves: in manifest.json, and in each file's own attributes."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from featuremill import workload
from featuremill.base.this_process import ALWAYS_USED, VERSION
from featuremill.config import Config, Run
from featuremill.store.delivery import Accounts, Delivery, Taken, Written
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt
from featuremill.workload.weights import model_name_of


def provenance_of(plan: Plan, receipts: Sequence[Receipt]) -> dict[str, str]:
    """Return the attributes of every result file."""
    options = plan.settings.options
    names = workload.optional_of(plan.workload, "ATTRIBUTES")
    attributes = {name: options[name] for name in names if name in options}
    versions = {
        package: ", ".join(_versions(receipts, package))
        for package in sorted(set().union(*(receipt.versions for receipt in receipts)))
    }
    return {
        "model_name": model_name_of(plan.settings) or plan.workload,
        **{name: _listed(value) for name, value in attributes.items()},
        "workload": plan.workload,
        "workload_version": plan.workload_version,
        "options": json.dumps(options, sort_keys=True),
        "weights_sha256": plan.settings.weights_sha256 or "",
        "recipe": plan.recipe,
        "versions": json.dumps(versions),
        "featuremill_version": VERSION,
    }


def _versions(receipts: Sequence[Receipt], package: str) -> list[str]:
    """Return a package's versions; receipts of jobs that had nothing to compute do not list it."""
    return sorted({r.versions[package] for r in receipts if package in r.versions})


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def carried(config: Run) -> dict[str, Any]:
    """Return the keys of a config that manifest.json repeats: those which `Delivery` has a field
    for, but for what the plan and the files themselves tell."""
    both = Config.model_fields.keys() & Delivery.model_fields.keys()
    return config.model_dump(mode="json", include=both - {"run", "inputs", "outputs"})


def delivery_of(
    plan: Plan,
    receipts: list[Receipt],
    counts: Accounts,
    outputs: dict[str, Written],
    extra_fields: Mapping[str, Any],
) -> Delivery:
    """Return the content of manifest.json: sources, counts, and `extra_fields`, such as keys of the
    config."""
    sources = {entry.shard: entry for entry in plan.taken}
    own = [receipt for receipt in receipts if receipt.shard not in sources]
    extra_fields = dict(extra_fields)
    taken = [
        Taken(
            part=receipt.part,
            path=sources[receipt.shard].path,
            records=sources[receipt.shard].wanted,
            device=receipt.device_name,
            versions=receipt.versions,
            host=receipt.host,
            finished=receipt.finished,
        )
        for receipt in receipts
        if receipt.shard in sources
    ]
    if plan.store:
        extra_fields["taken"] = taken
    on_gpu = [r.seconds["total"] * len(r.devices) for r in own if r.is_on_gpu]
    return Delivery(
        **extra_fields,
        version=Delivery.NEWEST,
        run=plan.run,
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        recipe=plan.recipe,
        records_sha256=plan.records_sha256,
        settings=plan.settings,
        cost_unit=plan.cost_unit,
        inputs=plan.inputs,
        plan=plan.counts,
        lengths=plan.lengths,
        notes=plan.notes,
        refusals=plan.refusals,
        counts=counts,
        outputs=outputs,
        parts={receipt.shard: receipt.part for receipt in receipts},
        gpu_seconds=round(sum(on_gpu), 3),
        **_energy(own, bytes_are_lengths(plan)),
        warnings=warnings_of(receipts),
        receipts=own,
    )


def bytes_are_lengths(plan: Plan) -> bool:
    """Return whether the bytes of payloads are the lengths of records: not where an option names a
    file, as payloads may have more out of it, such as the ends of a region."""
    are_lengths: bool = workload.optional_of(plan.workload, "BYTES_ARE_LENGTHS")
    return are_lengths and not plan.settings.files


def _energy(receipts: list[Receipt], has_lengths: bool) -> dict[str, Any]:
    """Return the energy of the GPUs by NVML; it cannot be split between jobs on one GPU.

    A receipt knows the bytes of its payloads, and not how long the records are, unless it
    `has_lengths`.
    """
    on_gpu = [receipt for receipt in receipts if receipt.is_on_gpu]
    known = [receipt for receipt in on_gpu if receipt.own_energy_j is not None]
    energy_j = math.fsum(receipt.own_energy_j or 0.0 for receipt in known)
    num_bytes = sum(receipt.payload_bytes for receipt in known)
    fields = {"gpu_energy_j": round(energy_j, 1)} if known and len(known) == len(on_gpu) else {}
    if num_bytes and has_lengths:
        fields["gpu_energy_j_per_million"] = round(1e6 * energy_j / num_bytes, 1)
    return fields


def warnings_of(receipts: list[Receipt]) -> list[str]:
    """Return warnings: differences between parts that may change the last bits of values, and the
    warnings of the jobs."""
    warnings = []
    devices = sorted({receipt.device_name for receipt in receipts})
    if len(devices) > 1:
        warnings.append(f"parts were computed on different devices: {', '.join(devices)}.")
    packages = set().union(*(receipt.versions for receipt in receipts))
    others = sorted(packages - {"torch", "python", "featuremill", *ALWAYS_USED})
    for package in ("torch", "featuremill", *others):
        versions = _versions(receipts, package)
        if len(versions) > 1:
            warnings.append(f"parts were computed with different {package}: {', '.join(versions)}.")
    return warnings + sorted({text for receipt in receipts for text in receipt.warnings})
