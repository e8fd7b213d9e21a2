"""The workload esmc beside transformers and OpenVINO on a CPU, in one run on this machine.

    python -m bench.esmc                    # 4 layers of ESM C 300M's shape, in fp32 and bf16
    python -m bench.esmc --width 1152       # of 600M's

Weights are random, the proteins are those of `bench.run`: neighbours in length, so that the padded
batches of the others have little padding. All get tokens or proteins and give a float32 mean for
each. Passes alternate; told is the median of the processor's seconds, on one thread, so that others
who use the machine hardly change it, and the relative L2 against transformers in fp32. Beside them
stands what our matrix products alone would allow.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.engines.openvino import EXAMPLE, PRECISIONS, Hidden
from bench.lengths import MAX_RESIDUES, sorted_batches, tokens_of
from bench.peers import relative_l2
from bench.sample import Sample
from featuremill.base.devices import cpu
from featuremill.base.words import counted
from featuremill.workload import weights
from featuremill.workload.batches import make_batches
from featuremill.workload.compute import values_of
from featuremill.workload.networks import CPU_BATCH_TOKENS
from featuremill.workloads import esmc
from featuremill.workloads.esm2.encoder import DTYPES
from featuremill.workloads.esm2.matmul import forms
from featuremill.workloads.esm2.tokens import PAD, tokenize

HEAD_DIM = 64
PASSES = 3
ROWS, REPEATS = 512, 8
"""Of the products alone."""
Matrix = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]
Forward = Callable[[Tokens, Tokens], Matrix]
"""(tokens_NT, mask_NT) → hidden_NTD."""


def feed_forward(width: int) -> int:
    """Return the width between the halves of the feed forward, as in the published models."""
    return int(8 / 3 * width + 255) // 256 * 256


def network(num_layers: int, width: int) -> Any:
    """Return transformers' ESM C with random weights."""
    from transformers import EsmcConfig, EsmcModel

    torch.manual_seed(0)
    config = EsmcConfig(
        hidden_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=width // HEAD_DIM,
        intermediate_size=feed_forward(width),
    )
    return EsmcModel(config).eval()


def padded(forward: Forward, tokens: Sequence[Tokens], width: int) -> Matrix:
    """Return the means over residues, in sorted batches of at most `CPU_BATCH_TOKENS`."""
    means: Matrix = np.empty((len(tokens), width), np.float32)
    for rows in sorted_batches([*map(len, tokens)], CPU_BATCH_TOKENS):
        ids = np.full((len(rows), len(tokens[rows[0]])), PAD)
        for number, row in enumerate(rows):
            ids[number, : len(tokens[row])] = tokens[row]
        hidden = forward(ids, (ids != PAD).astype(np.int64))
        for number, row in enumerate(rows):
            means[row] = hidden[number, 1 : len(tokens[row]) - 1].mean(0)
    return means


def ours(model: Any, payloads: Sequence[bytes]) -> Matrix:
    """Return the means that a worker computes, in its batches."""
    costs = [esmc.cost(payload, model.options) for payload in payloads]
    means: Matrix = np.empty((len(payloads), model.encoder.width), np.float32)
    for rows in make_batches(costs, CPU_BATCH_TOKENS):
        values = values_of(esmc, model, [payloads[row] for row in rows], CPU_BATCH_TOKENS)
        means[rows] = values.column(0).flatten().to_numpy().reshape(len(rows), -1)
    return means


def by_transformers(model: Any) -> Forward:
    """Return what computes with transformers."""

    def forward(ids: Tokens, mask: Tokens) -> Matrix:
        with torch.inference_mode():
            hidden = Hidden(model)(torch.from_numpy(ids), torch.from_numpy(mask))
        return np.asarray(hidden.float().numpy())

    return forward


def by_openvino(model: Any, dtypes: Sequence[Any]) -> Iterator[tuple[str, Forward]]:
    """Yield by name what computes with OpenVINO; nothing where it is not installed."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        import openvino
    except ImportError:
        print("OpenVINO is left out: pip install 'featuremill[bench]' brings it")
        return
    tokens_NT = torch.full(EXAMPLE, 5)
    example = (tokens_NT, torch.ones_like(tokens_NT))
    converted = openvino.convert_model(Hidden(model), example_input=example)
    for dtype in dtypes:
        hints = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        compiled = openvino.Core().compile_model(converted, "CPU", hints)

        def forward(ids: Tokens, mask: Tokens, compiled: Any = compiled) -> Matrix:
            (hidden,) = compiled((ids, mask)).values()
            return np.asarray(hidden)

        yield f"OpenVINO {dtype}", forward


def engines(
    folder: Path, arguments: argparse.Namespace, payloads: Sequence[bytes]
) -> Iterator[tuple[str, Callable[[], Matrix]]]:
    """Yield by name what returns the means of all proteins; transformers in fp32 is the first."""
    made = network(arguments.layers, arguments.width)
    made.save_pretrained(folder)
    tokens = [tokenize(payload, (0, len(payload))) for payload in payloads]
    others = [("transformers fp32", by_transformers(made))]
    others += by_openvino(made, arguments.dtypes)
    for name, forward in others:
        yield name, partial(padded, forward, tokens, arguments.width)
    found = weights.weights_of(weights.convert(str(folder), folder, "esmc"))
    for dtype in arguments.dtypes:
        options = esmc.Options(model=str(folder), dtype=dtype)
        model = esmc.load(esmc.resolve(options, cpu(), found), [cpu()], found)
        yield f"featuremill {dtype}", partial(ours, model, payloads)


def of_products(num_layers: int, width: int, dtype: str) -> float:
    """Return the tokens a CPU second if there were nothing but a layer's matrix products."""
    narrow, hidden = DTYPES[dtype], feed_forward(width)
    form = forms(torch.device("cpu"), narrow)[0]
    shapes = [(3 * width, width), (width, width), (2 * hidden, width), (width, hidden)]
    made = [
        form(torch.randn(shape).to(narrow), torch.zeros(shape[0]).to(narrow)) for shape in shapes
    ]
    rows = [torch.randn(ROWS, shape[1]).to(narrow) for shape in shapes]
    seconds = []
    for _ in range(PASSES + 1):
        start = time.process_time()
        for _ in range(REPEATS):
            for product, rows_TI in zip(made, rows, strict=True):
                product(rows_TI)
        seconds.append(time.process_time() - start)
    return REPEATS * ROWS / num_layers / statistics.median(seconds[1:])  # the first warms up


def main() -> None:
    """Measure, and print a line for each engine."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=960)
    parser.add_argument("--dtypes", nargs="+", choices=("fp32", "bf16"), default=("fp32", "bf16"))
    parser.add_argument("--tokens", type=int, default=8_000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    proteins = Sample().take(arguments.tokens)
    payloads = [sequence[:MAX_RESIDUES].encode() for _, sequence in proteins]
    lengths = tokens_of(proteins)
    num_tokens = sum(lengths)
    batches = list(sorted_batches(lengths, CPU_BATCH_TOKENS))
    padding = sum(lengths[rows[0]] * len(rows) for rows in batches) / num_tokens - 1
    print(
        f"ESM C of {arguments.layers} layers, {arguments.width} wide; "
        f"{counted(len(payloads), 'protein')}, {num_tokens:,} tokens, {padding:.0%} padding"
    )
    with tempfile.TemporaryDirectory() as folder:
        ways = dict(engines(Path(folder), arguments, payloads))
        means = {name: compute() for name, compute in ways.items()}  # also the warm-up
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for name, compute in itertools.chain(*[ways.items()] * PASSES):
            start = time.process_time()
            compute()
            seconds[name].append(time.process_time() - start)
    expected = next(iter(means.values()))
    for name, each in seconds.items():
        speed = num_tokens / statistics.median(each)
        spread = (max(each) - min(each)) / statistics.median(each)
        error = relative_l2(means[name], expected)
        print(f"{name:18} {speed:8,.0f} tokens/CPU-s  ±{spread / 2:4.0%}  relative L2 {error:.1e}")
    for dtype in arguments.dtypes:
        speed = of_products(arguments.layers, arguments.width, dtype)
        print(f"{'products ' + dtype:18} {speed:8,.0f} tokens/CPU-s, if nothing else were computed")


if __name__ == "__main__":
    main()
