"""The files that `groups` writes, and the types of pooling."""

from __future__ import annotations

from typing import Literal

from featuremill.kit.tables import Table

KEY = "groups"
TABLE = Table(KEY, ".parquet", ".members.tsv", ("groups", "pooled", "missing"))
Pool = Literal["mean", "max", "sum"]
