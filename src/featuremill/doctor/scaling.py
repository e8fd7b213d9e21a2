"""A fixed piece of work on each device alone and on all at once: do they slow each other down?

`python -m featuremill.doctor.scaling cuda|cpu THREADS` is the child that does the work: a line
{"ready": …} once it is warm; then for each line on standard input, one {"seconds": …}.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from featuremill.base.errors import DeviceError, UserError
from featuremill.doctor.children import ChildError, end, manner_of_death, start
from featuremill.doctor.findings import Findings, Issue
from featuremill.doctor.gpus import Gpu
from featuremill.doctor.trial import environment_of
from featuremill.lease import Request, lease
from featuremill.lease.devices import BF16_CAPABILITY

LEASE_SECONDS = 10.0
"""How long to wait for the GPUs to be timed; the trials' memory may be in use for a moment."""
GOOD_SHARE = 0.9
"""Of N devices at once, this much of N counts as scaling."""
PRODUCTS = {"cuda": (2000, 4096), "cpu": (40, 1024)}
"""Number and width of the matrix products: some seconds on a GPU, and on one CPU thread."""


class _Child:
    """One process that works on one device."""

    def __init__(self, kind: str, uuid: str | None, threads: int, timeout: float) -> None:
        self._timeout = timeout
        self._pool = ThreadPoolExecutor(1)
        environment = environment_of(uuid)
        self.process = start("scaling", kind, str(threads), environment=environment)

    def start(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return its next line.

        Raises:
            ChildError: when it died or is silent.
        """
        assert self.process.stdout and self.process.stderr
        try:
            line = self._pool.submit(self.process.stdout.readline).result(self._timeout)
        except FutureTimeoutError:
            raise ChildError(f"no answer within {self._timeout:g} s") from None
        if not line:
            errors = self.process.stderr.read()
            raise ChildError(manner_of_death(self.process.wait(), errors))
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        end(self.process)
        self._pool.shutdown(wait=False)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


def timed(found: Findings, timeout: float) -> tuple[dict[str, Any] | None, list[Issue]]:
    """Time work on the devices that a run could have now; return what came of it, and issues."""
    free = [gpu for gpu in found.accessible if not found.busy_by(gpu)]
    try:
        if found.cpu_trial:
            told = time_cpu(found.host.num_processors, timeout)
        elif free:
            uuids = ",".join(gpu.uuid for gpu in free if gpu.uuid)
            wanted = Request(num_gpus=len(free), devices=uuids, wait_seconds=LEASE_SECONDS)
            with lease("cuda", wanted):
                told = time_gpus(free, timeout)
        else:
            return None, [
                Issue("note", "not-timed", "No GPU is free to be timed.", "Run it again later.")
            ]
    except (ChildError, DeviceError, UserError) as error:
        what = f"The timed work came to nothing: {str(error).rstrip('.')}."
        return None, [Issue("warning", "not-timed", what, "See the other issues; run it again.")]
    return told, list(issues(told))


def time_gpus(gpus: Sequence[Gpu], timeout: float) -> dict[str, Any]:
    """Return seconds of each GPU alone and with the others, and how many GPUs' work that is."""
    with _children([("cuda", gpu.uuid, 1) for gpu in gpus], timeout) as children:
        alone = [seconds for child in children for seconds in _timed([child])]
        together = _timed(children) if len(children) > 1 else alone
    speedup = sum(one / all_ for one, all_ in zip(alone, together, strict=True))
    names = [f"{gpu.label} ({gpu.name})" for gpu in gpus]
    rows = _rows(names, alone, together)
    if len(gpus) == 1:
        summary = f"Timed on one GPU: {alone[0]:.2f} s; there is no other to compare with."
    else:
        verdict = "they scale" if speedup >= GOOD_SHARE * len(gpus) else "they slow each other down"
        summary = f"All {len(gpus)} GPUs at once do the work of {speedup:.2f}: {verdict}."
    return {
        "unit": "gpu",
        "count": len(gpus),
        "speedup": round(speedup, 2),
        "summary": summary,
        "devices": rows,
    }


def time_cpu(num_processors: int, timeout: float) -> dict[str, Any]:
    """Return the seconds of the same kind of work on one thread and on all."""
    wanted = [("cpu", None, 1), ("cpu", None, num_processors)]
    with _children(wanted, timeout) as children:
        (one,), (all_,) = (_timed([child]) for child in children)
    speedup, load = one / all_, os.getloadavg()[0]
    blur = f" Others load this machine ({load:.1f}), which blurs it." if load > 1 else ""
    return {
        "unit": "cpu thread",
        "count": num_processors,
        "speedup": round(speedup, 2),
        "summary": f"Timed on the CPU, as no GPU can be used: {one:.2f} s with one thread, "
        f"{all_:.2f} s with {num_processors}: {speedup:.2f} times as fast.{blur}",
        "devices": [],
    }


def issues(timed: dict[str, Any]) -> Iterator[Issue]:
    """Yield an issue when GPUs slow each other down."""
    if timed["unit"] == "gpu" and timed["speedup"] < GOOD_SHARE * timed["count"]:
        yield Issue(
            "warning",
            "scales-badly",
            timed["summary"],
            "Look for heat, a shared power limit and other users while it runs: "
            "nvidia-smi -q -d PERFORMANCE,POWER; then run this again.",
        )


@contextlib.contextmanager
def _children(
    wanted: Sequence[tuple[str, str | None, int]], timeout: float
) -> Iterator[list[_Child]]:
    """Yield a warm child for each (kind, uuid, threads); none is left behind."""
    children: list[_Child] = []
    try:
        for kind, uuid, threads in wanted:
            children.append(_Child(kind, uuid, threads, timeout))
        for child in children:
            child.answer()
        yield children
    finally:
        for child in children:
            child.close()


def _timed(children: Sequence[_Child]) -> list[float]:
    for child in children:
        child.start()
    return [float(child.answer()["seconds"]) for child in children]


def _rows(names: list[str], alone: list[float], together: list[float]) -> list[dict[str, Any]]:
    return [
        {"name": name, "alone_seconds": round(one, 3), "together_seconds": round(all_, 3)}
        for name, one, all_ in zip(names, alone, together, strict=True)
    ]


def main(kind: str, threads: int) -> None:
    """Work whenever a line comes."""
    import torch

    torch.set_num_threads(threads)
    count, width = PRODUCTS[kind]
    dtype = torch.float32
    if kind == "cuda":
        is_new = torch.cuda.get_device_capability(0) >= BF16_CAPABILITY
        dtype = torch.bfloat16 if is_new else torch.float16
    factor = torch.full((width, width), 1 / width, device=kind, dtype=dtype)
    _work(torch, factor, max(1, count // 20))
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        began = time.monotonic()
        _work(torch, factor, count)
        print(json.dumps({"seconds": time.monotonic() - began}), flush=True)


def _work(torch: Any, factor: Any, count: int) -> None:
    product = factor
    for _ in range(count):
        product = product @ factor
    if factor.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
