"""What a workload needs for `featuremill audit`."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from featuremill.workload import HasPrecisions


@runtime_checkable
class IsAudited(HasPrecisions, Protocol):
    """A workload whose number types can be compared. An optional `ONE_TOKEN` has the prefixes of
    columns with the vector or numbers of one token, without a mean: in 16 bits these are less exact
    than means, and the bound of a single token applies."""

    def audited(self, options: Any, precision: str) -> Any:
        """Return resolved `options` in this precision: every vector of the network, unrounded, so
        that each record has at least one vector in a column."""

    def num_vectors(self, payload: bytes, options: Any) -> int:
        """Return the largest number of vectors of a record in one column of `audited` options."""
