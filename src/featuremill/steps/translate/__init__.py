"""translate: contigs or reads become proteins, and the nucleotides that each is read from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from featuremill.base.errors import UserError
from featuremill.step import Command, Made, Project, Section
from featuremill.steps.translate.names import FILES, LOCK, NUCLEOTIDES, PROTEINS, SUMMARY

KEY = "translate"
ABOUT = (
    "How the inputs, contigs or reads, are cut into fragments (docs/translate.md), of which "
    "features are computed: `results/<run>/translate/`."
)
RULES = Path(__file__).with_name("rules.smk")
COMMANDS = {
    "translate": Command(
        "turn contigs or reads into proteins and the nucleotides that code them",
        "featuremill.steps.translate.command",
    )
}


class SECTION(Section):
    """How contigs are cut; the options of `featuremill translate`."""

    by: Literal["chunks", "virnucpro", "orfs", "genes"]
    """What a fragment is: a chunk in each frame without a stop, the same as VirNucPro cuts it, an
    open reading frame, a gene that prodigal finds."""
    window: int | None = None
    """chunks, virnucpro: nucleotides of each; 500 if not given."""
    code: int | None = None
    """orfs: NCBI's number of the genetic code, 1 if not given; genes with procedure single: 11."""
    min_residues: int | None = None
    """orfs: the fewest residues; 30 if not given."""
    orf: Literal["from-start", "between-stops"] | None = None
    """orfs: from a start codon of the code (if not given), or from the stop before."""
    procedure: Literal["meta", "single"] | None = None
    """genes: prodigal's; each contig by itself (if not given), or all are of one genome."""

    @property
    def options(self) -> dict[str, int | str]:
        """What is given of the options, by name."""
        return self.model_dump(exclude={"by"}, exclude_none=True)

    @property
    def words(self) -> list[str]:
        """The options of `featuremill translate`."""
        given = {"by": self.by, **self.options}
        return [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]


def folder_of(project: Project) -> str:
    """Return the folder with the fragments of a project."""
    return f"{project.folder}/{KEY}"


def records(asked: SECTION, project: Project) -> Mapping[str, str]:  # noqa: ARG001
    """Return the files of fragments by what they are."""
    folder = folder_of(project)
    return {"proteins": f"{folder}/{PROTEINS}", "nucleotides": f"{folder}/{NUCLEOTIDES}"}


def records_now(asked: SECTION, project: Project, folder: Path) -> Mapping[str, Path]:
    """Return the same, translated into `folder` where that was not done yet."""
    from featuremill.steps.translate.command import translate

    now, there = folder / KEY, Path(folder_of(project))
    translate([Path(path) for path in project.inputs], there, asked.by, now, **asked.options)
    found = now if now.exists() else there
    return {"proteins": found / PROTEINS, "nucleotides": found / NUCLEOTIDES}


def problems(asked: SECTION, project: Project) -> Iterator[tuple[tuple[str, ...], str]]:  # noqa: ARG001
    """Yield an option that says nothing here, or is none."""
    from featuremill.steps.translate.command import settled

    try:
        settled(asked.by, asked.options, lambda name, value: f"{name}: {value}".rstrip(": "))
    except UserError as error:
        yield (), str(error)


def made(asked: SECTION, project: Project) -> Sequence[Made]:  # noqa: ARG001
    """Return the fragments."""
    folder = folder_of(project)
    return [
        Made(
            KEY,
            [f"{folder}/{name}" for name in (*FILES, SUMMARY)],
            project.inputs,
            [f"{project.logs}/{KEY}.log"],
            [folder],
            lock=f"{folder}/{LOCK}",
            is_other=lambda late: _is_other(Path(folder), project.inputs, late),
            figures=lambda: _figures(Path(folder)),
        )
    ]


def _is_other(folder: Path, inputs: Sequence[str], late: Sequence[str]) -> bool:
    from featuremill.steps.translate.folder import Translation

    found = Translation.find(folder / SUMMARY)
    return found is None or not found.is_of_files(inputs, late)


def _figures(folder: Path) -> Mapping[str, int]:
    from featuremill.steps.translate.folder import Translation

    found = Translation.find(folder / SUMMARY)
    if found is None:
        return {}
    contigs = found.contigs
    return {
        "contigs": contigs.read,
        "without a fragment": contigs.without_fragments,
        "refused": contigs.refused,
        "fragments": found.fragments,
    }
