"""maps: the map of the records on the report, by principal components and by t-SNE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from featuremill.kit.processes import SNAKEFILE
from featuremill.step import Command, Made, Project, Section
from featuremill.step.drawing import Shown

if TYPE_CHECKING:
    from featuremill.kit.pages import Figure

KEY = "maps"
TAKES_SAMPLES = True
ABOUT = (
    "The neighbour embedding (t-SNE) on the report's map (docs/report.md), kept in "
    "`results/<run>/map.parquet`. Needs the extra `maps`."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "maps.yaml"
COMMANDS = {
    "map": Command("place the records of a run by t-SNE, for its report", "featuremill.steps.maps.command")
}
FILE = "map.parquet"
MOST_RECORDS = 50_000
"""Of more, t-SNE takes a sample."""
MOST_SHOWN = 10_000
"""On a report."""
PERPLEXITY = 30.0


class Maps(Section):
    """How records are placed."""

    seed: int = Field(default=0, ge=0, strict=True)
    """The same seed, the same picture."""
    perplexity: float = Field(default=PERPLEXITY, gt=1)
    """About how many neighbours of a record count."""
    vectors: str | None = None
    """Which vectors, where the features have several columns. The report shows the first."""

    @property
    def words(self) -> list[str]:
        """The options of `featuremill map`."""
        words = [f"--seed={self.seed}", f"--perplexity={self.perplexity:g}"]
        return [*words, f"--vectors={self.vectors}"] if self.vectors else words


SECTION = Maps


def problems(asked: Maps, project: Project) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield nothing: each value is checked by itself."""
    yield from ()


def made(asked: Maps, project: Project) -> Sequence[Made]:
    """Return the map of each set of features."""
    return [
        Made(
            f"{KEY}.{name}",
            [f"{folder}/{FILE}"],
            [f"{folder}/manifest.json"],
            [f"{folder}/logs/{KEY}.log"],
            [f"{folder}/{FILE}"],
            is_other=partial(_is_other, Path(folder)),
            asked={"seed": asked.seed, "perplexity": asked.perplexity},
            made_by=partial(_made_by, Path(folder)),
        )
        for name, folder in project.features.items()
    ]


def drawn(asked: Maps, folder: str) -> Sequence[str]:
    """Return the file that the report is drawn from."""
    return [f"{folder}/{FILE}"]


def figure(shown: Shown) -> Figure:
    """Return the map of the records."""
    from featuremill.steps.maps.draw import draw

    return draw(shown)


def _made_by(folder: Path) -> Mapping[str, Any]:
    from featuremill.steps.maps.keep import read_card

    return read_card(folder)


def _is_other(folder: Path, late: Sequence[str]) -> bool:
    from featuremill.steps.maps.keep import made_of, read_card

    return bool(late) and read_card(folder).get("made_of") != made_of(folder)
