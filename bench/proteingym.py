"""The workload scores beside the arithmetic of ProteinGym with fair-esm, on this machine.

    python -m bench.proteingym
    python -m bench.proteingym --residues 300 --variants 500 --indels 2 --dtypes fp32
    python -m bench.proteingym --figures    # needs: pip install --no-deps proteingym==1.3

A deep mutational scan: variants of one protein with one to three substitutions, and some deletions,
by the bundled network. ProteinGym's `baselines/esm/compute_fitness.py` takes a pass for each token
of the protein (`masked-marginals`), or of each variant (`pseudo-ppl`; here each residue is read
where it is masked, where that script reads its neighbour). Passes alternate; printed are the median
of the seconds and of the processor's seconds, and how far scores are from the peer's at most.

With `--figures`, the figures of `variant_metrics` beside those of the package proteingym, of random
scores without ties.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from esm.data import Alphabet
from safetensors.torch import load_file

from bench.peers import fair_esm
from featuremill.base.devices import cpu
from featuremill.workload import weights as conversion
from featuremill.workload.compute import values_of
from featuremill.workloads import esm2, scores
from featuremill.workloads.scores import agreement
from featuremill.workloads.scores.edits import is_indel, mutated
from featuremill.workloads.scores.options import MARGINALS
from featuremill.workloads.scores.variants import AMINO_ACIDS, Row, payload_of, substitutions

DTYPES = ("fp32", "bf16")
BUNDLED = Path(esm2.__file__).parent / "bundled" / "mill_t6_8M.safetensors"
Numbers = npt.NDArray[np.float64]
Compute = Callable[[str, list[str]], Numbers]


class Peer:
    """What ProteinGym's script computes, one masked copy at a time."""

    def __init__(self) -> None:
        self.network = fair_esm(6, 320, 20, load_file(BUNDLED))
        self.alphabet = Alphabet.from_architecture("ESM-1b")

    def each_masked(self, sequence: str) -> Any:
        """Return the log-probabilities of each token where it is masked."""
        _, _, tokens = self.alphabet.get_batch_converter()([("", sequence)])
        found = []
        with torch.no_grad():
            for place in range(tokens.size(1)):
                masked = tokens.clone()
                masked[0, place] = self.alphabet.mask_idx
                found.append(torch.log_softmax(self.network(masked)["logits"], -1)[0, place])
        return torch.stack(found)

    def additive(self, sequence: str, variants: list[str]) -> Numbers:
        found, index = self.each_masked(sequence), self.alphabet.get_idx
        return np.array(
            [
                sum(
                    (found[1 + place, index(new)] - found[1 + place, index(sequence[place])]).item()
                    for place, new in substitutions(variant)
                )
                for variant in variants
            ]
        )

    def likelihood(self, sequence: str) -> float:
        found, index = self.each_masked(sequence), self.alphabet.get_idx
        return float(sum(found[1 + at, index(new)].item() for at, new in enumerate(sequence)))

    def pseudo(self, sequence: str, variants: list[str]) -> Numbers:
        made = [mutated(variant, sequence.encode()).decode() for variant in variants]
        wild_type, *others = map(self.likelihood, [sequence, *made])
        return np.array(others) - wild_type


def ours(kind: str, dtype: str, cache: Path) -> Compute:
    """Return what computes one score as a worker does."""
    options = scores.Options.model_validate(
        {"model": "mill_t6_8M", "variants": "listed", "marginals": kind, "dtype": dtype}
    )
    weights = conversion.weights_of(conversion.convert("mill_t6_8M", cache, "scores"))
    settled = scores.resolve(options, cpu(), weights)
    model = scores.load(settled, [cpu()], weights)

    def compute(sequence: str, variants: list[str]) -> Numbers:
        payload = payload_of(sequence.encode(), [Row(name, name) for name in variants])
        values = values_of(scores, model, [payload], scores.batch_cost(settled, cpu()))
        column = MARGINALS[settled.kinds[0]]
        return np.array([each[column] for each in values["variants"][0].as_py()], np.float64)

    return compute


def drawn(residues: int, num_variants: int, num_indels: int) -> tuple[str, list[str], list[str]]:
    """Return a protein, variants of it with substitutions, and deletions of three residues."""
    generator = np.random.default_rng(0)
    sequence = "".join(generator.choice(list(AMINO_ACIDS), residues))
    variants = []
    for _ in range(num_variants):
        places = np.sort(generator.choice(residues, generator.integers(1, 4), replace=False))
        others = [AMINO_ACIDS.replace(sequence[place], "") for place in places]
        letters = [generator.choice(list(other)) for other in others]
        parts = zip(places, letters, strict=True)
        variants.append(":".join(f"{sequence[place]}{place + 1}{new}" for place, new in parts))
    starts = generator.integers(0, residues - 3, num_indels)
    ends = [f"{sequence[at]}{at + 1}_{sequence[at + 2]}{at + 3}del" for at in starts]
    assert all(map(is_indel, ends))
    return sequence, variants, ends


def compare_figures() -> None:
    """Print how far our figures are from those of ProteinGym's package at most."""
    import pandas as pd

    package = find_spec("proteingym")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("--figures needs: pip install --no-deps proteingym==1.3")
    # Its file: `import proteingym` fails in 1.3, which lacks its utils.
    path = Path(package.submodule_search_locations[0], "performance_DMS_benchmarks.py")
    peer = run_path(str(path))
    calculated = [peer[name] for name in ("calc_ndcg", "calc_toprecall")]
    generator = np.random.default_rng(0)
    off = {"ndcg": 0.0, "top_recall": 0.0}
    for number in range(10, 3000, 37):
        measured = generator.standard_normal(number)
        found = measured + generator.standard_normal(number) * 2
        table = pd.DataFrame({"measured": measured, "found": found})
        theirs = [calc(table["measured"], table["found"]) for calc in calculated]
        ours = (agreement.ndcg(measured, found), agreement.top_recall(measured, found))
        for name, one, other in zip(off, theirs, ours, strict=True):
            off[name] = max(off[name], abs(float(one) - other))
    for name, largest in off.items():
        print(f"{name:12} at most {largest:.1g} off")


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--residues", type=int, default=300)
    parser.add_argument("--variants", type=int, default=500)
    parser.add_argument("--indels", type=int, default=2)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--figures", action="store_true")
    shape = parser.parse_args()
    if shape.figures:
        compare_figures()
        return
    sequence, variants, indels = drawn(shape.residues, shape.variants, shape.indels)
    peer = Peer()
    jobs = {"masked_additive": (variants, peer.additive), "pseudo": (indels, peer.pseudo)}
    told = f"{shape.residues} residues, {len(variants)} variants, {len(indels)} deletions"
    print(f"{told}, mill_t6_8M; {cpu().name}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as cache:
        for kind, (names, theirs) in jobs.items():
            if not names:
                continue
            ways: dict[str, Compute] = {"ProteinGym's with fair-esm": theirs}
            ways |= {
                f"featuremill {dtype}": ours(kind, dtype, Path(cache)) for dtype in shape.dtypes
            }
            seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            found: dict[str, Numbers] = {}
            for number in range(shape.passes + 1):
                for way, compute in ways.items():
                    starts = time.perf_counter(), time.process_time()
                    found[way] = compute(sequence, names)
                    if number:  # the first one warms up
                        ends = time.perf_counter(), time.process_time()
                        seconds[way].append((ends[0] - starts[0], ends[1] - starts[1]))
            exact = next(iter(found.values()))
            for way, each in seconds.items():
                took, worked = (statistics.median(some) for some in zip(*each, strict=True))
                off = np.abs(found[way] - exact).max()
                print(
                    f"{kind:16} {way:28} {took:7.2f} s, {worked:7.2f} CPU s; at most {off:.1g} off"
                )


if __name__ == "__main__":
    main()
