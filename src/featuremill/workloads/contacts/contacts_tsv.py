"""Write contacts.tsv: one row per pair of residues, with id, i, j, residue_i, residue_j and
probability, from the column `contacts`. Positions are counted from 1.
"""

from __future__ import annotations

from featuremill.workloads.contacts import contacts_h5
from featuremill.workloads.scores import variant_scores

FORMAT = variant_scores.FORMAT._replace(
    file="contacts.tsv", columns=contacts_h5.OF_CONTACTS, columns_like="contacts"
)


class Writer(variant_scores.Writer):
    """Writes the header, then the pairs of each record."""

    COLUMN, OUTPUT = "contacts", "contacts_tsv"
