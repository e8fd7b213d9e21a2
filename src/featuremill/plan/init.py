"""init: read an input once, say what it holds, and write a commented config for it."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from featuremill import config, inputs
from featuremill.base.errors import UserError
from featuremill.base.words import counted
from featuremill.plan.survey import Survey, names, surveyed
from featuremill.store import command_line, files
from featuremill.workload import find_workload, refuse_without_packages, said, weights

COMMENT_WIDTH = 96
SET = ("model", "id_column", "sequence_column")
"""Options of a workload that the command line can set."""

log = logging.getLogger("featuremill.init")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill init`."""
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT", help="FASTA, table, …")
    parser.add_argument(
        "--output", type=Path, help="config to write; default: named like the input"
    )
    parser.add_argument("--model", help="network to use; default: the small one that is built in")
    parser.add_argument(
        "--workload",
        default=config.Config.model_fields["workload"].default,
        help="what to compute; default: %(default)s",
    )
    for column in ("id", "sequence"):
        parser.add_argument(
            f"--{column}-column",
            metavar="NAME",
            help=f"column of a table that holds the {column}s; default: found by its name",
        )
    parser.add_argument("--force", action="store_true", help="overwrite the config if it exists")


def run(arguments: argparse.Namespace) -> None:
    """Carry out `featuremill init`."""
    name = _run_name(arguments.output or arguments.inputs[0])
    output: Path = arguments.output or Path(f"{name}.yaml")
    if any(output.resolve() == path.resolve() for path in arguments.inputs):
        raise UserError(f"{output}: this is the input itself; name another file with --output.")
    if output.is_dir():
        raise UserError(f"{output}: this is a folder; name a file in it.")
    if output.exists() and not arguments.force:
        raise UserError(f"{output}: it exists already; add --force to overwrite it, or --output.")
    settings = {
        "run": name,
        "inputs": [str(path) for path in arguments.inputs],
        "workload": arguments.workload,
        "options": {key: value for key in SET if (value := getattr(arguments, key))},
    }
    checked = config.validate(settings, str(output))  # before the long part, as it may be wrong
    workload = find_workload(checked.workload)
    options = workload.Options.model_validate(checked.options)
    _refuse_what_a_run_would(checked, output)
    found = surveyed(arguments.inputs, checked.workload, workload, options)
    for line in found.describe(arguments.inputs, workload, options):
        log.info("%s", line)
    if not found.lengths:
        raise UserError(f"{names(arguments.inputs)}: every record is refused, see above.")
    if found.is_nucleotides:
        log.warning("these look like nucleotides, not proteins; translate them first.")
    text = config_text(settings, found)
    config.validate(yaml.safe_load(text), str(output))
    with _placed(output), files.replacing(output) as temporary:
        temporary.write_text(text, "utf-8")
    log.info("wrote %s; next: %s", output, command_line.first(output))


def _refuse_what_a_run_would(checked: config.Config, output: Path) -> None:
    """Refuse a model, names and times of files that a run of this config would end on.

    Of packages that are missing it is only said: the jobs may have environments of their own.
    """
    if model := config.model_of(checked):
        weights.refuse_missing(model, checked.workload)
    config.refuse_patterns(checked)
    with _placed(output), tempfile.NamedTemporaryFile(dir=output.absolute().parent) as clock:
        inputs.source.refuse_future(checked.inputs, Path(clock.name))
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


def config_text(settings: Mapping[str, Any], found: Survey) -> str:
    """Return the YAML of `settings`, every key explained by the models that will check it.

    Options that `settings` leaves out, and what is empty, stand in it as comments.
    """
    checked = config.Config.model_validate(settings)
    unit = said(find_workload(checked.workload), "LENGTH_UNIT")
    lines = [
        f"# A run of featuremill on {names([Path(path) for path in checked.inputs])}:",
        f"# {counted(found.lengths.total(), 'good record')}, "
        f"{counted(found.tally.total_length, unit.removesuffix('s'))}.",
        "# Paths are seen from the folder where snakemake is started. All keys: config/README.md.",
    ]
    for name, about in config.Config.model_fields.items():
        value = getattr(checked, name)
        if lines[-1]:
            lines.append("")
        if name == "options":
            lines += ["options:", *_options(checked)]
        elif isinstance(value, BaseModel):
            lines += [f"{name}:", *_entries(type(value), value.model_dump(), "  ")]
        else:
            shown = value[0] if name == "inputs" and len(value) == 1 else value
            lines += [*_comment(about.description, ""), f"{name}: {_scalar(shown)}"]
    return "\n".join(lines) + "\n"


def _options(checked: config.Config) -> Iterator[str]:
    """Yield the options: the model and what was set as keys, the others as comments."""
    model = find_workload(checked.workload).Options
    values = model.model_validate(checked.options).model_dump(mode="json")
    yield from _entries(model, values, "  ", active={"model", *checked.options})


def _entries(
    model: type[BaseModel], values: Mapping[str, Any], indent: str, active: set[str] | None = None
) -> Iterator[str]:
    for name, value in values.items():
        yield from _comment(model.model_fields[name].description, indent)
        is_active = value != "" if active is None else name in active
        mark = "" if is_active else "# "
        yield f"{indent}{mark}{name}: {_scalar(value)}"
        if active is not None:
            yield ""


def _comment(description: str | None, indent: str) -> Iterator[str]:
    words = " ".join((description or "").split())
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


def _run_name(path: Path) -> str:
    """Return a run's name made of the file's: without known suffixes, with plain letters."""
    known = {
        ".yaml",
        ".yml",
        *inputs.COMPRESSED,
        *(s for format in inputs.FORMATS for s in format.suffixes),
    }
    stem = path
    while stem.suffix.lower() in known:
        stem = stem.with_suffix("")
    return re.sub(r"[^A-Za-z0-9._-]+", "_", stem.name).lstrip("._-")[: config.MAX_NAME] or "run"
