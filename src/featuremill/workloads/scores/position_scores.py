"""position_scores.tsv: a row a residue: id, position, residue, log_probability, entropy.

The long table of the workload scores' column `positions`.
"""

from __future__ import annotations

from featuremill.workloads.scores import variant_scores

FORMAT = variant_scores.FORMAT._replace(file="position_scores.tsv", columns_like="positions")


class Writer(variant_scores.Writer):
    """Writes the names of the columns, then the residues of record after record."""

    COLUMN, OUTPUT = "positions", "position_scores"
