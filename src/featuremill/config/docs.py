"""Writes what people read about the config, out of the models that check it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from featuremill.base.errors import UserError
from featuremill.config import Config
from featuremill.config.problems import Schema, description_of, kind_of
from featuremill.store import files
from featuremill.workload import BUILT_IN, find_workload

INTRODUCTION = """\
# The config of a run

<!-- written by `featuremill config-docs` from the models in the code; changes here get lost -->

One YAML file is one run. `featuremill init my.fa` writes one for your input; then

<!-- given: my.fa my.yaml -->
```bash
snakemake --configfile my.yaml --cores all
```

Machines (cores, GPUs, clusters) are no part of it; they stand in `profiles/`. A key that does not
exist is an error that names the nearest one that does. `config.yaml` is the demo, `examples/` has a
run of each workload, and `schema.json` makes an editor complete and check the keys: put
`# yaml-language-server: $schema=config/schema.json` into the first line.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb `config-docs`."""
    parser.add_argument("--folder", type=Path, default=Path("config"), help="default: config")
    parser.add_argument("--check", action="store_true", help="only compare; write nothing")


def run(arguments: argparse.Namespace) -> None:
    """Write README.md and schema.json, or raise UserError where they are not up to date."""
    schema = json.dumps(run_schema(), indent=2, ensure_ascii=False) + "\n"
    for name, text in (("README.md", readme()), ("schema.json", schema)):
        path: Path = arguments.folder / name
        if path.exists() and path.read_text("utf-8") == text:
            continue
        if arguments.check:
            raise UserError(
                f"{path}: this is not what the code says; run featuremill config-docs to renew it."
            )
        with files.replacing(path) as temporary:
            temporary.write_text(text, "utf-8")


def readme() -> str:
    """Return the Markdown page on every key of a run and of the built-in workloads."""
    sections = [INTRODUCTION, "## Every run\n", *_table(Config)]
    for name in BUILT_IN:
        workload = find_workload(name)
        summary = (workload.__doc__ or "").partition("\n")[0]
        sections += ["", f"## `options` of workload `{name}`\n", f"{summary}\n"]
        sections += _table(workload.Options)
    return "\n".join(sections) + "\n"


def run_schema() -> Schema:
    """Return the JSON schema of a run; which options are valid depends on its workload."""
    schema = Config.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    schema["allOf"] = []
    for name in BUILT_IN:
        options = find_workload(name).Options.model_json_schema()
        definitions |= options.pop("$defs", {})
        definitions[f"{name}_options"] = options
        chosen: Schema = {"properties": {"workload": {"const": name}}}
        if name != Config.model_fields["workload"].default:
            chosen["required"] = ["workload"]  # a config without the key would match too
        valid = {"properties": {"options": {"$ref": f"#/$defs/{name}_options"}}}
        schema["allOf"].append({"if": chosen, "then": valid})
    for name in ("inputs", "outputs"):  # the model also takes one value without brackets
        field = schema["properties"][name]
        entries = {
            "type": field.pop("type"),
            "items": field["items"],
            "minItems": field.pop("minItems"),
        }
        field["anyOf"] = [entries, field.pop("items")]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def _table(model: type[BaseModel]) -> Iterator[str]:
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    schema = model.model_json_schema()
    for cells in _rows(schema, schema.get("$defs", {}), ""):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _rows(schema: Schema, definitions: dict[str, Schema], prefix: str) -> Iterator[list[str]]:
    for name, field in schema["properties"].items():
        section = definitions[field["$ref"].rpartition("/")[2]] if "$ref" in field else {}
        if "properties" in section:
            yield from _rows(section, definitions, f"{prefix}{name}.")
            continue
        default = "required" if name in schema.get("required", ()) else _plain(field.get("default"))
        yield [f"`{prefix}{name}`", kind_of(field, definitions), default, description_of(field)]


def _plain(default: Any) -> str:
    return "" if default in (None, {}, "") else f"`{json.dumps(default, ensure_ascii=False)}`"
