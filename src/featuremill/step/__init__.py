"""The contract of a step: what a project makes before or after features, and nothing else.

A step imports `featuremill.step`, `featuremill.features`, `featuremill.inputs` (`inputs.labels` has
a table's labels) and of `featuremill.base` errors, words, text and progress.

It is a module (or any object) with the attributes of `Step`, registered as an entry point of
the group `featuremill.steps` under its key of the config; those that come along stand in
`featuremill.steps` and are registered likewise. The core checks the config, includes the rules, and
says in `status`, `top` and `clean` what there is; a step says what its files are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from featuremill.base.errors import UserError
from featuremill.base.text import plain_name as plain_name
from featuremill.base.words import listed

if TYPE_CHECKING:
    import pyarrow as pa


class Section(BaseModel):
    """Base of every part of the config: unknown keys refused, field docstrings as descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Several = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
"""Texts; of a single one, the brackets may be left out."""
Name = Annotated[str, AfterValidator(plain_name)]
"""What a folder may be called."""


class Ahead(NamedTuple):
    """What a set of features is going to have, known before there are weights."""

    schema: pa.Schema
    """Of its results; `features.columns_of` says which columns are vectors."""
    settings: Mapping[str, Any]
    """Workload, version and options as in its recipe, without what only the weights tell."""


def _unknown(_: str) -> Ahead | None:
    return None


class Project(NamedTuple):
    """What a step knows of the project."""

    name: str
    """Its `run`."""
    inputs: Sequence[str]
    """The files of its records; of a sheet of samples, the sheet alone."""
    features: Mapping[str, str]
    """The folder of each set of features, by its name in the config; of a config without sets, that
    of the run by the run's own name."""
    sections: Mapping[str, Any]
    """What is asked of each step, by KEY."""
    ahead: Callable[[str], Ahead | None] = _unknown
    """Returns what the features called so are going to have; None where that is not known yet, of a
    finished run elsewhere, and everywhere but in `problems_of_files`."""
    samples: str = ""
    """The sheet of samples, in a project that has one: ids are unique within a sample then, and
    `Features.ids_of` gives `<sample>/<id>`."""

    @property
    def folder(self) -> str:
        """Where its files go: results/<run>, from where Snakemake runs."""
        return f"results/{self.name}"

    @property
    def logs(self) -> str:
        """Where the logs of its steps go, in a folder of each step's KEY."""
        return f"{self.folder}/logs"

    def features_of(self, name: str | None) -> str:
        """Return the folder of the features called `name`, which a config without sets need not
        name; one with a / in it is the folder of a finished run elsewhere.

        Raises:
            UserError: there are none of that name, or several and no name.
        """
        if name is None and len(self.features) == 1:
            return next(iter(self.features.values()))
        if name is None:
            raise UserError(f"name the features, one of {listed(self.features)}.")
        if "/" in name:
            return name.rstrip("/")
        if name not in self.features:
            known = f"there are {listed(self.features)}, or give the folder of a finished run"
            raise UserError(f"there are no features {name!r}; {known}, such as results/known.")
        return self.features[name]


class Made(NamedTuple):
    """Files that a step makes together, of one thing that the config asks for."""

    label: str
    """What status calls it, such as autoencoders.residues."""
    files: Sequence[str]
    """What Snakemake is asked for; there is all of it once the last one is there, which is what
    people are shown."""
    made_of: Sequence[str]
    """Files: when one of them is newer, this is of what was before, unless `is_other` knows better:
    Snakemake compares the content of small files."""
    logs: Sequence[str]
    """Of the jobs that make it, in their order."""
    removable: Sequence[str]
    """Files and folders that `clean --keep nothing` removes, with the logs; what a killed job left
    in a folder goes with it."""
    progress: Callable[[], str] = str
    """Says in a few words how far it is, while it is made; "" where nothing is known."""
    is_other: Callable[[Sequence[str]], bool] = bool
    """Tells of those of `made_of` that are newer whether the files were made of something else."""
    figures: Callable[[], Mapping[str, int]] = dict
    """Counts what is in the files, once they are there, such as fragments."""
    lock: str = ""
    """A file that whoever makes them holds locked, so that `clean` leaves them alone."""

    def stands(self) -> Literal["no", "yes", "older"]:
        """Tell whether there is all of it; older: what it was made of has changed since."""
        last = Path(self.files[-1])
        if not last.exists():
            return "no"
        there = [path for path in self.made_of if Path(path).exists()]
        late = [path for path in there if Path(path).stat().st_mtime > last.stat().st_mtime]
        return "older" if self.is_other(late) else "yes"


class Command(NamedTuple):
    """A command line that a step brings."""

    summary: str
    module: str
    """Its `add_arguments(parser)` returns the parsers of what it can do, if that is several; its
    `run(arguments)` carries it out."""
    error_status: int | None = None
    """What it ends with on every error, where the usual statuses have another meaning."""
    words: Callable[[list[str]], list[str]] = list
    """Changes what was typed before it is read."""


class Step(Protocol):
    """What the core asks. Importing a step costs nothing."""

    KEY: str
    """Its key of the config, and its folder in results/<run>/."""
    ABOUT: str
    """In a sentence, what stands below the key."""
    SECTION: Any
    """The type of that: a `Section`, or a mapping of names to one."""
    RULES: Path
    """Rules that are included where a config has the key. `mill.steps[KEY]` is what was asked, and
    `mill.project` the project. Names in it begin with the KEY: all rules share them. A `params` has
    paths of `input` and `output` (`subpath`), since a module's prefix moves these alone. A job
    without `conda:` runs where Snakemake does, so a package of its own is found."""
    COMMANDS: Mapping[str, Command]

    def problems(self, asked: Any, project: Project) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what is wrong with the section `asked` and would end a job: the key below KEY, and
        a sentence. No look at files that a job may make."""

    def made(self, asked: Any, project: Project) -> Sequence[Made]:
        """Return what is made, in its order."""


@runtime_checkable
class TakesSamples(Protocol):
    """A step that may stand in a project with a sheet of samples; others are refused there."""

    TAKES_SAMPLES: bool


@runtime_checkable
class ChecksFiles(Protocol):
    """A step that looks into files before the first job."""

    def problems_of_files(
        self, asked: Any, project: Project
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield, as `problems` does, what files that are there would make a job refuse. Files that
        are not there yet are passed over: another rule may make them."""


@runtime_checkable
class MakesRecords(Protocol):
    """A step that comes before features: these are computed of what it makes of the inputs."""

    def records(self, asked: Any, project: Project) -> Mapping[str, str]:
        """Return the files that sets of features may read, by kind of records. A set takes what its
        `of` names, or is called by; without either, the first. In a project with samples each is a
        sheet of them: another one where a file of it is another."""

    def records_now(self, asked: Any, project: Project, folder: Path) -> Mapping[str, Path]:
        """Return the same files, made in `folder` where they are not there and up to date."""
