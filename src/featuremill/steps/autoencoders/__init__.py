"""The step `autoencoders`: train sparse autoencoders on features, and encode features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from featuremill.kit.environment import Variable
from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.tables import words_of
from featuremill.step import (
    Command,
    Name,
    Problems,
    Product,
    Project,
    Section,
    Several,
    State,
    refused,
    stated,
)
from featuremill.steps.autoencoders.progress import LOCK, latest

KEY = "autoencoders"
ABOUT = (
    "Sparse autoencoders by name, each trained on the vectors of a set of features "
    "(docs/autoencoders.md). They go to `results/<run>/autoencoders/<name>/`."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "sae.yaml"
PACKAGES = dict.fromkeys(("safetensors", "torch"), "featuremill[sae]")
COMMANDS = {
    "sae": Command(
        "train a sparse autoencoder on a run's features, apply it, and report on it",
        "featuremill.steps.autoencoders.command",
    )
}
DELIVERED = ("sae_weights.safetensors", "cfg.json", "sae.json", "features.tsv", "report.html")
"""The files of an autoencoder; the page comes last."""
_RANKS = "Set by `torchrun` for the processes of `featuremill sae train`."
TORCHELASTIC_RUN_ID = Variable("TORCHELASTIC_RUN_ID", _RANKS)
RANK = Variable("RANK", _RANKS)
LOCAL_RANK = Variable("LOCAL_RANK", _RANKS)
WORLD_SIZE = Variable("WORLD_SIZE", _RANKS)
TORCHELASTIC_ERROR_FILE = Variable("TORCHELASTIC_ERROR_FILE", _RANKS)
VARIABLES = (TORCHELASTIC_RUN_ID, RANK, LOCAL_RANK, WORLD_SIZE, TORCHELASTIC_ERROR_FILE)
OPTIONS = (
    *("kind", "features", "k", "sparsity", "bandwidth", "batch", "steps", "seed"),
    *("learning_rate", "dead_after", "held_out", "dtype"),
)
"""The keys that determine the values, besides the vectors."""
Count = Annotated[int, Field(ge=1, strict=True)]


class Autoencoder(Section):
    """One autoencoder, and its training."""

    of: str | None = None
    """The set of features, or the folder of a finished run. Required if there are several sets."""
    vectors: str | None = None
    """The column of vectors, per record or per residue. Required if there are several columns."""
    features: Count = 4096
    """Features of the autoencoder; usually a multiple of the vectors' width."""
    kind: Literal["topk", "relu", "jumprelu"] = "topk"
    """The active features: the `k` largest (`topk`), all above 0, with a penalty on their sum
    (`relu`), or all above a threshold, with a penalty on their count (`jumprelu`)."""
    k: Count | None = None
    """`topk`: active features per vector; 32 if not given."""
    sparsity: float | None = Field(default=None, gt=0)
    """`relu` and `jumprelu`: weight of the penalty relative to the squared error, for vectors of
    mean length sqrt(width); 1 if not given. Higher values leave fewer features active."""
    bandwidth: float | None = Field(default=None, gt=0)
    """`jumprelu`: width of the range around a threshold whose numbers change it; 0.05 if not
    given."""
    batch: Count = 4096
    """Vectors per step, over all devices."""
    steps: Count = 10_000
    """Steps of the training."""
    seed: int = Field(default=0, ge=0, strict=True)
    """Random seed of the order of vectors, the initial weights and the held-out records."""
    learning_rate: float | None = Field(default=None, gt=0)
    """The learning rate; 2e-4 / sqrt(features / 16384) if not given (Gao et al. 2024)."""
    dead_after: Count = 200
    """Steps without activity after which a feature is dead and has the auxiliary loss."""
    held_out: float = Field(default=0.05, ge=0, lt=1)
    """Share of the records that is not trained on, for the report."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Number type of matrix products; weights and sums are fp32."""
    gpus: Count = 1
    """The number of devices, each with a process: 1 to 8. On CPUs, the number of processes."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Device of the training."""
    threads: Count = 1
    """Threads of each process; the number affects the last digits."""
    checkpoint_minutes: float = Field(default=10.0, gt=0)
    """Minutes between checkpoints."""
    encode: Several = ()
    """Sets of features, or folders of finished runs, to encode. The active features of their
    records are written to `<autoencoder>.<name>.parquet` beside the autoencoder's folder."""

    @property
    def num_gpus(self) -> int:
        """The number of GPUs of the training."""
        return 0 if self.device == "cpu" else self.gpus

    @property
    def words(self) -> list[str]:
        """The options of `featuremill sae train`."""
        return words_of(self.model_dump(exclude={"of", "encode", "gpus"}, exclude_unset=True))


SECTION = dict[Name, Autoencoder]


def folder_of(name: str, project: Project) -> str:
    """Return the folder of an autoencoder."""
    return f"{project.folder}/{KEY}/{name}"


def encoded(autoencoder: Autoencoder, project: Project) -> Mapping[str, str]:
    """Return the runs to encode, by the names of their tables.

    Raises:
        UserError: two runs would have the same name, or a set of features does not exist.
    """
    by_name: dict[str, str] = {}
    for folder in map(project.features_of, autoencoder.encode):
        other = by_name.setdefault(folder.rpartition("/")[2], folder)
        if other != folder:
            raise UserError(f"{other} and {folder} end alike, and so would the names of tables.")
    return by_name


def problems(sections: Mapping[str, Autoencoder], project: Project) -> Problems:
    """Yield the errors that a training would report."""
    from featuremill.steps.autoencoders.card import Options, refuse_other_count

    for name, autoencoder in sections.items():
        options = Options.of(autoencoder.model_dump(include=set(OPTIONS)))
        yield from refused((name, "of"), project.features_of, autoencoder.of)
        yield from refused((name, "encode"), encoded, autoencoder, project)
        yield from refused((name, "gpus"), refuse_other_count, autoencoder.gpus)
        yield from refused((name, "features"), options.check)


def problems_of_files(sections: Mapping[str, Autoencoder], project: Project) -> Problems:
    """Yield errors of missing columns of vectors, or of several columns without a choice."""
    from featuremill.features import chosen

    for name, autoencoder in sections.items():
        features = autoencoder.of or next(iter(project.features))
        if ahead := project.ahead(features):
            arguments = ahead.schema, autoencoder.vectors, features, "vectors:", True
            yield from refused((name, "vectors"), chosen, *arguments)


def products(sections: Mapping[str, Autoencoder], project: Project) -> Sequence[Product]:
    """Return the products of each section: the autoencoder with its page, and encoded tables."""
    all_products = []
    for name, autoencoder in sections.items():
        folder, logs = folder_of(name, project), f"{project.logs}/{KEY}/{name}"
        all_products.append(
            Product(
                f"{KEY}.{name}",
                [f"{folder}/{file}" for file in DELIVERED],
                [f"{project.features_of(autoencoder.of)}/manifest.json"],
                [f"{logs}.train.log", f"{logs}.report.log"],
                [folder],
                partial(latest, Path(folder)),
                config=_options(autoencoder),
                card=partial(_listed, Path(folder)),
                lock=f"{folder}/{LOCK}",
            )
        )
        for table, run in encoded(autoencoder, project).items():
            inputs = [f"{folder}/{DELIVERED[0]}", f"{folder}/sae.json", f"{run}/manifest.json"]
            file, log = f"{folder}.{table}.parquet", f"{logs}.{table}.log"
            all_products.append(Product(f"{KEY}.{name}.{table}", [file], inputs, [log], [file]))
    return all_products


def _options(autoencoder: Autoencoder) -> Mapping[str, Any]:
    """Return the options that determine the values, as in sae.json."""
    from featuremill.steps.autoencoders.card import Options

    settled = Options.of(autoencoder.model_dump(include=set(OPTIONS))).model_dump(mode="json")
    exclude = {"of", "encode", "gpus"}
    return {**autoencoder.model_dump(mode="json", exclude=exclude), **settled}


def _listed(folder: Path) -> State:
    from featuremill.steps.autoencoders.card import CARD, Card

    card = Card.find(folder / CARD)
    return stated(card.options.model_dump(mode="json") if card else {})
