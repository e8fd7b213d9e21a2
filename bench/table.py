"""The tables of a record, as plain text: `python -m bench.table bench/results/….json`; with
`--page`, that of docs/performance.md, into which `--into` puts a GPU's."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import bars


def whole(content: dict[str, Any]) -> str:
    """Return everything that a record holds."""
    blocks = [head(content), gates(content["stages"])]
    blocks += [measured(name, found) for name, found in content["measured"].items()]
    if content["left_out"]:
        blocks.append(left_out(content))
    return "\n\n".join(blocks)


def page(contents: Sequence[dict[str, Any]]) -> str:
    """Return real tokens a second as a page has them, of records of one machine: a column for each
    shape and output, from the newest record that has it. Of a CPU, residues only where there are no
    means."""
    contents = sorted(contents, key=lambda content: content["started"])
    machine = contents[-1]["machine"]
    columns = {
        (each["shape"], each["output"]): each
        for content in contents
        for each in content["measured"].values()
        if each.get("output") and "rows" in each
    }
    if gpu := machine.get("gpu"):
        head, shown = f"`make bench-gpu` on one {gpu}", GPU_PAGE
    else:
        head, shown = f"`make bench` on those {machine['cores']} cores", PAGE
        has_mean = {shape for shape, output in columns if output == "mean"}
        columns = {
            (shape, output): each
            for (shape, output), each in columns.items()
            if output == "mean" or shape not in has_mean
        }
    titles = [f"{shape}, {output.replace('_', ' ')}" for shape, output in columns]
    rates = [_rates(each) for each in columns.values()]
    lines = [
        [head, *titles],
        *([title, *(_rate(name, of) for of in rates)] for name, title in shown.items()),
        *(
            [f"{dtype}, share of the fastest matrix products alone"]
            + [_share(f"featuremill {dtype}", f"GEMMs alone {dtype}", of) for of in rates]
            for dtype in ("fp32", "bf16")
        ),
    ]
    if gpu:
        found = columns.values()
        lines += [
            ["GPU only, share of a product of 8,192³ alone", *map(_mfu, found)],
            ["missed targets", *map(_missed, found)],
        ]
    blocks = [_markdown([line for line in lines if any(line[1:])])] if columns else []
    if workloads := _workloads(contents):
        blocks.append(_markdown(workloads))
    return "\n\n".join(blocks)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


def _workloads(contents: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the lines of workloads beside their peers, from the newest record that has each."""
    cases = {
        name: each
        for content in contents
        for name, each in content["measured"].items()
        if "unit" in each
    }
    lines = [["workload", "computed by", "a second", "× the first", "relative L2 to the first"]]
    for name, each in cases.items():
        rates = [row.get("per_second", 0.0) for row in each["rows"]]
        for row, rate in zip(each["rows"], rates, strict=True):
            over = f"{rate / rates[0]:.1f}" if rates[0] else ""
            shown = f"{rate:,.0f} {each['unit']}" if rate else row.get("error", "not measured")
            lines.append(
                [name, row["name"], shown, over, f"{row['off']:.1e}" if "off" in row else ""]
            )
    return lines if cases else []


def _rates(found: dict[str, Any]) -> dict[str, float]:
    """Return tokens a second by engine, those without plan under a name of their own."""
    rates = {row["name"]: row["tokens_per_second"] for row in found["rows"]}
    return rates | {
        f"{row['name']}{WITHOUT_PLAN}": row["tokens_per_second_of_extract"]
        for row in found["rows"]
        if "tokens_per_second_of_extract" in row
    }


def _mfu(found: dict[str, Any]) -> str:
    rows = [row for row in found["rows"] if row["name"] == "featuremill bf16, GPU only"]
    return f"{100 * bars.model_share(found, rows[0]):.0f} %" if rows else ""


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.2f}"


def _missed(found: dict[str, Any]) -> str:
    missed = [
        f"{bar['what'].removeprefix('bf16 ')}: {_short(bar['value'])} of {_short(bar['bound'])}"
        for bar in found.get("bars", [])
        if bar["is_met"] is False
    ]
    return "; ".join(missed) or "none"


def _rate(name: str, rates: dict[str, float]) -> str:
    if name not in rates:
        return ""
    over = f" ({rates[name] / rates['fair-esm fp32']:.1f} ×)"
    return f"{rates[name]:,.0f}" + (over if name.startswith("featuremill") else "")


def _share(name: str, of: str, rates: dict[str, float]) -> str:
    return f"{100 * rates[name] / rates[of]:.0f} %" if name in rates and of in rates else ""


def measured(name: str, found: dict[str, Any]) -> str:
    """Return what one step found."""
    kind = name.split()[0]
    if "error" in found and kind not in (TESTS, FORKING):
        if "rows" not in found:
            return _facts(name, found)
        whole = {key: value for key, value in found.items() if key != "error"}
        return f"{measured(name, whole)}\ncut off, these are kept: {found['error']}"
    return (_beside if "unit" in found else KINDS.get(kind, _facts))(name, found)


def left_out(content: dict[str, Any]) -> str:
    """Say for which steps there was no time."""
    return "left out for lack of time: " + ", ".join(content["left_out"])


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: the first column and "writes" to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if title in (head[0], "writes") else cell.rjust(width)
            for title, cell, width in zip(head, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def head(content: dict[str, Any]) -> str:
    """Say where this was measured, with what, and on which proteins."""
    machine, data = content["machine"], content["data"]
    place = f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"
    if "gpu" in machine:
        place = f"{machine['gpu']}, driver {machine['driver']}; {place}"
    commit = content["code"]["commit"] or "unknown"
    dirty = " with changes" if content["code"]["dirty"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    notes = []
    tried = content.get("torch", {"is_tried": True})
    if not tried["is_tried"]:
        notes.append(
            f"torch {tried['version']} is none of those that were tried ({tried['tried']})"
        )
    if "rehearsal" in content:
        notes.append(f"A rehearsal: {content['rehearsal']}; its speeds mean nothing.")
    return "\n".join(
        [
            f"{place} ({' '.join(machine['flags'])})",
            f"commit {commit[:12]}{dirty}; {versions}",
            f"{data['file']}: {data['proteins']:,} proteins; residues mean {data['mean']}, "
            f"median {data['median']}, p95 {data['p95']}, longest {data['max']:,}",
            *notes,
        ]
    )


def gates(stages: dict[str, Any]) -> str:
    """Return what the gate found, for every shape."""
    rows = []
    notes = []
    for shape, stage in stages.items():
        for verdict in stage.get("gate", []):
            rows.append(
                [
                    f"{shape} {verdict['engine']}",
                    f"{verdict['residue_l2']:.1e}",
                    f"{verdict['residue_l2_worst']:.1e}",
                    f"{verdict['residue_cosine_mean']:.6f}",
                    f"{verdict['residue_cosine_min']:.6f}",
                    f"{verdict['pooled_l2']:.1e}",
                    f"{verdict['pooled_cosine_min']:.6f}",
                    "outside" if verdict["failures"] else "within",
                ]
            )
        notes += [
            f"{shape}: {m['name']} is not here: {m['reason']}" for m in stage.get("missing", [])
        ]
    head = [
        "against fair-esm fp32",
        "L2",
        "worst",
        "cosine",
        "least",
        "pooled L2",
        "cosine",
        "bounds",
    ]
    return "\n".join([aligned(head, rows), *notes])


def _comparison(name: str, found: dict[str, Any]) -> str:
    rates = {row["name"]: row["tokens_per_second"] for row in found["rows"]}
    head = [
        "",
        "tokens",
        "tokens/s",
        "least",
        "most",
        "× fair-esm",
        "of GEMMs",
        "MFU",
        "s",
        "writes",
    ]
    rows = [_line(found, row, rates) for row in found["rows"]]
    lines = [f"{name}, median of {found['passes']} passes", aligned(head, rows)]
    if found["matmul_tflops"]:
        dtype = found.get("dtype", "bf16")
        lines.append(f"matmul in {dtype}: {statistics.median(found['matmul_tflops'])} TFLOP/s")
    for row in found["rows"]:
        if (num_passes := len(row["seconds"])) < found["passes"]:
            plural = "" if num_passes == 1 else "es"
            lines.append(f"{row['name']}: {num_passes} pass{plural}, as it takes long")
        if plans := row.get("plan_seconds"):
            lines.append(
                f"{row['name']}: {statistics.median(plans):.2f} s of a pass is plan, without which "
                f"it is {row['tokens_per_second_of_extract']:,.0f} tokens/s"
            )
    return "\n".join([*lines, *_bars(found)])


def _line(found: dict[str, Any], row: dict[str, Any], rates: dict[str, float]) -> list[str]:
    roof = rates.get(f"GEMMs alone {row.get('dtype', '')}")
    is_roof = "kernel" in row
    share = f"{bars.model_share(found, row):.0%}" if found["matmul_tflops"] and not is_roof else ""
    return [
        row["name"],
        f"{row['tokens']:,}",
        f"{row['tokens_per_second']:,.0f}",
        *(f"{rate:,.0f}" for rate in row["range"]),
        f"{row['tokens_per_second'] / rates['fair-esm fp32']:.2f}",
        f"{row['tokens_per_second'] / roof:.0%}" if roof else "",
        share,
        f"{statistics.median(row['seconds']):.2f}",
        row.get("writes", row.get("kernel", "")),
    ]


def _bars(found: dict[str, Any]) -> list[str]:
    return [f"  {bar['what']}: {_standing(bar)}" for bar in found.get("bars", [])]


def _standing(bar: dict[str, Any]) -> str:
    if bar["value"] is None:
        return f"left out, bar {bar['bound']:,g} ({bar['why_left_out']})"
    return f"{bar['value']:,.4g}, bar {bar['bound']:,g} " + ("ok" if bar["is_met"] else "MISSED")


def _listing(name: str, found: dict[str, Any]) -> str:
    rows = found.get("rows") or found.get("kernels")
    if not rows:
        return f"{name}: nothing was seen"
    head = [column for column in rows[0] if not isinstance(rows[0][column], list)]
    cells = [[_cell(row[column]) for column in head] for row in rows]
    facts = {key: value for key, value in found.items() if isinstance(value, str)}
    told = "".join(f", {key} {value}" for key, value in facts.items())
    return f"{name}{told}\n{aligned([column.replace('_', ' ') for column in head], cells)}"


def _beside(name: str, found: dict[str, Any]) -> str:
    head = ["", f"{found['unit']}/s", "least", "most", "off", "error"]
    rows = [
        [
            row["name"],
            *(
                f"{rate:,.1f}"
                for rate in (row.get("per_second", 0.0), *row.get("range", (0.0, 0.0)))
            ),
            f"{row['off']:.1e}" if "off" in row else "",
            row.get("error", ""),
        ]
        for row in found["rows"]
    ]
    return f"{name}\n{aligned(head, rows)}"


def _tests(name: str, found: dict[str, Any]) -> str:
    lines = [_facts(name, found)]
    for row in found.get("rows", []):
        lines.append(f"  {row['outcome']}: {row['test']}: {row.get('says', '')}")
    for row in found.get("told", []):
        told = {key: value for key, value in row.items() if key not in ("outcome", "says", "trace")}
        lines.append("  " + ", ".join(f"{key} {value}" for key, value in told.items()))
    return "\n".join(lines)


def _facts(name: str, found: dict[str, Any]) -> str:
    facts = {key: value for key, value in found.items() if not isinstance(value, dict | list)}
    text = ", ".join(f"{key.replace('_', ' ')} {_cell(value)}" for key, value in facts.items())
    return "\n".join([f"{name}: {text}", *_bars(found)])


def _start_up(name: str, found: dict[str, Any]) -> str:
    parts = found.get("parts")
    return _facts(name, found) + (f"\n{_listing('seconds', {'rows': parts})}" if parts else "")


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


PAGE = {
    "fair-esm fp32": "fair-esm, fp32",
    "transformers sdpa fp32": "transformers (sdpa), fp32",
    "OpenVINO fp32": "OpenVINO, fp32",
    "featuremill fp32": "**featuremill, fp32**",
    "transformers sdpa bf16": "transformers (sdpa), bf16",
    "OpenVINO bf16": "OpenVINO, bf16",
    "featuremill bf16": "**featuremill, bf16**",
}
"""What a page shows of a CPU, and how it calls it."""
WITHOUT_PLAN = ", without plan"
GPU_PAGE = {
    "fair-esm fp32": "fair-esm, fp32",
    "transformers sdpa fp32": "transformers (sdpa), fp32",
    "featuremill fp32": "**featuremill, fp32**",
    "fair-esm autocast bf16": "fair-esm, autocast bf16",
    "transformers sdpa bf16": "transformers (sdpa), bf16",
    "transformers sdpa bf16 compiled": "transformers (sdpa), bf16, compiled",
    "featuremill bf16": "**featuremill, bf16**",
    f"featuremill bf16{WITHOUT_PLAN}": "the same, without `plan`",
    "featuremill bf16, GPU only": "the same, GPU only",
    "featuremill fp16": "featuremill, fp16",
}
"""The same of a GPU."""
START, END = "<!-- gpu -->\n", "<!-- /gpu -->\n"
"""Around a GPU's table in a page."""
TESTS, FORKING = "gpu_tests", "gpu_forking"
KINDS = {
    TESTS: _tests,
    FORKING: _tests,
    "compare": _comparison,
    "same_bits": _listing,
    "budget_sweep": _listing,
    "share_of_products": _listing,
    "limited_memory": _listing,
    "training": _listing,
    "peak_memory": _listing,
    "kernels": _listing,
    "products": _listing,
    "batch_memory": _listing,
    "start_up": _start_up,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench.table", description="Print a record's tables.")
    parser.add_argument("record", type=Path, nargs="+", help="a file that bench.run wrote")
    parser.add_argument("--page", action="store_true", help="the table of docs/performance.md")
    parser.add_argument("--into", type=Path, help="put a GPU's table into this page")
    given = parser.parse_args()
    for record in given.record:
        if not record.is_file():
            parser.error(f"no file {record}")
    contents = [json.loads(record.read_text("utf-8")) for record in given.record]
    if given.into and any("rehearsal" in content for content in contents):
        parser.error("speeds of a rehearsal mean nothing; no page takes them")
    if given.into:
        text = given.into.read_text("utf-8")
        before, rest = text.split(START, 1)
        _, after = rest.split(END, 1)
        given.into.write_text(f"{before}{START}{page(contents)}\n{END}{after}", "utf-8")
    else:
        print(page(contents) if given.page else "\n\n".join(map(whole, contents)))
