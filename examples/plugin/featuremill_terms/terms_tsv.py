"""terms.tsv: id, term, category, start; a line for each place where a term stands."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from featuremill.workload.outputs import Format, Target, need

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format("terms.tsv", "spreadsheets, grep", 60, "table")
HEADER = ("id", "term", "category", "start")


class Writer:
    """Writes the lines of each record's `terms`."""

    def __init__(self, target: Target) -> None:
        need([name for name in target.values.names if name == "terms"], "terms_tsv", "terms")
        self._file = target.path.open("w", encoding="utf-8", newline="")
        self._lines = csv.writer(self._file, delimiter="\t", lineterminator="\n")
        self._lines.writerow(HEADER)

    def write(self, block: pa.Table) -> None:
        """Append a block's terms."""
        for row in block.select(["id", "terms"]).to_pylist():
            for term in row["terms"]:
                self._lines.writerow([row["id"], *(term[name] for name in HEADER[1:])])

    def close(self) -> None:
        """Close the file."""
        self._file.close()
