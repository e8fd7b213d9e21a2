"""The options of translate, in a config and on the command line, and the files that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from featuremill.kit.errors import UserError
from featuremill.kit.tables import words_of
from featuremill.step import Section

__all__ = ["CODON", "FRAGMENTS", "NUCLEOTIDES", "PROTEINS", "SUMMARY", "UNTRANSLATED"]
PROTEINS, NUCLEOTIDES = "proteins.faa.gz", "nucleotides.fna.gz"
FRAGMENTS, UNTRANSLATED = "fragments.parquet", "untranslated.tsv"
SUMMARY = "translate.json"
KINDS = {"proteins": PROTEINS, "nucleotides": NUCLEOTIDES}
SHEETS = {kind: f"{kind}.samples.parquet" for kind in KINDS}
"""The sheets of fragments of samples, whose translations are in `sample=<name>/`."""
OF_SAMPLE = "sample="
"""The prefix of the folder of a sample."""
FILES = (PROTEINS, NUCLEOTIDES, FRAGMENTS, UNTRANSLATED)
METHODS = {"orfs": 2, "genes": 2}
"""The versions of methods, by default 1; increased if the fragments of equal inputs change."""
LOCK = ".translate.lock"
"""The lock of the folder; it also marks the folder after a kill."""
DEFAULTS: dict[str, dict[str, int | str]] = {
    "chunks": {"window": 500},
    "virnucpro": {"window": 500},
    "orfs": {"code": 1, "min_residues": 30, "orf": "from-start"},
    "genes": {"procedure": "meta"},
}
"""The options of each method, with their defaults."""
SINGLE_DEFAULTS: dict[str, int | str] = {"procedure": "single", "code": 11}
CODON = 3


class SECTION(Section):
    """The method that divides contigs into fragments, and its options."""

    by: Literal["chunks", "virnucpro", "orfs", "genes"]
    """The kind of fragments: `chunks` are windows in each frame without a stop codon, `virnucpro`
    the same with VirNucPro's windows, `orfs` open reading frames, `genes` prodigal's genes."""
    window: int | None = None
    """chunks, virnucpro: nucleotides of each window; 500 if not given."""
    code: int | None = None
    """NCBI's number of the genetic code. orfs: 1 if not given; genes with procedure single: 11."""
    min_residues: int | None = None
    """orfs: the least number of residues; 30 if not given."""
    orf: Literal["from-start", "between-stops"] | None = None
    """orfs: from a start codon to a stop (if not given), or from stop to stop."""
    procedure: Literal["meta", "single"] | None = None
    """genes: prodigal's procedure: each contig alone (if not given), or all are one genome."""

    @property
    def options(self) -> dict[str, int | str]:
        """The options that are set, by name."""
        return self.model_dump(exclude={"by"}, exclude_none=True)

    @property
    def method(self) -> int:
        """The version of the method."""
        return METHODS.get(self.by, 1)

    @property
    def words(self) -> list[str]:
        """The options of `featuremill translate`."""
        return words_of(self.model_dump())


def typed(name: str, value: int | str) -> str:
    """Return an option as it is written on the command line."""
    return f"--{name.replace('_', '-')} {value}".rstrip()


def keyed(name: str, value: int | str) -> str:
    """Return an option as it is written in a config."""
    return f"{name}: {value}".rstrip(": ")


def settled(
    by: str, chosen: Mapping[str, int | str], spelt: Callable[[str, int | str], str] = keyed
) -> dict[str, int | str]:
    """Return all options of the method `by`: those in `chosen`, and defaults for the others.
    `spelt` formats an option for messages.

    Raises:
        UserError: an option has no effect with `by`, or a wrong value.
    """
    is_single = by == "genes" and chosen.get("procedure") == "single"
    defaults = SINGLE_DEFAULTS if is_single else DEFAULTS[by]
    for name in chosen:
        if name not in defaults:
            fitting = spelt("by", " or ".join(way for way in DEFAULTS if name in DEFAULTS[way]))
            if by == "genes" and name == "code":
                fitting = spelt("procedure", "single")
            raise UserError(
                f"{spelt(name, '')} has no effect with {spelt('by', by)}; leave it out, or take "
                f"{fitting}."
            )
    for name, least in (("window", CODON), ("min_residues", 1)):
        if (number := chosen.get(name, least)) < least:  # type: ignore[operator]
            raise UserError(f"{spelt(name, number)}: this must be at least {least}.")
    return {**defaults, **chosen}
