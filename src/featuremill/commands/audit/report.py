"""The report of an audit, as JSON and text: metrics, bounds, worst records, remedies."""

from __future__ import annotations

import io
import math
import operator
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from featuremill.commands.audit.measure import (
    REFERENCE,
    Compared,
    Measured,
    Protein,
    Sample,
    Task,
)
from featuremill.kit.processes import versions
from featuremill.kit.text import clipped, counted, wrapped
from featuremill.workload import Kind

WIDTH = 100
SHOWN_NAMES = 40
NUM_WORST = 10
RELATIVE_L2_MEAN = {"bf16": 2e-2, "fp16": 5e-3}


class Figures(BaseModel):
    """Metrics of a column, or their bounds; None is not computed or not bounded."""

    cosine_mean: float | None = None
    """The mean over vectors of the cosine with the vector in fp32."""
    cosine_min: float | None = None
    relative_l2_mean: float | None = None
    """The mean over proteins of the norm of the difference, divided by the norm in fp32."""
    relative_l2_max: float | None = None


class Column(BaseModel):
    """The metrics of a column, and their bounds."""

    column: str
    num_vectors: int
    figures: Figures
    bounds: Figures


class Worst(BaseModel):
    """A record that is far from the reference."""

    id: str
    place: str
    """The file and line of the record."""
    column: str
    cosine_min: float | None
    """The lowest cosine; None if a value is not finite."""
    relative_l2: float | None


class Audited(BaseModel):
    dtype: str
    backend: str
    records_not_finite: int
    """The number of records with values that are not finite; no metric includes them."""
    columns: list[Column]
    worst: list[Worst]
    """The records that are farthest from the reference, farthest first."""
    beyond: list[str]
    """A phrase for each exceeded bound."""
    within: bool
    remedy: str | None


class Audit(BaseModel):
    """The inputs and results of an audit."""

    version: Literal[2] = 2
    within: bool
    inputs: list[str]
    records: int
    refused: int
    sample: dict[Literal["proteins", "residues", "truncated", "longest"], int]
    """The numbers of proteins, residues and truncated proteins, and the longest length."""
    model: str
    weights_sha256: str
    options: dict[str, Any]
    batch_tokens: int
    device: dict[Literal["kind", "name"], str]
    versions: dict[str, str]
    reference: dict[Literal["dtype", "backend", "matmul_precision"], str]
    dtype_here: str
    """The dtype of a run on this machine."""
    dtypes: list[Audited]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text report."""
        names = " and ".join(row.dtype for row in self.dtypes)
        yield f"Precision audit: {names} against fp32, on the same device"
        yield ""
        for label, text in self._facts():
            yield from wrapped(text, f"  {label:10}", " " * 12, width=WIDTH)
        yield ""
        yield from _printed(_table(self.dtypes))
        yield ""
        for row in self.dtypes:
            yield f"Farthest from fp32 in {row.dtype}"
            yield from _printed(_worst_table(row.worst))
            yield ""
        for row in self.dtypes:
            how = "within" if row.within else "outside"
            yield f"{row.dtype}: {how} the bounds{f'; {row.remedy}' * (not row.within)}."
            for phrase in row.beyond:
                yield from wrapped(f"{phrase}.", "  ", "    ", width=WIDTH)

    def _facts(self) -> Iterator[tuple[str, str]]:
        refused = f", {self.refused:,} refused" if self.refused else ""
        yield "input", f"{', '.join(self.inputs)}: {counted(self.records, 'record')}{refused}"
        sample = self.sample
        sizes = (
            f"{counted(sample['proteins'], 'protein')}, {counted(sample['residues'], 'residue')}"
        )
        cut = f"; {sample['truncated']:,} truncated" if sample["truncated"] else ""
        yield "sample", f"{sizes}; the longest has {sample['longest']:,}{cut}"
        yield "model", self.model
        yield "device", f"{self.device['name']}; a run's dtype here: {self.dtype_here}"
        yield "kernels", f"{REFERENCE}: {self.reference['backend']}"
        for row in self.dtypes:
            yield "", f"{row.dtype}: {row.backend}"
        yield "versions", ", ".join(f"{name} {text}" for name, text in self.versions.items())


def audit_of(
    paths: Sequence[Path], task: Task, sample: Sample, measured: Sequence[Measured]
) -> Audit:
    """Return the audit of the measured dtypes; the first is the reference."""
    reference, *others = measured
    dtypes = [_audited(audited, task, sample.proteins) for audited in others]
    within = {audited.dtype: audited.within for audited in dtypes}
    for audited in dtypes:
        audited.remedy = remedy(audited.dtype, within, task.device.kind)
    lengths = [len(protein.payload) for protein in sample.proteins]
    computed = list(map(task.num_residues, sample.proteins))
    return Audit(
        within=all(within.values()),
        inputs=[str(path) for path in paths],
        records=sample.records,
        refused=sample.refused.total(),
        sample={
            "proteins": len(lengths),
            "residues": sum(computed),
            "truncated": sum(map(operator.gt, lengths, computed)),
            "longest": max(lengths),
        },
        model=task.weights.name,
        weights_sha256=task.weights.sha256,
        options=task.options.model_dump(mode="json"),
        batch_tokens=task.budget,
        device={"kind": task.device.kind, "name": task.device.name},
        versions=versions(("torch",)),
        reference={
            "dtype": REFERENCE,
            "backend": reference.backend,
            "matmul_precision": matmul_precision(),
        },
        dtype_here=getattr(task.options, task.precisions.PRECISION),
        dtypes=dtypes,
    )


def matmul_precision() -> str:
    """Return torch's precision of fp32 matrix products; "highest" is fp32."""
    import torch

    return torch.get_float32_matmul_precision()


def bounds_of(kind: Kind, is_one_token: bool, dtype: str) -> Figures:
    """Return the bounds of a column of a kind; means have smaller errors than single tokens.

    The same bounds hold in featuremill's tests of its networks against other programs."""
    if kind == "per_residue":
        l2 = RELATIVE_L2_MEAN[dtype]
        return Figures(cosine_mean=0.9995, cosine_min=0.99, relative_l2_mean=l2)
    return Figures(cosine_min=0.99 if is_one_token else 0.9999)


def _audited(measured: Measured, task: Task, proteins: Sequence[Protein]) -> Audited:
    """Return the results of one dtype, without the remedy."""
    bad = {record.row for record in measured.compared if not record.is_finite}
    columns, beyond = [], []
    kinds, one_token = task.kinds, tuple(getattr(task.workload, "ONE_TOKEN", ()))
    if bad:
        them = "it" if len(bad) == 1 else "them"
        beyond = [f"{counted(len(bad), 'record')} with values not finite: a run would fail {them}"]
    for name in dict.fromkeys(record.column for record in measured.compared):
        finite = [each for each in measured.compared if each.column == name and each.row not in bad]
        bounds = bounds_of(kinds[name], name.startswith(one_token), measured.dtype)
        figures = _figures(finite)
        num_vectors = sum(record.num_vectors for record in finite)
        column = Column(column=name, num_vectors=num_vectors, figures=figures, bounds=bounds)
        columns.append(column)
        beyond += [f"{name}: {phrase}" for phrase in _beyond(figures, bounds)]
    return Audited(
        dtype=measured.dtype,
        backend=measured.backend,
        records_not_finite=len(bad),
        columns=columns,
        worst=_worst(measured.compared, proteins),
        beyond=beyond,
        within=not beyond,
        remedy=None,
    )


def _figures(compared: Sequence[Compared]) -> Figures:
    if not compared:
        return Figures()
    return Figures(
        cosine_mean=sum(c.cosine_sum for c in compared) / sum(c.num_vectors for c in compared),
        cosine_min=min(c.cosine_min for c in compared),
        relative_l2_mean=statistics.fmean(c.relative_l2 for c in compared),
        relative_l2_max=max(c.relative_l2 for c in compared),
    )


def _beyond(figures: Figures, bounds: Figures) -> Iterator[str]:
    """Yield a phrase for each bound that the metrics of a column exceed."""
    for name, what in (("cosine_mean", "is {} on average"), ("cosine_min", "falls to {}")):
        value, bound = getattr(figures, name), getattr(bounds, name)
        if None not in (value, bound) and value < bound:
            yield f"the cosine {what.format(_cosine(value))}, below {bound}"
    value, bound = figures.relative_l2_mean, bounds.relative_l2_mean
    if value is not None and bound is not None and value > bound:
        yield f"the relative L2 is {value:.1e} on average, above {bound:.0e}"


def _worst(compared: Sequence[Compared], proteins: Sequence[Protein]) -> list[Worst]:
    """Return the records that are farthest from the reference; not finite ones are first."""
    by_row: dict[int, Compared] = {}
    for record in sorted(compared, key=lambda record: record.cosine_min, reverse=True):
        by_row[record.row] = record
    farthest = sorted(by_row.values(), key=lambda record: (record.cosine_min, record.row))
    return [
        Worst(
            id=proteins[record.row].id,
            place=proteins[record.row].position,
            column=record.column,
            cosine_min=record.cosine_min if record.is_finite else None,
            relative_l2=record.relative_l2 if record.is_finite else None,
        )
        for record in farthest[:NUM_WORST]
    ]


def remedy(dtype: str, within: Mapping[str, bool], kind: str) -> str | None:
    """Return the dtype to use instead of `dtype`, or None; `within` has all audited dtypes."""
    if within[dtype]:
        return None
    other = "fp16" if dtype == "bf16" else "bf16"
    # On most CPUs fp16 is slower than fp32.
    if within.get(other) and not (kind == "cpu" and other == "fp16"):
        return f"set dtype: {other}, which is within the bounds here"
    return "set dtype: fp32"


def _table(dtypes: Sequence[Audited]) -> Table:
    """Return a table with two rows for each dtype and column: metrics and bounds."""
    table = _columns("dtype", "column", "cosine mean", "min", "relative L2 mean", "max")
    for audited in dtypes:
        for column in audited.columns:
            table.add_row(audited.dtype, column.column, *_cells(column.figures))
            table.add_row("", "bound", *_cells(column.bounds, "≥", "≤"))
    return table


def _cells(figures: Figures, least: str = "", most: str = "") -> Iterator[str]:
    for cosine in (figures.cosine_mean, figures.cosine_min):
        yield "" if cosine is None else f"{least}{cosine}" if least else _cosine(cosine)
    for l2 in (figures.relative_l2_mean, figures.relative_l2_max):
        yield "" if l2 is None else f"{most}{l2:g}" if most else f"{l2:.1e}"


def _worst_table(worst: Sequence[Worst]) -> Table:
    table = _columns("record", "place", "column", "cosine min", "relative L2")
    for record in worst:
        cosine = "not finite" if record.cosine_min is None else _cosine(record.cosine_min)
        l2 = "" if record.relative_l2 is None else f"{record.relative_l2:.1e}"
        where = Text(record.place, overflow="fold")
        table.add_row(clipped(record.id, SHOWN_NAMES), where, record.column, cosine, l2)
    return table


def _columns(*names: str) -> Table:
    """Return a table of these columns; numbers are aligned right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        is_number = any(word in name for word in ("mean", "min", "max", "L2"))
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number)
    return table


def _printed(table: Table) -> list[str]:
    console = Console(
        file=io.StringIO(), width=WIDTH - 2, color_system=None, markup=False, highlight=False
    )  # fmt: skip
    with console.capture() as captured:
        console.print(table)
    return [f"  {line}".rstrip() for line in captured.get().splitlines()]


def _cosine(value: float) -> str:
    """Return a cosine, rounded down so that only equal directions are printed as 1."""
    return f"{math.floor(value * 1e6) / 1e6:.6f}"
