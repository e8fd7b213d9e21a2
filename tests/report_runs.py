"""Merged runs made up for tests of the report, and its pages as a browser would read them."""

import base64
import csv
import dataclasses
import datetime
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill import __main__
from featuremill.store.delivery import Accounts, Delivery, Written
from featuremill.store.plan import Counts, Input, Lengths, Settings
from featuremill.store.receipt import Receipt, Usage, UsedDevice
from featuremill.store.records import SCHEMA
from featuremill.store.results import Results

HOSTILE = "</script><script>alert('x')</script><img src=http://evil.example/x.png>&\u202eabc"
STARTED = datetime.datetime(2026, 11, 20, 10, tzinfo=datetime.UTC)
RECIPE = "0123456789abcdef" * 2
H200 = {"kind": "cuda", "uuid": "GPU-1f0c2a3b-0000-4444-8888-000000000001", "number": 0}
H200["name"] = "NVIDIA H200"
CPU = {"kind": "cpu", "uuid": "cpu", "name": "AMD EPYC 9654 96-Core Processor"}


@dataclasses.dataclass
class FakeRun:
    """A merged run, written exactly as merge writes it."""

    ok: int = 40
    failed: int = 0
    refused: int = 0
    duplicate: int = 0
    devices: tuple[dict[str, Any], ...] = (H200,)
    num_shards: int = 4
    columns: tuple[str, ...] = ("mean_layer_6",)
    width: int = 16
    reasons: tuple[str, ...] = ("not an amino acid: '1' at residue 7",)
    failed_reason: str = "out of memory: OutOfMemoryError: tried to allocate 12 GiB"
    ids: str = "sp|P{0:05d}|FAKE_{0}"
    gap_seconds: float = 0.0
    resumed_batches: int = 0
    oom_splits: int = 0
    telemetry: str = ""
    """"files" beside the parts and in the receipts; "receipts" only there; else none."""
    stopped_attempts: int = 0
    """Of the second shard, before the one that finished it."""
    parquet: bool = True
    warnings: tuple[str, ...] = ()
    workload: str = "esm2"
    options: dict[str, object] = dataclasses.field(
        default_factory=lambda: {"model": "mill_t6_8M", "layers": [6], "dtype": "bf16"}
    )

    def write(self, root):
        root.mkdir(parents=True)
        rows = self._rows()
        self._write_manifest(root, rows)
        self._write_failed(root, rows)
        outputs = {"per-protein.h5": Written(bytes=123_456, sha256="b" * 64)}
        if self.parquet:
            self._write_embeddings(root, rows)
            outputs["embeddings.parquet"] = Written(bytes=5_432_100, sha256="a" * 64)
        receipts = self._receipts(rows)
        if self.telemetry:
            receipts = [self._measured(root, *numbered) for numbered in enumerate(receipts)]
        lengths = [row["length"] for row in rows if row["status"] in ("ok", "failed")]
        settings = {"workload": self.workload, "version": "1", "options": self.options}
        left_out = {"refused": self.refused, "duplicate": self.duplicate, "input": len(rows)}
        Delivery(
            run=root.name,
            finished="2026-11-20T10:30:00.000+00:00",
            recipe=RECIPE,
            settings=Settings(**settings, weights_sha256="c" * 64),
            cost_unit={"composition": "residues"}.get(self.workload, "tokens"),
            plan=Counts(**left_out, planned=len(lengths), unique=len(lengths)),
            lengths=Lengths(total=sum(lengths), longest=max(lengths, default=0)),
            counts=Accounts(**left_out, ok=self.ok, failed=self.failed),
            parts={receipt.shard: receipt.part for receipt in receipts},
            receipts=receipts,
            outputs=outputs,
            inputs=[Input(path="data/demo.fa", bytes=512_000, records=len(rows), sha256="d" * 64)],
            notes={"J read as X": 142} if self.ok > 500 else {},
            gpu_seconds=sum(r.seconds["total"] for r in receipts if r.is_on_gpu),
            **energy_of(receipts),
            warnings=list(self.warnings),
        ).write(root / "manifest.json")
        return root

    def _rows(self):
        random = np.random.default_rng(3)
        statuses = ["ok"] * self.ok + ["failed"] * self.failed
        statuses += ["refused"] * self.refused + ["duplicate"] * self.duplicate
        lengths = np.clip(random.lognormal(5.7, 0.7, len(statuses)), 30, 9_000).astype(int)
        rows = []
        for n, (status, length) in enumerate(zip(statuses, lengths, strict=True)):
            row = {"id": self.ids.format(n), "status": status, "line": 2 * n + 1}
            row["length"] = int(length) if status != "refused" else 0
            row["sha256"] = hashlib.sha256(str(n).encode()).digest()
            reasons = {"failed": self.failed_reason, "refused": self.reasons[n % len(self.reasons)]}
            rows.append({**row, "reason": reasons.get(status)})
        return rows

    def _write_manifest(self, root, rows):
        always = {"description": "a protein", "source": "data/demo.fa"}
        records = []
        for n, row in enumerate(rows):
            record = {"ordinal": n, **row, **always, "cost": row["length"] + 2}
            if row["status"] == "refused":
                record["sha256"] = None
            elif row["status"] != "duplicate":
                record |= {"status": "planned", "reason": None, "shard": "e" * 32, "row": 0}
                record["note"] = None if n % 7 else "J read as X"
            records.append(record)
        table = pa.Table.from_pylist(records, SCHEMA)
        pq.write_table(table, root / "records.parquet", compression="zstd")

    def _write_failed(self, root, rows):
        with (root / "failed.tsv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(["id", "line", "source", "status", "reason"])
            for row in rows:
                if row["status"] in ("failed", "refused"):
                    where = [row["id"], row["line"], "data/demo.fa"]
                    writer.writerow([*where, row["status"], row["reason"]])

    def _write_embeddings(self, root, rows):
        kept = [row for row in rows if row["status"] == "ok"]
        random = np.random.default_rng(4)
        columns = {
            "id": pa.array([row["id"] for row in kept], pa.string()),
            "length": pa.array([row["length"] for row in kept], pa.int32()),
            "sha256": pa.array([row["sha256"].hex() for row in kept], pa.string()),
        }
        centres = random.normal(0, 3, (5, self.width))
        for name in self.columns:
            values = random.normal(0, 1, (len(kept), self.width)).astype(np.float32)
            values += centres[random.integers(0, 5, len(kept))] + [
                [0.002 * row["length"]] + [0.0] * (self.width - 1) for row in kept
            ] if kept else 0  # fmt: skip
            flat = pa.array(values.astype(np.float32).ravel(), pa.float32())
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, self.width)
        pq.write_table(pa.table(columns), root / "embeddings.parquet", row_group_size=10_000)

    def _receipts(self, rows):
        planned = [row for row in rows if row["status"] in ("ok", "failed")]
        free = [0.0] * len(self.devices)
        receipts = []
        for n in range(min(self.num_shards, len(planned))):
            mine = planned[n :: self.num_shards]
            which = n % len(self.devices)
            cost = sum(row["length"] + 2 for row in mine)
            failed = sum(row["status"] == "failed" for row in mine)
            seconds = {"wait": 0.2, "load": 1.4, "prepare": cost / 90_000}
            seconds |= {"run": cost / (9_000 + 700 * (n % 3)), "write": 0.05}
            seconds["total"] = 0.9 + sum(seconds.values()) - seconds["prepare"]
            begin = free[which] + (self.gap_seconds if n >= self.num_shards // 2 else 0)
            started = STARTED + datetime.timedelta(seconds=begin)
            finished = started + datetime.timedelta(seconds=seconds["total"])
            free[which] += seconds["total"] + 0.3 * (n % 4)
            about = {"rows": len(mine), "ok": len(mine) - failed, "failed": failed, "cost": cost}
            about |= {"batches": 9, "retries": 0, "threads": 2, "batch_cost": 4096}
            about["resumed_batches"] = self.resumed_batches if n == 1 else 0
            about["oom_splits"] = self.oom_splits if n == 2 else 0
            about |= {"peak_memory_mb": 1830, "backend": "sdpa", "recipe": RECIPE}
            receipt = Receipt(
                **about,
                shard=hashlib.sha256(f"shard {n}".encode()).hexdigest()[:32],
                part=f"{n:032x}",
                seconds={stage: round(value, 3) for stage, value in seconds.items()},
                started=started.isoformat(timespec="milliseconds"),
                finished=finished.isoformat(timespec="milliseconds"),
                payload_bytes=sum(row["length"] for row in mine),
                devices=[UsedDevice(**self.devices[which])],
                host=f"node{which // 4 + 1:02d}",
                versions={"featuremill": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
            )
            receipts.append(receipt)
        return receipts

    def _measured(self, root, number, receipt):
        """Return the receipt with what samples come to, and write them as extract does."""
        total = receipt.seconds["total"]
        told = {"cpu_percent": 150.0, "process_memory_mb": 640}
        if receipt.is_on_gpu:
            told = {"utilisation_percent": 90.0, "memory_mb": 41_000, "power_w": 400.0}
            told |= {"temperature_c": 71, "energy_j": round(400 * total, 1)}
            told["throttled_seconds"] = {"power_cap": round(total / 4, 1)}
        usage = Usage(samples=int(total), **told)
        receipt = receipt.model_copy(update={"telemetry": usage})
        if self.telemetry != "files":
            return receipt
        begin = datetime.datetime.fromisoformat(receipt.started).timestamp()
        events = []
        for attempt in range(self.stopped_attempts if number == 1 else 0):
            then = begin - 8 * (self.stopped_attempts - attempt)
            events += self._attempt(receipt, then, 6.0, f"killed{attempt}")
        events += self._attempt(receipt, begin, total, "last")
        path = Results(root).telemetry(receipt.recipe, receipt.shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(event)}\n" for event in events) + '{"event":"sam')
        return receipt

    def _attempt(self, receipt, begin, seconds, name):
        random = np.random.default_rng(len(name) + int(begin) % 1000)
        device, cost = receipt.devices[0], receipt.cost
        common = {"version": 1, "shard": receipt.shard, "host": receipt.host}
        events = [
            {"event": "start", "time": begin, **common, "rows": receipt.rows, "cost": cost},
            {"event": "sample", "time": begin + 0.1, "stage": "wait"},
            {"event": "device", "time": begin + 0.2, "devices": [device.as_json()]},
        ]
        for second in np.arange(0.5, seconds, 1.0).tolist():
            share = max(0.0, (second - 1.5) / (seconds - 1.5))
            values = {"process": {"cpu_percent": 150 + second, "memory_mb": 640}}
            if device.kind == "cuda":
                busy = share > 0
                values["devices"] = [
                    {
                        "uuid": device.uuid,
                        "utilisation": int(random.integers(93, 100)) if busy else 3,
                        "memory_mb": 41_000 if busy else 2_000,
                        "power_w": round(float(random.normal(610, 12)), 1) if busy else 96.0,
                        "temperature_c": min(71, 40 + int(second)),
                        "throttle": ["power_cap"],
                    }
                ]
            stage = "run" if share > 0 else "load"
            done = {"cost_done": int(cost * share), "cost_left": int(cost * (1 - share))}
            time = begin + second
            events.append({"event": "sample", "time": time, "stage": stage, **done, **values})
        if name == "last":
            events.append({"event": "end", "time": begin + seconds, "status": "ok"})
        return events


def energy_of(receipts):
    """Return what manifest.json says of the energy that GPUs took, where each told."""
    told = [receipt for receipt in receipts if receipt.own_energy_j is not None]
    if not told:
        return {}
    energy_j = sum(receipt.own_energy_j for receipt in told)
    residues = sum(receipt.payload_bytes for receipt in told)
    return {
        "gpu_energy_j": round(energy_j, 1),
        "gpu_energy_j_per_million": round(1e6 * energy_j / residues, 1),
    }


class Page(HTMLParser):
    """What a browser would make of the HTML: elements, texts, scripts, styles."""

    def __init__(self, path):
        super().__init__()
        self.elements = []
        self.scripts = []
        self.styles = []
        self.words = []
        self.data = {}
        self._inside = ""
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "style":
            self.styles.append(data)
        elif self._inside != "script":
            self.words.append(data)
        elif self.elements[-1][1].get("id") == "data-embeddings":
            self.map = json.loads(gzip.decompress(base64.b64decode(data)))
            self.data["data-embeddings"] = self.map
        elif self.elements[-1][1].get("type") == "application/json":
            self.data[self.elements[-1][1]["id"]] = json.loads(data)
        else:
            self.scripts.append(data)

    def assert_self_contained(self):
        tags = {tag for tag, _ in self.elements}
        assert not tags & {"link", "iframe", "object", "embed", "base", "img"} - {"link"}
        for tag, attributes in self.elements:
            for name in ("src", "href", "srcset", "data", "action", "poster"):
                assert attributes.get(name, "data:,") == "data:,", (tag, attributes)
        for style in self.styles:
            assert "@import" not in style and "url(" not in style
        own = [script for script in self.scripts if len(script) < 100_000]
        assert not re.search(r"fetch\(|XMLHttpRequest|https?:|import\(|WebSocket", "".join(own))
        policy = [a["content"] for _, a in self.elements if "http-equiv" in a]
        assert len(policy) == 1 and policy[0].startswith("default-src 'none'")


def make(root, *arguments):
    output = root / "report.html"
    assert __main__.main(["report", str(root), "--output", str(output), "--quiet", *arguments]) == 0
    page = Page(output)
    page.assert_self_contained()
    return page


def points_of(page):
    """Return the points of the map, each with what it has of each colour: a name or a number."""
    of = page.map
    about = zip(of["ids"], of["descriptions"], strict=True)
    rows = [{"id": id, "description": text} for id, text in about]
    for colour in of["colours"]:
        values = colour.get("values")
        if values is None:
            codes = np.frombuffer(base64.b64decode(colour["codes"]), "<u2")
            values = [None if code == 0 else colour["names"][code - 1] for code in codes]
        for row, value in zip(rows, values, strict=True):
            row[colour["title"]] = value
    return rows


def rows_of(page, name):
    datasets = page.data[f"data-{name}"]
    found = datasets.get("data") or datasets["layer"][0]["data"]
    return found["values"]
