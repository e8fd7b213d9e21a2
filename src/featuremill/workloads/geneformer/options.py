"""The `options` of the workload geneformer."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, model_validator

from featuremill.workload import Kind, OptionFile, OptionWeights
from featuremill.workload.networks import LayerOptions, NetworkOptions
from featuremill.workloads.encoder.options import Options as EncoderOptions

ALL = "all"


class Options(NetworkOptions, LayerOptions):
    """Which cells, which Geneformer, and which perturbations."""

    EXECUTION = NetworkOptions.EXECUTION | LayerOptions.EXECUTION
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
    """The genes to perturb, or with `gene_vectors` those whose vectors are delivered: a list of
    Ensembl ids, or `all` genes among the cell's tokens."""
    together: bool = False
    """Perturb all `genes` of the list at once, as Geneformer does with a list, in cells that have
    all of them. If not, each gene by itself."""
    overexpress_absent: bool = False
    """Overexpress `genes` of the list in cells without them as well, as Geneformer does with a
    list: they come first, and what no longer fits into the model is cut from the cell, before and
    after. If not, these cells have NaN."""
    anchor: str = ""
    """Delete this gene (Ensembl id) together with each of `genes`, in cells that have both:
    Geneformer's `anchor_gene`."""
    gene_shifts: bool = False
    """Also compute how far the vector of each unperturbed gene of the cell turns, as Geneformer's
    `cell_and_gene` and `cls_and_gene` do. The output `gene_shifts` has the means."""
    gene_vectors: bool = False
    """Without perturbations: also deliver a vector for each gene of the cell, or for each of
    `genes`, as Geneformer's `emb_mode` gene does. The output `gene_embeddings` has the means over
    cells."""
    output_dtype: Literal["float16", "float32"] = "float16"
    """Number type of the vectors of genes. The means over cells are always float32."""
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
        for name in ("together", "anchor", "gene_shifts", "shift", "states"):
            self._refuse_idle(name, self.perturb == "none", "perturb: none")
        is_unperturbed = self.perturb == "none" and not self.gene_vectors
        self._refuse_idle("genes", is_unperturbed, "perturb: none")
        is_overexpressed = self.perturb == "overexpress"
        self._refuse_idle("overexpress_absent", not is_overexpressed, f"perturb: {self.perturb}")
        for name in ("together", "overexpress_absent"):
            self._refuse_idle(name, self.genes == ALL, "genes: all")
        if self.anchor and (is_overexpressed or self.together or self.anchor in self.genes):
            raise ValueError(
                "anchor is deleted together with each other gene: set perturb: delete, leave out "
                "together, and leave the anchor out of genes"
            )
        self._refuse_idle("gene_vectors", self.perturb != "none", f"perturb: {self.perturb}")
        self._refuse_idle("output_dtype", not self.gene_vectors, "gene_vectors: false")
        if self.perturb != "none" and len(self.layers) * len(set(self.pool)) > 1:
            raise ValueError("perturb is of one vector: give one layer and one pool")
        if self.genes != ALL and len(set(self.genes)) < max(1, len(self.genes)):
            raise ValueError("genes: name one or several, each once")
        if "auto" in self.pool and len(self.pool) > 1:
            raise ValueError("pool: auto excludes the others")
        return self

    def delivers(self) -> set[Kind]:
        if self.perturb != "none":
            return {"table"}
        return {"pooled", "per_residue", "table"} if self.gene_vectors else {"pooled"}

    @property
    def of_encoder(self) -> EncoderOptions:
        """The resolved options with which the workload encoder computes these vectors."""
        return EncoderOptions(
            model=self.model,
            alphabet="proteins",  # no effect on tokens
            layers=self.layers,
            pool=tuple(pool for pool in self.pool if pool != "auto") or ("mean",),
            dtype=self.dtype,
            gpu_layers=self.gpu_layers,
            letters_per_token=1,
        )
