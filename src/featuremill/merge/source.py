"""Where the rows of results come from: what merge and export need of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.merge import delivery
from featuremill.merge.accounts import account
from featuremill.merge.gather import Gatherer
from featuremill.store.delivery import Accounts, Written
from featuremill.store.receipt import Receipt


class Source(Protocol):
    """The rows of a run's results, still to be written."""

    samples: dict[str, list[str]]
    rows_of_shard: npt.NDArray[np.int64]
    scratch: Path
    keys: frozenset[str]
    """The folders of `store.delivered` that the results are made of."""

    @property
    def receipts(self) -> Sequence[Receipt | None]:
        """The receipt of each shard of the plan; None where it is pending."""

    def shard_numbers(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the index into the plan's shards of each row of records.parquet; -1 where it has
        none."""

    def account(self, table: Path, fasta: Path) -> Accounts:
        """Write `table` and `fasta` and return how many records are ok, failed, and so on."""

    def write(
        self, paths: Mapping[str, Path], provenance: dict[str, str], num_ok: int
    ) -> dict[str, Written]:
        """Write the outputs; return each one's size and sha256."""


class InInputOrder(Gatherer):
    """The rows in the order of the input: sorted out of the parts."""

    keys = frozenset[str]()

    def account(self, table: Path, fasta: Path) -> Accounts:
        return account(self, table, fasta)

    def write(
        self, paths: Mapping[str, Path], provenance: dict[str, str], num_ok: int
    ) -> dict[str, Written]:
        return delivery.write(self, paths, provenance, num_ok, self.folder.root)
