"""verdicts: scores of fragments become one verdict a contig."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.text import listed
from featuremill.step import Command, Product, Project, Section

Problems = Iterator[tuple[tuple[str, ...], str]]
KEY = "verdicts"
ABOUT = (
    "What each contig is, by the predictions of its fragments (docs/contigs.md): "
    "`results/<run>/verdicts.tsv` and `verdicts.html`. Needs `translate` and `heads`."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "base.yaml"
COMMANDS = {
    "verdict": Command(
        "say of each contig what it is, by the scores of its fragments",
        "featuremill.steps.verdicts.command",
    )
}


class SECTION(Section):
    """How verdicts are reached; the options of `featuremill verdict`."""

    head: str | None = None
    """The head whose predictions count. Needed where there are several."""
    by: Literal["max", "mean"] = "max"
    """What of its fragments' scores is a contig's: the highest of each class, or the mean."""
    prefer: str | None = None
    """The class that a contig is of where two score the same; the last one if not given."""

    @property
    def words(self) -> list[str]:
        """The options of `featuremill verdict`."""
        return [f"--by={self.by}", *([f"--prefer={self.prefer}"] if self.prefer else [])]


def head_of(section: Any, project: Project) -> str:
    """Return the name of the head that a section with a key `head` uses.

    Raises:
        UserError: there is none, or no translation.
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


def folder_of_head(section: Any, project: Project) -> str:
    """Return the folder of that head."""
    from featuremill.steps import heads

    name = head_of(section, project)
    return heads.folder_of(name, project.sections[heads.KEY][name], project)


def inputs_of(section: Any, project: Project) -> Mapping[str, str | Sequence[str]]:
    """Return the input files of the verdicts, by their names in the rules."""
    from featuremill.steps import heads, translate

    head = head_of(section, project)
    runs = heads.features_of(project.sections[heads.KEY][head], project)
    return {
        "summary": f"{translate.folder_of(project)}/translate.json",
        "predictions": heads.predictions_of(head, project),
        "card": f"{folder_of_head(section, project)}/head.json",
        "manifests": [f"{run}/manifest.json" for run in runs],
    }


def paths_of(inputs: Mapping[str, str | Sequence[str]]) -> list[str]:
    """Return the files that `inputs_of` names, of this step or of `virnucpro`."""
    named = ([paths] if isinstance(paths, str) else paths for paths in inputs.values())
    return [*chain.from_iterable(named)]


def table_of(project: Project) -> str:
    """Return the table of verdicts."""
    return f"{project.folder}/{KEY}.tsv"


def problems(section: SECTION, project: Project) -> Problems:
    """Yield a missing head."""
    try:
        head_of(section, project)
    except UserError as error:
        yield (("head",) if section.head else ()), str(error)


def problems_of_files(section: SECTION, project: Project) -> Problems:
    """Yield a preferred class that the head in a folder does not have."""
    from featuremill.steps import heads
    from featuremill.steps.heads.card import CARD, Card

    folder = project.sections[heads.KEY][head_of(section, project)].folder
    if folder and (card := Card.find(Path(folder) / CARD)):
        yield from _not_among(card.classes, section, folder)


def problems_of_records(section: SECTION, project: Project) -> Problems:
    """Yield a preferred class that a head will not have after training."""
    from featuremill.steps import heads

    name = head_of(section, project)
    head = project.sections[heads.KEY][name]
    source = f"{head.labels or project.samples}, column {head.column},"
    with suppress(UserError):  # a problem of the head
        yield from _not_among(heads.classes_of(name, head, project), section, source)


def _not_among(classes: Sequence[str], section: SECTION, source: str) -> Problems:
    from featuremill.steps.verdicts.choices import place_of_preferred

    try:
        place_of_preferred(section.prefer if classes else None, classes, source, "prefer:")
    except UserError as error:
        yield ("prefer",), str(error)


def products(section: SECTION, project: Project) -> Sequence[Product]:
    """Return the table and its page."""
    table = table_of(project)
    page = table.removesuffix(".tsv") + ".html"
    options = section.model_dump(include={"by", "prefer"})
    log = f"{project.logs}/{KEY}.log"
    counts = lambda: _figures(Path(table))  # noqa: E731
    return [
        Product(
            KEY,
            [page, table],
            paths_of(inputs_of(section, project)),
            [log],
            [table, page],
            figures=counts,
            config=options,
        )
    ]


def _figures(table: Path) -> Mapping[str, int]:
    from featuremill.steps.verdicts.contigs import counts_in

    return counts_in(table)
