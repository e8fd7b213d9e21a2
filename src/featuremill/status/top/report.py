"""The answer for programs: docs/top.md explains each key."""

from __future__ import annotations

import datetime
from typing import Any

from featuremill.status.report import as_json as status_json
from featuremill.status.top.scene import Scene

VERSION = 1


def as_json(scene: Scene) -> dict[str, Any]:
    """Return one look as one object; what is not known is None."""
    totals, rest = scene.totals, scene.rest
    moment = datetime.datetime.fromtimestamp(scene.time, datetime.UTC)
    return {
        "version": VERSION,
        "folder": str(scene.given),
        "time": moment.isoformat(timespec="seconds"),
        "run": scene.plan["run"] if scene.plan else None,
        "phase": scene.phase,
        "cost_unit": scene.cost_unit,
        "share": round(totals.share, 6) if scene.plan else None,
        "shards": {"total": totals.shards, "done": totals.shards_done},
        "records": {
            "total": totals.records,
            "done": totals.records_done,
            "failed": totals.records_failed,
        },
        "cost": {"total": totals.cost, "done": round(totals.cost_done, 3)},
        "cost_per_second": _rounded(scene.speed),
        "rest": rest and {**rest._asdict(), "seconds": _rounded(rest.seconds)},
        "jobs": [
            {
                **job._asdict(),
                "devices": [device._asdict() for device in job.devices],
                "silent_seconds": _rounded(job.silent_seconds),
            }
            for job in scene.jobs
        ],
        "devices": [
            {**use._asdict(), "share_of_time": round(use.share_of_time, 4)} for use in scene.uses
        ],
        "reasons": [reason._asdict() for reason in scene.reasons],
        "ended": [{"shard": one.shard, "message": one.message} for one in scene.ended],
        "status": status_json(scene.facts) if scene.facts else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
