"""maps: the map of the records on the report, by principal components and by t-SNE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from featuremill.kit.processes import SNAKEFILE
from featuremill.step import Command, Made, Project, Section
from featuremill.steps.maps.limits import FILE as FILE
from featuremill.steps.maps.limits import PERPLEXITY

if TYPE_CHECKING:
    from featuremill.features.shown import Shown
    from featuremill.kit.pages import Figure

KEY = "maps"
ABOUT = (
    "The neighbour embedding (t-SNE) on the report's map (docs/report.md), kept in "
    "`results/<run>/map.parquet`. Needs the extra `maps`."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "maps.yaml"
PACKAGES = {"openTSNE": "featuremill[maps]"}
COMMANDS = {
    "map": Command(
        "place the records of a run by t-SNE, for its report", "featuremill.steps.maps.command"
    )
}


class Maps(Section):
    """How records are placed."""

    seed: int = Field(default=0, ge=0, strict=True)
    """The same seed, the same picture."""
    perplexity: float = Field(default=PERPLEXITY, gt=1)
    """About how many neighbours of a record count."""

    @property
    def words(self) -> list[str]:
        """The options of `featuremill map`."""
        return [f"--seed={self.seed}", f"--perplexity={self.perplexity:g}"]


SECTION = Maps


def problems(*_: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return no errors: each value is checked by itself."""
    return iter(())


def made(section: Maps, project: Project) -> Sequence[Made]:
    """Return the map of each set of features."""
    return [
        Made(
            f"{KEY}.{name}",
            [f"{folder}/{FILE}"],
            [f"{folder}/manifest.json"],
            [f"{folder}/logs/{KEY}.log"],
            [f"{folder}/{FILE}"],
            is_other=partial(_is_other, Path(folder)),
            asked={"seed": section.seed, "perplexity": section.perplexity},
            made_by=partial(_made_by, Path(folder)),
            on_report_of=folder,
        )
        for name, folder in project.features.items()
    ]


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
