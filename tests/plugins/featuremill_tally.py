"""A step outside the tree: how many records of the features have values."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.step import Command, Product, Project, Section

KEY = "tally"
ABOUT = "Counts the records of a set of features."
RULES = Path(__file__).with_name("featuremill_tally.smk")
COMMANDS = {"tally": Command("count the records of a finished run", "featuremill_tally_command")}


class SECTION(Section):
    """What is counted."""

    of: str | None = None
    """The set of features."""
    word: str = "records"
    """What stands behind the number."""


def problems(section: SECTION, project: Project) -> Iterator[tuple[tuple[str, ...], str]]:
    try:
        project.features_of(section.of)
    except UserError as error:
        yield ("of",), str(error)


def products(section: SECTION, project: Project) -> Sequence[Product]:
    run = project.features_of(section.of)
    file = f"{project.folder}/tally/tally.txt"
    log = f"{project.logs}/tally/tally.log"
    return [Product("tally", [file], [f"{run}/manifest.json"], [log], [f"{project.folder}/tally"])]
