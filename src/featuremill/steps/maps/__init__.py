"""The step `maps`: compute the t-SNE map of the records for the report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from featuremill.kit.processes import SNAKEFILE
from featuremill.step import Command, Problems, Product, Project, Section, State, stated
from featuremill.steps.maps.limits import FILE as FILE
from featuremill.steps.maps.limits import PERPLEXITY

if TYPE_CHECKING:
    from featuremill.features.records import Shown
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
    """Options of t-SNE."""

    seed: int = Field(default=0, ge=0, strict=True)
    """The random seed of t-SNE; equal seeds give equal maps."""
    perplexity: float = Field(default=PERPLEXITY, gt=1)
    """The perplexity of t-SNE: approximately the number of neighbours of a record."""

    @property
    def words(self) -> list[str]:
        """The options of `featuremill map`."""
        return [f"--seed={self.seed}", f"--perplexity={self.perplexity:g}"]


SECTION = Maps


def problems(*_: Any) -> Problems:
    """Return no errors, as the fields are checked one by one."""
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
    """Return the state of a map from its card. It is current if its digest of the values is that
    of the results."""
    from featuremill.kit.files import sha256_of
    from featuremill.steps.maps.keep import made_of, read_card

    card, manifest = read_card(folder), folder / "manifest.json"
    is_same = card.get("made_of") == made_of(folder)
    return stated(card, {str(manifest): sha256_of(manifest) if is_same else "another one"})
