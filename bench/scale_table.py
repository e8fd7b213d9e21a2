"""The tables of a rehearsal as markdown: `python -m bench.scale_table bench/results/….json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def markdown(content: dict[str, Any]) -> str:
    """Return everything that a rehearsal's JSON holds."""
    place, code = content["machine"], content["code"]
    commit = (code["commit"] or "unknown")[:12] + (" with changes" if code["dirty"] else "")
    load = place["load_at_start"][0]
    return "\n".join(
        [
            f"`{' '.join(content['command'])}`",
            "",
            f"{place['cpu']}, {place['cores']} cores, {place['memory_gb']} GB; load {load:.1f} at "
            f"the start; commit {commit}; {content['started'][:10]}",
            "",
            *_stages(content["rehearsals"]),
            "",
            *_bytes(content["rehearsals"]),
            "",
            *_jobs(content["rehearsals"]),
        ]
    )


def _stages(rehearsals: Sequence[dict[str, Any]]) -> list[str]:
    head = ["records", "stage", "seconds", "CPU seconds", "seconds per million"]
    rows = [
        [
            f"{found['records']:,}",
            verb,
            f"{stage['seconds']:.1f}",
            f"{stage['cpu_seconds']:.1f}",
            f"{stage['seconds'] / found['records'] * 1e6:.1f}",
            f"{stage['peak_mb']:,}",
            f"{stage['peak_anonymous_mb']:,}",
        ]
        for found in rehearsals
        for verb, stage in found["stages"].items()
    ]
    return _table([*head, "peak MB", "anonymous MB"], rows)


def _bytes(rehearsals: Sequence[dict[str, Any]]) -> list[str]:
    names = [name for name in rehearsals[0]["bytes"] if not name.endswith((".json", ".tsv"))]
    rows = [
        [
            f"{found['records']:,}",
            *(f"{found['bytes'].get(name, 0) / found['records']:.0f}" for name in names),
        ]
        for found in rehearsals
    ]
    return _table(["bytes a record", *names], rows)


def _jobs(rehearsals: Sequence[dict[str, Any]]) -> list[str]:
    """Return where the time of an extract job goes: computing, the verb, and between two jobs."""
    rows = []
    for found in rehearsals:
        if "snakemake" not in found:
            continue
        extract, snakemake = found["stages"]["extract"], found["snakemake"]
        slot = extract["seconds"] * snakemake["cores"] / extract["jobs"]
        receipt = found["receipts_seconds"] / extract["jobs"]
        rows.append(
            [
                f"{found['shards']:,}",
                f"{slot:.2f}",
                f"{receipt:.2f}",
                f"{extract['seconds_a_job'] - receipt:.2f}",
                f"{slot - extract['seconds_a_job']:.2f}",
                f"{snakemake['cpu_seconds'] / extract['jobs']:.2f}",
                f"{snakemake['peak_mb']:,}",
            ]
        )
    head = ["shards", "core seconds a job", "in the receipt", "start and end of the verb"]
    head += ["between two jobs", "Snakemake's CPU", "Snakemake's MB"]
    return _table(head, rows) if rows else []


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
