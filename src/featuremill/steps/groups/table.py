"""What pooling writes, and how it pools: the command and the section of the config have these."""

from __future__ import annotations

from typing import Literal

from featuremill.kit.tables import Table

KEY = "groups"
TABLE = Table(KEY, ".parquet", ".members.tsv", ("groups", "pooled", "missing"))
Pool = Literal["mean", "max", "sum"]
