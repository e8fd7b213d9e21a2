"""The step `translate`: translate contigs or reads to proteins, with their nucleotides."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.step import Command, Problems, Product, Project, State, refused, stated
from featuremill.steps.translate.options import (
    FRAGMENTS,
    KINDS,
    LOCK,
    PROTEINS,
    SHEETS,
    SUMMARY,
    UNTRANSLATED,
    settled,
)
from featuremill.steps.translate.options import SECTION as SECTION

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


def folder_of(project: Project) -> str:
    """Return the folder with the fragments of a project."""
    return f"{project.folder}/{KEY}"


def records(section: SECTION, project: Project) -> Mapping[str, str]:  # noqa: ARG001
    """Return the files of fragments by kind."""
    folder, names = folder_of(project), SHEETS if project.samples else KINDS
    return {kind: f"{folder}/{name}" for kind, name in names.items()}


def records_now(section: SECTION, project: Project, folder: Path) -> Mapping[str, Path]:
    """Return the files of fragments by kind; translate into `folder` if they are missing or old."""
    from featuremill.steps.translate.command import translate

    new, existing = folder / KEY, Path(folder_of(project))
    inputs = [Path(path) for path in project.inputs]
    inputs_or_sheet = Path(project.samples) if project.samples else inputs
    translate(inputs_or_sheet, existing, section.by, new, **section.options)
    done, names = new if new.exists() else existing, SHEETS if project.samples else KINDS
    return {kind: done / name for kind, name in names.items()}


def proteins_of(paths: Sequence[str]) -> tuple[str, str]:
    """Return the command that translates `paths`, and its file of proteins."""
    folder = "translated"
    words = ["featuremill", "translate", *paths, "--by", "orfs", "--output", folder]
    return shlex.join(words), f"{folder}/{PROTEINS}"


def problems(section: SECTION, project: Project) -> Problems:  # noqa: ARG001
    """Yield an error if an option has no effect or a wrong value."""
    yield from refused((), settled, section.by, section.options)


def products(section: SECTION, project: Project) -> Sequence[Product]:
    """Return the product of the step: the fragments."""
    folder, options = folder_of(project), settled(section.by, section.options)
    return [
        Product(
            KEY,
            [f"{folder}/{name}" for name in (*files_of(project).values(), SUMMARY)],
            _inputs(project),
            [f"{project.logs}/{KEY}.log"],
            [folder],
            lock=f"{folder}/{LOCK}",
            config={"by": section.by, "method": section.method, **options},
            card=partial(_listed, Path(folder)),
            figures=partial(_figures, Path(folder)),
        )
    ]


def files_of(project: Project) -> Mapping[str, str]:
    """Return the rule's output files by name, without the summary; with samples, the sheets."""
    tables = {"fragments": FRAGMENTS, "untranslated": UNTRANSLATED}
    return SHEETS if project.samples else KINDS | tables


def words_of_inputs(paths: Sequence[str], project: Project) -> list[str]:
    """Return the words of the command that name the inputs `paths`."""
    return ["--samples", paths[0]] if project.samples else list(paths)


def _inputs(project: Project) -> list[str]:
    """Return the files that are read: inputs, or the sheet of samples and its files."""
    from featuremill.inputs import samples

    paths = list(project.inputs)
    if project.samples:
        with contextlib.suppress(UserError):  # other checks and the job report this error
            paths += [row.file for row in samples.read(Path(project.samples)).rows]
    return list(dict.fromkeys(paths))


def _listed(folder: Path) -> State:
    from featuremill.steps.translate.folder import Translation

    summary = Translation.find(folder / SUMMARY)
    if summary is None:
        return stated({})
    digests = {entry.path: entry.sha256 for entry in summary.inputs}
    return stated({"by": summary.by, "method": summary.method, **summary.options}, digests)


def _figures(folder: Path) -> Mapping[str, int]:
    from featuremill.steps.translate.folder import Translation

    summary = Translation.find(folder / SUMMARY)
    if summary is None:
        return {}
    contigs = summary.contigs
    return {
        "contigs": contigs.read,
        "without a fragment": contigs.without_fragments,
        "refused": contigs.refused,
        "fragments": summary.fragments,
    }
