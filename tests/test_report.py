"""report: the numbers, the escaping, the self-containment; and the page in a real browser."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import hashlib
import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featuremill import __main__, config, reasons, receipts, report
from featuremill.errors import UserError
from featuremill.report import projection, timeline, words
from featuremill.report.timeline import Interval

FIGURES = {"accounting", "timeline", "throughput", "stages", "lengths", "embeddings"}
HOSTILE = "</script><script>alert('x')</script><img src=http://evil.example/x.png>&\u202eabc"
STARTED = datetime.datetime(2026, 11, 20, 10, tzinfo=datetime.UTC)
H200 = {"kind": "cuda", "uuid": "GPU-1f0c2a3b-0000-4444-8888-000000000001", "name": "NVIDIA H200"}
CPU = {"kind": "cpu", "uuid": "cpu", "name": "AMD EPYC 9654 96-Core Processor"}


@dataclasses.dataclass
class FakeRun:
    """A merged run, written exactly as merge writes it."""

    ok: int = 40
    failed: int = 0
    refused: int = 0
    duplicate: int = 0
    devices: tuple[dict[str, str], ...] = (H200,)
    num_shards: int = 4
    columns: tuple[str, ...] = ("mean_layer_6",)
    width: int = 16
    reasons: tuple[str, ...] = ("not an amino acid: '1' at residue 7",)
    failed_reason: str = "out of memory: OutOfMemoryError: tried to allocate 12 GiB"
    ids: str = "sp|P{0:05d}|FAKE_{0}"
    gap_seconds: float = 0.0
    resumed_batches: int = 0
    parquet: bool = True
    warnings: tuple[str, ...] = ()
    workload: str = "esm2"
    options: dict[str, object] = dataclasses.field(
        default_factory=lambda: {"model": "mill_t6_1M", "layers": [6], "dtype": "bf16"}
    )

    def write(self, root: Path) -> Path:
        root.mkdir(parents=True)
        rows = self._rows()
        self._write_manifest(root, rows)
        self._write_failed(root, rows)
        outputs = {"per-protein.h5": {"bytes": 123_456, "sha256": "b" * 64}}
        if self.parquet:
            self._write_embeddings(root, rows)
            outputs["embeddings.parquet"] = {"bytes": 5_432_100, "sha256": "a" * 64}
        receipts = self._receipts(rows)
        manifest = {
            "run": root.name,
            "finished": "2026-11-20T10:30:00.000+00:00",
            "recipe": "0123456789abcdef" * 2,
            "settings": {
                "workload": self.workload,
                "version": "1",
                "options": self.options,
                "weights_sha256": "c" * 64,
            },
            "plan": {"input": len(rows), "planned": self.ok + self.failed},
            "counts": {
                "input": len(rows),
                "ok": self.ok,
                "failed": self.failed,
                "refused": self.refused,
                "duplicate": self.duplicate,
            },
            "parts": {receipt["shard"]: receipt["part"] for receipt in receipts},
            "receipts": receipts,
            "outputs": outputs,
            "inputs": [
                {"path": "data/demo.fa", "bytes": 512_000, "records": len(rows), "sha256": "d" * 64}
            ],
            "notes": {"J read as X": 142} if self.ok > 500 else {},
            "gpu_seconds": sum(
                r["seconds"]["total"] for r in receipts if r["devices"][0]["kind"] == "cuda"
            ),
            "warnings": list(self.warnings),
        }
        (root / "manifest.json").write_text(json.dumps(manifest))
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
        pq.write_table(pa.table(table), root / "manifest.parquet", compression="zstd")

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

    def _receipts(self, rows: list[dict[str, object]]) -> list[dict[str, object]]:
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
                {
                    "version": 1,
                    "shard": hashlib.sha256(f"shard {n}".encode()).hexdigest()[:32],
                    "recipe": "0123456789abcdef" * 2,
                    "part": f"{n:032x}",
                    "rows": len(mine),
                    "ok": len(mine) - failed,
                    "failed": failed,
                    "batches": 9,
                    "resumed_batches": self.resumed_batches if n == 1 else 0,
                    "retries": 0,
                    "oom_splits": 0,
                    "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
                    "started": started.isoformat(timespec="milliseconds"),
                    "finished": finished.isoformat(timespec="milliseconds"),
                    "cost": cost,
                    "devices": [self.devices[which]],
                    "host": f"node{which // 4 + 1:02d}",
                    "threads": 2,
                    "batch_cost": 4096,
                    "peak_memory_mb": 1830,
                    "versions": {"featuremill": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
                    "backend": "sdpa",
                }
            )
        return receipts


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


def rows_of(page: Page, name: str) -> list[dict]:
    datasets = page.data[f"data-{name}"]
    found = datasets.get("data") or datasets["layer"][0]["data"]
    return found["values"]


def test_numbers_stand_in_the_page(tmp_path: Path) -> None:
    run = FakeRun(ok=990, failed=3, refused=5, duplicate=2, devices=(H200, CPU), num_shards=6)
    run.warnings = ("parts were computed on different devices: CPU, NVIDIA H200.",)
    page = make(run.write(tmp_path / "demo"))
    assert "All 1,000 records are accounted for" in page.text
    assert "1,000 input = 990 ok + 3 failed + 5 refused + 2 duplicate" in page.text
    assert "J read as X: 142 records." in page.text
    assert "6 shards on 2 devices of" not in page.text and "6 shards on 2 devices." in page.text
    assert "Parts were computed on different devices" in page.text
    for said in ("0123456789abcdef" * 2, "d" * 64, "a" * 64, "options.dtype bf16", "2.13.0"):
        assert said in page.text
    assert "out of memory" in page.text and "Use one with more memory" in page.text
    lengths = rows_of(page, "lengths")
    assert sum(row["count"] for row in lengths) == 993
    manifest = pq.read_table(tmp_path / "demo/manifest.parquet").to_pylist()
    residues = [row["length"] for row in manifest if row["status"] == "planned"]
    assert f"993 records with {sum(residues):,} residues" in page.text
    assert f"the longest has {max(residues):,}" in page.text
    assert len(rows_of(page, "embeddings")) == 990
    assert len(rows_of(page, "timeline")) == len(rows_of(page, "throughput")) == 6
    assert page.source.count("window.vegaEmbed") == 1
    assert len(page.source.encode()) < 5e6


def test_config_to_do_it_again_is_valid(tmp_path: Path) -> None:
    run = FakeRun(failed=2, workload="composition", options={"hydropathy": False})
    page = make(run.write(tmp_path / "demo"))
    text = re.search(r"<pre>(run:.*?)</pre>", page.source, re.DOTALL)
    assert text
    (tmp_path / "demo.yaml").write_text(text.group(1))
    again = config.read(tmp_path / "demo.yaml")
    assert (again.run, again.device, again.max_failed) == ("demo", "cuda", 2)
    assert again.outputs == ("parquet", "per_protein_h5")
    assert again.options == {"hydropathy": False}
    assert "snakemake --configfile demo.yaml --cores all --resources gpu=1" in page.text


def test_strangers_text_is_only_text(tmp_path: Path) -> None:
    run = FakeRun(refused=1, failed=1, ids=HOSTILE + "{0}", reasons=(f"bad {HOSTILE}",))
    run.failed_reason = f"{HOSTILE}: {HOSTILE * 3_000}"
    page = make(run.write(tmp_path / "demo"), "--figures", str(tmp_path / "figures"))
    for each in (page, *(Page(path) for path in (tmp_path / "figures").iterdir())):
        assert not [tag for tag, _ in each.elements if tag == "img"]
        assert not any("alert" in script for script in each.scripts)
        assert "<script>alert" not in each.source
    assert rows_of(page, "embeddings")[0]["id"].startswith(HOSTILE)
    assert HOSTILE in " ".join(page.words)


def test_figures_are_files_of_their_own(tmp_path: Path) -> None:
    make(FakeRun(refused=3).write(tmp_path / "demo"), "--figures", str(tmp_path / "figures"))
    files = {path.stem: path for path in (tmp_path / "figures").iterdir()}
    assert set(files) == FIGURES
    captions = Path(__file__).parents[1] / "workflow/report"
    assert {path.stem for path in captions.glob("*.rst")} == FIGURES | {"report"}
    for name, path in files.items():
        page = Page(path)
        page.assert_self_contained()
        assert set(page.data) == ({f"data-{name}"} if name != "accounting" else set())
        assert path.stat().st_size < 1.5e6
    assert "43 input = 40 ok" in Page(files["accounting"]).text


def test_same_files_same_page(tmp_path: Path) -> None:
    root = FakeRun(failed=1, devices=(H200, CPU)).write(tmp_path / "demo")
    assert make(root).source == make(root).source


@pytest.mark.parametrize(
    ("run", "says", "charts"),
    [
        (FakeRun(ok=0, refused=4), "Nothing|nothing to show", 0),
        (FakeRun(ok=0, failed=4, num_shards=2), "A map needs at least three records", 4),
        (FakeRun(ok=1, num_shards=1), "The one record is accounted for", 4),
        (FakeRun(parquet=False), "add parquet to its outputs", 4),
        (FakeRun(width=1), "have one dimension", 4),
        (FakeRun(columns=()), "no vectors of a fixed width", 4),
        (FakeRun(columns=("bos_layer_3", "mean_layer_6")), "also holds mean_layer_6", 5),
        (FakeRun(resumed_batches=4), "1 resumed shard left out", 5),
        (FakeRun(gap_seconds=86_400), "long pauses cut", 5),
    ],
)  # fmt: skip
def test_odd_runs(tmp_path: Path, run: FakeRun, says: str, charts: int) -> None:
    page = make(run.write(tmp_path / "demo"))
    assert re.search(says, page.text + json.dumps(page.data))
    assert len(page.data) == charts


def test_contradictions_are_not_smoothed_over(tmp_path: Path) -> None:
    root = FakeRun(refused=2).write(tmp_path / "demo")
    lines = (root / "failed.tsv").read_text().splitlines(keepends=True)
    (root / "failed.tsv").write_text("".join(lines[:-1]))
    page = make(root)
    assert "accounted for" not in page.text.partition("Failures")[0]
    assert "failed.tsv holds 1 records where manifest.json says 2." in page.text
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["counts"]["ok"] -= 1
    (root / "manifest.json").write_text(json.dumps(manifest))
    assert "1 record not accounted for" in make(root).text


def test_not_merged_is_a_user_error(tmp_path: Path) -> None:
    arguments = __main__._parser("report").parse_args(["report", str(tmp_path)])
    with pytest.raises(UserError, match="no merged results"):
        report.run(arguments)


def test_many_records_take_seconds(tmp_path: Path) -> None:
    root = FakeRun(ok=100_000, refused=2_000, num_shards=5_000, width=64).write(tmp_path / "big")
    start = time.process_time()
    page = make(root)
    assert time.process_time() - start < 10
    assert "5,000 of 100,000 records, evenly spaced in the file" in page.text
    assert len(rows_of(page, "embeddings")) == 5_000
    assert len(rows_of(page, "timeline")) <= timeline.MAX_BARS + 2
    assert len(page.source.encode()) < 5e6


def test_principal_plane_agrees_with_the_exact_one() -> None:
    random = np.random.default_rng(0)
    values = random.normal(0, 1, (600, 200)) * np.geomspace(9, 1, 200)
    values = values.astype(np.float32)
    xy, explained = projection.principal_plane(values)
    exact = np.linalg.svd(values - values.mean(0), full_matrices=False)
    assert explained == pytest.approx(exact.S[:2] ** 2 / (exact.S**2).sum(), rel=1e-3)
    for axis in range(2):
        assert abs(np.corrcoef(xy[:, axis], exact.U[:, axis])[0, 1]) > 0.999
    same, none = projection.principal_plane(np.ones((5, 3), np.float32))
    assert np.abs(same).max() == 0 and none == (0, 0)


def test_timeline_keeps_lanes_apart_and_cuts_pauses() -> None:
    spans = [Interval(0, 10), Interval(10, 20), Interval(5, 12), Interval(100_000, 100_010)]
    layout = timeline.lay_out(spans, ["a", "a", "b", "a"])
    assert layout.lanes == ["a", "b"]
    assert [pause.seconds for pause in layout.pauses] == [99_980]
    assert layout.end == pytest.approx(30 + 0.03 * 30)
    assert all(bar.end - bar.begin in (10, 7) for bar in map(_whole, layout.bars))
    assert timeline.lay_out(spans[:3], ["a", "a", "a"]).lanes == ["a", "a"]
    assert timeline.seconds_of(spans) == timeline.wall_seconds(spans) == 30
    assert timeline.wall_seconds([Interval(0, 10), Interval(50, 60)]) == 60


def _whole(bar: timeline.Bar) -> timeline.Bar:
    return bar._replace(begin=round(bar.begin, 6), end=round(bar.end, 6))


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("empty sequence", "Restore the sequence"),
        ("no id", "an id of its own"),
        ("not an amino acid", "X stands for"),
        ("stop codon (*) inside the sequence", "frame shift"),
        ("out of memory", "more memory"),
        ("values are not finite", "fp32"),
        ("crashed the worker twice", "another device"),
        ("error in the workload", "traceback"),
        ("a reason of a workload unheard of", "mend or remove it"),
    ],
)
def test_every_reason_has_a_remedy(reason: str, remedy: str) -> None:
    assert remedy in reasons.kind_of(reason).remedy


def test_words() -> None:
    seconds = (0.04, 9.96, 59.7, 83, 3_600, 7_500, 200_000)
    assert [words.duration(s).replace(words.NBSP, " ") for s in seconds] == [
        "0.0 s", "10 s", "1 min", "1 min 23 s", "1 h", "2 h 5 min", "2 d 7 h",
    ]  # fmt: skip
    numbers = (0, 999, 999.7, 12_345, 186_700_000, 9.99e14)
    short = [words.short(n).replace(words.NBSP, " ") for n in numbers]
    assert short == ["0", "999", "1.00 k", "12.3 k", "187 M", "999 T"]
    shares = [words.share(n, 1_000).replace(words.NBSP, " ") for n in (0, 1, 10, 999)]
    assert shares == ["0 %", "under 1 %", "1 %", "100 %"]


# -- in a real browser


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def browse(path: Path, profile: Path, *arguments: str) -> tuple[str, str]:
    """Open `path` in a headless Chromium; return the page as drawn, and the console."""
    assert CHROMIUM
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-background-networking --disable-component-update --enable-logging=stderr "
        "--virtual-time-budget=20000"
    )
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={profile}", *arguments, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, "\n".join(console)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")
def test_a_browser_draws_everything_without_a_word(tmp_path: Path) -> None:
    run = FakeRun(ok=990, failed=3, refused=5, duplicate=2, devices=(H200, CPU), num_shards=12)
    run.ids = "x" + HOSTILE + "{0}"
    root = run.write(tmp_path / "demo")
    make(root, "--figures", str(tmp_path / "figures"))
    dom, console = browse(root / "report.html", tmp_path / "profile", "--dump-dom")
    assert console == ""
    assert 'data-drawn="5"' in dom
    assert len(re.findall(r'<svg [^>]*class="marks"', dom)) == 4
    assert len(re.findall(r"<canvas [^>]*class=\"marks\"", dom)) == 1
    for name in sorted(FIGURES):
        file = tmp_path / "figures" / f"{name}.html"
        dom, console = browse(file, tmp_path / "profile", "--dump-dom")
        assert console == "", name
        assert len(re.findall(r'class="marks"', dom)) == (name != "accounting")


def test_a_receipt_of_version_1_is_read():
    device = {"kind": "cuda", "uuid": "GPU-1", "name": "NVIDIA L4"}
    other = {**device, "uuid": "GPU-2"}
    assert receipts.devices_of({"device": device}) == [device]
    assert receipts.device_name({"device": device}) == "NVIDIA L4"
    assert receipts.device_name({"devices": [device, other]}) == "2 × NVIDIA L4"
    third = {**device, "name": "NVIDIA A2"}
    assert receipts.device_name({"devices": [device, third, other]}) == "2 × NVIDIA L4 + NVIDIA A2"
