"""translate: contigs or reads become proteins, and the nucleotides that each is read from."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.step import Command, Product, Project, State, stated
from featuremill.steps.translate.names import (
    FRAGMENTS,
    KINDS,
    LOCK,
    PROTEINS,
    SHEETS,
    SUMMARY,
    UNTRANSLATED,
)
from featuremill.steps.translate.options import SECTION as SECTION
from featuremill.steps.translate.options import settled

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
    """Return the files of fragments by what they are."""
    folder, names = folder_of(project), SHEETS if project.samples else KINDS
    return {kind: f"{folder}/{name}" for kind, name in names.items()}


def records_now(section: SECTION, project: Project, folder: Path) -> Mapping[str, Path]:
    """Return the same, translated into `folder` where that was not done yet."""
    from featuremill.steps.translate.command import translate

    now, there = folder / KEY, Path(folder_of(project))
    inputs = [Path(path) for path in project.inputs]
    inputs_or_sheet = Path(project.samples) if project.samples else inputs
    translate(inputs_or_sheet, there, section.by, now, **section.options)
    done, names = now if now.exists() else there, SHEETS if project.samples else KINDS
    return {kind: done / name for kind, name in names.items()}


def proteins_of(paths: Sequence[str]) -> tuple[str, str]:
    """Return what to type, and the file of proteins that it makes."""
    folder = "translated"
    words = ["featuremill", "translate", *paths, "--by", "orfs", "--output", folder]
    return shlex.join(words), f"{folder}/{PROTEINS}"


def problems(section: SECTION, project: Project) -> Iterator[tuple[tuple[str, ...], str]]:  # noqa: ARG001
    """Yield an option that has no effect here, or cannot have its value."""
    try:
        settled(section.by, section.options, lambda name, value: f"{name}: {value}".rstrip(": "))
    except UserError as error:
        yield (), str(error)


def products(section: SECTION, project: Project) -> Sequence[Product]:
    """Return the fragments."""
    folder = folder_of(project)
    inputs = _inputs(project)
    options = settled(section.by, section.options, lambda name, _: name)
    return [
        Product(
            KEY,
            [f"{folder}/{name}" for name in (*files_of(project).values(), SUMMARY)],
            inputs,
            [f"{project.logs}/{KEY}.log"],
            [folder],
            lock=f"{folder}/{LOCK}",
            config={"by": section.by, "method": section.method, **options},
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

    paths = list(project.inputs)
    if project.samples:
        with contextlib.suppress(UserError):  # the job says it, and so does whoever starts it
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
