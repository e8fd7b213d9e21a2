"""maps: the map of the records on the report, by principal components and by t-SNE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from featuremill.kit.processes import SNAKEFILE
from featuremill.step import Command, Product, Project, Section, State, stated
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
    """The seed of t-SNE: equal seeds give equal maps."""
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


def products(section: Maps, project: Project) -> Sequence[Product]:
    """Return the map of each set of features."""
    return [
        Product(
            f"{KEY}.{name}",
            [f"{folder}/{FILE}"],
            [f"{folder}/manifest.json"],
            [f"{folder}/logs/{KEY}.log"],
            [f"{folder}/{FILE}"],
            config={"seed": section.seed, "perplexity": section.perplexity},
            card=partial(_listed, Path(folder)),
            on_report_of=folder,
        )
        for name, folder in project.features.items()
    ]


def figure(shown: Shown) -> Figure:
    """Return the map of the records."""
    from featuremill.steps.maps.draw import draw

    return draw(shown)


def _listed(folder: Path) -> State:
    """Return what a map lists of itself: a digest of the values, which decides here whether those
    of now are the same."""
    from featuremill.kit.files import sha256_of
    from featuremill.steps.maps.keep import made_of, read_card

    card, manifest = read_card(folder), folder / "manifest.json"
    is_same = card.get("made_of") == made_of(folder)
    return stated(card, {str(manifest): sha256_of(manifest) if is_same else "another one"})
