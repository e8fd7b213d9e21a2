"""The answer for programs: docs/status.md explains each key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featuremill.status.facts import ENDED, STATES, Facts
from featuremill.status.problems import Problem
from featuremill.status.shards import Shard

if TYPE_CHECKING:  # brings pyarrow and NumPy
    from featuremill.status.failures import Group

VERSION = 1
COUNTED = ("finished", "removed", "running", "unclear", "begun", "waiting", "lost")


def as_json(facts: Facts) -> dict[str, Any]:
    """Return everything as one object; what is not known is None."""
    plan, results, rest, owner = facts.plan, facts.results, facts.rest, facts.snakemake.owner
    return {
        "version": VERSION,
        "folder": str(facts.given),
        "run": plan["run"] if plan else None,
        "recipe": plan["recipe"] if plan else None,
        "workload": plan["workload"] if plan else None,
        "state": STATES[facts.exit_status],
        "exit_status": facts.exit_status,
        "is_at_work": facts.is_at_work,
        "verified": facts.verified,
        "input": plan["counts"] if plan else None,
        "shards": {"total": len(facts.shards)} | {name: facts.count(name) for name in COUNTED},
        "records": _sums(facts, "records"),
        "cost": _sums(facts, "cost"),
        "running": [_shard(s) for s in facts.shards if s.state in ("running", "unclear")],
        "begun": [_shard(shard) for shard in facts.shards if shard.state == "begun"],
        "is_planning": facts.is_planning,
        "is_merging": facts.is_merging,
        "merged": results.merged if results else "no",
        "reported": results.reported if results else "no",
        "outputs": results.manifest["outputs"] if results and results.manifest else {},
        "exported": results.exported if results else {},
        "partial": results.partial if results else [],
        "failed": facts.num_failed,
        "reasons": [_reason(group) for group in facts.groups],
        "problems": [_problem(problem) for problem in facts.problems],
        "snakemake": {
            "is_running": facts.snakemake.is_running,
            **{key: getattr(owner, key, None) for key in ("host", "pid", "started", "command")},
        },
        "rest": rest and {**rest._asdict(), "seconds": rest.seconds},
        "next": facts.next,
    }


def _sums(facts: Facts, what: str) -> dict[str, int]:
    """Return the sum over all shards, and over those that are computed."""
    finished = sum(getattr(s, what) for s in facts.shards if s.state in ENDED)
    return {"total": sum(getattr(s, what) for s in facts.shards), "finished": finished}


def _reason(group: Group) -> dict[str, Any]:
    return {
        **group.key._asdict(),
        "number": group.number,
        "examples": group.examples,
        "remedy": group.remedy,
        "command": group.command,
        "logs": group.logs,
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "is_in_the_way": problem.is_in_the_way,
        "what": problem.what,
        "remedy": problem.mend.by_hand or None,
        "commands": list(problem.commands),
    }


def _shard(shard: Shard) -> dict[str, Any]:
    work = shard.work
    assert work is not None
    return {
        "shard": shard.name,
        "state": shard.state,
        "records": shard.records,
        "committed_batches": work.batches,
        "committed_records": work.rows,
        "last_commit": work.last_commit,
        **{key: work.who.get(key) for key in ("host", "pid", "started", "devices")},
    }
