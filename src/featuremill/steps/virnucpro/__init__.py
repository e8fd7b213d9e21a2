"""virnucpro: the files that VirNucPro leaves behind, from fragments, features and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.step import Command, Product, Project, Section

KEY = "virnucpro"
ABOUT = (
    "Also VirNucPro's files (docs/contigs.md): `results/<run>/virnucpro/`. Needs `translate` by "
    "virnucpro or chunks, and a head of two classes."
)
RULES = Path(__file__).with_name("rules.smk")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "esm2.yaml"


def _without_predict(words: list[str]) -> list[str]:
    """Return `words` without the subcommand of VirNucPro, as in `virnucpro predict my.fa`."""
    if "predict" not in words:
        return words
    index = words.index("predict")
    before = words[index - 1]
    is_value = before.startswith("-") and before not in ("-q", "--quiet", "-v", "--verbose")
    return words if is_value else [*words[:index], *words[index + 1 :]]


COMMANDS = {
    "virnucpro": Command(
        "predict which contigs are of viruses, by VirNucPro's flags, into its files",
        "featuremill.steps.virnucpro.command",
        error_status=1,  # VirNucPro's 2 means that some sequences failed
        words=_without_predict,
    ),
    "virnucpro-files": Command(
        "write the files of VirNucPro from fragments, features and scores",
        "featuremill.steps.virnucpro.files",
    ),
}
KINDS = ("nucleotides", "proteins")
"""In the order of a head's features: VirNucPro has DNA first."""
CUTS = ("virnucpro", "chunks")
"""Ways to translate that leave windows, as its files have them."""
FAILED = "failed_files.txt"
RESULTS, HIGHEST = "prediction_results.txt", "prediction_results_highestscore.csv"
"""The last file of predictions is the second."""


class SECTION(Section):
    """Which of VirNucPro's files, and where."""

    head: str | None = None
    """The head whose predictions count. Needed where there are several."""
    files: Literal["predictions", "all"] = "predictions"
    """Which files: the predictions, or also the sequences and features."""
    nucleotides: str | None = None
    """The set of features of nucleotides; the one that is called so if not given."""
    proteins: str | None = None
    """The set of features of proteins; the one that is called so if not given."""
    folder: str | None = None
    """Where they go, if not to `results/<run>/virnucpro`."""


class Files(NamedTuple):
    """VirNucPro's files whose number is known before the fragments are."""

    results: str
    failed: str
    highest: str


def folder_of(section: SECTION, project: Project) -> Path:
    """Return the folder that VirNucPro's files go to."""
    return Path(section.folder or f"{project.folder}/{KEY}")


def files_of(section: SECTION, project: Project) -> Files:
    """Return the paths of the files of the step."""
    folder = folder_of(section, project)
    merged = folder / f"{project.name}_merged"
    return Files(str(merged / RESULTS), str(folder / FAILED), str(merged / HIGHEST))


def sets_of(section: SECTION, project: Project) -> Mapping[str, str]:
    """Return the folders of the features by kind.

    Raises:
        UserError: when there are none.
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
    """Return the input files of the step, by their names in the rules."""
    from featuremill.steps import verdicts

    manifests = [f"{run}/manifest.json" for run in sets_of(section, project).values()]
    return {**verdicts.inputs_of(section, project), "manifests": manifests}


def problems(section: SECTION, project: Project) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield samples, a missing head or missing features, and fragments that VirNucPro does not
    use."""
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
    """Return the files."""
    from featuremill.steps import verdicts

    folder = folder_of(section, project)
    inputs = verdicts.paths_of(inputs_of(section, project))
    options = {**section.model_dump(include={"files"}), "sets": [*sets_of(section, project)]}
    names = (*(f"{project.name}_{kind}" for kind in ("merged", "nucleotide", "protein")), FAILED)
    removable = [str(folder / name) for name in names]
    log = f"{project.logs}/{KEY}.log"
    return [Product(KEY, files_of(section, project), inputs, [log], removable, config=options)]
