"""Train `mill_t6_1M`, a masked language model of ESM-2's architecture, on one CPU core.

Parameters, their names and the reference forward pass are fair-esm's; `masked_logits` is a faster
forward pass for training, and every run first asserts that it agrees with the reference.
Shapes: B crops of T tokens, D width, H heads of K = D / H, M masked positions, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
from batches import MASKED, TO_MASK_TOKEN, Batch, Proteins, batches
from esm.model.esm2 import ESM2
from safetensors.torch import save as serialize
from torch.nn import functional

NAME = "mill_t6_1M"
SHAPE = {"num_layers": 6, "embed_dim": 128, "attention_heads": 8}
TOKEN_DROPOUT_KEEP = 1 - MASKED * TO_MASK_TOKEN  # fair-esm's scale for `token_dropout`


def build_network(seed: int) -> ESM2:
    """Return a new network: fair-esm's own initialisation but for the embeddings."""
    torch.manual_seed(seed)
    network = ESM2(**SHAPE, alphabet="ESM-1b", token_dropout=True)
    # fair-esm draws embeddings from N(0, 1). They are the output weights too, so logits would
    # start with a standard deviation of sqrt(D).
    torch.nn.init.normal_(network.embed_tokens.weight, std=SHAPE["embed_dim"] ** -0.5)
    with torch.no_grad():
        network.embed_tokens.weight[network.padding_idx] = 0
    return network


def trained_parameters(network: ESM2) -> dict[str, torch.nn.Parameter]:
    """Return {name: parameter}; the tied `lm_head.weight` and the contact head are not in it."""
    named = network.named_parameters()  # yields a shared parameter once, as embed_tokens.weight
    return {name: value for name, value in named if not name.startswith("contact_head.")}


def linear(layer: torch.nn.Linear, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Apply a linear layer in `dtype`."""
    return functional.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))


def rotate(x_BTHK: torch.Tensor) -> torch.Tensor:
    """Apply the rotary position embedding, in halves as fair-esm does."""
    _, length, _, width = x_BTHK.shape
    frequency = 10000 ** (-torch.arange(0, width, 2) / width)
    angle = torch.outer(torch.arange(length), frequency)
    cosine = torch.cat((angle.cos(), angle.cos()), -1)[:, None]
    sine = torch.cat((-angle.sin(), angle.sin()), -1)[:, None]
    return x_BTHK * cosine + x_BTHK.roll(width // 2, -1) * sine


def masked_logits(
    network: ESM2, tokens_BT: torch.Tensor, positions_M: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return logits_MV at flat `positions_M`; linear layers run in `dtype`, all else in float32.

    On a CPU with avx512_bf16, bfloat16 doubles the speed of the matrix products, but attention
    in bfloat16 is slower than in float32. There must be no padding in `tokens_BT`.
    """
    B, T = tokens_BT.shape
    D, H = network.embed_dim, network.attention_heads
    is_mask_BT = tokens_BT == network.mask_idx
    x = network.embed_tokens(tokens_BT).masked_fill(is_mask_BT[..., None], 0)
    x = x * (TOKEN_DROPOUT_KEEP / (1 - is_mask_BT.float().mean(1)))[:, None, None]
    for layer in network.layers:
        attention, hidden = layer.self_attn, layer.self_attn_layer_norm(x)
        query, key, value = (
            linear(projection, hidden, dtype).view(B, T, H, D // H).float()
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key, value = (y.transpose(1, 2) for y in (rotate(query), rotate(key), value))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + linear(attention.out_proj, mixed.transpose(1, 2).reshape(B, T, D), dtype)
        if layer is network.layers[-1]:
            x = x.reshape(B * T, D)[positions_M]  # nothing after this point looks sideways
        hidden = linear(layer.fc1, layer.final_layer_norm(x), dtype)
        x = x + linear(layer.fc2, functional.gelu(hidden), dtype)
    logits_MV: torch.Tensor = network.lm_head(network.emb_layer_norm_after(x))
    return logits_MV


@torch.no_grad()
def assert_agrees_with_fair_esm(network: ESM2) -> None:
    """Assert that `masked_logits` in float32 is fair-esm's own forward pass to 1e-4."""
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(4, 24, (4, 200), generator=generator)
    is_masked_BT = torch.rand(tokens_BT.shape, generator=generator) < MASKED
    tokens_BT[is_masked_BT] = network.mask_idx
    expected_MV = network(tokens_BT)["logits"][is_masked_BT]
    positions_M = is_masked_BT.flatten().nonzero().squeeze(1)
    actual_MV = masked_logits(network, tokens_BT, positions_M, torch.float32)
    torch.testing.assert_close(actual_MV, expected_MV, atol=1e-4, rtol=0)


def learning_rate_share(step: int, steps: int, warmup: int, decay: int) -> float:
    """Return the share of the peak: linear warm-up, constant, linear decay over the last steps.

    Until the decay begins, a run does not depend on `steps`: a checkpoint can be continued with
    another number of steps and gives what that number would have given from the start.
    """
    return min(1.0, (step + 1) / warmup, (steps - step) / decay)


def with_sorted_header(safetensors: bytes) -> bytes:
    """Return the file with its JSON header's keys in order: safetensors shuffles the metadata."""
    start = 8 + int.from_bytes(safetensors[:8], "little")
    header = json.dumps(json.loads(safetensors[8:start]), sort_keys=True, separators=(",", ":"))
    padded = header.encode() + b" " * (-len(header) % 8)  # tensor data stay aligned
    return len(padded).to_bytes(8, "little") + padded + safetensors[start:]


@dataclass
class Progress:
    """How far a run has come, over all its sessions."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def save(network: ESM2, path: Path, progress: Progress, data: str) -> None:
    """Write the network as float16 safetensors; the name appears when the file is complete."""
    tensors = {name: p.detach().half() for name, p in trained_parameters(network).items()}
    metadata = {"name": NAME, "architecture": "esm2", **{k: str(v) for k, v in SHAPE.items()}}
    metadata |= {"license": "CC-BY-4.0", "trained_by": "featuremill", "data": data}
    metadata |= {"tokens_seen": str(progress.tokens), "steps": str(progress.step)}
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(with_sorted_header(serialize(tensors, metadata)))
    partial.replace(path)


class Run:
    """A training run: network, optimizer and progress; its checkpoint holds all three."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.network = build_network(arguments.seed)
        parameters = trained_parameters(self.network).values()
        groups = [
            {"params": [p for p in parameters if p.ndim == 2], "weight_decay": 0.01},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
        self.progress = Progress()
        self.checkpoint: Path = arguments.work / "checkpoint.pt"

    def load(self) -> None:
        saved = torch.load(self.checkpoint, weights_only=True)
        self.network.load_state_dict(saved["network"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.progress = Progress(**saved["state"])

    def save(self) -> None:
        partial = self.checkpoint.with_suffix(".partial")
        parts = {"network": self.network, "optimizer": self.optimizer}
        saved = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**saved, "state": asdict(self.progress)}, partial)
        partial.replace(self.checkpoint)

    def step(self, batch: Batch, learning_rate: float, dtype: torch.dtype) -> float:
        """Make one optimizer step; return the mean cross-entropy, in nats per masked residue."""
        tokens_BT, positions_M, targets_M = batch
        loss = functional.cross_entropy(
            masked_logits(self.network, tokens_BT, positions_M, dtype), targets_M
        )
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained_parameters(self.network).values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.progress.step += 1
        self.progress.tokens += tokens_BT.numel()
        return loss.item()


def train(run: Run, stream: Iterator[Batch], arguments: argparse.Namespace) -> None:
    """Step until `--steps` or `--minutes`; append to the loss curve; keep checkpoints.

    A line of the curve is the mean since the line before it, or since the run was resumed.
    """
    progress = run.progress
    losses: list[float] = []
    before, began = progress.seconds, time.monotonic()
    curve = arguments.work / "loss.jsonl"
    kept = curve.read_text().splitlines() if progress.step else []
    kept = [line for line in kept if json.loads(line)["step"] <= progress.step]
    curve.write_text("".join(line + "\n" for line in kept))
    dtype = getattr(torch, arguments.dtype)
    while progress.step < arguments.steps and progress.seconds - before < arguments.minutes * 60:
        share = learning_rate_share(
            progress.step, arguments.steps, arguments.warmup, arguments.decay
        )
        losses.append(run.step(next(stream), share * arguments.learning_rate, dtype))
        progress.seconds = before + time.monotonic() - began
        if progress.step % arguments.log_every == 0:
            row = asdict(progress) | {"seconds": round(progress.seconds, 1)}
            row["loss"] = round(sum(losses) / len(losses), 4)
            with curve.open("a") as file:
                print(json.dumps(row), file=file)
            losses.clear()
        if progress.step % arguments.checkpoint_every == 0:
            run.save()
    run.save()


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder with prepare.py's files; for checkpoints")
    parser.add_argument("output", type=Path, help="the .safetensors file to write")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--steps", type=int, default=8500)
    parser.add_argument("--decay", type=int, default=5000, help="steps of the final decay")
    parser.add_argument("--warmup", type=int, default=200, help="steps of the warm-up")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop, to be resumed")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--crops", type=int, nargs="+", default=[128] * 5 + [512], help="in turn")
    parser.add_argument("--learning-rate", type=float, default=2.5e-3, help="its peak")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=100, help="steps per line of loss.jsonl")
    parser.add_argument("--checkpoint-every", type=int, default=500, help="steps")
    parser.add_argument("--data", default="UniProtKB/Swiss-Prot 2014_01 (UniProt, CC BY 4.0)")
    return parser.parse_args()


def main() -> None:
    """Train, then write the weights."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    run = Run(arguments)
    assert_agrees_with_fair_esm(run.network)
    if arguments.resume:
        run.load()
    proteins = Proteins(arguments.work / "train.fasta", run.network.alphabet)
    stream = batches(proteins, arguments.crops, arguments.batch_tokens, arguments.seed)
    train(run, islice(stream, run.progress.step, None), arguments)
    save(run.network, arguments.output, run.progress, arguments.data)
    print(json.dumps(asdict(run.progress)))


if __name__ == "__main__":
    main()
