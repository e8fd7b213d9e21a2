"""The config of the workflow from contigs to verdicts (workflow/contigs/Snakefile)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from featuremill import config as configs
from featuremill.base.errors import UserError
from featuremill.config.yaml_lines import Places
from featuremill.step import Section, plain_name
from featuremill.translate.folder import NUCLEOTIDES, PROTEINS

SEQUENCES = {"nucleotides": NUCLEOTIDES, "proteins": PROTEINS}
"""Kinds of runs over a contig's fragments, and the file of each, in the order of a head's features:
VirNucPro has DNA first."""
Several = Annotated[tuple[str, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)]
"""Texts; of a single one, the brackets may be left out."""


class Training(Section):
    """How a head is trained on these contigs."""

    labels: str
    """A CSV, TSV or Parquet table with the contigs' ids."""
    column: str
    """Its column of classes."""
    features: Several = ()
    """Which vectors, where runs have several; one for each run."""
    group: str | None = None
    """A column of groups that folds keep whole. If not given, each contig by itself."""
    kind: Literal["logistic", "mlp"] = "logistic"
    """Logistic regression, or VirNucPro's network."""


class ContigsConfig(Section):
    """Contigs, what is computed of their fragments, and the head that judges these."""

    run: str
    """Name of it all: the runs are `<run>-proteins` and `<run>-nucleotides`."""
    contigs: Several = Field(min_length=1)
    """File or files with the contigs or reads: FASTA, FASTQ, GenBank, tables."""
    translate: str = "--by chunks"
    """How they are cut, in the words of `featuremill translate`; with `files`, `--by virnucpro`
    where nothing is said."""
    proteins: dict[str, Any]
    """The config of the run over the fragments' proteins, without run and inputs."""
    nucleotides: dict[str, Any] | None = None
    """That of the run over their nucleotides, where the head takes such features, too."""
    head: str
    """Name of the head: `heads/<head>`, made by `featuremill head`, or here by `train`. Or the path
    of its folder, with a / in it, where it is there already."""
    any_recipe: bool = False
    """Whether the head takes features of any recipe, as one must that was imported."""
    train: Training | None = None
    """How the head is made of these contigs; none where it is there already."""
    verdict: str = ""
    """How verdicts are reached, in the words of `featuremill verdict`."""
    files: Literal["virnucpro", "virnucpro_predictions"] | None = None
    """Also VirNucPro's files: all of them, or those without sequences and features."""

    @field_validator("run")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        return plain_name(name)

    @field_validator("head")
    @classmethod
    def _plain_last_name(cls, path: str) -> str:
        plain_name(Path(path).name)
        return path

    @model_validator(mode="after")
    def _fitting(self) -> ContigsConfig:
        if self.train and "/" in self.head:
            raise ValueError("head: with train it is a name, as it is made in heads/<head>")
        if self.files and not {"virnucpro", "chunks"} & set(self.translate.split()):
            raise ValueError("files: VirNucPro's are of windows; translate: --by virnucpro")
        return self

    @model_validator(mode="before")
    @classmethod
    def _cut_as_virnucpro(cls, config: Any) -> Any:
        """Take VirNucPro's own fragments for its files, where the config says nothing of them."""
        if isinstance(config, dict) and config.get("files") and "translate" not in config:
            return {**config, "translate": "--by virnucpro"}
        return config

    @property
    def kinds(self) -> list[str]:
        """The kinds of runs there are."""
        return [kind for kind in SEQUENCES if getattr(self, kind) is not None]

    @property
    def runs(self) -> list[str]:
        """The runs' folders, in the order of the head's features."""
        return [f"results/{self.run}-{kind}" for kind in self.kinds]

    @property
    def head_folder(self) -> str:
        """Where the head is."""
        return self.head if "/" in self.head else f"heads/{self.head}"

    @property
    def head_name(self) -> str:
        """What files made with the head are called by."""
        return Path(self.head).name

    @property
    def translated(self) -> str:
        """The folder of fragments."""
        return f"translated/{self.run}"

    @property
    def predictions(self) -> str:
        """The table of the fragments' scores."""
        return f"predictions/{self.head_name}/{self.run}.tsv"

    @property
    def verdicts(self) -> str:
        """The table of the contigs' verdicts."""
        return f"verdicts/{self.run}.tsv"

    def config_of(self, kind: str) -> dict[str, Any]:
        """Return the config of the run over one kind of sequences."""
        inputs = f"{self.translated}/{SEQUENCES[kind]}"
        return {**getattr(self, kind), "run": f"{self.run}-{kind}", "inputs": inputs}

    @property
    def heads(self) -> dict[str, Any]:
        """What workflow/rules/head.smk is told of the head."""
        told: dict[str, Any] = {"predict": {self.run: self.runs}, "any_recipe": self.any_recipe}
        told["folder"] = self.head_folder
        if self.train:
            told |= {"runs": self.runs, "fragments": self.translated}
            told |= self.train.model_dump(mode="json", exclude_none=True)
        return {self.head_name: told}


def validate(raw: Mapping[str, Any], source: str, places: Places) -> ContigsConfig:
    """Return the validated config, that of each run as well.

    Raises:
        UserError: names each wrong key, as `featuremill.config.validate` does.
    """
    if isinstance(train := raw.get("train"), Mapping):
        configs.checked(Training, train, ("train",), dict, source, places)
    found = configs.checked(ContigsConfig, raw, (), dict, source, places)
    for kind in found.kinds:
        inner = {key[1:]: place for key, place in places.items() if key[0] == kind and key[1:]}
        checked = configs.validate(found.config_of(kind), f"{source}: {kind}", inner)
        configs.check_outputs(checked, f"{source}: {kind}")
    return found


def refuse_missing(asked: ContigsConfig, source: str, places: Places) -> None:
    """Refuse files that are not there.

    Raises:
        UserError: names the first.
    """
    files: list[tuple[tuple[str, ...], str]] = [(("contigs",), path) for path in asked.contigs]
    if asked.train:
        files.append((("train", "labels"), asked.train.labels))
    else:
        files.append((("head",), f"{asked.head_folder}/head.json"))
    for key, path in files:
        if not Path(path).is_file():
            where = configs.place_of(source, places, key)
            raise UserError(f"{where}: {'.'.join(key)}: {path}: there is no such file; name yours.")
