"""A workload that does with torch what its makers warn of, where the option `where` says so.

"fork" there uses CUDA and then, in a forked child, once more; "cuda" asks for a GPU, whatever build
torch is. Where torch has no CUDA, its own check for forks (in Python) is told what its C code would
tell it: whether this process is a child of the one that began.
"""

import faulthandler
import multiprocessing
import os
import signal

from featuremill.inputs import proteins
from featuremill.workload import WorkloadOptions
from featuremill.workloads import composition
from featuremill.workloads.composition import (
    COST_UNIT,
    VERSION,
    batch_cost,
    cost,
    resolve,
    schema,
    weights,
)

__all__ = [
    "COST_UNIT",
    "VERSION",
    "batch_cost",
    "cost",
    "resolve",
    "schema",
    "weights",
]


class Options(WorkloadOptions):
    """What a test sets."""

    hydropathy: bool = True
    """As composition's."""
    where: str = ""
    """Where it does harm: load or prepare."""
    harm: str = "fork"
    """What it does: fork or cuda."""


def records(files, options):
    return proteins(files)


def load(options, devices, weights):
    import torch

    if torch.version.cuda:
        torch.cuda.init()
    else:
        first = os.getpid()
        torch.cuda._is_in_bad_fork = lambda: os.getpid() != first
    model = composition.load(options, devices, weights)
    if options.where == "load":
        _harm(options)
    return options, model


def prepare(model, payloads, batch_cost):
    options, values = model
    if options.where == "prepare":
        _harm(options)
    return composition.prepare(values, payloads, batch_cost)


def run(model, batch):
    return composition.run(model[1], batch)


def collect(model, result):
    return composition.collect(model[1], result)


def _harm(options):
    if options.harm == "cuda":
        _use_cuda()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(_use_cuda_in_a_child)


def _use_cuda_in_a_child():
    # Where the child of a process with CUDA's threads hangs, the job's log says at which line.
    faulthandler.register(signal.SIGALRM)
    signal.alarm(HANGING_SECONDS)
    _use_cuda()


HANGING_SECONDS = 5


def _use_cuda():
    import torch

    torch.zeros(1, device="cuda")
