"""What results say about themselves: in manifest.json, and in each file's own attributes."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from featuremill import __version__
from featuremill.store.parts import Part
from featuremill.store.receipts import device_name, devices_of, is_on_gpu, own_energy_j

MANIFEST_VERSION = 1
SAID = ("layers", "pool", "dtype", "long")
"""Options that are said by themselves, where a workload has them; `options` has all."""


def provenance_of(plan: Mapping[str, Any], receipts: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return what every result file's own attributes say."""
    settings = plan["settings"]
    options: dict[str, Any] = settings["options"]
    said = {name: options[name] for name in SAID if name in options}
    versions = {
        package: ", ".join(_versions(receipts, package))
        for package in sorted(set().union(*(receipt["versions"] for receipt in receipts)))
    }
    return {
        "model_name": str(options.get("model", plan["workload"])),
        **{name: _listed(value) for name, value in said.items()},
        "workload": plan["workload"],
        "workload_version": plan["workload_version"],
        "options": json.dumps(options, sort_keys=True),
        "weights_sha256": settings["weights_sha256"] or "",
        "recipe": plan["recipe"],
        "versions": json.dumps(versions),
        "featuremill_version": __version__,
    }


def _versions(receipts: Sequence[dict[str, Any]], package: str) -> list[str]:
    """Return the versions of a package; who found everything computed already, loaded none."""
    return sorted({r["versions"][package] for r in receipts if package in r["versions"]})


def _listed(value: Any) -> str:
    """Return an option's value as people would write it."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def manifest_of(
    plan: dict[str, Any], parts: list[Part], counts: dict[str, int], files: dict[str, Any]
) -> dict[str, Any]:
    """Return what manifest.json says: where the numbers come from, and how many there are."""
    receipts = [part.receipt.as_json() for part in parts]
    on_gpu = [r["seconds"]["total"] * len(devices_of(r)) for r in receipts if is_on_gpu(r)]
    return {
        "version": MANIFEST_VERSION,
        "run": plan["run"],
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "recipe": plan["recipe"],
        "manifest_sha256": plan["manifest_sha256"],
        "settings": plan["settings"],
        "cost_unit": plan["cost_unit"],
        "inputs": plan["inputs"],
        "plan": plan["counts"],
        "lengths": plan["lengths"],
        "notes": plan["notes"],
        "refusals": plan["refusals"],
        "counts": counts,
        "outputs": files,
        "parts": {receipt["shard"]: receipt["part"] for receipt in receipts},
        "gpu_seconds": round(sum(on_gpu), 3),
        **_energy(receipts),
        "warnings": warnings_of(receipts),
        "receipts": receipts,
    }


def _energy(receipts: list[dict[str, Any]]) -> dict[str, float]:
    """Return what the GPUs took, as far as NVML told; who shared one cannot be told apart."""
    on_gpu = [receipt for receipt in receipts if is_on_gpu(receipt)]
    known = {
        receipt["shard"]: energy_j
        for receipt in on_gpu
        if (energy_j := own_energy_j(receipt)) is not None
    }
    energy_j = math.fsum(known.values())
    num_bytes = sum(r["payload_bytes"] for r in on_gpu if r["shard"] in known)
    found = {"gpu_energy_j": round(energy_j, 1)} if known and len(known) == len(on_gpu) else {}
    if num_bytes:  # of proteins: residues
        found["gpu_energy_j_per_million_residues"] = round(1e6 * energy_j / num_bytes, 1)
    return found


def warnings_of(receipts: list[dict[str, Any]]) -> list[str]:
    """Say what differs between parts that may change values in their last bits, and what the jobs
    that computed them warned of."""
    found = []
    devices = sorted({device_name(receipt) for receipt in receipts})
    if len(devices) > 1:
        found.append(f"parts were computed on different devices: {', '.join(devices)}.")
    for package in ("torch", "featuremill"):
        versions = _versions(receipts, package)
        if len(versions) > 1:
            found.append(f"parts were computed with different {package}: {', '.join(versions)}.")
    return found + sorted({text for receipt in receipts for text in receipt.get("warnings", ())})
