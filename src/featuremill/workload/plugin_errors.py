"""Call workloads of other packages; turn their errors, and results that break the contract, into a
WorkloadError with the workload's name.

The user cannot fix such an error, and it is not a bug of featuremill. Each message names the call,
the fault and the package. The workload's own messages (UserError, WorkloadError) and errors of the
operating system are passed on unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featuremill.base import entry_points, faults
from featuremill.base.errors import DeviceError, IntegrityError, UserError, WorkloadError
from featuremill.base.text import clipped

if TYPE_CHECKING:
    import pyarrow as pa

    from featuremill.workload.contract import Record, Workload

GROUP = "featuremill.workloads"
"""The entry points by which packages register their workloads."""
OWN_SENTENCE = (UserError, WorkloadError, DeviceError, IntegrityError, OSError)
MOST_SHOWN = 200
"""Largest number of characters of an error's text in a message."""
REASON = "reason"
"""The column of `collect` with the reason for each row without values."""
FIELDS: tuple[Any, ...] = (str, str, bytes, str, Integral, str, str, (Integral, type(None)))
"""The types of the fields of a record, in their order."""

log = logging.getLogger("featuremill.workload")


def is_external(name: str) -> bool:
    """Return whether another package than featuremill registers the workload called `name`."""
    return entry_points.of_others(GROUP, name) is not None


def who(name: str) -> str:
    """Return "workload NAME", with its package if that is not featuremill."""
    point = entry_points.of_others(GROUP, name)
    package = point.dist if point else None
    return f"workload {name}" + (f" (package {package.name} {package.version})" if package else "")


def plugin_error(name: str, what: str) -> WorkloadError:
    """Return the error that the workload called `name` did `what` wrong."""
    return WorkloadError(f"{who(name)}: {what}; this is for its author to fix.")


def described(error: BaseException) -> str:
    """Return an error's class and text on one line."""
    text = clipped(" ".join(str(error).split()), MOST_SHOWN).rstrip(".;")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextlib.contextmanager
def attributed_to(name: str, what: str) -> Iterator[None]:
    """Turn an exception of the workload called `name` in its call `what` into a WorkloadError with
    both names; log the place.

    Errors of memory, devices and installations pass unchanged, and so do those of featuremill's own
    workloads: they are bugs of featuremill.
    """
    try:
        yield
    except OWN_SENTENCE:
        raise
    except Exception as error:
        of_device = faults.is_out_of_memory(error) or faults.is_device_error(error)
        if of_device or faults.fault_of_installation(error) or not is_external(name):
            raise
        raise _raised(name, what, error) from error


def _raised(name: str, what: str, error: Exception, where: str = "") -> WorkloadError:
    log.debug("where the workload raised it", exc_info=True)
    return plugin_error(name, f"{what} raised {described(error)}{where}")


def loaded(point: EntryPoint, required: Collection[str]) -> Any:
    """Return the workload that is registered at `point`; raise UserError if it cannot be imported,
    or lacks a `required` attribute."""
    name = point.name
    try:
        workload = point.load()
    except ModuleNotFoundError as error:
        raise UserError(
            f"{who(name)} cannot be imported, as there is no module {error.name!r} in this Python; "
            "install what the package needs."
        ) from None
    except Exception as error:
        log.debug("where the workload raised it", exc_info=True)
        raise UserError(
            f"{who(name)} cannot be imported ({described(error)}); fix or reinstall the package."
        ) from None
    if missing := [attribute for attribute in required if not hasattr(workload, attribute)]:
        raise UserError(f"{who(name)}: it lacks {', '.join(missing)}; see featuremill.workload.")
    if not hasattr(workload.Options, "delivers"):
        raise plugin_error(name, "Options is no subclass of WorkloadOptions")
    for attribute in ("COST_UNIT", "VERSION"):
        if not (value := getattr(workload, attribute)) or not isinstance(value, str):
            raise plugin_error(name, f"{attribute} is {value!r} where a text is due")
    return workload


def records_of(
    name: str, workload: Workload, inputs: Sequence[Path], options: Any
) -> Iterator[Record]:
    """Return the records of `inputs` by the workload called `name`. Those of featuremill's own
    workloads are not checked."""
    if is_external(name):
        return _checked(name, workload, inputs, options)
    return workload.records(inputs, options)


def _checked(
    name: str, workload: Workload, inputs: Sequence[Path], options: Any
) -> Iterator[Record]:
    from featuremill.workload.contract import Record

    number = 0
    try:
        for number, record in enumerate(workload.records(inputs, options), 1):
            if not isinstance(record, Record) or not all(
                isinstance(value, types) for value, types in zip(record, FIELDS, strict=True)
            ):
                raise plugin_error(
                    name,
                    f"records gave {record!r:.{MOST_SHOWN}} as number {number:,}, which is "
                    "no Record with the types of its fields",
                )
            yield record
    except OWN_SENTENCE:
        raise
    except Exception as error:
        raise _raised(name, "records", error, f" at record {number + 1:,}") from error


def costs_of(
    name: str, workload: Workload, payloads: Iterable[bytes], options: Any
) -> Sequence[int]:
    """Return the cost of each of `payloads`, a whole number of at least 1."""
    with attributed_to(name, "cost"):
        costs = [workload.cost(payload, options) for payload in payloads]
        least = min(map(operator.index, costs), default=1)
    if least < 1:
        raise plugin_error(name, f"cost gave {least} for a record, and at least 1 is due")
    return costs


def schema_of(
    name: str, workload: Workload, options: Any, weights: Any, reserved: Collection[str]
) -> pa.Schema:
    """Return the columns of values: one at least, each name once, none of the `reserved` names."""
    with attributed_to(name, "schema"):
        schema = workload.schema(options, weights)
        names: list[str] = schema.names
    if not names or len({*names, *reserved}) < len(names) + len(reserved):
        columns, others = ", ".join(names) or "none", ", ".join(sorted(reserved))
        raise plugin_error(
            name,
            f"schema has the columns {columns}; at least one is due, each name once, and none that "
            f"is the core's ({others} are)",
        )
    return schema


def resolved(name: str, workload: Workload, options: Any, device: Any, weights: Any) -> Any:
    """Return `options` after `resolve`, which are of the workload's class `Options`."""
    with attributed_to(name, "resolve"):
        settled = workload.resolve(options, device, weights)
    if not isinstance(settled, workload.Options):
        raise plugin_error(name, f"resolve gave {_kind(settled)} where Options are due")
    return settled


def batch_cost_of(name: str, workload: Workload, options: Any, device: Any) -> int:
    """Return the highest cost of a batch on a device, a whole number of at least 1."""
    with attributed_to(name, "batch_cost"):
        cost = operator.index(workload.batch_cost(options, device))
    if cost < 1:
        raise plugin_error(name, f"batch_cost gave {cost}, and at least 1 is due")
    return cost


def refuse_answer(name: str, values: Any, num_rows: int, schema: pa.Schema | None = None) -> None:
    """Raise WorkloadError if the result of `collect` for a batch of `num_rows` is not a
    RecordBatch, or has another number of rows or other columns than the `schema` (if given)."""
    import pyarrow as pa

    if not isinstance(values, pa.RecordBatch):
        raise plugin_error(name, f"collect gave {_kind(values)} where a pyarrow.RecordBatch is due")
    if values.num_rows != num_rows:
        raise plugin_error(name, f"collect gave {values.num_rows} rows for {num_rows} payloads")
    actual = pa.schema([field for field in values.schema if field.name != REASON])
    if schema is not None and not actual.equals(schema):
        gave, due = (
            clipped(", ".join(f"{field.name}: {field.type}" for field in each), MOST_SHOWN)
            for each in (actual, schema)
        )
        raise plugin_error(name, f"collect gave the columns {gave}, and schema has {due}")


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
