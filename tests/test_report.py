"""report: the numbers, the escaping, the self-containment."""

import json
import re
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import vl_convert
from programs import edited
from report_runs import CPU, H200, HOSTILE, FakeRun, make, points_of, rows_of

from featuremill import config
from featuremill.base import reasons, words
from featuremill.report import page as report_page
from featuremill.report import timeline
from featuremill.report.shards import Interval, Piece, busy_seconds, wall_seconds
from featuremill.steps.maps import plane
from featuremill.store.receipt import Receipt


def test_numbers_stand_in_the_page(tmp_path):
    run = FakeRun(ok=990, failed=3, refused=5, duplicate=2, devices=(H200, CPU), num_shards=6)
    run.warnings = ("parts were computed on different devices: CPU, NVIDIA H200.",)
    page = make(run.write(tmp_path / "demo"))
    told = "990 of 1,000 records have features, 3 failed, 5 were refused, 2 are duplicates"
    assert told in page.text and '<p class="verdict warn">' in page.source
    assert "1,000 input = 990 ok + 3 failed + 5 refused + 2 duplicate" in page.text
    assert "J read as X: 142 records." in page.text
    assert page.source.count('data-label="Work:">50 %<') == 2
    assert "6 shards on 2 devices of" not in page.text and "6 shards on 2 devices." in page.text
    assert "Parts were computed on different devices" in page.text
    for said in ("0123456789abcdef" * 2, "d" * 64, "a" * 64, "options.dtype bf16", "2.13.0"):
        assert said in page.text
    assert "out of memory" in page.text and "Use one with more memory" in page.text
    lengths = rows_of(page, "lengths")
    assert sum(row["count"] for row in lengths) == 993
    manifest = pq.read_table(tmp_path / "demo/records.parquet").to_pylist()
    residues = [row["length"] for row in manifest if row["status"] == "planned"]
    assert f"993 records with {sum(residues):,} residues" in page.text
    assert f"the longest has {max(residues):,}" in page.text
    assert len(points_of(page)) == 990
    assert len(rows_of(page, "timeline")) == 6
    assert page.source.count("window.vegaEmbed") == 1
    assert len(page.source.encode()) < 4e6


def config_in(page, path):
    """Return the config that the page shows, read from a file at `path`."""
    path.write_text(re.search(r"<pre>(run:.*?)</pre>", page.source, re.DOTALL)[1])
    return config.read(path)


def test_config_to_do_it_again_is_valid(tmp_path):
    run = FakeRun(failed=2, workload="composition", options={"hydropathy": False})
    page = make(run.write(tmp_path / "demo"))
    again = config_in(page, tmp_path / "demo.yaml")
    assert (again.run, again.device, again.max_failed) == ("demo", "cuda", 2)
    assert again.outputs == ("parquet", "per_protein_h5")
    assert again.options.hydropathy is False
    assert "featuremill run demo.yaml --resources gpu=1" in page.text


def test_strangers_text_is_only_text(tmp_path):
    run = FakeRun(refused=1, failed=1, ids=HOSTILE + "{0}", reasons=(f"bad {HOSTILE}",))
    run.failed_reason = f"{HOSTILE}: {HOSTILE * 3_000}"
    page = make(run.write(tmp_path / "demo"))
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert not any("alert" in script for script in page.scripts)
    assert "<script>alert" not in page.source
    assert points_of(page)[0]["id"].startswith(HOSTILE)
    assert HOSTILE in " ".join(page.words)


def test_the_page_is_in_the_order_of_its_reader(tmp_path):
    """Results, map, what was refused, neighbours, lengths; then the machines, folded."""
    page = make(FakeRun(failed=1, devices=(H200, CPU), telemetry="files").write(tmp_path / "demo"))
    page.assert_self_contained()
    sections = [attributes["id"] for tag, attributes in page.elements if tag == "section"]
    records = ["accounting", "embeddings", "failures", "neighbours", "lengths"]
    assert sections == [*records, "provenance", "reproduce", "machines", "timeline"]
    shown = page.source.partition("<details>")[0]
    assert 'id="lengths"' in shown
    for word in ("NVIDIA", "token", "GPU", "digest"):
        assert word not in re.sub(r"<script.*?</script>|<style.*?</style>", "", shown, flags=re.S)


def test_a_run_has_one_time_and_its_figures_stand_once(tmp_path):
    root = FakeRun(devices=(H200, {**H200, "uuid": "GPU-2"}), num_shards=4).write(tmp_path / "demo")
    page = make(root)
    (tile,) = re.findall(r'<div class="tile"><b>([^<]*)</b><span>from the first', page.source)
    assert f"From the first to the last {tile} passed" in page.source
    assert "from the first shard to the last, on 2 GPUs" in page.text


def test_neighbours_that_are_nearly_equal_are_listed(tmp_path):
    root = FakeRun(ok=700).write(tmp_path / "demo")
    table = pq.read_table(root / "embeddings.parquet")
    column = table.schema.get_field_index("mean_layer_6")
    width = table.schema.field(column).type.list_size
    vectors = np.random.default_rng(0).standard_normal((700, width)).astype(np.float32)
    assert (np.corrcoef(vectors) - np.eye(700)).max() < 0.99
    vectors[690], vectors[3] = vectors[5], 0
    vectors[600] = 2 * vectors[40] + np.float32(0.01) * vectors[41]
    vectors[691] = vectors[692] + np.float32(0.02) * vectors[1]
    flat = pa.array(vectors.ravel())
    new = pa.FixedSizeListArray.from_arrays(flat, width)
    table = table.set_column(column, table.schema.field(column).name, new)
    pq.write_table(table, root / "embeddings.parquet")
    page = make(root)
    section = page.source.partition('id="neighbours"')[2].partition("</section>")[0]
    pattern = r"<bdi>sp\|P(\d+)\|.*?<bdi>sp\|P(\d+)\|.*?data-label=\"Cosine:\">([^<]*)<"
    rows = re.findall(pattern, section)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    cosines = np.triu(unit @ unit.T, 1)
    near = {frozenset(map(int, pair)) for pair in zip(*np.nonzero(cosines >= 0.999), strict=True)}
    assert near == {frozenset(map(int, pair)) for *pair, _ in rows} and len(near) == 3
    assert {5, 690} == {int(n) for n in rows[0][:2]} and rows[0][2] == "equal"
    for *pair, told in rows[1:]:
        one, other = sorted(map(int, pair))
        assert float(told) == pytest.approx(cosines[one, other], abs=1e-5)
    assert "3 pairs of the records have cosines of 0.999 or more" in page.text


def test_a_retried_record_is_one_sequence_and_the_unit_is_the_workloads(tmp_path):
    run = FakeRun(num_shards=1, devices=(CPU,), workload="composition", options={})
    root = run.write(tmp_path / "demo")
    page = make(root)
    assert "1 shard " in page.text and "40 distinct sequences" in page.text
    with edited(root / "manifest.json") as manifest:
        retried = {**manifest["receipts"][0], "shard": "f" * 32, "rows": 2, "ok": 2}
        manifest["receipts"].append(retried)
    page = make(root)
    assert "40 distinct sequences" in page.text and "2 shards" in page.text
    assert "token" not in page.text.lower()
    for chart in page.data.values():
        assert not re.search(r'"title": "[^"]*token', json.dumps(chart))


def test_same_files_same_page(tmp_path):
    root = FakeRun(failed=1, devices=(H200, CPU)).write(tmp_path / "demo")
    assert make(root).source == make(root).source


@pytest.mark.parametrize(
    ("run", "says", "charts"),
    [
        (FakeRun(ok=0, refused=4), "Nothing|nothing to show", 0),
        (FakeRun(ok=0, failed=4, num_shards=2), "A map needs at least three records", 2),
        (FakeRun(ok=1, num_shards=1), r"1 record of [\d,]+ residues\.", 1),
        (FakeRun(parquet=False), "add parquet to its outputs", 2),
        (FakeRun(width=1), "have one dimension", 2),
        (FakeRun(columns=()), r"\A((?!The embedding space|nothing to map)[\s\S])*\Z", 2),
        (FakeRun(columns=("bos_layer_3", "mean_layer_6")), "also holds mean_layer_6", 3),
        (FakeRun(resumed_batches=4), "batches were kept from before a stop", 3),
        (FakeRun(gap_seconds=86_400), "passed without the pauses, which the axis has", 3),
    ],
)  # fmt: skip
def test_odd_runs(tmp_path, run, says, charts):
    page = make(run.write(tmp_path / "demo"))
    assert re.search(says, page.text + json.dumps(page.data))
    assert len(page.data) == charts


def test_contradictions_are_not_smoothed_over(tmp_path):
    root = FakeRun(refused=2).write(tmp_path / "demo")
    lines = (root / "failed.tsv").read_text().splitlines(keepends=True)
    (root / "failed.tsv").write_text("".join(lines[:-1]))
    page = make(root)
    assert '<p class="verdict bad">' in page.source
    assert "failed.tsv holds 1 record where manifest.json has 2." in page.text
    with edited(root / "manifest.json") as manifest:
        manifest["counts"]["ok"] -= 1
    assert "1 record not accounted for" in make(root).text


def test_the_libraries_that_draw_it_are_bundled_once_and_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.setenv("FEATUREMILL_CACHE", str(tmp_path / "cache"))
    bundles = []

    def bundle(names, schema):
        bundles.append(schema)
        return "/* the libraries */"

    def check():
        report_page._environment.cache_clear()
        assert report_page._environment().globals["vega"] == "/* the libraries */"

    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    check()
    check()
    assert len(bundles) == 1
    (kept,) = (tmp_path / "cache").rglob("*.js")
    kept.write_text("/* a stranger's */")
    kept.parent.chmod(0o777)  # as where somebody else could have put it
    check()
    kept.parent.chmod(0o700)
    kept.unlink()
    kept.mkdir()  # nothing can be kept: no reason to draw no page
    check()
    report_page._environment.cache_clear()


def test_of_many_records_and_shards_some_are_drawn(tmp_path):
    root = FakeRun(ok=12_000, refused=200, num_shards=3_000).write(tmp_path / "big")
    page = make(root)
    assert "10,000 of 12,000 records, evenly spaced in the file" in page.text
    assert len(points_of(page)) == 10_000
    assert len(rows_of(page, "timeline")) <= timeline.MAX_BARS + 2
    assert len(page.source.encode()) < 4e6


@pytest.mark.slow
def test_a_hundred_thousand_records_take_seconds(tmp_path):
    root = FakeRun(ok=100_000, refused=2_000, num_shards=5_000, width=64).write(tmp_path / "big")
    start = time.process_time()
    page = make(root)
    assert time.process_time() - start < 10
    assert "10,000 of 100,000 records, evenly spaced in the file" in page.text


def test_principal_plane_agrees_with_the_exact_one():
    random = np.random.default_rng(0)
    values = random.normal(0, 1, (600, 200)) * np.geomspace(9, 1, 200)
    values = values.astype(np.float32)
    xy, explained = plane.components(values, 2)
    exact = np.linalg.svd(values - values.mean(0), full_matrices=False)
    assert explained == pytest.approx(exact.S[:2] ** 2 / (exact.S**2).sum(), rel=1e-3)
    for axis in range(2):
        assert abs(np.corrcoef(xy[:, axis], exact.U[:, axis])[0, 1]) > 0.999
    same, none = plane.components(np.ones((5, 3), np.float32), 2)
    assert np.abs(same).max() == 0 and none.tolist() == [0, 0]


def test_the_timeline_keeps_lanes_apart_and_wall_time_leaves_pauses_out():
    spans = [Interval(0, 10), Interval(10, 20), Interval(5, 12), Interval(100_000, 100_010)]
    pieces = [Piece(f"{n}", "aaba"[n], span, None) for n, span in enumerate(spans)]
    lanes, bars = timeline.lay_out(pieces)
    assert lanes == ["a", "b"]
    drawn = [(0, (0, 10)), (1, (5, 12)), (0, (10, 20)), (0, (100_000, 100_010))]
    assert [(bar.lane, bar.span) for bar in bars] == drawn
    same = [piece._replace(lane="a") for piece in pieces[:3]]
    assert timeline.lay_out(same)[0] == ["a", "a"], "side by side"
    assert busy_seconds(spans) == wall_seconds(spans) == 30
    assert wall_seconds([Interval(0, 10), Interval(50, 60)]) == 60


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("empty sequence", "Restore the sequence"),
        ("no id", "an id of its own"),
        ("not an amino acid", "X stands for"),
        ("stop codon (*) inside the sequence", "frame shift"),
        ("out of memory", "more memory"),
        ("values are not finite", "fp32"),
        ("crashed the worker twice", "bug report"),
        ("hung the worker twice", "stopped answering"),
        ("error in the workload", "traceback"),
        ("a reason of a workload unheard of", "fix or remove it"),
    ],
)
def test_every_reason_has_a_remedy(reason, remedy):
    assert remedy in reasons.kind_of(reason).remedy


def test_words():
    seconds = (0.04, 9.96, 59.7, 83, 3_600, 7_500, 200_000)
    durations = [words.duration(s).replace(words.NBSP, " ") for s in seconds]
    assert durations == ["0.0 s", "10 s", "1 min", "1 min 23 s", "1 h", "2 h 5 min", "2 d 7 h"]
    numbers = (0, 999, 999.7, 12_345, 186_700_000, 9.99e14)
    short = [words.short(n).replace(words.NBSP, " ") for n in numbers]
    assert short == ["0", "999", "1.00 k", "12.3 k", "187 M", "999 T"]
    shares = [words.share(n, 1_000).replace(words.NBSP, " ") for n in (0, 1, 10, 999)]
    assert shares == ["0 %", "under 1 %", "1 %", "100 %"]


def test_a_receipt_names_its_devices():
    device = {"kind": "cuda", "uuid": "GPU-1", "name": "NVIDIA L4"}
    other, third = {**device, "uuid": "GPU-2"}, {**device, "name": "NVIDIA A2"}
    counts = {"rows": 1, "ok": 1, "failed": 0, "cost": 1, "seconds": {}}
    told = {"shard": "a", "recipe": "b", "part": "c", **counts}
    for devices, name in (
        ({"devices": [device]}, "NVIDIA L4"),
        ({"devices": [device, other]}, "2 × NVIDIA L4"),
        ({"devices": [device, third, other]}, "2 × NVIDIA L4 + NVIDIA A2"),
    ):
        receipt = Receipt.model_validate({**told, **devices})
        assert receipt.device_name == name
        assert receipt.devices[0].as_json() == device


def test_a_new_key_of_manifest_json_is_on_the_page(tmp_path):
    """What the config gets and manifest.json then tells needs no line of the report."""
    root = FakeRun(workload="composition", options={}).write(tmp_path / "demo")
    before = make(root).text
    assert "About this run" not in before
    with edited(root / "manifest.json") as manifest:
        manifest |= {"keep": "parts", "site": {"cluster": "<b>north</b>", "nodes": [1, 2]}}
        manifest["settings"]["engine"] = 7
    page = make(root)
    assert "About this run keep parts site {cluster: <b>north</b>, nodes: [1, 2]}" in page.text
    assert "engine 7" in page.text and "<b>north" not in page.source
    assert config_in(page, tmp_path / "again.yaml").keep == "parts"
