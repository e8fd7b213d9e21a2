"""One YAML is one project: its records, the features that are computed of them, in one set or in
several, and what steps make before and after."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field

from featuremill import config as configs
from featuremill import step
from featuremill.base.errors import UserError
from featuremill.config import Config, Features, Records
from featuremill.config.yaml_lines import Places
from featuremill.step import finding, plain_name
from featuremill.step.finding import step_of
from featuremill.store import formats

FEATURES = "features"
"""The key with several sets of features; without it a config is one run."""


def _name(name: str) -> str:
    if plain_name(name) in {*formats.OF_THE_RUN, *formats.files().values(), *finding.known()}:
        raise ValueError(f"{name} is the name of other files in results/<run>; take another one")
    return name


class Several(Records):
    """Records, and several sets of features of them."""

    features: dict[Annotated[str, AfterValidator(_name)], Features] = Field(min_length=1)
    """Sets of features by name, each with the keys of a run but for `run` and `inputs`; their files
    go to `results/<run>/<name>/`."""


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
    runs: Mapping[str, Run]
    """By what each is called below results/: <run>, or <run>/<name> of each set of several."""

    sections: Mapping[str, Any]
    """What the config asks of steps, by their keys."""

    @property
    def folders(self) -> list[Path]:
        """The folder of each run, seen from where Snakemake runs."""
        return [Path("results") / name for name in self.runs]

    @property
    def seen(self) -> step.Project:
        """The project as steps see it."""
        folders = {name.rpartition("/")[2]: f"results/{name}" for name in self.runs}
        return step.Project(self.name, folders)

    @property
    def made(self) -> list[step.Made]:
        """What the steps make."""
        asked = self.sections.items()
        return [one for key, told in asked for one in step_of(key).made(told, self.seen)]


def validate(
    raw: Mapping[str, Any], source: str = "config", places: Places | None = None
) -> Project:
    """Return the validated project; raise UserError naming each wrong key and the nearest valid
    one, as `featuremill.config.validate` does."""
    places = places or {}
    keys = [key for key in finding.known() if key in raw]
    features = {key: told for key, told in raw.items() if key not in keys}
    name, runs = _features(features, source, places)
    told = {key: raw[key] for key in keys if raw[key] is not None}
    model = finding.sections(list(told))
    checked = configs.checked(model, told, (), dict, source, places)
    found = Project(name, runs, {key: getattr(checked, key) for key in told})
    _refuse_problems(found, source, places)
    return found


def _refuse_problems(project: Project, source: str, places: Places) -> None:
    """Refuse what steps find wrong with what is asked of them."""
    said = []
    for key, told in project.sections.items():
        for inside, sentence in step_of(key).problems(told, project.seen):
            where = (key, *inside)
            said.append(f"{configs.place_of(source, places, where)}: {'.'.join(where)}: {sentence}")
    if said:
        raise UserError("\n".join(said))


def _features(raw: Mapping[str, Any], source: str, places: Places) -> tuple[str, Mapping[str, Run]]:
    """Return the project's name, and its runs."""
    if FEATURES not in raw:
        besides = [FEATURES, *finding.known()]
        config = configs.validate(raw, source, places, besides=besides)
        _refuse_path(config.run, source, places)
        return config.run, {config.run: Run(config, source, places)}
    configs.refuse_impossible(raw, source, places)
    told = raw[FEATURES] if isinstance(raw[FEATURES], Mapping) else {}
    sets = {str(name): {} if one is None else one for name, one in told.items()}
    # What stands in a set is looked at below, as that of a run.
    names = {name: {} if isinstance(one, Mapping) else one for name, one in sets.items()}
    checked = {**raw, FEATURES: names or raw[FEATURES]}
    besides = finding.known()
    whole = configs.checked(Several, checked, (), _elsewhere, source, places, besides)
    _refuse_path(whole.run, source, places)
    records = {"inputs": whole.inputs}
    runs = {}
    for name, one in sets.items():
        run = f"{whole.run}/{name}"
        inside, named = dict(_inside(places, name)), f"{source}: {FEATURES}.{name}"
        for key in records.keys() & one.keys():
            where = configs.place_of(named, inside, (key,))
            raise UserError(f"{where}: {key}: it belongs to the top level, outside '{FEATURES}:'.")
        config = configs.validate({"run": run, **records, **one}, named, inside)
        runs[run] = Run(config, named, inside)
    return whole.run, runs


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


def outputs_of(runs: Collection[Config]) -> dict[tuple[str, ...], list[str]]:
    """Return the runs that have the same outputs, by these."""
    found: dict[tuple[str, ...], list[str]] = {}
    for config in runs:
        found.setdefault(config.outputs, []).append(config.run)
    return found
