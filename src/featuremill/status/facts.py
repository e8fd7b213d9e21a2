"""Everything that status found, before anything is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featuremill.status.problems import Problem
from featuremill.status.rest import Rest
from featuremill.status.results import Delivered
from featuremill.status.shards import Shard
from featuremill.store.run_lock import Owner

if TYPE_CHECKING:  # brings pyarrow and NumPy
    from featuremill.status.failures import Group

ENDED = ("finished", "removed")
DONE, NOT_DONE, DONE_WITH_FAILURES = 0, 1, 2
STATES = ("done", "unfinished", "done_with_failures")
"""By exit status."""


@dataclass(frozen=True)
class Snakemake:
    """The Snakemake that computes the run, or the last one that did."""

    is_running: bool | None
    """None where that cannot be told from here."""
    owner: Owner | None


@dataclass(frozen=True)
class Facts:
    """A run as it was found."""

    given: Path
    """What the user calls its folder."""
    snakemake: Snakemake
    is_planning: bool
    is_merging: bool
    verified: bool
    plan: dict[str, Any] | None = None
    shards: list[Shard] = field(default_factory=list)
    results: Delivered | None = None
    groups: list[Group] = field(default_factory=list)
    """Records without values, by reason."""
    unread_failures: int = 0
    is_manifest_readable: bool = True
    problems: list[Problem] = field(default_factory=list)
    has_tried_to_merge: bool = False
    """Whether merge has counted what failed since the plan was made, with every part there."""
    rest: Rest | None = None
    next: list[str] = field(default_factory=list)
    """What to type."""

    def count(self, *states: str) -> int:
        """Return how many shards are in one of `states`."""
        return sum(shard.state in states for shard in self.shards)

    @property
    def num_failed(self) -> int:
        """Return how many records failed, as far as is known."""
        if self.results and self.results.manifest and self.results.merged == "yes":
            return int(self.results.manifest["counts"]["failed"])
        return sum(g.number for g in self.groups if g.key.status == "failed") + self.unread_failures

    @property
    def is_at_work(self) -> bool:
        """Tell whether something goes on by itself."""
        at_it = self.is_planning or self.is_merging or self.count("running") > 0
        return bool(self.snakemake.is_running) or at_it

    @property
    def exit_status(self) -> int:
        """Return 0 done, 1 not done, 2 done with failures."""
        is_whole = self.results is not None and self.results.merged == "yes"
        if not is_whole or self.count(*ENDED) < len(self.shards):
            return NOT_DONE
        if any(problem.is_in_the_way for problem in self.problems):
            return NOT_DONE
        return DONE_WITH_FAILURES if self.num_failed else DONE
