"""The contract of a step: results that a project makes before or after features.

A step imports `featuremill.step`, `featuremill.features`, `featuremill.inputs` (`inputs.labels`
reads the labels of a table) and `featuremill.kit` (docs/kit.md).

A step is a module (or any object) with the attributes of `Step`, registered as an entry point of
the group `featuremill.steps` under its key of the config. The built-in ones are in
`featuremill.steps` and are registered in the same way. The core checks the config, includes the
rules, and shows the step's files in `status`, `top` and `clean`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from featuremill.base.described import Described
from featuremill.base.errors import UserError
from featuremill.base.id_columns import IdColumns
from featuremill.base.text import plain_name as plain_name
from featuremill.base.words import Change, in_words, listed
from featuremill.store import state
from featuremill.store.state import Seen
from featuremill.store.state import State as State
from featuremill.store.state import stated as stated

if TYPE_CHECKING:
    import pyarrow as pa

    from featuremill.base.environment import Variable


class Section(Described):
    """Base of each section of the config: unknown keys are refused, docstrings of fields are their
    descriptions."""


Several = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
"""One or several texts; a single one needs no brackets."""
Name = Annotated[str, AfterValidator(plain_name)]
"""A name that may be a folder's."""
Problems = Iterator[tuple[tuple[str, ...], str]]
"""Errors of a section that would end a job: the key below KEY, and a sentence."""


def refused(key: tuple[str, ...], check: Callable[..., object], *arguments: Any) -> Problems:
    """Yield the key with the message of the UserError that `check(*arguments)` raises, if any."""
    try:
        check(*arguments)
    except UserError as error:
        yield key, str(error)


class Ahead(NamedTuple):
    """A set of features before its weights are on disk."""

    schema: pa.Schema
    """The schema of its results; `features.columns_of` has the columns of vectors."""
    settings: Mapping[str, Any]
    """Workload, version and options of its recipe, without what only the weights determine."""


class Project(NamedTuple):
    """The project, as a step sees it."""

    name: str
    """The config's `run`."""
    inputs: Sequence[str]
    """The files of its records; of a sheet of samples, the sheet only."""
    features: Mapping[str, str]
    """The folder of each set of features by its name in the config; without sets, the folder of the
    run by the run's name."""
    sections: Mapping[str, Any]
    """The section of each step, by KEY."""
    ahead: Callable[[str], Ahead | None] = lambda _: None
    """Returns the schema and settings of a set of features before its weights are on disk; None if
    they are unknown, for a finished run elsewhere, and outside `problems_of_files`."""
    samples: str = ""
    """The sheet of samples, in a project with one."""

    @property
    def id_columns(self) -> IdColumns:
        """How ids of its records look when they are written; inside they are whole."""
        return IdColumns.of_sheet(self.samples)

    @property
    def folder(self) -> str:
        """The folder of its files: results/<run>, relative to Snakemake's folder."""
        return f"results/{self.name}"

    @property
    def logs(self) -> str:
        """The folder of the logs of its steps, each in a folder named by its KEY."""
        return f"{self.folder}/logs"

    def with_states(self, every: Iterable[Product]) -> list[Product]:
        """Return the products with the paths of their records (`Product.state`)."""
        return [
            product._replace(state=state.path_of(self.folder, product.label)) for product in every
        ]

    def sheet_of(self, folder: str) -> Path | None:
        """Return the sheet of samples of the features in `folder`, unless they are elsewhere."""
        is_ours = folder in self.features.values()
        return Path(self.samples) if is_ours and self.samples else None

    def features_of(self, name: str | None) -> str:
        """Return the folder of the features called `name`. A config without sets needs no name; a
        name with a / is the folder of a finished run.

        Raises:
            UserError: there are no features of that name, or several sets and no name.
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


class Differences(NamedTuple):
    """Changes since some files were written."""

    changes: Sequence[Change] = ()
    """Keys of the config."""
    others: Sequence[str] = ()
    """Input files with another content, and the files themselves if they were edited or damaged."""

    @property
    def in_words(self) -> str:
        return in_words(self.changes) or ", ".join(self.others)


class Product(NamedTuple):
    """A result of a step: files that its jobs write together."""

    label: str
    """Its name in status, such as autoencoders.residues."""
    files: Sequence[str]
    """The targets of Snakemake. The last one is written last; status shows it."""
    inputs: Sequence[str]
    """Input files. If their content or their order changes, the files are out of date."""
    logs: Sequence[str]
    """Logs of the jobs that write it, in order."""
    removable: Sequence[str]
    """Files and folders that `clean --keep nothing` removes, with the logs and anything that a
    killed job left in a folder."""
    progress: Callable[[], str] = str
    """Returns the progress in a few words while jobs write it; "" if unknown."""
    config: Mapping[str, Any] = MappingProxyType({})
    """Keys of the config that it depends on, with their values."""
    card: Callable[[], State] = partial(stated, MappingProxyType({}))
    """Returns the record that the finished files contain themselves, by `stated`. It is used until
    the file `state` exists. For input files that it does not list, the time decides."""
    figures: Callable[[], Mapping[str, int]] = dict
    """Returns counts of the finished files, such as fragments."""
    on_report_of: str = ""
    """The folder of the run whose report draws the files, if one does."""
    lock: str = ""
    """A file that is locked while jobs write the files, so that `clean` does not remove them."""
    state: str = ""
    """The record of their inputs (`store.state`); the project sets it."""

    @property
    def shown(self) -> str:
        """The file to look at: the last one, or the page where that is a card for programs."""
        pages = [file for file in self.files if file.endswith(".html")]
        return [self.files[-1], *pages][-1 if self.files[-1].endswith(".json") else 0]

    def stands(self) -> Literal["no", "yes", "older"]:
        """Return whether all files exist; "older" if an input or a key of the config has changed
        since they were written, or one of them was edited."""
        return "no" if self.missing() else "older" if any(self.differences()) else "yes"

    def missing(self) -> list[str]:
        """Return the files that do not exist."""
        return [path for path in self.files if not Path(path).exists()]

    def noted(self) -> State | None:
        """Return the record `state` if the files have not changed since it was written."""
        record = self._last_record()
        return record if record and record.is_of(self.files, Path(self.state).parent) else None

    def _last_record(self) -> State | None:
        """Return the record `state`, even if the files have changed since it was written."""
        path = Path(self.state)
        return State.find(path) if self.state and path.is_file() else None

    def note(self, is_new: bool) -> None:
        """Write the record `state`: with the values of the config for new files, and with those
        that the files contain themselves for older ones."""
        values = self.config if is_new else self.card().config
        known = {key: value for key, value in values.items() if key in self.config}
        state.note(Path(self.state), self.files, self.inputs, known, is_checked=not is_new)

    def differences(self, at: Path = Path()) -> Differences:
        """Return which keys of the config and which input files, relative to `at`, have changed
        since the files were written. If a file is missing, nothing is returned."""
        if self.missing():
            return Differences()
        known = self.noted()
        changed = [] if known else state.damaged(self.files)
        if changed:  # the record still has their inputs
            known = self._last_record()
        if known is None:
            card = self.card()
            inputs = card.inputs or dict.fromkeys(self.inputs, Seen(sha256=""))
            finished = Path(self.files[-1]).stat().st_mtime
            known = card.model_copy(update={"inputs": inputs, "finished": finished})
        changes = [
            Change(key, known.config[key], value)
            for key, value in self.config.items()
            if key in known.config and known.config[key] != value
        ]
        others = known.others(self.inputs, Path(self.state).parent, at)
        return Differences(changes, [*dict.fromkeys([*changed, *others])])


class Command(NamedTuple):
    """A command of a step, or of a module that is an entry point of `featuremill.commands`.

    `error_status` and `words` are for a command that replaces another program and takes its words
    and exit statuses, such as `virnucpro`.
    """

    summary: str
    module: str
    """`add_arguments(parser)` of it returns the parsers of its subcommands, if it has several;
    `run(arguments)` runs it."""
    error_status: int | None = None
    """The exit status of every error, if the usual ones have another meaning."""
    words: Callable[[list[str]], list[str]] = list
    """Changes the typed words before they are parsed."""


class Step(Protocol):
    """The attributes of a step. Importing a step must be cheap."""

    KEY: str
    """Its key of the config, and its folder in results/<run>/."""
    ABOUT: str
    """A sentence about the section below the key."""
    SECTION: Any
    """The type of the section: a `Section`, or a mapping of names to one."""
    RULES: Path
    """Rules that are included if a config has the key. `mill.steps[KEY]` is the section, and
    `mill.project` the project. All rule files share their names: those of rules, variables,
    functions and imports are the KEY, or begin with it and an underscore. Build paths in `params`
    from `input` and `output` (`subpath`): a module's prefix moves only these. A job without
    `conda:` runs in Snakemake's environment, which has the step's package."""
    COMMANDS: Mapping[str, Command]

    def problems(self, section: Any, project: Project) -> Problems:
        """Yield errors of the `section`. Opens no file that a job may make."""

    def products(self, section: Any, project: Project) -> Sequence[Product]:
        """Return its results, in the order of their jobs."""


class OptionalAttributes:
    """Attributes that a step may have, each with its default."""

    PACKAGES: Mapping[str, str] = MappingProxyType({})
    """Modules that its jobs import, each with what to install: `{"torch": "my-package[gpu]"}`. A
    run that lacks one is refused before its first job."""
    VARIABLES: Sequence[Variable] = ()
    """Variables of the environment that other programs set and it reads, for
    docs/environment.md."""

    @staticmethod
    def proteins_of(paths: Sequence[str]) -> tuple[str, str] | None:  # noqa: ARG004
        """Return the command that translates files of nucleotides, and the file of proteins that it
        writes; None if the step does not translate. It is for an error message."""
        return None


def optional(step: Step, name: str) -> Any:
    """Return the step's attribute `name` of `OptionalAttributes`, or the default."""
    return getattr(step, name, getattr(OptionalAttributes, name))


@runtime_checkable
class ChecksFiles(Protocol):
    """A step that checks files before the first job."""

    def problems_of_files(self, section: Any, project: Project) -> Problems:
        """Yield errors in existing files. Missing files are skipped: another rule may make them."""


@runtime_checkable
class ChecksRecords(Protocol):
    """A step that checks the planned records before any is computed."""

    def problems_of_records(self, section: Any, project: Project) -> Problems:
        """Yield errors in the ids of records. All sets of features are planned: `features.Planned`
        has the records of each."""


@runtime_checkable
class DrawsRecords(Protocol):
    """A step that draws the map of records on each report, even if the config lacks its key."""

    def figure(self, shown: Any) -> Any:
        """Return the map, a `kit.pages.Figure`, of `shown`, a `features.records.Shown`."""


@runtime_checkable
class MakesRecords(Protocol):
    """A step that makes records from the inputs, such as `translate`. Features are then computed
    from its files."""

    def records(self, section: Any, project: Project) -> Mapping[str, str]:
        """Return the files that sets of features may read, by kind of records. A set reads the kind
        that its `of` names, else the kind of its own name, else the first. In a project with
        samples each is a sheet of such files; if one of them changes, the sheet changes."""

    def records_now(self, section: Any, project: Project, folder: Path) -> Mapping[str, Path]:
        """Return the same files, made in `folder` if they are missing or outdated."""
