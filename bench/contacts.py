"""The workload contacts beside fair-esm's `predict_contacts`, in one run on this machine.

    python -m bench.contacts
    python -m bench.contacts --dtypes fp32    # on a processor without bf16
    python -m bench.contacts --layers 12 --width 480 --heads 20 --lengths 100 300 1000

Both compute the same proteins, one after the other, with the same random weights and the same
random regression: fair-esm as its README does, a protein at a time. Passes alternate; printed are
the median of the processor's seconds, and how far probabilities are from the first line's.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.peers import ALPHABET, fair_esm, save_fair_esm
from bench.ways import measured
from featuremill.base.devices import Device, cpu
from featuremill.workload import weights as conversion
from featuremill.workload.compute import values_of
from featuremill.workloads import contacts
from featuremill.workloads.contacts.columns import square

PASSES = 3
DTYPES = ("fp32", "bf16")
LETTERS = "ACDEFGHIKLMNPQRSTVWY"
Maps = list[npt.NDArray[np.float32]]


def network(layers: int, width: int, heads: int) -> Any:
    """Return an ESM-2 of this shape with random weights, whose heads look at few residues, and a
    random regression."""
    model = fair_esm(layers, width, heads)
    for layer in model.layers:
        layer.self_attn.q_proj.weight *= 2
        layer.self_attn.k_proj.weight *= 2
    model.contact_head.regression.weight.normal_()
    return model


def save(model: Any, path: Path) -> Path:
    """Write the `.pt` and the regression beside it, as fair-esm has them."""
    save_fair_esm(model, path)
    regression = model.contact_head.state_dict()
    state = {f"contact_head.{key}": value.cpu() for key, value in regression.items()}
    torch.save({"model": state}, path.with_name(f"{path.stem}-contact-regression.pt"))
    return path


def theirs(model: Any, proteins: Sequence[str]) -> Maps:
    """Return what fair-esm computes."""
    convert = ALPHABET.get_batch_converter()
    with torch.inference_mode():
        tokens = [convert([("", protein)])[2] for protein in proteins]
        device = next(model.parameters()).device
        return [model.predict_contacts(each.to(device))[0].cpu().numpy() for each in tokens]


def ours(
    path: Path, dtype: str, cache: Path, device: Device | None = None
) -> Callable[[Sequence[str]], Maps]:
    """Return a function that computes the same by the workload, its model loaded on `device`, which
    is the CPU by default."""
    device = device or cpu()
    found = conversion.weights_of(conversion.convert(str(path), cache, "contacts"))
    asked = {"model": str(path), "dtype": dtype, "long": "full", "output_dtype": "float32"}
    settled = contacts.Options.model_validate(asked | {"pairs": "top"})
    options = contacts.resolve(settled, device, found)
    model = contacts.load(options, [device], found)

    def compute(proteins: Sequence[str]) -> Maps:
        payloads = [protein.encode() for protein in proteins]
        return [
            square(row)
            for one in payloads
            for row in values_of(contacts, model, [one], len(one) + 2)["contact_map"]
        ]

    return compute


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--heads", type=int, default=20)
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    asked = parser.parse_args()
    draw = np.random.default_rng(0)
    proteins = ["".join(draw.choice(list(LETTERS), length)) for length in asked.lengths]
    model = network(asked.layers, asked.width, asked.heads)
    with tempfile.TemporaryDirectory() as folder:
        path = save(model, Path(folder, "random.pt"))
        ways: dict[str, Callable[[Sequence[str]], Maps]] = {
            "fair-esm, fp32": partial(theirs, model)
        }
        for dtype in asked.dtypes:
            ways[f"featuremill, {dtype}"] = ours(path, dtype, Path(folder, "cache"))
        given = {name: partial(compute, proteins) for name, compute in ways.items()}
        seconds, found = measured(given, PASSES, warm_ups=0)
    first = next(iter(ways))
    for name in ways:
        off = max(
            np.abs(one - other).max() for one, other in zip(found[name], found[first], strict=True)
        )
        print(f"{name}: {seconds[name]:.2f} s, at most {off:.1e} off")
    print(f"spread of fair-esm's: {np.std(found[first][-1]):.2f}")


if __name__ == "__main__":
    main()
