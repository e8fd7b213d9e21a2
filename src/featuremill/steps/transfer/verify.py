"""`featuremill verify`: check the digests and counts of results, and recompute some records."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import numpy as np

from featuremill.kit.errors import UserError
from featuremill.kit.text import counted
from featuremill.steps.transfer.again import Column, Drawn, again, payloads_of
from featuremill.steps.transfer.written import Stored, written

DIFFERS = 1
MOST_SHOWN = 20
DESCRIPTION = (
    "Check the results of a run, such as a folder from a colleague: every digest and count, and "
    "some records computed again on this machine, beside what the results hold."
)
EPILOG = (
    "Exit status: 0 the results hold, 1 something differs, 2 they cannot be checked here "
    "(docs/verify.md)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("results", type=Path, help="the folder of a run, such as results/demo")
    parser.add_argument(
        "--recompute",
        type=int,
        default=20,
        metavar="N",
        help="records to compute again, drawn at random; 0: digests and counts alone; default: "
        "%(default)s",
    )
    parser.add_argument("--seed", type=int, help="random seed of the records to compute again")
    parser.add_argument("--ids", nargs="+", metavar="ID", help="records to compute again")
    parser.add_argument(
        "--input",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="the files with the records; default: the store in the folder, then the run's inputs",
    )
    parser.add_argument("--weights", type=Path, help="the file weights/<name>.json to use")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), help="default: the run's")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def run(arguments: argparse.Namespace) -> int:
    """Run `featuremill verify`; return 0 if there are no differences, else 1."""
    if arguments.recompute < 0:
        raise UserError(f"--recompute {arguments.recompute}: give 0 or more.")
    stored = written(arguments.results)
    problems, drawn, columns = list(stored.problems), None, list[Column]()
    if stored.records is not None and (arguments.ids or arguments.recompute):
        drawn = _draw(stored, arguments)
        payloads, others = payloads_of(stored, drawn.records, arguments.input or [])
        problems += others
        if payloads:
            columns, others = again(stored, drawn, payloads, arguments.device, arguments.weights)
            problems += others
    _print(stored, drawn, columns, problems, arguments.json)
    return DIFFERS if problems else 0


def _draw(stored: Stored, arguments: argparse.Namespace) -> Drawn:
    records = stored.records
    assert records is not None
    if arguments.ids:
        row_of = records.rows_named(arguments.ids)
        if missing := [id for id in arguments.ids if id not in row_of]:
            raise UserError(f"{records.name}: {missing[0]!r}: the results have no such id.")
        return Drawn(None, records.records_of(np.array([*row_of.values()])))
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    number = min(arguments.recompute, records.num_rows)
    rows = random.Random(seed).sample(range(records.num_rows), number)  # noqa: S311
    return Drawn(seed, records.records_of(np.array(rows, np.int64)))


def _print(
    stored: Stored,
    drawn: Drawn | None,
    columns: list[Column],
    problems: list[str],
    is_json: bool,
) -> None:
    if is_json:
        answer = {
            "version": 1,
            "holds": not problems,
            "results": str(stored.folder.root),
            "files": stored.num_files,
            "parts": stored.num_parts,
            "records": stored.delivery.counts.model_dump(mode="json"),
            "seed": drawn.seed if drawn else None,
            "recomputed": [record.id for record in drawn.records.values()] if drawn else [],
            "columns": [column._asdict() for column in columns],
            "problems": problems,
        }
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return
    lines = [
        f"{stored.delivery.counts.in_words}; {counted(stored.num_files, 'file')} of results and "
        f"{counted(stored.num_parts, 'part')} compared with their digests."
    ]
    if drawn and columns:
        how = "named" if drawn.seed is None else f"drawn by --seed {drawn.seed}"
        lines.append(f"{counted(len(drawn.records), 'record')} computed again, {how}:")
        lines += [f"  {column.line}" for column in columns]
    lines += [f"differs: {problem}" for problem in problems[:MOST_SHOWN]]
    if len(problems) > MOST_SHOWN:
        lines.append(f"… and {len(problems) - MOST_SHOWN:,} more; --json has all.")
    lines.append("The results differ." if problems else "The results hold.")
    sys.stdout.write("\n".join(lines) + "\n")
