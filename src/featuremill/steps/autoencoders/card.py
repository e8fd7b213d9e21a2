"""The files of a sparse autoencoder: a folder in SAELens' layout, and sae.json with its provenance,
which is written last."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from featuremill.kit import cards
from featuremill.kit.errors import UserError
from featuremill.kit.files import JsonFile, JsonRecord, Number, write_json
from featuremill.kit.runs import Settings
from featuremill.kit.text import listed
from featuremill.steps.autoencoders.progress import CARD as CARD
from featuremill.steps.autoencoders.progress import LOCK as LOCK
from featuremill.steps.autoencoders.progress import TRAINING

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
CHECKPOINT = "checkpoint.safetensors"
PAGE, FEATURES = "report.html", "features.tsv"
FILES = {CARD, CONFIG, WEIGHTS, CHECKPOINT, LOCK, PAGE, FEATURES, TRAINING}
SLICES = 8
"""The slices of a batch. Their sums are added in pairs, in an order that does not depend on the
number of ranks, so that results have the same bits with 1 to 8 ranks."""
Kind = Literal["topk", "relu", "jumprelu"]
OF_KIND: dict[str, dict[str, float]] = {
    "topk": {"k": 32},
    "relu": {"sparsity": 1.0},
    "jumprelu": {"sparsity": 1.0, "bandwidth": 0.05},
}
"""The options that only some kinds have, with defaults (relu, jumprelu: SAELens')."""
CHOICES = ("k", "sparsity", "bandwidth")
ARCHITECTURES = {"topk": "topk", "relu": "standard", "jumprelu": "jumprelu"}
"""SAELens' name of each kind."""


class Options(JsonRecord):
    """Everything besides the vectors that determines the values."""

    kind: Kind = "topk"
    features: int
    k: int | None = None
    """The largest number of active features per vector."""
    sparsity: Number | None = None
    """The weight of the penalty, on the sum of the features (relu) or their count (jumprelu)."""
    bandwidth: Number | None = None
    """The width of the kernel that estimates the gradient of a threshold."""
    batch: int
    steps: int
    seed: int
    learning_rate: Number
    dead_after: int
    held_out: Number
    dtype: Literal["fp32", "bf16"]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Options:
        """Return `options`, with defaults for those that are None."""
        chosen = {name: value for name, value in options.items() if value is not None}
        rate = 2e-4 / (max(1, chosen["features"]) / 2**14) ** 0.5
        return cls(**{"learning_rate": rate, **OF_KIND[chosen["kind"]], **chosen})

    def check(self) -> None:
        """Raise UserError for impossible values."""
        own = OF_KIND[self.kind]
        for name in CHOICES:
            if name not in own and getattr(self, name) is not None:
                kinds = " or ".join(kind for kind, those in OF_KIND.items() if name in those)
                raise UserError(
                    f"--{name} {getattr(self, name)}: an autoencoder of the kind {self.kind} has "
                    f"no {name}; leave it out, or take --kind {kinds}."
                )
        if self.k is not None and not 1 <= self.k <= self.features:
            raise UserError(
                f"--k {self.k}: of {self.features:,} features at least 1 and at most all can be "
                "active; give a smaller --k, or more --features."
            )
        if self.batch < SLICES or self.batch % SLICES:
            raise UserError(
                f"--batch {self.batch}: a batch is computed in {SLICES} equal slices; give a "
                f"multiple of {SLICES}."
            )
        for name in ("features", "steps", "dead_after", "learning_rate", "sparsity", "bandwidth"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                word = name.replace("_", "-")
                raise UserError(f"--{word} {getattr(self, name)}: give a number above 0.")
        if not 0 <= self.held_out < 1:
            raise UserError(f"--held-out {self.held_out}: give a share from 0 to below 1.")


class Source(JsonRecord):
    """The vectors of the training."""

    run: str
    recipe: str
    column: str
    is_per_residue: bool
    width: int
    parts: str
    settings: Settings


class Card(JsonFile):
    """The content of sae.json."""

    REMEDY: ClassVar[str] = "train it again"

    options: Options
    source: Source
    sha256: str
    """The sha256 of sae_weights.safetensors."""
    counts: dict[str, int]
    last: dict[str, Any]
    """The last line of training.jsonl."""
    versions: dict[str, str]


def refuse_other_count(num_ranks: int) -> None:
    """Raise UserError if `num_ranks` ranks cannot share the slices of a batch."""
    if not 1 <= num_ranks <= SLICES:
        raise UserError(
            f"--gpus {num_ranks}: a batch is computed in {SLICES} equal slices, which 1 to "
            f"{SLICES} devices can share; give one of these numbers."
        )


def slices_of(rank: int, num_ranks: int) -> range:
    """Return the slices of a rank; ranks differ by at most one slice."""
    return range(SLICES * rank // num_ranks, SLICES * (rank + 1) // num_ranks)


def pairs_of(slices: range) -> list[range]:
    """Divide `slices` into the longest ranges that are nodes of the tree of pairs: 1, 2, 4 or 8
    slices, which start at a multiple of their number."""
    ranges: list[range] = []
    start = slices.start
    while start < slices.stop:
        size = SLICES
        while start % size or start + size > slices.stop:
            size //= 2
        ranges.append(range(start, start + size))
        start += size
    return ranges


def identity(options: Options, source: Source) -> dict[str, Any]:
    """Return the fields that identify a training; the path of the run is not one."""
    entry = source.as_json()
    of_options = options.model_dump(mode="json", exclude_defaults=True)
    return {**of_options, **{key: entry[key] for key in ("recipe", "column", "parts")}}


def refuse_other(
    folder: Path, what: str, existing: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Raise UserError if the file `what` in `folder` belongs to another training."""
    names = [name for name in {**expected, **existing} if existing.get(name) != expected.get(name)]
    if names:
        differences = listed(
            f"{name} {existing.get(name)} and not {expected.get(name)}" for name in names
        )
        raise UserError(
            f"{folder}: the {what} there is of another training ({differences}); name another "
            "--output, or delete this folder."
        )


def refuse_other_folder(folder: Path) -> None:
    """Raise UserError if `folder` has files that are not an autoencoder's."""
    cards.refuse_other_folder(
        folder,
        lambda name: name in FILES or name[0] == ".",
        "name a folder, as in saes/NAME",
        "of no autoencoder; name another --output, as in saes/NAME",
    )


def write_config(path: Path, options: Options, width: int, model: str, hook: str) -> None:
    """Write cfg.json in the format of SAELens 6 (`SAEConfig` in sae_lens/saes/sae.py); `model` and
    `hook` are the network and its hook point, or ""."""
    config: dict[str, Any] = {
        "architecture": ARCHITECTURES[options.kind],
        "d_in": width,
        "d_sae": options.features,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        # Without a version, SAELens reads the keys with their meanings in version 5.
        "metadata": {"sae_lens_version": "6.54.0", "sae_lens_training_version": None},
    }
    names = {"model_name": model, "hook_name": hook}
    config["metadata"] |= {key: name for key, name in names.items() if name}
    if options.kind == "topk":
        config |= {"k": options.k, "rescale_acts_by_decoder_norm": False}
    write_json(path, config)


def read(folder: Path) -> tuple[Card, dict[str, Any]]:
    """Return the card and the tensors of the autoencoder in `folder`.

    Raises:
        UserError: the folder has no trained autoencoder.
        IntegrityError: a file is damaged or was changed.
    """
    from safetensors.torch import load_file

    missing = (
        f"there is no trained autoencoder here, as there is no {CARD}; name the folder that "
        "`featuremill sae train` came to its end with."
    )
    return cards.read(folder, Card, CARD, WEIGHTS, missing), load_file(folder / WEIGHTS)
