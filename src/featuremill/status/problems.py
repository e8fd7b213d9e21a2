"""What is wrong with a run, and what mends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple


class Mend(NamedTuple):
    """What makes a problem go away; `commands.py` makes a command of it."""

    again: Literal["", "plan", "extract", "merge"] = ""
    """The verb that has to run again, although its results are there."""
    shards: tuple[str, ...] = ()
    """Those that extract has to look at again."""
    remove: tuple[Path, ...] = ()
    """Files that have to go first."""
    verb: str = ""
    """What does it where Snakemake is not used, if it is none of these."""
    by_hand: str = ""
    """What no command can do."""
    seen_by: Literal["snakemake", "start", "nobody"] = "start"
    """Who notices, when the run's command is given again, that the verb has to run: Snakemake
    itself, `flow.before`, or nobody, as only hashing tells: then the command has to say it."""


class Problem(NamedTuple):
    """Something that is not as it should be."""

    code: str
    """Its name for scripts; docs/status.md lists them."""
    what: str
    mend: Mend
    is_in_the_way: bool = True
    """False for what is only good to know: the run may be done all the same."""
    commands: tuple[str, ...] = ()
    """What to type, in order."""

    def as_json(self) -> dict[str, Any]:
        """Return it as programs get it."""
        return {
            "code": self.code,
            "is_in_the_way": self.is_in_the_way,
            "what": self.what,
            "remedy": self.mend.by_hand or None,
            "commands": list(self.commands),
        }
