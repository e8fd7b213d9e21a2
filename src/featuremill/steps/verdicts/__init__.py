"""The step `verdicts`: classify contigs by the scores of their fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.text import listed
from featuremill.step import Command, Problems, Product, Project, Section, refused

KEY = "verdicts"
ABOUT = (
    "What each contig is, by the predictions of its fragments (docs/contigs.md): "
    "`results/<run>/verdicts.tsv` and `verdicts.html`. Needs `translate` and `heads`."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "base.yaml"
COMMANDS = {
    "verdict": Command(
        "classify contigs by the scores of their fragments",
        "featuremill.steps.verdicts.command",
    )
}


class SECTION(Section):
    """The head and the rule of the verdicts; the options of `featuremill verdict`."""

    head: str | None = None
    """The head whose predictions are used. Required if there are several heads."""
    by: Literal["max", "mean"] = "max"
    """The score of a contig: the highest score of its fragments for each class, or the mean."""
    prefer: str | None = None
    """The class of a contig whose highest scores are equal. If not given, the last class."""

    @property
    def words(self) -> list[str]:
        """The options of `featuremill verdict`."""
        return [f"--by={self.by}", *([f"--prefer={self.prefer}"] if self.prefer else [])]


def head_of(section: Any, project: Project) -> str:
    """Return the name of the head of a section with a key `head`.

    Raises:
        UserError: the project has no such head, or no translation.
    """
    from featuremill.steps import heads, translate

    known: Mapping[str, Any] = project.sections.get(heads.KEY, {})
    if translate.KEY not in project.sections:
        raise UserError(f"contigs have to be cut into fragments; add `{translate.KEY}:`.")
    if not known:
        raise UserError(f"these are made of a head's predictions; add `{heads.KEY}:`.")
    if section.head is None and len(known) > 1:
        raise UserError(f"name the head, one of {listed(known)}.")
    if section.head is not None and section.head not in known:
        raise UserError(f"there is no head {section.head!r}; there are {listed(known)}.")
    name = section.head or next(iter(known))
    if not known[name].has_classes:
        raise UserError(f"the head {name!r} predicts no class of a record; name one that does.")
    return name


def inputs_of(section: Any, project: Project) -> Mapping[str, str | Sequence[str]]:
    """Return the input files of the verdicts, by their names in rules.smk."""
    from featuremill.steps import heads, translate

    name = head_of(section, project)
    head = project.sections[heads.KEY][name]
    runs = heads.features_of(head, project)
    return {
        "summary": f"{translate.folder_of(project)}/translate.json",
        "predictions": heads.predictions_of(name, project),
        "card": f"{heads.folder_of(name, head, project)}/head.json",
        "manifests": [f"{run}/manifest.json" for run in runs],
    }


def paths_of(inputs: Mapping[str, str | Sequence[str]]) -> list[str]:
    """Return all files of a mapping from `inputs_of`, of this step or of `virnucpro`."""
    lists = ([paths] if isinstance(paths, str) else paths for paths in inputs.values())
    return [*chain.from_iterable(lists)]


def table_of(project: Project) -> str:
    """Return the path of the table of verdicts."""
    return f"{project.folder}/{KEY}.tsv"


def problems(section: SECTION, project: Project) -> Problems:
    """Yield an error if the head is missing."""
    yield from refused(("head",) if section.head else (), head_of, section, project)


def problems_of_files(section: SECTION, project: Project) -> Problems:
    """Yield an error if the head of a folder lacks the preferred class."""
    from featuremill.steps import heads
    from featuremill.steps.heads.card import CARD, Card

    folder = project.sections[heads.KEY][head_of(section, project)].folder
    if folder and (card := Card.find(Path(folder) / CARD)):
        yield from _missing_class(card.classes, section, folder)


def problems_of_records(section: SECTION, project: Project) -> Problems:
    """Yield an error if the head will lack the preferred class after training."""
    from featuremill.steps import heads

    name = head_of(section, project)
    head = project.sections[heads.KEY][name]
    source = f"{head.labels or project.samples}, column {head.column},"
    with suppress(UserError):  # the step `heads` reports this error
        yield from _missing_class(heads.classes_of(name, head, project), section, source)


def _missing_class(classes: Sequence[str], section: SECTION, source: str) -> Problems:
    from featuremill.steps.verdicts.contigs import index_of_preferred

    name = section.prefer if classes else None
    yield from refused(("prefer",), index_of_preferred, name, classes, source, "prefer:")


def products(section: SECTION, project: Project) -> Sequence[Product]:
    """Return the product of the step: the table and its page."""
    table = table_of(project)
    page = table.removesuffix(".tsv") + ".html"
    return [
        Product(
            KEY,
            [page, table],
            paths_of(inputs_of(section, project)),
            [f"{project.logs}/{KEY}.log"],
            [table, page],
            figures=partial(_figures, Path(table)),
            config=section.model_dump(include={"by", "prefer"}),
        )
    ]


def _figures(table: Path) -> Mapping[str, int]:
    from featuremill.steps.verdicts.contigs import counts_in

    return counts_in(table)
