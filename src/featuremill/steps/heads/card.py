"""A head on disk: a folder with its tensors (head.safetensors) and its card (head.json)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.kit import cards
from featuremill.kit.errors import IntegrityError
from featuremill.kit.files import JsonFile, JsonRecord, sha256_of
from featuremill.kit.ids import IdColumns
from featuremill.kit.runs import Settings, whole_ids, with_keys
from featuremill.kit.workloads import refuse_lacking

__all__ = ["CARD", "IS_SEEN", "NO", "UNKNOWN", "YES", "Card", "read", "read_held_out", "require"]
CARD, TENSORS, PAGE, MISSING = "head.json", "head.safetensors", "head.html", "missing.tsv"
HELD_OUT = "held_out.parquet"
IS_SEEN, YES, NO, UNKNOWN = "seen_in_training", "yes", "no", "unknown"
"""The column that shows whether a head was trained on a record, and its values."""
CONTIG = "contig"
"""The default column of groups for labels of contigs."""
Task = Literal["classification", "regression", "per_residue"]
"""What a head predicts for a record: a class, a number, or a class for each residue."""
Tensors = dict[str, npt.NDArray[Any]]
"""The tensors of a head by name."""


def require(*packages: str) -> None:
    """Raise UserError if one of the `packages` is not installed."""
    refuse_lacking(dict.fromkeys(packages, "featuremill[esm2]"))


class Part(JsonRecord):
    """One of the vectors that a head concatenates."""

    width: int
    column: str | None = None
    recipe: str | None = None
    """The recipe of the vectors; None if unknown, as for an imported head."""
    settings: Settings | None = None
    run: str | None = None


class Source(JsonRecord):
    """The file of an imported head."""

    file: str
    sha256: str


class TableUsed(Source):
    """The table of labels."""

    column: str
    """Empty for labels of residues in FASTA."""
    group: str | None = None


class Calibration(JsonRecord):
    """A calibration of logits, so that scores are probabilities.

    A head that weights classes equally gives scores for equally frequent classes, and its logits
    may be too large or too small. One scale for all logits and one shift for each class correct
    both: scores are softmax(scale · logits + shift). For two classes this is Platt scaling; for
    more, temperature scaling with a bias (Alexandari, Kundaje and Shrikumar 2020).
    """

    scale: float
    shift: list[float]
    """A shift for each class, with mean 0, since only differences count."""

    def logits(self, logits_NC: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return calibrated logits (N, C)."""
        calibrated: npt.NDArray[np.float64] = self.scale * logits_NC + np.array(self.shift)
        return calibrated

    def built_in(self, tensors: Tensors) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors of a head, with the calibration folded into its last layer."""
        layer = "" if "bias" in tensors else "output_layer."
        weight, bias = (tensors[f"{layer}{key}"].astype(np.float64) for key in ("weight", "bias"))
        last = {f"{layer}weight": self.scale * weight, f"{layer}bias": self.logits(bias)}
        return {**tensors, **last}


class Threshold(JsonRecord):
    """The lowest score at which a record is predicted as a class."""

    class_name: str
    of: Literal["precision", "recall"]
    level: float
    """The precision or recall that the threshold has to reach."""
    score: float
    precision: list[float]
    """Value and 95 % interval on records of unseen groups; empty if none reached the threshold."""
    recall: list[float]
    share: float
    """Share of the labelled records that have the class."""

    @property
    def in_words(self) -> str:
        """The class, and the precision or recall that the threshold has to reach."""
        return f"{self.class_name} {self.of} {self.level}"


class Bin(JsonRecord):
    """Records with similar scores for a class."""

    class_name: str
    low: float
    high: float
    records: int
    mean_score: float
    share: float
    """Share of these records that have the class."""


class Card(JsonFile):
    """The content of head.json."""

    REMEDY: ClassVar[str] = "train or import the head again"

    task: Task = "classification"
    kind: Literal["logistic", "mlp", "ridge"]
    classes: list[str]
    """Classes in the order of the scores; empty for a regression."""
    features: list[Part]
    """The vectors in the order of concatenation."""
    sha256: str
    """The sha256 of head.safetensors."""
    held_out_sha256: str | None = None
    """The sha256 of held_out.parquet, if there is one."""
    counts: dict[str, int] = {}  # noqa: RUF012  (pydantic copies defaults)
    scores: dict[str, list[float]] = {}  # noqa: RUF012
    """Value and 95 % interval of each figure, on records of unseen groups."""
    guesses: dict[str, float] = {}  # noqa: RUF012
    """The figures in `scores` for guesses that ignore the features."""
    mask: str = ""
    of_classes: dict[str, dict[str, list[float]]] = {}  # noqa: RUF012
    """Precision, recall and F1 of each class of residues, each with its interval."""
    permutation_p: float | None = None
    """The share of shuffles of the labels that are predicted as well as the labels."""
    warnings: list[str] = []  # noqa: RUF012
    accuracy_gain: list[float] = []  # noqa: RUF012
    """The accuracy minus that of always predicting the most frequent class, with its interval."""
    reliability: list[Bin] = []  # noqa: RUF012
    """The share of correct predictions by score, per class; of two classes, for the second."""
    threshold: Threshold | None = None
    """None: the class with the highest score is predicted."""
    calibration: Calibration | None = None
    """None: the scores are not calibrated."""
    confusion: list[list[int]] = []  # noqa: RUF012
    """Records of each class (rows) by predicted class (columns)."""
    setting: dict[str, float] = {}  # noqa: RUF012
    """The penalty or number of epochs that the inner folds chose."""
    setting_bounds: list[float] = []  # noqa: RUF012
    """The first and the last setting that could be chosen."""
    labels: TableUsed | None = None
    source: Source | None = None
    seed: int | None = None
    threads: int | None = None
    versions: dict[str, str] = {}  # noqa: RUF012

    @property
    def columns(self) -> list[str]:
        """The columns of scores in tables of predictions; of a regression, `value`."""
        return [f"score_{name}" for name in self.classes] or ["value"]


def refuse_other_folder(folder: Path) -> None:
    """Raise UserError if `folder`, which a head will replace, has other files than a head's."""
    cards.refuse_other_folder(
        folder,
        (CARD, TENSORS, PAGE, MISSING, HELD_OUT).__contains__,
        "a head is a folder, so name another",
        "not a head's, and a new head replaces all of a folder; name another --output, as in "
        "heads/NAME",
    )


def write_tensors(path: Path, tensors: Tensors) -> str:
    """Write `tensors` to `path`; return the file's sha256."""
    from safetensors.numpy import save

    in_order = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    path.write_bytes(save(in_order))
    return sha256_of(path)


def read(folder: Path) -> tuple[Card, dict[str, npt.NDArray[Any]]]:
    """Return the card and the tensors of the head in `folder`.

    Raises:
        UserError: there is no head.
        IntegrityError: it is damaged or was changed.
    """
    require("safetensors")
    from safetensors.numpy import load

    missing = (
        f"there is no head here, as there is no {CARD}; name the folder that `featuremill head "
        "train` or `head import` wrote."
    )
    content = cards.read(folder, Card, CARD, TENSORS, missing)
    return content, load((folder / TENSORS).read_bytes())


class HeldOut(NamedTuple):
    """The labelled records, in the order of their sha256. The scores of a record are those of a
    head that was trained without its group and without copies of it."""

    ids: list[str]
    sha256s: list[str]
    labels: list[str] | list[float]
    groups: list[str]
    scores_NC: npt.NDArray[np.float64]
    """Scores, with columns in the order of the card's classes."""


def write_held_out(
    path: Path,
    ids: Sequence[str],
    sha256s: Sequence[str],
    columns: Mapping[str, Any],
    id_columns: IdColumns,
) -> str:
    """Write held_out.parquet, in the order of `ids`; return its sha256."""
    cells = zip(*map(id_columns.cells, ids), strict=True)
    of_ids = dict(zip(id_columns.names, map(list, cells), strict=True))
    table = pa.table({**of_ids, "sha256": sha256s, **columns})
    pq.write_table(table, path, compression="zstd")
    return sha256_of(path)


def held_out_at(folder: Path, card: Card) -> Path:
    """Return the path of the held-out records of the head in `folder`.

    Raises:
        IntegrityError: the file is gone or was changed.
    """
    path = folder / HELD_OUT
    if not path.is_file() or sha256_of(path) != card.held_out_sha256:
        raise IntegrityError(f"{path}: it is gone or not what was written; train the head again.")
    return path


def read_held_out(folder: Path, card: Card) -> HeldOut | None:
    """Return the held-out scores of the head in `folder`; None for an imported head.

    Raises:
        IntegrityError: they are damaged or were changed.
    """
    if card.held_out_sha256 is None:
        return None
    table = pq.read_table(held_out_at(folder, card))
    scores = [table[name].to_numpy() for name in card.columns]
    ids = whole_ids(with_keys(table)).to_pylist()
    sha256s, labels, groups = (table[name].to_pylist() for name in ("sha256", "label", "group"))
    return HeldOut(ids, sha256s, labels, groups, np.stack(scores, axis=1))
