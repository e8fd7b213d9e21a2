"""A step outside the tree, of the kit alone: the mean vector of each class that something was
trained on, as `groups` computes it. Its KEY is a word that other steps' rules might use."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.kit.tables import Table, words_of
from featuremill.step import Command, Name, Product, Project, Section

KEY = "trained"
ABOUT = "The mean vector of each class of a table."
RULES = Path(__file__).with_name("featuremill_trained.smk")
COMMANDS = {"trained": Command("average the vectors of classes", "featuremill_trained_command")}
TABLE = Table(KEY, ".parquet", ".missing.tsv", ("classes",))


class Trained(Section):
    """Which table, and which features."""

    labels: str
    """A table of records and their classes."""
    column: str
    """Its column of classes."""
    of: str | None = None
    """The set of features."""
    vectors: str | None = None
    """Which vectors, where the features have several columns."""

    @property
    def words(self) -> list[str]:
        return words_of({"column": self.column, "vectors": self.vectors})


SECTION = dict[Name, Trained]


def problems(
    sections: Mapping[str, Trained], project: Project
) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, one in sections.items():
        try:
            project.features_of(one.of)
        except UserError as error:
            yield (name, "of"), str(error)


def products(sections: Mapping[str, Trained], project: Project) -> Sequence[Product]:
    return [
        TABLE.product(
            name,
            project,
            [one.labels, f"{project.features_of(one.of)}/manifest.json"],
            {"column": one.column},
        )
        for name, one in sections.items()
    ]
