"""A head on the disk: a folder with its tensors (head.safetensors) and its card (head.json)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from featuremill.steps import card
from featuremill.store.files import sha256_of
from featuremill.store.json_file import JsonFile, Record
from featuremill.store.plan import Settings
from featuremill.workload import WorkloadOptions, refuse_without_packages

CARD, TENSORS, PAGE, MISSING = "head.json", "head.safetensors", "head.html", "missing.tsv"
HELD_OUT = "held_out.parquet"
FILES = (CARD, TENSORS, PAGE, MISSING, HELD_OUT)


class Needs(WorkloadOptions):
    """What heads are read and applied with."""

    PACKAGES = dict.fromkeys(("safetensors",), "featuremill[esm2]")


class NeedsTorch(WorkloadOptions):
    """What they are made with, and what VirNucPro's files are read with."""

    PACKAGES = dict.fromkeys(("safetensors", "torch"), "featuremill[esm2]")


class Part(Record):
    """One of the vectors that a head takes side by side."""

    width: int
    """Numbers in it."""
    column: str | None = None
    recipe: str | None = None
    """What it was made by; None where it is unknown, as of a head from elsewhere."""
    settings: Settings | None = None
    """What the recipe is the digest of."""
    run: str | None = None
    """Where it came from when the head was trained."""


class TableUsed(Record):
    """The table of labels."""

    file: str
    sha256: str
    column: str
    group: str | None = None


class Calibration(Record):
    """What makes of the fitted logits those of probabilities: scale · logits + shift.

    It is built into the last layer of head.safetensors.
    """

    scale: float
    shift: list[float]


class Bin(Record):
    """Records whose scores for a class are about the same."""

    class_name: str
    low: float
    high: float
    records: int
    mean_score: float
    share: float
    """Of these records that are of the class."""


class Source(Record):
    """The file that a head was imported from."""

    file: str
    sha256: str


class Card(JsonFile):
    """The content of head.json."""

    REMEDY: ClassVar[str] = "train or import the head again"

    kind: Literal["logistic", "mlp"]
    classes: list[str]
    """In the order of the scores."""
    features: list[Part]
    """In the order in which they stand side by side."""
    sha256: str
    """Of head.safetensors."""
    held_out_sha256: str | None = None
    """Of held_out.parquet, where there is one."""
    counts: dict[str, int] = {}  # noqa: RUF012  (pydantic copies defaults)
    scores: dict[str, list[float]] = {}  # noqa: RUF012
    """Value, and the bounds of its 95 % interval, of what predicts records whose group it did not
    see."""
    guesses: dict[str, float] = {}  # noqa: RUF012
    """Each of these figures for guesses by the classes' frequencies alone."""
    reliability: list[Bin] = []  # noqa: RUF012
    """How often a class is right, by its score for records whose group was not seen. Of two
    classes, the second."""
    calibration: Calibration | None = None
    """None: the scores are not calibrated."""
    confusion: list[list[int]] = []  # noqa: RUF012
    """Records of each class (rows) by the class that was predicted (columns)."""
    setting: dict[str, float] = {}  # noqa: RUF012
    """What inner folds chose."""
    setting_bounds: list[float] = []  # noqa: RUF012
    """The first and the last setting that could be chosen."""
    labels: TableUsed | None = None
    source: Source | None = None
    seed: int | None = None
    threads: int | None = None
    versions: dict[str, str] = {}  # noqa: RUF012

    @property
    def is_guessing(self) -> bool:
        """Whether its scores may sort records no better than chance does."""
        return "auc" in self.scores and self.scores["auc"][1] <= self.guesses.get("auc", 0.5)


def refuse_other_folder(folder: Path) -> None:
    """Raise UserError where `folder` holds what is not a head's, as writing one replaces it."""
    card.refuse_other_folder(
        folder,
        FILES.__contains__,
        "a head is a folder, so name another",
        "no head's, and a new head replaces all of a folder; name another --output, as in "
        "heads/NAME",
    )


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """Write `tensors` to `path`; return the file's sha256."""
    from safetensors.numpy import save

    in_order = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    path.write_bytes(save(in_order))
    return sha256_of(path)


def read(folder: Path) -> tuple[Card, dict[str, npt.NDArray[Any]]]:
    """Return the card and the tensors of the head in `folder`.

    Raises:
        UserError: when there is no head.
        IntegrityError: when it is not what was written.
    """
    refuse_without_packages(Needs)
    from safetensors.numpy import load

    missing = (
        f"there is no head here, as there is no {CARD}; name the folder that `featuremill head "
        "train` or `head import` wrote."
    )
    found = card.read(folder, Card, CARD, TENSORS, missing)
    return found, load((folder / TENSORS).read_bytes())
