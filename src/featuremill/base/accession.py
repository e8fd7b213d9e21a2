"""The accession in an id, as databases write their FASTA headers: what tables are joined on.

`sp|P12345|AATM_RABIT` is how UniProt writes P12345, `ref|NP_000549.1|` how NCBI writes NP_000549.1.
A database's isoform (P12345-2) and version (NP_000549.1) belong to the accession, as they do there;
only where NCBI quotes Swiss-Prot its version is dropped, because UniProt has none.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

UNIPROT = "(?:[OPQ][0-9][A-Z0-9]{3}[0-9]|[A-NR-Z][0-9](?:[A-Z][A-Z0-9]{2}[0-9]){1,2})(?:-[0-9]+)?"
"""UniProt's own pattern (its help page "Accession numbers"), and the isoform's number."""
NCBI = r"(?:[A-Z]{1,4}_?[0-9]{3,}|[A-Z]{2}_[A-Z]{4}[0-9]+)(?:\.[0-9]+)?"
"""GenBank's three letters and five or seven digits, RefSeq's NP_ and WP_, the accessions of DNA."""
PATTERNS = (
    rf"^(?:gi\|[0-9]+\|)?(?:sp|tr)\|(?P<accession>{UNIPROT})(?:\.[0-9]+)?(?:\|[^|]*)?$",
    rf"^UniRef(?:50|90|100)_(?P<accession>{UNIPROT}|UPI[0-9A-F]{{10}})$",
    rf"^(?:AFDB:)?AF-(?P<accession>{UNIPROT})-F[0-9]+(?:-model_v[0-9]+)?$",
    rf"^(?:gi\|[0-9]+\|)?(?:ref|gb|emb|dbj|tp[gde])\|(?P<accession>{NCBI})(?:\|[^|]*)?$",
    rf"^lcl\|.*_prot_(?P<accession>{NCBI})_[0-9]+$",
)
"""UniProt (and as NCBI quotes it), the member that represents a UniRef cluster, AlphaFold's
database, NCBI, and NCBI's translated coding regions."""


def accessions(ids: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the accession in each of `ids`; the id itself where it is none of `PATTERNS`."""
    import pyarrow.compute as pc  # here: a worker matches single ids, and starts faster without

    found = [pc.struct_field(pc.extract_regex(ids, pattern), [0]) for pattern in PATTERNS]
    return reduce(pc.coalesce, [*found, ids])


def accession(id: str) -> str:
    """Return the accession in `id`, as `accessions` does; quicker for one than for a batch."""
    if "|" in id or id.startswith(("UniRef", "AF-", "AFDB:")):  # as one of PATTERNS begins
        for pattern in _PATTERNS:
            if found := pattern.fullmatch(id):
                return found["accession"]
    return id


_PATTERNS = [re.compile(pattern.strip("^$")) for pattern in PATTERNS]
