"""The step `transfer`: assign records the labels of their nearest labelled records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.tables import are_there, id_columns_of, listed_in, stands, words_of
from featuremill.step import Ahead, Command, Name, Product, Project, Section
from featuremill.steps.transfer.table import KEY as KEY
from featuremill.steps.transfer.table import TABLE as TABLE

ABOUT = (
    "Labels by name, each transferred from the nearest labelled records in the space of the "
    "features (docs/transfer.md). They go to `results/<run>/transfer/<name>.tsv`."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "base.yaml"
COMMANDS = {
    "search": Command(
        "find the records nearest to a sequence or to another record",
        "featuremill.steps.transfer.search.command",
    ),
    "transfer": Command(
        "assign each record the label of its nearest labelled records",
        "featuremill.steps.transfer.command",
    ),
    "verify": Command(
        "check the digests and counts of results, and recompute some records",
        "featuremill.steps.transfer.verify.command",
    ),
}


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
        return words_of(self.model_dump(exclude={"labels", "of", "reference"}))


SECTION = dict[Name, Transfer]


def features_of(section: Transfer, project: Project) -> list[str]:
    """Return the folders of the features to label and, if different, of the reference."""
    target = project.features_of(section.of)
    reference = project.features_of(section.reference) if section.reference else target
    return list(dict.fromkeys([target, reference]))


def problems(
    sections: Mapping[str, Transfer], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield errors of missing features."""
    for name, section in sections.items():
        for key in ("of", "reference"):
            try:
                if key == "of" or section.reference:
                    project.features_of(getattr(section, key))
            except UserError as error:
                yield (name, key), str(error)


def problems_of_files(
    sections: Mapping[str, Transfer], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield errors of missing columns, wrong rows, and references with another recipe."""
    from featuremill.inputs import labels

    for name, section in sections.items():
        table, id_column = Path(section.labels), section.id_column or ""
        key = "column"
        try:
            id_columns = id_columns_of(project, features_of(section, project)[-1])
            if table.exists():
                labels.check(table, section.column, id_columns, id_column)
                key = "group"
                if section.group not in (None, labels.ID):
                    labels.check(table, section.group, id_columns, id_column)
            key = "labels"
            if not stands(products({name: section}, project), f"{KEY}.{name}", project):
                labels.read_ahead(table, section.column, section.group, id_columns, id_column)
        except UserError as error:
            yield (name, key), str(error)
        try:
            problem = _unfit(section, project)
        except UserError as error:
            problem = "reference", str(error)
        if problem:
            key, sentence = problem
            yield (name, key), sentence


def problems_of_records(
    sections: Mapping[str, Transfer], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield errors of tables of which no label belongs to a record."""
    from featuremill.steps.transfer.write import Arguments, labelled

    for name, section in sections.items():
        *_, folder = features_of(section, project)
        if not are_there(section.labels, [folder], project):
            continue
        chosen = Arguments(
            Path(),
            Path(folder),
            Path(section.labels),
            section.column,
            section.group,
            section.vectors,
            section.k,
            section.metric,
            Path(),
            section.id_column,
        )
        try:
            labelled(listed_in(folder, project, section.vectors), chosen, None)
        except UserError as error:
            yield (name, "labels"), str(error)


def _unfit(section: Transfer, project: Project) -> tuple[str, str] | None:
    """Return a wrong key and the error, or None if the features fit or are not known yet.

    Raises:
        UserError: the reference cannot be read.
    """
    from featuremill import features

    target, *others = features_of(section, project)
    ahead = project.ahead(section.of or next(iter(project.features)))
    if ahead is None:
        return None
    try:
        features.chosen(ahead.schema, section.vectors, target, "vectors:")
    except UserError as error:
        return "vectors", str(error)
    if others and _differ(ahead, others[0], section, project):
        return (
            "reference",
            f"{others[0]}: its features are made otherwise than those of {target}, so distances "
            "between them mean nothing; compute both by the same workload and options.",
        )
    return None


def _differ(ahead: Ahead, other: str, section: Transfer, project: Project) -> bool:
    """Return whether the features in the folder `other` have another recipe."""
    from featuremill import features

    if reference_ahead := project.ahead(section.reference or ""):
        return reference_ahead.settings != ahead.settings
    if not Path(other, "manifest.json").exists():
        return False
    recipe = features.open(other, section.vectors, choosing="vectors").settings.as_json()
    return any(recipe[key] != value for key, value in ahead.settings.items())


def products(sections: Mapping[str, Transfer], project: Project) -> Sequence[Product]:
    """Return the product of each section: the table, the records without labels, and the card."""
    return [
        TABLE.product(
            name,
            project,
            [section.labels, *(f"{run}/manifest.json" for run in features_of(section, project))],
            section.model_dump(exclude={"labels", "of", "reference"}),
        )
        for name, section in sections.items()
    ]
