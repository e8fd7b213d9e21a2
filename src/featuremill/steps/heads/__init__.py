"""heads: predictions from features by heads that are trained here or imported: classes, numbers,
or letters of residues."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.tables import are_there, id_columns_of, listed_in, stands, words_of
from featuremill.kit.text import clipped, counted, listed
from featuremill.step import Ahead, Command, Name, Product, Project, Section, Several, State, stated

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
"""The files of a head; its card comes last."""
if TYPE_CHECKING:
    from featuremill.steps.heads.card import Part


class Head(Section):
    """One head: trained with `labels`, or an existing one in a `folder`."""

    labels: str | None = None
    """A CSV, TSV or Parquet table with a column of ids: of the records or, in a project that
    translates, of its contigs. In a project with samples it has a column `sample`, too; if not
    given, labels are of samples, and stand in their sheet."""
    column: str | None = None
    """The table's column of labels; labels of residues in FASTA have none."""
    id_column: str | None = None
    """The table's column of ids, whole ones or accessions. If not given, it is found by its name,
    such as `id`, `accession` or `entry`."""
    group: str | None = None
    """A column of groups, such as a genus, each on one side of a fold; also a column of the sheet
    of samples, such as a patient. If not given, each record or contig is a group; in a project with
    samples, each sample. `id` makes each record or contig a group."""
    task: Literal["classification", "regression", "per_residue"] | None = None
    """What labels are: names of classes (if not given), numbers (`regression`), or a letter for
    each residue (`per_residue`)."""
    mask: str | None = None
    """per_residue: the letters of residues without a label."""
    kind: Literal["logistic", "mlp"] | None = None
    """Logistic regression (if not given), or VirNucPro's network."""
    threshold: dict[Literal["class", "precision", "recall"], str | float] = Field(
        default_factory=dict
    )
    """`{class: virus, precision: 0.95}`, or a `recall`: a record is called this class from such a
    score on. If not given, its class is that with the highest score."""
    folder: str | None = None
    """The folder of an existing head, instead of training one."""
    any_recipe: bool = False
    """Also take features of another recipe than the head's; an imported head needs it."""
    of: Several = ()
    """The sets of features, side by side in this order; all if not given."""
    vectors: Several = ()
    """Which vectors, where features have several columns: one for all sets, or one for each."""
    predict: dict[Name, Several] = Field(default_factory=dict)
    """Further features to classify, by name: folders of finished runs, one for each set of the
    head. They go to `predictions/<head>.<name>.tsv`."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Head:
        if bool(self.labels or self.column) == bool(self.folder):
            raise ValueError("give labels and column to train it, or the folder where it is")
        if self.labels and not self.column and self.task != "per_residue":
            raise ValueError("labels and column belong together: name a table, and a column of it")
        if self.folder and (self.group or self.kind or self.threshold or self.task):
            raise ValueError(
                "group, task, kind and threshold are of the training; with a folder there is none"
            )
        if self.mask and self.task != "per_residue":
            raise ValueError("mask is of residues, so it needs task: per_residue")
        if not self.has_classes and (self.kind or self.threshold):
            raise ValueError(f"kind and threshold are of classes, and not of task {self.task}")
        if self.threshold:
            levels = [*self.levels.values()]
            is_share = len(levels) == 1 and isinstance(levels[0], float) and 0 < levels[0] <= 1
            if "class" not in self.threshold or not is_share:
                raise ValueError(
                    "threshold has a class, and a precision or a recall above 0, at most 1, as in "
                    "{class: virus, precision: 0.95}"
                )
        if self.id_column and not self.labels:
            raise ValueError("id_column is a column of labels: name that table, too")
        return self

    def vectors_at(self, number: int) -> str | None:
        """Return the name of the vectors of the set with this number, if the config has it."""
        return self.vectors[number % len(self.vectors)] if self.vectors else None

    @property
    def words(self) -> list[str]:
        """The options of `featuremill head train`."""
        keys = {"column", "id_column", "group", "task", "mask", "kind"}
        words = [*self.words_of_vectors, *words_of(self.model_dump(include=keys))]
        if self.threshold:
            words.append(f"--threshold={self.class_of_threshold}")
        return [*words, *(f"--{name}={level}" for name, level in self.levels.items())]

    @property
    def has_classes(self) -> bool:
        """Whether a head trained here predicts a class of each record."""
        return self.task in (None, "classification")

    @property
    def levels(self) -> Mapping[str, str | float]:
        """The precision or the recall that the threshold has to reach."""
        return {key: value for key, value in self.threshold.items() if key != "class"}

    @property
    def class_of_threshold(self) -> str:
        """The class that has a threshold; "" without one."""
        name = self.threshold.get("class", "")
        return name if isinstance(name, str) else f"{name:g}"

    @property
    def words_of_vectors(self) -> list[str]:
        """The options for the vectors."""
        return [f"--vectors={column}" for column in self.vectors]


SECTION = dict[Name, Head]


def folder_of(name: str, head: Head, project: Project) -> str:
    """Return the folder of a head."""
    return (head.folder or f"{project.folder}/{KEY}/{name}").rstrip("/")


def features_of(head: Head, project: Project) -> list[str]:
    """Return the folders of a head's features, in its order."""
    return [project.features_of(name) for name in head.of or project.features]


def fragments_of(project: Project) -> str | None:
    """Return the folder of the translation, if labels are of contigs."""
    from featuremill.steps import translate

    return translate.folder_of(project) if translate.KEY in project.sections else None


def predictions_of(name: str, project: Project, more: str = "") -> str:
    """Return the path of a head's predictions for the project's records, or for others."""
    return f"{project.folder}/predictions/{name}{more and '.'}{more}.tsv"


def predicted(name: str, head: Head, project: Project) -> Mapping[str, Sequence[str]]:
    """Return the features of each table of predictions, by the table's path."""
    more = {
        predictions_of(name, project, other): [project.features_of(run) for run in runs]
        for other, runs in head.predict.items()
    }
    return {predictions_of(name, project): features_of(head, project), **more}


def problems(heads: Mapping[str, Head], project: Project) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield missing sets of features, and vectors whose number does not fit the sets."""
    for name, head in heads.items():
        try:
            sets = features_of(head, project)
        except UserError as error:
            yield (name, "of"), str(error)
            continue
        if len(head.vectors) not in (0, 1, len(sets)):
            yield (name, "vectors"), f"give one for all, or one for each of {listed(sets)}."
        is_ours = sets[0] in project.features.values()  # files of another run have its samples
        if head.column and not head.labels and is_ours and not project.samples:
            yield (name, "column"), "labels and column belong together: name a table with labels."
        for more, runs in head.predict.items():
            if len(runs) != len(sets):
                yield (name, "predict", more), f"give {counted(len(sets), 'folder')}, as in `of`."
            elif f"{name}.{more}" in heads:
                yield (name, "predict", more), "a head has this name; take another one."


def problems_of_files(
    heads: Mapping[str, Head], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield labels without the column or with wrong rows, missing heads, and heads of other
    features."""
    for name, head in heads.items():
        if not head.folder:
            yield from _problems_of_training(name, head, project)
        elif problem := _unfit(name, head, project):
            yield (name, "folder"), problem


def _problems_of_training(
    name: str, head: Head, project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    from featuremill.features import chosen

    try:
        key = "column"
        _check_column(head, key, head.column, project)
        key = "group"
        _check_column(head, key, head.group, project)
        key = "labels" if head.labels else "column"
        if not stands(products({name: head}, project), f"{KEY}.{name}", project):
            classes, of_threshold = classes_of(head, project), head.class_of_threshold
            if classes and of_threshold and of_threshold not in classes:
                raise UserError(
                    f"the threshold is for {clipped(of_threshold)!r}, and no label is that; name "
                    f"one of {listed(sorted(classes))}."
                )
    except UserError as error:
        yield (name, key), str(error)
    for number, features in enumerate(head.of or project.features):
        column, of_residues = head.vectors_at(number), head.task == "per_residue"
        try:
            if ahead := project.ahead(features):
                chosen(ahead.schema, column, features, "vectors:", of_residues)
        except UserError as error:
            yield (name, "vectors"), str(error)


def problems_of_records(
    heads: Mapping[str, Head], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield labels that are not of the records, and those of too few classes or groups."""
    from featuremill.steps.heads.examples import Chosen
    from featuremill.steps.heads.train import refuse_unfit

    fragments = fragments_of(project)
    for name, head in heads.items():
        runs = features_of(head, project)
        if head.folder or not are_there(head.labels, runs, project):
            continue
        chosen = Chosen(
            [*map(Path, runs)],
            head.vectors,
            Path(folder_of(name, head, project)),
            Path(head.labels) if head.labels else None,
            head.column or "",
            head.group,
            Path(fragments) if fragments else None,
            id_column=head.id_column or "",
            task=head.task,
            mask=head.mask or "",
        )
        try:
            columns = map(head.vectors_at, range(len(runs)))
            pairs = zip(runs, columns, strict=True)
            parts = [listed_in(run, project, column) for run, column in pairs]
            refuse_unfit(chosen, parts)
        except UserError as error:
            yield (name, "labels" if head.labels else "column"), str(error)


def classes_of(head: Head, project: Project) -> Collection[str]:
    """Return the classes that a head trained here may have: those in its labels, if these can be
    read before the first job.

    Raises:
        UserError: the labels cannot be read, or there are too few.
    """
    from featuremill.inputs import labels, samples
    from featuremill.steps.heads.labels import refuse_many_numbers, refuse_no_numbers

    if head.task == "per_residue":
        return ()
    assert head.column
    first = features_of(head, project)[0]
    sheet = project.sheet_of(first)
    if head.labels:
        table, id_columns = Path(head.labels), id_columns_of(project, first)
        names = labels.names_of(table) if table.is_file() else []
        group = head.group if not id_columns.keys or head.group in (labels.ID, *names) else None
        of_id = labels.read_ahead(table, head.column, group, id_columns, head.id_column or "")
        if head.task == "regression":
            refuse_no_numbers(of_id, head.labels, head.column)
        classes = {label.name for label in of_id.values()}
    elif sheet and sheet.exists():
        table = sheet
        classes = {*samples.read(sheet).about[head.column]} - {""}
        if not classes:
            raise UserError(f"{sheet}: no sample has a label in {head.column!r}; fill it in.")
    else:
        return ()
    if not head.has_classes:
        return ()
    if head.task is None:
        refuse_many_numbers(classes, str(table), head.column)
    if len(classes) == 1:
        (only,) = classes
        raise UserError(
            f"{table}: {head.column!r} is {clipped(only)!r} wherever it is filled in; a head needs "
            "at least two classes, so label others, too."
        )
    return classes


def _check_column(head: Head, key: str, column: str | None, project: Project) -> None:
    """Raise UserError where labels or groups have no such column, or a table is no such."""
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
        labels.check(Path(head.labels), column, id_columns, head.id_column or "")


def _unfit(name: str, head: Head, project: Project) -> str:
    """Return why an existing head does not take the features; "" if there is no known reason."""
    from featuremill.steps.heads.card import CARD, Card

    card = Card.find(Path(folder_of(name, head, project)) / CARD)
    if not card:
        return f"{head.folder}: there is no head here; featuremill head import makes one."
    names = head.of or tuple(project.features)
    if len(names) != len(card.features):
        widths = " + ".join(f"{part.width:,}" for part in card.features)
        return (
            f"{head.folder}: this head takes features of {counted(len(card.features), 'kind')} "
            f"({widths} numbers), and here are {listed(names)}; name those it takes with `of`, or "
            "another head."
        )
    for number, (features, part) in enumerate(zip(names, card.features, strict=True)):
        ahead = project.ahead(features)
        known = part.model_copy(update={"column": head.vectors_at(number) or part.column})
        of_residues = card.task == "per_residue"
        if ahead and (difference := _difference(ahead, known, head.any_recipe, of_residues)):
            return (
                f"{head.folder}: this head does not take the features that {features} will "
                f"have{difference}; change the config, or name another head."
            )
    return ""


def _difference(ahead: Ahead, known: Part, takes_any_recipe: bool, of_residues: bool) -> str:
    """Return how features differ from those of the head; "" if they do not."""
    from featuremill.features import columns_of
    from featuremill.steps.heads.predict import differences

    columns = columns_of(ahead.schema, of_residues)
    widths = {name: column.width for name, column in columns.items()}
    if known.column and known.column not in widths:
        return f": it was made for the column {known.column}, and they have {listed(widths)}"
    wanted = {known.column: widths[known.column]} if known.column else widths
    if known.width not in wanted.values():
        has = listed(f"{width:,} ({column})" for column, width in wanted.items())
        return f": it takes {known.width:,} numbers, and they have {has}"
    if len(wanted) > 1:
        return f": they have the columns {listed(wanted)}, and it does not say which it takes"
    if takes_any_recipe or known.settings is None:
        return ""
    return differences(known.settings.model_copy(update=ahead.settings), known.settings)


def products(heads: Mapping[str, Head], project: Project) -> Sequence[Product]:
    """Return each head that is trained here, and its predictions."""
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
    """Return the files of a head that is trained here."""
    fragments, card = fragments_of(project), f"{folder}/head.json"
    inputs = [
        *filter(None, [head.labels]),
        *(f"{run}/manifest.json" for run in features_of(head, project)),
        *([f"{fragments}/translate.json"] if fragments else []),
    ]
    levels = (f"{name} {level}" for name, level in head.levels.items())
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
            "threshold": " ".join([head.class_of_threshold, *levels]),
        },
        card=partial(_listed, Path(card), head.labels, inputs),
    )


def _listed(path: Path, labels: str | None, inputs: Sequence[str]) -> State:
    """Return the options and the digest of the labels that the card at `path` has; it has none of
    the features."""
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
    """Return the column of groups; None for samples and contigs, which a head takes by itself."""
    from featuremill.inputs.samples import SAMPLE
    from featuremill.steps.heads.card import CONTIG

    return None if column in (SAMPLE, CONTIG) else column
