"""The training loop: steps with the same bits for 1 to 8 ranks, and checkpoints.

Each rank has all parameters. A batch is computed in eight slices. Their gradients are added in
pairs, first within a rank and then between ranks, so that the order of the sum is fixed. Counts are
in the same buffer, so that all ranks get loss, variance, activity and requests to stop at once.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from featuremill.kit.errors import UserError
from featuremill.kit.files import replacing
from featuremill.kit.processes import INTERRUPTS
from featuremill.steps.autoencoders import network
from featuremill.steps.autoencoders.card import (
    CHECKPOINT,
    SLICES,
    Options,
    pairs_of,
    refuse_other,
    slices_of,
)
from featuremill.steps.autoencoders.ranks import Ranks
from featuremill.steps.autoencoders.vectors import Chosen, Order

LOG_STEPS, LEAST_STEPS, LINES = 100, 10, 20
"""The largest and smallest number of steps per line of training.jsonl, and the number of lines
between these limits."""
SAMPLE = 2**14
"""The number of vectors from which centre and scale are computed."""
DECAY = 0.2
"""The share of the steps, at the end, in which the learning rate falls to 0."""
WARM_UP = 0.02
"""The share of the steps, at the start, in which the learning rate rises."""
PENALTY_WARM_UP = 0.05
"""The share of the steps, at the start, in which the weight of a penalty rises (Anthropic's update
of April 2024 on training)."""
BETAS, EPSILON = (0.9, 0.999), 6.25e-10
"""The parameters of Adam (Gao et al. 2024, A.3)."""
MOMENTS = ("exp_avg", "exp_avg_sq")
SCALARS = ("squares", "error", "loss", "active", "stop")
"""Sums over a batch: squares of the centred vectors, squared error, loss, active features, and the
number of ranks with a request to stop."""


class Stopped(Exception):  # noqa: N818  (not an error: requested by the user)
    """All ranks stopped after the same step, and wrote its checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(number, step)
        self.number, self.step = number, step


class Buffers:
    """A flat buffer of the gradients and counts that ranks add up, with views of its parts."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        """`shapes` are those of the parameters."""
        width, num_features = shapes["W_enc"]
        shapes = {
            **shapes,
            "is_active": (num_features,),
            "sums": (width,),
            "scalars": (len(SCALARS),),
        }
        counts = [int(np.prod(shape)) for shape in shapes.values()]
        edges = np.cumsum([0, *counts]).tolist()
        self.flat = torch.zeros(edges[-1], device=device)
        self.parts = {
            name: self.flat[begin:end].view(shape)
            for (name, shape), (begin, end) in zip(shapes.items(), pairwise(edges), strict=True)
        }


class Window(NamedTuple):
    """Sums over the steps since the last line of training.jsonl."""

    sums_D: np.ndarray[Any, np.dtype[np.float64]]
    scalars: np.ndarray[Any, np.dtype[np.float64]]
    num_steps: int = 0

    def row(self, batch: int) -> dict[str, float]:
        """Return the means: loss per step, FVU and active features per vector."""
        squares, error, loss, active, _ = self.scalars.tolist()
        num = max(1, self.num_steps * batch)
        variance = squares - float(self.sums_D @ self.sums_D) / num
        return {
            "loss": loss / max(1, self.num_steps),
            "fvu": error / variance if variance > 0 else float("nan"),
            "l0": active / num,
        }


class Trainer:
    """Trains as one rank."""

    def __init__(self, options: Options, vectors: Chosen, width: int, ranks: Ranks) -> None:
        """Start at step 0."""
        self.options, self._vectors, self._ranks = options, vectors, ranks
        self._order = Order(len(vectors), options.seed)
        self.device = ranks.device
        self._buffers: list[Buffers] = []
        """The buffers, one for each level of the sum in pairs."""
        self._width = width
        self._received: Tensor | None = None
        self.step, self.seconds = 0, 0.0
        self._form = network.Form(options.kind, options.k or 0)
        self._shapes = network.sizes(width, options.features, options.kind)
        self.tensors = {
            name: torch.zeros(shape, device=self.device) for name, shape in self._shapes.items()
        }
        self.since_active = torch.zeros(options.features, dtype=torch.int32, device=self.device)
        self._optimizer = torch.optim.Adam(
            list(self.tensors.values()), options.learning_rate, BETAS, EPSILON, fused=True
        )
        for tensor in self.tensors.values():
            self._optimizer.state[tensor] = {
                "step": torch.zeros((), device=self.device),
                **{name: torch.zeros_like(tensor) for name in MOMENTS},
            }
        self._clear()
        self._stop_signal = 0

    def begin(self) -> None:
        """Initialise the parameters from the seed and the first vectors."""
        sample = self._vectors.take(self._order.vectors(0, min(SAMPLE, len(self._vectors))))
        center = sample.mean(0, dtype=np.float64)
        length = np.sqrt(np.einsum("nd,nd->n", sample, sample, dtype=np.float64)).mean()
        self.scale = float(np.sqrt(self._width) / length) if length > 0 else 1.0
        self._center = torch.from_numpy((center * self.scale).astype(np.float32)).to(self.device)
        with torch.no_grad():
            network.initialise(self.tensors, self.options.seed)
            self.tensors["b_dec"].copy_(self._center)

    def _clear(self) -> None:
        self.window = Window(np.zeros(self._width), np.zeros(len(SCALARS)))

    # ---- steps ----

    def run(self) -> Iterator[dict[str, Any] | None]:
        """Run all remaining steps; yield a line of training.jsonl, or None, after each step.

        Raises:
            Stopped: a rank got a request to stop, and all ranks have stopped.
        """
        steps = self.options.steps
        every = min(LOG_STEPS, max(LEAST_STEPS, steps // LINES))
        with self._signals(), ThreadPoolExecutor(1, "read") as reader:
            ahead = reader.submit(self._read, self.step, self._slices().start)
            while self.step < steps:
                begun = time.monotonic()
                for number in self._slices():
                    x_BD = ahead.result().to(self.device)
                    is_last = number + 1 == self._slices().stop
                    following = self._slices().start if is_last else number + 1
                    ahead = reader.submit(self._read, self.step + is_last, following)
                    self._add_slice(number, x_BD)
                self._update()
                self.seconds += time.monotonic() - begun
                yield self._row() if self.step % every == 0 or self.step == steps else None
                if self._buffers[0].parts["scalars"][-1] > 0:
                    raise Stopped(self._stop_signal or signal.SIGTERM, self.step)

    def _slices(self) -> range:
        return slices_of(self._ranks.number, self._ranks.count)

    def _read(self, step: int, number: int) -> Tensor:
        size = self.options.batch // SLICES
        places = self._order.vectors(step * self.options.batch + number * size, size)
        return torch.from_numpy(self._vectors.take(places)).mul_(self.scale)

    def _add_slice(self, number: int, x_BD: Tensor) -> None:
        """Add a slice's gradients and counts to those of earlier slices, in pairs of pairs: if one
        buffer has the sum of four slices, the second has the next two. Sums that need slices of
        other ranks keep a buffer each."""
        shares = pairs_of(self._slices())
        (before,) = (count for count, share in enumerate(shares) if number in share)
        within = number - shares[before].start
        level = before + bin(within & ~1).count("1")
        if level == len(self._buffers):
            self._buffers.append(Buffers(self._shapes, self.device))
        buffers = self._buffers[level]
        if within % 2 == 0:
            buffers.flat.zero_()
        self._backward(x_BD, buffers)
        if within % 2 == 0:
            return
        pairs = (within + 1) // 2
        while pairs % 2 == 0:
            level, pairs = level - 1, pairs // 2
            self._buffers[level].flat += self._buffers[level + 1].flat

    def _backward(self, x_BD: Tensor, buffers: Buffers) -> None:
        options, tensors = self.options, self.tensors
        for name, tensor in tensors.items():
            tensor.requires_grad_().grad = buffers.parts[name]
        num_numbers = options.batch * self._width
        is_dead_M = self.since_active >= options.dead_after
        num_dead = int(is_dead_M.sum())
        # Without autocast's cache, the gradients of two uses of a weight are added in fp32.
        kind, is_bf16 = x_BD.device.type, options.dtype == "bf16"
        with torch.autocast(kind, torch.bfloat16, is_bf16, cache_enabled=False):
            pre_BM = network.pre_activations(tensors, x_BD)
            z_BM, penalty = network.penalised(tensors, pre_BM, self._form, options.bandwidth or 1.0)
            error_BD = x_BD - network.rebuilt(tensors, z_BM).float()
            error = error_BD.square().sum()
            loss = error / num_numbers
            if penalty is not None:
                rising = (self.step + 1) / max(1.0, PENALTY_WARM_UP * options.steps)
                weight = (options.sparsity or 0.0) * min(1.0, rising)
                loss = loss + weight * penalty / num_numbers
            elif num_dead:
                left = network.auxiliary_error(
                    tensors, pre_BM, error_BD.detach(), is_dead_M, num_dead
                )
                loss = loss + network.AUXILIARY * left / num_numbers
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            centered = x_BD - self._center
            is_active = z_BM > 0
            buffers.parts["sums"] += centered.sum(0)
            buffers.parts["is_active"] += is_active.sum(0)
            stop = torch.tensor(float(self._stop_signal > 0), device=self.device)
            statistics = [centered.square().sum(), error, loss, is_active.sum(), stop]
            buffers.parts["scalars"] += torch.stack([number.float() for number in statistics])

    @torch.no_grad()
    def _update(self) -> None:
        """Add the buffers of all ranks, and update the parameters."""
        sums_of = self._buffers[0].parts
        if self._ranks.count > 1:
            if self._received is None:
                self._received = torch.empty_like(self._buffers[0].flat)
            self._ranks.add([buffers.flat for buffers in self._buffers], self._received)
        for name, tensor in self.tensors.items():
            tensor.grad = sums_of[name]
        weights_MD, gradient_MD = self.tensors["W_dec"], sums_of["W_dec"]
        # Remove the component that changes the length of a row, which stays 1 (Gao et al., A.3).
        along_M = torch.einsum("md,md->m", gradient_MD, weights_MD)
        gradient_MD.addcmul_(along_M[:, None], weights_MD, value=-1)
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.learning_rate * self._share_of_rate()
        self._optimizer.step()
        weights_MD /= torch.linalg.vector_norm(weights_MD, dim=1, keepdim=True)
        if "threshold" in self.tensors:  # below 0, features could be negative
            self.tensors["threshold"].clamp_(min=0.0)
        self.since_active += 1
        self.since_active[sums_of["is_active"] > 0] = 0
        self.step += 1
        sums, scalars = (sums_of[name].double().cpu().numpy() for name in ("sums", "scalars"))
        before = self.window
        self.window = Window(before.sums_D + sums, before.scalars + scalars, before.num_steps + 1)

    def _share_of_rate(self) -> float:
        steps = self.options.steps
        rising = (self.step + 1) / max(1.0, WARM_UP * steps)
        falling = (steps - self.step) / max(1.0, DECAY * steps)
        return min(1.0, rising, falling)

    def _row(self) -> dict[str, Any]:
        left = self.options.steps - self.step
        row = {
            "step": self.step,
            "steps": self.options.steps,
            **self.window.row(self.options.batch),
            "dead": float((self.since_active >= self.options.dead_after).double().mean()),
            "seconds": round(self.seconds, 3),
            "seconds_left": round(self.seconds / self.step * left, 3),
            "ranks": self._ranks.count,
        }
        self._clear()
        return row

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Record requests to stop, which take effect at the end of the step."""

        def note(number: int, _frame: FrameType | None) -> None:
            self._stop_signal = number

        before = {number: signal.getsignal(number) for number in INTERRUPTS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # ---- checkpoints ----

    def save(self, path: Path, identity: dict[str, Any]) -> None:
        """Write the checkpoint, from which a training resumes with the same values."""
        tensors = {name: tensor.detach() for name, tensor in self.tensors.items()}
        for name, tensor in self.tensors.items():
            state = self._optimizer.state[tensor]
            tensors |= {f"{moment}.{name}": state[moment] for moment in MOMENTS}
        tensors |= {"since_active": self.since_active, "center": self._center}
        tensors |= {
            "window.sums": torch.from_numpy(self.window.sums_D),
            "window.scalars": torch.from_numpy(self.window.scalars),
        }
        metadata = {
            "identity": identity,
            "step": self.step,
            "seconds": self.seconds,
            "scale": self.scale,
            "window_steps": self.window.num_steps,
        }
        with replacing(path) as temporary:
            save_file(tensors, temporary, {"featuremill": json.dumps(metadata)})

    def load(self, folder: Path, identity: dict[str, Any]) -> None:
        """Resume from the checkpoint in `folder`.

        Raises:
            UserError: the checkpoint belongs to another training, or cannot be read.
        """
        path = folder / CHECKPOINT
        metadata = metadata_of(path)
        refuse_other(folder, "checkpoint", metadata["identity"], identity)
        with safe_open(path, "pt") as file, torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(file.get_tensor(name))
                state = self._optimizer.state[tensor]
                state["step"].fill_(metadata["step"])
                for moment in MOMENTS:
                    state[moment].copy_(file.get_tensor(f"{moment}.{name}"))
            self.since_active.copy_(file.get_tensor("since_active"))
            self._center = file.get_tensor("center").to(self.device)
            sums, scalars = (file.get_tensor(f"window.{name}") for name in ("sums", "scalars"))
        self.window = Window(sums.numpy(), scalars.numpy(), metadata["window_steps"])
        self.step, self.seconds = metadata["step"], metadata["seconds"]
        self.scale = metadata["scale"]

    def finished(self) -> dict[str, Tensor]:
        """Return the parameters for the run's vectors, which the training scales."""
        scaled = ("b_enc", "b_dec", "threshold")
        return {
            name: (tensor.detach() / self.scale if name in scaled else tensor.detach()).cpu()
            for name, tensor in self.tensors.items()
        }


def metadata_of(path: Path) -> dict[str, Any]:
    """Return the metadata of the checkpoint at `path`.

    Raises:
        UserError: the file cannot be read, or has no metadata.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = json.loads((file.metadata() or {})["featuremill"])
            return {**metadata, "identity": dict(metadata["identity"])}
    except (KeyError, ValueError, TypeError, OSError, SafetensorError) as error:
        raise UserError(
            f"{path}: this is no checkpoint of a training; delete it to begin anew."
        ) from error
