"""groups: one vector for each group of records, such as the isoforms of a gene."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from featuremill.base.errors import UserError
from featuremill.step import Command, Made, Name, Project, Section

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


def table_of(name: str, project: Project) -> str:
    """Return the table of pooled vectors."""
    return f"{project.folder}/{KEY}/{name}.parquet"


def files_of(table: str) -> Sequence[str]:
    """Return all files that belong to a table; itself is the last one."""
    stem = table.removesuffix(".parquet")
    return f"{stem}.json", f"{stem}.members.tsv", table


def made(asked: Mapping[str, Groups], project: Project) -> Sequence[Made]:
    """Return each table, with the members of its groups and what it was made of."""
    found = []
    for name, one in asked.items():
        files = files_of(table_of(name, project))
        card = Path(files[0])
        found.append(
            Made(
                f"{KEY}.{name}",
                files,
                [one.table, f"{project.features_of(one.of)}/manifest.json"],
                [f"{project.logs}/{KEY}/{name}.log"],
                [f"{project.folder}/{KEY}"],
                is_other=partial(_is_other, card),
                figures=partial(_figures, card),
            )
        )
    return found


def _figures(card: Path) -> Mapping[str, int]:
    counts = json.loads(card.read_text("utf-8"))["counts"]
    return {key: counts[key] for key in ("groups", "pooled", "missing")}


def _is_other(card: Path, late: Sequence[str]) -> bool:
    """Tell whether one of these files has another content than when the table was made."""
    from featuremill.store.files import sha256_of

    if not late:
        return False
    known = json.loads(card.read_text("utf-8"))["made_of"] if card.exists() else {}
    return any(known.get(path) != sha256_of(Path(path)) for path in late)
