"""groups: one vector for each group of records, such as the isoforms of a gene."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from featuremill.base.errors import UserError
from featuremill.step import Command, Made, Name, Project, Section
from featuremill.steps.tables import Table

KEY = "groups"
ABOUT = (
    "Groups of records by name, each pooled to one vector: the isoforms of a gene, the cells of a "
    "type (docs/groups.md). They go to `results/<run>/groups/<name>.parquet`."
)
RULES = Path(__file__).with_name("rules.smk")
COMMANDS = {
    "groups": Command(
        "pool the vectors of groups of records, such as the isoforms of a gene",
        "featuremill.steps.groups.command",
    )
}
TABLE = Table(KEY, ".parquet", ".members.tsv", ("groups", "pooled", "missing"))
Pool = Literal["mean", "max", "sum"]
POOLS: tuple[Pool, ...] = ("mean", "max", "sum")
_ONE = {"enum": list(POOLS)}
Pools = Annotated[
    tuple[Pool, ...],
    Field(min_length=1),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "array", "items": _ONE, "minItems": 1}, _ONE]}),
]
"""One or several; of a single one, the brackets may be left out."""


class Groups(Section):
    """Which records belong together, and how their vectors become one."""

    table: str
    """A CSV, TSV or Parquet table with a column of the records' ids; it may be that of the
    inputs."""
    column: str
    """Its column of groups, such as a gene or a type of cell."""
    pool: Pools = ("mean",)
    """`mean`, `max` or `sum` over the members' vectors, or several of these."""
    of: str | None = None
    """The set of features whose records are pooled. Needed where there are several sets."""
    vectors: str | None = None
    """Which vectors, where the features have several columns."""

    @property
    def words(self) -> list[str]:
        """The options of `featuremill groups`."""
        vectors = [f"--vectors={self.vectors}"] if self.vectors else []
        return [f"--column={self.column}", *vectors, "--pool", *self.pool]


SECTION = dict[Name, Groups]


def problems(
    asked: Mapping[str, Groups], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield features that there are not."""
    for name, one in asked.items():
        try:
            project.features_of(one.of)
        except UserError as error:
            yield (name, "of"), str(error)


def problems_of_files(
    asked: Mapping[str, Groups], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield a column that the table lacks, and vectors that the features will not have."""
    from featuremill import features
    from featuremill.inputs import labels

    for name, one in asked.items():
        try:
            if Path(one.table).exists():
                labels.check(Path(one.table), one.column)
        except UserError as error:
            yield (name, "column"), str(error)
        ahead = project.ahead(one.of or next(iter(project.features)))
        try:
            if ahead:
                of = project.features_of(one.of)
                features.chosen(ahead.schema, one.vectors, of, "vectors:")
        except UserError as error:
            yield (name, "vectors"), str(error)


def made(asked: Mapping[str, Groups], project: Project) -> Sequence[Made]:
    """Return each table, with the members of its groups and what it was made of."""
    return [
        TABLE.made(name, project, [one.table, f"{project.features_of(one.of)}/manifest.json"])
        for name, one in asked.items()
    ]
