"""Which devices there are, and who may use one: masks, choices, locks."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT

from featuremill.devices import Device, _visible, cpu, devices_for
from featuremill.errors import UserError
from featuremill.lease import lease

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
    assert [device.number for device in _visible(GPUS, mask)] == expected


def test_the_cpu_is_a_device_of_its_own():
    assert devices_for("cpu") == [cpu()]
    assert cpu().name


def test_asking_for_a_gpu_where_none_is_visible_is_an_error(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="no NVIDIA GPU is visible here"):
        devices_for("cuda")
    assert devices_for("auto") == [cpu()]


HOLDER = """
    import sys, time
    from featuremill.devices import Device
    from featuremill.lease import lease
    with lease([Device("cuda", name, "pretend", True) for name in sys.argv[1:]]) as held:
        print(held.device.uuid, flush=True)
        time.sleep(60)
"""


def hold(*uuids, folder):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), *uuids],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_jobs_never_share_a_device_and_a_killed_one_frees_its_own(tmp_path, monkeypatch):
    holders = [hold("x", "y", folder=tmp_path) for _ in range(2)]
    uuids = [holder.stdout.readline().strip() for holder in holders]
    assert sorted(uuids) == ["x", "y"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    holders[0].send_signal(signal.SIGKILL)
    with lease([Device("cuda", name, "pretend", True) for name in ("x", "y")]) as held:
        assert held.device.uuid == uuids[0]
        assert held.descriptor is not None
    for holder in holders:
        holder.kill()
        holder.communicate()


def test_a_cpu_needs_no_lock():
    with lease([cpu()]) as first, lease([cpu()]) as second:
        assert first == second == (cpu(), None)
