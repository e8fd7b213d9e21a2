"""What a transfer of labels writes: the command and the step both name it."""

from __future__ import annotations

from featuremill.kit.tables import Table

KEY = "transfer"
TABLE = Table(KEY, ".tsv", ".missing.tsv", ("transferred", "without"))
