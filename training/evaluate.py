"""The figures of the model card, as its tables, from the files as they are shipped.

* Held-out perplexity (perplexity.py) on `test.fasta`: one protein a cluster.
* Kingdom and viral probes (probes.py) on proteins of known organism, twice: on those of
  `probe.fasta`, `test.fasta` and `valid.fasta`, which have no relatives in training (50 % identical
  over 80 % of both), and on these and those of `train.fasta`, which are many more. Features are
  featuremill's own, in bf16 on the CPU.

    python training/evaluate.py WORK src/featuremill/workloads/esm2/bundled/mill_t6_8M.safetensors

`--other NAME=PATH` adds the features of another checkpoint to the probes. Features are kept in
WORK/features by the digest of weights and proteins, and are read from there the next time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from network import Network, Shape, save
from perplexity import baselines, cross_entropies, frequencies, load, mask, perplexity
from probes import Estimate, Probes, composition

DESCRIPTIONS = {
    "gain": "the first less composition, pair by pair",
    "composition": "amino-acid composition",
    "random": "the same network with random weights",
    "unigram": "unigram: residue frequencies of the training set",
    "own_composition": "each protein's own composition (visible residues, 160 pseudo-counts)",
}


def read_fasta(path: Path, longest: int) -> list[tuple[list[str], str]]:
    """Return (words of the header, sequence) of those proteins of at most `longest` residues."""
    lines = path.read_text().splitlines()
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return [(header[1:].split(), s) for header, s in pairs if len(s) <= longest]


def one_a_cluster(
    records: list[tuple[list[str], str]], labelled: bool
) -> list[tuple[list[str], str]]:
    """Return a record for each cluster: its representative, or the first that has a label."""
    found: dict[str, tuple[list[str], str]] = {}
    for words, sequence in records:
        accession, representative, kingdom, _ = words
        if (kingdom != "-") if labelled else (accession == representative):
            found.setdefault(representative, (words, sequence))
    return list(found.values())


def evaluate_perplexity(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the perplexities on the test split, and how much they are of."""
    records = one_a_cluster(read_fasta(arguments.work / "test.fasta", arguments.longest), False)
    sequences = [sequence for _, sequence in records][: arguments.proteins]
    random = np.random.default_rng(arguments.seed)
    masks = [mask(sequence, random) for sequence in sequences]
    kept = [number for number, positions in enumerate(masks) if len(positions)]
    sequences, masks = [sequences[n] for n in kept], [masks[n] for n in kept]
    training = [s for _, s in read_fasta(arguments.work / "train.fasta", 10**9)]
    losses = baselines(sequences, masks, frequencies(training))
    network = load(arguments.weights, getattr(torch, arguments.dtype))
    return {
        "counts": {"proteins": len(sequences), "residues": sum(map(len, masks))},
        "model": perplexity(cross_entropies(network, sequences, masks)),
        "own_composition": perplexity(losses["own_composition"]),
        "unigram": perplexity(losses["unigram"]),
    }


def kept_features(sequences: list[str], weights: Path, folder: Path) -> np.ndarray:
    """Return featuremill's features (N, D) of the proteins, computed unless `folder` has them."""
    from featuremill.workloads.esm2.embedding import embed

    digest = hashlib.sha256("\n".join(sequences).encode())
    digest.update(weights.read_bytes())
    path = folder / f"{digest.hexdigest()[:16]}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npy")
        np.save(partial, embed(sequences, model=str(weights), dtype="bf16", device="cpu"))
        partial.replace(path)
    found: np.ndarray = np.load(path)
    return found


def features(sequences: list[str], arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return {name: features} of all that is compared."""
    with tempfile.TemporaryDirectory() as folder:
        untrained = Path(folder, "random.safetensors")
        shape = load(arguments.weights, torch.float32).shape
        sizes = zip(("num_layers", "embed_dim", "attention_heads"), map(str, shape), strict=True)
        save(Network(Shape(*shape), torch.float32, arguments.seed), untrained, dict(sizes))
        models = {"model": arguments.weights, "random": untrained}
        models |= {
            name: Path(path) for name, _, path in (o.partition("=") for o in arguments.other)
        }
        found = {
            name: kept_features(sequences, path, arguments.work / "features")
            for name, path in models.items()
        }
    return found | {"composition": composition(sequences)}


def evaluate_probes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the probes' figures on unseen proteins and on all, and what these are."""
    records, unseen = [], []
    for split in ("probe", "test", "valid", "train"):
        of_split = read_fasta(arguments.work / f"{split}.fasta", arguments.longest)
        labelled = one_a_cluster(of_split, True)[: arguments.proteins]
        records += labelled
        unseen += [split != "train"] * len(labelled)
    kingdoms_N = np.array([words[2] for words, _ in records])
    genera_N = np.array([words[3] for words, _ in records])
    values = features([sequence for _, sequence in records], arguments)
    torch.set_num_threads(1)  # the probes' matrices are too small for more
    found: dict[str, Any] = {"counts": {}}
    for name, chosen_N in (("unseen", np.array(unseen)), ("all", np.full(len(unseen), True))):
        kingdoms, genera = kingdoms_N[chosen_N], genera_N[chosen_N]
        counts = dict(
            zip(*(a.tolist() for a in np.unique(kingdoms, return_counts=True)), strict=True)
        )
        found["counts"][name] = counts | {"genera": len(set(genera))}
        probes = {
            key: Probes(x[chosen_N].astype(np.float64), kingdoms, genera)
            for key, x in values.items()
        }
        found[name] = {key: of_one.figures() for key, of_one in probes.items()}
        found[name]["gain"] = probes["model"].gain(probes["composition"])
    return found


def table(heads: list[str], rows: dict[str, list[Estimate]], name: str) -> str:
    """Return a table of the model card: one or several figures, each with its interval."""
    lines = ["| | " + " | ".join(f"{head} | 95 % interval" for head in heads) + " |"]
    lines.append("|" + "---|" * (1 + 2 * len(heads)))
    for key, estimates in rows.items():
        label = f"**{name}**" if key == "model" else DESCRIPTIONS.get(key, key)
        lines.append(f"| {label} | {' | '.join(map(str, estimates))} |")
    return "\n".join(lines)


def tables(figures: dict[str, Any], name: str) -> dict[str, str]:
    """Return the card's three tables."""
    perplexities = {key: [Estimate(*row)] for key, row in figures["perplexity"].items()}
    found = {"perplexity": table(["perplexity"], perplexities, name)}
    sets = {label: figures["probes"][label] for label in ("unseen", "all")}
    for task, figure in (("kingdom", "macro-F1"), ("viral", "AUC")):
        rows = {
            key: [Estimate(*of_set[key][task]) for of_set in sets.values()]
            for key in sets["unseen"]
        }
        found[task] = table([f"{figure}, {label}" for label in sets], rows, name)
    return found


def main() -> None:
    """Print the model card's tables, and keep the figures as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder with prepare.py's files")
    parser.add_argument("weights", type=Path, help="the .safetensors file")
    parser.add_argument("--other", action="append", default=[], help="NAME=PATH, to compare with")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--longest", type=int, default=1022, help="residues; longer ones left out")
    parser.add_argument("--proteins", type=int, help="only the first so many (default: all)")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    digest = hashlib.sha256(arguments.weights.read_bytes()).hexdigest()
    heldout, probed = evaluate_perplexity(arguments), evaluate_probes(arguments)
    counts = {"perplexity": heldout.pop("counts"), "probes": probed.pop("counts")}
    figures = {"sha256": digest, "counts": counts, "perplexity": heldout, "probes": probed}
    print(f"sha256 {digest}\n{counts}")
    for task, text in tables(figures, arguments.weights.stem).items():
        print(f"\n{task}\n{text}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
