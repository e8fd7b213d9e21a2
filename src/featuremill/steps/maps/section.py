"""The section of the step `maps`, and the file that it writes."""

from __future__ import annotations

from pydantic import Field

from featuremill.step import Section

FILE = "map.parquet"


class Maps(Section):
    """Options of t-SNE."""

    seed: int = Field(default=0, ge=0, strict=True)
    """The random seed of t-SNE; equal seeds give equal maps."""
    perplexity: float = Field(default=30.0, gt=1)
    """The perplexity of t-SNE: approximately the number of neighbours of a record."""

    @property
    def words(self) -> list[str]:
        """The options of `featuremill map`."""
        return [f"--seed={self.seed}", f"--perplexity={self.perplexity:g}"]
