"""A row's values as bytes, the same ones from every format: JSON, compact, its keys in order.

`json.loads` gives a workload what stood in the row. Numbers are written as Python writes them, so a
float comes back to the last bit (NaN and Infinity by these names); a missing value is null, binary
is base64, times are in ISO 8601. A word for a missing value, such as R's NA, is null in a column
with a type. A cell of a CSV or TSV file is a text unless a type is given for
its column; with types, equal values are equal bytes whether they come from CSV or from Parquet.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from featuremill.base import reasons

if TYPE_CHECKING:
    import pyarrow as pa

MOST_SHOWN = 40
"""Letters of a cell in a reason."""
YES_OR_NO = {"true": True, "1": True, "false": False, "0": False}


def payload(
    names: Sequence[str], values: Sequence[Any], types: Mapping[str, type]
) -> tuple[bytes, str]:
    """Return the payload of a row and "", or b"" and why a cell has not its column's type."""
    row = dict(zip(names, values, strict=True))
    for name, type in types.items():
        try:
            row[name] = _read(row[name], TYPES[type])
        except (ValueError, TypeError, OverflowError, RecursionError):
            shown = f"{row[name]!s:.{MOST_SHOWN}}"
            detail = f"{shown!r} in column {name!r} is no {type.__name__}"
            return b"", reasons.CELLS.reason(detail.replace("\n", " "))
    encoded = json.dumps(
        row, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_plain
    )
    return encoded.encode(), ""


def texts(column: pa.Array) -> list[str]:
    """Return the values of a column as text, "" where there is none; Arrow makes text of numbers
    as they are, where pandas would make 1.0 of an integer beside a missing one."""
    import pyarrow as pa

    text = column.cast(pa.large_string()).fill_null("")
    values: list[str] = text.to_numpy(zero_copy_only=False).tolist()
    return values


def _read(value: Any, read: Callable[[Any], Any]) -> Any:
    if value is None or (isinstance(value, str) and read is not _text and not value.strip()):
        return None
    try:
        return read(value)
    except (ValueError, TypeError):
        if isinstance(value, str) and reasons.is_missing(value):
            return None
        raise


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    raise TypeError(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise TypeError(value)
    return float(value)


def _int(value: Any) -> int:
    number = _float(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = number
    if not value == int(value):
        raise ValueError(value)
    return int(value)


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = YES_OR_NO.get(str(value).strip().lower())
    if known is None:
        raise ValueError(value)
    return known


def _nested(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        parsed = json.loads(value) if isinstance(value, str) else value
        if not isinstance(parsed, kind):
            raise TypeError(value)
        return parsed

    return read


TYPES: Mapping[type, Callable[[Any], Any]] = {
    str: _text,
    int: _int,
    float: _float,
    bool: _bool,
    list: _nested(list),
    dict: _nested(dict),
}
"""The types that a column may have; a list or a dict stands in a text file as JSON."""


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a value that it has no word for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
