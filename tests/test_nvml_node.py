"""The simulated node itself: real nvidia-ml-py reads what a test wrote, also while it changes."""

import contextlib
import json
import subprocess
import sys
import textwrap

import pytest
from nvml_node import Gpu, Slice
from programs import PATIENCE_SECONDS

READ = """
    import json, sys
    from pynvml import *
    nvmlInit()
    found = []
    for index in range(nvmlDeviceGetCount()):
        h = nvmlDeviceGetHandleByIndex(index)
        memory = nvmlDeviceGetMemoryInfo(h, nvmlMemory_v2)
        found.append([
            nvmlDeviceGetUUID(h), nvmlDeviceGetName(h), memory.total >> 20, memory.free >> 20,
            nvmlDeviceGetMemoryInfo(h).used >> 20, nvmlDeviceGetComputeMode(h),
            nvmlDeviceGetCudaComputeCapability(h), nvmlDeviceGetUtilizationRates(h).gpu,
            nvmlDeviceGetTemperature(h, NVML_TEMPERATURE_GPU), nvmlDeviceGetPciInfo(h).busId,
            [[p.pid, p.usedGpuMemory >> 20] for p in nvmlDeviceGetComputeRunningProcesses(h)],
        ])
    print(json.dumps([nvmlSystemGetDriverVersion(), found]))
"""


@pytest.fixture
def start():
    """Return a function that starts a process, which is gone and closed when the test ends."""
    with contextlib.ExitStack() as stack:

        def start(command, **more):
            process = stack.enter_context(subprocess.Popen(command, **more))
            stack.callback(process.kill)
            return process

        yield start


def ask(node, code, **more):
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=node.environment, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_pynvml_reads_what_the_test_wrote(gpu_node):
    node = gpu_node(
        Gpu(used_mb=100, more={"reserved": "600M"}),
        Gpu("GPU-x", "old", 11_000, 0, {1: 500}, 3, "6.1", busy=97, more={"temperature": 81}),
    )
    driver, (first, second) = ask(node, READ)
    assert driver == "580.65.06"
    assert first[:5] == [node.uuids[0], "Simulated GPU", 80_000, 79_300, 700]
    assert second == [
        *["GPU-x", "old", 11_000, 10_500, 500, 3, [6, 1], 97, 81, "00000000:11:00.0"],
        [[1, 500]],
    ]


def test_a_process_holds_memory_until_it_is_killed(gpu_node, start):
    node = gpu_node(1)
    process = start(["sleep", "100"])
    node.run_on(node.uuids[0], process.pid, 7000)
    assert ask(node, READ)[1][0][-1] == [[process.pid, 7000]]
    process.kill()
    process.wait()
    assert ask(node, READ)[1][0][3] == 80_000


def test_a_running_process_sees_a_device_get_lost(gpu_node, start):
    node = gpu_node(2)
    watch = """
        from pynvml import *
        nvmlInit()
        h = nvmlDeviceGetHandleByIndex(1)
        print(nvmlDeviceGetName(h), flush=True)
        input()
        for ask in (lambda: nvmlDeviceGetMemoryInfo(h), lambda: nvmlDeviceGetHandleByIndex(1)):
            try: ask()
            except NVMLError_GpuIsLost: print("lost")
        print(nvmlDeviceGetCount())
    """
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", textwrap.dedent(watch)]
    process = start(command, env=node.environment, text=True, stdin=pipe, stdout=pipe)
    assert process.stdout.readline() == "Simulated GPU\n"
    node.gpus[1].lost = True
    node.write()
    assert process.communicate("\n", timeout=PATIENCE_SECONDS)[0].split() == ["lost", "lost", "2"]


def test_slices_errors_and_a_missing_driver(gpu_node):
    node = gpu_node(
        Gpu(slices=[Slice("MIG-a"), Slice("MIG-b", 20_000, gpu_instance=2)]),
        Gpu(more={"error.nvmlDeviceGetMemoryInfo": 999}),
    )
    code = """
        import json
        from pynvml import *
        nvmlInit()
        h, found = nvmlDeviceGetHandleByIndex(0), []
        for index in range(nvmlDeviceGetMaxMigDeviceCount(h)):
            try: part = nvmlDeviceGetMigDeviceHandleByIndex(h, index)
            except NVMLError_NotFound: continue
            parent = nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
            found.append([nvmlDeviceGetUUID(part), nvmlDeviceGetMemoryInfo(part).total >> 20,
                          nvmlDeviceGetIndex(parent), nvmlDeviceGetGpuInstanceId(part)])
        for ask in (nvmlDeviceGetMemoryInfo, nvmlDeviceGetSerial):
            try: ask(nvmlDeviceGetHandleByIndex(1))
            except NVMLError as error: found.append(error.value)
        print(json.dumps(found))
    """
    assert ask(node, code) == [["MIG-a", 10_000, 0, 1], ["MIG-b", 20_000, 0, 2], 999, 13]
    node.system["init_error"] = 9
    node.write()
    started = """
        import pynvml
        try: pynvml.nvmlInit()
        except pynvml.NVMLError_DriverNotLoaded: print(9)
    """
    assert ask(node, started) == 9
