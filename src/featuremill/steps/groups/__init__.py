"""The step `groups`: pool the vectors of groups of records, such as the isoforms of a gene."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.tables import are_there, id_columns_of, listed_in, stands, words_of
from featuremill.step import Command, Name, Product, Project, Section
from featuremill.steps.groups.table import KEY as KEY
from featuremill.steps.groups.table import TABLE as TABLE
from featuremill.steps.groups.table import Pool as Pool

ABOUT = (
    "Groups of records by name, each pooled to one vector: the isoforms of a gene, the cells of a "
    "type, the records of a sample (docs/groups.md). They go to "
    "`results/<run>/groups/<name>.parquet`."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "base.yaml"
COMMANDS = {
    "groups": Command(
        "pool the vectors of groups of records, such as the isoforms of a gene",
        "featuremill.steps.groups.command",
    )
}
POOLS: tuple[Pool, ...] = ("mean", "max", "sum")
_ONE = {"enum": list(POOLS)}
Pools = Annotated[
    tuple[Pool, ...],
    Field(min_length=1),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "array", "items": _ONE, "minItems": 1}, _ONE]}),
]
"""One or several poolings; a single one needs no brackets."""


class Groups(Section):
    """A table of groups, and how vectors are pooled."""

    table: str | None = None
    """A CSV, TSV or Parquet table with a column of record ids; it may be one of the inputs. In a
    project with samples it also has a column `sample`, and groups are within samples. If not given,
    groups consist of samples."""
    column: str | None = None
    """The table's column of groups, such as a gene or a cell type. Without a table, a column of the
    sheet of samples, such as a site; if not given, each sample is a group."""
    id_column: str | None = None
    """The table's column of ids or accessions; if not given, a column such as `id` or `entry`."""
    pool: Pools = ("mean",)
    """`mean`, `max` or `sum` of the vectors, or several of these."""
    of: str | None = None
    """The set of features to pool. Required if there are several sets."""
    vectors: str | None = None
    """The column of vectors, if the features have several."""

    @property
    def words(self) -> list[str]:
        """The options of `featuremill groups`."""
        words = words_of(self.model_dump(include={"column", "id_column", "vectors"}))
        return [*words, "--pool", *self.pool]


SECTION = dict[Name, Groups]


def problems(
    sections: Mapping[str, Groups], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield errors of missing sets of features and of sections without groups."""
    for name, section in sections.items():
        try:
            folder = project.features_of(section.of)
        except UserError as error:
            yield (name, "of"), str(error)
            continue
        if section.table and not section.column:
            yield (name, "table"), "name its column of groups, too, with column:"
        elif not section.table and not project.samples and folder in project.features.values():
            yield (name,), "name a table with groups, and a column of it."


def problems_of_files(
    sections: Mapping[str, Groups], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield errors of missing columns of tables, sheets and features, and of wrong rows."""
    from featuremill import features
    from featuremill.inputs import labels, samples

    for name, section in sections.items():
        folder = project.features_of(section.of)
        sheet, id_columns = project.sheet_of(folder), id_columns_of(project, folder)
        if not (section.table or id_columns.keys) and Path(folder, "manifest.json").exists():
            yield (name,), f"{folder} is a run without samples; name a table with groups."
        try:
            if section.table and section.column and Path(section.table).exists():
                ids = id_columns, section.id_column or ""
                labels.check(Path(section.table), section.column, *ids)
                if not stands(products({name: section}, project), f"{KEY}.{name}", project):
                    labels.read_ahead(Path(section.table), section.column, None, *ids)
            elif sheet and section.column and sheet.exists():
                samples.read(sheet).refuse_unknown(section.column)
        except UserError as error:
            yield (name, "column"), str(error)
        ahead = project.ahead(section.of or next(iter(project.features)))
        try:
            if ahead:
                features.chosen(ahead.schema, section.vectors, folder, "vectors:")
        except UserError as error:
            yield (name, "vectors"), str(error)


def problems_of_records(
    sections: Mapping[str, Groups], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield errors of sections of which no group has a planned record."""
    from featuremill.steps.groups.write import Arguments, refuse_unfit

    for name, section in sections.items():
        folder = project.features_of(section.of)
        if not are_there(section.table, [folder], project):
            continue
        table = Path(section.table) if section.table else None
        names = section.column, section.vectors, section.pool
        arguments = Arguments(Path(folder), table, *names, Path(), section.id_column or "")
        try:
            refuse_unfit(listed_in(folder, project, section.vectors), arguments)
        except UserError as error:
            yield (name, "table" if table else "column"), str(error)


def products(sections: Mapping[str, Groups], project: Project) -> Sequence[Product]:
    """Return the product of each section: the table of vectors, its members and its card."""
    return [
        TABLE.product(
            name,
            project,
            [*filter(None, [section.table]), f"{project.features_of(section.of)}/manifest.json"],
            {
                "column": section.column or "sample",
                "pool": list(section.pool),
                **section.model_dump(include={"id_column", "vectors"}),
            },
        )
        for name, section in sections.items()
    ]
