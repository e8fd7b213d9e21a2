"""What a config may set under `options` for the workload scores."""

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
from featuremill.workloads.encoder.structure_options import OF_TABLES, StructureOptions
from featuremill.workloads.esm2.tokens import NUM_SPECIAL
from featuremill.workloads.scores import sources

NOT_PLAIN = re.compile(r"\W")
"""Characters of model names that column names lack."""
ONE_OR_SEVERAL = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 2}]
}


def _joined(value: Any) -> Any:
    """Return several models as one text; of one in a list, that one."""
    if not isinstance(value, list | tuple):
        return value
    if not value or not all(isinstance(each, str) for each in value):
        raise ValueError("give the name or path of a model, or a list of them")
    if twice := next((each for each in value if value.count(each) > 1), ""):
        raise ValueError(f"{twice} stands twice; drop one")
    return sources.BETWEEN.join(value)


class ModelOptions(TableOptions):
    """Which network scores."""

    model: Annotated[str, BeforeValidator(_joined), WithJsonSchema(ONE_OR_SEVERAL)] = "mill_t6_8M"
    """The network, as for the workloads `esm2` and `esmc`: `mill_t6_8M` (comes with featuremill for
    trials; it is not an ESM-2), the name of one of Meta's such as `esm2_t33_650M_UR50D`,
    `esm1v_t33_650M_UR90S_1` (to `_5`) or `esm1b_t33_650M_UR50S`, of an ESM C such as `esmc_300m`,
    or the path of weights of one of these or of a SaProt, with their language-model head. A list of
    networks of one kind and size is an ensemble: scores of each, and their mean."""

    @property
    def networks(self) -> tuple[str, ...]:
        """What stands behind the names of columns for each network; "" for one alone."""
        names = sources.members(self.model)
        if len(names) == 1:
            return ("",)
        return tuple(f"_{NOT_PLAIN.sub('_', name)}" for name in names)

    @property
    def mean(self) -> str:
        """What stands behind the names of columns for the mean of several networks."""
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
"""The kinds of score with their columns, in this order."""
LIKELIHOODS: Mapping[Likelihood, Source] = MappingProxyType(
    {"pseudo": "masked", "one_pass": "wildtype"}
)
"""In the order of their columns, each with the passes that it is of."""
MEASURED, MEASURED_CLASS = "DMS_score", "DMS_score_bin"
"""The columns of ProteinGym."""
TAKEN = ("id", "sample", "variant", "read_as", "reason")
"""Columns beside the scores of a listed variant."""


OF_LISTED = (
    *("variants_file", "variant_column", "mutated_sequence_column", "first_residue"),
    *("first_residue_column", "measured_column", "measured_class_column", "columns"),
)
"""Options of listed variants."""


class Options(StructureOptions, ModelOptions):
    """Which variants of which proteins are scored, by which network, and how."""

    EXECUTION = (
        TableOptions.EXECUTION
        | OF_TABLES
        | {"variant_column", "mutated_sequence_column", "first_residue", "first_residue_column"}
        | {"batch_tokens"}
    )
    PACKAGES = MappingProxyType(dict(esm2.Options.PACKAGES))

    variants: Literal["none", "all", "listed"] = "all"
    """Which variants are scored: `all` substitutions of one residue (19 a residue; none of a letter
    beyond the 20 amino acids), those that are `listed` in a table, or `none`."""
    variants_file: OptionFile | None = None
    """With `listed`: a table (CSV, TSV, Parquet) of the variants, with a column of the proteins'
    ids or accessions: `id_column`, or found by its name. Only where the inputs are one protein, it
    needs none. If not given, the inputs are tables with a column of variants, in one row of a
    protein or in several that repeat its sequence."""
    variant_column: str = ""
    """With `listed`: the column of the variants, such as `A123T`; `A123T:G45D` is one variant with
    two substitutions. A cell may hold several variants, with a space, a comma or a semicolon
    between. If not given, the only one of `variant`, `variants`, `mutant`, `mutants`, `mutation`,
    `mutations`, `substitution`, `substitutions`."""
    mutated_sequence_column: str = ""
    """With `listed`: the column of whole sequences of variants. If not given, `mutated_sequence`
    where there is one. Where the table has a column of variants as well, that one counts, and a
    note says which sequences are other ones."""
    first_residue: int = 1
    """With `listed`: the number that the table gives the first residue of the protein, such as 24
    where the sequence has no signal peptide and the positions count it."""
    first_residue_column: str = ""
    """With `listed`: the column of these numbers, where proteins have several; `first_residue` is
    that of empty cells."""
    measured_column: str = ""
    """With `listed`: the column of measured scores, the higher the fitter, with which
    `variant_metrics` and the report compare. If not given, `DMS_score` where `variants_file` has
    it. It comes along as numbers."""
    measured_class_column: str = ""
    """With `listed`: the column that says by 0 or 1 which variants are fit, for the AUC. If not
    given, `DMS_score_bin` where `variants_file` has it; else variants above the median are fit."""
    columns: tuple[str, ...] | None = None
    """With `listed`: columns of the table that come along with each variant, as text. If not given,
    all others of `variants_file`, but those with `seq` in their names; none of inputs."""
    marginals: tuple[Marginal, ...] = Field(default=("wildtype",), min_length=1)
    """Scores of a variant, one or several (Meier et al. 2021): log-probabilities of the new
    residues, less those of the old ones. They are read off the protein as it is (`wildtype`, one
    pass a protein), with all the variant's positions masked at once (`masked`, one pass for each
    set of positions), with one masked at a time (`masked_additive`, as ProteinGym does; one pass
    for each position), or off the variant (`mutant`, one pass a variant). `pseudo` is the
    pseudo-log-likelihood of the variant less that of the protein, also for insertions and
    deletions: one pass for each residue of each variant."""
    likelihood: tuple[Likelihood, ...] = ()
    """Also deliver the log-likelihood of the protein, and its perplexity: `pseudo` masks one
    residue at a time (one pass a residue; Salazar et al. 2020), `one_pass` masks none. The two are
    different numbers."""
    log_probabilities: Source = "none"
    """Also deliver the log-probabilities of the 20 amino acids at each residue, in the order
    ACDEFGHIKLMNPQRSTVWY: of the protein as it is (`wildtype`), or with each residue `masked` (one
    pass a residue)."""
    positions: Source = "none"
    """Also deliver for each residue its own log-probability, and the entropy of the 20 amino acids
    in nats; `wildtype` and `masked` as above."""
    output_dtype: Literal["float16", "float32"] = "float32"
    """Number type of `log_probabilities`."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Precision of the matrix products; the rest, and the language-model head, is fp32. `auto`
    takes bf16 where the device has it, else fp16 on a GPU and fp32 on a CPU."""
    long: Literal["truncate", "full", "chunk", "proteingym"] = "truncate"
    """What happens to proteins of more than `max_residues`: `truncate` keeps the first ones (and
    a variant of the others fails), `full` computes them whole, `chunk` computes windows of
    `max_residues`: masked and mutant passes in a window around the variant, the others in windows
    that overlap by half, where each residue is read in the one whose middle is nearest.
    `proteingym` computes passes with one masked residue in ProteinGym's windows (`max_residues` and
    two more tokens around it, without start and end inside the protein), the others whole."""
    max_residues: int | None = Field(default=None, ge=1)
    """Residues that are kept, or of a window. If not given, what the network was trained with: 2046
    for ESM C, 1022 for the others; an ESM-1b or ESM-1v has positions for no more."""
    batch_tokens: int | None = Field(default=None, ge=1, le=131_072)
    """Tokens that are computed together, special ones included. If not given: 128 for each
    multiprocessor of a GPU, 4096 on a CPU."""

    @field_validator("marginals", "likelihood", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse what contradicts itself and what would have no effect."""
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
        """Columns of the table that come along; of settled options, all of them."""
        return self.columns or ()

    @property
    def carried_as(self) -> list[str]:
        """Their names beside the scores."""
        return [self._carried_as(name) for name in self.carried]

    def _carried_as(self, name: str) -> str:
        suffixes = (*self.networks, self.mean)
        scores = (f"{column}{each}" for column in MARGINALS.values() for each in suffixes)
        return f"table_{name}" if name in {*TAKEN, *scores} else name

    @property
    def measured(self) -> dict[str, str]:
        """The names of the columns of measured scores and of their classes among `carried`, each
        with its name beside the scores."""
        names = filter(None, (self.measured_column, self.measured_class_column))
        return {name: self._carried_as(name) for name in names}

    def delivers(self) -> set[Kind]:
        """Return what comes out: tables of variants or numbers, and a matrix."""
        kinds: dict[Kind, bool] = {
            "per_residue": self.log_probabilities != "none",
            "table": self.variants != "none" or bool(self.likelihood) or self.positions != "none",
        }
        return {kind for kind, is_there in kinds.items() if is_there}

    @property
    def kinds(self) -> tuple[Marginal, ...]:
        """The scores of a variant, in the order of their columns."""
        wanted = () if self.variants == "none" else self.marginals
        return tuple(kind for kind in MARGINALS if kind in wanted)

    @property
    def of_residues(self) -> set[str]:
        """How the log-probabilities of every residue are wanted: `wildtype`, `masked` or both."""
        wanted = {self.log_probabilities, self.positions} - {"none"}
        if "pseudo" in self.kinds:
            wanted.add("masked")
        return wanted | {LIKELIHOODS[kind] for kind in self.likelihood}

    @property
    def has_whole_passes(self) -> bool:
        """Whether some passes have no masked residue."""
        return "wildtype" in {*self.kinds, *self.of_residues}

    @cached_property
    def limit(self) -> int:
        """Residues that are kept, or of a window."""
        workload: Any = esmc if sources.is_esm_c(self.model) else esm2
        trained: int = workload.Options.model_fields["max_residues"].default
        return self.max_residues or trained

    @property
    def of_esm2(self) -> esm2.Options:
        """The options by which the workload esm2 loads this network, be it an ESM C."""
        return esm2.Options(
            model=self.model,
            dtype=self.dtype,
            long="full" if self.long == "proteingym" else self.long,
            batch_tokens=self.batch_tokens,
        )

    def seen(self, num_residues: int) -> int:
        """Return how many residues of a protein the network sees."""
        return self.width(num_residues) if self.long == "truncate" else num_residues

    def width(self, num_residues: int) -> int:
        """Return how many residues of a protein one pass sees, but passes in ProteinGym's
        windows."""
        is_whole = self.long in ("full", "proteingym")
        return num_residues if is_whole else min(num_residues, self.limit)

    def masked_tokens(self, num_residues: int) -> int:
        """Return how many tokens a pass with one masked residue has."""
        most = self.limit if self.long == "proteingym" else self.width(num_residues)
        return min(num_residues, most) + NUM_SPECIAL
