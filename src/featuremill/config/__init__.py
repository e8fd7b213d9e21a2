"""The typed model of a run's config, its validation, and `Run`, a config with resolved options."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    Field,
    SerializeAsAny,
    SkipValidation,
    ValidationInfo,
    field_validator,
    model_validator,
)

from featuremill.base.errors import IntegrityError, UserError, WorkloadError
from featuremill.base.id_columns import IdColumns
from featuremill.base.text import MAX_NAME as MAX_NAME
from featuremill.config import problems, yaml_lines
from featuremill.config.problems import Origin, Places
from featuremill.step import Section, finding, plain_name
from featuremill.store import command_line, formats, run_lock, shared
from featuremill.store.results import Results, RunFile
from featuremill.store.row_order import RowOrder, why_not_in_order
from featuremill.workload import (
    DEFAULT,
    Workload,
    WorkloadOptions,
    find_workload,
    option_files,
    optional,
    weights,
    workloads,
)

KINDS = {"pooled": "per record", "per_residue": "per residue", "table": "in a table"}


def _known_output(name: str) -> str:
    try:
        formats.module_of(name)
    except UserError as error:
        raise ValueError(str(error).rstrip(".")) from None
    return name


class _OutputNames:
    """Adds the names of all installed outputs to the JSON schema."""

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        return {"enum": formats.names()}


Output = Annotated[str, AfterValidator(_known_output), _OutputNames()]


class Shards(Section):
    """The size of shards."""

    cost: Annotated[int, Field(ge=1, strict=True)] | Literal["auto"] = "auto"
    """Work in one shard, in the workload's unit of cost (residues + 2 for proteins). `auto` makes
    shards of about five minutes, or smaller ones so that each device gets two; plan prints what it
    chose. Affects only new shards."""


class Labels(Section):
    """Labels that colour the points of the report's map, instead of lengths."""

    file: str = ""
    """A CSV, TSV or Parquet table with a column of ids, or of the accessions in them, and in a run
    with samples a column `sample`; if not given, the sheet of `samples`."""
    column: str = ""
    """Its column of names or numbers that colours the points of the report's map."""
    id_column: str = ""
    """The file's column of ids; if not given, a column such as `id`, `accession` or `entry`."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Labels:
        if self.file.strip() and not self.column.strip():
            raise ValueError("file and column belong together: name a table, and a column of it")
        return self


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _no_repeats(values: tuple[str, ...]) -> tuple[str, ...]:
    if repeated := [value for value in dict.fromkeys(values) if values.count(value) > 1]:
        raise ValueError(f"{', '.join(repeated)} is named more than once; keep one")
    return values


class Records(Section):
    """The records of a config, and the folder of its results."""

    run: str = "demo"
    """Name of the run; its files go to `results/<run>/`. A different config with the same name is
    refused."""
    results: str = Field(default="", exclude=True)
    """Folder, on another disk for example, for the run's files: they go to `<this folder>/<run>/`,
    and `results/<run>` is a link to that. `featuremill run --results FOLDER` does the same."""
    samples: str = ""
    """A sheet of samples in place of `inputs`: a table (.csv, .tsv, .parquet) with the columns
    `sample` and `file`, and others that are kept as the sample's own. See docs/samples.md."""
    inputs: tuple[str, ...] = Field(default=(), validate_default=True)
    """File or files with the records: FASTA (.fa, .fasta, .faa), tables (.csv, .tsv, .parquet) or
    flat files (.gb, .gbk, .embl, .dat); .gz and .zst are read as they are. Required without
    `samples`."""

    @field_validator("run")
    @classmethod
    def _names_folders(cls, run: str) -> str:  # `<run>/<name>`, of one of several
        return "/".join(map(plain_name, run.split("/", 1)))

    @field_validator("samples", "results")
    @classmethod
    def _file_name(cls, value: str) -> str:
        return "".join(cls._file_names((value,))) if value else value

    @field_validator("inputs", "store")
    @classmethod
    def _file_names(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            if not value.strip():
                raise ValueError("one of the names is empty; name a file, or take it out")
            if value.startswith("~") and "/" in value:
                raise ValueError(f"{value}: ~ works only in a shell; write the whole path")
            if shared.WITH_USER.search(value):
                raise ValueError(shared.WITHOUT_USER)
        return values

    @field_validator("store")
    @classmethod
    def _addresses(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        if problem := shared.problem_with(values):
            raise ValueError(problem)
        return values

    @field_validator("inputs")
    @classmethod
    def _or_samples(cls, values: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        sheet = info.data.get("samples")
        if values and sheet:
            raise ValueError("with samples, the files stand in the sheet; drop one of both keys")
        if not (values or sheet):
            raise ValueError(
                "this is missing; give a list (each entry a text). Or name a sheet: samples: my.tsv"
            )
        return values

    store: tuple[str, ...] = ()
    """Folder with finished parts that runs and people share: parts in it are not computed again,
    and new parts are added. Of several, all are read and the first is written; the others can be
    addresses (https://…, s3://…). Without it, and without FEATUREMILL_STORE, parts are not shared;
    see docs/store.md."""

    _one_input = field_validator("inputs", "store", mode="before")(_one_or_many)
    _no_input_twice = field_validator("inputs", "store")(_no_repeats)


GPUS_PER_JOB, OLD_GPUS = "gpus_per_job", "gpus"
GPUS = AliasChoices(GPUS_PER_JOB, OLD_GPUS)
"""The key for the GPUs of one job, and its former name (`--gpus` is for a whole run)."""


class Features(Section):
    """The features to compute, and the files to write."""

    workload: str = DEFAULT
    """What is computed: a built-in workload or one that another package registers."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The workload's own options; see below."""
    shards: Shards = Shards()
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where extraction runs: `auto` takes the visible GPUs, or the CPU if there are none."""
    gpus: int = Field(
        default=1,
        ge=1,
        strict=True,
        validation_alias=GPUS,
        json_schema_extra={problems.FORMER: OLD_GPUS},
    )
    """GPUs that one job spreads its model over, layer by layer. More than 1 only for models that do
    not fit one GPU: several jobs are faster."""
    outputs: tuple[Output, ...] = Field(default=("parquet", "per_protein_h5"), min_length=1)
    """Files that merge writes to `results/<run>/`, described in docs/outputs.md. For more than some
    million records, `parquet_dataset` is better than `parquet`. `featuremill export` writes any of
    them later."""
    order: RowOrder = "auto"
    """The order of the rows of results: that of the `input`, or by `shard`, with several files that
    jobs write in parallel and an index of ids. `auto` is `input` up to some million records; see
    docs/large-runs.md."""
    labels: Labels = Labels()
    max_failed: int = Field(default=0, ge=0, strict=True)
    """Merge stops with an error if more records failed."""
    keep: Literal["all", "parts", "results"] = "all"
    """Files to keep after the run: `parts` removes what an edit of the input does not need,
    `results` also the parts, so that the next change computes all of them again. `featuremill
    clean` does the same at any time."""

    _one_output = field_validator("outputs", mode="before")(_one_or_many)
    _no_output_twice = field_validator("outputs")(_no_repeats)

    @field_validator("options", "shards", "labels", mode="before")
    @classmethod
    def _all_commented_out(cls, value: Any) -> Any:
        return {} if value is None else value  # YAML's value of `options:` with nothing below it


class Config(Features, Records):
    """A run: its records, the features to compute, and the files to write."""


class Run(Config):
    """One set of features of a config, with the workload's typed options and their defaults."""

    options: SerializeAsAny[WorkloadOptions]  # type: ignore[assignment]
    folder: str = Field(exclude=True)
    """The run's folder: results/<run>, below the prefix of a module."""
    weights_json: str = Field(default="", exclude=True)
    """The path of weights/<name>.json; "" if the run needs no weights."""
    origin: SkipValidation[Origin] = Field(default_factory=Origin, exclude=True, repr=False)

    @property
    def module(self) -> Workload:
        return find_workload(self.workload)

    @property
    def options_given(self) -> dict[str, Any]:
        return self.options.model_dump(mode="json")

    @property
    def model(self) -> str | None:
        """The model whose weights the run needs: a name, or the path of a checkpoint."""
        return self.module.weights(self.options)

    @property
    def model_key(self) -> tuple[str, ...]:
        """The key of the option that names the model, or else `workload`."""
        keys = (("options", key) for key, value in self.options_given.items())
        model = self.model
        return next((key for key in keys if self.options_given[key[1]] == model), ("workload",))

    @property
    def files(self) -> list[str]:
        """All input files; a sheet of samples comes first, or alone if a step has yet to write it.

        Raises:
            UserError: if the sheet cannot be read.
        """
        return files_named(self.inputs, self.samples)

    @property
    def named(self) -> tuple[str, ...]:
        """The inputs in the config, or the sheet of samples alone."""
        return (self.samples,) if self.samples else self.inputs

    @property
    def key_of_named(self) -> str:
        return "samples" if self.samples else "inputs"

    @property
    def paths_of_records(self) -> list[Path]:
        return [*map(Path, self.files[1:] if self.samples else self.files)]

    def reading(self, named: Sequence[str]) -> Run:
        """Return the run with other inputs or another sheet of samples."""
        update = {"samples": named[0]} if self.samples else {"inputs": tuple(named)}
        return self.model_copy(update=update)

    @property
    def id_columns(self) -> IdColumns:
        return IdColumns.of_sheet(self.samples)

    @property
    def paths_of_options(self) -> dict[str, str]:
        """The paths of files and folders in options, by the option's name."""
        return option_files.paths_of(self.options)


def validate(
    raw: Mapping[str, Any],
    source: str = "config",
    places: Places | None = None,
    has_options: bool = True,
    besides: Collection[str] = (),
) -> Run:
    """Return the run of a config without `features:`; raise UserError that names each wrong key and
    the nearest valid one.

    Messages have the position of a key from `places`, or else `source`. Without `has_options`, the
    options are not validated. `besides` are keys of a project, to suggest for typos.
    """
    origin = Origin(source, places or {})
    problems.refuse_impossible(raw, origin)
    config = problems.checked(Config, raw, (), sections, origin, besides)
    if config.labels.column and not (config.labels.file or config.samples):
        raise UserError(
            f"{origin.at('labels')}: labels: file and column belong together: name a table, too."
        )
    workload = config.workload
    try:
        module = find_workload(workload)
    except UserError as error:
        raise UserError(f"{origin.at('workload')}: {error}") from None
    if has_options:
        raw_options, elsewhere = config.options, partial(_others, workload)
        options = problems.checked(module.Options, raw_options, ("options",), elsewhere, origin)
        if config.gpus > 1 and not optional(module, "spreads")(options):
            key = OLD_GPUS if OLD_GPUS in raw else GPUS_PER_JOB
            raise UserError(
                f"{origin.at(key)}: {key}: workload {workload} computes on one GPU with these "
                f"options; set {key}: 1."
            )
    else:
        options = module.Options.model_construct(**config.options)
    values = {**dict(config), "options": options, "origin": origin}
    values["folder"] = f"{run_lock.RESULTS}/{config.run}"
    if has_options and not optional(module, "NEEDS_GPU"):
        values["device"] = "cpu"
    run = Run.model_construct(**values)
    if has_options and (model := run.model):
        with _at_the_model(run):
            run = run.model_copy(update={"weights_json": weights.json_of(model, workload)})
    return run


def read(path: Path, has_weights: bool = False) -> Run:
    """Return the run of the YAML file `path`.

    The checkpoint that it names must exist, unless the run `has_weights` converted before.
    """
    raw, places = yaml_lines.read(path)
    run = validate(raw, str(path), places)
    check_outputs(run)
    refuse_missing(run, has_weights)
    return run


def refuse_missing(run: Run, has_weights: bool = False) -> None:
    """Raise UserError if a file of an option, or an unconverted checkpoint, is missing."""
    for name in run.paths_of_options:
        try:
            option_files.refuse_missing(run.options, name)
        except UserError as error:
            raise UserError(f"{run.origin.at('options', name)}: {error}") from None
    if run.model and not has_weights and not Path(run.weights_json).exists():
        with _at_the_model(run):
            weights.refuse_missing(run.model, run.workload)


def read_run(folder: Results) -> Run:
    """Return the run in run.json of its folder.

    Raises:
        UserError: if there is none, or a newer featuremill wrote it.
        IntegrityError: if the file is damaged.
    """
    try:
        file = RunFile.read(folder.run)
    except FileNotFoundError:
        raise UserError(
            f"{folder.run}: what the config asks for is not there yet; type "
            f"{command_line.again(folder.root)}, which writes it."
        ) from None
    update = {"folder": str(folder.root)}
    return validate(file.config, str(folder.run)).model_copy(update=update)


def find_run(folder: Results) -> Run | None:
    """Return the run in run.json of its folder; None if that cannot be read."""
    with contextlib.suppress(UserError, IntegrityError):
        return read_run(folder)
    return None


def files_named(inputs: Iterable[str], sheet: str) -> list[str]:
    """Return the `inputs` or, with a sheet of samples, the sheet and the files in it; the sheet
    alone if a step has yet to write it.

    Raises:
        UserError: if the sheet cannot be read.
    """
    if not sheet:
        return list(inputs)
    if sheet.startswith("results/") and not Path(sheet).exists():
        return [sheet]
    from featuremill.inputs import samples  # here: most runs have none

    return [sheet, *(row.file for row in samples.read(Path(sheet)).rows)]


@contextlib.contextmanager
def _at_the_model(run: Run) -> Iterator[None]:
    """Add the position of the model in the config to a UserError of the block."""
    try:
        yield
    except UserError as error:
        key = run.model_key
        raise UserError(f"{run.origin.at(*key)}: {'.'.join(key)}: {error}") from None


def check_outputs(run: Run) -> None:
    """Raise UserError for an output that would be empty, before anything is computed."""
    if problem := why_not_in_order(run.order, run.outputs):
        raise UserError(f"{run.origin.at('order')}: order: {problem}.")
    delivered = run.options.delivers()
    for output in run.outputs:
        need = formats.format_of(output).kind
        if need and need not in delivered:
            raise UserError(
                f"{run.origin.source}: outputs: {output} needs values {KINDS[need]}, but with "
                f"these options workload {run.workload!r} delivers none; change the options or "
                "drop the output."
            )


def sections() -> dict[str, str]:
    """Return, for keys that may be misplaced on the top level, where they belong."""
    options = {name for model in _options().values() for name in model.model_fields}
    hints = dict.fromkeys(options, "put it under 'options:'")
    hints |= dict.fromkeys(Labels.model_fields, "put it under 'labels:'")
    # The config of a project is validated without these.
    others = ("features", *finding.known())
    hints |= dict.fromkeys(others, "this command takes the config of one run, without it")
    hints[OLD_GPUS] = f"{GPUS_PER_JOB} is its name"
    return hints | dict.fromkeys(Shards.model_fields, "put it under 'shards:'")


def _options() -> dict[str, type[WorkloadOptions]]:
    """Return the options of each installed workload, the default first; none of broken ones."""
    options = {}
    for name in (DEFAULT, *workloads()):
        with contextlib.suppress(UserError, WorkloadError):
            options[name] = find_workload(name).Options
    return options


def _others(workload: str) -> dict[str, str]:
    """Return, for keys that are not options of `workload`, where they belong."""
    hints = dict.fromkeys(Config.model_fields, "it belongs to the top level, outside 'options:'")
    for other, model in _options().items():
        for name in model.model_fields:
            text = f"it is one of workload {other!r}, but this run's is {workload!r}"
            hints.setdefault(name, text)
    return hints
