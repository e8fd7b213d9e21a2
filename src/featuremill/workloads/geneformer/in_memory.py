"""An AnnData that a Python program has, as a file. anndata is not imported here: who has such an
object has imported it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featuremill.kit.errors import UserError
from featuremill.kit.text import one_line


def write(cells: Any, path: Path) -> Path:
    """Write an AnnData without what no reader of counts looks at; it stays as it is."""
    raw = cells.raw
    held = None if raw is None else {"X": raw.X, "var": _in_plain_types(raw.var)}
    obs, var = _in_plain_types(cells.obs), _in_plain_types(cells.var)
    try:
        copy = type(cells)(cells.X, obs, var, layers=cells.layers, raw=held)
        copy.write_h5ad(path, convert_strings_to_categoricals=False)
    except Exception as error:
        problem = one_line(f"{type(error).__name__}: {error}")[:200].rstrip(".")
        raise UserError(
            f"inputs: anndata cannot write this AnnData ({problem}); give the path of an .h5ad."
        ) from None
    return path


def _in_plain_types(frame: Any) -> Any:
    """Return a DataFrame with texts and categories as Python's strings, since anndata 0.12 cannot
    write those of pandas 3; a missing value is "", as in readers."""
    names, columns = frame.index.astype(object), {}
    for name, column in frame.items():
        if column.dtype.kind not in "iufb":
            values = zip(column.tolist(), column.isna().tolist(), strict=True)
            texts = ["" if is_missing else str(value) for value, is_missing in values]
            column = type(column)(texts, index=column.index, dtype=object)
        columns[str(name)] = column.set_axis(names)
    return type(frame)(columns, index=names)
