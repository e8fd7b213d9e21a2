"""What a bug report needs in one zip: readiness, configs, receipts, ends of logs. No data."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from featuremill.doctor import scrub
from featuremill.store import files

LOG_TAIL_BYTES = 64 * 1024
MAX_LOGS, MAX_RECEIPTS = 50, 200
"""The newest ones."""
NAMING_CODES = ("busy", "exclusive", "full", "leased")
"""Issues that say who uses a GPU."""
READ_ME = """What `featuremill doctor --bundle` packed for a bug report.

doctor.json  the readiness of the machine      plans/     what was to be computed
configs/     YAML files that are run configs   receipts/  how parts were computed
logs/        the last lines of the newest logs

No sequences, and ids of records, quoted words and names of people and machines are blanked out.
Look through it before you send it.
{notes}
"""


def write(path: Path, report: dict[str, Any], folder: Path, results: Path) -> list[str]:
    """Write the zip `path` about the runs below `folder`; return the names of what is in it."""
    plans = sorted(results.glob("*/plan.json"))
    values = {f"plans/{plan.parent.name}.json": _json(plan) for plan in plans}
    values |= {f"configs/{file.name}": config for file, config in _configs(folder)}
    for receipt in _newest(results.glob("*/receipts/*/*.json"), MAX_RECEIPTS):
        values[f"receipts/{receipt.relative_to(results).as_posix()}"] = _json(receipt)
    texts = {
        log.relative_to(folder).as_posix().lstrip("."): _tail(log)
        for log in _newest(_logs(folder), MAX_LOGS)
    }
    texts, values, notes = _without_records(texts, values, results)
    members = {"README.txt": READ_ME.format(notes=notes)}
    members |= {"doctor.json": _dumped(_without_users(report))}
    members |= {name: _dumped(value) for name, value in values.items()} | texts
    with files.replacing(path) as temporary, zipfile.ZipFile(
        temporary, "w", zipfile.ZIP_DEFLATED
    ) as file:  # fmt: skip
        for name, text in members.items():
            file.writestr(scrub.without_people(name), scrub.without_people(text))
    return list(members)


def _without_records(
    texts: dict[str, str], values: dict[str, Any], results: Path
) -> tuple[dict[str, str], dict[str, Any], str]:
    manifests = sorted(results.glob("*/manifest.parquet"))
    try:
        words = scrub.words_of([*texts.values(), *map(_dumped, values.values())])
        named = scrub.named_records(manifests, words)
    except Exception as error:  # too many, or a manifest that cannot be read: then no texts at all
        reason = f"{type(error).__name__}: {error}"
        return (
            {},
            {},
            f"\nLeft out, as they could not be checked for ids ({reason}): all but doctor.json.",
        )
    texts = {name: scrub.without_records(text, named) for name, text in texts.items()}
    values = {name: scrub.values_without_records(v, named) for name, v in values.items()}
    return texts, values, ""


def _without_users(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report without who runs what on the GPUs."""
    issues = [
        {**issue, "what": "[who]"} if issue["code"] in NAMING_CODES else issue
        for issue in report["issues"]
    ]
    gpus = [
        {
            **gpu,
            "busy_by": "[who]" if gpu["busy_by"] else None,
            "processes": [{"memory_mb": process["memory_mb"]} for process in gpu["processes"]],
        }
        for gpu in report["gpus"]
    ]
    recommended = dict(report["recommended"])
    recommended["not_counted"] = [
        {**one, "why": "in use"} if one["why"].startswith("in use") else one
        for one in recommended["not_counted"]
    ]
    return {**report, "gpus": gpus, "issues": issues, "recommended": recommended}


def _configs(folder: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the run configs in the folder and in its config/: mappings that name inputs."""
    for file in (*sorted(folder.glob("*.yaml")), *sorted(folder.glob("config/*.yaml"))):
        try:
            config = yaml.safe_load(file.read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if isinstance(config, dict) and "inputs" in config:
            yield file, config


def _logs(folder: Path) -> Iterator[Path]:
    yield from folder.glob("logs/**/*.log")
    yield from folder.glob(".snakemake/log/*.log")


def _newest(paths: Iterator[Path], count: int) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)[:count]


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        return file.read().decode("utf-8", "replace")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        return {"unreadable": str(error)}


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
