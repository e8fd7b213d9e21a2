"""What FASTA headers of databases say: the organism, the name without it, whose page an id has."""

from __future__ import annotations

import re
from typing import NamedTuple

from featuremill.kit.ids import accessions

FIELDS = re.compile(r"\s(?:OS|OX|GN|PE|SV|Tax|TaxID|RepID|n)=")
"""With which UniProt's and UniRef's fields begin
(https://www.uniprot.org/help/fasta-headers)."""
UNIPROT_ORGANISM = re.compile(r"(?:^|\s)(?:OS|Tax)=(.+?)(?=\s(?:OX|GN|PE|SV|TaxID|RepID)=|$)")
NCBI_ORGANISM = re.compile(r"\[([^\[\]=]+(?:\[[^\[\]]+\])?[^\[\]=]*)\]\s*$")
"""In brackets, at the end; `[gene=dnaA]` is a field of a coding region."""
UNIPROT, NCBI = "UniProt", "NCBI"
LINKS = (
    (UNIPROT, "https://www.uniprot.org/uniprotkb/"),
    (NCBI, "https://www.ncbi.nlm.nih.gov/protein/"),
)
OF_UNIPROT = re.compile(
    "(?:[OPQ][0-9][A-Z0-9]{3}[0-9]|[A-NR-Z][0-9](?:[A-Z][A-Z0-9]{2}[0-9]){1,2})(?:-[0-9]+)?"
)
OF_NCBI = re.compile(r"(?:[A-Z]P_[0-9]{6,}|[A-Z]{3}[0-9]{5}(?:[0-9]{2})?)(?:\.[0-9]+)?")
"""RefSeq's and GenBank's proteins."""


class Header(NamedTuple):
    name: str
    """Of the protein, without fields."""
    organism: str | None
    accession: str
    link: int
    """Which of `LINKS` has its page, from 1 on; 0 if none is known."""


def headers_of(ids: list[str], descriptions: list[str]) -> list[Header]:
    """Return what is known of each record, by its own id."""
    import pyarrow as pa

    found = accessions(pa.array(ids, pa.string())).to_pylist()
    return [
        Header(*_described(description), accession, _link_of(accession))
        for description, accession in zip(descriptions, found, strict=True)
    ]


def _described(description: str) -> tuple[str, str | None]:
    if (known := UNIPROT_ORGANISM.search(description)) is not None:
        return FIELDS.split(f" {description}", maxsplit=1)[0].strip(), known[1].strip()
    if (known := NCBI_ORGANISM.search(description)) is not None:
        return description[: known.start()].strip(), known[1].strip()
    return description.strip(), None


def _link_of(accession: str) -> int:
    if OF_UNIPROT.fullmatch(accession):
        return 1
    return 2 if OF_NCBI.fullmatch(accession) else 0
