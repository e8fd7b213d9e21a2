"""contacts.tsv: a row a pair of residues: id, i, j, residue_i, residue_j, probability.

The long table of the workload contacts' column `contacts`; positions count from 1.
"""

from __future__ import annotations

from featuremill.workloads.contacts import contacts_h5
from featuremill.workloads.scores import variant_scores

FORMAT = variant_scores.FORMAT._replace(
    file="contacts.tsv", columns=contacts_h5.OF_CONTACTS, columns_like="contacts"
)


class Writer(variant_scores.Writer):
    """Writes the names of the columns, then the pairs of record after record."""

    COLUMN, OUTPUT = "contacts", "contacts_tsv"
