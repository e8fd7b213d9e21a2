"""bench on a CPU: the peer that is as fast as ours, the bars, the proteins, and `bench.steps`."""

import json
import random
import re
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bench import agenda, attention, bars, compare, steps, table
from bench.clock import Clock
from bench.engines import openvino, padded
from bench.engines.ours import Ours, batch_budget
from bench.lengths import MAX_RESIDUES, describe, sorted_batches, tokens_of
from bench.peers import ALPHABET, relative_l2
from bench.place import Place
from bench.sample import Sample, even_order
from bench.shapes import SHAPES
from bench.stage import Stage
from bench.subject import Subject
from programs import python

from featuremill.workload import compute
from featuremill.workloads import esm2

ROOT = Path(__file__).parents[1]
HAS_BF16 = Place("cpu").compute_device().has_bf16


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return Subject(SHAPES["tiny"], Place("cpu"), tmp_path_factory.mktemp("weights"))


# The proteins.


@pytest.mark.parametrize("size", [1, 2, 3, 33, 64, 400])
def test_the_order_of_batches_has_each_once_and_begins_in_the_middle(size):
    order = even_order(size)
    assert sorted(order) == list(range(size)) and order[0] == size // 2


def padding(proteins):
    """Return the share by which sorted batches of 4,096 tokens are larger than what they hold."""
    lengths = tokens_of(proteins)
    padded = sum(lengths[rows[0]] * len(rows) for rows in sorted_batches(lengths, 4096))
    return padded / sum(lengths) - 1


@pytest.mark.parametrize("num_tokens", [agenda.CPU.least_tokens, 14_000, 36_000, 200_000])
def test_few_proteins_are_padded_no_more_than_many_and_as_long(num_tokens):
    """With few of any length, who pads would seem a third slower than with a proteome."""
    sample = Sample()
    whole, taken = sample.original, sample.take(num_tokens)
    assert len(whole) == 400 and padding(whole) < 0.04
    assert sum(tokens_of(taken)) >= num_tokens and padding(taken) < 0.04
    lengths, expected = describe(taken), describe(whole)
    assert lengths["effective_length"] == pytest.approx(expected["effective_length"], rel=0.1)
    assert len({sequence for _, sequence in taken}) >= 0.99 * len(taken)


@pytest.mark.parametrize(("count", "share"), [(30, 0.32), (100, 0.13)])
def test_what_few_proteins_of_any_length_would_be_padded(count, share):
    proteins = sorted(Sample().original)
    drawn = [padding(random.Random(seed).sample(proteins, count)) for seed in range(200)]
    assert statistics.median(drawn) == pytest.approx(share, abs=0.005)


def test_a_first_trial_is_small():
    taken = Sample().take(1_000)
    assert sum(tokens_of(taken[:-1])) < 1_000 <= sum(tokens_of(taken))


def test_peers_get_the_tokens_of_fair_esms_own_converter():
    sequences = [sequence[:MAX_RESIDUES] for _, sequence in Sample().take(9_000)]
    sequences += ["MKXBUZO", "A", "AC-."]
    converter = ALPHABET.get_batch_converter(MAX_RESIDUES)
    *_, expected_NT = converter([("", sequence) for sequence in sequences])
    assert torch.equal(padded.tokenized(sequences), expected_NT)


# OpenVINO.


@pytest.fixture
def library(tiny):
    """OpenVINO, if it is here; `engines` has seen to it that it tells nobody."""
    openvino.engines(tiny)
    return pytest.importorskip("openvino")


def test_without_openvino_its_bars_are_left_out_and_it_is_said_how_to_get_it(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    lacks = ("OpenVINO", "not installed: pip install 'featuremill[bench]' brings it")
    assert openvino.engines(tiny) == ([], [lacks])


def test_openvino_is_judged_converted_once_and_loaded_before_the_clock(tiny, tmp_path, monkeypatch):
    library = pytest.importorskip("openvino")
    convert, conversions = library.convert_model, []

    def converting(*given, **more):
        conversions.append(given)
        return convert(*given, **more)

    monkeypatch.setattr(library, "convert_model", converting)
    stage = Stage(tiny.shape, tiny.place, tmp_path, Sample())
    stage.choose(["OpenVINO"])
    stage.pass_gate()
    names = ["fair-esm fp32", "OpenVINO fp32", *(["OpenVINO bf16"] if HAS_BF16 else [])]
    assert [engine.name for engine in stage.engines] == names
    assert [verdict.engine for verdict in stage.verdicts] == names
    assert len(conversions) == 1
    monkeypatch.setattr(library, "Core", pytest.fail)
    # Several batches: what the first of them said is not what stands in memory after the last.
    proteins = Sample().take(9_000)
    expected = {}
    for engine in stage.engines:
        assert stage.extraction_seconds(engine, "exact", proteins) > 0
        found = engine.read(stage.folder / "output", "exact", proteins)
        expected = expected or found
        bound = 1e-5 if engine.dtype == "fp32" else 2e-2
        assert max(relative_l2(found[name], expected[name]) for name, _ in proteins) < bound
    stage.close()


@pytest.mark.usefixtures("library")
def test_openvino_that_is_wrong_is_left_out_in_bf16_too(tiny, tmp_path, monkeypatch):
    right, spoiled = openvino.OpenVino._forward, "bf16" if HAS_BF16 else "fp32"

    def wrong(self, tokens_NT, mask_NT):
        return right(self, tokens_NT, mask_NT) + 0.3 * (self.dtype == spoiled)

    monkeypatch.setattr(openvino.OpenVino, "_forward", wrong)
    stage = Stage(tiny.shape, tiny.place, tmp_path, Sample())
    stage.choose(["OpenVINO"])
    stage.pass_gate()
    assert f"OpenVINO {spoiled}" not in [engine.name for engine in stage.engines]
    (reason,) = [reason for name, reason in stage.missing if name == f"OpenVINO {spoiled}"]
    assert reason.startswith("residue_l2 ")
    stage.close()


# A comparison, and its bars.


class Contestant:
    """Takes so many milliseconds a token, by a clock that nobody waits for."""

    target_seconds = 3.0

    def __init__(self, name, milliseconds):
        self.name, self.milliseconds, self.computed = name, milliseconds, []

    def measure(self, proteins):
        self.computed.append(proteins)
        tokens = sum(tokens_of(proteins))
        return tokens * self.milliseconds / 1e3, tokens

    def facts(self):
        return {}


def compared(monkeypatch, rival_tokens, *contestants):
    monkeypatch.setattr(compare, "_contestants", lambda *_: list(contestants))
    stage = SimpleNamespace(place=Place("cpu"), shape=SHAPES["35M"], dtype="bf16")
    stage.set_sizes, stage.sample = {}, Sample()
    *_, last = compare.compare(stage, "mean", Clock(9), agenda.CPU, rival_tokens)
    return last


def test_ours_and_openvino_compute_the_same_proteins_and_who_is_slow_has_one_pass(monkeypatch):
    rates = {"fair-esm fp32": 5, "featuremill fp32": 0.3, "transformers": 1, "OpenVINO fp32": 1.1}
    contestants = [Contestant(name, rate) for name, rate in rates.items()]
    found = compared(monkeypatch, 36_000, *contestants)
    _, ours, peer, rival = contestants
    assert ours.computed[-3:] == rival.computed[-3:] == 3 * [Sample().take(36_000)]
    assert len(ours.computed[-1]) >= 100
    assert sum(tokens_of(peer.computed[-1])) == 7_362  # 3 s, or two batches
    passes = {row["name"]: len(row["seconds"]) for row in found["rows"]}
    # A pass of OpenVINO takes longer than 30 s as well.
    assert passes == dict.fromkeys(rates, 3) | {"fair-esm fp32": 1} and found["passes"] == 3
    shown = table.measured("compare 35M mean", found | {"bars": []})
    assert "fair-esm fp32: 1 pass, as it takes long" in shown and "transformers: 1" not in shown
    # On a fast machine as many as fill the time of who is fastest.
    rows = compared(monkeypatch, 2_000, ours, peer, rival)["rows"]
    tokens = sum(tokens_of(Sample().take(round(3 / 0.3e-3))))
    assert [row["tokens"] for row in rows] == [tokens, 7_362, tokens]
    assert compared(monkeypatch, 2_000, peer)["rows"][0]["tokens"] == 7_362
    rows = compared(monkeypatch, 0, ours, rival)["rows"]
    assert [row["tokens"] for row in rows] == [tokens, 7_362]


RATES = {
    "fair-esm fp32": 100.0,
    "featuremill fp32": 690.0,
    "OpenVINO fp32": 600.0,
    "GEMMs alone fp32": 1000.0,
    "featuremill bf16": 1100.0,
    "OpenVINO bf16": 1000.0,
    "GEMMs alone bf16": 2000.0,
}


def bars_of(shape, output="mean", without="", missing=()):
    names = [name for name in RATES if not (without and name.startswith(without))]
    rows = [{"name": name, "tokens_per_second": RATES[name]} for name in names]
    found = {"shape": shape, "output": output, "rows": rows, "dtype": "bf16"}
    return {bar.what: bar for bar in bars.of_comparison(found, dict(missing))}


def test_the_bars_of_a_cpu():
    found = bars_of("35M")
    assert {what: (bar.bound, bar.is_met) for what, bar in found.items()} == {
        "fp32 over fair-esm fp32 (×)": (2.2, True),
        "fp32 over OpenVINO fp32 (×)": (1.15, True),
        "fp32, share of its GEMMs alone": (0.70, False),
        "bf16 over OpenVINO bf16 (×)": (1.15, False),
        "bf16, share of its GEMMs alone": (0.55, True),
    }
    assert found["bf16 over OpenVINO bf16 (×)"].value == 1.1
    shares = {}
    for shape in ("8M", "35M", "150M"):
        of = {what: bar for what, bar in bars_of(shape).items() if "GEMMs" in what}
        shares |= {(shape, what.partition(",")[0]): bar.bound for what, bar in of.items()}
    fp32 = {("8M", "fp32"): 0.70, ("35M", "fp32"): 0.70, ("150M", "fp32"): 0.85}
    assert shares == fp32 | {("8M", "bf16"): 0.45, ("35M", "bf16"): 0.55}
    assert list(bars_of("35M", "per_residue")) == ["fp32 over fair-esm fp32 (×)"]


@pytest.mark.parametrize(
    ("without", "missing", "why"),
    [
        ("OpenVINO", {"OpenVINO": "OpenVINO: not installed"}, "OpenVINO: not installed"),
        ("OpenVINO bf16", {"OpenVINO bf16": "OpenVINO bf16: wrong"}, "OpenVINO bf16: wrong"),
        ("featuremill bf16", {}, "featuremill bf16 is not among these"),
    ],
)
def test_a_bar_of_what_is_missing_is_left_out_and_says_why(without, missing, why):
    found = bars_of("8M", without=without, missing=missing)
    assert found.keys() == bars_of("8M").keys()
    bar = found["bf16 over OpenVINO bf16 (×)"]
    assert (bar.value, bar.is_met, bar.why_left_out) == (None, None, why)
    assert found["fp32 over fair-esm fp32 (×)"].is_met
    record = {"bars": [json.loads(json.dumps(bar._asdict()))], "passes": 1}
    shown = table.measured("start_up", record)
    assert shown.endswith(f"  bf16 over OpenVINO bf16 (×): left out, bar 1.15 ({why})")


def test_the_agenda_begins_with_what_the_bars_are_about():
    first = {step.name: len(Sample().take(step.rival_tokens)) for step in agenda.CPU_STEPS[:3]}
    wanted = {"compare 8M mean": 101, "compare 35M mean": 101, "compare 150M mean": 37}
    assert [*first.items()] == [*wanted.items()]


@pytest.mark.usefixtures("forked")
def test_the_page_has_the_figures_of_its_records():
    text = (ROOT / "docs" / "performance.md").read_text("utf-8")
    names = set(re.findall(r"\(\.\./bench/results/(.*-cpu\.json)\)", text))
    assert names == {path.name for path in (ROOT / "bench" / "results").glob("*-cpu.json")}
    for name in names:
        done = python("-m", "bench.table", f"bench/results/{name}", "--page", cwd=ROOT, check=True)
        head, _, *rows = done.stdout.splitlines()
        assert head.startswith("| `make bench` on those 2 cores | 8M, mean |") and len(rows) >= 5
        if "Xeon" in name:
            assert done.stdout in text
        else:
            factors = re.findall(r"\*\*featuremill, \w+\*\* \|(.*)", done.stdout)
            for values in (re.findall(r"\(([\d.]+) ×\)", row) for row in factors):
                assert f"{', '.join(values[:-1])} and {values[-1]} times" in text


def test_the_page_has_the_figures_of_each_gpus_records(tmp_path):
    """`--into` would change nothing."""
    page = ROOT / "docs" / "performance.md"
    text = page.read_text("utf-8")
    records = sorted(path.name for path in (ROOT / "bench" / "results").glob("*-gpu.json"))
    named = set(re.findall(r"\(\.\./bench/results/(.*-gpu\.json)\)", text))
    assert records and set(records) == named
    copy = tmp_path / "page.md"
    copy.write_text(text.replace("| featuremill, fp16 |", "| of another day |"), "utf-8")
    names = [f"bench/results/{name}" for name in records]
    python("-m", "bench.table", "--page", *names, "--into", copy, cwd=ROOT, check=True)
    assert copy.read_text("utf-8") == text
    assert "| `make bench-gpu` on one NVIDIA H200 | 650M, mean | 3B, mean |" in text


# Where a batch's time goes.


def test_where_the_time_goes_is_told_line_by_line(environment):
    words = ["-m", "bench.steps", "--shapes", "tiny", "--dtypes", "fp32", "--tokens", "500"]
    done = python(*words, cwd=ROOT, env=environment, check=True)
    _, head, *lines = done.stdout.splitlines()
    assert head.startswith("tiny fp32, µs a token on one thread (attention: ")
    told = {line[:20].rstrip(): float(line[20:].split()[0]) for line in lines}
    assert {"products", "attention", "norms and residual", "gather and pool"} <= told.keys()
    assert list(told) == [n for n in (*steps.STEPS, "whole", "products alone") if n in told]
    assert min(told["products"], told["attention"], told["products alone"]) > 0
    assert min(told["products"], told["attention"]) < told["whole"]


def test_what_is_counted_is_what_is_computed(tiny):
    model = Ours(tiny, "fp32").model_for("mean")
    payloads = [sequence.encode() for _, sequence in Sample().take(500)]
    expected = compute.values_of(esm2, model, payloads, batch_budget(tiny.place))
    stages, prepare, clock = model.encoder.stages, esm2.prepare, steps.Clock()
    with steps.counted(model, clock):
        found = compute.values_of(esm2, model, payloads, batch_budget(tiny.place))
    assert found.equals(expected)
    assert {*steps.STEPS, steps.REPEATED} - clock.seconds.keys() <= {"Python", "rotary"}
    assert model.encoder.stages is stages and esm2.prepare is prepare
    counted = dict(clock.seconds)
    compute.values_of(esm2, model, payloads, batch_budget(tiny.place))
    assert clock.seconds == counted


def test_a_step_that_is_part_of_another_one_has_no_line(tiny):
    """As rotary, where attention turns what it reads."""
    stage = Ours(tiny, "fp32").model_for("mean").encoder.stages[0]
    fewer = stage.kernels._asdict()
    del fewer["rotate_"]
    kernels = SimpleNamespace(_asdict=fewer.copy)
    kernels._replace = lambda **new: SimpleNamespace(**fewer | new)
    clock = steps.Clock()
    timed = steps.timed_stage(stage._replace(kernels=kernels), clock)
    assert not hasattr(timed.kernels, "rotate_")
    rows_TD = torch.ones(64, tiny.shape.width)
    weight_D = torch.ones(tiny.shape.width)
    timed.kernels.add_norm(rows_TD, None, weight_D, weight_D, torch.float32)
    assert list(clock.seconds) == ["norms and residual"]
    told = {"products": 2.0, "attention": 1.0, "rotary": 0.0, "whole": 4.0, "products alone": 1.0}
    shown = [line[:20].rstrip() for line in steps.table(told).splitlines()]
    assert shown == [step for step in told if step != "rotary"]


def test_gelu_is_what_its_product_takes_longer_with_it(monkeypatch):
    now = 0.0

    class Product:
        name = "a product"

        def __call__(self, rows):
            nonlocal now
            now += 1.0
            return rows

        def gelu(self, rows):
            nonlocal now
            now += 1.5
            return rows + 1

        def add_(self, rows):
            nonlocal now
            now += 0.25

    monkeypatch.setattr(steps.time, "process_time", lambda: now)
    clock = steps.Clock()
    timed = steps.Timed(Product(), clock)
    assert timed(3) == 3 and timed.gelu(3) == 4 and timed.name == "a product"
    timed.add_(3)
    wanted = {"products": 2.25, "GELU": 0.5, steps.REPEATED: steps.REPEATS * 2.5}
    assert {step: clock.seconds[step] for step in wanted} == wanted


# Attention.


def test_a_rehearsal_gates_and_times_every_way(monkeypatch, tmp_path):
    pytest.importorskip("triton", reason="Triton is for Linux")
    out = tmp_path / "attention.json"
    code = "import sys; from bench import attention as a; a.REHEARSED = [(64, 32, 4, 2)]; "
    code += "a.WIDTHS, a.LENGTHS = (32,), ('100',); a.main()"
    done = python("-c", code, "--rehearse", "--seconds", "1000", "--out", out, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(out.read_text())["cases"]
    assert all(row["error"] < 2e-3 and row["median"] > 0 for row in case["rows"])
    assert len([row for row in case["rows"] if row["tiling"]]) == 1
    assert "heads of 32 should take" in done.stdout


def test_the_kernels_table_is_what_a_record_shows(monkeypatch, tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text(attention.SOURCE.read_text())
    monkeypatch.setattr(attention, "SOURCE", source)

    def row(name, median, queries=None):
        tiling = {"queries": queries, "keys": 64, "warps": 4, "stages": 3}
        return {"name": name, "median": median, "tiling": tiling if queries else None}

    def case(lengths, width, *medians):
        rows = [row("FA2", medians[0]), row("a", medians[1], 64), row("b", medians[2], 128)]
        rows.append({"name": "c", "failed": "too large", "tiling": row("c", 0, 64)["tiling"]})
        rows.append(row("another way to turn", 0.5, 64))
        rows[-1]["tiling"]["rotary"] = "inside"
        return {"lengths": lengths, "width": width, "rows": rows}

    cases = [
        *(case("E. coli", 64, 3, 1, 2), case("100", 64, 3, 4, 2)),  # a is slower with short ones
        *(case("E. coli", 32, 3, 1, 2), case("1000", 32, 3, 1, 2)),
        case("E. coli", 128, 1, 2, 3),
    ]
    told = attention.adopt({"capability": [9, 0], "cases": cases})
    lines = [f"    ((9, 0), {w}): Tiling({q}, 64, 4, 3)," for w, q in ((64, 128), (32, 64))]
    assert told.splitlines() == lines and "\n".join(lines) in source.read_text()
    nothing = {"capability": [9, 0], "cases": []}
    assert attention.adopt(nothing) == "nothing is faster than FlashAttention"
    assert "{}" in source.read_text() and lines[0] not in source.read_text()


def test_the_kernels_table_is_that_of_the_records(monkeypatch, tmp_path):
    (record,) = (ROOT / "bench" / "results").glob("*-H200-attention.json")
    before, source = attention.SOURCE.read_text(), tmp_path / "kernel.py"
    source.write_text(before)
    monkeypatch.setattr(attention, "SOURCE", source)
    attention.adopt(json.loads(record.read_text()))
    assert source.read_text() == before
