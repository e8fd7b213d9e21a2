"""report: what stands beside the parts and in the user's tables: telemetry, labels."""

import gzip
import json
import re
import shlex
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import edited, ran
from report_runs import H200, HOSTILE, FakeRun, energy_of, make, points_of, rows_of

from featuremill import __main__
from featuremill.base import words
from featuremill.report import facts
from featuremill.store.receipt import Receipt

L4 = {"kind": "cuda", "uuid": "GPU-9f0c2a3b-0000-4444-8888-000000000009", "name": "NVIDIA L4"}


def refusal(root, capsys, *arguments, status=2):
    assert __main__.main(["report", str(root), *arguments]) == status
    return capsys.readouterr().err


def test_bars_are_pale_where_a_gpu_was_idle_and_earlier_attempts_have_their_own(tmp_path):
    run = FakeRun(ok=400, devices=(H200, L4), num_shards=6, telemetry="files", stopped_attempts=1)
    root = run.write(tmp_path / "demo")
    with edited(root / "manifest.json") as manifest:
        for receipt, percent in zip(manifest["receipts"], (90, 20, 90, 90, 90, None), strict=True):
            receipt["telemetry"]["utilisation_percent"] = percent
    page = make(root)
    bars = rows_of(page, "timeline")
    lanes = {"GPU 0 (1f0c) · NVIDIA H200 · node01", "GPU (9f0c) · NVIDIA L4 · node01"}
    assert {bar["device"] for bar in bars} == lanes
    assert sorted(bar["busy"] for bar in bars) == [20, 90, 90, 90, 90, 100, 100]
    uses = sorted(bar["utilisation"] for bar in bars)
    assert uses == ["20 %", *["90 %"] * 4, "–", "–"], "the last shard and the earlier attempt"
    assert [bar["state"] for bar in bars].count("cut short") == 1
    assert "1 earlier attempt ended before the shard was done" in page.text
    assert "The lower the utilisation of a GPU, the paler is its bar." in page.text
    assert "GPUs lowered their clocks: power cap" in page.text


def test_energy_is_of_the_residues_and_of_nobody_elses_work(tmp_path):
    root = FakeRun(ok=40, num_shards=2, telemetry="receipts").write(tmp_path / "demo")
    of = ((1_200, 3_000), (1_800, 1_000))
    with edited(root / "manifest.json") as manifest:
        for receipt, (joules, residues) in zip(manifest["receipts"], of, strict=True):
            receipt["telemetry"]["energy_j"], receipt["payload_bytes"] = joules, residues
        manifest |= energy_of(map(Receipt.model_validate, manifest["receipts"]))
    text = make(root).text.replace("\u00a0", " ")
    assert "The GPUs took 3.00 kJ: 750 kJ for a million residues." in text
    with edited(root / "manifest.json") as manifest:
        manifest["gpu_energy_j_per_million"] = 4_321.0  # as with equal sequences
    assert ": 4.32 kJ for a million residues." in make(root).text.replace("\u00a0", " ")
    with edited(root / "manifest.json") as manifest:
        first, second = manifest["receipts"]
        second["started"], second["finished"] = first["started"], first["finished"]
    assert "for a million residues" not in make(root).text, "two jobs saw one GPU's energy"


def test_the_energy_of_a_gpu_that_jobs_shared_is_not_added_up(tmp_path):
    """As with FEATUREMILL_SLOTS_PER_GPU=2, or on the slices of one GPU, whose lanes differ."""
    slices = tuple({**H200, "uuid": f"MIG-{n}"} for n in "ab")
    run = FakeRun(num_shards=2, telemetry="receipts", devices=slices)
    root = run.write(tmp_path / "demo")
    with edited(root / "manifest.json") as manifest:
        for receipt in manifest["receipts"]:
            receipt["telemetry"]["of_whole_gpu"] = ["energy_j", "power_w"]
        del manifest["gpu_energy_j"], manifest["gpu_energy_j_per_million"]
    assert "for a million residues" not in make(root).text


def test_wall_time_is_what_the_timeline_shows_of_an_interrupted_run(tmp_path):
    root = FakeRun(telemetry="files", stopped_attempts=4).write(tmp_path / "demo")
    page, found = make(root), facts.read(root)
    bars = rows_of(page, "timeline")
    assert [bar["state"] for bar in bars].count("cut short") == 4
    assert found.wall_seconds > 30
    assert found.wall_seconds == pytest.approx(max(bar["end"] for bar in bars), abs=1e-3)
    (lane,) = found.lanes
    spans = sorted((bar["begin"], bar["end"]) for bar in bars)
    gaps = sum(max(0.0, b - max(e for _, e in spans[:n])) for n, (b, _) in enumerate(spans) if n)
    assert found.busy_seconds(lane) == pytest.approx(found.wall_seconds - gaps, abs=1e-3)
    busy = words.share(found.busy_seconds(lane), found.wall_seconds)
    for said in (
        f"{words.duration(found.wall_seconds)} from the first shard to the last, on 1 GPU",
        f"passed; of that, the device was busy {busy}; gaps",
    ):
        assert " ".join(said.split()) in page.text


def test_wall_time_speed_and_idle_time_are_worked_out_by_hand(tmp_path):
    """Two shards of 6,000 and 2,000 tokens, 40 and 20 s of one device, with 20 s between them."""
    root = FakeRun(num_shards=2).write(tmp_path / "demo")
    clock = "2026-11-20T10:{}.000+00:00".format
    of = ((6_000, "00:00", "00:40"), (2_000, "01:00", "01:20"))
    with edited(root / "manifest.json") as manifest:
        for receipt, (cost, begin, end) in zip(manifest["receipts"], of, strict=True):
            receipt |= {"cost": cost, "started": clock(begin), "finished": clock(end)}
            receipt["seconds"]["wait"] = 0.0
    text = make(root).text.replace("\u00a0", " ")
    for said in ("1 min 20 s from the first shard", "With them, 100 tokens/s.", "was busy 75 %;"):
        assert said in text, said


def test_rubbish_beside_the_parts_costs_no_report(tmp_path):
    run = FakeRun(ok=400, num_shards=2, telemetry="files", stopped_attempts=2)
    root = run.write(tmp_path / "demo")
    for path in (root / "store").rglob("*.telemetry.jsonl"):
        lines = path.read_text().splitlines()
        name = json.dumps(HOSTILE)
        device = f'{{"event":"device","time":1,"devices":[{{"kind":"cuda","uuid":{name}}}]}}'
        odd = ['{"event":"sample","time":1e9,"stage":"run","devices":[{"uuid":4},{}]}', "[", device]
        path.write_text("\n".join([lines[0], *odd, *lines[1:]]))
    page = make(root)
    assert [bar["state"] for bar in rows_of(page, "timeline")].count("computed") == 2
    assert "<script>alert" not in page.source


def test_troubles_of_shards_are_listed_with_what_helps(tmp_path):
    page = make(FakeRun(oom_splits=5, resumed_batches=2).write(tmp_path / "demo"))
    assert "memory ran out, batches were halved 5 1 Nothing is lost but time." in page.text
    assert "batches were kept from before a stop or a crash 2 1" in page.text
    page = make(FakeRun().write(tmp_path / "good"))
    assert "No shard ran out of memory" in page.text
    assert "Fewer, larger shards" in page.text
    page = make(FakeRun(num_shards=1).write(tmp_path / "one"))
    assert "Fewer, larger shards" not in page.text, "there are no fewer"
    waited = FakeRun().write(tmp_path / "waited")
    with edited(waited / "manifest.json") as manifest:
        for receipt, seconds in zip(manifest["receipts"], (10, 11, 0, 40), strict=True):
            receipt["seconds"] |= {"compute": 100.0, "waited_for_disk": seconds}
    found = make(waited).text
    assert "the device waited for the disk, for more than 10% of its time 2 2 Nothing is" in found
    assert "memory ran out, batches" not in found
    crashed = FakeRun().write(tmp_path / "crashed")
    with edited(crashed / "manifest.json") as manifest:
        for receipt in manifest["receipts"]:
            receipt["retries"] = 1
    page = make(crashed)
    assert "Fewer, larger shards" not in page.text
    assert "worker died count as other: see the shards that had trouble" in page.text


# -- labels


def table(path, rows, separator="\t"):
    text = "".join(separator.join(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def names_of(page):
    return {row["id"]: row["family"] for row in points_of(page)}


def test_a_column_colours_the_map_by_accession_too(tmp_path, capsys):
    root = FakeRun().write(tmp_path / "demo")
    rows = [("Entry", "family", "score"), ("P00001", HOSTILE, "1"), ("P00002", "kinase", "2")]
    rows += [("sp|P00003|FAKE_3", "kinase", "x"), ("P00004", " ", "4")]
    rows += [("P00004", "kinase", "4"), ("P99999", "nobody's", "5"), ("P00005",)]
    path = table(tmp_path / "labels.tsv.gz", rows)
    page = make(root, "--label-file", str(path), "--label", "family")
    names = names_of(page)
    kinases = {id for id, name in names.items() if name == "kinase"}
    assert kinases == {"sp|P00002|FAKE_2", "sp|P00003|FAKE_3", "sp|P00004|FAKE_4"}
    assert names["sp|P00005|FAKE_5"] is None and len(names) == 40
    assert "Coloured by family of labels.tsv.gz, which has a label for 4 of them." in page.text
    assert re.search(
        r"By these 2 labels, the silhouette of 4 records is -?\d\.\d{3} .*, and of each record's 3 "
        r"nearest, [\d.]+ ?% have its label \(kNN purity; 50 ?% by chance\); distances are Eucl",
        page.text,
    )
    assert "<script>alert" not in page.source
    assert "column: family" in page.text, "the config to do it again has it"
    columns = zip(*(row for row in rows if len(row) == 3), strict=True)
    pq.write_table(pa.table({name: values for name, *values in columns}), tmp_path / "l.parquet")
    again = make(root, "--label-file", str(tmp_path / "l.parquet"), "--label", "family")
    assert names_of(again) == names
    path.write_bytes(gzip.compress(b"acc\tEntry\tfamily\nx\tP00002\tkinase\n"))

    def named_by(column):
        return ["--label-file", str(path), "--label", "family", "--id-column", column]

    page = make(root, *named_by("Entry"))
    assert list(names_of(page).values()).count("kinase") == 1
    assert "id_column: Entry" in page.text, "the config to do it again has it"
    assert __main__.main(["report", str(root), *named_by("Entry")]) == 0
    said = capsys.readouterr().err
    assert "1 of 40 records on the map have a label in family of labels.tsv.gz." in said
    make(root, *named_by("acc"))
    assert "by its id or accession: the first id is 'x'" in capsys.readouterr().err
    for second in ("P00003", "sp|P00003|FAKE_3"):
        rows = [("Entry", "family"), ("sp|P00003|FAKE_3", "kinase"), (second, "later")]
        said = refusal(root, capsys, "--label-file", str(table(path, rows)), "--label", "family")
        assert f"{path}:3: {second!r} " in said and "in line 2" in said


def test_rare_labels_are_grey_and_numbers_a_ramp(tmp_path):
    root = FakeRun(ids="p{0}").write(tmp_path / "demo")
    rows = [("id", "kind", "score")]
    rows += [(f"p{n}", f"kind {n if n > 30 else n % 8}", f"{n / 8}") for n in range(40)]
    path = table(tmp_path / "labels.csv", rows, ",")
    page = make(root, "--label-file", str(path), "--label", "kind")
    assert [row["kind"] for row in points_of(page)] == [row[1] for row in rows[1:]]
    kinds = page.map["colours"][0]
    assert kinds["title"] == "kind" and len(kinds["names"]) == 17
    assert kinds["names"][:7] == [f"kind {n}" for n in range(7)], "the commonest have colours"
    assert "10 rarer labels are grey" in page.text
    page = make(root, "--label-file", str(path), "--label", "score")
    assert "silhouette" not in page.text, "numbers are no names"
    assert [row["score"] for row in points_of(page)] == [n / 8 for n in range(40)]
    titles = [colour["title"] for colour in page.map["colours"]]
    assert titles == ["score", "length", "kind", "distance to the nearest"]


def test_labels_that_cannot_be_had_are_said(tmp_path, capsys):
    root = FakeRun().write(tmp_path / "demo")
    path = table(tmp_path / "labels.tsv", [("id", "family"), ("other", "kinase")])
    page = make(root, "--label-file", str(path), "--label", "family")
    assert "labels.tsv has no row with the id of one of them" in page.text
    (warned,) = (line for line in capsys.readouterr().err.splitlines() if "no record" in line)
    first = "the first id is 'other', and the run's first is 'sp|P00000|FAKE_0'"
    none = f"{path}: no record on the map has a family there, by its id or accession: {first};"
    assert f"{none} the map is coloured by length." in warned
    assert page.map["colours"][0]["title"] == "length"
    file = ("--label-file", str(path))
    said = refusal(root, capsys, *file, "--label", "famly")
    assert "there is no column 'famly'; it has 'id', 'family'" in said
    assert "belong together" in refusal(root, capsys, *file)
    gone = str(tmp_path / "gone.tsv")
    assert "does not exist" in refusal(root, capsys, "--label-file", gone, "--label", "family")
    table(path, [("who", "family"), ("other", "kinase")])
    assert "call the right one 'id'" in refusal(root, capsys, *file, "--label", "family")


# -- a disk that is full


def test_a_disk_that_takes_no_more_is_named(tmp_path):
    root = FakeRun().write(tmp_path / "demo")
    command = f"ulimit -f 100; exec {shlex.quote(sys.executable)} -m featuremill report {root}"
    done = ran("bash", "-c", command)
    assert done.returncode == 1
    assert f"{root / 'report.html'}: File too large; nothing is lost" in done.stderr
    assert not list(root.glob("*report.html*"))


def test_damaged_telemetry_in_the_manifest_is_no_traceback(tmp_path, capsys):
    root = FakeRun(telemetry="receipts").write(tmp_path / "demo")
    with edited(root / "manifest.json") as manifest:
        manifest["receipts"][0]["telemetry"]["energy_j"] = "much"
    said = refusal(root, capsys, status=4)
    assert "manifest.json: its content is not what was written; delete it" in said
