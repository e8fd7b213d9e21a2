"""Write variant_metrics.tsv: a row per protein and score, with `agreement`'s metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featuremill.workload.outputs import Target, need
from featuremill.workloads.scores import variant_scores
from featuremill.workloads.scores.variant_scores import VARIANTS

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = variant_scores.FORMAT._replace(file="variant_metrics.tsv", bytes_a_record=200)
WHAT = (
    "listed variants with a measured score (DMS_score of variants_file, or the column that "
    "measured_column under options names)"
)


class Writer:
    """Writes the header, then the metrics of each record."""

    @classmethod
    def check(cls, values: pa.Schema) -> None:
        import pyarrow as pa

        from featuremill.workloads.scores.agreement import measured_of

        is_known = VARIANTS in values.names
        struct = values.field(VARIANTS).type.value_type if is_known else pa.struct([])
        need([name for name in measured_of(struct) if name], "variant_metrics", WHAT)

    def __init__(self, target: Target) -> None:
        import pyarrow as pa

        from featuremill.kit.tsv import TsvWriter
        from featuremill.workloads.scores.agreement import SCHEMA

        self._schema = pa.schema([pa.field("id", pa.string()), *SCHEMA])
        self._file = target.path.open("w", encoding="utf-8", newline="\n")
        self._table = TsvWriter(self._file, self._schema.names)

    def write(self, block: pa.Table) -> None:
        import pyarrow as pa

        from featuremill.workloads.scores.agreement import agreements

        rows = [
            {"id": id.as_py(), **each._asdict()}
            for id, variants in zip(block["id"], block[VARIANTS], strict=True)
            for each in agreements(variants.values)
        ]
        self._table.columns(pa.Table.from_pylist(rows, self._schema).columns)

    def close(self) -> None:
        self._file.close()
