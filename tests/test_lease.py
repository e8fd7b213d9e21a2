"""lease: real processes, real locks, and nvidia-ml-py on a simulated node."""

import contextlib
import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import psutil
import pytest
from leases import NOBODY, Leases, end, for_all_users, kill
from nvml_node import Gpu, Slice, gpu_name
from programs import PATIENCE_SECONDS, wait_for

from featuremill.base.devices import Device
from featuremill.lease import condition, folder, slots, turnstile
from featuremill.lease.acquire import Lease
from featuremill.lease.choice import Chooser
from featuremill.lease.condition import Condition
from featuremill.lease.environment import Policy
from featuremill.lease.errors import UserError
from featuremill.lease.request import Request

HELD = "1 GPU did not become free in 0 s"


def who(pid):
    """Return a process as messages name it: by number, user and program."""
    process = psutil.Process(pid)
    return f"process {pid} ({process.username()}: {process.name()})"


@pytest.fixture
def node_of(request, gpu_node, environment):
    """Return a function that makes a node and a starter of leases on it."""

    def make(*gpus):
        leases = Leases(gpu_node(*gpus), environment)
        request.addfinalizer(leases.end_all)
        return leases

    return make


def test_the_command_takes_the_place_of_the_lease(node_of):
    leases = node_of(4)
    script = 'echo $$ $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER "$@"; kill -TERM $$'
    words = ["--list", "--", "a b", "--gpus"]
    process = leases.start("--gpus", 2, run=["sh", "-c", script, "sh", *words])
    out, _ = process.communicate()
    pid, names, order, rest = out.strip().split(" ", 3)
    assert int(pid) == process.pid
    assert names == ",".join(leases.node.uuids[:2])
    assert (order, rest) == ("PCI_BUS_ID", "--list -- a b --gpus")
    assert process.returncode == -signal.SIGTERM
    assert leases("--gpus", 0, "--index-mode")[0] == "2", "the one that rested longest"
    assert leases(run=["sh", "-c", "exit 7"], status=7)
    assert "nonesuch: No such file" in leases(run=["nonesuch"], status=127)[1]
    # Python ignores SIGPIPE; a command must not. What else is ignored came from outside and stays.
    ignored = int(leases(run=["grep", "SigIgn", "/proc/self/status"])[0].split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))


def test_a_whole_device_and_parts_of_it_exclude_each_other(node_of):
    leases = node_of(1)
    half = ("--slots-per-gpu", 2)
    whole = leases.hold()
    assert HELD in leases("--wait", 0, *half, status=3)[1]
    end(whole)
    first, second = leases.hold(*half), leases.hold(*half)
    assert first.holds == second.holds == leases.node.uuids[0]
    for other in ((), half, ("--slots-per-gpu", 4)):
        said = leases("--wait", 0, *other, status=3)[1]
        assert HELD in said and f"process {first.pid} (" in said
    kill(first)
    assert "held by" in leases("--wait", 0, "--slots-per-gpu", 4, status=3)[1]
    end(leases.hold(*half, "--wait", 0))
    end(second)
    end(leases.hold("--wait", 0))


RING = """
    import sys
    from featuremill.lease import Request, lease
    request = Request(num_gpus=2, devices=sys.argv[1])
    for _ in range(20):
        with lease("cuda", request) as held:
            assert sorted(str(d.number) for d in held.devices) == sorted(sys.argv[1].split(","))
"""


def test_overlapping_wants_never_deadlock(node_of):
    leases = node_of(3)
    for process in [leases.python(RING, wants) for wants in ("0,1", "1,2", "2,0") * 2]:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, err


def test_first_come_first_served_without_backfill(node_of, tmp_path):
    leases = node_of(2)
    order = tmp_path / "order"
    wants = [1, 2, 1, 1, 2, 1, 2, 2, 1, 1]
    holder = leases.hold("--devices", "0")
    both = leases.queue("--gpus", 2, run=["sh", "-c", f"echo both >> {order}"])
    queue = [
        leases.queue("--gpus", n, run=["sh", "-c", f"echo {place} >> {order}; sleep 0.05"])
        for place, n in enumerate(wants)
    ]
    assert "others came first" in leases("--wait", 0, status=3)[1], "although GPU 1 is free"
    assert not order.exists()
    queue[3].kill()
    end(holder)
    for process in [both, *queue]:
        process.communicate(timeout=PATIENCE_SECONDS)
    served = order.read_text().split()
    assert served[0] == "both"
    # Two that want one each run at once, so they may write in either order.
    expected = [["0"], ["1"], ["2"], ["4"], ["5"], ["6"], ["7"], ["8", "9"]]
    at = 1
    for group in expected:
        assert sorted(served[at : at + len(group)]) == group, served
        at += len(group)


STOPPED = """
    import signal, sys
    from featuremill.lease import lease
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with lease("cuda"): pass
    finally:
        print("left")
"""


def test_a_waiter_that_dies_or_gives_up_leaves_no_gap(node_of):
    leases = node_of(1)
    holder = leases.hold()
    first = leases.queue()
    stopped = leases.python(STOPPED)
    wait_for(lambda: leases.num_drawn() == 3)
    impatient = leases.queue("--wait", 0.6)
    last = leases.queue()
    _, err = impatient.communicate(timeout=PATIENCE_SECONDS)
    assert impatient.returncode == 3 and "others came first and still wait" in err
    stopped.terminate()
    out, err = stopped.communicate(timeout=PATIENCE_SECONDS)
    assert (stopped.returncode, out, err) == (143, "left\n", "")
    first.kill()
    end(holder)
    assert last.wait(PATIENCE_SECONDS) == 0


SAY = """
    import logging, sys
    from featuremill.lease import Request, acquire, lease
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    acquire.SAY_SECONDS = 0.2
    with lease("cuda", Request(num_gpus=int(sys.argv[1]))): pass
"""


def test_who_waits_says_for_what_again_and_again(node_of):
    leases = node_of(3)
    leases.is_forked = False
    holder = leases.hold("--devices", "1")
    leases.node.run_on(leases.node.uuids[2], os.getpid())
    head = leases.python(SAY, "3")
    wait_for(lambda: leases.num_drawn() == 2)
    second = leases.python(SAY, "1")
    for process, what in (
        (head, f"waiting for 3 GPUs (GPU 1 (1100): held by {who(holder.pid)[:-1]} -c "),
        (second, "others came"),
    ):
        lines = [process.stderr.readline() for _ in range(3)]
        assert all(what in line for line in lines), lines
    assert f"GPU 2 (2200): used by process {os.getpid()} (" in head.stderr.readline()
    end(holder)


def test_who_waits_behind_a_stopped_process_hears_of_it(node_of):
    leases = node_of(2)
    leases.hold("--devices", 0)
    stopped = leases.queue("--devices", 0)
    wait_for(lambda: "held by" in stopped.stderr.readline())
    os.kill(stopped.pid, signal.SIGSTOP)
    behind = leases.start("--devices", 1)
    said = behind.stderr.readline()
    assert f"others came first; process {stopped.pid} (" in said
    assert ") is stopped: continue or end it" in said
    os.kill(stopped.pid, signal.SIGCONT)


def test_children_keep_a_lease_on_purpose_only(node_of):
    leases = node_of(1)
    child = int(leases(run=["sh", "-c", "sleep 50 >/dev/null 2>&1 & echo $!"])[0])
    assert HELD in leases("--wait", 0, status=3)[1], "the child may hold the device's memory"
    heading, row = leases.list()
    assert " ".join(heading.split()) == "GPU STATE SLOT PID USER SINCE COMMAND OR REASON"
    assert f" {child} " in row and "left by" in row
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: leases.num_held() == 0)

    code = """
        import subprocess, sys
        from featuremill.lease import lease
        with lease("cuda") as held:
            keep = held.descriptors if "keep" in sys.argv else ()
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            child = subprocess.Popen(["sleep", "50"], pass_fds=keep, **quiet)
            print(child.pid, flush=True)
    """
    for word, is_held in (("", False), ("keep", True)):
        child = int(leases.python(code, word).communicate(timeout=PATIENCE_SECONDS)[0])
        assert leases.num_held() == is_held
        os.kill(child, signal.SIGKILL)


def test_a_grandchild_without_the_locks_is_seen_by_its_memory(node_of):
    """Python's subprocess closes descriptors: kill -9 of the middle one leaves a process alone."""
    leases = node_of(1)
    code = (
        "import subprocess as s; p = s.Popen(['sleep', '50']); print(p.pid, flush=True); p.wait()"
    )
    middle = leases.start(run=[sys.executable, "-c", code])
    grandchild = int(middle.stdout.readline())
    leases.node.run_on(leases.node.uuids[0], grandchild)
    assert HELD in leases("--wait", 0, status=3)[1]
    kill(middle)
    assert f"used by process {grandchild}" in leases("--wait", 0, status=3)[1]
    os.kill(grandchild, signal.SIGKILL)
    leases("--wait", PATIENCE_SECONDS)


def test_a_command_ends_with_its_parent_unless_it_may_outlive_it(node_of, tmp_path):
    """The kernel tells the command before it tells whoever waits for the parent, so a command that
    answers later was not told."""
    leases = node_of(1)
    script = tmp_path / "command"
    script.write_text("read line <ask; echo $line >answer.new; mv answer.new answer; exec sleep 50")
    words = [sys.executable, "-m", "featuremill", "lease"]
    for options, ignores, survives in (
        ([], "", False),
        (["--outlive-parent"], "", True),
        ([], "'' HUP", True),
    ):
        place = tmp_path / f"{len(options)}{ignores}"
        place.mkdir()
        os.mkfifo(place / "ask")
        trap = f"trap {ignores}; " if ignores else ""
        command = f"{shlex.join([*words, *options, '--', 'sh', str(script)])} >out 2>&1"
        parent = leases.beside(["sh", "-c", f"{trap}{command} & echo $!; wait"], cwd=place)
        child = int(parent.stdout.readline())
        wait_for(lambda: leases.num_held() == 1)
        kill(parent)
        if survives:
            ask = wait_for(lambda: opened(place / "ask"))  # noqa: B023
            os.write(ask, b"still here\n")
            os.close(ask)
            wait_for((place / "answer").exists)
            assert leases.num_held() == 1
            os.kill(child, signal.SIGKILL)
        wait_for(lambda: leases.num_held() == 0)


def test_a_signal_just_before_the_command_begins_is_not_lost():
    """A handler in Python would only run after exec, which is never."""
    code = """if True:
        import os, signal
        from types import SimpleNamespace
        from featuremill.lease import execute
        signal.signal(signal.SIGTERM, lambda *_: print("noted for later"))
        os.execvpe = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
        execute.become(["ls"], SimpleNamespace(descriptors=[], environment={}))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b""), done.stderr


def opened(pipe):
    """Return a named pipe's descriptor for writing, once somebody reads."""
    with contextlib.suppress(OSError):
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)


def test_a_watched_command_ends_as_it_would_alone(node_of):
    leases = node_of(1)
    ends = {"exit 7": 7, "kill -9 $$": -9, "kill -SEGV $$": -11, "exit 130": 130}
    for script, status in ends.items():
        leases("--watch", run=["sh", "-c", script], status=status)
    leases("--watch", run=["nonesuch"], status=127)

    slow = ["sh", "-c", "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.1; done"]
    process = leases.start("--watch", run=slow)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=PATIENCE_SECONDS)[0] == "caught\n"
    assert process.returncode == 3
    failures = (leases.node.locks / f"{leases.node.uuids[0]}.failures").read_text()
    assert failures.count("left with status") == 2, "7 and SEGV; the others blame no device"


def test_a_watched_command_cannot_lose_its_lease(node_of):
    """The kernel kills the command before it tells whoever waits for the watcher."""
    leases = node_of(1)
    closes = "import os; os.closerange(3, 100); print('ready', flush=True); print(input())"
    process = leases.start("--watch", run=[sys.executable, "-c", closes], stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    assert leases.num_held() == 1, "it closed what it inherited"
    kill(process)
    assert process.communicate("still here\n", timeout=PATIENCE_SECONDS)[0] == ""
    assert leases.num_held() == 0


def test_policies(node_of):
    leases = node_of(Gpu(total_mb=24_000), Gpu(), Gpu(used_mb=900))
    numbers = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")

    def one(*arguments):
        return leases("--index-mode", *arguments, run=numbers)[0]

    assert one("--policy", "memory") == "1"
    assert [one("--policy", "sequential") for _ in range(2)] == ["0", "0"]
    assert one("--policy", "sequential", "--devices", "2,1") == "2"
    assert sorted(one() for _ in range(3)) == ["0", "1", "2"], "balanced: each in turn"
    half = ("--slots-per-gpu", 2)
    held = [leases.hold("--index-mode", "--policy", "sequential", *half) for _ in range(3)]
    assert [process.holds for process in held] == ["0", "0", "1"]
    assert one(*half) == "2", "balanced: the one with the fewest slots taken"
    said = leases(status=2, variables={"FEATUREMILL_POLICY": "best"})[1]
    assert "FEATUREMILL_POLICY: 'best' is not one of balanced, memory, sequential;" in said


def test_devices_that_others_use_are_passed_over_or_waited_for(node_of):
    leases = node_of(3)
    stranger = leases.beside(["sleep", "100"])
    leases.node.run_on(leases.node.uuids[0], stranger.pid, 5000)
    leases.node.change(1, used_mb=30_000)
    assert {leases("--index-mode")[0] for _ in range(2)} == {"2"}
    said = leases("--gpus", 2, "--wait", 0, status=3)[1]
    assert f"GPU 0 (0000): used by {who(stranger.pid)}, which has no lease" in said
    assert "GPU 1 (1100): 30000 MB in use without a lease" in said
    share = ("--policy", "memory", "--gpus", 2, "--index-mode", "--min-free-mb")
    assert leases(*share, 60_000)[0] == "2,0", "memory: strangers are no hindrance"
    assert (
        "GPU 1 (1100): 50000 MB free of the 60000"
        in leases(*share, 60_000, "--devices", "1,2", "--wait", 0, status=3)[1]
    )
    waiting = leases.python(SAY, "3")
    assert "GPU 1 (1100): 30000 MB" in waiting.stderr.readline()
    leases.node.change(1, used_mb=0)
    looked = next(line for line in waiting.stderr if "GPU 1" not in line)
    assert f"(GPU 0 (0000): used by {who(stranger.pid)}, which has no lease)" in looked
    kill(stranger)
    assert waiting.wait(PATIENCE_SECONDS) == 0


def test_a_display_and_what_draws_on_it_are_nobodys_work(node_of):
    """On a desktop the first GPU is often the only one. Below WSL2 no process is listed at all."""
    me = os.getpid()
    below_wsl2 = Gpu(total_mb=8_000, used_mb=1_300, more={"display": 1})
    screen = Gpu(total_mb=8_000, graphics={me: 1_300})
    toolkit = Gpu(total_mb=8_000, graphics={me: 700, 1: 600}, processes={me: 700})
    leases = node_of(below_wsl2, screen, toolkit)
    for number in range(3):
        gpu, said = leases("--index-mode", "--devices", number, "--wait", 0)
        assert gpu == str(number)
        assert f"{gpu_name(number)}: 1300 MB are in use by a display; it is used anyway" in said
    leases.node.gpus[0].more["error.nvmlDeviceGetGraphicsRunningProcesses"] = 999
    leases.node.write()
    assert leases("--index-mode", "--devices", 0, "--wait", 0)[0] == "0", "only that is not known"
    leases = node_of(
        Gpu(used_mb=1_300),
        Gpu(used_mb=5_000, more={"display": 1}),
        Gpu(graphics={1: 300}, used_mb=1_000, processes={me: 10}, more={"display": 1}),
        Gpu(graphics={me: 3_000}, processes={me: 3_000}, more={"display": 1}),
        Gpu(graphics={1: 600}, used_mb=300),
    )
    said = leases("--gpus", 5, "--wait", 0, status=3)[1]
    assert "GPU 0 (0000): 1300 MB in use without a lease; if that is a display" in said
    assert "GPU 1 (1100): 5000 MB in use without a lease; if that is a display" in said
    for number in (2, 3):
        assert f"{gpu_name(number)}: used by {who(me)}, which has no lease" in said
    assert "GPU 4 (4400):" not in said
    said = leases("--devices", 4, "--wait", 0)[1]
    assert "by a display" not in said, "that little is said of no GPU"


def test_what_a_device_says_once_its_slot_is_ours_is_what_counts(tmp_path, monkeypatch):
    """Another process may have begun on it after the look that went before."""
    device = Device("cuda", "GPU-1", "pretend", True, 0)
    idle, used = Condition(free_mb=80_000), Condition(free_mb=70_000, used_mb=10_000)
    looks = iter([idle, used, used, idle, idle, Condition(problem="GPU is lost")])
    monkeypatch.setattr(condition, "look", lambda _: next(looks))
    chooser = Chooser(tmp_path, Request(), [device], {})
    found = chooser.attempt()
    assert (found.chosen, found.is_used_by_others) == ([], True)
    assert found.barred["GPU 0 (1)"].startswith("10000 MB in use without a lease")
    [free] = chooser.attempt().chosen
    assert free.free_mb == 80_000
    free.slot.close()
    assert chooser.attempt().barred == {"GPU 0 (1)": "GPU is lost"}


def test_a_device_that_works_again_is_waited_for(tmp_path, monkeypatch):
    """While a job waits, one device and then the other does not answer for a moment."""
    gpus = [Device("cuda", f"GPU-{number}", "pretend", True, number) for number in range(2)]
    chooser = Chooser(tmp_path, Request(num_gpus=1), gpus, {})
    for lost in gpus:
        conditions = {gpu: Condition(free_mb=80_000, used_mb=5000) for gpu in gpus}
        conditions[lost] = Condition(problem="Unknown Error")
        monkeypatch.setattr(condition, "look", conditions.__getitem__)
        assert chooser.attempt().barred[lost.label] == "Unknown Error"


@pytest.mark.parametrize("policy", get_args(Policy))
def test_devices_that_failed_for_the_caller_are_taken_last(tmp_path, monkeypatch, policy):
    gpus = [Device("cuda", f"GPU-{number}", "pretend", True, number) for number in range(3)]
    monkeypatch.setattr(condition, "look", lambda _: Condition(free_mb=80_000))
    failures = {"GPU-0": 2, "GPU-1": 1}
    chosen = Chooser(tmp_path, Request(num_gpus=3, policy=policy), gpus, failures).attempt().chosen
    assert [free.device.number for free in chosen] == [2, 1, 0]


def test_what_a_program_that_draws_has_started_is_somebodys_work(node_of):
    """A terminal may draw on the GPU; a small training that runs in it is no display."""
    leases = node_of(Gpu(graphics={os.getpid(): 300}, more={"display": 1}))
    training = leases.beside(["sleep", "100"])
    leases.node.run_on(leases.node.uuids[0], training.pid, 2000)
    said = leases("--wait", 0, status=3)[1]
    assert f"GPU 0 (0000): used by {who(training.pid)}, which has no lease" in said


def test_what_other_leases_use_of_a_shared_device_is_no_hindrance(node_of):
    leases = node_of(1)
    half = ("--slots-per-gpu", 2)
    first = leases.hold(*half)
    child = leases.beside(["sleep", "100"])
    leases.node.run_on(leases.node.uuids[0], first.pid, 5000)
    end(leases.hold(*half, "--wait", 0))
    leases.node.run_on(leases.node.uuids[0], child.pid, 5000)
    assert f"used by process {child.pid}" in leases(*half, "--wait", 0, status=3)[1]
    kill(child)
    end(first)


def test_the_small_ones_of_a_mixed_node_are_never_taken(node_of):
    leases = node_of(Gpu(total_mb=24_000), Gpu(), Gpu(total_mb=24_000), Gpu())
    large = ("--min-free-mb", 40_000, "--index-mode")
    for policy in ("balanced", "memory", "sequential"):
        held = [leases.hold(*large, "--policy", policy) for _ in range(2)]
        assert sorted(process.holds for process in held) == ["1", "3"]
        assert HELD in leases(*large, "--policy", policy, "--wait", 0, status=3)[1]
        for process in held:
            end(process)
    assert "GPU 0 (0000): it has 24000 MB in all" in leases(*large, "--gpus", 3, status=3)[1]


def test_devices_that_fail_are_left_out_with_the_reason(node_of):
    leases = node_of(Gpu(lost=True), Gpu(error=999), Gpu(), Gpu(compute_mode=2))
    assert leases("--index-mode")[0] == "2"
    said = leases("--gpus", 3, status=3)[1]
    assert "GPU 0: GPU is lost; GPU 1: Unknown Error" in said
    (alone,) = (
        line for line in leases("--devices", "0", status=3)[1].splitlines() if "GPU" in line
    )
    assert "1 GPU is wanted and there are 0 (GPU 0: GPU is lost)." in alone
    said = leases("--gpus", 2, status=3)[1]
    assert "too few work: GPU 3 (3300): its compute mode is Prohibited" in said
    holder = leases.hold()
    waiting = leases.queue()
    leases.node.change(2, lost=True)
    _, err = waiting.communicate(timeout=PATIENCE_SECONDS)
    assert waiting.returncode == 3, "waiting would be of no use"
    assert "GPU 2 (2200): GPU is lost" in err
    end(holder)


def test_exclusive_compute_mode_allows_one_slot(node_of):
    leases = node_of(Gpu(compute_mode=3))
    holder = leases.hold("--slots-per-gpu", 4)
    assert HELD in leases("--slots-per-gpu", 4, "--wait", 0, status=3)[1]
    end(holder)


def test_a_mistaken_number_of_slots_leaves_no_files_for_all_users(node_of):
    leases = node_of(1)
    said = leases("--slots-per-gpu", 40_000, status=2)[1]
    assert "a GPU of 40000 slots is impossible; give at most 256." in said
    assert not [*leases.node.locks.glob("*.slot")]


def test_slices_are_devices(node_of):
    slices = [Slice("MIG-a", 10_000), Slice("MIG-b", 20_000, gpu_instance=2)]
    leases = node_of(Gpu(slices=slices), Gpu())
    uuid = leases.node.uuids[1]
    held = [leases.hold() for _ in range(3)]
    assert sorted(process.holds for process in held) == sorted(["MIG-a", "MIG-b", uuid])
    assert "GPU 0 (MIG b): held by" in leases("--wait", 0, status=3)[1]
    for process in held:
        end(process)
    assert leases("--min-free-mb", 15_000, "--devices", "0")[0] == "MIG-b"
    assert leases(variables={"CUDA_VISIBLE_DEVICES": "MIG-b"})[0] == "MIG-b"
    assert "a MIG slice has no number" in leases("--index-mode", "--devices", "MIG-a", status=2)[1]


def test_a_process_of_several_gpus_gets_no_slice_where_whole_ones_are_enough(node_of):
    leases = node_of(Gpu(slices=[Slice("MIG-a")]), Gpu(), Gpu())
    _, *whole = leases.node.uuids
    assert sorted(leases("--gpus", 2)[0].split(",")) == sorted(whole)
    holder = leases.hold("--devices", "2")
    assert whole[1] not in leases("--wait", 0, "--gpus", 1)[0]
    assert leases("--wait", 0, "--gpus", 2, status=3)[0] == ""
    end(holder)
    assert "MIG-a" in leases("--gpus", 3)[0]


@pytest.mark.parametrize("mask", ["", "-1", "NoDevFiles"])
def test_no_visible_gpu_is_a_lease_of_the_cpu(node_of, mask):
    leases = node_of(1)
    variables = {"CUDA_VISIBLE_DEVICES": mask}
    out, said = leases("--gpus", 2, variables=variables)
    assert out == ""
    assert f"leased the CPU: no GPU is visible here: CUDA_VISIBLE_DEVICES='{mask}'" in said
    assert "no GPU is visible here" in leases("--device", "cuda", status=2, variables=variables)[1]


def test_no_driver_is_a_lease_of_the_cpu(node_of):
    leases = node_of(1)
    leases.node.system["init_error"] = 9
    leases.node.write()
    assert "leased the CPU: no NVIDIA GPU is visible here" in leases()[1]
    assert "this machine has no GPU" in leases("--devices", "0", status=2)[1]


def test_a_lease_without_a_command_says_one_that_works(node_of):
    leases = node_of(1)
    example = leases("--gpus", 1, run=[], status=2)[1].strip().partition("as in: ")[2].split()
    assert example[:2] == ["featuremill", "lease"] and example[-2] == "--"
    assert leases(*example[2:-2], run=example[-1:])[1].count("leased GPU 0 (0000)") == 1


@pytest.mark.parametrize("words", [["echo", "hello"], ["--gpus", "2", "python", "my job.py", "-x"]])
def test_a_command_without_dashes_before_it_is_shown_with_them(verbs, words):
    said = verbs("lease", *words, status=2)
    shown = shlex.split(said.strip().partition("as in: ")[2])
    command = words[words.index("python") :] if "python" in words else words
    num_gpus = "2" if "--gpus" in words else "1"
    assert shown == ["featuremill", "lease", "--gpus", num_gpus, "--", *command]
    assert f"{command[0]}: this is no option; write the command after --" in said


def test_a_device_that_does_not_exist(node_of):
    leases = node_of(4)
    assert "GPU 7 does not exist; this machine has 0–3." in leases("--devices", "7", status=2)[1]
    assert "GPU-f' is not the start of" in leases("--devices", "0,GPU-f", status=2)[1]
    masked = {"CUDA_VISIBLE_DEVICES": "1,2"}
    said = leases("--devices", "0", status=2, variables=masked)[1]
    assert "GPU 0 is hidden by CUDA_VISIBLE_DEVICES=1,2." in said
    said = leases("--gpus", 3, status=2, variables=masked)[1]
    assert "3 GPUs are wanted and CUDA_VISIBLE_DEVICES leaves 2; ask for fewer." in said


@pytest.mark.parametrize(
    ("variable", "value", "num_gpus", "numbers"),
    [
        ("CUDA_VISIBLE_DEVICES", "2", 1, "2"),
        ("CUDA_VISIBLE_DEVICES", "3,1", 2, "3,1"),
        ("CUDA_VISIBLE_DEVICES", "3,1", 1, "3"),
        ("CUDA_VISIBLE_DEVICES", "GPU-22,GPU-11", 1, "2"),
        ("CUDA_VISIBLE_DEVICES", "2,7,1", 1, "2"),
        ("SLURM_STEP_GPUS", "2", 1, "2"),
        ("SLURM_STEP_GPUS", "9", 1, "0"),
        ("NVIDIA_VISIBLE_DEVICES", "all", 1, "0"),
        ("NVIDIA_VISIBLE_DEVICES", "GPU-33", 1, "3"),
    ],
)
def test_what_the_outside_gave_is_honoured(node_of, variable, value, num_gpus, numbers):
    leases = node_of(4)
    uuids = [leases.node.uuids[int(number)] for number in numbers.split(",")]
    out, said = leases("--gpus", num_gpus, variables={variable: value})
    exactly = len(value.split(",")) == num_gpus and numbers != "0"
    assert (f"as {variable} gave it" in said) == (exactly or value == "2,7,1")
    passed_on = value if exactly and variable == "CUDA_VISIBLE_DEVICES" else ",".join(uuids)
    assert out == (value if value == "2,7,1" else passed_on)


def test_a_given_gpu_that_others_have_is_said_once_a_session(node_of):
    """With who has it and what to do: the jobs of a run are of one session."""
    leases, given = node_of(1), {"NVIDIA_VISIBLE_DEVICES": "0"}
    leases.is_forked = False
    holder = leases.hold(variables=given)
    _, said = leases(variables=given)
    assert (
        "GPU 0 (0000), which NVIDIA_VISIBLE_DEVICES gives this job, is leased to others too ("
        in said
    )
    assert f"{who(holder.pid)[:-1]} -c echo" in said
    assert "if that is too little, wait until they have ended, or start fewer at once." in said
    assert "leased to others" not in leases(variables=given)[1]
    other = leases.start(run=("true",), variables=given, start_new_session=True)
    assert "leased to others too" in other.communicate(timeout=60)[1]
    end(holder)


def test_a_lost_device_among_those_given_is_not_passed_on(node_of):
    leases = node_of(Gpu(lost=True), Gpu())
    assert leases(variables={"CUDA_VISIBLE_DEVICES": "0,1"})[0] == leases.node.uuids[1]
    assert "GPU is lost" in leases(variables={"CUDA_VISIBLE_DEVICES": "0"}, status=3)[1]
    said = leases(variables={"CUDA_VISIBLE_DEVICES": leases.node.uuids[0]}, status=3)[1]
    assert "names no GPU that is here; GPU 0: GPU is lost." in said
    leases.node.change(0, lost=False)
    said = leases(variables={"CUDA_VISIBLE_DEVICES": "7"}, status=2)[1]
    assert "CUDA_VISIBLE_DEVICES=7 names no GPU that is here." in said


@pytest.mark.parametrize(
    "variables",
    [
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0,1,2,3"},
        {"SLURM_JOB_GPUS": "0,1,2,3"},
        {"NVIDIA_VISIBLE_DEVICES": "all"},
    ],
)
def test_jobs_inside_one_allocation_get_distinct_devices(node_of, variables):
    leases = node_of(4)
    held = [leases.hold(variables=variables) for _ in range(4)]
    assert sorted(process.holds for process in held) == leases.node.uuids
    assert HELD in leases("--wait", 0, status=3, variables=variables)[1]


def test_leases_inside_a_lease_share_what_it_holds(node_of):
    """Neither the outer lease's own locks nor the common queue may shut its children out."""
    leases = node_of(3)
    names = ("CUDA_VISIBLE_DEVICES", "FEATUREMILL_LEASED")
    script = f"echo {' '.join(f'${name}' for name in names)}; read line"
    outer = leases.start("--gpus", 2, run=["sh", "-c", script], stdin=subprocess.PIPE)
    inside = dict(zip(names, outer.stdout.readline().split(), strict=True))
    waits_for_outer = leases.queue("--gpus", 3)
    inner = [leases.hold(variables=inside) for _ in range(2)]
    assert sorted(process.holds for process in inner) == leases.node.uuids[:2]
    assert HELD in leases("--wait", 0, status=3, variables=inside)[1]
    for process in inner:
        end(process)
    end(outer)
    assert waits_for_outer.wait(PATIENCE_SECONDS) == 0


FAIL = """
    import sys
    from featuremill.lease import Request, lease
    for what in sys.argv[2:]:
        with lease("cuda", Request(devices=sys.argv[1])) as held:
            held.failed("the worker fell over") if what == "fail" else held.worked()
"""


def test_a_device_on_which_work_fails_quickly_gets_a_rest(node_of):
    leases = node_of(2)

    def tell(device, *what):
        assert leases.python(FAIL, device, *what).wait() == 0

    tell("0", "fail")
    tell("0", "fail", "fail")
    first = ("--policy", "sequential", "--index-mode")
    assert leases(*first)[0] == "1"
    assert "cooling down until" in leases("--gpus", 1, *first)[1] or leases.list()[-1]
    sick = next(line for line in leases.list() if " sick " in line)
    assert sick.startswith("GPU 0 (0000)") and "3 quick failures, the worker fell over" in sick
    holder = leases.hold("--devices", "1")
    assert "GPU 0 (0000): cooling down until" in leases("--wait", 0, *first, status=3)[1]
    end(holder)
    assert leases(*first, "--gpus", 2)[0] == "0,1", "all are needed"
    tell("1", "fail", "fail", "fail")
    assert leases(*first)[0] == "0", "when all fail, it is the work"
    tell("0", "work")
    assert leases(*first)[0] == "0"
    tell("1", "work")
    for _ in range(3):
        leases("--watch", "--devices", "0", run=["false"], status=1)
    assert leases(*first)[0] == "1", "a foreign command, watched"
    assert "3 quick failures, false left with status 1" in leases.list()[1]
    leases("--watch", "--devices", "0", run=["true"])
    assert leases(*first)[0] == "0"


def test_a_lease_that_failed_late_is_not_held_against_its_device(gpu_node, monkeypatch):
    for name, value in gpu_node(1).environment.items():
        monkeypatch.setenv(name, value)
    gpu = Device("cuda", "GPU-1", "pretend", True, 0)
    monkeypatch.setattr("featuremill.lease.acquire.time.monotonic", lambda: 1000.0)
    held = Lease((gpu,), (), {}, 1000.0 - condition.QUICK_SECONDS, "GPU 0")
    held.failed("the worker fell over")
    noted = condition.Failures(folder.find(), gpu.uuid)
    assert noted.read() == []
    held._replace(since=1000.0).failed("the worker fell over")
    assert [how for _, how in noted.read()] == ["the worker fell over"]


@pytest.mark.parametrize("ahead", [-400.0, -200.0, 3600.0])
def test_failures_of_another_time_keep_no_device_from_its_work(tmp_path, monkeypatch, ahead):
    """Of long ago, or of a clock that was ahead when they were noted: it may be so for days."""
    noted = condition.Failures(tmp_path, "GPU-1")
    now = 1e9
    monkeypatch.setattr(condition.time, "time", lambda: now + ahead)
    for _ in range(condition.MAX_QUICK_FAILURES):
        noted.add("it fell over")
    assert noted.cooling()
    monkeypatch.setattr(condition.time, "time", lambda: now)
    assert bool(noted.cooling()) == (ahead == -200.0)


def test_settings_come_from_variables_and_the_command_line_beats_them(node_of):
    leases = node_of(4)
    asked = {"DEVICES": "3,2", "POLICY": "sequential", "SLOTS_PER_GPU": "2"}
    asked |= {"MIN_FREE_MB": "1000", "WAIT": "0"}
    variables = {f"FEATUREMILL_{name}": text for name, text in asked.items()}
    held = [leases.hold("--index-mode", variables=variables) for _ in range(4)]
    assert [process.holds for process in held] == ["3", "3", "2", "2"]
    assert HELD in leases(status=3, variables=variables)[1]
    assert leases("--devices", "1", "--index-mode", variables=variables)[0] == "1"
    said = leases(status=2, variables={"FEATUREMILL_WAIT": "long"})[1]
    assert "FEATUREMILL_WAIT: 'long' is not a number of seconds;" in said


def test_the_list_says_who_has_what(node_of):
    leases = node_of(2)
    leases.is_forked = False
    assert [line.split()[-1] for line in leases.list()[1:]] == ["free", "free"]
    holder = leases.hold("--slots-per-gpu", 2)
    row = leases.list()[1]
    assert row.startswith(f"GPU 0 (0000)  leased  1 of 2  {holder.pid}  ")
    assert row.endswith("sh -c echo $CUDA_VISIBLE_DEVICES; read line")
    since = time.strptime(" ".join(row.split()[9:11]), "%Y-%m-%d %H:%M:%S")
    slot = leases.node.locks / f"{leases.node.uuids[0]}@0of2.slot"
    assert 0 <= slot.stat().st_mtime - time.mktime(since) < 60, "it was noted as it was taken"


def test_the_list_has_every_gpu_and_what_keeps_it_from_a_job(node_of):
    """Free, leased, busy (whose), lost, not usable: as `doctor` and nvidia-smi number them."""
    leases = node_of(8)
    gpus = leases.node.gpus
    holder = leases.hold("--devices", "1")
    stranger = leases.beside(["sleep", "100"])
    leases.node.run_on(leases.node.uuids[2], stranger.pid)
    gpus[3].used_mb, gpus[4].lost, gpus[5].compute_mode, gpus[6].error = 30_000, True, 2, 999
    leases.node.write()
    inner = f"{sys.executable} -m featuremill lease --devices 7 -- sh -c 'echo; read line'"
    outer = leases.start("--devices", "7", run=["sh", "-c", inner], stdin=subprocess.PIPE)
    outer.stdout.readline()
    headings, *rows = leases.list()
    state, slot, pid, user, *_ = (headings.index(word) for word in headings.split()[1:])
    cells = [(row[:state].strip(), row[state:slot].strip(), row[pid:user].strip()) for row in rows]
    assert cells[:7] == [
        (gpu_name(0), "free", ""),
        (gpu_name(1), "leased", str(holder.pid)),
        (gpu_name(2), "busy", str(stranger.pid)),
        (gpu_name(3), "busy", ""),
        ("GPU 4", "lost", ""),
        (gpu_name(5), "not usable", ""),
        ("GPU 6", "not usable", ""),
    ]
    assert rows[2].endswith("  sleep") and f" {psutil.Process(stranger.pid).username()} " in rows[2]
    assert "30000 MB in use without a lease" in rows[3] and rows[4].endswith("GPU is lost")
    assert rows[5].endswith("its compute mode is Prohibited")
    assert [row[slot:pid].strip() for row in rows[7:]] == ["1 of 1", "1 of 1 in 1 of 1"]
    leases.node.change(1, lost=True)
    rows = leases.list()
    assert rows[2].split()[:3] == ["GPU", "1", "lost"]
    assert any(row.startswith("GPU (1100)") and f" {holder.pid} " in row for row in rows[1:])
    leases.node.gpus.clear()
    leases.node.write()
    outer.communicate("\n", timeout=PATIENCE_SECONDS)
    end(holder)
    said = "No NVIDIA GPU is visible on this machine; featuremill doctor shows why."
    assert leases.list() == [said]


def test_the_folder_is_for_all_users_and_of_this_machine(node_of, tmp_path, monkeypatch):
    leases = node_of(1)
    leases()
    assert leases.node.locks.stat().st_mode & 0o7777 == 0o1777
    assert {path.stat().st_mode & 0o777 for path in leases.node.locks.iterdir()} == {0o666}
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    said = leases(status=2, variables={"FEATUREMILL_LEASE_FOLDER": str(private)})[1]
    assert "chmod 1777" in said
    (tmp_path / "link").symlink_to(leases.node.locks)
    said = leases(status=2, variables={"FEATUREMILL_LEASE_FOLDER": str(tmp_path / "link")})[1]
    assert "chmod 1777" in said
    number = tmp_path.stat().st_dev
    line = f"36 35 {os.major(number)}:{os.minor(number)} / /net rw - nfs4 server:/ rw"
    assert folder.file_system(tmp_path, line) == "nfs4"
    lock = leases.node.locks / "fifo"
    os.mkfifo(lock)
    with pytest.raises(Exception, match="not a plain file"):
        folder.open_lock(lock)


def test_a_full_disk_is_named_with_its_file_and_a_lease_needs_no_note(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    queue = tmp_path / "turnstile"
    with pytest.raises(OSError, match=re.escape(str(queue))), turnstile.turn(queue, None, int):
        pass
    slot = slots.take(tmp_path, "GPU-0", 1).slot
    slot.note()
    assert [holder.device for holder in slots.holders(tmp_path)] == ["GPU-0"]
    slot.close()
    condition.Failures(tmp_path, "GPU-0").add("it fell over")
    with contextlib.closing(os.fdopen(folder.open_lock(queue), "rb")) as again:
        assert folder.try_lock(again.fileno()), "a process with other jobs goes on"


def test_a_slot_that_cannot_be_used_leaves_its_device_to_others(tmp_path):
    slot = tmp_path / "GPU-0@0of1.slot"
    slot.mkdir()
    with pytest.raises(UserError, match="not a plain file"):
        slots.take(tmp_path, "GPU-0", 1)
    slot.rmdir()
    held = slots.take(tmp_path, "GPU-0", 2).slot
    assert held
    held.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_two_users_share_the_devices(nvml_library, environment, umask):
    as_nobody = {"user": NOBODY, "group": NOBODY, "cwd": "/", "umask": umask}
    with for_all_users(nvml_library, environment, Gpu(), Gpu()) as leases:
        other = leases.hold(**as_nobody)
        mine = leases.hold(umask=umask)
        assert sorted([mine.holds, other.holds]) == leases.node.uuids
        assert "(nobody: sh -c echo" in leases("--wait", 0, status=3)[1]
        assert HELD in leases("--wait", 0, status=3, **as_nobody)[1]
        end(other)
        end(leases.hold(**as_nobody))
        end(mine)
        end(leases.hold("--gpus", 2, **as_nobody))
        assert leases.node.locks.stat().st_uid == NOBODY


def test_it_imports_only_the_standard_library_and_pynvml(node_of):
    code = """
        import sys
        before = set(sys.modules)  # what this Python loads for anybody
        from featuremill.__main__ import main
        main(["lease", "--list"])
        main(["lease", "--", "nonesuch"])
        names = {name.partition(".")[0] for name in {*sys.modules} - before}
        names -= set(sys.stdlib_module_names)
        print(*sorted(name for name in names if not name.startswith("_")), file=sys.stderr)
    """
    _, err = node_of(1).python(code).communicate(timeout=PATIENCE_SECONDS)
    assert set(err.splitlines()[-1].split()) == {"featuremill", "pynvml"}


@pytest.mark.slow
def test_a_lease_costs_little(node_of):
    """The bar is 100 ms over running the command directly; Python's start is a part of it."""
    leases = node_of(4)
    true = ["true"]

    def seconds(command):
        start = time.monotonic()
        subprocess.run(command, env=leases.environment, check=True, stderr=subprocess.DEVNULL)
        return time.monotonic() - start

    lease = [sys.executable, "-m", "featuremill", "lease", "--", *true]
    seconds(lease)  # writes the bytecode
    both = [(seconds(lease), seconds(true)) for _ in range(15)]
    over = sorted(leased - direct for leased, direct in both)
    print(f"overhead in ms: median {over[7] * 1000:.0f}, least {over[0] * 1000:.0f}")
    load = os.getloadavg()[0] / (os.cpu_count() or 1)  # above 1 everything waits for a core
    assert over[0] <= 0.1 * max(1, load), f"{over}"
    if load < 1 / 2:
        assert over[7] <= 0.1, f"{over}"


def test_locks_leave_nothing_that_grows(node_of):
    leases = node_of(1)
    for _ in range(2):
        leases()
        names = sorted(path.name for path in Path(leases.node.locks).iterdir())
    uuid = leases.node.uuids[0]
    assert names == [f"{uuid}.device", f"{uuid}@0of1.slot", "turnstile"]
