"""`featuremill doctor --slurm`: the answer as JSON and for people."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from featuremill.base.errors import UserError
from featuremill.base.text import one_line
from featuremill.doctor import slurm_advice, slurm_checks, slurm_facts, view
from featuremill.doctor.report import SEVERITIES, VERSION

NOT_READY = 1
MAX_SECONDS = 30.0
"""For one command's answer."""


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill doctor --slurm`; return 0 when a run can be submitted, else 1."""
    others = {"--model": "model", "--memory-mb": "memory_mb", "--devices": "devices"}
    others |= {"--run": "is_timed", "--bundle": "bundle"}
    if given := [option for option, name in others.items() if getattr(arguments, name)]:
        raise UserError(f"--slurm looks at the cluster, so it takes no {given[0]}; ask twice.")
    cluster = slurm_facts.look(arguments.results, min(arguments.timeout, MAX_SECONDS))
    answer = as_json(cluster)
    if arguments.json:
        sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("\n".join(lines(answer)) + "\n")
    return 0 if answer["ready"] else NOT_READY


def as_json(cluster: slurm_facts.Cluster) -> dict[str, Any]:
    """Return the readiness of a cluster: docs/doctor.md describes each key."""
    found = slurm_checks.check(cluster)
    issues = sorted(found, key=lambda issue: SEVERITIES.index(issue.severity))
    partitions = slurm_advice.gpu_partitions(cluster)
    return {
        "version": VERSION,
        "ready": not any(issue.severity == "error" for issue in issues),
        "cluster": cluster.config.get("ClusterName"),
        "accounting": cluster.accounting,
        "min_job_age_seconds": cluster.min_job_age_seconds,
        "partitions": [
            {
                "name": one.name,
                "limit_minutes": one.limit_minutes,
                "gpus": {kind or "any": count for kind, count in one.gpus.items()},
                "unusable_gpus": one.num_unusable,
                "memory_mb": one.memory_mb,
            }
            for one in partitions
        ],
        "status": slurm_advice.status_mode(cluster)._asdict(),
        "issues": [issue._asdict() for issue in issues],
        "profile": slurm_advice.profile(cluster) if cluster.config else [],
        "versions": dict(cluster.versions)
        | ({"slurm": cluster.config["SLURM_VERSION"]} if "SLURM_VERSION" in cluster.config else {}),
    }


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page; names come from the cluster, so they are made plain."""
    for line in _lines(answer):
        yield one_line(line)


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    yield from view.wrapped(_verdict(answer))
    yield ""
    for one in answer["partitions"]:
        gpus = ", ".join(f"{n} {kind}" for kind, n in one["gpus"].items()) or "none usable"
        limit = one["limit_minutes"]
        told = "no time limit" if limit is None else f"at most {_hours(limit)}"
        yield from view.wrapped(f"Partition {one['name']}: GPUs: {gpus}; {told}.")
    if answer["partitions"]:
        yield ""
    yield from view.issues(answer)
    if answer["profile"]:
        status = answer["status"]
        safe = status["without_ours"] or "neither"
        yield "Status"
        yield from view.wrapped(
            "This workflow answers the executor's questions itself, so sacct and squeue are both "
            f"safe; sacct also tells why a job failed. Without that, {safe} would be: "
            f"{status['why']}.",
            "  ",
            "  ",
        )
        yield ""
        yield "For profiles/slurm/config.yaml"
        yield from (f"  {line}" for line in answer["profile"])
        yield ""
    yield from view.wrapped(" · ".join(f"{k} {v}" for k, v in answer["versions"].items()))


def _verdict(answer: dict[str, Any]) -> str:
    count = sum(issue["severity"] == "error" for issue in answer["issues"])
    if count:
        return f"Not ready: {count} thing{'s are' if count > 1 else ' is'} in the way of a run."
    gpus = max((sum(one["gpus"].values()) for one in answer["partitions"]), default=0)
    where = f"the cluster {answer['cluster']}"
    if not gpus:
        return f"Ready for the CPU: {where} shows no usable GPU."
    return f"Ready: {where} has up to {gpus} GPU{'s' if gpus > 1 else ''} in a partition."


def _hours(minutes: int) -> str:
    return f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:g} hours"
