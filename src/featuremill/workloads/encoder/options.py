"""What a config may set under `options` for the workload encoder."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, model_validator

from featuremill.inputs import SequenceOptions
from featuremill.workload import OptionFile, OptionWeights
from featuremill.workload.networks import ResidueOptions

__all__ = ["Options"]
Pool = Literal["mean", "mean_all", "max", "std", "cls", "last", "none"]


class Options(ResidueOptions, SequenceOptions):
    """Which features of which encoder are computed, and how."""

    EXECUTION = (
        ResidueOptions.EXECUTION
        | SequenceOptions.EXECUTION
        | {"letters_per_token", "structure_column", "text_column"}
    )
    POOLS = ("mean", "mean_all", "max", "std", "cls", "last")
    WHOLE_POOLS = frozenset({"mean_all", "cls", "last"})
    PACKAGES = MappingProxyType(
        dict.fromkeys(("torch", "safetensors", "transformers"), "featuremill[encoder]")
    )

    model: OptionWeights
    """The folder of the encoder as Hugging Face has it: `config.json`, the weights
    (`model.safetensors`, or `pytorch_model.bin`, one or in parts) and the vocabulary
    (`tokenizer.json`, `vocab.txt` or `spiece.model`). A name on Hugging Face, such as
    `Rostlab/prot_bert`, is its folder in the cache of `hf download`. Code in it is never run, and
    what is in it besides counts for its digest alone."""
    pool: tuple[Pool, ...] = Field(default=("mean",), min_length=1)
    """One vector a record, made by `mean` (over the sequence's own tokens), `mean_all` (over the
    special ones as well), `max` and `std` (the largest number and the standard deviation, of n,
    over the own tokens), `cls` (the vector of the special token at the beginning), `last` (that of
    the last token, which has seen all others in a causal network), several of these, or `none`
    (only together with `per_residue`)."""
    per_residue: bool = False
    """Also deliver one vector for each of the sequence's own tokens: residues of proteins, k-mers
    or what the tokenizer makes of nucleotides."""
    long: Literal["truncate", "refuse", "full"] = "truncate"
    """What happens to records of more than `max_residues`: `truncate` keeps the first ones,
    `refuse` lists them among the refused, `full` computes them whole (not where the network has a
    table of positions, which ends)."""
    max_residues: int | None = Field(default=None, ge=1)
    """Residues (amino acids or bases) of a record that the network sees. If not given, as many as
    its positions hold: 1022 for ESM-1b, 510 for a BERT of letters, 515 for DNABERT-1 of 6-mers,
    5994 for the Nucleotide Transformer 1; where these have no end, what it was trained with: 1022
    for ESM-2, 2046 for AMPLIFY, 4095 for gLM2, 12282 for the Nucleotide Transformer 2; where the
    config does not say that, what 1,024 tokens hold: 1023 for a T5. Records that are computed with
    more than the network was trained with get a note."""
    alphabet: Literal["proteins", "nucleotides", "texts"]  # type: ignore[assignment]
    """What the inputs are: `proteins`, `nucleotides` (DNA or RNA, with U read as T), or `texts`:
    rows of tables, and .txt files, each of which is one text, for a network whose folder has a
    tokenizer.json."""
    chat: bool = False
    """With `alphabet: texts`: each text is one message of a user in the chat template of the
    folder, up to where the reply would begin. `mean`, `max`, `std` and `per_residue` are then of
    the text's own tokens, `mean_all` of all, and `last` is the token before the reply."""
    text_column: str = "text"
    """With `alphabet: texts`: the column of tables that holds them."""
    max_tokens: int | None = Field(default=None, ge=1)
    """With texts, and in causal networks whose tokens have any length: tokens of a record that the
    network sees, special ones included. If not given, as many as its positions hold or it was
    trained with, and 4,096 at most. `long` says what happens to records of more."""
    structures: OptionFile | None = None
    """For SaProt: FASTA or a table of 3Di letters (Foldseek's), under the ids of the inputs. A
    record without one gets `#` for each residue, and a note. Inputs of residues and 3Di letters in
    turns (`MdKpTv`) need none."""
    structure_column: str = ""
    """With `structures`: the column of a table that holds the letters. If not given, it is found as
    `sequence_column` is."""
    prefix: str = ""
    """The token in front of each sequence. If not given, what the authors have there for features:
    `[NLU]` for Ankh 3 (also `[S2S]`), `<AA2fold>` for ProstT5, `<+>` for gLM2 (`<->`: the other
    strand). With `<fold2AA>`, ProstT5 reads 3Di letters in place of residues."""
    letters_per_token: int | None = Field(default=None, ge=1)
    """Letters that a token takes up, roughly; how many records make a batch is reckoned by it. If
    not given, what the vocabulary says: 1 for letters and overlapping k-mers, k for k-mers one
    after the other, 4 for a learned vocabulary."""

    @model_validator(mode="after")
    def _of_structures(self) -> Self:
        """Refuse what has no effect, or no meaning, with structures or without."""
        self._refuse_idle("structure_column", self.structures is None, "no structures")
        self._refuse_idle("max_tokens", self.long == "full", "long: full")
        is_of_letters = self.alphabet != "texts"
        for name in ("text_column", "chat"):
            self._refuse_idle(name, is_of_letters, f"alphabet: {self.alphabet}")
        for name in ("max_residues", "sequence_column", "regions"):
            self._refuse_idle(name, not is_of_letters, "alphabet: texts")
        if self.structures and self.alphabet != "proteins":
            raise ValueError(
                "structures are of proteins; leave them out, or set alphabet: proteins"
            )
        return self

    def row_columns(self) -> Mapping[str, type] | None:
        """Return the columns of tables whose rows are records as they are, with their types."""
        return {self.text_column: str} if self.alphabet == "texts" else None
