"""The step `groups`: pool the vectors of groups of records, such as the isoforms of a gene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.tables import are_there, id_columns_of, listed_in, stands
from featuremill.step import Command, Name, Problems, Product, Project, refused
from featuremill.steps.groups.section import KEY as KEY
from featuremill.steps.groups.section import TABLE as TABLE
from featuremill.steps.groups.section import Groups as Groups

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
SECTION = dict[Name, Groups]


def problems(sections: Mapping[str, Groups], project: Project) -> Problems:
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


def problems_of_files(sections: Mapping[str, Groups], project: Project) -> Problems:
    """Yield errors of missing columns of tables, sheets and features, and of wrong rows."""
    from featuremill.features import chosen

    for name, section in sections.items():
        folder = project.features_of(section.of)
        has_keys = section.table or id_columns_of(project, folder).keys
        if not has_keys and Path(folder, "manifest.json").exists():
            yield (name,), f"{folder} is a run without samples; name a table with groups."
        yield from refused((name, "column"), _check_column, name, section, project)
        if ahead := project.ahead(section.of or next(iter(project.features))):
            column = section.vectors
            yield from refused((name, "vectors"), chosen, ahead.schema, column, folder, "vectors:")


def _check_column(name: str, section: Groups, project: Project) -> None:
    """Raise UserError if the table or the sheet lacks the column, or the table has a wrong row."""
    from featuremill.inputs import labels, samples

    folder, column = project.features_of(section.of), section.column
    sheet = project.sheet_of(folder)
    if section.table and column and Path(section.table).exists():
        table, ids = Path(section.table), (id_columns_of(project, folder), section.id_column or "")
        labels.check(table, column, *ids)
        if not stands(products({name: section}, project), f"{KEY}.{name}", project):
            labels.read_ahead(table, column, None, *ids)
    elif sheet and column and sheet.exists():
        samples.read(sheet).refuse_unknown(column)


def problems_of_records(sections: Mapping[str, Groups], project: Project) -> Problems:
    """Yield errors of sections of which no group has a planned record."""
    from featuremill.steps.groups.command import refuse_unfit

    for name, section in sections.items():
        folder, key = project.features_of(section.of), "table" if section.table else "column"
        if are_there(section.table, [folder], project):
            run = listed_in(folder, project, section.vectors)
            yield from refused((name, key), refuse_unfit, run, section)


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
