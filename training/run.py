"""A training run: network, optimizers and progress, and the checkpoint that holds all three."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from batches import Batch, Cursor
from network import Network, Shape
from options import of_a_run, refuse
from shards import digest
from torch import Tensor
from torch.nn import functional


@dataclass
class Progress:
    """How far a run has come, over all its sessions."""

    cursor: Cursor = field(default_factory=Cursor)
    tokens: int = 0
    seconds: float = 0.0
    """Of the device: wall-clock on a GPU; on a CPU processor time divided by threads."""
    decay_from: int | None = None
    """The step at which the decay began; None before it."""
    decay_steps: int = 0

    def left(self) -> float:
        """Return the share of the decay that is left: 1 before it, 0 at the end."""
        if self.decay_from is None:
            return 1.0
        return max(0.0, 1 - (self.cursor.step - self.decay_from) / self.decay_steps)


class Clock:
    """Seconds of work: those in which a process only waits for a CPU do not count."""

    def __init__(self, device: torch.device) -> None:
        self.is_cpu = device.type == "cpu"
        self.began = self.read()

    def read(self) -> float:
        return time.process_time() / torch.get_num_threads() if self.is_cpu else time.monotonic()

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        before, self.began = self.began, self.read()
        return self.began - before


class Run:
    """A training run: network, optimizers and progress; its checkpoint holds all three."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device = torch.device(arguments.device)
        dtype = getattr(torch, arguments.dtype)
        self.network = Network(Shape(*arguments.shape), dtype, arguments.seed).to(self.device)
        self.forward = (
            torch.compile(self.network, dynamic=False) if arguments.compile else self.network
        )
        self.optimizers = optimizers(self.network, arguments)
        self.progress = Progress()
        self.options = of_a_run(arguments) | {"shards": digest(arguments.work / "shards")}
        self.state: Path = arguments.state or arguments.work / "run"
        self.state.mkdir(parents=True, exist_ok=True)

    def load(self, path: Path) -> None:
        """Take over a checkpoint; refuse one of other options or data."""
        saved = torch.load(path, weights_only=True, map_location=self.device)
        for name, value in self.options.items():
            if (begun := saved["options"][name]) != value:
                refuse(f"{path} is of a run with {name} {begun}, not {value}; name another --state")
        self.network.load_state_dict(saved["network"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        progress = saved["progress"]
        self.progress = Progress(**progress | {"cursor": Cursor(**progress["cursor"])})

    def save(self, name: str = "checkpoint.pt") -> None:
        saved = {
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": asdict(self.progress),
            "options": self.options,
        }
        partial = self.state / f"{name}.partial"
        torch.save(saved, partial)
        partial.replace(self.state / name)

    def length(self) -> int:
        """Return the length of rows: the first while there is no decay, then the rest in turn."""
        first, *rest = self.arguments.lengths
        if self.progress.decay_from is None or not rest:
            return first
        return rest[min(int((1 - self.progress.left()) * len(rest)), len(rest) - 1)]

    def rate(self) -> float:
        """Return the share of the peak learning rate at this step."""
        step = self.progress.cursor.step
        return min(1.0, (step + 1) / self.arguments.warmup, self.progress.left())

    def step(self, batch: Batch, cursor: Cursor) -> Tensor:
        """Make one optimizer step; return the mean cross-entropy, in nats per masked residue."""
        rate = self.rate()
        loss = self.loss(batch, self.forward)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * self.arguments.learning_rate
            optimizer.step()
            optimizer.zero_grad()
        self.progress.cursor = cursor
        self.progress.tokens += batch.tokens_BT.size
        return loss.detach()

    def loss(self, batch: Batch, network: Callable[..., Tensor]) -> Tensor:
        on_device = [torch.from_numpy(array).to(self.device) for array in batch]
        *inputs, targets_M = on_device
        return functional.cross_entropy(network(*inputs), targets_M)

    @torch.no_grad()
    def validate(self, batches: list[Batch]) -> float:
        """Return the mean cross-entropy over the validation batches; masks are all mask tokens."""
        known = [(batch.targets_M >= 0).sum() for batch in batches]
        losses = [self.loss(batch, self.network).item() for batch in batches]
        return float(np.average(losses, weights=known))


def optimizers(network: Network, arguments: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Return AdamW for everything, or Muon for the layers' matrices and AdamW for the rest."""
    named = dict(network.named_parameters())
    matrices = {name for name, p in named.items() if p.ndim == 2 and "embed" not in name}
    on_matrices = [p for name, p in named.items() if name in matrices]
    embedding = [named["embed_tokens.weight"]]
    vectors = [p for p in named.values() if p.ndim < 2]
    settings = {"lr": arguments.learning_rate, "weight_decay": arguments.weight_decay}
    adam = {"betas": (0.9, 0.98), "fused": True}
    flat = [{"params": embedding}, {"params": vectors, "weight_decay": 0.0}]
    if arguments.optimizer == "adamw":
        return [torch.optim.AdamW([{"params": on_matrices}, *flat], **settings, **adam)]
    muon = torch.optim.Muon(on_matrices, **settings, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(flat, **settings, **adam)]
