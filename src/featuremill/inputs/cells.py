"""Encode the values of a row as bytes, the same from every format: compact JSON with sorted keys.

`json.loads` returns the values of the row. Numbers have the form of Python's `repr`, so floats are
exact (NaN and Infinity by these names); a missing value is null, binary is base64, times are ISO
8601. A word for a missing value, such as R's NA, is null in a column with a type. A cell of a CSV
or TSV file is a text unless its column has a type; with types, equal values of CSV and Parquet have
equal bytes.
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
"""Largest number of characters of a cell in a reason."""
YES_OR_NO = {"true": True, "1": True, "false": False, "0": False}


def payload(
    names: Sequence[str], values: Sequence[Any], types: Mapping[str, type]
) -> tuple[bytes, str]:
    """Return the payload of a row and "", or b"" and the reason if a cell has another type."""
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
    """Return the values of a column as text, "" for null. Arrow keeps integers beside a null, which
    pandas would make floats."""
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
"""The types that a column may have; in a text file, a list or dict is JSON."""


def _plain(value: Any) -> Any:
    """Return a JSON value for a type that JSON lacks."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
