"""The workload encoder beside transformers in padded batches, in one run on this machine.

    python -m bench.encoder                         # a BERT of letters, 4 layers of 256, in fp32
    python -m bench.encoder --kind esm --dtype bf16

Weights are random, the proteins are the demo's first ones. transformers takes them in the order of
the file, as many to a batch as fill the same number of tokens with their padding, with SDPA; bf16
is its whole model in that type. It gets tokens, featuremill proteins; both give a float32 mean for
each. Passes alternate; told is the median, and the lowest cosine between the two. On a CPU seconds
are those of the processor, on one thread, so that others who use the machine hardly change them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from featuremill.base.devices import devices_for, with_processors
from featuremill.base.words import counted
from featuremill.inputs import proteins
from featuremill.workload import weights
from featuremill.workload.batches import make_batches
from featuremill.workload.compute import values_of
from featuremill.workloads import encoder

ROOT = Path(__file__).parents[1]
PASSES = 3
LETTERS = "LAGVESIKRDTPNQFYMHCWXUBZO"
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
ESM_TOKENS = ["<cls>", "<pad>", "<eos>", "<unk>", *LETTERS, "<mask>"]
Matrix = npt.NDArray[np.float32]


def network(kind: str, num_layers: int, width: int) -> tuple[Any, list[str]]:
    """Return a network of transformers with random weights, and its tokens."""
    import transformers

    heads, inner = max(1, width // 64), 4 * width
    torch.manual_seed(0)
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": 2048,
    }
    if kind == "bert":
        config = transformers.BertConfig(vocab_size=len(BERT_TOKENS), **sizes)
        return transformers.BertModel(config, add_pooling_layer=False), BERT_TOKENS
    config = transformers.EsmConfig(
        vocab_size=len(ESM_TOKENS),
        pad_token_id=1,
        mask_token_id=len(ESM_TOKENS) - 1,
        token_dropout=True,
        position_embedding_type="rotary",
        **sizes,
    )
    return transformers.EsmModel(config, add_pooling_layer=False), ESM_TOKENS


def theirs(
    model: Any, tokens: Sequence[npt.NDArray[np.int64]], pad: int, most_tokens: int
) -> Matrix:
    """Return the means that transformers computes, in batches in the order that they come."""
    means: list[Matrix] = []
    for batch in in_file_order(tokens, most_tokens):
        longest = max(map(len, batch))
        ids = np.full((len(batch), longest), pad)
        for row, one in zip(ids, batch, strict=True):
            row[: len(one)] = one
        tokens_BT = torch.from_numpy(ids).to(model.device)
        mask_BT = (tokens_BT != pad).long()
        with torch.inference_mode():
            hidden_BTE = model(input_ids=tokens_BT, attention_mask=mask_BT).last_hidden_state
            own_BT1 = mask_BT.clone().float()[:, :, None]
            own_BT1[:, 0] = 0
            own_BT1[range(len(batch)), [len(one) - 1 for one in batch]] = 0
            mean_BE = (hidden_BTE.float() * own_BT1).sum(1) / own_BT1.sum(1)
        means.append(mean_BE.cpu().numpy())
    return np.concatenate(means)


def in_file_order(
    tokens: Sequence[npt.NDArray[np.int64]], most_tokens: int
) -> Iterator[list[npt.NDArray[np.int64]]]:
    """Yield batches of at most so many tokens, padding included."""
    batch: list[npt.NDArray[np.int64]] = []
    for one in tokens:
        if batch and (len(batch) + 1) * max(len(one), *map(len, batch)) > most_tokens:
            yield batch
            batch = []
        batch.append(one)
    yield batch


def ours(model: Any, payloads: Sequence[bytes], most_tokens: int) -> Matrix:
    """Return the means that a worker computes, in its batches."""
    costs = [encoder.cost(payload, model.options) for payload in payloads]
    means: Matrix = np.empty((len(payloads), model.encoder.width), np.float32)
    for rows in make_batches(costs, most_tokens):
        values = values_of(encoder, model, [payloads[row] for row in rows], most_tokens)
        means[rows] = values.column(0).flatten().to_numpy().reshape(len(rows), -1)
    return means


def timed(compute: Callable[[], Matrix], clock: Callable[[], float]) -> tuple[float, Matrix]:
    """Return how many seconds `compute` takes, and what comes of it."""
    start = clock()
    found = compute()
    return clock() - start, found


def main() -> None:
    """Measure, and print a line for each of the two."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=("bert", "esm"), default="bert")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--proteins", type=int, default=60)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    arguments = parser.parse_args()
    (device,) = with_processors(devices_for(arguments.device)[:1])
    clock = time.perf_counter
    if device.kind == "cpu":
        clock = time.process_time
        torch.set_num_threads(1)
    made, tokens = network(arguments.kind, arguments.layers, arguments.width)
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        Path(folder, "vocab.txt").write_text("\n".join(tokens) + "\n")
        found = weights.weights_of(weights.convert(folder, workload="encoder"))
        options = encoder.Options(model=folder, alphabet="proteins", dtype=arguments.dtype)
        model = encoder.load(encoder.resolve(options, device, found), [device], found)
    made = made.eval().to(model.encoder.device)
    if arguments.dtype == "bf16":
        made = made.to(torch.bfloat16)
    records = islice(proteins([ROOT / "config" / "demo.fasta"]), arguments.proteins)
    payloads = [record.payload[: model.options.max_residues] for record in records]
    ids = [model.vocabulary.tokens(payload) for payload in payloads]
    pad = model.vocabulary.pad
    most_tokens = encoder.batch_cost(options, device)
    ways: dict[str, Callable[[], Matrix]] = {
        "featuremill": lambda: ours(model, payloads, most_tokens),
        "transformers": lambda: theirs(made, ids, pad, most_tokens),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    means: dict[str, Matrix] = {}
    for number in range(PASSES + 1):
        for name, compute in ways.items():
            took, means[name] = timed(compute, clock)
            if number:  # the first one warms up
                seconds[name].append(took)
    num_tokens = sum(map(len, ids))
    told = f"{arguments.kind} of {arguments.layers} layers, {arguments.width} wide"
    print(f"{told}, {arguments.dtype}, {device.name}; {counted(len(ids), 'protein')}")
    for name, each in seconds.items():
        print(f"{name:13} {num_tokens / statistics.median(each):9,.0f} tokens/s")
    one, other = means.values()
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    ratio = statistics.median(seconds["transformers"]) / statistics.median(seconds["featuremill"])
    print(f"{ratio:.2f} times as fast; lowest cosine {cosines.min():.6f}")


if __name__ == "__main__":
    main()
