"""The columns of a table that identify a record, and the whole id that they make.

Each record has a sample, which is empty without a sheet of samples. The code uses whole ids, which
are unique in a run: `<sample>/<id>`, or the id alone if the sample is empty. All code that reads or
writes ids uses `IdColumns`, because tables with and without samples have different columns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

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
"""UniProt (also as NCBI quotes it), UniRef's representative, AlphaFold DB, NCBI, NCBI's CDS."""


def accessions(ids: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the accession in each of `ids`; an id that matches none of PATTERNS is kept."""
    import pyarrow.compute as pc  # here: a worker matches single ids, and starts faster without

    matches = [pc.struct_field(pc.extract_regex(ids, pattern), [0]) for pattern in PATTERNS]
    return reduce(pc.coalesce, [*matches, ids])


def accession(id: str) -> str:
    """Return the accession in `id`, as `accessions` does; faster for a single id."""
    if "|" in id or id.startswith(("UniRef", "AF-", "AFDB:")):  # as one of PATTERNS begins
        for pattern in _PATTERNS:
            if match := pattern.fullmatch(id):
                return match["accession"]
    return id


_PATTERNS = [re.compile(pattern.strip("^$")) for pattern in PATTERNS]


SAMPLE, ID = "sample", "id"
KEYS = (SAMPLE,)
"""Columns that name the owner of an id. Their values have no "/", so a whole id can be split."""
WHOLE = (*KEYS, ID)
"""The columns of which whole ids are made; a table without keys is read as with empty ones."""


class IdColumns(NamedTuple):
    """The columns that identify the record of a row of a table: the KEYS that it has, and ID."""

    keys: tuple[str, ...] = ()

    @classmethod
    def among(cls, names: Collection[str]) -> IdColumns:
        """Return the id columns of a table with columns of these `names`."""
        return cls(tuple(key for key in KEYS if key in names))

    @classmethod
    def of_sheet(cls, sheet: str) -> IdColumns:
        """Return the id columns of the records of a sheet of samples; "" for no sheet."""
        return cls(KEYS) if sheet else ID_ALONE

    @property
    def names(self) -> list[str]:
        return [*self.keys, ID]

    def cells(self, whole_id: str) -> list[str]:
        """Return the values of the columns for a record."""
        return whole_id.split("/", len(self.keys))

    def whole(self, cells: Mapping[str, str], own_id: str) -> str:
        """Return the whole id of a record, whose keys are in `cells`."""
        return "/".join([*(cells[key] for key in self.keys), own_id])

    def accession(self, whole_id: str) -> str:
        """Return a record's whole id with its accession in place of the id."""
        *keys, own_id = self.cells(whole_id)
        return "/".join([*keys, accession(own_id)])

    def owner(self, whole_id: str) -> str:
        """Return the keys of a record; "" for a table without any."""
        return "/".join(self.cells(whole_id)[:-1])


ID_ALONE = IdColumns()
"""The id columns of a run without a sheet of samples."""
