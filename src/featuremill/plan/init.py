"""init: read an input once, say what it holds, and write a commented config for it.

Of several files, or a folder of them, each is a sample: then there is a sheet as well.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import re
import tempfile
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from featuremill import config, inputs
from featuremill.base import this_process
from featuremill.base.described import Described, key_of
from featuremill.base.devices import planning_device
from featuremill.base.errors import UserError
from featuremill.base.tsv import TsvWriter, cell
from featuremill.base.words import counted, listed
from featuremill.config import products
from featuremill.config.problems import kind_of as kind_of_value
from featuremill.inputs.samples import is_sheet
from featuremill.plan.command import RESERVED
from featuremill.plan.reading import refuse_nucleotides
from featuremill.plan.survey import Survey, names, surveyed
from featuremill.store import command_line, ours
from featuremill.store.formats import Kind, format_of, kind_of
from featuremill.workload import (
    find_workload,
    optional,
    plugin_errors,
    refuse_without_packages,
    weights,
    workloads,
)

COMMENT_WIDTH = 96
SHOWN = ("run", "samples", "inputs", "workload", "options", "device", "outputs")
"""Keys of a config that it has without --full."""
SET = ("model", "id_column", "sequence_column")
"""Options that the command line can set; a workload that lacks one refuses it."""

log = logging.getLogger("featuremill.init")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="+",
        type=Path,
        metavar="INPUT",
        help="FASTA, table, …; of several, or a folder of them, each is a sample",
    )
    parser.add_argument("--output", type=Path, help="config to write; default: named as the input")
    parser.add_argument(
        "--model", help="network to use; default: one that is on this machine, else the bundled one"
    )
    parser.add_argument(
        "--workload",
        default=config.Config.model_fields["workload"].default,
        help=f"what to compute: {', '.join(workloads())}; default: %(default)s",
    )
    for column in ("id", "sequence"):
        parser.add_argument(
            f"--{column}-column",
            metavar="NAME",
            help=f"column of a table that holds the {column}s; default: found by its name",
        )
    parser.add_argument("--full", action="store_true", help="write every key, with its explanation")
    parser.add_argument("--force", action="store_true", help="overwrite the config if it exists")


def run(arguments: argparse.Namespace) -> None:
    opens_any = optional(find_workload(arguments.workload), "TAKES_FILES")
    first: Path = arguments.output or arguments.inputs[0]
    name = _run_name(first, opens_any and not arguments.output)
    output: Path = arguments.output or Path(f"{name}.yaml")
    paths = [file for path in arguments.inputs for file in _files_in(path, opens_any)]
    if any(output.resolve() == path.resolve() for path in paths):
        raise UserError(f"{output}: this is the input itself; name another file with --output.")
    if output.is_dir():
        raise UserError(f"{output}: this is a folder; name a file in it.")
    if output.exists() and not arguments.force:
        raise UserError(f"{output}: it exists already; add --force to overwrite it, or --output.")
    sheet = output.with_suffix(".tsv")
    if len(paths) == 1:
        is_a_sheet = not opens_any and is_sheet(paths[0])
        records = {"samples": str(paths[0])} if is_a_sheet else {"inputs": [str(paths[0])]}
        _write(arguments, name, output, records)
        return
    if sheet.exists() and not arguments.force:
        raise UserError(f"{sheet}: it exists already; add --force to overwrite it, or --output.")
    text, before = _sheet(paths, opens_any), sheet.read_bytes() if sheet.exists() else None
    with _placed(sheet), ours.keeping_old(sheet) as temporary:
        temporary.write_text(text, "utf-8")
    try:
        _write(arguments, name, output, {"samples": str(sheet)})
    except BaseException:
        sheet.unlink() if before is None else sheet.write_bytes(before)
        raise


def _files_in(path: Path, opens_any: bool) -> list[Path]:
    """Return the files of a folder that can be read, in the order of their names; of a file, it."""
    if not path.is_dir():
        return [path]
    known = {*inputs.COMPRESSED, *inputs.SUFFIXES}
    files = [file for file in sorted(path.iterdir()) if file.is_file() and file.name[0] != "."]
    if readable := [file for file in files if opens_any or file.suffix.lower() in known]:
        return readable
    raise UserError(f"{path}: no file in this folder can be read; name files.")


def _sheet(paths: Sequence[Path], opens_any: bool) -> str:
    of_name: dict[str, Path] = {}
    for path in paths:
        other = of_name.setdefault(_run_name(path, opens_any), path)
        if other != path:
            raise UserError(
                f"{other} and {path} would both be sample {_run_name(path, opens_any)!r}; rename "
                "one, or write the sheet yourself: a table with the columns sample and file."
            )
    text = io.StringIO()
    table = TsvWriter(text, ("sample", "file"))
    for name, path in of_name.items():
        if cell(path) != str(path):
            raise UserError(
                f"{path}: no cell of a sheet can hold this name (it has a tab, a line break, or a "
                "quotation mark at its start); rename the file."
            )
        table.row((name, path))
    return text.getvalue()


def _write(
    arguments: argparse.Namespace, name: str, output: Path, records: Mapping[str, Any]
) -> None:
    settings = {
        "run": name,
        **records,
        "workload": arguments.workload,
        "options": {key: value for key in SET if (value := getattr(arguments, key))},
    }
    if not arguments.model and (here := weights.suggested(arguments.workload)):
        log.info("%s is on this machine, so the config names it; --model names another", here)
        settings["options"]["model"] = here
    unfilled = _unfilled(arguments.workload, settings["options"])
    # Before the long part, as it may be wrong.
    checked = config.validate(settings, str(output), has_options=not unfilled)
    _refuse_what_a_run_would(checked, output, unfilled)
    checked = checked.model_copy(update={"outputs": _outputs(checked, unfilled)})
    survey = None if unfilled else _look(checked)
    text = config_text(checked, settings["options"], unfilled, survey, arguments.full)
    config.validate(yaml.safe_load(text), str(output), has_options=not unfilled)
    with _placed(output), ours.keeping_old(output) as temporary:
        temporary.write_text(text, "utf-8")
    todo = f"fill in {_listed(unfilled)}, then" if unfilled else "next"
    has_model = not unfilled or "model" in settings["options"]
    if has_model and (caution := weights.caution_of(checked.workload, checked.options)):
        log.warning("%s", caution)
    wrote = " and ".join(filter(None, [records.get("samples"), str(output)]))
    log.info("wrote %s; %s: %s", wrote, todo, command_line.first(output))


def _unfilled(workload: str, options: Mapping[str, Any]) -> list[str]:
    """Return the options that the workload cannot do without and nobody has given; none where
    something else is wrong with the others, which is said together with these."""
    try:
        find_workload(workload).Options.model_validate(options)
    except ValidationError as error:
        problems = error.errors()
        if all(problem["type"] == "missing" for problem in problems):
            return [str(problem["loc"][0]) for problem in problems]
    return []


def _look(checked: config.Run) -> Survey:
    """Read the input and say what it holds; refuse one without a good record."""
    workload, paths = find_workload(checked.workload), checked.paths_of_records
    options = checked.options
    owners = {str(path): number for number, path in enumerate(paths)} if checked.samples else {}
    survey = surveyed(paths, checked.workload, workload, options, owners)
    for line in survey.describe(paths, workload, options):
        log.info("%s", line)
    if not survey.lengths:
        raise UserError(f"{names(paths)}: every record is refused, see above.")
    if survey.only_id:
        log.warning(
            "%r is the id of all %s records, and they are different, so a run refuses them; an id "
            "is the first word of a header, so give each record its own.",
            survey.only_id[:60],
            f"{survey.lengths.total():,}",
        )
    if survey.tally.is_nucleotides:
        refuse_nucleotides(list(map(str, paths)), log)
    return survey


def _outputs(checked: config.Run, unfilled: Collection[str]) -> list[str]:
    """Return those of the usual outputs that have a place for what the workload delivers.

    What depends on options that are still to be filled in goes into those that take any values.
    """
    delivered: set[Kind] = set()
    if not unfilled:
        name, workload = checked.workload, find_workload(checked.workload)
        options = checked.options
        delivered = options.delivers()
        if workload.weights(options) is None:  # what is not known before there are weights
            device = planning_device(checked.device)
            settled = plugin_errors.resolved(name, workload, options, device, None)
            values = plugin_errors.schema_of(name, workload, settled, None, RESERVED)
            delivered &= {kind_of(column.type) for column in values}
    usual = config.Config.model_fields["outputs"].default
    own = optional(find_workload(checked.workload), "OUTPUTS")
    return [*(name for name in usual if format_of(name).kind in {None, *delivered}), *own]


def _refuse_what_a_run_would(checked: config.Run, output: Path, unfilled: Collection[str]) -> None:
    """Refuse a model, names and times of files that a run of this config would end on.

    Of packages that are missing it is only said: the jobs may have environments of their own.
    """
    if not unfilled and checked.model:
        weights.refuse_missing(checked.model, checked.workload)
    for path in checked.paths_of_records if unfilled else ():  # reading them all says it otherwise
        if not path.exists():
            raise UserError(f"{path}: there is no such file; check the path.")
    products.refuse_patterns(checked)
    with _placed(output), tempfile.NamedTemporaryFile(dir=output.absolute().parent) as clock:
        inputs.source.refuse_future(map(str, checked.paths_of_records), Path(clock.name))
    try:
        refuse_without_packages(find_workload(checked.workload).Options)
    except UserError as error:
        log.warning("%s", error)


@contextlib.contextmanager
def _placed(output: Path) -> Iterator[None]:
    """Say in a sentence where nothing can be written beside `output`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{output}: {error.strerror}; choose another place.") from None


def config_text(
    checked: config.Run,
    explicit: Collection[str],
    unfilled: Collection[str],
    survey: Survey | None,
    is_full: bool = False,
) -> str:
    """Return the YAML of a config, its keys explained by the models that will check it.

    If `is_full`, it has every key. Options that are not `explicit`, and what is empty, are then
    comments; those that are `unfilled` are keys without a value.
    """
    unit = optional(find_workload(checked.workload), "LENGTH_UNIT")
    lines = [
        f"# A run of featuremill on {names(checked.paths_of_records)}:",
        f"# {counted(survey.lengths.total(), 'good record')}, "
        f"{counted(survey.tally.total_length, unit.removesuffix('s'))}."
        if survey
        else f"# To be filled in first: {_listed(unfilled)}.",
        "# Paths are seen from the folder where the run is started. All keys: "
        f"{'' if is_full else '--full writes them; '}see",
        f"# {Path(this_process.SNAKEFILE).parent / 'config' / 'README.md'}",
    ]
    descriptions = config.Config.descriptions()
    for name, about in config.Config.model_fields.items():
        value = getattr(checked, name)
        if not is_full and (name not in SHOWN or not (value or name == "options")):
            continue
        if lines[-1]:
            lines.append("")
        if name == "options":
            if options := [*_options(checked, explicit, unfilled, is_full)]:
                lines += ["options:", *options]
        elif isinstance(value, Described):
            lines += [f"{name}:", *_entries(type(value), value.model_dump(), "  ")]
        else:
            shown = value[0] if name == "inputs" and len(value) == 1 else value
            mark = "" if value or name not in ("inputs", "samples") else "# "
            comment = _comment(descriptions[name], "", is_full)
            lines += [*comment, f"{mark}{key_of(name, about)}: {_scalar(shown)}"]
    return "\n".join(lines) + "\n"


def _options(
    checked: config.Run, explicit: Collection[str], unfilled: Collection[str], is_full: bool
) -> Iterator[str]:
    """Yield the options: what is to be filled in, what was given and what names the model as keys,
    and the others, if it `is_full`, as comments."""
    model = find_workload(checked.workload).Options
    schema = model.model_json_schema()
    values = checked.options.model_dump(mode="json", warnings=False)
    has_model = not unfilled and checked.model
    active = {*explicit, checked.model_key[-1]} if has_model else {*explicit}
    descriptions = model.descriptions()
    for name in model.model_fields:
        if not (is_full or name in unfilled or name in active):
            continue
        yield from _comment(descriptions.get(name, ""), "  ", is_full)
        if has_model and name == checked.model_key[-1]:
            yield from _comment(weights.caution_of(checked.workload, checked.options), "  ")
        if name in unfilled:
            kind = kind_of_value(schema["properties"][name], schema.get("$defs", {}))
            yield from [*_comment(f"Required: {kind}.", "  "), f"  {name}:"]
        else:
            yield f"  {'' if name in active else '# '}{name}: {_scalar(values[name])}"
        yield ""


def _listed(options: Collection[str]) -> str:
    return listed(f"options.{name}" for name in options)


def _entries(model: type[Described], values: Mapping[str, Any], indent: str) -> Iterator[str]:
    descriptions = model.descriptions()
    for name, value in values.items():
        yield from _comment(descriptions[name], indent)
        yield f"{indent}{'# ' if value == '' else ''}{name}: {_scalar(value)}"


def _comment(description: str, indent: str, is_whole: bool = True) -> Iterator[str]:
    """Yield a description as comments; unless it `is_whole`, its first sentence."""
    words = " ".join(description.split())
    if not is_whole:
        words = re.split(r"(?<=\.) (?=[A-Z`])", words)[0]
    for line in textwrap.wrap(words, COMMENT_WIDTH - len(indent), break_on_hyphens=False):
        yield f"{indent}# {line}"


def _scalar(value: Any) -> str:
    """Return `value` as YAML on one line."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(_scalar(entry) for entry in value)}]"
    if isinstance(value, int) and value >= 10_000:
        return f"{value:_}"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_/.][\w/.-]*", value, re.ASCII)
    is_plain = plain and yaml.safe_load(value) == value  # 'yes' and 'null' are not
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _run_name(path: Path, is_of_any_format: bool) -> str:
    """Return a run's name made of the file's: without known suffixes, or the last one of a format
    that only the workload knows, with plain letters."""
    known = {".yaml", ".yml", *inputs.COMPRESSED, *inputs.SUFFIXES}
    stem = path
    while stem.suffix.lower() in known:
        stem = stem.with_suffix("")
    if is_of_any_format:
        stem = stem.with_suffix("")
    return re.sub(r"[^A-Za-z0-9._-]+", "_", stem.name).lstrip("._-")[: config.MAX_NAME] or "run"
