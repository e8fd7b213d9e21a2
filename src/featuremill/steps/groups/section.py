"""The section of the step `groups`, and the files that it writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from featuremill.kit.tables import Table, words_of
from featuremill.step import Section

KEY = "groups"
TABLE = Table(KEY, ".parquet", ".members.tsv", ("groups", "pooled", "missing"))
KEYS = ("column", "id_column", "vectors")
"""Keys of a section that are also options of `featuremill groups`."""
Pool = Literal["mean", "max", "sum"]
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
        return [*words_of(self.model_dump(include={*KEYS})), "--pool", *self.pool]
