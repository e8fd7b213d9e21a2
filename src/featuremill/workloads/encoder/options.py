"""What a config may set under `options` for the workload encoder."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from featuremill.inputs import SequenceOptions
from featuremill.workload import Kind, OptionWeights

Pool = Literal["mean", "mean_all", "cls", "none"]
POOLS: tuple[Pool, ...] = ("mean", "mean_all", "cls")


class Options(SequenceOptions):
    """Which features of which encoder are computed, and how."""

    EXECUTION = SequenceOptions.EXECUTION | {"batch_tokens", "letters_per_token"}
    PACKAGES = MappingProxyType(
        dict.fromkeys(("torch", "safetensors", "transformers"), "featuremill[encoder]")
    )

    model: OptionWeights
    """The folder of the encoder as Hugging Face has it: `config.json`, the weights
    (`model.safetensors`, or `pytorch_model.bin`, one or in parts) and the vocabulary
    (`tokenizer.json`, `vocab.txt` or `spiece.model`). Code in it is never run, and what is in it
    besides counts for its digest alone."""
    layers: tuple[int, ...] = Field(default=(-1,), min_length=1)
    """Layers whose representations are delivered, one or several: 0 is the embedding, 1 the first
    block, -1 the last one (with the final norm applied, where the network has one)."""
    pool: tuple[Pool, ...] = Field(default=("mean",), min_length=1)
    """One vector a record, made by `mean` (over the sequence's own tokens), `mean_all` (over the
    special ones as well), `cls` (the vector of the special token at the beginning), several of
    these, or `none` (only together with `per_residue`)."""
    per_residue: bool = False
    """Also deliver one vector for each of the sequence's own tokens: residues of proteins, k-mers
    or what the tokenizer makes of nucleotides."""
    output_dtype: Literal["float16", "float32"] = "float16"
    """Number type of the vectors per residue. Pooled vectors are always float32."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Precision of the matrix products; the rest is fp32. `auto` takes bf16 where the device has
    it, else fp16 on a GPU and fp32 on a CPU."""
    long: Literal["truncate", "refuse", "full"] = "truncate"
    """What happens to records of more than `max_residues`: `truncate` keeps the first ones,
    `refuse` lists them among the refused, `full` computes them whole (not where the network has a
    table of positions, which ends)."""
    max_residues: int | None = Field(default=None, ge=1)
    """Residues (amino acids or bases) of a record that the network sees. If not given, as many as
    its positions hold: 1022 for ESM-1b, 510 for a BERT of letters, 515 for DNABERT-1 of 6-mers,
    5994 for the Nucleotide Transformer; where these have no end, what 1,024 tokens hold: 1023 for a
    T5, 1022 for ESM-2, 4088 for a learned vocabulary of bases."""
    batch_tokens: int | None = Field(default=None, ge=1, le=131_072)
    """Tokens that are computed together, filling included. If not given: 128 for each
    multiprocessor of a GPU, 4096 on a CPU. Parts that are finished or begun keep the number they
    have."""
    letters_per_token: int | None = Field(default=None, ge=1)
    """Letters that a token takes up, roughly; how many records make a batch is reckoned by it. If
    not given, what the vocabulary says: 1 for letters and overlapping k-mers, k for k-mers one
    after the other, 4 for a learned vocabulary."""

    @field_validator("layers", "pool", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | str) else value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse what contradicts itself and what would have no effect."""
        if "none" in self.pool and len(self.pool) > 1:
            raise ValueError("pool: none excludes the others")
        if "none" in self.pool and not self.per_residue:
            raise ValueError("pool: none leaves nothing to deliver; set per_residue: true with it")
        self._refuse_idle("max_residues", self.long == "full", "long: full")
        self._refuse_idle("output_dtype", not self.per_residue, "per_residue: false")
        return self

    def _refuse_idle(self, name: str, is_idle: bool, because: str) -> None:
        if is_idle and getattr(self, name) != type(self).model_fields[name].default:
            raise ValueError(f"{name} has no effect with {because}; leave it out")

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools to compute, in the order of their columns."""
        return tuple(pool for pool in POOLS if pool in self.pool)

    def delivers(self) -> set[Kind]:
        """Return what comes out: vectors of a record, of each of its tokens, or both."""
        kinds: dict[Kind, bool] = {"pooled": bool(self.pools), "per_residue": self.per_residue}
        return {kind for kind, is_there in kinds.items() if is_there}
