"""The workload scores beside transformers, in one run on this machine.

    python -m bench.scores
    python -m bench.scores --dtypes fp32    # on a processor without bf16
    python -m bench.scores --layers 6 --width 320 --heads 20 --length 200

Both give the masked log-probabilities of one protein (a pass a residue), from the same random
weights. With transformers they are computed as its users write it, one masked copy at a time, and
16 of them together. Passes alternate; printed are the median of the processor's seconds, and how
far from the first line's the log-probabilities are.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import EsmConfig, EsmForMaskedLM

from bench.ways import measured
from featuremill.base.devices import cpu
from featuremill.workload import weights as conversion
from featuremill.workload.compute import values_of
from featuremill.workloads import scores
from featuremill.workloads.esm2.tokens import MASK, tokenize
from featuremill.workloads.scores.passes import tokens_of
from featuremill.workloads.scores.variants import AMINO_ACIDS

PASSES = 3
DTYPES = ("fp32", "bf16")
Numbers = npt.NDArray[np.float32]
TOGETHER = 16


def network(layers: int, width: int, heads: int) -> EsmForMaskedLM:
    """Return an ESM-2 of this shape with random weights."""
    config = EsmConfig(
        vocab_size=33, mask_token_id=MASK, pad_token_id=1, hidden_size=width,
        num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width,
        position_embedding_type="rotary", token_dropout=True, layer_norm_eps=1e-5,
        emb_layer_norm_before=False, max_position_embeddings=1026, is_folding_model=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return EsmForMaskedLM(config).eval()


def theirs(model: EsmForMaskedLM, num_together: int, letters: bytes) -> Numbers:
    """Return the log-probabilities (residues, 20) that transformers computes."""
    tokens = torch.from_numpy(tokenize(letters, (0, len(letters))))
    rows = []
    with torch.inference_mode():
        for places in torch.split(torch.arange(1, len(letters) + 1), num_together):
            copies = tokens.repeat(len(places), 1)
            copies[torch.arange(len(places)), places] = MASK
            logits = model(input_ids=copies, attention_mask=torch.ones_like(copies)).logits
            rows.append(logits[torch.arange(len(places)), places].float().log_softmax(-1))
    found: Numbers = torch.cat(rows).numpy()[:, tokens_of(AMINO_ACIDS.encode())]
    return found


def ours(folder: Path, dtype: str) -> Callable[[bytes], Numbers]:
    """Return what computes the same as a worker does."""
    options = scores.Options.model_validate(
        {
            "model": str(folder),
            "variants": "none",
            "log_probabilities": "masked",
            "dtype": dtype,
        }
    )
    weights = conversion.weights_of(conversion.convert(str(folder), folder / "cache", "scores"))
    settled = scores.resolve(options, cpu(), weights)
    model = scores.load(settled, [cpu()], weights)

    def compute(letters: bytes) -> Numbers:
        values = values_of(scores, model, [letters], scores.batch_cost(settled, cpu()))
        return np.array(values["log_probabilities"][0].as_py(), np.float32)

    return compute


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--heads", type=int, default=20)
    parser.add_argument("--length", type=int, default=60)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    shape = parser.parse_args()
    model = network(shape.layers, shape.width, shape.heads)
    letters = "".join(np.random.default_rng(0).choice(list(AMINO_ACIDS), shape.length)).encode()
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        halves = EsmForMaskedLM.from_pretrained(name, dtype=torch.bfloat16).eval()
        ways: dict[str, Callable[[bytes], Numbers]] = {
            f"transformers {dtype}, {number} together": partial(theirs, network, number)
            for dtype, network in zip(DTYPES, (model, halves), strict=True)
            if dtype in {"fp32", *shape.dtypes}
            for number in (1, TOGETHER)
        }
        ways |= {f"featuremill {dtype}": ours(Path(name), dtype) for dtype in shape.dtypes}
        given = {way: partial(compute, letters) for way, compute in ways.items()}
        seconds, found = measured(given, PASSES)
    print(
        f"{shape.layers} layers of width {shape.width}, {shape.length} residues, a pass each; "
        f"{cpu().name}, {torch.get_num_threads()} threads"
    )
    exact = next(iter(found.values()))
    slowest = next(iter(seconds.values()))
    for way, took in seconds.items():
        off = np.abs(found[way] - exact).max()
        print(f"{way:32} {took:8.2f} s, {slowest / took:5.2f} x; at most {off:.1g} off")


if __name__ == "__main__":
    main()
