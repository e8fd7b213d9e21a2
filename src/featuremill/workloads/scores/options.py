"""The config `options` of the workload scores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from featuremill.inputs import TableOptions
from featuremill.workload import Kind, OptionFile
from featuremill.workloads import esm2, esmc
from featuremill.workloads.encoder.options import OF_TABLES, StructureOptions
from featuremill.workloads.esm2.tokens import NUM_SPECIAL
from featuremill.workloads.scores import sources

NOT_PLAIN = re.compile(r"\W")
"""A character of a model name that is replaced in column names."""
ONE_OR_SEVERAL = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 2}]
}


def _joined(value: Any) -> Any:
    """Return a list of models as one text."""
    if not isinstance(value, list | tuple):
        return value
    if not value or not all(isinstance(each, str) for each in value):
        raise ValueError("give the name or path of a model, or a list of them")
    if twice := next((each for each in value if value.count(each) > 1), ""):
        raise ValueError(f"{twice} stands twice; drop one")
    return sources.BETWEEN.join(value)


class ModelOptions(TableOptions):
    """Options that choose the networks."""

    model: Annotated[str, BeforeValidator(_joined), WithJsonSchema(ONE_OR_SEVERAL)] = "mill_t6_8M"
    """The network, as for the workloads `esm2` and `esmc`: `mill_t6_8M` (comes with featuremill for
    trials; it is not an ESM-2), the name of one of Meta's such as `esm2_t33_650M_UR50D`,
    `esm1v_t33_650M_UR90S_1` (to `_5`) or `esm1b_t33_650M_UR50S`, of an ESM C such as `esmc_300m`,
    or the path of weights of one of these or of a SaProt, with their language-model head. A list of
    networks of one kind and size is an ensemble: scores of each, and their mean."""

    @property
    def networks(self) -> tuple[str, ...]:
        """The suffix of each network's columns; "" for a single network."""
        names = sources.members(self.model)
        if len(names) == 1:
            return ("",)
        return tuple(f"_{NOT_PLAIN.sub('_', name)}" for name in names)

    @property
    def mean(self) -> str:
        """The suffix of the columns with the mean of an ensemble."""
        return f"_mean_of_{len(self.networks)}"


Marginal = Literal["wildtype", "masked", "masked_additive", "mutant", "pseudo"]
Likelihood = Literal["pseudo", "one_pass"]
Source = Literal["none", "wildtype", "masked"]
MARGINALS: Mapping[Marginal, str] = MappingProxyType(
    {
        "wildtype": "wildtype_marginal",
        "masked": "masked_marginal",
        "masked_additive": "masked_additive_marginal",
        "mutant": "mutant_marginal",
        "pseudo": "pseudo_log_likelihood_ratio",
    }
)
"""The kinds of score with the names of their columns, in order."""
LIKELIHOODS: Mapping[Likelihood, Source] = MappingProxyType(
    {"pseudo": "masked", "one_pass": "wildtype"}
)
"""The kinds of likelihood, in order, with the passes that they are computed from."""
MEASURED, MEASURED_CLASS = "DMS_score", "DMS_score_bin"
"""ProteinGym's columns of measured scores and of their classes."""
RESERVED = ("id", "sample", "variant", "read_as", "reason")
"""Fields of a listed variant besides its scores."""


OF_LISTED = (
    *("variants_file", "variant_column", "mutated_sequence_column", "first_residue"),
    *("first_residue_column", "measured_column", "measured_class_column", "columns"),
)
"""Options that require `variants: listed`."""


class Options(StructureOptions, ModelOptions):
    """Options of proteins, variants, networks and scores."""

    EXECUTION = (
        TableOptions.EXECUTION
        | OF_TABLES
        | {"variant_column", "mutated_sequence_column", "first_residue", "first_residue_column"}
        | {"batch_tokens"}
    )
    PACKAGES = MappingProxyType(dict(esm2.Options.PACKAGES))

    variants: Literal["none", "all", "listed"] = "all"
    """Which variants are scored: `all` single substitutions (19 per residue; none at letters other
    than the 20 amino acids), those that are `listed` in a table, or `none`."""
    variants_file: OptionFile | None = None
    """With `listed`: a table (CSV, TSV, Parquet) of the variants, with a column of the proteins'
    ids or accessions: `id_column`, or a column with a usual name. If the inputs are one protein,
    ids are optional. If not given, the inputs are tables with a column of variants; a protein has
    one row, or several rows that repeat its sequence."""
    variant_column: str = ""
    """With `listed`: the column of the variants, such as `A123T`; `A123T:G45D` is one variant with
    two substitutions. A cell may hold several variants, separated by spaces, commas or semicolons.
    If not given, the only column with a name among `variant`, `variants`, `mutant`, `mutants`,
    `mutation`, `mutations`, `substitution`, `substitutions`."""
    mutated_sequence_column: str = ""
    """With `listed`: the column of whole sequences of variants. If not given, `mutated_sequence` if
    the table has it. A column of variants has priority; a note counts the sequences that differ
    from it."""
    first_residue: int = 1
    """With `listed`: the position of the protein's first residue in the table's numbering, such as
    24 if positions include a signal peptide that the sequence lacks."""
    first_residue_column: str = ""
    """With `listed`: the column of these positions, if they differ between proteins; empty cells
    have `first_residue`."""
    measured_column: str = ""
    """With `listed`: the column of measured scores (higher is fitter) for `variant_metrics` and the
    report. If not given, `DMS_score` if `variants_file` has it. It is copied to the variants as
    numbers."""
    measured_class_column: str = ""
    """With `listed`: the column with 1 for fit variants and 0 for others, for the AUC. If not
    given, `DMS_score_bin` if `variants_file` has it; else variants above the median are fit."""
    columns: tuple[str, ...] | None = None
    """With `listed`: columns of the table that are copied to each variant, as text. If not given,
    all other columns of `variants_file` without `seq` in their names; none of the inputs."""
    marginals: tuple[Marginal, ...] = Field(default=("wildtype",), min_length=1)
    """Scores of a variant, one or several (Meier et al. 2021): the log-probabilities of the new
    residues minus those of the old ones. They are computed from the unmasked protein (`wildtype`,
    one pass per protein), with all positions of the variant masked (`masked`, one pass per set of
    positions), with one position masked at a time (`masked_additive`, as in ProteinGym; one pass
    per position), or from the variant (`mutant`, one pass per variant). `pseudo` is the
    pseudo-log-likelihood of the variant minus that of the protein, also for insertions and
    deletions: one pass for each residue of each variant."""
    likelihood: tuple[Likelihood, ...] = ()
    """Also deliver the log-likelihood and the perplexity of the protein: `pseudo` masks one residue
    at a time (one pass per residue; Salazar et al. 2020), `one_pass` masks none. The two cannot be
    compared."""
    log_probabilities: Source = "none"
    """Also deliver the log-probabilities of the 20 amino acids at each residue, in the order
    ACDEFGHIKLMNPQRSTVWY: of the unmasked protein (`wildtype`), or with each residue `masked` (one
    pass per residue)."""
    positions: Source = "none"
    """Also deliver for each residue its log-probability, and the entropy over the 20 amino acids in
    nats; `wildtype` and `masked` as for `log_probabilities`."""
    output_dtype: Literal["float16", "float32"] = "float32"
    """Number type of `log_probabilities`."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Precision of the matrix products; all else, with the language-model head, is fp32. `auto` is
    bf16 on devices that have it, else fp16 on a GPU and fp32 on a CPU."""
    long: Literal["truncate", "full", "chunk", "proteingym"] = "truncate"
    """How proteins with more than `max_residues` are computed. `truncate` keeps the first residues
    (variants of the others fail). `full` computes them whole. `chunk` computes windows of
    `max_residues`: masked and mutant passes in a window around the variant, other passes in windows
    that overlap by half, and each residue in the window with the nearest middle. `proteingym`
    computes passes with one masked residue in ProteinGym's windows (`max_residues` plus two tokens
    around it, with BOS and EOS only at the ends of the protein), and other passes whole."""
    max_residues: int | None = Field(default=None, ge=1)
    """Residues that are kept, or residues of a window. If not given, the length in training: 2046
    for ESM C, 1022 for the others. ESM-1b and ESM-1v have no positions beyond it."""
    batch_tokens: int | None = Field(default=None, ge=1, le=131_072)
    """Tokens that are computed together, with special tokens. If not given, 128 per multiprocessor
    of a GPU, or 4096 on a CPU."""

    @field_validator("marginals", "likelihood", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse options that contradict each other or have no effect."""
        for name in OF_LISTED:
            self._refuse_idle(name, self.variants != "listed", f"variants: {self.variants}")
        self._refuse_idle("marginals", self.variants == "none", "variants: none")
        self._refuse_idle("max_residues", self.long == "full", "long: full")
        no_matrix = self.log_probabilities == "none"
        self._refuse_idle("output_dtype", no_matrix, "log_probabilities: none")
        if self.long == "proteingym" and (other := {"masked", "mutant"} & set(self.kinds)):
            raise ValueError(
                f"long: proteingym has no windows for marginals: {min(other)}; set long: chunk, or "
                "marginals: masked_additive"
            )
        of_protein = (*self.likelihood, self.log_probabilities, self.positions)
        if self.positions != "none" and len(self.networks) > 1:
            raise ValueError("positions are of one network; leave them out, or give one model")
        if self.variants == "none" and set(of_protein) <= {"none"}:
            raise ValueError(
                "variants: none leaves nothing to deliver; set likelihood, log_probabilities or "
                "positions with it"
            )
        return self

    @property
    def carried(self) -> tuple[str, ...]:
        """Columns of the table that are copied to the variants; complete in resolved options."""
        return self.columns or ()

    @property
    def carried_as(self) -> list[str]:
        """The names of the `carried` columns in the results."""
        return [self._carried_as(name) for name in self.carried]

    def _carried_as(self, name: str) -> str:
        suffixes = (*self.networks, self.mean)
        scores = (f"{column}{each}" for column in MARGINALS.values() for each in suffixes)
        return f"table_{name}" if name in {*RESERVED, *scores} else name

    @property
    def measured(self) -> dict[str, str]:
        """The columns of measured scores and of their classes, with their names in the results."""
        names = filter(None, (self.measured_column, self.measured_class_column))
        return {name: self._carried_as(name) for name in names}

    def delivers(self) -> set[Kind]:
        """Return the kinds of results: tables of variants and numbers, and matrices."""
        kinds: dict[Kind, bool] = {
            "per_residue": self.log_probabilities != "none",
            "table": self.variants != "none" or bool(self.likelihood) or self.positions != "none",
        }
        return {kind for kind, is_there in kinds.items() if is_there}

    @property
    def kinds(self) -> tuple[Marginal, ...]:
        """The kinds of scores of a variant, in the order of their columns."""
        wanted = () if self.variants == "none" else self.marginals
        return tuple(kind for kind in MARGINALS if kind in wanted)

    @property
    def of_residues(self) -> set[str]:
        """The passes that all residues need: `wildtype`, `masked` or both."""
        wanted = {self.log_probabilities, self.positions} - {"none"}
        if "pseudo" in self.kinds:
            wanted.add("masked")
        return wanted | {LIKELIHOODS[kind] for kind in self.likelihood}

    @property
    def has_whole_passes(self) -> bool:
        """Whether some passes mask no residue."""
        return "wildtype" in {*self.kinds, *self.of_residues}

    @property
    def reads_structure(self) -> bool:
        """Whether the network reads 3Di letters of structure: SaProt does."""
        return sources.reader_of(self.model) is sources.SAPROT

    @cached_property
    def limit(self) -> int:
        """Residues that are kept, or residues of a window."""
        is_esm_c = sources.reader_of(self.model) is esmc.CHECKPOINTS
        workload: Any = esmc if is_esm_c else esm2
        trained: int = workload.Options.model_fields["max_residues"].default
        return self.max_residues or trained

    @property
    def of_esm2(self) -> esm2.Options:
        """The options for the workload esm2, which loads the networks; also those of ESM C."""
        return esm2.Options(
            model=self.model,
            dtype=self.dtype,
            long="full" if self.long == "proteingym" else self.long,
            batch_tokens=self.batch_tokens,
        )

    def seen(self, num_residues: int) -> int:
        """Return the number of residues of a protein that are computed."""
        return self.width(num_residues) if self.long == "truncate" else num_residues

    def width(self, num_residues: int) -> int:
        """Return the number of residues in a pass; not for passes in ProteinGym's windows."""
        is_whole = self.long in ("full", "proteingym")
        return num_residues if is_whole else min(num_residues, self.limit)

    def masked_tokens(self, num_residues: int) -> int:
        """Return the number of tokens in a pass with one masked residue."""
        most = self.limit if self.long == "proteingym" else self.width(num_residues)
        return min(num_residues, most) + NUM_SPECIAL
