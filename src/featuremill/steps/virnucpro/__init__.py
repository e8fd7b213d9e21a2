"""The step `virnucpro`: write VirNucPro's files from fragments, features and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.step import Command, Problems, Product, Project, Section

KEY = "virnucpro"
ABOUT = (
    "Also VirNucPro's files (docs/contigs.md): `results/<run>/virnucpro/`. Needs `translate` by "
    "virnucpro or chunks, and a head of two classes."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "esm2.yaml"


def _without_predict(words: list[str]) -> list[str]:
    """Return `words` without VirNucPro's subcommand `predict`, as in `virnucpro predict my.fa`."""
    if "predict" not in words:
        return words
    index = words.index("predict")
    before = words[index - 1]
    is_value = before.startswith("-") and before not in ("-q", "--quiet", "-v", "--verbose")
    return words if is_value else [*words[:index], *words[index + 1 :]]


COMMANDS = {
    "virnucpro": Command(
        "classify contigs as viruses or others, with VirNucPro's flags and files",
        "featuremill.steps.virnucpro.command",
        error_status=1,  # status 2 of VirNucPro: some sequences failed
        words=_without_predict,
    ),
    "virnucpro-files": Command(
        "write the files of VirNucPro from fragments, features and scores",
        "featuremill.steps.virnucpro.files",
    ),
}
KINDS = ("nucleotides", "proteins")
"""The kinds of features in the order of a head's features: DNA is first in VirNucPro."""
CUTS = ("virnucpro", "chunks")
"""The values of `translate: by:` that divide contigs into windows."""
FAILED = "failed_files.txt"
RESULTS, HIGHEST = "prediction_results.txt", "prediction_results_highestscore.csv"
"""The files of predictions; HIGHEST is written last."""


class SECTION(Section):
    """The files of VirNucPro to write, and their inputs."""

    head: str | None = None
    """The head whose predictions are used. Required if there are several heads."""
    files: Literal["predictions", "all"] = "predictions"
    """Which files: the predictions, or also the sequences and features."""
    nucleotides: str | None = None
    """The set of features of nucleotides. If not given, the set with the name `nucleotides`."""
    proteins: str | None = None
    """The set of features of proteins. If not given, the set with the name `proteins`."""
    folder: str | None = None
    """The output folder. If not given, `results/<run>/virnucpro`."""


class Files(NamedTuple):
    """VirNucPro's files that do not depend on the number of fragments."""

    results: str
    failed: str
    highest: str


def folder_of(section: SECTION, project: Project) -> Path:
    """Return the output folder of VirNucPro's files."""
    return Path(section.folder or f"{project.folder}/{KEY}")


def files_of(section: SECTION, project: Project) -> Files:
    """Return the paths of the files of the step."""
    folder = folder_of(section, project)
    merged = folder / f"{project.name}_merged"
    return Files(str(merged / RESULTS), str(folder / FAILED), str(merged / HIGHEST))


def sets_of(section: SECTION, project: Project) -> Mapping[str, str]:
    """Return the folders of the features by kind.

    Raises:
        UserError: there are no features of either kind.
    """
    names = {
        kind: getattr(section, kind) or kind
        for kind in KINDS
        if getattr(section, kind) or kind in project.features
    }
    if not names:
        raise UserError("name the features of proteins and those of nucleotides.")
    return {kind: project.features_of(name) for kind, name in names.items()}


def inputs_of(section: SECTION, project: Project) -> Mapping[str, str | Sequence[str]]:
    """Return the input files of the step, by their names in rules.smk."""
    from featuremill.steps import verdicts

    manifests = [f"{run}/manifest.json" for run in sets_of(section, project).values()]
    return {**verdicts.inputs_of(section, project), "manifests": manifests}


def problems(section: SECTION, project: Project) -> Problems:
    """Yield errors: samples, no head, no features, or fragments that are not windows."""
    from featuremill.steps import translate, verdicts

    if project.samples:
        yield (), "this step takes no samples; leave it out, or name the files with inputs."
        return
    try:
        verdicts.head_of(section, project)
        sets_of(section, project)
    except UserError as error:
        yield (), str(error)
        return
    if (by := project.sections[translate.KEY].by) not in CUTS:
        yield (), f"its files are of windows, not of {by}; write translate: {{by: virnucpro}}."


def products(section: SECTION, project: Project) -> Sequence[Product]:
    """Return the product of the step."""
    from featuremill.steps import verdicts

    folder = folder_of(section, project)
    inputs = verdicts.paths_of(inputs_of(section, project))
    options = {**section.model_dump(include={"files"}), "sets": [*sets_of(section, project)]}
    names = (*(f"{project.name}_{kind}" for kind in ("merged", "nucleotide", "protein")), FAILED)
    removable = [str(folder / name) for name in names]
    log = f"{project.logs}/{KEY}.log"
    return [Product(KEY, files_of(section, project), inputs, [log], removable, config=options)]
