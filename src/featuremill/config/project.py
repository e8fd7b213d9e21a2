"""The config of a project, one YAML file: records, one or several sets of features, and steps; the
runs of a command's argument, which is the folder of a run or a config."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field

from featuremill import config as configs
from featuremill import step
from featuremill.base.entry_points import older
from featuremill.base.errors import UserError
from featuremill.base.words import listed
from featuremill.config import Features, Records, Run, problems, yaml_lines
from featuremill.config.problems import Origin, Places
from featuremill.step import ChecksFiles, ChecksRecords, DrawsRecords, MakesRecords, finding
from featuremill.step.finding import step_of
from featuremill.store import command_line, formats, run_lock
from featuremill.store.results import runs_below
from featuremill.workload.recipe import ahead_of

FEATURES = "features"
"""The key with several sets of features; without it a config is one run."""
OF = "of"
"""The key that selects one of the kinds of records that a step makes."""


def _name(name: str) -> str:
    if step.plain_name(name) in {*formats.OF_THE_RUN, *formats.files().values(), *finding.known()}:
        raise ValueError(f"{name} is the name of other files in results/<run>; take another one")
    return name


class Set(Features):
    """One of several sets of features."""

    of: str | None = None
    """Which records, if a step makes several kinds of them, such as the nucleotides of `translate`.
    If not given, the kind with the name of the set, or else the first kind."""


class Several(Records):
    """The keys of a project with several sets of features of the same records."""

    features: dict[Annotated[str, AfterValidator(_name)], Set] = Field(min_length=1)
    """Sets of features by name, each with the keys of a run but for `run`, `inputs` and `store`;
    their files go to `results/<run>/<name>/`."""


class ProjectConfig(NamedTuple):
    """A validated config: its runs, and the sections of its steps."""

    name: str
    """The value of the key `run`."""
    inputs: tuple[str, ...]
    """The inputs in the config, or the sheet of samples alone."""
    runs: Mapping[str, Run]
    """The runs by their folder below results/: <run>, or <run>/<name> for each set of several."""
    sections: Mapping[str, Any]
    samples: str = ""
    origin: Origin = Origin()

    @property
    def folders(self) -> list[Path]:
        """The folder of each run, relative to Snakemake's working directory."""
        return [Path("results") / name for name in self.runs]

    @property
    def files(self) -> list[str]:
        return configs.files_named(self.inputs, self.samples)

    @property
    def rules(self) -> list[str]:
        return [str(step_of(key).RULES) for key in self.sections]

    @property
    def for_steps(self) -> step.Project:
        folders = {run.rpartition("/")[2]: f"results/{run}" for run in self.runs}
        return step.Project(self.name, self.inputs, folders, self.sections, samples=self.samples)

    @property
    def products(self) -> list[step.Product]:
        """The products of all steps; those that are inputs of features come first."""
        return [*chain.from_iterable(self.products_around)]

    @property
    def products_around(self) -> tuple[list[step.Product], list[step.Product]]:
        """The products of steps that are inputs of features, and the products made of features."""
        before, after = list[step.Product](), list[step.Product]()
        makers = _makers(self.sections)
        for key, section in self.sections.items():
            every = step_of(key).products(section, self.for_steps)
            (before if key in makers else after).extend(self.for_steps.with_states(every))
        return before, after


def validate(
    raw: Mapping[str, Any], source: str = "config", places: Places | None = None
) -> ProjectConfig:
    """Return the validated project; raise UserError that names each wrong key and the nearest valid
    one, as `featuremill.config.validate` does."""
    origin = Origin(source, places or {})
    raw_sections = {
        key: {} if raw[key] is None else raw[key] for key in finding.known() if key in raw
    }
    model = finding.sections(list(raw_sections))
    checked = problems.checked(model, raw_sections, (), dict, origin)
    # A section without an entry is left out.
    sections = {key: section for key in raw_sections if (section := getattr(checked, key))}
    features = {key: value for key, value in raw.items() if key not in raw_sections}
    project = _with_runs(features, origin, sections)
    _refuse_problems(project)
    return project


def problems_of_files(project: ProjectConfig) -> Iterator[str]:
    """Yield the problems that steps find in existing files, with the position in the config."""
    runs = {name.rpartition("/")[2]: run for name, run in project.runs.items()}

    def ahead(name: str) -> step.Ahead | None:
        if (run := runs.get(name)) is None:
            return None
        known = ahead_of(run.workload, run.options, run.device)
        return known and step.Ahead(*known)

    for_steps = project.for_steps._replace(ahead=ahead)
    for key, section in project.sections.items():
        if isinstance(checker := step_of(key), ChecksFiles):
            yield from _sentences(project, key, checker.problems_of_files(section, for_steps))


def checks_records(project: ProjectConfig) -> bool:
    return any(isinstance(step_of(key), ChecksRecords) for key in project.sections)


def problems_of_records(project: ProjectConfig) -> Iterator[str]:
    """Yield the problems that steps find in planned records, with the position in the config."""
    for key, section in project.sections.items():
        if isinstance(checker := step_of(key), ChecksRecords):
            yield from _sentences(
                project, key, checker.problems_of_records(section, project.for_steps)
            )


def _refuse_problems(project: ProjectConfig) -> None:
    """Raise UserError with the problems that steps find in their sections, or with a file that two
    of their results would be."""
    sentences = [
        sentence
        for key, section in project.sections.items()
        for sentence in _sentences(project, key, step_of(key).problems(section, project.for_steps))
    ]
    if sentences:
        raise UserError("\n".join(sentences))
    label_of: dict[str, str] = {}
    sets = {run.folder: name.split("/")[1] for name, run in project.runs.items() if "/" in name}
    for product in project.products:
        folders = {str(above) for file in product.files for above in Path(file).parents}
        for folder in (sets.keys() & folders) - {product.on_report_of}:  # a map is in its set's
            name = sets[folder]
            raise UserError(
                f"{project.origin.at(FEATURES, name)}: {FEATURES}.{name}: {folder} is a folder of "
                f"{product.label}; take another name."
            )
        for file in (*product.files, product.state):
            if file in label_of:
                raise UserError(
                    f"{project.origin.source}: {product.label}: {file} is also a file of "
                    f"{label_of[file]}; take another name."
                )
            label_of[file] = product.label


def _sentences(
    project: ProjectConfig, key: str, problems: Iterable[tuple[tuple[str, ...], str]]
) -> Iterator[str]:
    for inside, sentence in problems:
        where = (key, *inside)
        yield f"{project.origin.at(*where)}: {'.'.join(where)}: {sentence}"


def _with_runs(
    raw: Mapping[str, Any], origin: Origin, sections: Mapping[str, Any]
) -> ProjectConfig:
    has_kinds = bool(_makers(sections))
    besides = finding.known() if FEATURES in raw else [FEATURES, *finding.known()]
    runs, kinds = [], []
    for keys, where in _sets(raw, origin):
        kinds.append(keys.get(OF))
        own = {key: value for key, value in keys.items() if key != OF or not has_kinds}
        runs.append(configs.validate(own, where.source, where.places, besides=besides))
    if FEATURES not in raw:
        _refuse_path(runs[0].run, origin)
    first = runs[0]
    by_name = {run.run: run for run in runs}
    name = first.run.partition("/")[0]
    project = ProjectConfig(name, first.named, by_name, sections, first.samples, origin)
    files = {
        kind: file
        for key, maker in _makers(sections).items()
        for kind, file in maker.records(sections[key], project.for_steps).items()
    }
    if files:
        reading = [
            run.reading([_file_of(kind, run, files)]) for kind, run in zip(kinds, runs, strict=True)
        ]
        project = project._replace(runs={run.run: run for run in reading})
    return project


def _sets(raw: Mapping[str, Any], origin: Origin) -> list[tuple[Mapping[str, Any], Origin]]:
    """Return the config and origin of each set of features, or the config without `features:`."""
    if FEATURES not in raw:
        return [(raw, origin)]
    problems.refuse_impossible(raw, origin)
    raw_sets = raw[FEATURES] if isinstance(raw[FEATURES], Mapping) else {}
    sets = {str(name): {} if keys is None else keys for name, keys in raw_sets.items()}
    # The content of a set is validated later, as that of a run.
    names = {name: {} if isinstance(keys, Mapping) else keys for name, keys in sets.items()}
    checked = {**raw, FEATURES: names or raw[FEATURES]}
    whole = problems.checked(Several, checked, (), _elsewhere, origin, finding.known())
    _refuse_path(whole.run, origin)
    records = {key: getattr(whole, key) for key in ("inputs", "samples", "store", "results")}
    configs_of_sets: list[tuple[Mapping[str, Any], Origin]] = []
    for name, keys in sets.items():
        of_set = f"{origin.source}: {FEATURES}.{name}"
        where = Origin(of_set, dict(_inside(origin.places, name)))
        for key in records.keys() & keys.keys():
            raise UserError(
                f"{where.at(key)}: {key}: it belongs to the top level, outside '{FEATURES}:'."
            )
        configs_of_sets.append(({"run": f"{whole.run}/{name}", **records, **keys}, where))
    return configs_of_sets


def _makers(sections: Mapping[str, Any]) -> dict[str, MakesRecords]:
    """Return the steps that make records from the inputs, by their keys."""
    steps = {key: step_of(key) for key in sections}
    return {key: maker for key, maker in steps.items() if isinstance(maker, MakesRecords)}


def _file_of(kind: Any, run: Run, files: Mapping[str, str]) -> str:
    if kind is None:
        return files.get(run.run.rpartition("/")[2], next(iter(files.values())))
    if str(kind) not in files:
        raise UserError(
            f"{run.origin.at(OF)}: of: there are no records {kind!r}; there are {listed(files)}."
        )
    return files[str(kind)]


def records_now(project: ProjectConfig, folder: Path) -> dict[str, list[Path]]:
    """Return the files of records (or the sheet) that steps make for each run; write them to
    `folder` if they do not exist yet. A run that reads the inputs has none."""
    for_steps = project.for_steps
    now = {
        file: file_now
        for key, maker in _makers(project.sections).items()
        for file, file_now in zip(
            maker.records(project.sections[key], for_steps).values(),
            maker.records_now(project.sections[key], for_steps, folder).values(),
            strict=True,
        )
    }
    return {
        name: [now[path] for path in (*run.inputs, run.samples) if path in now]
        for name, run in project.runs.items()
    }


def proteins_of(paths: Sequence[str]) -> tuple[str, str] | None:
    """Return the command that translates nucleotides, and the file of proteins that it writes; None
    if no step does that."""
    steps = (step_of(key) for key in finding.built_in())
    return next(filter(None, (step.optional(each, "proteins_of")(paths) for each in steps)), None)


def draws_records() -> DrawsRecords:
    """Return the step that draws the map of a report."""
    for drawer in map(step_of, finding.known()):
        if isinstance(drawer, DrawsRecords):
            return drawer
    raise older()


def _inside(places: Places, name: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the positions of the keys of a set, and of the keys of records."""
    for key, where in places.items():
        if key[:2] == (FEATURES, name):
            yield key[2:], where
        elif key[0] in Records.model_fields:
            yield key, where


def _refuse_path(run: str, origin: Origin) -> None:
    if "/" in run:
        where = origin.at("run")
        raise UserError(f"{where}: run: leave the / out, as it names a folder of its own.")


def _elsewhere() -> dict[str, str]:
    """Return, for keys that may be misplaced beside `features`, where they belong."""
    hints = dict.fromkeys(Features.model_fields, f"put it into each set below '{FEATURES}:'")
    return configs.sections() | hints


def read(path: Path) -> ProjectConfig:
    """Return the validated project in the YAML file `path`; the files of its options exist."""
    raw, places = yaml_lines.read(path)
    project = validate(raw, str(path), places)
    for run in project.runs.values():
        configs.check_outputs(run)
        configs.refuse_missing(run)
    return project


def read_one(path: Path, name: str | None = None) -> Run:
    """Return the run of the set of features called `name` in the YAML file `path`, or of its only
    set without a name.

    Raises:
        UserError: as `read` does; or if there is no such set, or several sets and no name.
    """
    runs = {folder.rpartition("/")[2]: run for folder, run in read(path).runs.items()}
    if name is None and len(runs) == 1:
        return next(iter(runs.values()))
    if name not in runs:
        raise UserError(f"{path}: it has the features {listed(runs)}; name one with --set.")
    return runs[name]


def outputs_of(runs: Collection[Run]) -> dict[tuple[str, ...], list[str]]:
    """Return the names of the runs by their outputs."""
    runs_of: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        runs_of.setdefault(run.outputs, []).append(run.run)
    return runs_of


class Runs(NamedTuple):
    """The runs of a command's argument: one run, or those of a config with several sets."""

    path: Path
    """The path that was typed: of a folder, or of a config."""
    folders: list[Path]
    """The folder of each run: results/<run>, or results/<run>/<name>."""
    steps: Sequence[step.Product] = ()
    """The products of steps; those that are inputs of features come first."""
    num_before: int = 0
    """Number of products of steps that are inputs of features."""
    configs: Sequence[Run] = ()
    """The config of each run; empty if a folder was typed."""

    @property
    def names(self) -> list[str]:
        return [folder.name for folder in self.folders]

    @property
    def is_one(self) -> bool:
        return not self.steps and len(self.folders) == 1

    def again(self, forced: Sequence[str] = ()) -> str:
        """Return the command that computes all runs; `forced` as in `command_line.again`."""
        known = next(filter(run_lock.read, self.folders), None)
        if known or self.path.is_dir() or self.path in self.folders:
            return command_line.again(known or self.folders[0], forced)
        return command_line.first(self.path, run_lock.working_folder(self.folders[0]))


def runs_of(typed: Path) -> Runs:
    """Return the runs of the `typed` path, started or not.

    Raises:
        UserError: if it is a missing config, or a file that is not a config.
    """
    if typed.suffix in (".yaml", ".yml") and not typed.exists():
        raise UserError(f"{typed}: there is no such config; check the path, or name results/<run>.")
    if not typed.is_file():
        run_lock.refuse_lost(typed)
        below = runs_below(typed)
        is_run = (typed / "plan.json").exists() or (typed / "store").exists()
        is_project = below and run_lock.is_in_results(typed) and not is_run
        return Runs(typed, below if is_project else [typed])
    raw, places = yaml_lines.read(typed)
    config = validate(raw, str(typed), places)
    elsewhere = [typed.parent / folder for folder in config.folders]
    for folder in (*config.folders, *elsewhere):
        run_lock.refuse_lost(folder)
    runs = [*config.runs.values()]
    if any(map(Path.exists, config.folders)) or not any(map(Path.exists, elsewhere)):
        before, after = config.products_around
        return Runs(typed, config.folders, [*before, *after], len(before), runs)
    if config.sections:  # steps have paths relative to that folder
        raise UserError(
            f"{typed}: its results are below {typed.parent}, not here; type: "
            f"cd {shlex.quote(str(typed.parent))} and then the same with {typed.name}."
        )
    return Runs(typed, elsewhere, configs=runs)


def only_folder(typed: Path) -> Path:
    """Return the folder of the only run of the config `typed`.

    Raises:
        UserError: if it is not a config, or it has several sets of features.
    """
    folders = runs_of(typed).folders
    if len(folders) > 1:
        raise UserError(
            f"{typed}: it has {len(folders)} sets of features; name one of their folders: "
            f"{', '.join(map(str, folders))}."
        )
    return folders[0]
