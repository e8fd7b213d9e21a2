"""ahead: what a load needs is made while torch is imported, and its failures hurt nothing."""

import ctypes
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from featuremill.base.devices import Device
from featuremill.extract import worker
from featuremill.workload import find_workload, loading, workloads
from featuremill.workloads.esm2 import triton_cache

CPU = [Device("cpu", "cpu", "a CPU", False)]
GPUS = [Device("cuda", f"GPU-{number}", "a GPU", True, number) for number in (0, 1)]
OF_TRITON = ("contacts", "esm2", "esmc", "scores")
OF_TORCH = ("encoder", "geneformer", "llm_json", "pac", *OF_TRITON)


class Driver:
    """CUDA's, which keeps what it is asked for."""

    def __init__(self, path):
        assert path == "libcuda.so.1"
        self.asked = made.setdefault(threading.current_thread().name, [])

    def cuInit(self, flags):  # noqa: N802
        self.asked.append("init")
        return 0

    def cuDeviceGet(self, number, place):  # noqa: N802
        number._obj.value = place
        return 0

    def cuDevicePrimaryCtxRetain(self, context, number):  # noqa: N802
        self.asked.append(number.value)
        return 2 if number.value == 0 else 0  # out of memory: torch will say so


made = {}


@pytest.fixture
def driver(monkeypatch):
    made.clear()
    monkeypatch.setattr(ctypes, "CDLL", Driver)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


@pytest.fixture
def keys(monkeypatch):
    """A Triton whose key takes until the event is set; the list has each time it was asked."""
    event, asked = threading.Event(), []

    def triton_key():
        assert event.wait(60)
        asked.append(threading.current_thread().name)

    cache = ModuleType("triton.runtime.cache")
    cache.triton_key = triton_key
    for name in ("triton", "triton.runtime"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, cache.__name__, cache)
    monkeypatch.delenv("FEATUREMILL_CACHE", raising=False)
    return SimpleNamespace(event=event, asked=asked)


@pytest.mark.parametrize("name", [name for name in workloads() if not name.startswith("_")])
def test_workloads_of_torch_get_their_contexts_and_those_with_kernels_their_key(driver, keys, name):
    keys.event.set()
    worker.prepare_load(find_workload(name), CPU)
    assert not made and not keys.asked, "a job on a CPU needs neither"
    worker.prepare_load(find_workload(name), GPUS)
    for part in ("CUDA", "triton"):
        loading.wait_for(part)
    assert made == ({"CUDA": ["init", 0, 1]} if name in OF_TORCH else {})
    assert keys.asked == (["triton"] if name in OF_TRITON else [])


def test_a_machine_without_a_driver_or_triton_meets_that_in_its_load_and_not_here(monkeypatch):
    def refuse(path):
        raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setitem(sys.modules, "triton.runtime.cache", None)
    worker.prepare_load(find_workload("esm2"), GPUS)
    for part in ("CUDA", "triton"):
        loading.wait_for(part)


def test_the_first_kernel_waits_for_the_key_that_is_being_computed(keys):
    triton_cache.start_ahead()
    waiting = threading.Thread(target=triton_cache.wait_for_key)
    waiting.start()
    assert not keys.asked and waiting.is_alive()
    keys.event.set()
    waiting.join(60)
    assert keys.asked == ["triton"], "computed once"


def test_the_installed_triton_keeps_its_key():
    """What is computed ahead is of use because Triton asks for it by this name and keeps it."""
    cache = pytest.importorskip("triton.runtime.cache")
    assert callable(cache.triton_key.cache_info)


def test_the_weights_are_read_to_their_end(tmp_path, monkeypatch):
    (tmp_path / "weights").write_bytes(bytes(10_000))
    monkeypatch.setattr(worker, "PIECE_BYTES", 4096)
    sent, send = [], worker.os.sendfile
    monkeypatch.setattr(worker.os, "sendfile", lambda *a: sent.append(send(*a)) or sent[-1])
    worker.start_reading(tmp_path / "weights")
    loading.wait_for("weights")
    assert sum(sent) == 10_000
    worker.start_reading(tmp_path)  # a folder may hold the same weights twice
    worker.start_reading(tmp_path / "nowhere")
    monkeypatch.setattr(worker, "MOST_OF_MEMORY", 0.0)
    worker.start_reading(tmp_path / "weights")
    loading.wait_for("weights")
    assert sum(sent) == 10_000


def test_the_clock_of_a_load_has_each_part_once(monkeypatch):
    monkeypatch.setattr(loading, "_seconds", {})
    loading.at("attention by FA3 (FEATUREMILL_WITHOUT=FA3 continues without)")
    loading.at("attention by FA3 (FEATUREMILL_WITHOUT=FA3 continues without)")
    loading.at("")
    with pytest.raises(ValueError), loading.part("weights"):
        raise ValueError
    with loading.part("weights"):
        pass
    loading.beside("CUDA", lambda: None)
    loading.wait_for("CUDA")
    assert set(loading.parts()) == {"attention by FA3", "weights", "beside: CUDA"}
