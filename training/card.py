"""Fill the model card: everything in it that is a figure comes from a file.

    python training/card.py WORK WEIGHTS FIGURES MACHINE

WORK has prepare.py's split.json, WEIGHTS is what train.py wrote, FIGURES what evaluate.py wrote
with `--json`, MACHINE says in words where the run was. The card goes next to the weights.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from evaluate import table
from intervals import Estimate
from safetensors import safe_open

TEMPLATE = Path(__file__).with_name("card.template.md")
TASKS = {"kingdom": "macro-F1", "viral": "AUC"}


def number(text: object) -> str:
    """Return a whole number with commas, and anything else as it is."""
    return f"{int(str(text)):,}" if re.fullmatch(r"\d{4,}", str(text)) else str(text)


def values(arguments: argparse.Namespace) -> dict[str, str]:
    """Return {name: text} of all that the template asks for."""
    with safe_open(arguments.weights, "pt") as file:
        known, num_tensors = dict(file.metadata()), len(file.keys())
    split = json.loads((arguments.work / "split.json").read_text())
    figures = json.loads(arguments.figures.read_text())
    counts = figures["counts"]
    known |= {"tensors": num_tensors, "bytes": arguments.weights.stat().st_size, **split}
    known |= {"decay_steps": int(known["steps"]) - int(known["decay_from"])}
    found = {name: number(value) for name, value in known.items()}
    found |= {"decay_from": str(known["decay_from"]), "decay_steps": str(known["decay_steps"])}
    found |= {"machine": arguments.machine, "hours": f"{int(known['seconds']) / 3600:.1f}"}
    found |= {"sha256": figures["sha256"], "masked_residues": number(counts["residues"])}
    found["test_evaluated"] = number(counts["proteins"])
    kingdoms = {name: counts[name] for name in counts if name[0].isupper()}
    found["probe_evaluated"] = number(sum(kingdoms.values()))
    listed = [f"{number(count)} of {name}" for name, count in kingdoms.items()]
    found["probe_counts"] = f"{', '.join(listed)}, from {number(counts['genera'])} genera"
    name = arguments.weights.stem
    rows = {key: Estimate(*row) for key, row in figures["perplexity"].items()}
    found["table_perplexity"] = table("pseudo-perplexity", rows, name)
    for task, figure in TASKS.items():
        rows = {key: Estimate(*row[task]) for key, row in figures["probes"].items()}
        found[f"table_{task}"] = table(figure, rows, name)
    return found


def main() -> None:
    """Write the card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("figures", type=Path)
    parser.add_argument("machine")
    arguments = parser.parse_args()
    known = values(arguments)
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: known[match[1]], TEMPLATE.read_text())
    arguments.weights.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
