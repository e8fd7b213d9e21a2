"""Fill the model card: everything in it that is a figure comes from a file.

    python training/card.py WORK WEIGHTS FIGURES MACHINE

WORK has prepare.py's split.json, WEIGHTS is what train.py wrote, FIGURES what evaluate.py wrote
with `--json`, MACHINE says in words where the run was. The card goes next to the weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path

from evaluate import tables
from options import OF_A_RUN, typed
from safetensors import safe_open

TEMPLATE = Path(__file__).with_name("card.template.md")


OPTIMIZERS = {
    "muon": "Muon for the layers' matrices, AdamW (0.9, 0.98) for the rest",
    "adamw": "AdamW (0.9, 0.98)",
}


def number(count: int) -> str:
    """Return a whole number with commas."""
    return f"{count:,}"


def of_the_run(known: dict[str, str]) -> dict[str, str]:
    """Return what is said of the training, from the metadata of the weights."""
    run = {name: known[name] for name in OF_A_RUN} | {
        name: known[name] for name in ("decay_from", "decay_steps")
    }
    found = {name: number(int(known[name])) for name in ("steps", "tokens_seen", "batch_tokens")}
    found |= {name: known[name] for name in ("learning_rate", "weight_decay", "warmup", "dtype")}
    found |= {"decay_from": number(int(known["decay_from"])), "seed": known["seed"]}
    found |= {"lengths": ", ".join(known["lengths"].split()), "device": known["device"]}
    found |= {"optimizer": OPTIMIZERS[known["optimizer"]], "threads": known["threads"]}
    found |= {"minutes": str(round(int(known["seconds"]) / 60))}
    chosen = {name: text for name, text in run.items() if name not in ("device", "threads")}
    return found | {"options": typed(chosen)}


def values(arguments: argparse.Namespace) -> dict[str, str]:
    """Return {name: text} of all that the template asks for."""
    weights = arguments.weights.read_bytes()
    with safe_open(arguments.weights, "pt") as file:
        known, tensors = dict(file.metadata()), {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
    figures = json.loads(arguments.figures.read_text())
    digest = hashlib.sha256(weights).hexdigest()
    if figures["sha256"] != digest:
        raise SystemExit(f"{arguments.figures} is of other weights than {arguments.weights}")
    split = json.loads((arguments.work / "split.json").read_text())
    tested = figures["counts"]["perplexity"]
    counts = split | {"bytes": len(weights), "tensors": len(tensors)}
    counts |= {"parameters": sum(tensor.numel() for tensor in tensors.values())}
    counts |= {"masked_residues": tested["residues"], "test_evaluated": tested["proteins"]}
    for label, of_set in figures["counts"]["probes"].items():
        counts |= {f"{label}_{name}": count for name, count in of_set.items()}
        counts[f"{label}_evaluated"] = sum(of_set.values()) - of_set["genera"]
    found = {name: number(count) for name, count in counts.items()} | of_the_run(known)
    texts = tables(figures, arguments.weights.stem)
    found |= {f"table_{name}": text for name, text in texts.items()}
    return found | {"sha256": digest, "machine": arguments.machine}


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
