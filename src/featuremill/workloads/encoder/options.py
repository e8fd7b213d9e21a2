"""The options of the workload encoder, their defaults and checks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, model_validator

from featuremill.inputs import SequenceOptions
from featuremill.workload import OptionFile, OptionFolder, OptionWeights, WorkloadOptions
from featuremill.workload.hugging_face import place_of
from featuremill.workload.networks import LayerOptions, ResidueOptions
from featuremill.workloads.encoder import chat

__all__ = ["OF_TABLES", "Options", "StructureOptions"]
Pool = Literal["mean", "mean_all", "max", "std", "cls", "last", "none"]
OF_TABLES = frozenset({"structure_column", "plddt_column", "plddt_mask", "plddt_threshold"})
"""Options that are not part of the recipe: they change the letters of records, and so payloads."""


class StructureOptions(WorkloadOptions):
    """Options for letters of structure: their source, and where they are masked."""

    structures: OptionFile | None = None
    """For SaProt: FASTA or a table with Foldseek's 3Di letters and the ids of the inputs, or the
    output of `foldseek structureto3didescriptor`, with the names of structure files or the
    accessions in them. A record without a structure has `#` for each residue, and a note. Inputs in
    which residues and 3Di letters alternate (`MdKpTv`) need no structures."""
    structure_column: str = ""
    """With `structures`: the table's column of letters. If not given, it is found by its name."""
    plddt_folder: OptionFolder | None = None
    """With `structures`: a folder of structure files (`.pdb`, `.cif`, also with `.gz`), whose
    B-factors are pLDDT. Letters of residues with pLDDT below `plddt_threshold` become `#`, as by
    SaProt's authors."""
    plddt_column: str = ""
    """With `structures`: instead of a folder, the table's column with the pLDDT of each residue,
    separated by spaces or commas."""
    plddt_mask: Literal["alphafold", "always", "never"] = "alphafold"
    """With pLDDT: whether it is applied. `alphafold`, like `auto` of SaProt's authors, applies it
    to files that name AlphaFold, as other B-factors are not pLDDT, and to columns."""
    plddt_threshold: float = Field(default=70.0, ge=0, le=100)
    """With pLDDT: letters of residues below it become `#`."""

    @model_validator(mode="after")
    def _of_plddt(self) -> Self:
        """Refuse options that have no effect or contradict each other."""
        for name in ("structure_column", "plddt_folder", "plddt_column"):
            self._refuse_idle(name, self.structures is None, "no structures")
        has_plddt = bool(self.plddt_folder or self.plddt_column)
        for name in ("plddt_mask", "plddt_threshold"):
            self._refuse_idle(name, not has_plddt, "no plddt_folder and no plddt_column")
        if self.plddt_folder and self.plddt_column:
            raise ValueError("give plddt_folder or plddt_column, not both")
        return self


class Options(StructureOptions, ResidueOptions, LayerOptions, SequenceOptions):
    """The options of the workload encoder."""

    EXECUTION = (
        ResidueOptions.EXECUTION
        | LayerOptions.EXECUTION
        | SequenceOptions.EXECUTION
        | OF_TABLES
        | {"letters_per_token", "text_column"}
        | {"heavy_column", "light_column", "chain_column"}
    )
    POOLS = ("mean", "mean_all", "max", "std", "cls", "last")
    WHOLE_POOLS = frozenset({"mean_all", "cls", "last"})
    PACKAGES = MappingProxyType(
        dict.fromkeys(("torch", "safetensors", "transformers"), "featuremill[encoder]")
    )

    model: OptionWeights
    """The folder of the encoder in Hugging Face's layout: `config.json`, the weights
    (`model.safetensors` or `pytorch_model.bin`, also in several files) and the vocabulary
    (`tokenizer.json`, `vocab.txt` or `spiece.model`). A name on Hugging Face, such as
    `Rostlab/prot_bert`, is its folder in the cache of `hf download`. Code in the folder is never
    run; other files only affect the digest."""
    pool: tuple[Pool, ...] = Field(default=("mean",), min_length=1)
    """The vector of a record: `mean` (over the tokens of the sequence), `mean_all` (also over
    special tokens), `max` and `std` (maximum and standard deviation, divided by n, over the tokens
    of the sequence), `cls` (the vector of the special token at the start), `last` (the vector of
    the last token, which depends on all others in a causal network), several of these, or `none`
    (only together with `per_residue`)."""
    per_residue: bool = False
    """Also deliver one vector for each token of the sequence: a residue of a protein, or a k-mer or
    another token of nucleotides."""
    long: Literal["truncate", "refuse", "full", "split"] = "truncate"
    """How records with more than `max_residues` are computed: `truncate` keeps the first residues,
    `refuse` refuses the records, `full` computes them whole (not with a table of positions, which
    has an end). Without `max_residues`, a T5 computes all records whole. Contigs are divided
    between elements: `truncate` keeps the first elements, and `split` makes the records
    `<id>/window1`, `<id>/window2` and so on."""
    max_residues: int | None = Field(default=None, ge=1)
    """Residues (amino acids or bases) of a record that are computed. If not given, all in a T5
    (ProtT5, ProstT5, Ankh), as by its authors. Otherwise the number of positions of the network:
    1022 for ESM-1b, 510 for a BERT of letters (39998 for ProtBERT, whose table is longer), 515 for
    DNABERT-1 of 6-mers, 5994 for the Nucleotide Transformer 1. Without a limit of positions, the
    length in training: 1022 for ESM-2, 2046 for AMPLIFY, 4095 for gLM2 (4096 tokens of contigs),
    12282 for the Nucleotide Transformer 2; if the config lacks it, the residues of 1,024 tokens.
    Records that are longer than in training get a note."""
    alphabet: Literal["proteins", "nucleotides", "contigs", "texts"]  # type: ignore[assignment]
    """The kind of inputs: `proteins`, `nucleotides` (DNA or RNA; U is read as T), `contigs` of
    proteins and the bases between them, for gLM2 (`<+>MALTK<+>aatttaagg<->MLGID`, or GenBank), or
    `texts`: rows of tables or whole .txt files, for networks with a tokenizer.json."""
    paired: bool = False
    """Records are pairs of antibody chains, for IgBert and IgT5: two columns of a table, two rows
    with the same id (`chain_column`), or records whose ids end in `_H` and `_L`. Pairs with more
    than `max_residues` are refused."""
    heavy_column: str = ""
    """With `paired`: the column of heavy chains in tables. Requires `light_column`."""
    light_column: str = ""
    """With `paired`: the column of light chains in tables."""
    chain_column: str = ""
    """With `paired`: the column of the kind of chain in tables with a row per chain, such as
    `locus` of AIRR (IGH, IGK or IGL). Two rows with the same id are a pair. Requires `id_column`
    (`cell_id` in AIRR) and `sequence_column`."""
    parts: bool = False
    """Also deliver vectors of each element of a contig, `<id>/<element>`, or of each chain of a
    pair, `<id>/heavy` and `<id>/light`, from the computation of the whole record."""
    chat: bool = False
    """With `alphabet: texts`: each text is a user message in the chat template of the folder, up to
    the start of the reply. `mean`, `max`, `std` and `per_residue` are then over the tokens of the
    text, `mean_all` over all tokens, and `last` is the token before the reply."""
    text_column: str = "text"
    """With `alphabet: texts`: the column of the texts in tables."""
    max_tokens: int | None = Field(default=None, ge=1)
    """With texts, and in causal networks with tokens of any length: tokens of a record that are
    computed, with special tokens. If not given, the number of positions or the length in training,
    and at most 4,096. `long` applies to longer records."""
    prefix: str = ""
    """The token before each sequence. If not given, that of the authors for features: `[NLU]` for
    Ankh 3 (also `[S2S]`), `<AA2fold>` for ProstT5, `<+>` for gLM2 (`<->`: the reverse strand). With
    `<fold2AA>`, ProstT5 reads 3Di letters instead of residues."""
    letters_per_token: int | None = Field(default=None, ge=1)
    """Approximate number of letters per token, to estimate the records of a batch. If not given, 1
    for letters and overlapping k-mers, k for k-mers without overlap, and 4 for a learned
    vocabulary."""

    @model_validator(mode="after")
    def _of_structures(self) -> Self:
        """Refuse options that have no effect, or contradict each other."""
        self._refuse_idle("max_tokens", self.long == "full", "long: full")
        is_of_letters = self.alphabet != "texts"
        for name in ("text_column", "chat"):
            self._refuse_idle(name, is_of_letters, f"alphabet: {self.alphabet}")
        for name in ("max_residues", "sequence_column", "regions"):
            self._refuse_idle(name, not is_of_letters, "alphabet: texts")
        self._check_parts()
        if self.structures and self.alphabet != "proteins":
            raise ValueError(
                "structures are of proteins; leave them out, or set alphabet: proteins"
            )
        return self

    def _check_parts(self) -> None:
        """Refuse options about records of several parts that have no effect or contradict."""
        is_contig = self.alphabet == "contigs"
        for name in ("heavy_column", "light_column", "chain_column"):
            self._refuse_idle(name, not self.paired, "paired: false")
        self._refuse_idle("chain_column", bool(self.heavy_column), "heavy_column")
        if self.chain_column and not (self.id_column and self.sequence_column):
            raise ValueError(
                "chain_column needs id_column and sequence_column beside it; name both"
            )
        self._refuse_idle("sequence_column", bool(self.heavy_column), "heavy_column")
        self._refuse_idle(
            "prefix", is_contig, "alphabet: contigs, whose elements have their strand"
        )
        if bool(self.heavy_column) != bool(self.light_column):
            raise ValueError("heavy_column and light_column belong together; give both")
        if self.heavy_column and self.heavy_column == self.light_column:
            raise ValueError("heavy_column and light_column are one column; name two")
        if self.paired and self.alphabet != "proteins":
            raise ValueError("paired: true is of chains; set alphabet: proteins")
        if self.long == "split" and not is_contig:
            raise ValueError("long: split is of contigs; set truncate or refuse")
        is_of_parts = self.paired or is_contig
        if is_contig and self.max_residues == 1:
            raise ValueError("max_residues: an element of a contig has 2 tokens or more; give 2")
        self._refuse_idle("parts", not is_of_parts, "records of one part (no pairs, no contigs)")
        for name in ("regions", "structures"):
            if is_of_parts and getattr(self, name):
                raise ValueError(f"{name} are of single sequences; leave them out")
        if self.parts and (whole := {"cls", "last"} & set(self.pool)):
            raise ValueError(
                f"pool: {min(whole)} is of whole sequences; leave it out, or leave out parts"
            )

    def check_files(self) -> None:
        """Raise UserError if the model's chat template cannot be used."""
        if self.chat:
            chat.check(place_of(self.model))

    def row_columns(self) -> Mapping[str, type] | None:
        """Return the columns, with types, of tables whose rows are read as records; None for tables
        of sequences."""
        if self.heavy_column:
            return {self.heavy_column: str, self.light_column: str}
        if self.chain_column:
            return {self.chain_column: str, self.sequence_column: str}
        return {self.text_column: str} if self.alphabet == "texts" else None
