"""The last words of a run: its results, or its failures and the commands to type."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from pathlib import Path

from featuremill.base import environment
from featuremill.base.errors import UserError
from featuremill.base.text import plain, wrapped
from featuremill.base.words import counted
from featuremill.config import Config
from featuremill.flow.refusals import asks_for_less
from featuremill.flow.screen import FailedJob, Failures, stopped
from featuremill.merge import clean
from featuremill.status.outdated import is_computed, is_merged
from featuremill.status.results import reported
from featuremill.store import command_line, formats
from featuremill.store.delivery import Delivery
from featuremill.store.results import Results
from featuremill.workload import weights

MADE_LAST = ("manifest.json", "report.html")
TABLES = {"parquet", "parquet_dataset"}
"""The outputs that `featuremill.load` reads."""
WIDTH = 100
MOST_KINDS = 5
"""Most messages about failed jobs that are printed."""
PARTIAL = 6
"""The exit status of `featuremill run --strict` where records have no values."""
_started = time.time()
runs_to_end: list[str] = []


def closing_words(*runs: str) -> str:
    """Return the message after success: the new results, and the next commands to try."""
    new = {}
    for results in runs:
        files = [Path(results) / name for name in MADE_LAST]
        is_new = any(path.exists() and path.stat().st_mtime >= _started for path in files)
        if is_new and (delivery := Results(Path(results)).find_delivery()):
            new[results] = delivery
    if not new:  # the target was less than the results
        waiting = [results for results in runs if is_computed(results) and not is_merged(results)]
        return "".join(
            f"{results}: all is computed. This merges it: {command_line.this()}"
            for results in waiting[:1]
        )
    is_demo = any(delivery.run == Config.model_fields["run"].default for delivery in new.values())
    look = ""
    for first, delivery in new.items():
        if look or TABLES.isdisjoint(formats.outputs_of(delivery.outputs).values()):
            continue
        load = f"-c \"import featuremill; print(featuremill.load('{first}'))\""
        look = f"Look at {first if new.keys() - {first} else 'them'}:  "
        look += command_line.where_typed(f"{_command('python')} {load}")
    return (
        "".join(_summary_of(results, delivery) for results, delivery in new.items())
        + look
        + (f"\nYour own data: {_command('featuremill')} init YOUR.fasta" if is_demo else "")
    )


def exit_status() -> int:
    """Return the exit status of a run without failed jobs. With --strict, name the runs in which
    records were refused or failed."""
    status = 0
    for results in runs_to_end if environment.STRICT.text() else ():
        delivery = Results(Path(results)).find_delivery()
        if delivery and (number := delivery.counts.failed + delivery.counts.refused):
            status = PARTIAL
            print(
                f"--strict: {counted(number, 'record')} without values; {results}/failed.tsv has "
                "the reasons.",
                file=sys.stderr,
            )
    return status


def _summary_of(results: str, delivery: Delivery) -> str:
    files = [f"{results}/{name}" for name in delivery.outputs]
    if reported(Results(Path(results))) == "yes":
        files.append(f"{results}/report.html")
    counts, settings = delivery.counts, delivery.settings
    if counts.failed or counts.refused:
        files.append(f"{results}/failed.tsv: the records without features")
    for note, count in list(delivery.notes.items())[:MOST_KINDS]:
        files.append(f"{results}/notes.tsv: {counted(count, 'record')}: {note}")
    lines = "\n".join(f"  {file}" for file in files)
    model = plain(weights.model_name_of(settings))
    of_model = f" ({model})" if model else ""
    caution = plain(weights.caution_of(settings.workload, settings.options))
    if caution:
        caution = f"\x1b[33m{caution}\x1b[0m\n" if sys.stdout.isatty() else f"{caution}\n"
    return f"\n{counts.in_words}{of_model}:\n{lines}\n{caution}"


def _command(name: str) -> str:
    """Return the command `name`, with its path unless its environment is active."""
    if environment.VIRTUAL_ENV.text() or environment.CONDA_PREFIX.text():
        return name
    return os.path.relpath(Path(sys.executable).parent / name)


def tidied(results: str, keep: str) -> str:
    """Remove what the config's `keep` does not name; return a line about it. Nothing is removed
    before the run is complete: a merge that is run again needs the parts."""
    files = [Path(results) / name for name in MADE_LAST]
    if keep == "all" or asks_for_less(results) or not all(path.exists() for path in files):
        return ""
    try:
        removed = clean.after_run(Path(results), keep)
    except (UserError, OSError) as error:
        return f"keep: {keep}: nothing more was removed: {error}\n"
    return f"{removed}\n" if removed else ""


def closing(failures: Failures, run_or_config: str) -> str:
    """Return the message after failed jobs: what failed, and the commands to type. `run_or_config`
    is the argument of `featuremill status`: results/<run>, or a config."""
    jobs = failures.final()
    failures.are_summarised = True
    if not jobs and failures.was_interrupted:
        return stopped()
    if not jobs:
        return "Nothing computed is lost. Fix the errors above; the same command then continues."
    kinds: dict[tuple[str, str], list[FailedJob]] = {}
    for job in jobs:
        kinds.setdefault((job.rule, _common(job)), []).append(job)
    is_stop = all(job.was_stopped for job in jobs)
    if jobs == [failures.shown_last]:
        kinds = {}
    lines = (
        ["", f"{counted(len(jobs), 'job')} {'stopped' if is_stop else 'failed'}:"] if kinds else []
    )
    for (rule, sentence), alike in list(kinds.items())[:MOST_KINDS]:
        lines += ["", *wrapped(plain(f"{rule}: {sentence}"), "  ", "    ", width=WIDTH)]
        more = f" (and {counted(len(alike) - 1, 'more job')} with the same)" if alike[1:] else ""
        lines.append(f"    log: {alike[0].log or 'none'}{more}")
    if len(kinds) > MOST_KINDS:
        lines.append(f"\n{counted(len(kinds) - MOST_KINDS, 'other message')}: see status, below.")
    lines += [
        "",
        f"Nothing computed is lost. {'T' if is_stop else 'When that is fixed, t'}he same command "
        "continues:",
        f"    {command_line.this()}",
        "What is done, what failed and what helps:",
        f"    {command_line.where_typed(f'featuremill status {shlex.quote(run_or_config)}')}",
    ]
    return "\n".join(lines)


def _common(job: FailedJob) -> str:
    """Return the job's message without the names of shards and jobs, to group jobs by it."""
    sentence = re.sub(r"\bshard [0-9a-f]{8}: ", "", job.sentence())
    return re.sub(r"^SLURM-job '\d+'", "the Slurm job", sentence)
