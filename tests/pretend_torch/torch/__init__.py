"""A pretend torch for tests of the doctor: as much of it as the doctor's children call.

PRETEND_TORCH (JSON) says what it is: `cuda` (the CUDA it was built for), `arch_list`, `missing`
(as if it were not installed), and by UUID what using a GPU comes to: `fails` (an error's text),
`hangs`, `crashes`. Nothing is computed.
"""

import json
import os
import signal
import time
from types import SimpleNamespace

_WORLD = {"cuda": "13.0", "arch_list": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_120"]}
_WORLD |= json.loads(os.environ.get("PRETEND_TORCH", "{}"))
_SECONDS_OF_WORK = 0.2
if _WORLD.get("missing"):
    raise ModuleNotFoundError("No module named 'torch'", name="torch")

__version__ = "2.13.0"
version = SimpleNamespace(cuda=_WORLD["cuda"])
bfloat16, float16, float32 = "bfloat16", "float16", "float32"


def set_num_threads(count):
    pass


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


def full(size, value, device, dtype):
    return ones(*size, device=device)


def _use():
    uuid = os.environ["CUDA_VISIBLE_DEVICES"]
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    if uuid in _WORLD.get("hangs", ()):
        time.sleep(60)
    if uuid in _WORLD.get("crashes", ()):
        os.kill(os.getpid(), signal.SIGSEGV)
    if uuid in _WORLD.get("fails", {}):
        raise RuntimeError(_WORLD["fails"][uuid])


cuda = SimpleNamespace(
    get_arch_list=lambda: _WORLD["arch_list"],
    get_device_capability=lambda index: (8, 0),
    get_device_properties=lambda index: SimpleNamespace(multi_processor_count=100),
    synchronize=lambda: time.sleep(_SECONDS_OF_WORK),
)
