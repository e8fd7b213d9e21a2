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
from plans import plan_json

from featuremill.store import journal, lock_holder
from featuremill.store.files import as_text, sealed
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt, UsedDevice
from featuremill.store.results import Results

HERE = platform.node()
RECIPE = "c0ffee" * 5 + "00"
COST, RECORDS = 1000, 100
ABOUT = {"recipe": RECIPE, "workload": "poison", "device": "auto"}
ABOUT |= {"settings": {"workload": "poison"}}
OF_RECIPE = ("store/parts", "store/journals", "receipts")
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
        counts = dict.fromkeys(("input", "planned", "unique"), records)
        counts = {"counts": counts, "lengths": {"total": 10 * records, "longest": 10}}
        told = plan_json([{"shard": name, **shard} for name in self.names], **counts, **ABOUT)
        self.plan = Plan.model_validate_json(json.dumps(told))
        for place in ("store/shards", *(f"{of}/{RECIPE}" for of in OF_RECIPE)):
            (self.folder.root / place).mkdir(parents=True)
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
        counts = {"rows": RECORDS, "ok": RECORDS - len(failed), "failed": len(failed), "cost": COST}
        about = {"shard": name, "recipe": RECIPE, "part": "", "batches": 10, "resumed_batches": 0}
        receipt = Receipt(
            **counts,
            **about,
            seconds={"total": seconds, "wait": 0.0, "compute": seconds - 10},
            devices=[UsedDevice(**device)],
            host=host,
            finished=finished.isoformat(timespec="milliseconds"),
        )
        self.journal(number).with_suffix(".lock").touch()
        for path in (part.with_suffix(".json"), self.folder.receipt(RECIPE, name)):
            # Thousands of syncs would take a minute.
            path.write_text(as_text(sealed(receipt.as_json())))

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
    digests = [bytes([row]) * 32 for row in range(RECORDS)]
    status = ["failed" if reason else "ok" for reason in reasons]
    rows = {"sha256": digests, "status": status, "reason": reasons}
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
            line = json.dumps({"event": event, "time": self.clock, **facts})
            with self.path.open("ab", buffering=0) as file:
                file.write(f"{line}\n".encode())

    def sample(self, cost_done, seconds=10.0, **more):
        """Let so many seconds pass, by which so much is done."""
        self.num_samples += 1
        if self.num_samples % 40 == 0:
            self.write("again", start=self.facts, devices=self.devices)
        self.clock += seconds
        self.cost_done = cost_done
        values = {"utilisation": 91, "memory_mb": 20_480, "power_w": 70.4, "temperature_c": 64}
        about = {"stage": "run", "rows_done": cost_done * RECORDS // COST, "rows_failed": 0}
        about |= {"cost_done": cost_done, "cost_left": COST - cost_done}
        about["devices"] = [{"uuid": self.device["uuid"], **values}]
        about["process"] = {"cpu_percent": 99.0, "memory_mb": 2048.0}
        self.write("sample", **about | more)

    def end(self, status="ok", message=None):
        """Leave the lock, as whoever ends in order does."""
        self.write("end", status=status, **({"message": message} if message else {}))
        os.ftruncate(self._lock, 0)
        os.close(self._lock)

    def die(self):
        """Leave the lock and everything else as it is."""
        os.close(self._lock)
