"""translate: contigs or reads become proteins, and the nucleotides that each is read from."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.step import Command, Made, Project, Section, State, stated
from featuremill.steps.translate.names import (
    FRAGMENTS,
    KINDS,
    LOCK,
    METHODS,
    PROTEINS,
    SHEETS,
    SUMMARY,
    UNTRANSLATED,
)

KEY = "translate"
ABOUT = (
    "How the inputs, contigs or reads, are cut into fragments (docs/translate.md), of which "
    "features are computed: `results/<run>/translate/`."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "base.yaml"
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
    def method(self) -> int:
        """The version of the way to cut."""
        return METHODS.get(self.by, 1)

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
    folder, names = folder_of(project), SHEETS if project.samples else KINDS
    return {kind: f"{folder}/{name}" for kind, name in names.items()}


def records_now(asked: SECTION, project: Project, folder: Path) -> Mapping[str, Path]:
    """Return the same, translated into `folder` where that was not done yet."""
    from featuremill.steps.translate.command import translate

    now, there = folder / KEY, Path(folder_of(project))
    inputs = [Path(path) for path in project.inputs]
    of = Path(project.samples) if project.samples else inputs
    translate(of, there, asked.by, now, **asked.options)
    found, names = now if now.exists() else there, SHEETS if project.samples else KINDS
    return {kind: found / name for kind, name in names.items()}


def proteins_of(paths: Sequence[str]) -> tuple[str, str]:
    """Return what to type, and the file of proteins that it makes."""
    folder = "translated"
    words = ["featuremill", "translate", *paths, "--by", "orfs", "--output", folder]
    return shlex.join(words), f"{folder}/{PROTEINS}"


def problems(asked: SECTION, project: Project) -> Iterator[tuple[tuple[str, ...], str]]:  # noqa: ARG001
    """Yield an option that says nothing here, or is none."""
    from featuremill.steps.translate.command import settled

    try:
        settled(asked.by, asked.options, lambda name, value: f"{name}: {value}".rstrip(": "))
    except UserError as error:
        yield (), str(error)


def made(asked: SECTION, project: Project) -> Sequence[Made]:
    """Return the fragments."""
    from featuremill.steps.translate.command import settled

    folder = folder_of(project)
    inputs = _inputs(project)
    options = settled(asked.by, asked.options, lambda name, _: name)
    return [
        Made(
            KEY,
            [f"{folder}/{name}" for name in (*files_of(project).values(), SUMMARY)],
            inputs,
            [f"{project.logs}/{KEY}.log"],
            [folder],
            lock=f"{folder}/{LOCK}",
            asked={"by": asked.by, "method": asked.method, **options},
            card=lambda: _listed(Path(folder)),
            figures=lambda: _figures(Path(folder)),
        )
    ]


def files_of(project: Project) -> Mapping[str, str]:
    """Return the files that Snakemake is told of, but for the summary, as its rule names them; of
    samples, the sheets."""
    tables = {"fragments": FRAGMENTS, "untranslated": UNTRANSLATED}
    return SHEETS if project.samples else KINDS | tables


def words_of_inputs(paths: Sequence[str], project: Project) -> list[str]:
    """Return what is translated, as it is typed; `paths` are the inputs as they are named there."""
    return ["--samples", paths[0]] if project.samples else list(paths)


def _inputs(project: Project) -> list[str]:
    """Return the files that are read; of a sheet of samples that cannot be, the sheet alone."""
    from featuremill.inputs import samples

    found = list(project.inputs)
    if project.samples:
        with contextlib.suppress(UserError):  # the job says it, and so does whoever starts it
            found += [row.file for row in samples.read(Path(project.samples)).rows]
    return list(dict.fromkeys(found))


def _listed(folder: Path) -> State:
    from featuremill.steps.translate.folder import Translation

    found = Translation.find(folder / SUMMARY)
    if found is None:
        return stated({})
    digests = {entry.path: entry.sha256 for entry in found.inputs}
    return stated({"by": found.by, "method": found.method, **found.options}, digests)


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
