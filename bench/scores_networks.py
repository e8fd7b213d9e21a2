"""ESM-1v and SaProt of the workload scores beside their authors' programs, in one run here.

    python -m bench.scores_networks
    python -m bench.scores_networks --layers 6 --width 320 --heads 20 --length 200

All give the masked marginals of each single substitution of one protein, from the same random
weights: a pass a residue. Those of ESM-1v by fair-esm, as its `predict.py` writes it, and those of
SaProt by transformers, as its authors' `predict_pos_mut` does; both are single passes in fp32.
Printed are the processor's seconds, the median of three, and how far the scores are apart. One
thread, as threads that wait for a busy machine count as well.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bench import elders
from bench.ways import measured
from featuremill.base.devices import cpu
from featuremill.workload import weights as conversion
from featuremill.workload.compute import values_of
from featuremill.workloads import scores

PASSES = 3
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
Found = dict[str, float]


def ours(model: str, cache: Path, dtype: str, payload: bytes) -> Callable[[], Found]:
    """Return what computes as a worker does."""
    options = scores.Options.model_validate(
        {"model": model, "variants": "all", "marginals": "masked", "dtype": dtype}
    )
    weights = conversion.weights_of(conversion.convert(options.model, cache, "scores"))
    settled = scores.resolve(options, cpu(), weights)
    loaded = scores.load(settled, [cpu()], weights)

    def compute() -> Found:
        values = values_of(scores, loaded, [payload], scores.batch_cost(settled, cpu()))
        rows = values["variants"][0].as_py()
        return {row["variant"]: row["masked_marginal"] for row in rows}

    return compute


def of_fair_esm(network: object, sequence: str) -> Callable[[], Found]:
    """Return what computes as fair-esm's script does."""
    token = elders.ALPHABET.get_idx

    def compute() -> Found:
        found: Found = {}
        for place, old in enumerate(sequence):
            row = elders.elder_log_probabilities(network, sequence, (place,))[place]
            for new in AMINO_ACIDS.replace(old, ""):
                found[f"{old}{place + 1}{new}"] = float(row[token(new)] - row[token(old)])
        return found

    return compute


def of_authors(network: object, tokenizer: object, tokens: list[str]) -> Callable[[], Found]:
    """Return what computes as SaProt's authors do."""

    def compute() -> Found:
        found: Found = {}
        for place, token in enumerate(tokens):
            old, structure = token[0], token[1]
            masked = [*tokens[:place], f"#{structure}", *tokens[place + 1 :]]
            shares = elders.saprot_probabilities(network, tokenizer, masked)[1 + place]
            own = elders.of_residue(shares, old)
            for new in AMINO_ACIDS.replace(old, ""):
                score = torch.log(elders.of_residue(shares, new) / own)
                found[f"{old}{place + 1}{new}"] = float(score)
        return found

    return compute


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--heads", type=int, default=20)
    parser.add_argument("--length", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    shape = parser.parse_args()
    torch.set_num_threads(shape.threads)
    sizes = (shape.layers, shape.width, shape.heads)
    random = np.random.default_rng(0)
    sequence = "".join(random.choice(list(AMINO_ACIDS), shape.length))
    structure = "".join(random.choice(list(elders.SAPROT_STRUCTURES), shape.length))
    dtypes = ("fp32", "bf16") if cpu().has_bf16 else ("fp32",)
    print(
        f"{shape.layers} layers of width {shape.width}, {shape.length} residues, a pass each; "
        f"{cpu().name}, {torch.get_num_threads()} threads"
    )
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name, "saprot"), Path(name, "cache")
        folder.mkdir()
        elder = elders.save_elder(Path(name, "esm1v_x.pt"), *sizes, has_norm=False)
        tokens = [a + b for a, b in zip(sequence, structure, strict=True)]
        payload = f"{sequence}\t{structure}".encode()
        authors = of_authors(*elders.saprot(folder, *sizes), tokens)
        for title, peer, model, given in (
            ("ESM-1v", of_fair_esm(elders.fair_esm_of(elder), sequence), elder, sequence.encode()),
            ("SaProt", authors, folder, payload),
        ):
            ways = {f"{title}, authors, fp32": peer}
            for dtype in dtypes:
                ways[f"{title}, featuremill {dtype}"] = ours(str(model), cache, dtype, given)
            report(ways)


def report(ways: dict[str, Callable[[], Found]]) -> None:
    """Print the seconds of each way, and how far it is from the first."""
    seconds, found = measured(ways, PASSES)
    exact = next(iter(found.values()))
    slowest = next(iter(seconds.values()))
    for way, took in seconds.items():
        assert found[way].keys() == exact.keys()
        off = max(abs(found[way][name] - score) for name, score in exact.items())
        print(f"{way:28} {took:8.2f} s, {slowest / took:5.2f} x; at most {off:.1g} off")
    print(f"{'':28} of scores up to {max(map(abs, exact.values())):.1f}")


if __name__ == "__main__":
    main()
