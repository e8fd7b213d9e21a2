"""Where a run keeps its things, and the one reader of what they say.

results/<run>/plan.json                        what is to be computed (Snakemake's checkpoint)
results/<run>/records.parquet                 one row an input record
results/<run>/receipts/<recipe>/<shard>.json   one a finished part (declared to Snakemake)
results/<run>/store/shards/<shard>.arrow       records, named by their content; never deleted by a
rule
results/<run>/store/parts/<recipe>/<shard>.{arrows,json,telemetry.jsonl}
results/<run>/store/journals/<recipe>/<shard>.{arrows,log,lock}
results/<run>/manifest.json, exports.json      what was delivered, and added later
results/<run>/partial/                         what was computed when someone asked: results again
results/<run>/logs/                            a log a job
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import IntegrityError, UserError
from featuremill.store import command_line, run_lock
from featuremill.store.delivery import Delivery, Written, written_of
from featuremill.store.files import read_json, sha256_of
from featuremill.store.formats import EXPORTS, OF_THE_RUN, PARTIAL
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt


class Results(NamedTuple):
    """The folder of one run, results/<run>: where its files are, and what they say."""

    root: Path

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def kept_plan(self) -> Path:
        """Return the last plan's copy in the store, by which the next one keeps shards."""
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
        """Return the folder of the partial results; only files of results stand in it."""
        return Results(self.root / PARTIAL)

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def shard(self, shard: str) -> Path:
        return self.store / "shards" / f"{shard}.arrow"

    def part(self, recipe: str, shard: str) -> Path:
        return self.store / "parts" / recipe / f"{shard}.arrows"

    def kept_receipt(self, recipe: str, shard: str) -> Path:
        """Return the receipt beside the part, which extract adopts."""
        return self.part(recipe, shard).with_suffix(".json")

    def telemetry(self, recipe: str, shard: str) -> Path:
        """Return the file that says how the part's job goes, or went."""
        return self.store / "parts" / recipe / f"{shard}.telemetry.jsonl"

    def journal(self, recipe: str, shard: str) -> Path:
        """Return the journal's data file; its log and lock stand beside it."""
        return self.store / "journals" / recipe / f"{shard}.arrows"

    def receipt(self, recipe: str, shard: str) -> Path:
        return self.root / "receipts" / recipe / f"{shard}.json"

    def begun_shards(self) -> set[str]:
        """Return the shards of which anything was ever computed, under whatever recipe: by their
        journals, parts and receipts, and by those that the results have taken over."""
        patterns = ("store/journals/*/*.arrows", "store/parts/*/*.arrows", "receipts/*/*.json")
        begun = {path.stem for pattern in patterns for path in self.root.glob(pattern)}
        delivery = self.find_delivery()
        return begun.union(receipt.shard for receipt in delivery.receipts) if delivery else begun

    def placed(self, path: str) -> Path:
        """Return where `path` of a plan lies: it is as seen from the folder that holds results/."""
        beside = run_lock.working_folder(self.root) / path
        return beside if beside.exists() else Path(path)

    def read_plan(self) -> Plan:
        """Return what plan.json says.

        Raises:
            UserError: when there is none, or a newer featuremill wrote it.
            IntegrityError: when it is not what was written.
        """
        try:
            return Plan.read(self.plan)
        except FileNotFoundError:
            raise UserError(
                f"{self.plan}: there is no plan yet; make one first "
                f"({command_line.again(self.root)})."
            ) from None

    def read_plan_of_manifest(self) -> Plan:
        """Return what plan.json says, once records.parquet is seen to be its own.

        Raises:
            UserError: when there is no plan.
            IntegrityError: when it is not what was written, or records.parquet is not its own.
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
        """Refuse to look for failed records among parts that `clean` removed.

        Raises:
            UserError: when the results tell of failed records, and no part is left.
        """
        delivery = self.find_delivery()
        num_failed = delivery.counts.failed if delivery else 0
        if num_failed and not any((self.store / "parts").rglob("*.arrows")):
            raise UserError(
                f"{self.root}: the parts, which list the failed records, were removed; "
                f"{self.root / 'failed.fa'} holds all {num_failed:,}: give it to a run of its own."
            )

    def find_plan(self) -> Plan | None:
        """Return what plan.json says; None where there is none that is whole."""
        return Plan.find(self.plan)

    def find_receipt(self, recipe: str, shard: str) -> Receipt | None:
        """Return the declared receipt of a part; None where there is none that is whole and its."""
        return _if_of(Receipt.find(self.receipt(recipe, shard)), recipe, shard)

    def find_kept_receipt(self, recipe: str, shard: str) -> Receipt | None:
        """Return the receipt beside a part, as `find_receipt` does."""
        return _if_of(Receipt.find(self.kept_receipt(recipe, shard)), recipe, shard)

    def find_delivery(self, is_partial: bool = False) -> Delivery | None:
        """Return what manifest.json says, here or of the partial results; None where there is none
        that can be read."""
        return Delivery.find((self.partial if is_partial else self).delivery)

    def find_exports(self) -> dict[str, Written]:
        """Return what exports.json says, by file; nothing where there is none that can be read."""
        return written_of(read_json(self.exports) or {})

    def written(self) -> dict[str, Written]:
        """Return what is told of each result, exported ones too; nothing without manifest.json."""
        results = self.find_delivery()
        return {**self.find_exports(), **results.outputs} if results else {}

    def names(self) -> list[str]:
        """Return what stands in the folder, by name; what is being written is left out."""
        there = self.root.iterdir() if self.root.is_dir() else ()
        return sorted(path.name for path in there if not path.name.startswith("."))

    def read_delivery(self, is_partial: bool = False) -> Delivery:
        """Return what manifest.json says, here or of the partial results.

        Raises:
            UserError: when there is none, or a newer featuremill wrote it.
            IntegrityError: when it is not what was written.
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
    """Return the folders of the runs of several in `folder`, results/<run>."""
    plans = sorted(folder.glob("*/plan.json"))
    return [plan.parent for plan in plans if plan.parent.name not in OF_THE_RUN]


def _if_of(receipt: Receipt | None, recipe: str, shard: str) -> Receipt | None:
    is_its = receipt is not None and (receipt.recipe, receipt.shard) == (recipe, shard)
    return receipt if is_its else None
