"""Write attention.h5: for each protein of `attention_of` its attention, layers × heads × residues ×
residues, in the layout of contacts.h5.
"""

from __future__ import annotations

from featuremill.workloads.contacts import contacts_h5

FORMAT = contacts_h5.FORMAT._replace(file="attention.h5", columns_like="attention")


class Writer(contacts_h5.Writer):
    """Writes one dataset a record that has attention."""

    COLUMN, NEEDS = "attention", "attention_of"
