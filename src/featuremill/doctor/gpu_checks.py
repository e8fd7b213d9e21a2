"""Issues of one GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from featuremill.doctor.facts import Gpu
from featuremill.doctor.findings import Findings, Issue, Severity, gigabytes
from featuremill.doctor.trial import Trial
from featuremill.lease.condition import COMPUTE_MODE_PROHIBITED, COMPUTE_MODES_EXCLUSIVE

PASSING = ("exclusive", "full")
"""Failures that end when whoever uses the GPU is done: a run can start, and waits."""
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")


def check(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    """Yield what is wrong with `gpu` and what is good to know of it."""
    if gpu.trouble or gpu.is_divided:
        yield _issue(findings, gpu, _unreachable(gpu))
        return
    trial = findings.trial(gpu)
    if trial is None:  # hidden: said once for all
        return
    if trial.error and (findings.lacks_cuda or findings.is_driver_too_old):  # said once for all
        return
    if trial.error and not trial.is_missing:
        yield _issue(findings, gpu, _failed(findings, gpu, trial))
    yield from _used(findings, gpu)
    yield from _small(findings, gpu)
    yield from _sick(findings, gpu)


def _issue(findings: Findings, gpu: Gpu, found: tuple[str, str, str]) -> Issue:
    """Return a failure: an error when it is why no GPU is left, for then nothing can start."""
    code, what, remedy = found
    is_not_tried = gpu.uuid not in findings.trials
    others_fail = is_not_tried and bool(findings.trials)  # for reasons that are said themselves
    is_passing = code in PASSING or others_fail or bool(findings.accessible)
    severity: Severity = "warning" if is_passing else "error"
    return Issue(severity, code, f"{gpu.label} ({gpu.name}): {what}", remedy, gpu.uuid)


def _unreachable(gpu: Gpu) -> tuple[str, str, str]:
    if gpu.is_divided:
        return (
            "mig-without-slices",
            "MIG is on, but there are no slices, so nothing can run on it.",
            f"Make slices: nvidia-smi mig -i {gpu.id} -cgi …, or switch MIG off: "
            f"nvidia-smi -i {gpu.id} -mig 0.",
        )
    if gpu.is_lost:
        return (
            "lost",
            "the driver has lost it.",
            f"Look for Xid in dmesg; nvidia-smi --gpu-reset -i {gpu.id}, or reboot.",
        )
    return (
        "nvml-error",
        f"it answers with an error ({gpu.trouble}).",
        f"nvidia-smi -q -i {gpu.id} tells more; reset it or leave it out with --devices.",
    )


def _failed(findings: Findings, gpu: Gpu, trial: Trial) -> tuple[str, str, str]:
    if gpu.compute_mode == COMPUTE_MODE_PROHIBITED:
        return (
            "prohibited",
            "its compute mode is Prohibited.",
            f"sudo nvidia-smi -i {gpu.id} -c DEFAULT.",
        )
    if gpu.capability and trial.arch_list and not has_kernels(gpu.capability, trial.arch_list):
        return (
            "no-kernels",
            f"torch {trial.torch} has no kernels for it ({gpu.architecture}).",
            "Install a torch whose torch.cuda.get_arch_list() names it (for older cards: one built "
            "for an older CUDA), or leave it out with --devices.",
        )
    by = findings.busy_by(gpu)
    if by and gpu.compute_mode in COMPUTE_MODES_EXCLUSIVE:
        return (
            "exclusive",
            f"its compute mode lets one process in, and that is {by}.",
            f"Wait for it, or: sudo nvidia-smi -i {gpu.id} -c DEFAULT.",
        )
    if by and trial.lacks_memory:
        return (
            "full",
            f"there is not memory enough on it to begin; it is in use by {by}.",
            "Wait for it, or ask its user.",
        )
    if trial.lacks_memory:
        free = "" if gpu.free_mb is None else f" ({gigabytes(gpu.free_mb)} free)"
        return (
            "no-memory",
            f"there is not memory enough on it for 64 MB and cuBLAS's handle{free}: "
            f"{trial.error.rstrip('.')}.",
            "See in nvidia-smi who holds it; of a GPU in slices, take a larger one; or leave it "
            "out with --devices.",
        )
    if trial.is_of_esm2:
        return (
            "fails-check",
            f"torch works on it, and ESM-2 would not be computed: {trial.error.rstrip('.')}.",
            "See whether this torch fits the driver; look for Xid in dmesg; reset it or leave it "
            "out with --devices.",
        )
    if trial.is_silent:
        return (
            "no-answer",
            f"a small product on it came to nothing: {trial.error}.",
            "Look for Xid in dmesg; reset it or leave it out with --devices.",
        )
    return (
        "allocation-failed",
        f"64 MB and a small product on it failed: {trial.error.rstrip('.')}.",
        "Look at nvidia-smi; reset it, or leave it out with --devices.",
    )


def has_kernels(capability: tuple[int, int], arch_list: list[str]) -> bool:
    """Tell whether code for these architectures runs on a GPU of that capability.

    Binary code runs within its major version, from its minor version on; with the suffix `a` on
    that one alone; PTX is compiled for anything later.
    """
    for found in map(ARCHITECTURE.fullmatch, arch_list):
        if not found:
            continue
        kind, major, minor, suffix = found[1], int(found[2]), int(found[3]), found[4]
        if suffix == "a":
            fits = (major, minor) == capability
        elif kind == "compute":
            fits = (major, minor) <= capability
        else:
            fits = major == capability[0] and minor <= capability[1]
        if fits:
            return True
    return False


def _used(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    if by := findings.used_by_others(gpu):
        yield Issue(
            "warning",
            "busy",
            f"{gpu.label} ({gpu.name}) is in use by {by}.",
            "Jobs wait for it or take another; leave it out with --devices, or ask its user. If it "
            "is a display, FEATUREMILL_POLICY=memory takes the GPU all the same.",
            gpu.uuid,
        )
    elif by := findings.leased_by(gpu):
        yield Issue(
            "note",
            "leased",
            f"{gpu.label} ({gpu.name}) is in use by {by}.",
            "Nothing to do: jobs wait their turn. featuremill lease --list shows who has what.",
            gpu.uuid,
        )
    elif findings.used_by_display(gpu):
        yield Issue(
            "note",
            "display",
            f"{gpu.label} ({gpu.name}) drives a display, which holds "
            f"{gigabytes(gpu.used_mb or 0)}.",
            "Nothing to do: jobs take it all the same, and the screen may lag while they compute.",
            gpu.uuid,
        )
    if gpu.compute_mode in COMPUTE_MODES_EXCLUSIVE:
        yield Issue(
            "note",
            "exclusive",
            f"{gpu.label} ({gpu.name}) lets one process in at a time (exclusive compute mode).",
            f"Fine with one slot a GPU; for more: sudo nvidia-smi -i {gpu.id} -c DEFAULT.",
            gpu.uuid,
        )


def _small(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    need_mb = findings.need_mb(gpu.uuid)
    if gpu.memory_mb is not None and gpu.memory_mb < need_mb:
        yield Issue(
            "note",
            "too-small",
            f"{gpu.label} ({gpu.name}) has {gigabytes(gpu.memory_mb)}, and "
            f"{findings.needed(gpu.uuid)}.",
            "Leave it out with --devices, or take a smaller model or batch_tokens.",
            gpu.uuid,
        )
    elif gpu.free_mb is not None and gpu.free_mb < need_mb and not findings.leased_by(gpu):
        yield Issue(
            "warning",
            "little-memory",
            f"{gpu.label} ({gpu.name}) has {gigabytes(gpu.free_mb)} free, and "
            f"{findings.needed(gpu.uuid)}.",
            "See in nvidia-smi who holds the rest, and wait or ask.",
            gpu.uuid,
        )


def _sick(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    if cooling := findings.cooling.get(gpu.uuid or ""):
        yield Issue(
            "warning",
            "cooling",
            f"{gpu.label} ({gpu.name}) gets no jobs: {cooling}.",
            "Wait until then; the logs of those jobs and dmesg (Xid) may tell why they failed.",
            gpu.uuid,
        )
    if gpu.ecc_errors:
        yield Issue(
            "warning",
            "ecc",
            f"{gpu.label} ({gpu.name}) had {gpu.ecc_errors} uncorrectable memory errors since the "
            "driver was loaded.",
            f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.id}; reset it; if they come back, have it "
            "replaced.",
            gpu.uuid,
        )
    if gpu.throttle:
        yield Issue(
            "warning",
            "throttled",
            f"{gpu.label} ({gpu.name}) is slowed down now: {', '.join(gpu.throttle)}.",
            f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu.id}; see to its cooling.",
            gpu.uuid,
        )
