"""The step `heads`: train or import classifiers and regressions on features, and apply them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.tables import are_there, id_columns_of, listed_in, stands
from featuremill.kit.text import counted, listed
from featuremill.step import Command, Name, Problems, Product, Project, State, refused, stated
from featuremill.steps.heads.section import Head as Head
from featuremill.steps.heads.section import spread

KEY = "heads"
ABOUT = (
    "Classifiers and regressions by name, each on one or several sets of features (docs/heads.md): "
    "`results/<run>/heads/<name>/`. Each predicts something of the project's records: "
    "`results/<run>/predictions/<name>.tsv`."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "esm2.yaml"
COMMANDS = {
    "head": Command(
        "train a classifier or a regression on features of runs, take one over, or apply it",
        "featuremill.steps.heads.command",
    )
}
DELIVERED = ("head.safetensors", "head.html", "missing.tsv", "held_out.parquet")
"""The files of a head besides its card, which is written last."""

SECTION = dict[Name, Head]


def folder_of(name: str, head: Head, project: Project) -> str:
    """Return the folder of a head."""
    return (head.folder or f"{project.folder}/{KEY}/{name}").rstrip("/")


def features_of(head: Head, project: Project) -> list[str]:
    """Return the folders of a head's features, in the order of the head."""
    return [project.features_of(name) for name in head.of or project.features]


def fragments_of(project: Project) -> str | None:
    """Return the folder of the translation, if labels are of contigs."""
    from featuremill.steps import translate

    return translate.folder_of(project) if translate.KEY in project.sections else None


def predictions_of(name: str, project: Project, more: str = "") -> str:
    """Return the path of a head's predictions for the project's records, or for those of the
    features called `more` in the section's `predict`."""
    return f"{project.folder}/predictions/{name}{more and '.'}{more}.tsv"


def predicted(name: str, head: Head, project: Project) -> Mapping[str, Sequence[str]]:
    """Return for each table of predictions, by path, the folders of the features it is made of."""
    more = {
        predictions_of(name, project, other): [project.features_of(run) for run in runs]
        for other, runs in head.predict.items()
    }
    return {predictions_of(name, project): features_of(head, project), **more}


def problems(heads: Mapping[str, Head], project: Project) -> Problems:
    """Yield problems of the config alone, such as missing sets of features."""
    for name, head in heads.items():
        try:
            sets = features_of(head, project)
        except UserError as error:
            yield (name, "of"), str(error)
            continue
        if len(head.vectors) not in (0, 1, len(sets)):
            yield (name, "vectors"), f"give one for all, or one for each of {listed(sets)}."
        # The folder of another run has samples of its own.
        is_ours = sets[0] in project.features.values()
        if head.column and not head.labels and is_ours and not project.samples:
            yield (name, "column"), "labels and column belong together: name a table with labels."
        for more, runs in head.predict.items():
            if len(runs) != len(sets):
                yield (name, "predict", more), f"give {counted(len(sets), 'folder')}, as in `of`."
            elif f"{name}.{more}" in heads:
                yield (name, "predict", more), "a head has this name; take another one."


def problems_of_files(heads: Mapping[str, Head], project: Project) -> Problems:
    """Yield problems of files: missing columns, vectors or heads, and heads of other features."""
    from featuremill.features import chosen

    for name, head in heads.items():
        if head.folder:
            yield from refused((name, "folder"), _refuse_unfit, name, head, project)
            continue
        for key, column in (("column", head.column), ("group", head.group)):
            if wrong := [*refused((name, key), _check_column, name, head, project, key, column)]:
                yield from wrong
                break
        names = head.of or tuple(project.features)
        for features, column in zip(names, spread(head.vectors, len(names)), strict=True):
            if ahead := project.ahead(features):
                arguments = ahead.schema, column, features, "vectors:", head.task == "per_residue"
                yield from refused((name, "vectors"), chosen, *arguments)


def problems_of_records(heads: Mapping[str, Head], project: Project) -> Problems:
    """Yield problems of labels with the planned records, such as too few classes or groups."""
    for name, head in heads.items():
        key = "labels" if head.labels else "column"
        yield from refused((name, key), classes_of, name, head, project)


def classes_of(name: str, head: Head, project: Project) -> Sequence[str]:
    """Return the classes that a head will learn from the planned records; none if unknown.

    Raises:
        UserError: if the labels are unfit for training.
    """
    from featuremill.features import Planned
    from featuremill.steps.heads.examples import Training, refuse_ahead

    fragments, runs = fragments_of(project), features_of(head, project)
    if head.folder or not are_there(head.labels, runs, project):
        return ()
    folder = Path(folder_of(name, head, project))
    training = Training(head, [*map(Path, runs)], folder, Path(fragments) if fragments else None)
    if head.task == "per_residue":
        return refuse_ahead(training, [Planned(run) for run in runs])
    pairs = zip(runs, spread(head.vectors, len(runs)), strict=True)
    return refuse_ahead(training, [listed_in(run, project, column) for run, column in pairs])


def _check_column(name: str, head: Head, project: Project, key: str, column: str | None) -> None:
    """Raise UserError if the labels lack the column, or their table has an invalid row."""
    from featuremill.inputs import labels, samples

    if not column or (key == "group" and column == labels.ID):
        return
    first = features_of(head, project)[0]
    id_columns = id_columns_of(project, first)
    path = project.sheet_of(first)
    sheet = samples.read(path) if path else None
    if head.labels is None:
        if sheet:
            sheet.refuse_unknown(column)
        elif not id_columns.keys and Path(first, "manifest.json").exists():
            raise UserError(f"{first} is a run without samples; name a table with labels.")
    elif Path(head.labels).exists() and (
        key != "group" or not id_columns.keys or (sheet and column not in sheet.about)
    ):
        ids, own = (id_columns, head.id_column or ""), products({name: head}, project)
        labels.check(Path(head.labels), column, *ids)
        if key == "column" and not stands(own, f"{KEY}.{name}", project):
            labels.read_ahead(Path(head.labels), column, None, *ids)


def _refuse_unfit(name: str, head: Head, project: Project) -> None:
    """Raise UserError if an existing head is known not to fit the features."""
    from featuremill.features import chosen
    from featuremill.steps.heads.card import CARD, Card, Part
    from featuremill.steps.heads.predict import refuse_other_features

    folder = Path(folder_of(name, head, project))
    card = Card.find(folder / CARD)
    if not card:
        raise UserError(f"{folder}: there is no head here; featuremill head import makes one.")
    names = head.of or tuple(project.features)
    if len(names) != len(card.features):
        widths = " + ".join(f"{part.width:,}" for part in card.features)
        raise UserError(
            f"{folder}: this head takes features of {counted(len(card.features), 'kind')} "
            f"({widths} numbers), and here are {listed(names)}; name those it takes with `of`, or "
            "another head."
        )
    parts, takes_any_recipe = list[Part](), head.any_recipe
    columns = spread(head.vectors, len(names))
    for features, known, own in zip(names, card.features, columns, strict=True):
        parts.append(known)
        takes_any_recipe |= known.settings is None
        if ahead := project.ahead(features):
            wanted = own or known.column
            of_residues = card.task == "per_residue"
            column = chosen(ahead.schema, wanted, features, "vectors:", of_residues)
            settings = known.settings and known.settings.model_copy(update=ahead.settings)
            recipe = known.recipe if settings == known.settings else None
            parts[-1] = Part(
                width=column.width,
                column=column.name,
                recipe=recipe,
                settings=settings,
                run=features,
            )
    refuse_other_features(parts, card, folder, takes_any_recipe)


def products(heads: Mapping[str, Head], project: Project) -> Sequence[Product]:
    """Return the products of the step: each head that is trained, and each table of predictions."""
    every = []
    for name, head in heads.items():
        folder = folder_of(name, head, project)
        card = f"{folder}/head.json"
        if not head.folder:
            every.append(_trained(name, head, folder, project))
        for table, runs in predicted(name, head, project).items():
            stem = Path(table).stem
            missing = str(Path(table).with_suffix(".missing.tsv"))
            every.append(
                Product(
                    f"predictions.{stem}",
                    [missing, table],
                    [card, f"{folder}/{DELIVERED[0]}", *(f"{run}/manifest.json" for run in runs)],
                    [f"{project.logs}/{KEY}/{stem}.predict.log"],
                    [table, missing],
                    config={"vectors": list(head.vectors), "any_recipe": head.any_recipe},
                    figures=partial(_figures, Path(table), Path(missing)),
                )
            )
    return every


def _figures(table: Path, missing: Path) -> Mapping[str, int]:
    counts = {}
    for key, path in (("predicted", table), ("without", missing)):
        with path.open("rb") as file:
            counts[key] = sum(1 for _ in file) - 1
    return counts


def _trained(name: str, head: Head, folder: str, project: Project) -> Product:
    fragments, card = fragments_of(project), f"{folder}/head.json"
    inputs = [
        *filter(None, [head.labels]),
        *(f"{run}/manifest.json" for run in features_of(head, project)),
        *([f"{fragments}/translate.json"] if fragments else []),
    ]
    return Product(
        f"{KEY}.{name}",
        [*(f"{folder}/{file}" for file in DELIVERED), card],
        inputs,
        [f"{project.logs}/{KEY}/{name}.train.log"],
        [folder],
        config={
            "column": head.column,
            "id_column": head.id_column,
            "vectors": list(head.vectors),
            "group": _grouped(head.group),
            "task": head.task or "classification",
            "mask": head.mask or "",
            "kind": "ridge" if head.task == "regression" else head.kind or "logistic",
            "threshold": " ".join(map(str, head.wanted or ())),
        },
        card=partial(_listed, Path(card), head.labels, inputs),
    )


def _listed(path: Path, labels: str | None, inputs: Sequence[str]) -> State:
    """Return the state in the card at `path`: the options and the digest of the labels."""
    from featuremill.steps.heads.card import Card

    card = Card.find(path)
    if not (card and card.labels):
        return stated({})
    options = {
        "column": card.labels.column or None,
        "group": _grouped(card.labels.group),
        "task": card.task,
        "mask": card.mask,
        "kind": card.kind,
        "threshold": card.threshold.in_words if card.threshold else "",
    }
    digests = dict.fromkeys(inputs, "") | ({labels: card.labels.sha256} if labels else {})
    return stated(options, digests)


def _grouped(column: str | None) -> str | None:
    """Return the column of groups; None for samples and contigs, which are the defaults."""
    from featuremill.inputs.samples import SAMPLE
    from featuremill.steps.heads.card import CONTIG

    return None if column in (SAMPLE, CONTIG) else column
