"""A simulated GPU node: real nvidia-ml-py in real child processes, talking to the pretend
libnvidia-ml.so.1 of tests/nvml, which reads the node's state from a file that tests rewrite.

    def test_it(gpu_node):
        node = gpu_node(Gpu(), Gpu(name="small", total_mb=24_000))    # or gpu_node(4)
        subprocess.run([...], env=node.environment)
        node.gpus[1].lost = True
        node.write()
"""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "nvml"
CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
NOT_TAKEN_OVER = (*CUDA_VARIABLES, "PYTHONPATH")
"""What a user's shell says of GPUs, and of Python: that is for the fixture `environment` to say."""
LINE = "{}={}\n".format


@dataclass
class Slice:
    """A MIG slice."""

    uuid: str
    total_mb: int = 10_000
    used_mb: int = 0
    gpu_instance: int = 1

    def text(self):
        lines = [LINE("uuid", self.uuid), LINE("gpu_instance", self.gpu_instance)]
        lines += [LINE("total", f"{self.total_mb}M"), LINE("used", f"{self.used_mb}M")]
        return "[mig]\n" + "".join(lines)


@dataclass
class Gpu:
    """One simulated GPU; what an empty `uuid` stands for is `GPU-<index>…`."""

    uuid: str = ""
    name: str = "Simulated GPU"
    total_mb: int = 80_000
    used_mb: int = 0
    """Memory in use by nobody who is listed."""
    processes: dict[int, int] = field(default_factory=dict)
    """Listed compute processes: pid, and MB that it holds."""
    compute_mode: int = 0
    """0 default, 2 prohibited, 3 exclusive process."""
    capability: str = "8.0"
    lost: bool = False
    error: int = 0
    """The code that every NVML call on the device answers with."""
    busy: int = 0
    """Utilisation in per cent."""
    slices: list[Slice] = field(default_factory=list)
    """With any, the device is in MIG mode."""
    more: dict[str, object] = field(default_factory=dict)
    """Other keys of the state file; nvml/node.c lists them."""
    graphics: dict[int, int] = field(default_factory=dict)
    """Listed processes that draw, as `processes` has those that compute."""

    def text(self):
        values = {
            "uuid": self.uuid,
            "name": self.name,
            "total": f"{self.total_mb}M",
            "used": f"{self.used_mb}M",
            "mode": self.compute_mode,
            "capability": self.capability,
            "lost": int(self.lost),
            "error": self.error,
            "busy": self.busy,
            "mig": int(bool(self.slices)),
            **self.more,
        }
        lines = [LINE(key, value) for key, value in values.items()]
        lines += [LINE("process", f"{pid}:{mb}M") for pid, mb in self.processes.items()]
        lines += [LINE("graphics", f"{pid}:{mb}M") for pid, mb in self.graphics.items()]
        return "[gpu]\n" + "".join(lines) + "".join(part.text() for part in self.slices)


def uuid(index):
    """Return the UUID of the GPU with this index, when the test names none."""
    return f"GPU-{index:x}{index:x}000000-0000-0000-0000-{index:012}"


def gpu_name(index):
    """Return what that GPU is called on every screen and page."""
    return f"GPU {index} ({uuid(index)[4:8]})"


class Node:
    """The node's state, and the environment in which child processes see it."""

    def __init__(self, folder, library, gpus):
        self.gpus = gpus
        self.system = {"driver": "580.65.06", "cuda": 13000}
        """Keys of the state file about the node: driver, cuda, init_error, delay_ms."""
        self.locks = folder / "locks"
        self._state = folder / "gpus.txt"
        self._processes = folder / "processes"
        self.environment = {k: v for k, v in os.environ.items() if k not in NOT_TAKEN_OVER} | {
            "LD_LIBRARY_PATH": str(library),
            "SIMULATED_NVML_STATE": str(self._state),
            "SIMULATED_NVML_PROCESSES": str(self._processes),
            "FEATUREMILL_LEASE_FOLDER": str(self.locks),
        }
        self.write()

    @property
    def uuids(self):
        return [gpu.uuid for gpu in self.gpus]

    def write(self):
        """Let every process see the state as it is here now."""
        for index, gpu in enumerate(self.gpus):
            gpu.uuid = gpu.uuid or uuid(index)
        text = "".join(LINE(*item) for item in self.system.items())
        new = self._state.with_suffix(".new")
        new.write_text(text + "".join(gpu.text() for gpu in self.gpus))
        new.rename(self._state)

    def change(self, index, **facts):
        """Let every process see other facts of a GPU."""
        vars(self.gpus[index]).update(facts)
        self.write()

    def run_on(self, device, pid, mb=1000):
        """Let process `pid` hold memory on the device with this UUID for as long as it lives."""
        file = self._processes / device / str(pid)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{mb}M")


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """Build the pretend libnvidia-ml.so.1 once; return its folder."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("needs a C compiler (cc: install gcc) to build the simulated NVML")
    folder = tmp_path_factory.mktemp("nvml")
    folder.chmod(0o755)
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    flags.append(f"-Wl,-soname,{library.name}")  # where it is loaded, it is what that name means
    sources = [str(SOURCES / name) for name in ("node.c", "nvml.c")]
    subprocess.run([compiler, *flags, "-o", str(library), *sources, "-lpthread"], check=True)
    return folder


@pytest.fixture
def gpu_node(nvml_library, tmp_path_factory):
    """Return a function that makes a node of so many GPUs, or of the given ones."""

    def make(*gpus):
        if len(gpus) == 1 and isinstance(gpus[0], int):
            gpus = [Gpu() for _ in range(gpus[0])]
        return Node(tmp_path_factory.mktemp("node"), nvml_library, list(gpus))

    return make
