"""featuremill config-docs: write config/README.md, the JSON schema and docs/environment.md."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from featuremill.base import entry_points, environment
from featuremill.base.described import key_of
from featuremill.base.environment import Setting
from featuremill.base.errors import UserError
from featuremill.config import Config, Features, Records
from featuremill.config.problems import Schema, description_of, kind_of
from featuremill.config.project import FEATURES, OF, Set, Several
from featuremill.inputs import TableOptions
from featuremill.step import finding, optional
from featuremill.store import files
from featuremill.workload import DEFAULT, find_workload, plugin_errors

INTRODUCTION = """\
# The config of a run

<!-- written by `featuremill config-docs` from the models in the code; changes here get lost -->

One YAML file is one project: a run, or several sets of features of the same records.
`featuremill init my.fa` writes one for your input; then

<!-- given: my.fa my.yaml -->
```bash
featuremill run my.yaml
```

Machines (cores, GPUs, clusters) stand in `profiles/`. `config.yaml` is the demo, `examples/` has a
run of each workload. `workflow/schemas/config.schema.json` makes an editor complete and check the
keys: put
`# yaml-language-server: $schema=workflow/schemas/config.schema.json` into the first line.
"""

SEVERAL = """\
## Several sets of features

A config with `features` has several sets of features of the same records; all keys above but `run`,
`inputs` and `store` stand in each set:

<!-- saved as two.yaml -->
```yaml
run: two
inputs: my.fa
features:
  small: {workload: WORKLOAD, options: {model: mill_t6_8M}, outputs: parquet}
  letters: {workload: composition, outputs: [parquet, npy]}
```

```bash
featuremill run two.yaml
featuremill status two.yaml
```

One command computes them all, into `results/two/small/` and `results/two/letters/`. `status`,
`top`, `retry`, `clean` and `estimate` take the config and speak of all of them. Its rules have a
wildcard, so a part of the work is asked for by a file, such as `results/two/small/plan.json`.
"""

STEPS = """\
## Steps

What is made before and of the features:
"""
HEAD = ["key", "value", "default", "meaning"]

ENVIRONMENT = """\
# The environment

<!-- written by `featuremill config-docs` from base/environment.py; changes here get lost -->

You need to set none of these. A command's option beats its variable, a variable beats a profile.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, default=Path("config"), help="default: config")
    schemas = Path("workflow/schemas")
    parser.add_argument("--schemas", type=Path, default=schemas, help=f"default: {schemas}")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="default: docs")
    parser.add_argument("--check", action="store_true", help="only compare; write nothing")
    parser.add_argument(
        "--installed", action="store_true", help="also the steps of other packages, as here"
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the three files, or with `--check` raise UserError if one is not up to date."""
    schema = json.dumps(run_schema(arguments.installed), indent=2, ensure_ascii=False) + "\n"
    texts: dict[Path, str] = {
        arguments.folder / "README.md": readme(arguments.installed),
        arguments.schemas / "config.schema.json": schema,
        arguments.docs / "environment.md": environment_page(),
    }
    for path, text in texts.items():
        if path.exists() and path.read_text("utf-8") == text:
            continue
        if arguments.check:
            raise UserError(
                f"{path}: this differs from the code; run featuremill config-docs to renew it."
            )
        with files.replacing(path) as temporary:
            temporary.write_text(text, "utf-8")


def readme(installed: bool = False) -> str:
    """Return the Markdown page on all keys of a run, of steps and of featuremill's own workloads;
    `installed` adds the steps of other packages."""
    keys = _steps(installed)
    sections = [INTRODUCTION, "## Every run\n", *_table(Config)]
    several = SEVERAL.replace("WORKLOAD", DEFAULT)
    sections += ["", several, *_table(Several, besides=Records)]
    sections += [*_table(Set, besides=Features, prefix="features.<name>.")][2:]  # without the head
    steps = ([f"`{key}`", finding.step_of(key).ABOUT] for key in keys)
    sections += ["", STEPS, *_lines(["key", "meaning"], steps)]
    for key in keys:
        schema = finding.sections([key]).model_json_schema()
        inside = schema["properties"][key].get("additionalProperties", schema["properties"][key])
        each_entry = "each entry of " if "additionalProperties" in schema["properties"][key] else ""
        sections += ["", f"### {each_entry}`{key}`\n"]
        definition = schema["$defs"][inside["$ref"].rpartition("/")[2]]
        sections += _lines(HEAD, _rows(definition, schema["$defs"], ""))
    sections += ["", "## `options` of workloads that read tables\n", *_table(TableOptions)]
    for name in entry_points.own(plugin_errors.GROUP):
        workload = find_workload(name)
        summary = (workload.__doc__ or "").partition("\n")[0]
        sections += ["", f"## `options` of workload `{name}`\n", f"{summary}\n"]
        sections += _table(workload.Options, besides=TableOptions)
    return "\n".join(sections) + "\n"


def _steps(installed: bool) -> list[str]:
    return finding.known() if installed else finding.built_in()


def environment_page() -> str:
    """Return the Markdown page on the environment variables that are read or set."""

    def default_of(setting: Setting[Any]) -> str:
        default = setting.default
        shown = int(default) if isinstance(default, bool | float) else default
        return setting.default_words or f"`{shown}`"

    ours = (
        [f"`{setting}`", default_of(setting), setting.meaning]
        for setting in environment.SETTINGS
        if not setting.is_internal
    )
    steps = map(finding.step_of, finding.built_in())
    read = [optional(each, "VARIABLES") for each in steps]
    known = itertools.chain(environment.OF_OTHERS, *read)
    groups = itertools.groupby(known, lambda variable: variable.meaning)
    others = ([", ".join(f"`{each}`" for each in group), meaning] for meaning, group in groups)
    lines = [
        *(ENVIRONMENT, *_lines(["variable", "default", "meaning"], ours)),
        *("", "## Of other programs", "", *_lines(["variable", "use"], others)),
    ]
    return "\n".join(lines) + "\n"


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for cells in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def run_schema(installed: bool = False) -> Schema:
    """Return the JSON schema of the keys in `readme`; the valid options depend on the workload."""
    schema = Config.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    of_set = Set.model_json_schema()
    definitions["Set"] = {key: value for key, value in of_set.items() if key != "$defs"}
    schema["properties"][OF] = of_set["properties"][OF]
    schema["properties"][FEATURES] = Several.model_json_schema()["properties"][FEATURES]
    steps = finding.sections(_steps(installed)).model_json_schema()
    schema["properties"] |= steps["properties"]
    definitions |= steps["$defs"]
    schema["oneOf"] = [{"required": ["inputs"]}, {"required": ["samples"]}]
    conditions: list[Schema] = []
    schema["allOf"] = definitions["Set"]["allOf"] = conditions
    for name in entry_points.own(plugin_errors.GROUP):
        options = find_workload(name).Options.model_json_schema()
        definitions |= options.pop("$defs", {})
        definitions[f"{name}_options"] = options
        chosen: Schema = {"properties": {"workload": {"const": name}}}
        if name != Config.model_fields["workload"].default:
            chosen["required"] = ["workload"]  # a config without the key would match too
        valid = {"properties": {"options": {"$ref": f"#/$defs/{name}_options"}}}
        conditions.append({"if": chosen, "then": valid})
    in_set, of_run = definitions["Set"]["properties"], schema["properties"]
    # The models also take one value without brackets.
    for field in (of_run["inputs"], of_run["outputs"], in_set["outputs"]):
        entries = {
            "type": field.pop("type"),
            "items": field["items"],
            "minItems": field.pop("minItems", 1),
        }
        field["anyOf"] = [entries, field.pop("items")]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def _table(
    model: type[BaseModel], besides: type[BaseModel] = BaseModel, prefix: str = ""
) -> Iterator[str]:
    """Yield the lines of a table of the keys of `model`, except those of the model `besides`."""
    schema = model.model_json_schema()
    for name, field in besides.model_fields.items():
        schema["properties"].pop(key_of(name, field), None)
    yield from _lines(HEAD, _rows(schema, schema.get("$defs", {}), prefix))


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
