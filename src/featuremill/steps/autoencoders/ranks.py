"""The ranks of a training: start them by torchrun, add up tensors, report errors."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed

from featuremill.kit import environment
from featuremill.kit.errors import (
    DeviceError,
    IntegrityError,
    UserError,
    WorkloadError,
    error_text,
    is_device_error,
    is_out_of_memory,
)
from featuremill.kit.processes import INTERRUPTS, die_with_parent
from featuremill.steps.autoencoders import (
    LOCAL_RANK,
    RANK,
    TORCHELASTIC_ERROR_FILE,
    TORCHELASTIC_RUN_ID,
    WORLD_SIZE,
)
from featuremill.steps.autoencoders.card import SLICES, pairs_of, slices_of

LOST = 75
"""Exit status of a rank after another rank was lost; that rank has the reason."""
KINDS = {kind.exit_status: kind for kind in (UserError, DeviceError, IntegrityError)}
log = logging.getLogger("featuremill.sae")


class LostRank(Exception):  # noqa: N818
    """Another rank does not respond."""


class Ranks:
    """The rank of this process, the number of ranks, and the device."""

    def __init__(self, kind: str) -> None:
        """Connect to the other ranks of torchrun, if any; `kind` is cuda or cpu."""
        self.count, self.number, local = 1, 0, 0
        if is_rank():
            die_with_parent(os.getppid(), signal.SIGTERM)  # ranks would survive torchrun
            self.count = int(WORLD_SIZE.text() or 1)
            self.number = int(RANK.text() or 0)
            local = int(LOCAL_RANK.text() or 0)
        self.device = torch.device(kind, local) if kind == "cuda" else torch.device("cpu")
        if kind == "cuda":
            torch.cuda.set_device(self.device)
        if self.count > 1:
            distributed.init_process_group("nccl" if kind == "cuda" else "gloo")

    def add(self, own: Sequence[Tensor], buffer: Tensor) -> None:
        """Replace the first of `own` by the sum over all ranks. It is added in pairs, and has the
        same bits on every rank and for every number of ranks.

        `own` has at least one tensor for each range of `card.pairs_of` this rank's slices;
        `buffer` has the size of one tensor.

        Raises:
            LostRank: another rank does not respond.
        """
        if self.count & (self.count - 1) == 0:
            self._add_by_halves(own[0], buffer)
            return
        try:
            self._add_to_first(own, buffer, range(SLICES))
            self._share(own[0])
        except RuntimeError as error:
            raise LostRank(f"another rank is gone ({error_text(error)})") from error

    def _add_to_first(
        self, own: Sequence[Tensor], buffer: Tensor, slices: range
    ) -> tuple[int, int]:
        """Add up `slices` at the rank of the first; return the rank and its tensor's index."""
        rank = next(r for r in range(self.count) if slices.start in slices_of(r, self.count))
        shares = pairs_of(slices_of(rank, self.count))
        (number,) = (n for n, share in enumerate(shares) if slices.start in share)
        if slices.stop <= shares[number].stop:
            return rank, number
        middle = slices.start + len(slices) // 2
        self._add_to_first(own, buffer, range(slices.start, middle))
        other, index = self._add_to_first(own, buffer, range(middle, slices.stop))
        if self.number == rank:
            if other != rank:
                self._receive(buffer, other)
            own[number].add_(own[index] if other == rank else buffer)
        elif self.number == other:
            self._send(own[index], rank)
        return rank, number

    def _add_by_halves(self, own: Tensor, buffer: Tensor) -> None:
        """Add up the sums of 2, 4 or 8 ranks, which exchange them in pairs."""
        distance = 1
        while distance < self.count:
            peer = self.number ^ distance
            try:
                self._exchange(own, buffer, peer)
            except RuntimeError as error:
                raise LostRank(f"rank {peer} is gone ({error_text(error)})") from error
            own += buffer
            distance *= 2

    def _send(self, own: Tensor, rank: int) -> None:
        distributed.send(own, rank)

    def _receive(self, buffer: Tensor, rank: int) -> None:
        distributed.recv(buffer, rank)

    def _share(self, own: Tensor) -> None:
        """Replace `own` by the tensor of the first rank."""
        distributed.broadcast(own, 0)

    def _exchange(self, own: Tensor, buffer: Tensor, rank: int) -> None:
        orders = [
            distributed.P2POp(distributed.isend, own, rank),
            distributed.P2POp(distributed.irecv, buffer, rank),
        ]
        for order in distributed.batch_isend_irecv(orders):
            order.wait()

    def close(self) -> None:
        """Disconnect from the other ranks."""
        if self.count > 1:
            distributed.destroy_process_group()


def is_rank() -> bool:
    """Return whether torchrun started this process as a rank."""
    return TORCHELASTIC_RUN_ID.text() is not None


def leave(error: Exception) -> NoReturn:
    """End this rank with the status of `error`; the parent process prints the message."""
    status = getattr(error, "exit_status", 1)
    message = str(error)
    if isinstance(error, LostRank):
        status = LOST
    elif not hasattr(error, "exit_status"):
        log.debug("the traceback", exc_info=error)
        if is_of_device(error):
            status = DeviceError.exit_status
        message = f"{type(error).__name__}: {error_text(error)}"
    if path := TORCHELASTIC_ERROR_FILE.text():
        failure = {"message": message, "timestamp": int(time.time())}
        with suppress(OSError):
            Path(path).write_text(json.dumps(failure), "utf-8")
    else:
        log.error("%s", message)
    raise SystemExit(status)


def is_of_device(error: Exception) -> bool:
    """Return whether a device failed, or its memory ran out."""
    return is_device_error(error) or is_out_of_memory(error)


def start(count: int, words: Sequence[str], threads: int, output: Path) -> None:
    """Start `count` ranks of `featuremill` with these `words` by torchrun, and wait for them.

    Raises:
        UserError, DeviceError, IntegrityError, WorkloadError: the error of the first rank that
            failed.
        SystemExit: a signal stopped the ranks.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    for name in ("torch.distributed.elastic", "torch.distributed.run"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    environment.OMP_NUM_THREADS.set(str(threads))
    options = ["--standalone", "--nproc-per-node", str(count), "--no-python"]
    command = [*options, sys.executable, "-m", "featuremill", *words]
    try:
        torchrun.run(torchrun.parse_args(command))  # type: ignore[no-untyped-call]
    except SignalException as stopped:
        raise SystemExit(128 + stopped.sigval) from None
    except ChildFailedError as failed:
        raise _why(failed.failures, count, output) from None


def _why(failures: dict[int, Any], count: int, output: Path) -> BaseException:
    """Return the error of the rank that failed first; killed ranks report none."""

    def order(rank: int) -> tuple[bool, bool, int]:
        status = failures[rank].exitcode
        return status >= 0, status == LOST, failures[rank].timestamp

    rank = min(failures, key=order)
    status, message = failures[rank].exitcode, failures[rank].message
    kept = f"continue from {output} with the same command, with another --gpus if need be"
    if status < 0:
        name = signal.Signals(-status).name
        return WorkloadError(
            f"rank {rank} of {count} was killed ({name}), which ended the others, too; {kept}."
        )
    if status in (UserError.exit_status, IntegrityError.exit_status):
        return KINDS[status](message)
    if status - 128 in INTERRUPTS:
        return SystemExit(status)
    kind = KINDS.get(status, WorkloadError)
    message = message.rstrip(".")
    return kind(f"rank {rank} of {count} failed ({message}), which ended the others, too; {kept}.")
