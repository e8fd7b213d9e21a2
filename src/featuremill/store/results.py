"""The paths of a run's files, and their readers.

results/<run>/run.json                         what the config asks for, as commands read it
results/<run>/plan.json                        what is to be computed (Snakemake's checkpoint)
results/<run>/records.parquet                 one row an input record
results/<run>/receipts/<recipe>/<shard>.json   one for each finished part (an output of a rule)
results/<run>/store/shards/<shard>.arrow       records, named by their content; no rule deletes them
results/<run>/store/parts/<recipe>/<shard>.{arrows,json,telemetry.jsonl}
results/<run>/store/journals/<recipe>/<shard>.{arrows,log,lock}
results/<run>/manifest.json, exports.json      the results, and those of later exports
results/<run>/partial/                         partial results: the same files
results/<run>/logs/                            a log for each job
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from featuremill.base.errors import IntegrityError, UserError
from featuremill.store import command_line, run_lock
from featuremill.store.delivery import Delivery, Exported, Written
from featuremill.store.files import JsonFile, read_json, sha256_of
from featuremill.store.formats import EXPORTS, OF_THE_RUN, PARTIAL, RUN
from featuremill.store.plan import Plan, PlannedShard, SharedPart
from featuremill.store.receipt import Receipt


class RunFile(JsonFile):
    """The content of run.json, which the main Snakemake process writes before the first job."""

    config: dict[str, Any]
    """The values of the config's keys, without `features:`; paths are relative to `folder`."""
    folder: str = ""
    """Snakemake's working folder, relative to the run's folder; early files do not have it."""


def folder_here(run_folder: Path) -> str:
    """Return the working folder relative to the run's folder."""
    return os.path.relpath(Path.cwd(), run_lock.whole_path(run_folder))


def folder_of_paths(run_folder: Path) -> Path:
    """Return the folder to which paths in run.json and plan.json are relative."""
    run = RunFile.find(run_folder / RUN) if (run_folder / RUN).is_file() else None
    if run and run.folder:
        return Path(os.path.normpath(run_lock.whole_path(run_folder) / run.folder))
    working, owner = run_lock.working_folder(run_folder), run_lock.read(run_folder)
    return Path(os.path.normpath(working / owner.folder)) if owner else working


def enter(arguments: argparse.Namespace) -> Path:
    """Change to the folder to which the paths of a run are relative; return the run's folder. Paths
    in `arguments` are made relative to the new working folder."""
    if (arguments.run_folder / RUN).is_file():
        folder = folder_of_paths(arguments.run_folder)
        if folder.is_dir() and not folder.samefile(Path.cwd()):
            for name, value in vars(arguments).items():
                if isinstance(value, Path):
                    path = Path(os.path.normpath(value.absolute()))
                    is_below = path.is_relative_to(folder)
                    setattr(arguments, name, path.relative_to(folder) if is_below else path)
            os.chdir(folder)
    run_folder: Path = arguments.run_folder
    return run_folder


class Results(NamedTuple):
    """The folder of one run, results/<run>: paths and readers of its files."""

    root: Path

    @property
    def run(self) -> Path:
        return self.root / RUN

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def kept_plan(self) -> Path:
        """Return the copy of the last plan, whose shards the next plan keeps."""
        return self.store / "plan.json"

    @property
    def records(self) -> Path:
        return self.root / "records.parquet"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def delivery(self) -> Path:
        return self.root / "manifest.json"

    @property
    def exports(self) -> Path:
        return self.root / EXPORTS

    @property
    def partial(self) -> Results:
        """Return the folder of the partial results, which has only files of results."""
        return Results(self.root / PARTIAL)

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def shard(self, shard: str) -> Path:
        return self.store / "shards" / f"{shard}.arrow"

    def part(self, recipe: str, shard: str) -> Path:
        return self.store / "parts" / recipe / f"{shard}.arrows"

    def part_of(self, plan: Plan, source: PlannedShard) -> Path:
        """Return the part of a source of `plan`, here or in a store."""
        if isinstance(source, SharedPart):
            return Path(source.path)
        return self.part(plan.recipe, source.shard)

    def kept_receipt(self, recipe: str, shard: str) -> Path:
        """Return the receipt beside the part, which extract adopts."""
        return self.part(recipe, shard).with_suffix(".json")

    def telemetry(self, recipe: str, shard: str) -> Path:
        """Return the file with the telemetry of the part's jobs."""
        return self.store / "parts" / recipe / f"{shard}.telemetry.jsonl"

    def journal(self, recipe: str, shard: str) -> Path:
        """Return the journal's data file; its log and lock are beside it."""
        return self.store / "journals" / recipe / f"{shard}.arrows"

    def receipt(self, recipe: str, shard: str) -> Path:
        return self.root / "receipts" / recipe / f"{shard}.json"

    def begun_shards(self) -> set[str]:
        """Return the shards with computed records of any recipe: those with a journal, a part or a
        receipt, here or in manifest.json."""
        patterns = ("store/journals/*/*.arrows", "store/parts/*/*.arrows", "receipts/*/*.json")
        begun = {path.stem for pattern in patterns for path in self.root.glob(pattern)}
        delivery = self.find_delivery()
        return begun.union(receipt.shard for receipt in delivery.receipts) if delivery else begun

    def placed(self, path: str) -> Path:
        """Return a path of plan.json relative to the working folder. Without run.json, `featuremill
        plan` was typed in a folder where its paths exist."""
        placed = folder_of_paths(self.root) / path
        return placed if self.run.exists() or placed.exists() else Path(path)

    def read_plan(self) -> Plan:
        """Return the content of plan.json.

        Raises:
            UserError: there is none, or a newer featuremill wrote it.
            IntegrityError: it is not what was written.
        """
        try:
            return Plan.read(self.plan)
        except FileNotFoundError:
            raise self.has_no_plan() from None

    def has_no_plan(self) -> UserError:
        again = command_line.again(self.root)
        return UserError(f"{self.plan}: there is no plan yet; make one first ({again}).")

    def read_plan_of_records(self) -> Plan:
        """Return the content of plan.json, after a check that records.parquet belongs to it.

        Raises:
            UserError: there is no plan.
            IntegrityError: it is not what was written, or records.parquet is of another plan.
        """
        plan = self.read_plan()
        if not self.records.is_file():
            problem = f"it is gone; delete {self.plan.name}"
        elif sha256_of(self.records) != plan.records_sha256:
            problem = f"it does not belong to {self.plan.name}; delete both"
        else:
            return plan
        raise IntegrityError(
            f"{self.records}: {problem} and run it again ({command_line.again(self.root)})."
        )

    def refuse_what_was_cleaned(self) -> None:
        """Raise UserError if there are failed records, and `clean` has removed the parts that list
        them."""
        delivery = self.find_delivery()
        num_failed = delivery.counts.failed if delivery else 0
        if num_failed and not any((self.store / "parts").rglob("*.arrows")):
            raise UserError(
                f"{self.root}: the parts, which list the failed records, were removed; "
                f"{self.root / 'failed.fa'} holds all {num_failed:,}: give it to a run of its own."
            )

    def find_plan(self) -> Plan | None:
        """Return the content of plan.json; None if it is missing or damaged."""
        return Plan.find(self.plan)

    def find_receipt(self, recipe: str, shard: str) -> Receipt | None:
        """Return the receipt that is an output of a rule; None if it is missing, damaged or of
        another part."""
        return _if_of(Receipt.find(self.receipt(recipe, shard)), recipe, shard)

    def find_kept_receipt(self, recipe: str, shard: str) -> Receipt | None:
        """Return the receipt beside a part, as `find_receipt` does."""
        return _if_of(Receipt.find(self.kept_receipt(recipe, shard)), recipe, shard)

    def find_delivery(self, is_partial: bool = False) -> Delivery | None:
        """Return the content of manifest.json, or of that of the partial results; None if it is
        missing or damaged."""
        return Delivery.find((self.partial if is_partial else self).delivery)

    def find_exports(self) -> dict[str, Exported]:
        """Return the entries of exports.json that belong to these results, by file name."""
        if not (entries := read_json(self.exports)):  # manifest.json may be large
            return {}
        known = {"", sha256_of(self.delivery) if self.delivery.exists() else ""}
        exports = {}
        for name, about in entries.items():
            with contextlib.suppress(ValidationError):
                exports[name] = Exported.model_validate(about)
        return {name: each for name, each in exports.items() if each.results in known}

    def written(self) -> dict[str, Written]:
        """Return size and digest of each result, exported ones too; nothing without
        manifest.json."""
        results = self.find_delivery()
        return {**self.find_exports(), **results.outputs} if results else {}

    def names(self) -> list[str]:
        """Return the sorted names in the folder, without files that are being written."""
        paths = self.root.iterdir() if self.root.is_dir() else ()
        return sorted(path.name for path in paths if not path.name.startswith("."))

    def read_delivery(self, is_partial: bool = False) -> Delivery:
        """Return the content of manifest.json, here or of the partial results.

        Raises:
            UserError: there is none, or a newer featuremill wrote it.
            IntegrityError: it is not what was written.
        """
        path = (self.partial if is_partial else self).delivery
        try:
            return Delivery.read(path)
        except FileNotFoundError:
            merge = f"featuremill merge {shlex.quote(str(self.root))} --partial"
            first = merge if is_partial else command_line.again(self.root)
            raise UserError(
                f"{path}: there are no merged results here; make them first ({first})."
            ) from None


def runs_below(folder: Path) -> list[Path]:
    """Return the folders of the runs in `folder`, the results/<run> of a project with several."""
    plans = sorted(folder.glob("*/plan.json"))
    return [plan.parent for plan in plans if plan.parent.name not in OF_THE_RUN]


def _if_of(receipt: Receipt | None, recipe: str, shard: str) -> Receipt | None:
    is_its = receipt is not None and (receipt.recipe, receipt.shard) == (recipe, shard)
    return receipt if is_its else None
