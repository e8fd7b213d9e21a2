"""The files that `transfer` writes."""

from __future__ import annotations

from featuremill.kit.tables import Table

KEY = "transfer"
TABLE = Table(KEY, ".tsv", ".missing.tsv", ("transferred", "without"))
