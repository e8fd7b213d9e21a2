"""The page: a whole run on one self-contained sheet, and each figure as a file of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import zlib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert
import yaml

from featuremill import __version__
from featuremill.base import words
from featuremill.report import energy, troubles
from featuremill.report.chart import Figure
from featuremill.report.facts import Facts
from featuremill.store.files import make_own_folder, replacing
from featuremill.store.formats import FILES
from featuremill.store.receipts import devices_of, is_on_gpu
from featuremill.workload.weights import cache_folder

ASSETS = Path(__file__).parent / "assets"
VEGA_NAMES = "window.vegaEmbed = vegaEmbed;"
MEANINGS = {
    "ok": "have their features",
    "failed": "were tried and have no features",
    "refused": "were not tried",
    "duplicate": "the same id with the same sequence, again",
    "pending": "are not computed yet",
}


def write_report(path: Path, facts: Facts, figures: dict[str, Figure]) -> None:
    """Write the whole report to `path`."""
    manifest = facts.manifest
    _write(
        path,
        "page.html",
        run=manifest["run"],
        title=_title(manifest),
        lead=_lead(facts),
        accounting=_accounting(facts),
        tiles=_tiles(facts),
        warnings=[text[0].upper() + text[1:] for text in manifest["warnings"]],
        figures=figures,
        problems=facts.problems,
        troubles=troubles.found(facts.shards),
        no_trouble=troubles.sentence(facts.shards),
        recipe={"digest": manifest["recipe"], "settings": _flat(manifest["settings"])},
        inputs=manifest["inputs"],
        outputs=manifest["outputs"],
        devices=_devices(facts),
        versions=_versions(facts),
        reproduce=_reproduce(facts),
    )


def write_figures(folder: Path, facts: Facts, figures: dict[str, Figure]) -> None:
    """Write accounting.html and one file a figure to `folder`."""
    run = _title(facts.manifest)
    _write(
        folder / "accounting.html",
        "figure.html",
        title=f"{run}: accounting",
        accounting=_accounting(facts),
        problems=facts.problems,
        troubles=troubles.found(facts.shards),
        no_trouble=troubles.sentence(facts.shards),
    )
    for name, figure in figures.items():
        _write(
            folder / f"{name}.html", "figure.html", title=f"{run}: {figure.title}", figure=figure
        )


def _write(path: Path, template: str, **context: Any) -> None:
    text = _environment().get_template(template).render(context)
    try:
        with replacing(path) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        error.filename = str(path)  # a full disk does not say where it is
        raise


@cache
def _environment() -> jinja2.Environment:
    """Return the templates; whatever they show is escaped, as ids and paths come from strangers."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    environment.filters.update(count=words.count, size=words.size)
    environment.globals.update(
        figure=None,
        style=(ASSETS / "style.css").read_text("utf-8"),
        charts=(ASSETS / "charts.js").read_text("utf-8"),
        vega=_vega(),
    )
    return environment


def _vega() -> str:
    """Return the libraries that draw the figures.

    To bundle them takes more than a second, so the bundle is kept, where only this user writes: on
    the page it is a script.
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


def _title(manifest: dict[str, Any]) -> str:
    return f"{manifest['run']} (partial)" if manifest.get("partial") else str(manifest["run"])


def _lead(facts: Facts) -> str:
    manifest, settings = facts.manifest, facts.manifest["settings"]
    model = settings["options"].get("model")
    what = settings["workload"] + (f" with {model}" if model else "")
    names = [Path(file["path"]).name for file in manifest["inputs"]]
    files = words.listed([*names[:3], f"{len(names) - 3:,} more"] if len(names) > 3 else names)
    finished = words.moment(words.parsed(manifest["finished"]))
    if manifest.get("partial"):
        return (
            f"Partial results, as of {finished}: "
            f"{words.records(manifest['counts']['pending'])} of "
            f"{words.count(manifest['counts']['input'])} not computed yet. {what}, of {files}."
        )
    return f"{what}, of {files}. Finished {finished}."


def _accounting(facts: Facts) -> dict[str, Any]:
    manifest, counts = facts.manifest, facts.manifest["counts"]
    terms = [
        {"name": name, "number": counts[name], "meaning": meaning}
        for name, meaning in MEANINGS.items()
        if name in counts
    ]
    missing = counts["input"] - sum(term["number"] for term in terms)
    pending = counts.get("pending", 0)
    complete = not missing and not facts.doubts and not pending
    verdict = (
        f"{words.records(abs(missing))} not accounted for"
        if missing
        else "The files of this run contradict each other"
        if facts.doubts
        else f"Partial: {words.records(pending)} not computed yet, the others accounted for"
        if pending
        else "The one record is accounted for"
        if counts["input"] == 1
        else f"All {words.records(counts['input'])} are accounted for"
    )
    notes = [f"{note}: {words.records(number)}." for note, number in manifest["notes"].items()]
    if not counts["ok"]:
        notes.insert(0, "None of them has features.")
    return {
        "complete": complete,
        "verdict": verdict,
        "doubts": facts.doubts,
        "input": counts["input"],
        "terms": terms,
        "notes": notes,
    }


def _tiles(facts: Facts) -> list[dict[str, str]]:
    wall = facts.wall_seconds
    num_devices, num_shards = len(facts.lanes), len(facts.shards)
    tiles = {
        "wall time (extract)": words.duration(wall) if facts.shards else "–",
        "residues": words.short(facts.lengths.total),
        f"{facts.cost_unit}/s": words.short(facts.tokens / wall) if wall > 0 else "–",
        "distinct sequence" + "s" * (facts.num_distinct != 1): words.count(facts.num_distinct),
        "device" if num_devices == 1 else "devices": words.count(num_devices),
    }
    if facts.manifest["gpu_seconds"] > 0:
        tiles["GPU time"] = words.duration(facts.manifest["gpu_seconds"])
    else:
        tiles["shard" if num_shards == 1 else "shards"] = words.count(num_shards)
    if spent := energy.of(facts.shards, facts.manifest):
        tiles["energy per M residues"] = words.energy(spent.per_million)
    return [{"name": name, "number": number} for name, number in tiles.items()]


def _versions(facts: Facts) -> dict[str, str]:
    """Return what the workers had loaded; several versions of one thing where they differ."""
    found: dict[str, set[str]] = {"featuremill": set()}
    for receipt in facts.manifest["receipts"]:
        for name, version in receipt["versions"].items():
            found.setdefault(name, set()).add(version)
    found["featuremill"] = found["featuremill"] or {__version__}
    return {name: words.listed(sorted(versions)) for name, versions in found.items()}


def _flat(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings as lines, the options by their own names."""
    rows = {key: value for key, value in settings.items() if key != "options"}
    rows |= {f"options.{key}": value for key, value in settings["options"].items()}
    return [(key, _plain(value)) for key, value in rows.items()]


def _plain(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "none"
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    )


def _devices(facts: Facts) -> list[dict[str, Any]]:
    rows = []
    receipts = {receipt["shard"]: receipt for receipt in facts.manifest["receipts"]}
    for lane in sorted({shard.lane for shard in facts.shards}):
        shards = [shard for shard in facts.shards if shard.lane == lane]
        mine = [receipts[shard.name] for shard in shards]
        rows.append(
            {
                "name": lane,
                "shards": len(mine),
                "busy": words.duration(facts.busy_seconds(lane)),
                "memory": words.size(int(max(r["peak_memory_mb"] for r in mine) * 2**20)),
                "use": energy.used(shards) or "–",
                "settings": ", ".join(
                    f"{label} {words.listed(sorted({str(r[key]) for r in mine}))}"
                    for label, key in (
                        ("threads", "threads"),
                        ("batch", "batch_cost"),
                        ("kernels", "backend"),
                    )
                    if any(r[key] for r in mine)
                ),
            }
        )
    return rows


def _reproduce(facts: Facts) -> dict[str, str]:
    manifest, settings = facts.manifest, facts.manifest["settings"]
    receipts = manifest["receipts"]
    kinds = {device["kind"] for receipt in receipts for device in devices_of(receipt)}
    num_together = max((len(devices_of(receipt)) for receipt in receipts), default=1)
    config = {
        "run": manifest["run"],
        "inputs": [file["path"] for file in manifest["inputs"]],
        "workload": settings["workload"],
        "options": settings["options"],
        "device": kinds.pop() if len(kinds) == 1 else "auto",
        "gpus": num_together,
        "outputs": [name for name, file in FILES.items() if file in manifest["outputs"]],
        "max_failed": manifest["counts"]["failed"],
    }
    if facts.labels:
        config["labels"] = {"file": str(facts.labels.path), "column": facts.labels.column}
    name = f"{manifest['run']}.yaml"
    gpus = len({device["uuid"] for r in receipts if is_on_gpu(r) for device in devices_of(r)})
    limit = f" --resources gpu={gpus}" if gpus else ""
    checks = "".join(
        f"echo {shlex.quote(file['sha256'] + '  ' + file['path'])} | sha256sum --check\n"
        for file in manifest["inputs"][:20]
    )
    return {
        "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=10_000),
        "commands": f"{checks}snakemake --configfile {shlex.quote(name)} --cores all{limit}",
    }
