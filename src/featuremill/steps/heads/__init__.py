"""heads: what features predict, by heads that are trained here or imported: classes, numbers, or
letters of residues."""

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
from featuremill.step import Ahead, Command, Made, Name, Project, Section, Several, State, stated

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
    from featuremill.steps.heads.card import Card, Part


class Head(Section):
    """One head: trained with `labels`, or an existing one in a `folder`."""

    labels: str | None = None
    """A CSV, TSV or Parquet table with a column of ids: of the records or, in a project that
    translates, of its contigs. In a project with samples it has a column `sample`, too; if not
    given, labels are of samples, and stand in their sheet."""
    column: str | None = None
    """Its column of labels; of labels of residues in FASTA, none."""
    id_column: str | None = None
    """Its column of ids, whole ones or accessions. If not given, it is found by its name, such as
    `id`, `accession` or `entry`."""
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

    def vectors_at(self, place: int) -> str | None:
        """Return the name of the vectors of the set at that place, if given."""
        return self.vectors[place % len(self.vectors)] if self.vectors else None

    @property
    def words(self) -> list[str]:
        """The options of `featuremill head train`."""
        kept = {"column", "id_column", "group", "task", "mask", "kind"}
        words = [*self.words_of_vectors, *words_of(self.model_dump(include=kept))]
        if self.threshold:
            words.append(f"--threshold={self.class_of_threshold}")
            words += [f"--{of}={level}" for of, level in self.levels.items()]
        return words

    @property
    def has_classes(self) -> bool:
        """Whether a head trained here predicts a class of each record."""
        return self.task in (None, "classification")

    @property
    def levels(self) -> Mapping[str, str | float]:
        """What the threshold is to reach: a precision or a recall."""
        return {key: value for key, value in self.threshold.items() if key != "class"}

    @property
    def class_of_threshold(self) -> str:
        """The class that has a threshold; "" without one."""
        name = self.threshold.get("class", "")
        return name if isinstance(name, str) else f"{name:g}"

    @property
    def threshold_told(self) -> str:
        """The threshold in words, as `card.Threshold.told`."""
        levels = (f"{of} {level}" for of, level in self.levels.items())
        return " ".join([self.class_of_threshold, *levels])

    @property
    def words_of_vectors(self) -> list[str]:
        """The options for the vectors."""
        return [f"--vectors={column}" for column in self.vectors]


SECTION = dict[Name, Head]


def folder_of(name: str, asked: Head, project: Project) -> str:
    """Return the folder of a head."""
    return (asked.folder or f"{project.folder}/{KEY}/{name}").rstrip("/")


def features_of(asked: Head, project: Project) -> list[str]:
    """Return the folders of a head's features, in its order."""
    return [project.features_of(name) for name in asked.of or project.features]


def fragments_of(project: Project) -> str | None:
    """Return the folder of the translation, if labels are of contigs."""
    from featuremill.steps import translate

    return translate.folder_of(project) if translate.KEY in project.sections else None


def predictions_of(name: str, project: Project, more: str = "") -> str:
    """Return the path of a head's predictions for the project's records, or for others."""
    return f"{project.folder}/predictions/{name}{more and '.'}{more}.tsv"


def predicted(name: str, asked: Head, project: Project) -> Mapping[str, Sequence[str]]:
    """Return the features of each table of predictions, by the table's path."""
    more = {
        predictions_of(name, project, other): [project.features_of(run) for run in runs]
        for other, runs in asked.predict.items()
    }
    return {predictions_of(name, project): features_of(asked, project), **more}


def problems(asked: Mapping[str, Head], project: Project) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield missing sets of features, and vectors whose number does not fit the sets."""
    for name, head in asked.items():
        try:
            sets = features_of(head, project)
        except UserError as error:
            yield (name, "of"), str(error)
            continue
        if len(head.vectors) not in (0, 1, len(sets)):
            yield (name, "vectors"), f"give one for all, or one for each of {listed(sets)}."
        is_ours = sets[0] in project.features.values()  # of another run, its files tell
        if head.column and not head.labels and is_ours and not project.samples:
            yield (name, "column"), "labels and column belong together: name a table with labels."
        for more, runs in head.predict.items():
            if len(runs) != len(sets):
                yield (name, "predict", more), f"give {counted(len(sets), 'folder')}, as in `of`."
            elif f"{name}.{more}" in asked:
                yield (name, "predict", more), "a head has this name; take another one."


def problems_of_files(
    asked: Mapping[str, Head], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield labels without the column or with wrong rows, missing heads, and heads of other
    features."""
    from featuremill.features import chosen
    from featuremill.steps.heads.card import CARD, Card

    for name, head in asked.items():
        if not head.folder:
            for key in ("column", "group"):
                try:
                    if column := getattr(head, key):
                        _check_column(head, key, column, project)
                except UserError as error:
                    yield (name, key), str(error)
                    break
            else:
                if not stands(made({name: head}, project), f"{KEY}.{name}", project):
                    try:
                        _refuse_other_class(head, classes_of(head, project))
                    except UserError as error:
                        yield (name, "labels" if head.labels else "column"), str(error)
            names = head.of or tuple(project.features)
            for place, of in enumerate(names):
                column = head.vectors_at(place)
                try:
                    if ahead := project.ahead(of):
                        of_residues = head.task == "per_residue"
                        chosen(ahead.schema, column, of, "vectors:", of_residues)
                except UserError as error:
                    yield (name, "vectors"), str(error)
        elif card := Card.find(Path(folder_of(name, head, project)) / CARD):
            if problem := _unfit(card, head, project):
                yield (name, "folder"), problem
        else:
            problem = f"{head.folder}: there is no head here; featuremill head import makes one."
            yield (name, "folder"), problem


def problems_of_records(
    asked: Mapping[str, Head], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield labels that are not of the records, and those of too few classes or groups."""
    from featuremill.steps.heads.examples import Chosen
    from featuremill.steps.heads.train import refuse_unfit

    fragments = fragments_of(project)
    for name, head in asked.items():
        runs = features_of(head, project)
        if not head.folder and are_there(head.labels, runs, project):
            chosen = Chosen(
                [Path(run) for run in runs],
                Path(head.labels) if head.labels else None,
                head.column or "",
                head.group,
                Path(fragments) if fragments else None,
                head.kind or "logistic",
                head.vectors,
                Path(folder_of(name, head, project)),
                seed=0,
                threads=1,
                id_column=head.id_column or "",
                task=head.task,
                mask=head.mask or "",
            )
            try:
                columns = map(head.vectors_at, range(len(runs)))
                parts = [
                    listed_in(run, project, column)
                    for run, column in zip(runs, columns, strict=True)
                ]
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
    id_columns = id_columns_of(project, first)
    sheet = project.sheet_of(first)
    if head.labels:
        table = Path(head.labels)
        there = labels.names_of(table) if table.is_file() else []
        group = head.group if not id_columns.keys or head.group in (labels.ID, *there) else None
        found = labels.read_ahead(table, head.column, group, id_columns, head.id_column or "")
        if head.task == "regression":
            refuse_no_numbers(found, head.labels, head.column)
            return ()
        classes = {label.name for label in found.values()}
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


def _refuse_other_class(head: Head, classes: Collection[str]) -> None:
    """Raise UserError where the threshold is for a class that no label has."""
    name = head.class_of_threshold
    if classes and name and name not in classes:
        known = listed(sorted(classes))
        raise UserError(
            f"the threshold is for {clipped(name)!r}, and no label is that; name one of {known}."
        )


def _check_column(head: Head, key: str, column: str, project: Project) -> None:
    """Raise UserError where labels or groups have no such column, or a table is no such."""
    from featuremill.inputs import labels, samples

    if key == "group" and column == labels.ID:
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


def _unfit(card: Card, asked: Head, project: Project) -> str:
    """Return why a head does not take the features; "" if there is no known reason."""
    names = asked.of or tuple(project.features)
    if len(names) != len(card.features):
        widths = " + ".join(f"{part.width:,}" for part in card.features)
        return (
            f"{asked.folder}: this head takes features of {counted(len(card.features), 'kind')} "
            f"({widths} numbers), and here are {listed(names)}; name those it takes with `of`, or "
            "another head."
        )
    for place, (name, part) in enumerate(zip(names, card.features, strict=True)):
        ahead = project.ahead(name)
        known = part.model_copy(update={"column": asked.vectors_at(place) or part.column})
        of_residues = card.task == "per_residue"
        if ahead and (difference := _difference(ahead, known, asked.any_recipe, of_residues)):
            return (
                f"{asked.folder}: this head does not take the features that {name} will "
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


def made(asked: Mapping[str, Head], project: Project) -> Sequence[Made]:
    """Return each head that is trained here, and its predictions."""
    every = []
    for name, head in asked.items():
        folder = folder_of(name, head, project)
        card = f"{folder}/head.json"
        if not head.folder:
            fragments = fragments_of(project)
            manifests = [f"{run}/manifest.json" for run in features_of(head, project)]
            made_of = [
                *([head.labels] if head.labels else []),
                *manifests,
                *([f"{fragments}/translate.json"] * bool(fragments)),
            ]
            every.append(
                Made(
                    f"{KEY}.{name}",
                    [*(f"{folder}/{file}" for file in DELIVERED), card],
                    made_of,
                    [f"{project.logs}/{KEY}/{name}.train.log"],
                    [folder],
                    asked={
                        "column": head.column,
                        "id_column": head.id_column,
                        "vectors": list(head.vectors),
                        "group": _grouped(head.group),
                        "task": head.task or "classification",
                        "mask": head.mask or "",
                        "kind": _kind(head),
                        "threshold": head.threshold_told,
                    },
                    card=partial(_listed, Path(card), head.labels, made_of),
                )
            )
        for table, runs in predicted(name, head, project).items():
            stem = table.rpartition("/")[2].removesuffix(".tsv")
            missing = table.removesuffix(".tsv") + ".missing.tsv"
            every.append(
                Made(
                    f"predictions.{stem}",
                    [missing, table],
                    [card, f"{folder}/{DELIVERED[0]}", *(f"{run}/manifest.json" for run in runs)],
                    [f"{project.logs}/{KEY}/{stem}.predict.log"],
                    [table, missing],
                    asked={"vectors": list(head.vectors), "any_recipe": head.any_recipe},
                    figures=lambda table=table, missing=missing: {  # type: ignore[misc]
                        "predicted": _num_rows(Path(table)),
                        "without": _num_rows(Path(missing)),
                    },
                )
            )
    return every


def _listed(card: Path, labels: str | None, made_of: Sequence[str]) -> State:
    """Return what a head lists of itself: the digest of its labels, and none of its features."""
    from featuremill.steps.heads.card import Card

    found = Card.find(card)
    if not (found and found.labels):
        return stated({})
    cut = found.threshold.told if found.threshold else ""
    made_by = {
        "column": found.labels.column or None,
        "group": _grouped(found.labels.group),
        "task": found.task,
        "mask": found.mask,
        "kind": found.kind,
        "threshold": cut,
    }
    digests = dict.fromkeys(made_of, "")
    return stated(made_by, digests | ({labels: found.labels.sha256} if labels else {}))


def _kind(head: Head) -> str:
    return "ridge" if head.task == "regression" else head.kind or "logistic"


def _grouped(column: str | None) -> str | None:
    """Return the column of groups; None for samples and contigs, which a head takes by itself."""
    from featuremill.inputs.samples import SAMPLE
    from featuremill.steps.heads.card import CONTIG

    return None if column in (SAMPLE, CONTIG) else column


def _num_rows(table: Path) -> int:
    with table.open("rb") as file:
        return sum(1 for _ in file) - 1
