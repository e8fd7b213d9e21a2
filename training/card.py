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

from evaluate import tables
from safetensors import safe_open

TEMPLATE = Path(__file__).with_name("card.template.md")


def number(text: object) -> str:
    """Return a whole number with commas, and anything else as it is."""
    return f"{int(str(text)):,}" if re.fullmatch(r"\d{4,}", str(text)) else str(text)


def values(arguments: argparse.Namespace) -> dict[str, str]:
    """Return {name: text} of all that the template asks for."""
    with safe_open(arguments.weights, "pt") as file:
        known, num_tensors = dict(file.metadata()), len(file.keys())
    split = json.loads((arguments.work / "split.json").read_text())
    figures = json.loads(arguments.figures.read_text())
    tested = figures["counts"]["perplexity"]
    known |= {"tensors": num_tensors, "bytes": arguments.weights.stat().st_size, **split}
    known |= {"decay_steps": int(known["steps"]) - int(known["decay_from"])}
    found = {name: number(value) for name, value in known.items()}
    found |= {"decay_from": str(known["decay_from"]), "decay_steps": str(known["decay_steps"])}
    found |= {"machine": arguments.machine, "hours": f"{int(known['seconds']) / 3600:.1f}"}
    found |= {"sha256": figures["sha256"], "masked_residues": number(tested["residues"])}
    found["test_evaluated"] = number(tested["proteins"])
    for label, counts in figures["counts"]["probes"].items():
        found |= {f"{label}_{name}": number(count) for name, count in counts.items()}
        found[f"{label}_evaluated"] = number(sum(counts.values()) - counts["genera"])
    texts = tables(figures, arguments.weights.stem)
    found |= {f"table_{name}": text for name, text in texts.items()}
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
