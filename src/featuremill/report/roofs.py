"""The roof of a kind of device: how fast it could go, with the words that say what that number is.

A run measures no roof, as that would cost device time. A record of `python -m bench.run` holds one:
the encoder's matrix products alone, by model size, number type and machine. Where none is given,
the fastest shard stands in for it, which is only what this run reached, not what the device can do.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.text import clipped


class Roof(NamedTuple):
    """What the rates of one kind of device are held against."""

    device: str
    rate: float
    """Tokens a second."""
    is_measured: bool
    """Measured by itself, and not just the fastest shard."""
    source: str
    """Where the number comes from, in words."""


def fastest(device: str, rates: Sequence[float]) -> Roof:
    """Return the stand-in for a roof: the best rate that was reached."""
    return Roof(device, max(rates), False, "the fastest shard of this run")


PRODUCTS = "GEMMs alone"
"""What the rows are called, in benchmark records, of the model's matrix products by themselves."""
NAMES = {PRODUCTS: "the model's matrix products alone", "featuremill": "featuremill itself"}


def measured(
    records: Iterable[Path],
    settings: Mapping[str, Any],
    threads: Mapping[str, int],
    engine: str = PRODUCTS,
) -> dict[str, Roof]:
    """Return what benchmark records hold by device for the model of `settings`: how fast `engine`
    was, which is a roof for the products alone.

    A record counts where device, model size and number type are the run's, and on a CPU the number
    of threads too (`threads`, by device). Raises UserError for a file that is no such record.
    """
    found: dict[str, Roof] = {}
    for path in records:
        record = _record(path)
        machine = record["machine"]
        device = machine.get("gpu") or machine["cpu"]
        is_alike = "gpu" in machine or machine["threads"] == threads.get(device)
        if device not in threads or not is_alike:
            continue
        if rates := _rates(record, settings["options"], engine):
            day = clipped(str(record["started"])[:10])
            source = f"{NAMES[engine]}, measured on {day} ({clipped(path.name)})"
            found[device] = Roof(device, statistics.median(rates), True, source)
    return found


def _record(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        _ = record["machine"]["cpu"], record["machine"]["threads"], record["started"]
        _rates(record, {}, PRODUCTS)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a record that make bench wrote.") from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise UserError(
            f"{path}: this is no benchmark record; give a JSON file that make bench wrote."
        ) from None
    return record


def _rates(record: dict[str, Any], options: Mapping[str, Any], engine: str) -> list[float]:
    """Return the rates of `engine`, at the size and in the dtype of `options`."""
    model, name = str(options.get("model")), f"{engine} {options.get('dtype')}"
    comparisons = [part for part in record["measured"].values() if "rows" in part]
    return [
        float(row["tokens_per_second"])
        for part in comparisons
        if f"_{part.get('shape')}_" in model
        for row in part["rows"]
        if row.get("name") == name
    ]
