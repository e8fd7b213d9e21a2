"""The section of one head in a config: its labels and how to train it, or its folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from featuremill.kit.errors import UserError
from featuremill.kit.tables import words_of
from featuremill.kit.text import counted, listed
from featuremill.step import Name, Section, Several

KEYS = ("column", "id_column", "group", "task", "mask", "kind")
"""Keys of a section that are also options of `head train`."""


def spread(columns: Sequence[str], num_runs: int) -> list[str | None]:
    """Return the column of each run: `columns`, or the only one of them for all runs; None if no
    column was named.

    Raises:
        UserError: if the number of columns does not fit.
    """
    if len(columns) not in (0, 1, num_runs):
        raise UserError(
            f"--vectors: {listed(columns)} are {len(columns)} columns for "
            f"{counted(num_runs, 'run')}; name one for each run, in their order, or one for all."
        )
    return [*columns] if len(columns) == num_runs else [*columns, None][:1] * num_runs


class Wanted(NamedTuple):
    """A class with a threshold, and the precision or recall that the threshold has to reach."""

    class_name: str
    of: Literal["precision", "recall"]
    level: float


class Head(Section):
    """One head: trained with `labels`, or an existing head in a `folder`."""

    labels: str | None = None
    """A CSV, TSV or Parquet table with a column of ids: of the records or, in a project that
    translates, of its contigs. In a project with samples it also has a column `sample`; if not
    given, samples have labels, in a column of their sheet."""
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
    def _check(self) -> Head:
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
            _, *levels = (self.threshold.get(key) for key in ("class", "precision", "recall"))
            is_share = any(isinstance(level, float) and 0 < level <= 1 for level in levels)
            if len(self.threshold) != 2 or "class" not in self.threshold or not is_share:
                raise ValueError(
                    "threshold has a class, and a precision or a recall above 0, at most 1, as in "
                    "{class: virus, precision: 0.95} (--threshold virus --precision 0.95)"
                )
        if self.id_column and not self.labels:
            raise ValueError("id_column is a column of labels: name that table, too")
        return self

    @property
    def words(self) -> list[str]:
        """The options of this section for the command `featuremill head train`."""
        words = [*self.words_of_vectors, *words_of(self.model_dump(include={*KEYS}))]
        if wanted := self.wanted:
            words += [f"--threshold={wanted.class_name}", f"--{wanted.of}={wanted.level}"]
        return words

    @property
    def has_classes(self) -> bool:
        """Whether the trained head predicts a class for each record."""
        return self.task in (None, "classification")

    @property
    def wanted(self) -> Wanted | None:
        """The class and the level of the threshold; None without one."""
        for figure in ("precision", "recall"):
            if level := self.threshold.get(figure):
                name = self.threshold["class"]
                class_name = name if isinstance(name, str) else f"{name:g}"
                return Wanted(class_name, figure, float(level))
        return None

    @property
    def words_of_vectors(self) -> list[str]:
        """The `--vectors` options of the commands."""
        return [f"--vectors={column}" for column in self.vectors]
