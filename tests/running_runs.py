"""Runs as `featuremill top` finds them: plan, receipts, held locks and telemetry, written by hand.

run = RunningRun(tmp_path, num_shards=6)
run.finish(0, device=A, seconds=100)         # shard 0 has its receipt
job = run.start(1, device=A)                 # a job holds shard 1's lock, and has told of itself
job.sample(cost_done=300)                    # 10 seconds later, by the job's clock
job.end()
"""

import datetime
import fcntl
import json
import os
import platform
import time

import pyarrow as pa
from plans import plan_json, receipt_json

from featuremill.store import journal, lock_holder
from featuremill.store.files import as_text, sealed
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results

HERE = platform.node()
RECIPE = "c0ffee" * 5 + "00"
COST, RECORDS = 1000, 100
A, B, C = ({"kind": "cuda", "uuid": f"GPU-{x}000-00", "name": "NVIDIA L4"} for x in "abc")


def name_of(number):
    """Return the name of a shard."""
    return f"{number:08x}" * 4


class RunningRun:
    """A run that is planned: `num_shards` of 100 records and a cost of 1,000 each."""

    def __init__(self, folder, num_shards, failed=0):
        self.now = time.time()
        self.folder = Results(folder / "results" / "test")
        self.names = [name_of(number) for number in range(num_shards)]
        records = RECORDS * num_shards
        shard = {"records": RECORDS, "wanted": RECORDS, "cost": COST, "bytes": 8}
        about = {"workload": "poison", "settings": {"workload": "poison"}, "device": "auto"}
        about["counts"] = dict.fromkeys(["input", "planned", "unique"], records)
        about |= {"lengths": {"total": 10 * records, "longest": 10}, "recipe": RECIPE}
        told = plan_json([{"shard": name, **shard} for name in self.names], **about)
        self.plan = Plan.model_validate_json(json.dumps(told))
        store = self.folder.store
        parts = [store / "parts" / RECIPE, store / "journals" / RECIPE]
        for path in (store / "shards", *parts, self.folder.root / "receipts" / RECIPE):
            path.mkdir(parents=True)
        for name in self.names:
            self.folder.shard(name).write_bytes(b"records!")
        self.plan.write(self.folder.plan)

    def finish(self, number, device=A, seconds=100.0, ago=0.0, failed=(), host=HERE):
        """Leave the part and the receipt of a shard that took `seconds`, 10 of them to start up,
        and ended so long `ago`, seen from when the run was made."""
        name = self.names[number]
        part = self.folder.part(RECIPE, name)
        part.write_bytes(_part(failed) if failed else b"")
        finished = datetime.datetime.fromtimestamp(self.now - ago, datetime.UTC)
        about = {"shard": name, "recipe": RECIPE, "rows": RECORDS, "cost": COST, "batches": 10}
        about |= {"ok": RECORDS - len(failed), "failed": len(failed), "resumed_batches": 0}
        about["seconds"] = {"total": seconds, "wait": 0.0, "compute": seconds - 10}
        about |= {"host": host, "finished": finished.isoformat(timespec="milliseconds")}
        receipt = receipt_json(**about, devices=[device])
        receipt = Receipt.model_validate_json(json.dumps(receipt))
        self.journal(number).with_suffix(".lock").touch()
        text = as_text(sealed(receipt.as_json()))
        for path in (part.with_suffix(".json"), self.folder.receipt(RECIPE, name)):
            path.write_text(text)  # thousands of syncs would take a minute

    def journal(self, number):
        """Return the journal's data file of a shard."""
        return self.folder.journal(RECIPE, self.names[number])

    def start(self, number, device=A, **more):
        """Return a job that holds the shard's lock and has `device`, or waits for one."""
        return RunningJob(self, number, device, **more)


def _part(failed):
    """Return a part whose first records failed for these reasons."""
    reasons = [*failed, *[None] * (RECORDS - len(failed))]
    schema = journal.part_schema(pa.schema({}))
    rows = {
        "sha256": [bytes([row]) * 32 for row in range(RECORDS)],
        "status": ["failed" if reason else "ok" for reason in reasons],
        "reason": reasons,
    }
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_table(pa.table(rows, schema=schema))
    return sink.getvalue().to_pybytes()


class RunningJob:
    """One job at a shard; its clock starts at `clock` and goes on with each sample."""

    def __init__(self, run, number, device, clock=None, host=HERE, holds=True, says=True):
        self.clock = time.time() if clock is None else clock
        self.path = run.folder.telemetry(RECIPE, run.names[number])
        self.cost_done = self.num_samples = 0
        self._says = says
        lock = run.journal(number).with_suffix(".lock")
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT)
        facts = {"host": host, "pid": 4242}
        self.facts = {"time": self.clock, **facts}
        if holds:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        lock_holder.say(self._lock, **facts, devices=[device["name"]] if device else [])
        self.write("start", version=1, shard=run.names[number], rows=RECORDS, cost=COST, **facts)
        if device:
            self.has(device)
        else:
            self.write("sample", stage="wait")

    def has(self, device):
        """Get a device."""
        self.device = device
        self.devices = [{**device, "slot": "0of1", "memory_mb": 24_000}]
        self.write("device", devices=self.devices)
        self.write("sample", stage="load", cost_left=COST, rows_done=0)

    def write(self, event, **facts):
        """Append a line."""
        if self._says:
            told = json.dumps({"event": event, "time": self.clock, **facts})
            with self.path.open("ab", buffering=0) as file:
                file.write(told.encode() + b"\n")

    def sample(self, cost_done, seconds=10.0, **more):
        """Let so many seconds pass, by which so much is done."""
        self.num_samples += 1
        if self.num_samples % 40 == 0:
            self.write("again", start=self.facts, devices=self.devices)
        self.clock += seconds
        self.cost_done = cost_done
        values = {"utilisation": 91, "memory_mb": 20_480, "power_w": 70.4, "temperature_c": 64}
        told = {"stage": "run", "rows_done": cost_done * RECORDS // COST, "rows_failed": 0}
        told |= {"cost_done": cost_done, "cost_left": COST - cost_done}
        told["devices"] = [{"uuid": self.device["uuid"], **values}]
        told["process"] = {"cpu_percent": 99.0, "memory_mb": 2048.0}
        self.write("sample", **told | more)

    def end(self, status="ok", message=None):
        """Leave the lock, as whoever ends in order does."""
        self.write("end", status=status, **({"message": message} if message else {}))
        os.ftruncate(self._lock, 0)
        os.close(self._lock)

    def die(self):
        """Leave the lock and everything else as it is."""
        os.close(self._lock)
