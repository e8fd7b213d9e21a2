"""telemetry: what a real job leaves beside its part, and that nothing about it can hurt the job."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest
from mounts import mounted
from nvml_node import Gpu, Slice, gpu_name
from programs import python, ran, wait_for

from featuremill.base import run_log as run_log_module
from featuremill.base.devices import Device
from featuremill.base.errors import UserError
from featuremill.extract.recorder import Recorder, Sampler
from featuremill.extract.worker import peak_memory_mb
from featuremill.status.jobs import TelemetryTail
from featuremill.store import telemetry
from featuremill.store import telemetry as writer_module
from featuremill.store.telemetry import Writer, seconds_between

GOOD = [(f"good{n}", "MKV" + "A" * n) for n in range(20)]
OF_A_GPU = {"power_w", "temperature_c", "throttle", "energy_j"}


def file_of(verbs, plan, number=0):
    return verbs.run_folder.telemetry(plan["recipe"], plan["shards"][number]["shard"])


def run_log(verbs):
    return (verbs.run_folder.root / "run.log").read_text().splitlines()


def tail_of(path):
    """Return how the last attempt in the file stands."""
    tail = TelemetryTail(path)
    tail.poll()
    return tail.state


def running(path):
    """Return the samples of the last attempt in which batches ran."""
    attempts = telemetry.read(path)
    return [s for s in attempts[-1].samples if s["stage"] == "run"] if attempts else []


def manifest_of(verbs):
    """Return what is in the manifest of the run, merged now."""
    verbs("merge", verbs.run_folder.root)
    return json.loads((verbs.run_folder.root / "manifest.json").read_text())


def computed(verbs, plan, hold, condition):
    """Compute a plan whose batches do not end before the condition is true."""
    process = verbs.start("extract", verbs.run_folder.root, plan["shards"][0]["shard"])
    value = wait_for(condition)
    hold.unlink()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said, value


@pytest.fixture
def hold(verbs):
    """Return the file while which exists no batch ends, where a plan's options name it."""
    path = verbs.folder / "hold"
    path.touch()
    return path


def with_devices(path):
    return [sample for sample in running(path) if sample.get("devices")]


def process_of(attempt):
    """Return what the last sample has of a worker that had not ended yet."""
    return [sample["process"] for sample in attempt.samples if "process" in sample][-1]


@pytest.fixture
def on_gpus(verbs, gpu_node):
    """Return a function: plan for a node of these GPUs, whose jobs see it."""

    def plan(*gpus, **options):
        node = gpu_node(*gpus)
        path = {"PYTHONPATH": verbs.environment["PYTHONPATH"]}
        verbs.environment = node.environment | path
        records = options.pop("records", GOOD)
        return node, verbs.plan(records, "poison", options, device="cuda")

    return plan


def test_a_model_on_the_cpu_leaves_samples_and_a_line_in_the_log(verbs):
    verbs("weights", "mill_t6_8M", "--output", verbs.folder / "w.json")
    options = {"model": "mill_t6_8M", "dtype": "fp32", "batch_tokens": 400}
    more = ("--weights", verbs.folder / "w.json")
    plan = verbs.plan(GOOD, "esm2", options, cost=10**6, more=more)
    verbs.extract(plan)
    (shard,) = plan["shards"]
    (attempt,) = telemetry.read(str(file_of(verbs, plan)))
    assert attempt.start["rows"] == 20 and attempt.start["rows_done"] == 0
    assert attempt.start["shard"] == shard["shard"] and attempt.start["cost_unit"] == "tokens"
    (event,) = attempt.devices
    assert [device["kind"] for device in event["devices"]] == ["cpu"]
    last = attempt.samples[-1]
    assert (last["stage"], last["rows_done"], last["rows_failed"]) == ("finish", 20, 0)
    assert (last["cost_done"], last["cost_left"]) == (shard["cost"], 0)
    assert last["process"]["memory_mb"] > 100 and last["peak_memory_mb"] > 100
    assert not any("devices" in sample for sample in attempt.samples)
    assert attempt.end["status"] == "ok" and attempt.energy_j is None
    (receipt,) = verbs.receipts(plan)
    assert receipt["batches"] == last["batches"]
    assert receipt["seconds"]["load"] == last["seconds"]["load"]
    parts = receipt["load_seconds"]
    assert {"torch", "modules", "methods", "weights", "beside: weights"} <= set(parts)
    assert any(part.startswith("attention by ") for part in parts), "each step of the self-check"
    own = [seconds for part, seconds in parts.items() if not part.startswith("beside: ")]
    assert sum(own) <= receipt["seconds"]["load"] + 0.05
    assert 0 < receipt["seconds"]["start"] < receipt["seconds"]["total"]
    assert receipt["payload_bytes"] == sum(len(sequence) for _, sequence in GOOD)
    found = receipt["telemetry"]
    at_work = [sample for sample in attempt.samples if sample["stage"] != "wait"]
    assert found["samples"] >= len(at_work) >= 1 and found["attempts"] == 1
    assert found["cpu_percent"] > 0 and found["process_memory_mb"] > 100
    assert set(found) == {"samples", "attempts", "cpu_percent", "process_memory_mb"}
    manifest = manifest_of(verbs)
    assert manifest["receipts"][0]["telemetry"] == found
    assert not [key for key in manifest if "energy" in key]
    planned, extracted, merged = run_log(verbs)
    assert "plan               done" in planned and "20 distinct records" in planned
    assert f"extract  {shard['shard'][:8]}  done" in extracted and "     20 ok" in extracted
    assert "merge              done" in merged and "20 of 20 records have features" in merged


def test_one_long_batch_leaves_samples_in_which_only_time_goes_on(verbs, hold):
    plan = verbs.plan(GOOD, "poison", {"hold": str(hold), "batch_records": 100})
    path = file_of(verbs, plan)

    def has_come():
        return len(running(path)) >= 3 and tail_of(path)

    _, state = computed(verbs, plan, hold, has_come)
    assert state.end is None and state.sample["stage"] == "run"
    assert [device["kind"] for device in state.devices] == ["cpu"]
    samples = running(path)
    assert {sample["rows_done"] for sample in samples[:3]} == {0}
    times = [sample["time"] for sample in samples]
    assert times == sorted(set(times))
    assert all("memory_mb" in sample["process"] for sample in samples)
    assert tail_of(path).end["status"] == "ok"


def test_a_gpu_is_sampled_and_its_energy_is_counted(verbs, on_gpus, hold):
    more = {"power_mw": 300_000, "throttle": 0x5, "meter": 1, "temperature": 71}
    _, plan = on_gpus(Gpu(used_mb=900, busy=87, more=more), hold=str(hold))
    said, _ = computed(verbs, plan, hold, lambda: len(with_devices(file_of(verbs, plan))) >= 3)
    assert re.search(rf"20 records in \d+\.\d s on {re.escape(gpu_name(0))}\n", said)
    assert f"  {gpu_name(0)} Simulated GPU on " in run_log(verbs)[-1]
    (attempt,) = telemetry.read(file_of(verbs, plan))
    (device,) = attempt.devices[0]["devices"]
    assert (device["slot"], device["memory_mb"]) == ("0of1", 80_000)
    assert "of_whole_gpu" not in device
    (last,) = attempt.samples[-1]["devices"]
    energy_j = last.pop("energy_j")
    gauges = {"utilisation": 87, "memory_mb": 900, "power_w": 300.0, "temperature_c": 71}
    assert last == {"uuid": device["uuid"], **gauges, "throttle": ["power_cap"]}
    described = [attempt.start, device, *attempt.samples, *attempt.samples[-1]["devices"]]
    keys = {key for each in [*described, process_of(attempt)] for key in each}
    assert not {key for key in keys - {"time"} if f"`{key}`" not in telemetry.__doc__}
    seconds = attempt.samples[-1]["time"] - attempt.devices[0]["time"]
    assert 0.01 < energy_j / (300 * seconds) < 1.1, "joules, of the time with the device"
    (receipt,) = verbs.receipts(plan)
    assert [one["number"] for one in (device, *receipt["devices"])] == [0, 0]
    found = receipt["telemetry"]
    assert found["energy_j"] == pytest.approx(energy_j, abs=0.2)
    names = ("utilisation_percent", "memory_mb", "power_w", "temperature_c")
    assert [found[name] for name in names] == [87.0, 900, 300.0, 71]
    assert 0 < found["throttled_seconds"]["power_cap"] <= receipt["seconds"]["total"] + 1
    manifest = manifest_of(verbs)
    assert manifest["gpu_energy_j"] == found["energy_j"]
    per_million = 1e6 * found["energy_j"] / sum(len(sequence) for _, sequence in GOOD)
    assert manifest["gpu_energy_j_per_million"] == pytest.approx(per_million, rel=1e-4)


SHARED = {
    "a slice": (Gpu(slices=[Slice("MIG-a", used_mb=700)]), "1", OF_A_GPU, {"memory_mb"}),
    "half a GPU": (Gpu(), "2", {*OF_A_GPU, "utilisation", "memory_mb"}, {"utilisation"}),
}


@pytest.mark.parametrize("what", SHARED)
def test_what_is_the_whole_gpus_is_said_and_belongs_to_nobody(verbs, on_gpus, hold, what):
    gpu, slots, of_whole_gpu, told = SHARED[what]
    _, plan = on_gpus(gpu, hold=str(hold))
    verbs.environment |= {"FEATUREMILL_SLOTS_PER_GPU": slots}
    computed(verbs, plan, hold, lambda: with_devices(file_of(verbs, plan)))
    (attempt,) = telemetry.read(file_of(verbs, plan))
    (device,) = attempt.devices[0]["devices"]
    assert device["slot"] == f"0of{slots}" and set(device["of_whole_gpu"]) == of_whole_gpu
    (values,) = attempt.samples[-1]["devices"]
    # Of a divided GPU NVML tells no utilisation, and a slice's memory is its own.
    assert set(values) == {"uuid", "memory_mb", *OF_A_GPU, *told}
    assert values["memory_mb"] == (700 if what == "a slice" else 0)
    (receipt,) = verbs.receipts(plan)
    assert set(receipt["telemetry"]["of_whole_gpu"]) == of_whole_gpu
    assert not [key for key in manifest_of(verbs) if "energy" in key]


TROUBLE = {
    "an error on one question": ({"error.nvmlDeviceGetTemperature": 999}, {"temperature_c"}),
    "a function that the driver lacks": ({"error.nvmlDeviceGetTemperature": 13},
                                         {"temperature_c"}),
    "a call that never returns": ({"hang": "nvmlDeviceGetPowerUsage"}, None),
    "a device that is lost": ({"lost": 1}, None),
    "an error on every question": ({"error": 999}, None),
}  # fmt: skip
QUICK = ("an error on one question", "a call that never returns")


@pytest.mark.parametrize(
    "trouble",
    [pytest.param(t, marks=() if t in QUICK else pytest.mark.slow) for t in TROUBLE],
)
def test_trouble_with_nvml_costs_values_and_nothing_else(verbs, on_gpus, hold, trouble):
    more, lacking = TROUBLE[trouble]
    node, plan = on_gpus(Gpu(), hold=str(hold), batch_records=100)
    path = file_of(verbs, plan)
    process = verbs.start("extract", verbs.run_folder.root, plan["shards"][0]["shard"])
    wait_for(lambda: running(path))  # the lease is had by then
    node.gpus[0].more = more
    node.write()

    def has_come():
        devices = [device for s in running(path)[-1:] for device in s.get("devices", ())]
        if lacking:
            return devices and not lacking & set(devices[0])
        return not any("power_w" in device for device in devices)

    wait_for(has_come)
    hold.unlink()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and "NVML" not in said
    (attempt,) = telemetry.read(path)
    assert attempt.end["status"] == "ok" and attempt.samples[-1]["rows_done"] == 20
    assert process_of(attempt)["memory_mb"] > 10
    assert verbs.receipts(plan)[0]["telemetry"]["samples"] >= 2
    if lacking:
        (device,) = attempt.samples[-1]["devices"]
        assert {"utilisation", "power_w", "energy_j"} <= set(device)


def test_a_worker_that_dies_and_its_successor_are_one_attempt(verbs, on_gpus):
    records = [*GOOD, ("bad", "CRASH")]
    _, plan = on_gpus(Gpu(more={"power_mw": 200_000}), records=records, batch_seconds=0.2)
    verbs.extract(plan)
    (attempt,) = telemetry.read(file_of(verbs, plan))
    assert len(attempt.devices) == 3, "a lease for each of three workers"
    last = attempt.samples[-1]
    assert (last["rows_done"], last["rows_failed"]) == (21, 1) and last["devices"]
    done = [sample["rows_done"] for sample in attempt.samples if "rows_done" in sample]
    assert done == sorted(done)
    (receipt,) = verbs.receipts(plan)
    assert receipt["telemetry"]["energy_j"] == pytest.approx(attempt.energy_j, abs=0.2)
    assert " 2 crashes " in run_log(verbs)[-1]


def test_what_a_killed_job_sampled_stays_and_its_energy_counts(verbs, on_gpus, hold):
    doom = verbs.folder / "doom"
    doom.write_text("run 3 job")
    options = {"hold": str(hold), "doom": str(doom), "batch_records": 5}
    _, plan = on_gpus(Gpu(more={"power_mw": 200_000}), **options)
    path, shard = file_of(verbs, plan), plan["shards"][0]["shard"]
    process = verbs.start("extract", verbs.run_folder.root, shard, start_new_session=True)
    wait_for(lambda: len(with_devices(path)) >= 3)
    hold.unlink()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    with path.open("a") as file:
        file.write('{"event":"sample","time":17')
    (killed,) = telemetry.read(path)
    assert killed.end is None and killed.energy_j > 10
    verbs.extract(plan)
    first, second = telemetry.read(path)
    assert first == killed and second.start["attempt"] == 2
    committed = second.start["rows_done"]
    assert committed >= 5 and committed % 5 == 0
    (receipt,) = verbs.receipts(plan)
    assert receipt["resumed_batches"] == committed // 5
    taken = first.energy_j + second.energy_j
    assert receipt["telemetry"]["energy_j"] == pytest.approx(taken, abs=0.3)
    assert receipt["telemetry"]["attempts"] == 2
    verbs.run_folder.part(plan["recipe"], shard).unlink()
    verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    third = telemetry.read(path)[2]
    assert third.start["attempt"] == receipt["telemetry"]["attempts"] == 1
    assert receipt["telemetry"]["energy_j"] == pytest.approx(third.energy_j, abs=0.2)


def test_a_job_that_is_stopped_or_fails_says_so_in_both_files(verbs, hold):
    records = [*GOOD, ("bad", "RAISE"), ("odd", "NANA")]
    plan = verbs.plan(records, "poison", {"broken_load": True})
    verbs("extract", verbs.run_folder.root, plan["shards"][0]["shard"], status=1)
    end = telemetry.read(file_of(verbs, plan))[-1].end
    assert end["status"] == "failed" and "no such layer" in end["message"]
    assert "failed" in run_log(verbs)[-1] and "KeyError: 'no such layer'" in run_log(verbs)[-1]

    plan = verbs.plan(records, "poison", {"hold": str(hold)})
    path, shard = file_of(verbs, plan), plan["shards"][0]["shard"]
    process = verbs.start("extract", verbs.run_folder.root, shard, start_new_session=True)
    wait_for(lambda: running(path))
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert tail_of(path).end["status"] == "stopped"
    assert f"extract  {shard[:8]}  stopped" in run_log(verbs)[-1]

    plan = verbs.plan(records, "poison")
    verbs.extract(plan)
    verbs.extract(plan)
    done, kept = run_log(verbs)[-2:]
    assert "     20 ok      2 failed" in done and done.endswith("failed for: 1 error, 1 nan")
    assert f"extract  {plan['shards'][0]['shard'][:8]}  kept" in kept
    verbs("merge", verbs.run_folder.root, status=2)
    assert "merge              failed" in run_log(verbs)[-1]
    assert "2 of 22 records failed" in run_log(verbs)[-1]
    starts = {line[:20] for line in run_log(verbs)}
    assert all(start[4] == start[7] == "-" and start.endswith("Z") for start in starts)


@pytest.mark.parametrize("error", [OSError, KeyError])
def test_no_error_of_the_sampler_leaves_its_thread(error):
    def fail():
        raise error("for this test")

    Sampler.run(SimpleNamespace(_run=fail, _path="telemetry"))


@pytest.mark.parametrize("harm", ["full", pytest.param("read-only", marks=pytest.mark.slow)])
def test_a_disk_that_takes_no_samples_takes_no_job_along(verbs, harm):
    mount = mounted(verbs.folder / "small", "64k")
    plan = verbs.plan(GOOD, "poison", {"batch_seconds": 0.2})
    path, small = file_of(verbs, plan), verbs.folder / "small"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(small / "telemetry")
    (verbs.run_folder.root / "run.log").unlink()
    (verbs.run_folder.root / "run.log").symlink_to(small / "run.log")
    fill = "touch telemetry run.log; head -c 1M /dev/zero > filler; true"
    subprocess.run(mount.command("sh", "-c", fill), check=True, stderr=subprocess.DEVNULL)
    if harm == "read-only":
        mount.remount("ro")
    log = verbs.folder / "extract.log"
    command = ["extract", verbs.run_folder.root, plan["shards"][0]["shard"], "--log", log]
    words = mount.command(sys.executable, "-m", "featuremill", *command)
    process = ran(*words, cwd=verbs.folder, env=verbs.environment, timeout=60)
    mount.close()
    assert process.returncode == 0, process.stderr
    said = {"full": "No space left on device", "read-only": "Read-only file system"}[harm]
    lines = [line for line in log.read_text().splitlines() if said in line]
    assert len(lines) == 2 and all(" DEBUG " in line for line in lines)
    assert "no telemetry from here on" in lines[0] and "a line is missing there" in lines[1]
    assert said not in process.stderr
    (receipt,) = verbs.receipts(plan)
    assert receipt["ok"] == 20 and receipt["telemetry"]["samples"] >= 2


def test_what_an_error_says_is_one_short_line_of_the_log(tmp_path):
    with pytest.raises(UserError), run_log_module.line(tmp_path, "plan"):
        raise UserError(f"number 39\nand\x1b[31m a second line{'x' * 3000}")
    (line,) = (tmp_path / "run.log").read_text().splitlines()
    assert "number 39 and\\x1b[31m a second linexxx" in line and len(line) < 600


def test_a_file_of_a_long_shard_stays_small_and_its_end_says_all(tmp_path, monkeypatch):
    path = tmp_path / "x.telemetry.jsonl"
    sampler = Sampler(path, tmp_path / "none.arrows", {"shard": "ab" * 16, "rows": 10**6})
    device = {"uuid": "GPU-" + "0" * 36, "utilisation": 99, "memory_mb": 70_000, "power_w": 311.7}
    device |= {"temperature_c": 70, "energy_j": 10_000_000.5}
    device |= {"throttle": ["power_cap", "software_thermal_limit"]}

    class Answering:
        def latest(self):
            return [device]

    now = time.monotonic()
    monkeypatch.setattr("featuremill.extract.recorder.time.monotonic", lambda: now)
    file = Writer(path)
    file.write("start", **sampler._start())
    file.write("device", devices=[{"kind": "cuda", "uuid": device["uuid"], "slot": "0of1"}])
    sampler.poller = Answering()
    hours = 9
    for second in range(hours * 3600):
        now += 1
        sampler.progress = {"stage": "run", "rows_done": second, "cost_done": 1e9, "cost_left": 1e9}
        sampler.progress |= {"seconds": {"load": 12.345, "run": 12345.678, "write": 12.345}}
        sampler._sample(file)
    assert 500_000 < path.stat().st_size < 1_000_000
    (attempt,) = telemetry.read(path)
    assert len(attempt.samples) > 1000
    assert attempt.samples[-1]["rows_done"] > 3600 * (hours - 0.5)
    state = tail_of(path)
    assert state.start["rows"] == 10**6 and state.devices[0]["slot"] == "0of1"
    assert state.sample == attempt.samples[-1]
    assert sampler.summary["samples"] == hours * 3600
    throttled = sampler.summary["throttled_seconds"]["power_cap"]
    assert throttled == pytest.approx(hours * 3600, rel=0.01)
    assert seconds_between(path.stat().st_size) > 8


def test_an_error_of_many_words_does_not_hide_that_it_failed(tmp_path):
    path = tmp_path / "x.telemetry.jsonl"
    with pytest.raises(UserError), Recorder(path, tmp_path / "none.arrows", {"rows": 3}):
        raise UserError("missing layers: " + "layer.0, " * 20_000)
    state = tail_of(path)
    assert state.start["rows"] == 3 and state.end["status"] == "failed"
    assert state.end["message"].startswith("missing layers: layer.0")


def test_a_file_never_grows_past_its_bound(tmp_path):
    path = tmp_path / "x.telemetry.jsonl"
    path.write_bytes(b"x" * (writer_module.MOST_BYTES - 100) + b"\n")
    file = Writer(path)
    for _ in range(10):
        file.write("sample", stage="run", rows_done=1)
    assert path.stat().st_size <= writer_module.MOST_BYTES
    line = b'{"event":"start","time":1,"host":"' + b"x" * 4000 + b'"}\n'
    path.write_bytes(line * 2000)
    assert 0 < len(telemetry.read(path)) < 1100, "only the end of what no job wrote"


def test_clean_and_retry_know_the_file(verbs):
    cure = verbs.folder / "cure"
    plan = verbs.plan([("bad", "RAISE")], "poison", {"cure_file": str(cure)})
    verbs.extract(plan)
    path = file_of(verbs, plan)
    orphan = path.with_name("0" * 32 + ".telemetry.jsonl")
    begun = path.with_name("1" * 32 + ".telemetry.jsonl")
    journal = verbs.run_folder.journal(plan["recipe"], "1" * 32)
    for file in (orphan, begun, journal, journal.with_suffix(".log")):
        file.touch()
    root = verbs.run_folder.root
    said = verbs("clean", root, "--keep", "all", "--yes")
    assert "store/parts: 1 file" in said
    assert not orphan.exists() and begun.exists() and path.exists()
    verbs("clean", root, "--keep", "parts", "--yes")
    assert not begun.exists() and path.exists()
    verbs("retry", root)
    again = json.loads(verbs.run_folder.plan.read_text())
    assert again["shards"][0]["shard"] == plan["shards"][0]["shard"]
    assert not path.exists(), "the same records are a shard of the same name, computed anew"
    cure.touch()
    verbs.extract(again)
    verbs("merge", root)
    log = run_log(verbs)
    verbs("clean", root, "--keep", "results", "--yes")
    assert not path.exists() and run_log(verbs) == log
    manifest = json.loads((root / "manifest.json").read_text())
    assert manifest["receipts"][0]["telemetry"]["attempts"] == 1


TIMES = (b"NaN", b'"1"', b"9" * 400, b"1e999")
RUBBISH = (
    *(b"\n", b"null\n", b"[1]\n", b'"x"\n', b"\xff\xfe\n", b'{"event":"sample"}\n'),
    *(b'{"event":"sample","time":%s}\n' % time for time in TIMES),
    *(b'{"event":7,"time":1}\n', b'{"event":"unheard of","time":1}\n'),
    *(b"[" * 100_000 + b"\n", b"\0" * 4096 + b"\n"),
)


def test_rubbish_and_cut_lines_are_passed_over(tmp_path):
    path = tmp_path / "x.telemetry.jsonl"
    assert telemetry.read(path) == [] and tail_of(path) is None
    path.write_bytes(b'{"event":"sample","time":1,"stage":"run"}\n')
    assert telemetry.read(path) == [] and tail_of(path) is None
    start = b'{"event":"start","time":1,"rows":3}\n'
    odd = b'{"event":"sample","time":2,"rows_done":"3","devices":[1,{"uuid":"a","power_w":true}],'
    odd += b'"process":7,"seconds":{"run":[]},"stage":"run"}\n'
    path.write_bytes(b"".join([*RUBBISH, start, *RUBBISH, odd, b'{"event":"end","time":3,"st']))
    (attempt,) = telemetry.read(path)
    sample = {"time": 2, "devices": [{}, {"uuid": "a"}], "process": {}, "seconds": {}}
    sample["stage"] = "run"
    assert attempt == ({"time": 1, "rows": 3}, [], [sample], None)
    assert attempt.energy_j is None
    path.write_bytes(start + odd + b'{"event":"end","time":3,"status":"ok"}\n')
    assert tail_of(path).end == {"time": 3, "status": "ok"}


@pytest.mark.slow
def test_sampling_costs_less_than_a_two_hundredth_of_a_core(tmp_path, gpu_node):
    code = """
        import os, sys, time
        from pathlib import Path
        import psutil
        from featuremill.extract.recorder import Poller
        from featuremill.extract.recorder import Sampler
        from featuremill.store.telemetry import Writer
        poller = Poller(sys.argv[2:], {})
        poller.refresh(5)
        sampler = Sampler(Path(sys.argv[1]), Path("none"), {})
        sampler.poller, sampler.worker = poller, psutil.Process()
        sampler.progress = {"stage": "run", "rows_done": 1, "cost_done": 1, "seconds": {"run": 1.5}}
        file = Writer(Path(sys.argv[1]))
        sampler._sample(file)
        began = time.process_time()
        for _ in range(200):
            poller._poll()
            sampler._sample(file, is_wanted=True)
        print((time.process_time() - began) / 200)
    """
    node = gpu_node(4)
    words = ("-c", textwrap.dedent(code), tmp_path / "x.jsonl", *node.uuids)
    done = python(*words, env=node.environment)
    assert float(done.stdout) < 0.005, done.stderr


def test_the_peak_of_memory_is_that_of_the_fullest_device(monkeypatch):
    peaks = (3 * 2**20, 5 * 2**20)
    torch = SimpleNamespace(cuda=SimpleNamespace(max_memory_reserved=lambda place: peaks[place]))
    monkeypatch.setitem(sys.modules, "torch", torch)
    gpu, other = (Device("cuda", uuid, "", True) for uuid in ("a", "b"))
    assert peak_memory_mb([gpu, other]) == 5
    monkeypatch.delitem(sys.modules, "torch")
    assert peak_memory_mb([gpu]) == 0
    assert peak_memory_mb([Device("cpu", "cpu", "", True)]) > 10


@pytest.fixture
def plan_for_a_gpu(verbs):
    """Return a function that plans a run of the bundled model on a GPU."""

    def plan():
        verbs("weights", "mill_t6_8M", "--output", verbs.folder / "w.json")
        options = {"model": "mill_t6_8M", "batch_tokens": 400}
        more = ("--weights", verbs.folder / "w.json")
        return verbs.plan(GOOD, "esm2", options, cost=10**6, more=more, device="cuda")

    return plan


def test_the_run_for_a_real_gpu_can_be_planned(verbs, gpu_node, plan_for_a_gpu):
    verbs.environment = verbs.environment | gpu_node(1).environment
    assert len(plan_for_a_gpu()["shards"]) == 1


@pytest.mark.gpu
def test_a_real_gpu_is_sampled(verbs, plan_for_a_gpu):
    plan = plan_for_a_gpu()
    verbs.extract(plan)
    (attempt,) = telemetry.read(file_of(verbs, plan))
    (values,) = attempt.samples[-1]["devices"]
    assert {"utilisation", "memory_mb", "power_w", "throttle", "energy_j"} <= set(values)
    assert values["energy_j"] > 1 and values["power_w"] > 1
    assert attempt.samples[-1]["peak_memory_mb"] > 0
    assert verbs.receipts(plan)[0]["telemetry"]["energy_j"] > 1
