"""Write rows.jsonl: one line per record, in the order of the inputs, with the id, the JSON text and
the other values that are not nested."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from featuremill.workload.outputs import Format, Target, need

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format("rows.jsonl", "jq, any program", 60, "table", has_sidecar=True)
JSON = "json"
"""The column of JSON texts, which a line contains as JSON and not as text."""


class Writer:
    """Writes the columns of a table that has a column `json`."""

    @classmethod
    def check(cls, values: pa.Schema) -> None:
        need([name for name in values.names if name == JSON], "rows_jsonl", JSON)

    def __init__(self, target: Target) -> None:
        import pyarrow as pa

        plain = [field.name for field in target.values if not pa.types.is_nested(field.type)]
        self._names = ["id", JSON, *(name for name in plain if name != JSON)]
        self._file = target.path.open("w", encoding="utf-8", newline="")

    def write(self, block: pa.Table) -> None:
        for row in block.select(self._names).to_pylist():
            texts = {name: json.dumps(value, ensure_ascii=False) for name, value in row.items()}
            texts[JSON] = row[JSON]
            if "\n" in row[JSON]:
                texts[JSON] = json.dumps(json.loads(row[JSON]), ensure_ascii=False)
            parts = ", ".join(f"{json.dumps(name)}: {text}" for name, text in texts.items())
            self._file.write(f"{{{parts}}}\n")

    def close(self) -> None:
        self._file.close()
