"""One visit of the doctor: look at the machine, say what was found, pack it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from featuremill.base.environment import DEVICES
from featuremill.base.errors import DeviceError, UserError
from featuremill.doctor import bundle, compiling, host, report, scaling, view
from featuremill.doctor.advice import advise, has_bf16
from featuremill.doctor.children import ChildError
from featuremill.doctor.facts import Gpu, Node, read_node
from featuremill.doctor.findings import Findings, Issue
from featuremill.doctor.trial import Trial, try_cpu, try_gpus
from featuremill.lease import Request, devices, folder, lease
from featuremill.lease.condition import Failures
from featuremill.lease.devices import Device
from featuremill.lease.slots import Holder, holders
from featuremill.workloads.esm2 import memory

NOT_READY = 1
LEASE_SECONDS = 10.0
"""How long to wait for the GPUs to be timed; the trials' memory may be in use for a moment."""
log = logging.getLogger("featuremill.doctor")


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill doctor`; return 0 when a run with device: auto can start, else 1."""
    if arguments.memory_mb is not None and arguments.memory_mb < 1:
        raise UserError(f"--memory-mb {arguments.memory_mb}: give a positive number of MB.")
    model = memory.model_of(arguments.model) if arguments.model else None
    head_width = model.head_width if model else memory.USUAL_HEAD_WIDTH
    findings = _with_needs(examine(arguments, head_width), model, arguments.memory_mb)
    timed: dict[str, Any] | None = None
    issues = report.issues_of(findings)
    if arguments.is_timed:
        timed, more = _timed(findings, arguments.timeout)
        issues = sorted([*issues, *more], key=lambda one: report.SEVERITIES.index(one.severity))
    answer = report.as_json(findings, issues, advise(findings), timed)
    if arguments.json:
        sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("\n".join(view.lines(answer)) + "\n")
    if arguments.bundle:
        names = bundle.write(arguments.bundle, answer, Path.cwd(), arguments.results)
        log.info(
            "wrote %s (%d files); look through it before you send it", arguments.bundle, len(names)
        )
    return 0 if answer["ready"] else NOT_READY


def examine(arguments: argparse.Namespace, head_width: int) -> Findings:
    """Look at the machine, as one that computes a model with heads so wide."""
    node = read_node(arguments.timeout)
    asked = arguments.devices or DEVICES.value()
    gpus = choose(node, asked) if asked else node.gpus
    trials = try_gpus(gpus, head_width, arguments.timeout)
    leases, cooling = _leased_and_cooling(gpus)
    takes_cpu = not any(gpu.is_visible for gpu in gpus)
    return Findings(
        node=node,
        gpus=gpus,
        is_chosen=bool(asked),
        trials=trials,
        cpu=devices.cpu(),
        cpu_trial=try_cpu(head_width, arguments.timeout) if takes_cpu else None,
        host=host.look(arguments.results),
        compiling=compiling.look(),
        leases=leases,
        cooling=cooling,
    )


def _leased_and_cooling(gpus: Sequence[Gpu]) -> tuple[dict[str, list[Holder]], dict[str, str]]:
    """Return by UUID who has leased which GPU, and why leases let one rest."""
    try:
        where = folder.find()
        leases: dict[str, list[Holder]] = {}
        for holder in holders(where):
            leases.setdefault(holder.device.partition("@")[0], []).append(holder)
        cooling = {gpu.uuid: Failures(where, gpu.uuid).cooling() for gpu in gpus if gpu.uuid}
    except (UserError, OSError):  # host.py says what is wrong with the folder
        return {}, {}
    return leases, cooling


def choose(node: Node, choice: str) -> tuple[Gpu, ...]:
    """Return the GPUs that --devices names; raise UserError for one that does not exist."""
    chosen: list[Gpu] = []
    for token in (part.strip() for part in choice.split(",")):
        matches = [
            gpu
            for gpu in node.gpus
            if token == str(gpu.id) or (token and (gpu.uuid or "").startswith(token))
        ]
        is_number = token.isdecimal()
        if not matches or (not is_number and len(matches) > 1):
            problem = "stands for several" if matches else "does not exist"
            raise UserError(f"GPU {token} {problem}; this machine has {_numbers(node.gpus)}.")
        chosen += [gpu for gpu in matches if gpu not in chosen]
    return tuple(chosen)


def _numbers(gpus: Sequence[Gpu]) -> str:
    last = max((gpu.id for gpu in gpus), default=None)
    if last is None:
        return "no GPU that a driver tells of"
    return f"0–{last}" if last else "GPU 0 only"


def _with_needs(findings: Findings, model: memory.Model | None, memory_mb: int | None) -> Findings:
    """Add what the model, or so many MB, takes on each device."""
    if model is None and memory_mb is None:
        return findings
    candidates = {g.uuid: _as_device(g, findings.trial(g)) for g in findings.gpus if g.uuid}
    if findings.cpu_trial:
        candidates = {"cpu": findings.cpu}
    if model is None:
        assert memory_mb is not None
        given = memory.Need(memory_mb, "", 0)
        needs = dict.fromkeys(candidates, given)
    else:
        needs = {uuid: memory.need(model, device) for uuid, device in candidates.items()}
    return dataclasses.replace(findings, model=model.name if model else "", needs=needs)


def _as_device(gpu: Gpu, trial: Trial | None) -> Device:
    count = (trial.multiprocessors if trial else None) or 0
    assert gpu.uuid
    return Device("cuda", gpu.uuid, gpu.name, has_bf16(gpu), gpu.id, gpu.memory_mb or 0, count)


def _timed(findings: Findings, timeout: float) -> tuple[dict[str, Any] | None, list[Issue]]:
    """Time work on the devices that a run could have now."""
    free = [gpu for gpu in findings.accessible if not findings.busy_by(gpu)]
    try:
        if findings.cpu_trial:
            timed = scaling.time_cpu(findings.host.num_processors, timeout)
        elif free:
            uuids = ",".join(gpu.uuid for gpu in free if gpu.uuid)
            wanted = Request(num_gpus=len(free), devices=uuids, wait_seconds=LEASE_SECONDS)
            with lease("cuda", wanted):
                timed = scaling.time_gpus(free, timeout)
        else:
            return None, [
                Issue("note", "not-timed", "No GPU is free to be timed.", "Run it again later.")
            ]
    except (ChildError, DeviceError, UserError) as error:
        what = f"The timed work came to nothing: {str(error).rstrip('.')}."
        return None, [Issue("warning", "not-timed", what, "See the other issues; run it again.")]
    return timed, list(scaling.issues(timed))
