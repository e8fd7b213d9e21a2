"""One audit: read, draw, compute, say."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.doctor.audit import report, view
from featuremill.doctor.audit.measure import measure
from featuremill.doctor.audit.sample import Sample, draw
from featuremill.doctor.audit.task import asked, check_room, settle
from featuremill.inputs.residues import NUCLEOTIDES
from featuremill.store import files
from featuremill.workloads import esm2

OUTSIDE = 1
log = logging.getLogger("featuremill.audit")


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill audit`; return 0 when every dtype is within the bounds, else 1."""
    wanted = asked(arguments)
    sample = draw(esm2.records(wanted.inputs, wanted.options), arguments.sample)
    if not sample.proteins:
        raise UserError(_nothing_left(wanted.inputs, sample))
    if 2 * sample.notes[NUCLEOTIDES] > sample.num_records - sample.refused.total():
        log.warning("these look like nucleotides, not proteins; translate them first.")
    task = settle(wanted)
    check_room(task, sample)
    measured = measure(task, sample.proteins)
    if measured.matmul_precision != "highest":
        log.warning(
            "torch is set to compute fp32 products less exactly (%s), and so was the reference; "
            "unset TORCH_ALLOW_TF32_CUBLAS_OVERRIDE.",
            measured.matmul_precision,
        )
    answer = report.as_json(wanted, task, sample, measured)
    sys.stdout.write("\n".join(view.lines(answer)) + "\n")
    if arguments.json:
        files.write_json(arguments.json, answer)
    return 0 if answer["within"] else OUTSIDE


def _nothing_left(inputs: Sequence[Path], sample: Sample) -> str:
    (reason, count), *_ = sample.refused.most_common()
    number = sample.num_records
    all_of_them = "the only record was" if number == 1 else f"all {number:,} records were"
    return (
        f"{', '.join(map(str, inputs))}: {all_of_them} refused, "
        f"{count:,} because: {reason} (first: {sample.first_refused[reason]}); "
        "give a file of proteins."
    )
