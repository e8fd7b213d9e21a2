"""Merged runs made up for tests of the report, and its pages as a browser would read them."""

from __future__ import annotations

import base64
import csv
import dataclasses
import datetime
import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill import __main__
from featuremill.store.delivery import Accounts, Delivery, Written
from featuremill.store.plan import Counts, Input, Lengths, Settings
from featuremill.store.receipt import Receipt, Usage, UsedDevice
from featuremill.store.results import Results

HOSTILE = "</script><script>alert('x')</script><img src=http://evil.example/x.png>&\u202eabc"
STARTED = datetime.datetime(2026, 11, 20, 10, tzinfo=datetime.UTC)
RECIPE = "0123456789abcdef" * 2
H200 = {
    "kind": "cuda",
    "uuid": "GPU-1f0c2a3b-0000-4444-8888-000000000001",
    "name": "NVIDIA H200",
    "number": 0,
}
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

    def write(self, root: Path) -> Path:
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
        Delivery(
            run=root.name,
            finished="2026-11-20T10:30:00.000+00:00",
            recipe=RECIPE,
            settings=Settings(
                workload=self.workload, version="1", options=self.options, weights_sha256="c" * 64
            ),
            cost_unit={"composition": "residues"}.get(self.workload, "tokens"),
            plan=Counts(
                input=len(rows),
                refused=self.refused,
                duplicate=self.duplicate,
                planned=len(lengths),
                unique=len(lengths),
            ),
            lengths=Lengths(total=sum(lengths), longest=max(lengths, default=0)),
            counts=Accounts(
                input=len(rows),
                ok=self.ok,
                failed=self.failed,
                refused=self.refused,
                duplicate=self.duplicate,
            ),
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

    def _rows(self) -> list[dict[str, object]]:
        random = np.random.default_rng(3)
        statuses = ["ok"] * self.ok + ["failed"] * self.failed
        statuses += ["refused"] * self.refused + ["duplicate"] * self.duplicate
        lengths = np.clip(random.lognormal(5.7, 0.7, len(statuses)), 30, 9_000).astype(int)
        return [
            {
                "id": self.ids.format(n),
                "status": status,
                "length": int(length) if status != "refused" else 0,
                "line": 2 * n + 1,
                "sha256": hashlib.sha256(str(n).encode()).digest(),
                "reason": self.failed_reason
                if status == "failed"
                else self.reasons[n % len(self.reasons)]
                if status == "refused"
                else None,
            }
            for n, (status, length) in enumerate(zip(statuses, lengths, strict=True))
        ]

    def _write_manifest(self, root: Path, rows: list[dict[str, object]]) -> None:
        status = {"ok": "planned", "failed": "planned"}
        refused = [row["status"] == "refused" for row in rows]
        planned = [status.get(row["status"]) == "planned" for row in rows]
        names = pa.dictionary(pa.int32(), pa.string())
        table = {
            "ordinal": pa.array(range(len(rows)), pa.int64()),
            "id": pa.array([row["id"] for row in rows], pa.string()),
            "description": pa.array(["a protein"] * len(rows), pa.string()),
            "source": pa.array(["data/demo.fa"] * len(rows), pa.string()).cast(names),
            "line": pa.array([row["line"] for row in rows], pa.int64()),
            "sha256": pa.array(
                [None if r else row["sha256"] for r, row in zip(refused, rows, strict=True)],
                pa.binary(32),
            ),
            "length": pa.array([row["length"] for row in rows], pa.int64()),
            "cost": pa.array([row["length"] + 2 for row in rows], pa.int64()),
            "status": pa.array(
                [status.get(row["status"], row["status"]) for row in rows], pa.string()
            ).cast(names),
            "reason": pa.array(
                [row["reason"] if r else None for r, row in zip(refused, rows, strict=True)],
                pa.string(),
            ),
            "note": pa.array(
                ["J read as X" if p and n % 7 == 0 else None for n, p in enumerate(planned)],
                pa.string(),
            ),
            "shard": pa.array(["e" * 32 if p else None for p in planned], pa.string()).cast(names),
            "row": pa.array([0 if p else None for p in planned], pa.int32()),
        }
        pq.write_table(pa.table(table), root / "records.parquet", compression="zstd")

    def _write_failed(self, root: Path, rows: list[dict[str, object]]) -> None:
        with (root / "failed.tsv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(["id", "line", "source", "status", "reason"])
            for row in rows:
                if row["status"] in ("failed", "refused"):
                    where = [row["id"], row["line"], "data/demo.fa"]
                    writer.writerow([*where, row["status"], row["reason"]])

    def _write_embeddings(self, root: Path, rows: list[dict[str, object]]) -> None:
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

    def _receipts(self, rows: list[dict[str, object]]) -> list[Receipt]:
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
            receipts.append(
                Receipt(
                    shard=hashlib.sha256(f"shard {n}".encode()).hexdigest()[:32],
                    recipe=RECIPE,
                    part=f"{n:032x}",
                    rows=len(mine),
                    ok=len(mine) - failed,
                    failed=failed,
                    batches=9,
                    resumed_batches=self.resumed_batches if n == 1 else 0,
                    retries=0,
                    oom_splits=self.oom_splits if n == 2 else 0,
                    seconds={stage: round(value, 3) for stage, value in seconds.items()},
                    started=started.isoformat(timespec="milliseconds"),
                    finished=finished.isoformat(timespec="milliseconds"),
                    cost=cost,
                    payload_bytes=sum(row["length"] for row in mine),
                    devices=[UsedDevice(**self.devices[which])],
                    host=f"node{which // 4 + 1:02d}",
                    threads=2,
                    batch_cost=4096,
                    peak_memory_mb=1830,
                    versions={"featuremill": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
                    backend="sdpa",
                )
            )
        return receipts

    def _measured(self, root: Path, number: int, receipt: Receipt) -> Receipt:
        """Return the receipt with what samples come to, and write them as extract does."""
        total = receipt.seconds["total"]
        told = (
            Usage(
                samples=int(total),
                energy_j=round(400 * total, 1),
                utilisation_percent=90.0,
                memory_mb=41_000,
                power_w=400.0,
                temperature_c=71,
                throttled_seconds={"power_cap": round(total / 4, 1)},
            )
            if receipt.is_on_gpu
            else Usage(samples=int(total), cpu_percent=150.0, process_memory_mb=640)
        )
        receipt = receipt.model_copy(update={"telemetry": told})
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

    def _attempt(
        self, receipt: Receipt, begin: float, seconds: float, name: str
    ) -> list[dict[str, Any]]:
        random = np.random.default_rng(len(name) + int(begin) % 1000)
        device, cost = receipt.devices[0], receipt.cost
        common = {"version": 1, "shard": receipt.shard, "host": receipt.host}
        events: list[dict[str, Any]] = [
            {"event": "start", "time": begin, **common, "rows": receipt.rows, "cost": cost},
            {"event": "sample", "time": begin + 0.1, "stage": "wait"},
            {"event": "device", "time": begin + 0.2, "devices": [device.as_json()]},
        ]
        for second in np.arange(0.5, seconds, 1.0).tolist():
            share = max(0.0, (second - 1.5) / (seconds - 1.5))
            values: dict[str, Any] = {"process": {"cpu_percent": 150 + second, "memory_mb": 640}}
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


def energy_of(receipts: Iterable[Receipt]) -> dict[str, float]:
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

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.words: list[str] = []
        self.data: dict[str, dict] = {}
        self._inside = ""
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
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

    def assert_self_contained(self) -> None:
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


def make(root: Path, *arguments: str) -> Page:
    output = root / "report.html"
    assert __main__.main(["report", str(root), "--output", str(output), "--quiet", *arguments]) == 0
    page = Page(output)
    page.assert_self_contained()
    return page


def points_of(page: Page) -> list[dict[str, Any]]:
    """Return the points of the map, each with what it has of each colour: a name or a number."""
    of = page.map
    rows = [
        {"id": id, "description": d} for id, d in zip(of["ids"], of["descriptions"], strict=True)
    ]
    for colour in of["colours"]:
        values = colour.get("values")
        if values is None:
            codes = np.frombuffer(base64.b64decode(colour["codes"]), "<u2")
            values = [None if code == 0 else colour["names"][code - 1] for code in codes]
        for row, value in zip(rows, values, strict=True):
            row[colour["title"]] = value
    return rows


def rows_of(page: Page, name: str) -> list[dict]:
    datasets = page.data[f"data-{name}"]
    found = datasets.get("data") or datasets["layer"][0]["data"]
    return found["values"]
