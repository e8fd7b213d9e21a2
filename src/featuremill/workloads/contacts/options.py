"""The `options` of the workload contacts."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from featuremill.inputs import TableOptions
from featuremill.workload import Kind, OptionFile
from featuremill.workloads import esm2
from featuremill.workloads.contacts import sources


class Options(TableOptions):
    """The network, and the contacts and attention to deliver."""

    EXECUTION = TableOptions.EXECUTION | {"batch_tokens"}
    PACKAGES = MappingProxyType(dict(esm2.Options.PACKAGES))

    model: str
    """The network: an ESM-2 of Meta's such as `esm2_t33_650M_UR50D`, or `esm1b_t33_650M_UR50S`
    (downloaded once, with its regression), the `.pt` of fair-esm with
    `<name>-contact-regression.pt` beside it, or the folder of a model from Hugging Face that has a
    `contact_head`. `mill_t6_8M` and ESM-1v have no regression: without `regression` they give
    attention alone."""
    regression: OptionFile | None = None
    """A file with the regression: `contact_head.regression.weight`, a number for each head of each
    layer, and `.bias`, as fair-esm's `<name>-contact-regression.pt` has them, or the same as
    `.safetensors`. If not given: that file beside a `.pt`, else what the weights hold."""
    pairs: Literal["above", "top", "none"] = "above"
    """Which pairs of residues are listed, the likeliest first: those with a probability `above`
    `min_probability`, or the `top` ones, `pairs_per_residue` times as many as the protein has
    residues."""
    min_probability: float = Field(default=0.5, ge=0, le=1)
    """With `pairs: above`: the least probability of a pair."""
    pairs_per_residue: float = Field(default=1.0, gt=0)
    """With `pairs: top`: 1 lists L pairs of a protein of L residues, 0.2 lists L/5."""
    min_separation: int = Field(default=6, ge=1)
    """Least distance |i - j| along the chain of a listed pair."""
    maps: bool = True
    """Also deliver the whole matrix of probabilities, residues × residues: 2 bytes × L² in float16,
    which is 2 MB for 1,000 residues."""
    attention_of: tuple[str, ...] = ()
    """Ids or accessions of proteins whose attention is delivered as well, of each head of each
    layer: layers × heads × L² numbers, which is 1.3 GB in float16 for 1,000 residues of the 650M
    network, and some three times that in memory."""
    output_dtype: Literal["float16", "float32"] = "float16"
    """Number type of matrices and attention."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Precision of the matrix products of the network; attention and the regression are fp32.
    `auto` takes bf16 where the device has it, else fp16 on a GPU and fp32 on a CPU."""
    long: Literal["truncate", "full"] = "truncate"
    """Proteins of more than `max_residues`: `truncate` keeps the first residues, `full` computes
    the whole protein. There are no windows: residues of two windows would have no contacts."""
    max_residues: int = Field(default=1022, ge=1)
    """Residues that the network sees; ESM-2 was trained with up to 1022, and an ESM-1b or ESM-1v
    has positions for no more."""
    batch_tokens: int | None = Field(default=None, ge=1, le=131_072)
    """Tokens that are computed together, special ones included. If not given: 128 for each
    multiprocessor of a GPU, 4096 on a CPU."""

    @field_validator("attention_of", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _with_the_file_beside(cls, raw: Any) -> Any:
        """Name the regression that lies beside the weights, so that its content counts."""
        if not isinstance(raw, dict) or raw.get("regression"):
            return raw
        wants_none = raw.get("pairs") == "none" and raw.get("maps") is False
        beside = sources.beside(str(raw.get("model")))
        return raw if wants_none or beside is None else raw | {"regression": str(beside)}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse what contradicts itself, what has no effect and what cannot be had."""
        self._refuse_idle("min_probability", self.pairs != "above", f"pairs: {self.pairs}")
        self._refuse_idle("pairs_per_residue", self.pairs != "top", f"pairs: {self.pairs}")
        self._refuse_idle("min_separation", self.pairs == "none", "pairs: none")
        self._refuse_idle("max_residues", self.long == "full", "long: full")
        no_matrix = not (self.maps or self.attention_of)
        self._refuse_idle("output_dtype", no_matrix, "maps: false")
        self._refuse_idle("regression", not self.needs_regression, "pairs: none and maps: false")
        if not self.needs_regression and not self.attention_of:
            raise ValueError(
                "pairs: none and maps: false leave nothing to deliver; set attention_of with them"
            )
        has_none = sources.has_none(self.model)
        if has_none and self.needs_regression and not self.regression:
            raise ValueError(
                f"{self.model} has no regression for contacts; set model: esm2_t33_650M_UR50D, or "
                "set pairs: none and maps: false with attention_of, for its attention alone"
            )
        return self

    @property
    def needs_regression(self) -> bool:
        """Whether contacts are delivered, and not attention alone."""
        return self.maps or self.pairs != "none"

    def delivers(self) -> set[Kind]:
        return {"table"}

    @property
    def of_esm2(self) -> esm2.Options:
        """The options by which the workload esm2 reads these proteins and loads this network."""
        shared = set(type(self).model_fields) & set(esm2.Options.model_fields)
        not_of_it = {"output_dtype"}
        return esm2.Options.model_validate(self.model_dump(include=shared - not_of_it))

    def seen(self, num_residues: int) -> int:
        """Return how many residues of a protein the network sees."""
        return num_residues if self.long == "full" else min(num_residues, self.max_residues)
