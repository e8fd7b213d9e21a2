"""The section of the step `transfer`, and the files that it writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from featuremill.kit.tables import Table, words_of
from featuremill.step import Section

KEY = "transfer"
KEYS = ("column", "id_column", "group", "vectors", "k", "metric")
"""Keys of a section that are also options of `featuremill transfer`."""
TABLE = Table(KEY, ".tsv", ".missing.tsv", ("transferred", "without"))


class Transfer(Section):
    """A table of labels, and the search for the nearest labelled records."""

    labels: str
    """A table (CSV, TSV, Parquet) with record ids and, with samples, a column `sample`."""
    column: str
    """The table's column of labels."""
    id_column: str | None = None
    """The table's column of ids or accessions; if not given, a column such as `id` or `entry`."""
    group: str | None = None
    """A column of groups, such as a genus or `sample`. Records of the same group do not vote for
    each other, so that the accuracy is that for unrelated records. If not given, each record is a
    group."""
    of: str | None = None
    """The set of features to label. Required if there are several sets."""
    reference: str | None = None
    """The features of the labelled records: a set of this config, or the folder of a finished run.
    If not given, those of `of`."""
    vectors: str | None = None
    """The column of vectors, if the features have several."""
    k: Annotated[int, Field(ge=1, strict=True)] = 5
    """The number of nearest labelled records that vote."""
    metric: Literal["cosine", "euclidean"] = "cosine"
    """The distance: 1 minus the cosine, or the Euclidean distance."""

    @model_validator(mode="after")
    def _groups_are_no_labels(self) -> Transfer:
        if self.group == self.column:
            raise ValueError(
                "group and column are the same, so no record could get its own label; name another "
                "column of groups, or none"
            )
        return self

    @property
    def words(self) -> list[str]:
        """The options of `featuremill transfer`."""
        return words_of(self.model_dump(include={*KEYS}))
