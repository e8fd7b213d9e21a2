"""What a config may set under `options` for the workload geneformer."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, model_validator

from featuremill.workload import Kind, OptionFile, OptionWeights
from featuremill.workload.networks import NetworkOptions
from featuremill.workloads.encoder.options import Options as EncoderOptions

ALL = "all"


class Options(NetworkOptions):
    """Which cells, which Geneformer, and what is done to the cells' genes."""

    PACKAGES = MappingProxyType(
        dict.fromkeys(("torch", "safetensors", "transformers"), "featuremill[geneformer]")
    )

    model: OptionWeights
    """The folder of a Geneformer as Hugging Face has it: `config.json` and the weights
    (`model.safetensors` or `pytorch_model.bin`). Code in it is never run."""
    vocabulary: OptionFile
    """The file that gives each gene (Ensembl id) its token: JSON, or the pickle that Geneformer
    comes with (`token_dictionary….pkl`), of which nothing but texts and numbers is built."""
    medians: OptionFile
    """The file that gives each gene the median of its expression where it is not zero: JSON, or the
    pickle that Geneformer comes with (`gene_median_dictionary….pkl`)."""
    gene_mapping: OptionFile | None = None
    """The file that gives ids of genes, such as older ones, the id that the vocabulary has: JSON,
    or the pickle that Geneformer comes with (`ensembl_mapping_dict….pkl`). Counts of genes that get
    the same id are added up. If not given, two genes of one id are refused."""
    version: Literal["auto", "V1", "V2"] = "auto"
    """How a cell becomes tokens: `V1` takes 2,048 genes, `V2` 4,094 between `<cls>` and `<eos>`.
    `auto` goes by the positions that the model has, 2,048 or 4,096."""
    counts: str = Field(default="X", pattern=r"^(X|raw|layers/[^/]+)$")
    """Where the inputs (.h5ad) hold the counts: `X`, `raw` (raw.X, with the genes of raw.var), or
    `layers/NAME`."""
    gene_column: str = ""
    """Column of var that holds the genes' Ensembl ids. If not given, `ensembl_id`, else `gene_ids`,
    else the names of the genes."""
    perturb: Literal["none", "delete", "overexpress"] = "none"
    """What is done to one gene after the other: `none` delivers the cell's vector, `delete` takes
    the gene's token away, `overexpress` moves it to the front; these deliver how far the cell's
    vector turns."""
    genes: Literal["all"] | tuple[str, ...] = "all"
    """Which genes are perturbed: a list of Ensembl ids, or `all` that a cell's tokens hold."""
    together: bool = False
    """Perturb all `genes` of the list at once, as Geneformer does with a list, in cells that have
    all of them. If not, each gene by itself."""
    shift: Literal["auto", "genes", "pooled"] = "auto"
    """What the `cosine` of a perturbation is: `pooled`, of the cell's vector with that of the
    perturbed cell; `genes`, the mean over the genes that are not perturbed of each gene's cosine
    with itself. `auto` is what Geneformer itself takes: `genes` for V1, `pooled` for V2 and where
    `pool` is set."""
    states: OptionFile | None = None
    """Vectors of states, such as the mean vector of healthy cells: JSON, a name and a list of
    numbers each. Shifts then also say how far the cell's vector turns towards each state."""
    layers: tuple[int, ...] = Field(default=(-2,), min_length=1)
    """Layers that vectors are made of, one or, without perturbations, several: 0 is the embedding,
    -1 the last one. Geneformer's own default is the last but one (its `emb_layer` -1; its 0 is -1
    here)."""
    pool: tuple[Literal["auto", "mean", "cls"], ...] = Field(default=("auto",), min_length=1)
    """A cell's vector: the `mean` over the tokens of its genes, that of `cls` (V2 only), or both,
    where nothing is perturbed. `auto` is what Geneformer itself takes: `cls` for V2, `mean` for
    V1."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse what contradicts itself and what would have no effect."""
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
        """Return what comes out: a vector a cell, or a list of shifts."""
        return {"pooled"} if self.perturb == "none" else {"table"}

    @property
    def of_encoder(self) -> EncoderOptions:
        """The options, resolved ones, by which the workload encoder computes these vectors."""
        return EncoderOptions(
            model=self.model,
            alphabet="proteins",  # of no effect on tokens
            layers=self.layers,
            pool=tuple(pool for pool in self.pool if pool != "auto") or ("mean",),
            dtype=self.dtype,
            letters_per_token=1,
        )
