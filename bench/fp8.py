"""How exact features would be with products in fp8, emulated on a CPU with real weights.

    python -m bench.fp8                                        # the bundled network
    python -m bench.fp8 --model pytorch_model.bin              # any other that `model:` takes
    python -m bench.fp8 --labelled training-work               # the probes of the card as well

Rows of what goes into a product, and rows of its weights, are divided by a scale of their own and
rounded to e4m3; sums are fp32, and all else is as in bf16. A GPU could only be less exact: its
tensor cores add up in fewer bits. Each line is held against fp32, by the bounds that bf16 has to
keep (`gate.py`).
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from bench import gate
from bench.engines import Features
from bench.engines.ours import array_of
from bench.lengths import Protein, tokens_of
from bench.record import ROOT
from bench.run import SAMPLE
from bench.sample import Sample
from bench.table import aligned
from featuremill.base.devices import cpu
from featuremill.workload import Weights, compute, weights
from featuremill.workload.batches import make_batches
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import matmul

E4M3, LARGEST = torch.float8_e4m3fn, 448.0
VARIANTS: dict[str, tuple[str, ...]] = {
    "bf16": (),
    "fp8: qkv": ("qkv",),
    "fp8: up": ("up",),
    "fp8: down": ("down",),
    "fp8: qkv, up, down": ("qkv", "up", "down"),
}
"""What is measured beside fp32: which products are in e4m3."""
BUDGET = 4096
NEAREST = 10


class Rounded:
    """A product of rows in e4m3, with a scale for each row and for each output."""

    name = "e4m3, emulated"
    STREAM = matmul.Plain.STREAM

    def __init__(self, exact: matmul.Plain) -> None:
        self.bias_O = exact.bias_O
        self._weight_OI, self._dtype = rounded(exact.weight_OI), exact.weight_OI.dtype

    def __call__(self, rows_TI: Tensor) -> Tensor:
        return self._sums(rows_TI).to(self._dtype)

    def gelu(self, rows_TI: Tensor) -> Tensor:
        """Return GELU of the sums, in the form that cuBLAS has in 16 bits."""
        return F.gelu(self._sums(rows_TI), approximate="tanh").to(self._dtype)

    def _sums(self, rows_TI: Tensor) -> Tensor:
        return F.linear(rounded(rows_TI), self._weight_OI, self.bias_O.float())


def rounded(rows: Tensor) -> Tensor:
    """Return rows as e4m3 holds them, in fp32; the largest number of each row is e4m3's."""
    wide = rows.float()
    scales = wide.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
    return (wide / scales).to(E4M3).float() * scales


def model_of(found: Weights, dtype: str, narrow: Sequence[str]) -> Any:
    """Return the model in `dtype`, with the products called `narrow` in e4m3."""
    asked = {"dtype": dtype, "per_residue": True, "output_dtype": "float32"}
    options = esm2.resolve(esm2.Options.model_validate(asked), cpu(), found)
    if not narrow:
        return esm2.load(options, [cpu()], found)
    with patch.object(matmul, "forms", lambda *_: [matmul.Plain]):
        model = esm2.load(options, [cpu()], found)
    for stage in model.encoder.stages:
        for number, layer in enumerate(stage.layers):
            changed: dict[str, Any] = {name: Rounded(getattr(layer, name)) for name in narrow}
            stage.layers[number] = layer._replace(**changed)
    return model


def features(model: Any, proteins: Sequence[Protein]) -> tuple[Features, Features]:
    """Return residues and means of the proteins, by id."""
    residues: Features = {}
    means: Features = {}
    for rows in make_batches(tokens_of(proteins), BUDGET):
        payloads = [proteins[row][1].encode() for row in rows]
        values = compute.values_of(esm2, model, payloads, BUDGET)
        for name, column in zip(values.schema.names, values.columns, strict=True):
            into = means if name.startswith("mean") else residues
            for row, value in zip(rows, column, strict=True):
                into[proteins[row][0]] = array_of(value)
    return residues, means


def neighbours(means: Features) -> npt.NDArray[np.int64]:
    """Return the nearest other proteins of each by cosine, the nearest first (N, NEAREST)."""
    vectors = np.stack([means[name] for name in sorted(means)])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -2)
    return np.argsort(-likeness, axis=1, kind="stable")[:, :NEAREST]


def kept(found: npt.NDArray[np.int64], expected: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return the shares of nearest, and of the ten nearest, that are those of fp32 as well."""
    both = [len(set(a) & set(b)) for a, b in zip(found.tolist(), expected.tolist(), strict=True)]
    return float((found[:, 0] == expected[:, 0]).mean()), float(np.mean(both)) / NEAREST


def against_fp32(found: Weights, proteins: Sequence[Protein]) -> str:
    """Return a line for each variant, and whether it keeps bf16's bounds."""
    reference = features(model_of(found, "fp32", ()), proteins)
    nearest, rows = neighbours(reference[1]), []
    for name, narrow in VARIANTS.items():
        ours = features(model_of(found, "bf16", narrow), proteins)
        verdict = gate.judge(name, "bf16", *ours, reference)
        first, ten = kept(neighbours(ours[1]), nearest)
        rows.append(
            [
                name,
                f"{verdict.residue_l2:.1e}",
                f"{verdict.residue_cosine_mean:.6f}",
                f"{verdict.residue_cosine_min:.4f}",
                f"{verdict.pooled_cosine_min:.6f}",
                f"{first:.1%}",
                f"{ten:.1%}",
                "; ".join(each.partition(" ")[0] for each in verdict.failures()) or "none",
            ]
        )
    bounds = gate.BOUNDS["bf16"]
    rows.append(
        [
            "bound",
            f"{bounds['residue_l2']:.1e}",
            f"{bounds['residue_cosine_mean']:.6f}",
            f"{bounds['residue_cosine_min']:.4f}",
            f"{bounds['pooled_cosine_min']:.6f}",
            *("", "", ""),
        ]
    )
    head = ["against fp32", "residues' L2", "cosine", "least", "pools' least"]
    return aligned([*head, "nearest", "ten nearest", "missed"], rows)


def probed(found: Weights, folder: Path, most: int) -> str:
    """Return the card's probes by variant, on proteins whose relatives were not trained on, one a
    cluster; `folder` is what training/prepare.py made."""
    sys.path.insert(0, str(ROOT / "training"))  # whose scripts import each other
    evaluate, probes = (importlib.import_module(name) for name in ("evaluate", "probes"))
    records = []
    for split in ("probe", "test", "valid"):
        records += evaluate.one_a_cluster(
            evaluate.read_fasta(folder / f"{split}.fasta", 1022), True
        )
    records = records[:most]
    kingdoms, genera = (np.array([words[n] for words, _ in records]) for n in (2, 3))
    proteins = [(f"{number:05}", sequence) for number, (_, sequence) in enumerate(records)]
    expected, rows = None, []
    for name, dtype in (("fp32", "fp32"), ("bf16", "bf16"), ("fp8: qkv, up, down", "bf16")):
        means = features(model_of(found, dtype, VARIANTS.get(name, ())), proteins)[1]
        vectors = np.stack([means[key] for key in sorted(means)]).astype(np.float64)
        probe = probes.Probes(vectors, kingdoms, genera)
        expected = expected or probe
        figures, gains = probe.figures(), probe.gain(expected)
        tasks = ("kingdom", "viral")
        rows.append([name, *(str(of[task]) for task in tasks for of in (figures, gains))])
    head = ["", "kingdom, macro-F1 | 95 %", "less fp32 | 95 %", "viral, AUC | 95 %"]
    title = f"{len(records):,} proteins, {len(set(genera.tolist())):,} genera"
    return f"{title}\n{aligned([*head, 'less fp32 | 95 % '], rows)}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.fp8", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", default="mill_t6_8M", help="whatever `model:` takes in a config")
    add("--fasta", type=Path, default=SAMPLE, help="proteins to use in place of the sample")
    add("--tokens", type=int, default=10**9, help="only the first proteins, of so many at least")
    add("--labelled", type=Path, help="the folder that training/prepare.py made: the card's probes")
    add("--proteins", type=int, default=10**9, help="of these only the first so many")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = weights.weights_of(weights.convert(given.model, Path(folder)))
        if given.labelled:
            print(probed(found, given.labelled, given.proteins))
            return
        sample = Sample(given.fasta)
        proteins = sample.take(min(given.tokens, sum(tokens_of(sample.original))))
        print(f"{found.name}: {len(proteins):,} proteins, {sum(tokens_of(proteins)):,} tokens")
        print(against_fp32(found, proteins))


if __name__ == "__main__":
    main()
