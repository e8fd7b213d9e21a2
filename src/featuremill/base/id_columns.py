"""Whose a record is: the columns of a table that say it, and the whole id that they make.

Each record has a sample, the empty one where there is no sheet of samples. Inside, an id is whole,
and no other record of the run has it: `<sample>/<id>`, or the id alone where the sample is empty.
`IdColumns` is asked by all who write or read ids: what is one column there may be two elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from featuremill.base.accession import accession

SAMPLE, ID = "sample", "id"
KEYS = (SAMPLE,)
"""Whose an id is. Values have no "/", so a whole id can be taken apart."""
WHOLE = (*KEYS, ID)
"""The columns of which whole ids are made; readers have empty keys where a table has none."""


class IdColumns(NamedTuple):
    """The columns that say which record a row of a table is of."""

    keys: tuple[str, ...] = ()
    """Those of KEYS that the table has."""

    @classmethod
    def among(cls, names: Collection[str]) -> IdColumns:
        """Return those of a table with columns of these `names`."""
        return cls(tuple(key for key in KEYS if key in names))

    @classmethod
    def of_sheet(cls, sheet: str) -> IdColumns:
        """Return those of the records of a sheet of samples, if there is one."""
        return cls(KEYS) if sheet else ID_ALONE

    @property
    def names(self) -> list[str]:
        return [*self.keys, ID]

    def cells(self, whole_id: str) -> list[str]:
        """Return what the columns have of a record."""
        return whole_id.split("/", len(self.keys))

    def whole(self, cells: Mapping[str, str], own_id: str) -> str:
        """Return the whole id of a record, of which `cells` has the keys."""
        return "/".join([*(cells[key] for key in self.keys), own_id])

    def accession(self, whole_id: str) -> str:
        """Return a record's whole id with its accession in place of the id."""
        *keys, own_id = self.cells(whole_id)
        return "/".join([*keys, accession(own_id)])

    def owner(self, whole_id: str) -> str:
        """Return whose a record is: its keys; "" where the table has none."""
        return "/".join(self.cells(whole_id)[:-1])


ID_ALONE = IdColumns()
"""Of records without a sheet."""
