"""The `options` of the workload geneformer."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, model_validator

from featuremill.workload import Kind, OptionFile, OptionWeights
from featuremill.workload.networks import NetworkOptions
from featuremill.workloads.encoder.options import Options as EncoderOptions

ALL = "all"


class Options(NetworkOptions):
    """Which cells, which Geneformer, and which perturbations."""

    PACKAGES = MappingProxyType(
        dict.fromkeys(("torch", "safetensors", "transformers"), "featuremill[geneformer]")
    )

    model: OptionWeights
    """The folder of a Geneformer from Hugging Face: `config.json` and the weights
    (`model.safetensors` or `pytorch_model.bin`). Code in it is never run."""
    vocabulary: OptionFile
    """The file with the token of each gene (Ensembl id): JSON, or Geneformer's pickle
    (`token_dictionary….pkl`), of which only texts and numbers are read."""
    medians: OptionFile
    """The file with the median of each gene's nonzero expression: JSON, or Geneformer's pickle
    (`gene_median_dictionary….pkl`)."""
    gene_mapping: OptionFile | None = None
    """The file that maps ids of genes, such as older ones, to those of the vocabulary: JSON, or
    Geneformer's pickle (`ensembl_mapping_dict….pkl`). Counts of genes with the same id are added
    up. If not given, two genes of one id are refused."""
    version: Literal["auto", "V1", "V2"] = "auto"
    """How a cell becomes tokens: `V1` takes 2,048 genes, `V2` 4,094 between `<cls>` and `<eos>`.
    `auto` follows from the positions of the model, 2,048 or 4,096."""
    counts: str = Field(default="X", pattern=r"^(X|raw|layers/[^/]+)$")
    """The place of the counts in the inputs (.h5ad): `X`, `raw` (raw.X, with the genes of raw.var),
    or `layers/NAME`."""
    gene_column: str = ""
    """Column of var with the genes' Ensembl ids. If not given, `ensembl_id`, else `gene_ids`, else
    the names of the genes."""
    perturb: Literal["none", "delete", "overexpress"] = "none"
    """The perturbation: `none` computes the cell's vector; `delete` removes a gene's token and
    `overexpress` moves it to the front, and both compute how far the cell's vector turns."""
    genes: Literal["all"] | tuple[str, ...] = "all"
    """The genes to perturb: a list of Ensembl ids, or `all` genes among the cell's tokens."""
    together: bool = False
    """Perturb all `genes` of the list at once, as Geneformer does with a list, in cells that have
    all of them. If not, each gene by itself."""
    shift: Literal["auto", "genes", "pooled"] = "auto"
    """What `cosine` compares: `pooled`, the vectors of the cell and the perturbed cell; `genes`,
    each unperturbed gene with itself (the mean over these genes). `auto` is Geneformer's own:
    `genes` for V1, `pooled` for V2 and where `pool` is set."""
    states: OptionFile | None = None
    """Vectors of states, such as the mean vector of healthy cells: JSON with a name and a list of
    numbers each. Shifts then include how far the cell's vector turns towards each state."""
    layers: tuple[int, ...] = Field(default=(-2,), min_length=1)
    """The layers of the vectors; several only without perturbations. 0 is the embedding, -1 the
    last layer. Geneformer's own default is the last but one (its `emb_layer` -1; its 0 is -1
    here)."""
    pool: tuple[Literal["auto", "mean", "cls"], ...] = Field(default=("auto",), min_length=1)
    """A cell's vector: the `mean` over the tokens of its genes, the vector of `cls` (V2 only), or
    both without perturbations. `auto` is Geneformer's own: `cls` for V2, `mean` for V1."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse contradictory options and options without effect."""
        for name in ("genes", "together", "shift", "states"):
            self._refuse_idle(name, self.perturb == "none", "perturb: none")
        self._refuse_idle("together", self.genes == ALL, "genes: all")
        if self.perturb != "none" and len(self.layers) * len(set(self.pool)) > 1:
            raise ValueError("perturb is of one vector: give one layer and one pool")
        if self.genes != ALL and len(set(self.genes)) < max(1, len(self.genes)):
            raise ValueError("genes: name one or several, each once")
        if "auto" in self.pool and len(self.pool) > 1:
            raise ValueError("pool: auto excludes the others")
        return self

    def delivers(self) -> set[Kind]:
        """Return the kind of values: a vector a cell, or a list of shifts."""
        return {"pooled"} if self.perturb == "none" else {"table"}

    @property
    def of_encoder(self) -> EncoderOptions:
        """The resolved options with which the workload encoder computes these vectors."""
        return EncoderOptions(
            model=self.model,
            alphabet="proteins",  # no effect on tokens
            layers=self.layers,
            pool=tuple(pool for pool in self.pool if pool != "auto") or ("mean",),
            dtype=self.dtype,
            letters_per_token=1,
        )
