"""A pretend torch for tests of the doctor: as much of it as the doctor's children call.

PRETEND_TORCH (JSON) says what it is: `cuda` (the CUDA it was built for), `arch_list`, `missing`
(as if it were not installed), `version`, and by UUID what using a GPU comes to: `fails` (an error's
text), `hangs`, `crashes`. Nothing is computed. What ESM-2's operations come to there is `check` (an
error's text, or "crashes"), and why they stepped down, `why`.

Who hangs says so with a file in the folder `hung`, named by its process id.
"""

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

_WORLD = {"cuda": "13.0", "arch_list": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_120"]}
_WORLD |= json.loads(os.environ.get("PRETEND_TORCH", "{}"))
if _WORLD.get("missing"):
    raise ModuleNotFoundError("No module named 'torch'", name="torch")

__version__ = _WORLD.get("version", "2.13.0")
version = SimpleNamespace(cuda=_WORLD["cuda"])


class OutOfMemoryError(RuntimeError):
    pass


def _ways(device, weights, *_):
    metadata = weights.metadata if weights else {"embed_dim": "1280", "attention_heads": "20"}
    head_width = int(metadata["embed_dim"]) // int(metadata["attention_heads"])
    uuid = os.environ["CUDA_VISIBLE_DEVICES"]
    comes_to = _WORLD.get("check", {}).get(uuid)
    if comes_to == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if comes_to:
        raise RuntimeError(comes_to)
    for why in _WORLD.get("why", {}).get(uuid, []):
        logging.getLogger("featuremill.workloads.esm2").warning(why)
    return "bf16", f"heads of {head_width}", "torch", "triton 3"


sys.modules["featuremill.workloads.esm2.fallbacks"] = SimpleNamespace(ways=_ways)


class _Ones:
    """A matrix of ones, or the product of two."""

    def __init__(self, size, device, value=1):
        self.size, self.value, self.device = size, value, SimpleNamespace(type=device)

    def __matmul__(self, other):
        return _Ones(self.size, self.device.type, self.size[0])

    def sum(self):
        return self.value * self.size[0] * self.size[1]

    def __getitem__(self, index):
        return 1.0


def ones(*size, device):
    if device == "cuda":
        _use()
    return _Ones(size, device)


def _use():
    uuid = os.environ["CUDA_VISIBLE_DEVICES"]
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    if not _WORLD["cuda"]:
        raise AssertionError("Torch not compiled with CUDA enabled")
    if uuid in _WORLD.get("hangs", ()):
        if "hung" in _WORLD:
            (Path(_WORLD["hung"]) / str(os.getpid())).touch()
        time.sleep(60)
    if uuid in _WORLD.get("crashes", ()):
        os.kill(os.getpid(), signal.SIGSEGV)
    if uuid in _WORLD.get("fails", {}):
        text = _WORLD["fails"][uuid]
        raise (OutOfMemoryError if "out of memory" in text else RuntimeError)(text)


cuda = SimpleNamespace(
    get_arch_list=lambda: _WORLD["arch_list"],
    get_device_capability=lambda index: (8, 0),
    get_device_name=lambda index: "pretend",
    get_device_properties=lambda index: SimpleNamespace(multi_processor_count=100),
)
