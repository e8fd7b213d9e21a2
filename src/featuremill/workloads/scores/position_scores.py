"""Write position_scores.tsv: one row per residue, with id, position, residue, log_probability and
entropy, from the column `positions` of the workload scores."""

from __future__ import annotations

from featuremill.workloads.scores import variant_scores

FORMAT = variant_scores.FORMAT._replace(file="position_scores.tsv", columns_like="positions")


class Writer(variant_scores.Writer):
    """Writes the header, then the residues of each record."""

    COLUMN, OUTPUT = "positions", "position_scores"
