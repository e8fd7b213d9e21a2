"""The doctor's answer for people: calm, and within 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from featuremill.base import text

WIDTH = 80
NAME_WIDTH = 25
MARKS = {"error": "✗", "warning": "!", "note": "·"}
HEADINGS = {"error": "In the way", "warning": "Worth a look", "note": "Good to know"}
Report = dict[str, Any]
wrapped = partial(text.wrapped, width=WIDTH)
"""Lines of the page's width."""


def lines(report: Report) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from wrapped(_verdict(report))
    yield ""
    if report["gpus"]:
        yield from _table(report)
        yield ""
    yield from _ways(report)
    yield from issues(report)
    yield from _memory(report)
    yield from _scaling(report)
    if report["ready"]:
        yield from _recommended(report)
    yield from wrapped(_versions(report))


def issues(report: Report) -> Iterator[str]:
    """Yield what is in the way, worth a look and good to know."""
    for severity, heading in HEADINGS.items():
        found = [issue for issue in report["issues"] if issue["severity"] == severity]
        if found:
            yield heading
            for issue in found:
                yield from wrapped(issue["what"], f"  {MARKS[severity]} ", "    ")
                yield from wrapped(issue["remedy"], "    → ", "      ")
            yield ""


def _verdict(report: Report) -> str:
    if not report["ready"]:
        count = sum(issue["severity"] == "error" for issue in report["issues"])
        return f"Not ready: {count} thing{'s are' if count > 1 else ' is'} in the way of a run."
    if not any(gpu["visible"] for gpu in report["gpus"]):
        cpu = report["cpu"]
        why = "this machine has no NVIDIA GPU"
        if report["gpus"]:
            why = "its GPUs are hidden"
        elif any("driver" in issue["code"] for issue in report["issues"]):
            why = "no driver tells of a GPU"
        return f"Ready, on the CPU ({cpu['processors']} processors, {cpu['free_gb']:g} GB): {why}."
    resources = report["recommended"]["resources"]
    if not resources:
        return "Ready, but no GPU is free for it now: a run would wait for one."
    number = resources.removeprefix("gpu=")
    count = report["gpu_count"]
    return f"Ready: a run should use {number} of {count} GPU{'s' if count > 1 else ''}."


def _table(report: Report) -> Iterator[str]:
    yield f"GPU  {'model':{NAME_WIDTH}}  memory    free   use  temp  power  state"
    for gpu in report["gpus"]:
        cells = [
            f"{_label(gpu):>3}",
            f"{gpu['name'][:NAME_WIDTH]:{NAME_WIDTH}}",
            f"{_told(gpu['memory_gb'], 'GB'):>6}",
            f"{_told(gpu['free_gb'], 'GB'):>6}",
            f"{_told(gpu['utilisation'], '%'):>4}",
            f"{_told(gpu['temperature'], '°'):>4}",
            f"{_told(gpu['power'], 'W'):>5}",
            _state(gpu),
        ]
        yield "  ".join(cells)


def _told(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.0f} {unit}"


def _state(gpu: dict[str, Any]) -> str:
    if not gpu["visible"]:
        return "hidden"
    if not gpu["accessible"]:
        return "no use"
    return "in use" if gpu["busy_by"] else "free"


def _memory(report: Report) -> Iterator[str]:
    memory = report["memory"]
    if not memory:
        return
    sizes = sorted({need["memory_mb"] for need in memory["needs"]})
    size = " to ".join(f"{size / 1024:.1f}" for size in dict.fromkeys((sizes[0], sizes[-1])))
    batches = sorted({(n["dtype"], n["batch_tokens"]) for n in memory["needs"] if n["dtype"]})
    manner = "; ".join(f"{dtype}, {tokens:,} tokens a batch" for dtype, tokens in batches)
    what = f"{memory['model']} takes about {size} GB ({manner})" if manner else f"{size} GB"
    names = {gpu["uuid"]: f"GPU {_label(gpu)}" for gpu in report["gpus"]}
    fits = ", ".join(names.get(uuid, "the CPU") for uuid in memory["fits"]) or "nothing here"
    yield from wrapped(f"{what}; fits: {fits}.")
    yield ""


def _ways(report: Report) -> Iterator[str]:
    """Yield a line a device: in what and by what ESM-2 would be computed there."""
    known = [ways for ways in report["ways"] if not ways["error"]]
    if not known:
        return
    yield "ESM-2 would be computed so"
    labels = {gpu["uuid"]: f"GPU {_label(gpu)}" for gpu in report["gpus"]}
    for ways in known:
        label = labels.get(ways["device"], "CPU")
        what = f"{ways['attention']}; products {ways['products']}; rest {ways['kernels']}"
        yield from wrapped(f"{label}  {ways['dtype']}: {what}", "  ", "    ")
    yield ""


def _scaling(report: Report) -> Iterator[str]:
    scaling = report["scaling"]
    if not scaling:
        return
    yield from wrapped(scaling["summary"])
    for row in scaling["devices"]:
        yield from wrapped(
            f"{row['name']}: {row['alone_seconds']:.2f} s alone, "
            f"{row['together_seconds']:.2f} s with the others",
            "  ",
            "    ",
        )
    yield ""


def _recommended(report: Report) -> Iterator[str]:
    recommended = report["recommended"]
    yield "To run"
    command = f"  {recommended['command']}"
    if len(command) > WIDTH:
        command = re.sub(" (snakemake|featuremill) ", r" \\\n    \1 ", command)
    yield from command.split("\n")
    if recommended["resources"]:
        yield "  One job a GPU; more slots per GPU are not measured yet."
    hidden = {(gpu["id"], gpu["mig"]) for gpu in report["gpus"] if not gpu["visible"]}
    for one in recommended["not_counted"]:
        if (one["id"], one["mig"]) not in hidden:
            line = f"Not counted: GPU {_label(one)}: {one['why']}."
            yield from wrapped(line, "  ", "    ")
    yield ""


def _label(gpu: dict[str, Any]) -> str:
    return str(gpu["id"]) if gpu["mig"] is None else f"{gpu['id']}:{gpu['mig']}"


def _versions(report: Report) -> str:
    versions = [f"{name} {version}" for name, version in report["versions"].items()]
    if report["driver"]["version"]:
        versions.append(f"driver {report['driver']['version']}")
    return " · ".join(versions)
