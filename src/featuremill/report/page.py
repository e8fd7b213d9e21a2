"""Write the HTML page of a run from its facts and figures, by templates; also pages of steps."""

from __future__ import annotations

import contextlib
import os
import shlex
import zlib
from collections import Counter
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert
import yaml

from featuremill.base import words
from featuremill.base.this_process import VERSION
from featuremill.config import Config
from featuremill.report import embedding, lengths, shards, timeline
from featuremill.report.facts import Facts
from featuremill.store import formats
from featuremill.store.delivery import Delivery
from featuremill.store.files import make_own_folder, replacing
from featuremill.store.ours import delivering
from featuremill.workload.figures import Figure
from featuremill.workload.weights import cache_folder, caution_of, model_name_of

ASSETS = Path(__file__).parent / "assets"
VEGA_NAMES = "window.vegaEmbed = vegaEmbed;"
MAX_SAMPLES = 200
"""Largest number of rows of the table of samples."""
MOST_INPUTS = 100
"""Largest number of listed input files."""
MOST_CHECKED = 20
"""Largest number of input files whose digests the commands to reproduce the run check."""
MEANINGS = {
    "ok": "have their features",
    "failed": "were tried and have no features",
    "refused": "were not tried",
    "duplicate": "the same id with the same sequence, again",
    "pending": "are not computed yet",
}
PLACED = frozenset(
    ("version", "run", "partial", "finished", "recipe", "records_sha256", "settings", "cost_unit")
).union(
    ("inputs", "plan", "lengths", "notes", "refusals", "counts", "outputs", "parts", "receipts"),
    ("taken", "beside"),
    ("gpu_seconds", "gpu_energy_j", "gpu_energy_j_per_million", "warnings"),
)
"""Keys of manifest.json that the page shows elsewhere, or not at all. Other keys are shown with the
recipe; keys of the config also in the config that reproduces the run."""


def draw(facts: Facts) -> dict[str, Figure]:
    """Return the figures by name, in the order of the page."""
    unit = facts.delivery.lengths.unit
    figures = (
        *facts.of_workload,
        embedding.drawn(facts.embedding),
        lengths.figure(facts.lengths, unit),
        timeline.figure(facts),
    )
    return {figure.name: figure for figure in figures if figure.sentence}


def write_report(
    path: Path, facts: Facts, figures: dict[str, Figure], *, is_named: bool = False
) -> None:
    """Write the report to `path`, which the user may have named."""
    delivery, settings = facts.delivery, facts.delivery.settings
    caution = caution_of(settings.workload, settings.options)
    text = (
        _environment()
        .get_template("page.html")
        .render(
            title=facts.delivery.run + " (partial)" * facts.delivery.partial,
            lead=_lead(facts),
            tiles=_tiles(facts),
            samples=_samples(facts),
            num_samples=len(facts.samples),
            most_inputs=MOST_INPUTS,
            # A name such as mill_t6_8M is not capitalised.
            warnings=[
                text if "_" in text.split()[0] else text[0].upper() + text[1:]
                for text in (*filter(None, [caution]), *delivery.warnings)
            ],
            figures=figures,
            neighbours=None
            if isinstance(facts.embedding, str)
            else embedding.nearest(facts.embedding),
            delivery=delivery,
            settings=_flat(settings.as_json()),
            about=_flat(_besides(delivery)),
            devices=_devices(facts),
            versions=_versions(facts),
            reproduce=_reproduce(facts),
            accounting=_accounting(facts),
            problems=facts.problems,
            troubles=shards.troubles_of(facts.shards, settings.workload),
        )
    )
    _write_text(path, text, is_named)


def write_of(path: Path, template: str, **context: Any) -> None:
    """Write the page of a step to `path`; the text `template` extends step.html."""
    _write_text(path, _environment().from_string(template).render(context))


def _write_text(path: Path, text: str, is_named: bool = False) -> None:
    try:
        with delivering(path, is_named=is_named) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        error.filename = str(path)  # the error of a full disk lacks it
        raise


@cache
def _environment() -> jinja2.Environment:
    """Return the environment of templates; values are escaped, as ids and paths are untrusted."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    environment.filters.update(count=words.count, size=words.size)
    environment.globals.update(
        style=(ASSETS / "style.css").read_text("utf-8"),
        charts=(ASSETS / "charts.js").read_text("utf-8"),
        vega=_vega(),
    )
    return environment


def _vega() -> str:
    """Return the JavaScript libraries that draw the figures.

    Bundling takes more than a second, so the bundle is cached in a folder that only this user can
    write, because the page runs it.
    """
    schema = alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    folder = cache_folder() / f"page-{os.getuid()}"
    version = (
        f"{schema}-{metadata.version('vl-convert-python')}-{zlib.crc32(VEGA_NAMES.encode()):08x}"
    )
    kept = folder / f"vega-{version}.js"
    with contextlib.suppress(OSError):
        make_own_folder(folder)
        if not kept.exists():
            with replacing(kept) as temporary:
                temporary.write_text(vl_convert.javascript_bundle(VEGA_NAMES, schema), "utf-8")
        return kept.read_text("utf-8")
    return str(vl_convert.javascript_bundle(VEGA_NAMES, schema))


def _lead(facts: Facts) -> str:
    delivery, settings = facts.delivery, facts.delivery.settings
    model = model_name_of(settings)
    what = settings.workload + (f" with {model}" if model else "")
    names = [Path(file.path).name for file in delivery.inputs]
    files = words.listed([*names[:3], f"{len(names) - 3:,} more"] if len(names) > 3 else names)
    finished = words.moment(words.parsed(delivery.finished))
    if delivery.partial:
        return (
            f"Partial results, as of {finished}: {words.records(delivery.counts.pending)} of "
            f"{delivery.counts.input:,} not computed yet. {what}, of {files}."
        )
    return f"{what}, of {files}. Finished {finished}."


def _accounting(facts: Facts) -> dict[str, Any]:
    counts = facts.delivery.counts
    numbers = {name: getattr(counts, name) for name in MEANINGS if name in counts.model_fields_set}
    missing = counts.input - sum(numbers.values())
    verdict = (
        f"{words.records(abs(missing))} not accounted for"
        if missing
        else "The files of this run contradict each other"
        if facts.doubts
        else f"Partial: {counts.in_words}"
        if counts.pending
        else counts.in_words
    )
    notes = [f"{note}: {words.records(n)}." for note, n in facts.delivery.notes.items()]
    if notes and not facts.delivery.partial:
        notes.append(f"{formats.NOTES}, beside this page, lists these records.")
    notes += _taken(facts.delivery)
    if not counts.ok:
        notes.insert(0, "None of them has features.")
    return {
        "state": "bad"
        if missing or facts.doubts or counts.pending
        else "good"
        if counts.has_all
        else "warn",
        "verdict": verdict,
        "doubts": facts.doubts,
        "input": counts.input,
        "terms": [
            {"name": name, "number": number, "meaning": MEANINGS[name]}
            for name, number in numbers.items()
        ],
        "notes": notes,
    }


def _taken(delivery: Delivery) -> list[str]:
    """Return a sentence for each device, torch and date of values that came from a store."""
    sources: Counter[tuple[str, str, str]] = Counter()
    for part in delivery.taken:
        torch = f" with torch {part.versions['torch']}" if "torch" in part.versions else ""
        sources[part.device, torch, part.finished[:10]] += part.records
    return [
        f"From the store: {words.counted(number, 'distinct record')}, {device}{torch}"
        f"{f' on {date}' if date else ''}."
        for (device, torch, date), number in sorted(sources.items())
    ]


def _tiles(facts: Facts) -> list[dict[str, str]]:
    num_distinct = facts.delivery.plan.unique  # shards of a retry contain some of them again
    noun = "sequence" if facts.delivery.lengths.unit == "residues" else "record"
    tiles = {
        f"distinct {noun}" + "s" * (num_distinct != 1): words.count(num_distinct),
        facts.delivery.lengths.unit: words.short(facts.lengths.total),
        f"from the first shard to the last, {facts.on_devices}"
        if facts.shards
        else "to compute, as all came from a store": words.duration(facts.wall_seconds),
    }
    return [{"name": name, "number": number} for name, number in tiles.items()]


def _samples(facts: Facts) -> list[dict[str, Any]]:
    """Return the samples with the most records without features, sorted by name."""
    rows: list[dict[str, Any]] = [
        {
            "name": row["sample"],
            "seconds": float(row["seconds"]),
            "without": int(row["failed"]) + int(row["refused"]),
            **{name: int(row[name]) for name in ("records", "failed", "noted")},
        }
        for row in facts.samples
    ]
    worst = sorted(rows, key=lambda row: (-row["without"], row["name"]))[:MAX_SAMPLES]
    most = max((row["seconds"] for row in rows), default=0) or 1
    return sorted(
        ({**row, "share": row["seconds"] / most} for row in worst), key=lambda row: str(row["name"])
    )


def _versions(facts: Facts) -> dict[str, str]:
    """Return the versions of distributions in the receipts; several if workers differ."""
    versions_of: dict[str, set[str]] = {"featuremill": set()}
    for receipt in facts.delivery.receipts:
        for name, version in receipt.versions.items():
            versions_of.setdefault(name, set()).add(version)
    versions_of["featuremill"] = versions_of["featuremill"] or {VERSION}
    return {name: words.listed(sorted(versions)) for name, versions in versions_of.items()}


def _besides(delivery: Delivery) -> dict[str, Any]:
    return delivery.model_dump(mode="json", exclude_unset=True, exclude=set(PLACED))


def _flat(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = {key: value for key, value in facts.items() if key != "options"}
    rows |= {f"options.{key}": value for key, value in facts.get("options", {}).items()}
    return [(key, _plain(value)) for key, value in rows.items()]


def _plain(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "none"
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    )


def _devices(facts: Facts) -> list[dict[str, Any]]:
    rows = []
    all_work = sum(shard.receipt.cost for shard in facts.shards) or 1
    for lane in sorted({shard.lane for shard in facts.shards}):
        shards = [shard for shard in facts.shards if shard.lane == lane]
        receipts = [shard.receipt for shard in shards]
        settings: dict[str, set[Any]] = {
            "threads": {receipt.threads for receipt in receipts},
            "batch": {receipt.batch_cost for receipt in receipts},
            "kernels": {receipt.backend for receipt in receipts},
        }
        rows.append(
            {
                "name": lane,
                "shards": len(shards),
                "work": f"{100 * sum(receipt.cost for receipt in receipts) / all_work:.0f} %",
                "busy": words.duration(facts.busy_seconds(lane)),
                "memory": words.size(max(r.peak_memory_mb for r in receipts) * 2**20),
                "settings": ", ".join(
                    f"{name} {words.listed(sorted(map(str, values)))}"
                    for name, values in settings.items()
                    if any(values)
                ),
            }
        )
    return rows


def _reproduce(facts: Facts) -> dict[str, str]:
    delivery, receipts = facts.delivery, facts.delivery.receipts
    run = delivery.run.replace("/", "-")  # a set of features becomes a run
    kinds = {device.kind for receipt in receipts for device in receipt.devices}
    config: dict[str, Any] = {
        "run": run,
        **(
            {"samples": delivery.inputs[0].path}
            if facts.samples
            else {"inputs": [file.path for file in delivery.inputs]}
        ),
        "workload": delivery.settings.workload,
        "options": delivery.settings.options,
        "device": kinds.pop() if len(kinds) == 1 else "auto",
        "gpus": max((len(receipt.devices) for receipt in receipts), default=1),
        "outputs": list(formats.outputs_of(delivery.outputs).values()),
        "max_failed": delivery.counts.failed,
    }
    if facts.labels and facts.samples and facts.labels.path.name == formats.SAMPLES:
        config["labels"] = {"column": facts.labels.column}
    elif facts.labels:
        labels = facts.labels
        config["labels"] = {"file": str(labels.path), "column": labels.column}
        config["labels"] |= {"id_column": labels.id_column} if labels.id_column else {}
    settings = delivery.settings.as_json() | _besides(delivery)
    config |= {
        key: settings[key] for key in Config.model_fields if key in settings and key not in config
    }
    gpus = len({device.uuid for r in receipts if r.is_on_gpu for device in r.devices})
    limit = f" --resources gpu={gpus}" if gpus else ""
    checks = "".join(
        f"echo {shlex.quote(f'{file.sha256}  {file.path}')} | sha256sum --check\n"
        for file in delivery.inputs[:MOST_CHECKED]
    )
    if num_left := len(delivery.inputs[MOST_CHECKED:]):
        checks += f"# {words.counted(num_left, 'more file')}: manifest.json has the digests\n"
    name = shlex.quote(f"{run}.yaml")
    return {
        "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=10_000),
        "commands": f"{checks}featuremill run {name}{limit}",
    }
