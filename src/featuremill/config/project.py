"""One YAML is one project: its records, the features that are computed of them, in one set or in
several, and what steps make before and after."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field

from featuremill import config as configs
from featuremill import step
from featuremill.base.errors import UserError
from featuremill.base.words import listed
from featuremill.config import Config, Features, Records
from featuremill.config.yaml_lines import Places
from featuremill.step import (
    ChecksFiles,
    ChecksRecords,
    MakesProteins,
    MakesRecords,
    TakesSamples,
    finding,
    plain_name,
)
from featuremill.step.finding import step_of
from featuremill.store import formats
from featuremill.workload.ahead import ahead_of

FEATURES = "features"
"""The key with several sets of features; without it a config is one run."""
OF = "of"
"""The key that says which of the records that a step makes."""


def _name(name: str) -> str:
    if plain_name(name) in {*formats.OF_THE_RUN, *formats.files().values(), *finding.known()}:
        raise ValueError(f"{name} is the name of other files in results/<run>; take another one")
    return name


class Set(Features):
    """One of several sets of features."""

    of: str | None = None
    """Which records, where a step makes several kinds of the inputs, such as the nucleotides of
    `translate`. If not given, those that the set is called by, or else the first kind."""


class Several(Records):
    """Records, and several sets of features of them."""

    features: dict[Annotated[str, AfterValidator(_name)], Set] = Field(min_length=1)
    """Sets of features by name, each with the keys of a run but for `run`, `inputs` and `store`;
    their files go to `results/<run>/<name>/`."""


class Run(NamedTuple):
    """One of a project's sets of features: a run of its own."""

    config: Config
    named: str
    """What to call the config that it stands in."""
    places: Places
    """Where the keys of `config` stand there."""


class Project(NamedTuple):
    """A validated config."""

    name: str
    inputs: tuple[str, ...]
    """The files with its records; of a sheet of samples, the sheet alone."""
    runs: Mapping[str, Run]
    """By what each is called below results/: <run>, or <run>/<name> of each set of several."""

    sections: Mapping[str, Any]
    """What the config asks of steps, by their keys."""
    named: str = "config"
    """What to call the config."""
    places: Places = {}  # noqa: RUF012
    """Where its keys stand."""
    samples: str = ""
    """The sheet of samples, if there is one."""

    @property
    def folders(self) -> list[Path]:
        """The folder of each run, seen from where Snakemake runs."""
        return [Path("results") / name for name in self.runs]

    @property
    def files(self) -> list[str]:
        """Every file that its records come from; a sheet of samples comes first."""
        return configs.files_named(self.inputs, self.samples)

    @property
    def rules(self) -> list[str]:
        """The files with the steps' rules."""
        return [str(step_of(key).RULES) for key in self.sections]

    @property
    def seen(self) -> step.Project:
        """The project as steps see it."""
        return _seen(self.name, self.inputs, self.runs, self.sections, self.samples)

    @property
    def made(self) -> list[step.Made]:
        """What the steps make, first that which features are computed of."""
        return [*chain.from_iterable(self.made_around)]

    @property
    def made_around(self) -> tuple[list[step.Made], list[step.Made]]:
        """What they make before features, and what they make of them."""
        before, after = list[step.Made](), list[step.Made]()
        makers = _makers(self.sections)
        for key, asked in self.sections.items():
            (before if key in makers else after).extend(step_of(key).made(asked, self.seen))
        return before, after


def validate(
    raw: Mapping[str, Any], source: str = "config", places: Places | None = None
) -> Project:
    """Return the validated project; raise UserError naming each wrong key and the nearest valid
    one, as `featuremill.config.validate` does."""
    places = places or {}
    keys = [key for key in finding.known() if key in raw]
    told = {key: {} if raw[key] is None else raw[key] for key in keys}
    model = finding.sections(list(told))
    checked = configs.checked(model, told, (), dict, source, places)
    asked = {key: getattr(checked, key) for key in told}
    sections = {key: one for key, one in asked.items() if one}  # none of no names
    if raw.get("samples"):
        for key in sections:
            one = step_of(key)
            if not (isinstance(one, TakesSamples) and one.TAKES_SAMPLES):
                where = configs.place_of(source, places, (key,))
                raise UserError(
                    f"{where}: {key}: this step takes no samples; leave it out, or name the files "
                    "with inputs."
                )
    features = {key: one for key, one in raw.items() if key not in keys}
    found = _features(features, source, places, sections)
    _refuse_problems(found)
    return found


def _seen(
    name: str,
    inputs: tuple[str, ...],
    runs: Iterable[str],
    sections: Mapping[str, Any],
    samples: str,
) -> step.Project:
    folders = {run.rpartition("/")[2]: f"results/{run}" for run in runs}
    return step.Project(name, inputs, folders, sections, samples=samples)


def problems_of_files(project: Project) -> Iterator[str]:
    """Yield what files that are there would make a step's job refuse, and where the config asks for
    it."""
    runs = {name.rpartition("/")[2]: run.config for name, run in project.runs.items()}

    def ahead(name: str) -> step.Ahead | None:
        if (config := runs.get(name)) is None:
            return None
        told = ahead_of(config.workload, config.options, config.device)
        return told and step.Ahead(*told)

    seen = project.seen._replace(ahead=ahead)
    for key, told in project.sections.items():
        if isinstance(one := step_of(key), ChecksFiles):
            yield from _sentences(project, key, one.problems_of_files(told, seen))


def checks_records(project: Project) -> bool:
    """Return whether a step checks the records once they are planned."""
    return any(isinstance(step_of(key), ChecksRecords) for key in project.sections)


def problems_of_records(project: Project) -> Iterator[str]:
    """Yield what the planned records would make a step's job refuse, and where the config asks for
    it."""
    for key, told in project.sections.items():
        if isinstance(one := step_of(key), ChecksRecords):
            yield from _sentences(project, key, one.problems_of_records(told, project.seen))


def _refuse_problems(project: Project) -> None:
    """Refuse what steps find wrong with what is asked of them."""
    said = [
        sentence
        for key, told in project.sections.items()
        for sentence in _sentences(project, key, step_of(key).problems(told, project.seen))
    ]
    if said:
        raise UserError("\n".join(said))


def _sentences(
    project: Project, key: str, problems: Iterable[tuple[tuple[str, ...], str]]
) -> Iterator[str]:
    for inside, sentence in problems:
        where = (key, *inside)
        place = configs.place_of(project.named, project.places, where)
        yield f"{place}: {'.'.join(where)}: {sentence}"


def _features(
    raw: Mapping[str, Any], source: str, places: Places, sections: Mapping[str, Any]
) -> Project:
    """Return the project with its runs."""
    if FEATURES not in raw:
        besides = [FEATURES, *finding.known()]
        own = {key: value for key, value in raw.items() if key != OF or not _makers(sections)}
        config = configs.validate(own, source, places, besides=besides)
        _refuse_path(config.run, source, places)
        inputs = config.inputs or (config.samples,)
        seen = _seen(config.run, inputs, [config.run], sections, config.samples)
        if files := _records(seen):
            file = _file_of(raw.get(OF), config.run, files, source, places, (OF,))
            config = config.model_copy(update=_reading(file, seen))
        runs = {config.run: Run(config, source, places)}
        return Project(config.run, inputs, runs, sections, source, places, seen.samples)
    configs.refuse_impossible(raw, source, places)
    told = raw[FEATURES] if isinstance(raw[FEATURES], Mapping) else {}
    sets = {str(name): {} if one is None else one for name, one in told.items()}
    # What stands in a set is looked at below, as that of a run.
    names = {name: {} if isinstance(one, Mapping) else one for name, one in sets.items()}
    checked = {**raw, FEATURES: names or raw[FEATURES]}
    besides = finding.known()
    whole = configs.checked(Several, checked, (), _elsewhere, source, places, besides)
    _refuse_path(whole.run, source, places)
    inputs = whole.inputs or (whole.samples,)
    folders = [f"{whole.run}/{name}" for name in sets]
    seen = _seen(whole.run, inputs, folders, sections, whole.samples)
    files = _records(seen)
    records: dict[str, Any] = whole.model_dump(include={"inputs", "samples", "store"})
    runs = {}
    for name, one in sets.items():
        run = f"{whole.run}/{name}"
        inside, named = dict(_inside(places, name)), f"{source}: {FEATURES}.{name}"
        for key in records.keys() & one.keys():
            where = configs.place_of(named, inside, (key,))
            raise UserError(f"{where}: {key}: it belongs to the top level, outside '{FEATURES}:'.")
        own = dict(one)
        if files:
            file = _file_of(own.pop(OF, None), name, files, named, inside, (OF,))
            records |= _reading(file, seen)
        config = configs.validate({"run": run, **records, **own}, named, inside)
        runs[run] = Run(config, named, inside)
    return Project(whole.run, inputs, runs, sections, source, places, whole.samples)


def _makers(sections: Mapping[str, Any]) -> dict[str, MakesRecords]:
    """Return the steps that make other records of the inputs, by their keys."""
    found = {key: step_of(key) for key in sections}
    return {key: one for key, one in found.items() if isinstance(one, MakesRecords)}


def _records(seen: step.Project) -> dict[str, str]:
    """Return the files of what steps make of the inputs, by what it is."""
    return {
        kind: file
        for key, one in _makers(seen.sections).items()
        for kind, file in one.records(seen.sections[key], seen).items()
    }


def _reading(file: str, seen: step.Project) -> dict[str, Any]:
    """Return what of a config has it read `file`, which a step makes: of samples, a sheet."""
    return {"samples": file} if seen.samples else {"inputs": (file,)}


def _file_of(
    kind: Any,
    name: str,
    files: Mapping[str, str],
    source: str,
    places: Places,
    key: tuple[str, ...],
) -> str:
    """Return the file of records that a set of features is `of`."""
    if kind is None:
        return files.get(name, next(iter(files.values())))
    if str(kind) not in files:
        where = configs.place_of(source, places, key)
        raise UserError(f"{where}: of: there are no records {kind!r}; there are {listed(files)}.")
    return files[str(kind)]


def records_now(project: Project, folder: Path) -> dict[str, list[Path]]:
    """Return the files of records of each run by its name: what steps make of the inputs is made in
    `folder` where it is not there, of samples a sheet; nothing of a run that reads the inputs
    themselves."""
    seen = project.seen
    now = {
        file: made
        for key, one in _makers(seen.sections).items()
        for file, made in zip(
            one.records(seen.sections[key], seen).values(),
            one.records_now(seen.sections[key], seen, folder).values(),
            strict=True,
        )
    }
    return {
        name: [now[path] for path in (*run.config.inputs, run.config.samples) if path in now]
        for name, run in project.runs.items()
    }


def proteins_of(paths: Sequence[str]) -> tuple[str, str] | None:
    """Return what to type to have proteins made of nucleotides, and the file of these; None where
    no step does that."""
    steps = (step_of(key) for key in finding.built_in())
    return next((s.proteins_of(paths) for s in steps if isinstance(s, MakesProteins)), None)


def _inside(places: Places, name: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield where the keys of a set stand, and those of the records."""
    for key, place in places.items():
        if key[:2] == (FEATURES, name):
            yield key[2:], place
        elif key[0] in Records.model_fields:
            yield key, place


def _refuse_path(run: str, source: str, places: Places) -> None:
    if "/" in run:
        where = configs.place_of(source, places, ("run",))
        raise UserError(f"{where}: run: leave the / out, as it names a folder of its own.")


def _elsewhere() -> dict[str, str]:
    """Return where a key belongs that somebody may have put beside `features`."""
    hints = dict.fromkeys(Features.model_fields, f"put it into each set below '{FEATURES}:'")
    return configs.sections() | hints


def read(path: Path) -> Project:
    """Return the validated project in the YAML file `path`, whose options name files that are
    there."""
    raw, places = configs.load(path)
    project = validate(raw, str(path), places)
    for run in project.runs.values():
        configs.check_outputs(run.config, run.named)
        configs.refuse_missing(run.config, run.named, run.places)
    return project


def read_one(path: Path, name: str | None = None) -> Config:
    """Return the config of the set of features called `name` in the YAML file `path`; without a
    name, of the only one.

    Raises:
        UserError: as `read` does, and where there is none of that name, or several and no name.
    """
    runs = {run.rpartition("/")[2]: found.config for run, found in read(path).runs.items()}
    if name is None and len(runs) == 1:
        return next(iter(runs.values()))
    if name not in runs:
        raise UserError(f"{path}: it has the features {listed(runs)}; name one with --set.")
    return runs[name]


def outputs_of(runs: Collection[Config]) -> dict[tuple[str, ...], list[str]]:
    """Return the runs that have the same outputs, by these."""
    found: dict[tuple[str, ...], list[str]] = {}
    for config in runs:
        found.setdefault(config.outputs, []).append(config.run)
    return found
