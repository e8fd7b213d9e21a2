"""The step `maps`: compute the t-SNE map of the records for the report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featuremill.kit.processes import SNAKEFILE
from featuremill.step import Command, Problems, Product, Project, State, stated
from featuremill.steps.maps.section import FILE, Maps

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
            config=section.model_dump(),
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
    from featuremill.steps.maps.command import made_of, read_card

    card, manifest = read_card(folder), folder / "manifest.json"
    is_same = card.get("made_of") == made_of(folder)
    return stated(card, {str(manifest): sha256_of(manifest) if is_same else "another one"})
