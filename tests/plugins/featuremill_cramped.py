"""ESM-2 in a process that may take only so much memory: then torch's own allocator really fails.

CRAMPED_MB is what computing may take on top of a loaded model that has run once.
"""

import os
import resource
from pathlib import Path

from featuremill.workloads import esm2
from featuremill.workloads.esm2 import (
    COST_UNIT,
    VERSION,
    Options,
    batch_cost,
    collect,
    cost,
    prepare,
    records,
    resolve,
    run,
    schema,
    weights,
)

__all__ = [
    "COST_UNIT",
    "VERSION",
    "Options",
    "batch_cost",
    "collect",
    "cost",
    "load",
    "prepare",
    "records",
    "resolve",
    "run",
    "schema",
    "weights",
]


def load(options, devices, weights):
    import torch

    torch.backends.mkldnn.set_flags(False)  # its code for a new shape takes memory, or it crashes
    model = esm2.load(options, devices, weights)
    if "CRAMPED_MB" not in os.environ:
        return model
    # What is made once (threads, kernels' work space) must not be a part of it.
    collect(model, run(model, prepare(model, [b"M" * 2000], 2002)))
    room = int(os.environ["CRAMPED_MB"]) * 2**20
    if devices[0].kind == "cuda":
        torch.cuda.empty_cache()
        most = torch.cuda.memory_reserved() + room
        torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1])
    else:
        status = Path("/proc/self/status").read_text()
        taken = 1024 * int(status.partition("VmSize:")[2].split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (taken + room, resource.RLIM_INFINITY))
    return model
