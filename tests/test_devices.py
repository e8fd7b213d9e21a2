"""Which devices there are, and which of them are visible. Who may use one: test_lease.py."""

import json

import pytest
from leases import Leases
from nvml_node import Gpu, Slice

from featuremill.base.devices import Device, cpu, devices_for
from featuremill.base.errors import UserError
from featuremill.lease import devices, lease
from featuremill.lease.devices import visible

GPUS = [Device("cuda", f"GPU-{letter}000", "pretend", True, n) for n, letter in enumerate("abcd")]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2", [2]),
        ("3, 0", [3, 0]),
        ("GPU-c", [2]),
        ("GPU-b000,1", [1, 1]),
        ("GPU-", []),
        ("0,7,1", [0]),
    ],
)
def test_masks_are_read_as_cuda_reads_them(mask, expected):
    assert [device.number for device in visible(GPUS, mask)] == expected


def test_the_cpu_is_a_device_of_its_own():
    assert devices_for("cpu") == [cpu()]
    assert cpu().name


@pytest.mark.parametrize(("told", "name"), [("model name\t: Six 80\n", "Six 80"), ("", "asked")])
def test_another_process_is_asked_only_for_a_name_that_is_not_told(
    tmp_path, monkeypatch, told, name
):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{told}flags\t\t: fpu amx_bf16\n")
    monkeypatch.setattr(devices, "Path", lambda _: tmp_path / "cpuinfo")
    asked = []
    monkeypatch.setattr(devices.platform, "processor", lambda: asked.append(1) or "asked")
    found = devices.cpu()
    assert (found.name, found.has_bf16, len(asked)) == (name, True, int(not told))


def test_asking_for_a_gpu_where_none_is_visible_is_an_error(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="no NVIDIA GPU is visible here"):
        devices_for("cuda")
    assert devices_for("auto") == [cpu()]


def test_a_cpu_needs_no_lock():
    with lease("cpu") as first, lease("cpu") as second:
        assert first.devices == second.devices == (cpu(),)
        assert first.descriptors == ()


ASK = """
    import json
    from featuremill.base import devices
    print(json.dumps([[d._asdict() for d in f()] for f in (devices.survey, devices.cuda_devices)]))
"""


def test_broken_devices_are_told_apart_and_slices_stand_for_their_gpu(gpu_node, environment):
    slices = [Slice("MIG-a"), Slice("MIG-b", 20_000, gpu_instance=2)]
    old = Gpu(name="old", capability="7.5", total_mb=11_000)
    node = gpu_node(Gpu(lost=True), old, Gpu(slices=slices), Gpu(error=999))
    out, _ = Leases(node, environment).python(ASK).communicate(timeout=30)
    everything, usable = json.loads(out)
    assert [d["problem"] for d in everything] == ["GPU is lost", "", "", "", "Unknown Error"]
    assert [d["number"] for d in everything] == [0, 1, 2, 2, 3]
    assert [(d["uuid"], d["memory_mb"], d["has_bf16"]) for d in usable] == [
        (node.uuids[1], 11_000, False),
        ("MIG-a", 10_000, True),
        ("MIG-b", 20_000, True),
    ]


@pytest.mark.parametrize(
    ("mask", "of_run", "seen"),
    [("", "all", [0, 1]), ("", "1", [1]), ("0", "all", [0]), ("", "", []), ("-1", "all", [])],
)
def test_a_plan_sees_the_gpus_of_its_run_where_its_own_are_hidden(
    gpu_node, environment, mask, of_run, seen
):
    variables = {"CUDA_VISIBLE_DEVICES": mask, "FEATUREMILL_RUN_SEES": of_run}
    leases = Leases(gpu_node(2), environment)
    out, _ = leases.python(ASK, variables=variables).communicate(timeout=30)
    assert [device["number"] for device in json.loads(out)[1]] == seen
