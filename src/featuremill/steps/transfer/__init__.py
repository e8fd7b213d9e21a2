"""The step `transfer`: assign records the labels of their nearest labelled records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.tables import are_there, id_columns_of, listed_in, stands
from featuremill.step import Ahead, Command, Name, Problems, Product, Project, refused
from featuremill.steps.transfer.section import KEY as KEY
from featuremill.steps.transfer.section import KEYS
from featuremill.steps.transfer.section import TABLE as TABLE
from featuremill.steps.transfer.section import Transfer as Transfer

ABOUT = (
    "Labels by name, each transferred from the nearest labelled records in the space of the "
    "features (docs/transfer.md). They go to `results/<run>/transfer/<name>.tsv`."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "base.yaml"
COMMANDS = {
    "search": Command(
        "find the records nearest to a sequence or to another record",
        "featuremill.steps.transfer.search",
    ),
    "transfer": Command(
        "assign each record the label of its nearest labelled records",
        "featuremill.steps.transfer.command",
    ),
    "verify": Command(
        "check the digests and counts of results, and recompute some records",
        "featuremill.steps.transfer.verify",
    ),
}
SECTION = dict[Name, Transfer]


def features_of(section: Transfer, project: Project) -> list[str]:
    """Return the folders of the features to label and, if different, of the reference."""
    target = project.features_of(section.of)
    reference = project.features_of(section.reference) if section.reference else target
    return list(dict.fromkeys([target, reference]))


def problems(sections: Mapping[str, Transfer], project: Project) -> Problems:
    """Yield errors of missing features."""
    for name, section in sections.items():
        yield from refused((name, "of"), project.features_of, section.of)
        if section.reference:
            yield from refused((name, "reference"), project.features_of, section.reference)


def problems_of_files(sections: Mapping[str, Transfer], project: Project) -> Problems:
    """Yield errors of missing columns, wrong rows, and references with another recipe."""
    from featuremill.features import chosen
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
        if ahead := project.ahead(section.of or next(iter(project.features))):
            key, column = "vectors", section.vectors
            target = project.features_of(section.of)
            wrong = [*refused((name, key), chosen, ahead.schema, column, target, "vectors:")]
            key = "reference"
            yield from wrong or refused((name, key), _refuse_other, section, project, ahead)


def problems_of_records(sections: Mapping[str, Transfer], project: Project) -> Problems:
    """Yield errors of tables of which no label belongs to a record."""
    from featuremill.steps.transfer.command import labelled

    for name, section in sections.items():
        *_, folder = features_of(section, project)
        if are_there(section.labels, [folder], project):
            run = listed_in(folder, project, section.vectors)
            yield from refused((name, "labels"), labelled, run, section, None)


def _refuse_other(section: Transfer, project: Project, ahead: Ahead) -> None:
    """Raise UserError if the features of the reference have another recipe than `ahead`."""
    from featuremill import features

    target, *others = features_of(section, project)
    is_other = False
    if reference_ahead := project.ahead(section.reference or ""):
        is_other = reference_ahead.settings != ahead.settings
    elif others and Path(others[0], "manifest.json").exists():
        reference = features.open(others[0], section.vectors, choosing="vectors")
        recipe = reference.settings.as_json()
        is_other = any(recipe[key] != value for key, value in ahead.settings.items())
    if others and is_other:
        raise UserError(
            f"{others[0]}: its features are made otherwise than those of {target}, so distances "
            "between them mean nothing; compute both by the same workload and options."
        )


def products(sections: Mapping[str, Transfer], project: Project) -> Sequence[Product]:
    """Return the product of each section: the table, the records without labels, and the card."""
    return [
        TABLE.product(
            name,
            project,
            [section.labels, *(f"{run}/manifest.json" for run in features_of(section, project))],
            section.model_dump(include={*KEYS}),
        )
        for name, section in sections.items()
    ]
