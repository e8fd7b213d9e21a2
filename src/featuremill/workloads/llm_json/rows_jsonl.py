"""rows.jsonl: a line for each record, in the order of the inputs: id, json and other single
values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from featuremill.workload.outputs import Format, Target, need

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format("rows.jsonl", "jq, any program", 60, "table", has_sidecar=True)
JSON = "json"
"""The column of JSON texts: a line contains them as JSON, not as text."""


class Writer:
    """Writes the texts and single numbers of a table with a column `json`."""

    @classmethod
    def check(cls, values: pa.Schema) -> None:
        """Refuse values without JSON texts."""
        need([name for name in values.names if name == JSON], "rows_jsonl", JSON)

    def __init__(self, target: Target) -> None:
        import pyarrow as pa

        plain = [field.name for field in target.values if not pa.types.is_nested(field.type)]
        self._names = ["id", JSON, *(name for name in plain if name != JSON)]
        self._file = target.path.open("w", encoding="utf-8", newline="")
        self._target = target

    def write(self, block: pa.Table) -> None:
        """Append a block's lines."""
        for row in block.select(self._names).to_pylist():
            texts = {name: json.dumps(value, ensure_ascii=False) for name, value in row.items()}
            texts[JSON] = _in_one_line(row[JSON])
            parts = ", ".join(f"{json.dumps(name)}: {text}" for name, text in texts.items())
            self._file.write(f"{{{parts}}}\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _in_one_line(text: str) -> str:
    """Return JSON without line breaks."""
    return json.dumps(json.loads(text), ensure_ascii=False) if "\n" in text else text
