"""shards.cost: auto: shards of minutes, two a slot, start-up a tenth at most; and by what."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from nvml_node import Gpu
from plans import plan_json, receipt_json, wasted
from programs import Workflow, fasta, printed_by, random_records, written

from featuremill.__main__ import main
from featuremill.base import devices, entry_points
from featuremill.config import validate
from featuremill.plan import announce, speeds
from featuremill.plan.command import plan
from featuremill.plan.shard_cost import Sizing, Work, choose
from featuremill.plan.shards import cuts, write_new
from featuremill.store.parts import read_shard
from featuremill.store.plan import Plan, Settings
from featuremill.store.results import Results
from featuremill.workload import find_workload, plugin_errors

CARD = "NVIDIA H100 80GB HBM3"


def speed(rate, startup=8.0):
    return speeds.Speed(CARD, rate, startup, True, "given", "as given")


def work(cost, records=None, payload_bytes=0, part_bytes=0):
    return Work(cost, records or max(1, cost // 350), payload_bytes, part_bytes)


@given(
    cost=st.integers(1, 10**12),
    rate=st.floats(1, 1e8),
    startup=st.floats(0, 100),
    slots=st.integers(1, 600),
    bytes_a_cost=st.floats(0.01, 1e5),
)
def test_no_shard_is_too_small_too_large_or_one_too_many(cost, rate, startup, slots, bytes_a_cost):
    whole = work(cost, cost, cost, round(cost * bytes_a_cost))
    found = choose(whole, speed(rate, startup), slots)
    number = found.num_shards
    assert found.seconds == pytest.approx(cost / number / rate)
    made = max(1, round(cost / found.cost))  # as `cuts` does
    assert made <= number
    assert made == number or 2 * number**2 > cost
    assert number <= slots or number % slots == 0, "whole rounds"
    least = max(30.0, 9 * startup)
    if by_files := "a file holds" in found.why:
        assert number > 1
    else:
        assert number <= 2000
        assert number == 1 or (found.seconds >= least * 0.999 and found.startup_share <= 0.1001)
        assert found.seconds <= max(300, 4 * least) * 1.001 or number > 1000
    for size, largest in ((cost, 10**6), (cost, 2**28), (whole.part_bytes, 2**35)):
        assert size / number <= largest
    if 2 * slots <= min(2000, cost) and cost / rate >= 2 * slots * least * 1.001 and not by_files:
        assert number >= 2 * slots, "while a shard still is worth it"
    assert ("slots get none" in found.why) == (number < slots)


@pytest.mark.parametrize(
    ("seconds", "slots", "number", "why"),
    [
        (3000, 1, 10, "some 5 minutes each"),
        (3300, 4, 12, "some 5 minutes each"),
        (1200, 4, 8, "2 a slot, with 4 slots"),
        (400, 4, 4, "less than 72 s is not worth a start-up of 8.0 s"),
        (143, 4, 1, "less than 72 s is not worth a start-up of 8.0 s, so 3 of 4 slots get none"),
        (3e6, 4, 2000, "Snakemake slows down with more than 2,000"),
    ],
)
def test_the_reason_is_the_one_that_decided(seconds, slots, number, why):
    found = choose(work(round(seconds * 200_000)), speed(200_000), slots)
    assert (found.num_shards, found.why) == (number, why)
    several = [work(10**6, 3 * 10**6), work(10**6, 9, 2**29 + 1), work(10**6, 9, 9, 2**36 + 1)]
    for large, what in zip(several, ("records", "of records", "of values"), strict=True):
        found = choose(large, speed(200_000), 2)
        assert found.num_shards == 4 and found.why.startswith("a file holds ")
        assert found.why.endswith(f" {what} at most")


def test_what_is_chosen_wastes_hardly_more_than_any_other_cut():
    total, rate, startup = 3.6e10, 250_000, 8.0
    for slots in (1, 4, 64):
        cost = choose(work(int(total)), speed(rate, startup), slots).cost
        waste = wasted(total, cost, slots, rate, startup)
        for factor in (1 / 16, 1 / 4, 1 / 2, 2, 4):
            other = wasted(total, cost * factor, slots, rate, startup)
            assert waste < other + 0.03 * total / rate


SURVEY = """
import itertools, json, os
from pathlib import Path
from featuremill.base.devices import planning_device
from featuremill.plan.shard_cost import Sizing
from featuremill.workload.recipe import settings_of
from featuremill.store.weights_file import WeightsFile
from featuremill.workload import find_workload

esm2 = find_workload("esm2")
for name in {models}:
    options = esm2.Options(model=name)
    weights = esm2.weights_ahead(options)
    device = planning_device("auto")
    settings = settings_of("esm2", esm2, options, device, weights)
    path = Path(name + ".json")
    metadata = weights.metadata
    WeightsFile(name=name, path="", bytes=0, sha256="", metadata=metadata).write(path)
    values = esm2.schema(esm2.Options.model_validate(settings.options), weights)
    sizing = Sizing("auto", Path("results"), settings, path, values, "tokens", device, 1)
    for records, gpus in itertools.product({records}, (1, 4, 8)):
        os.environ["FEATUREMILL_DEVICES"] = ",".join(map(str, range(gpus)))
        choice = sizing.choice(358 * records, records, 356 * records)
        keys = ("num_shards", "why", "seconds", "startup_share")
        told = {{key: getattr(choice, key) for key in keys}}
        said = sizing.cut(358 * records, records, 356 * records)
        assert said.shards(358 * records) == choice.num_shards
        device_name = choice.speed.device
        case = dict(model=name, records=records, gpus=gpus, device=device_name, said=said.why)
        print(json.dumps({{**case, **told}}))
"""
MODELS = [f"esm2_{name}_UR50D" for name in ("t6_8M", "t30_150M", "t33_650M", "t36_3B")]


def test_start_up_is_a_tenth_at_most_whatever_the_model_and_the_node(tmp_path, gpu_node):
    """Or the plan says that the whole job is no more than that."""
    node = gpu_node(*(Gpu(name=CARD, capability="9.0") for _ in range(8)))
    survey = SURVEY.format(models=MODELS, records=(20_000, 500_000, 10**7))
    said = printed_by(survey, cwd=tmp_path, env=node.environment)
    cases = [json.loads(line) for line in said.splitlines()]
    assert len(cases) == 36 and {case["device"] for case in cases} == {CARD}
    for case in cases:
        number, slots = case["num_shards"], case["gpus"]
        assert f"auto makes {number:,} new shard" in case["said"]
        assert "an assumption" in case["said"]
        assert case["why"] in case["said"]
        is_whole_job = number == 1 and "is not worth a start-up of 6.5 s" in case["why"]
        assert case["startup_share"] <= 0.1 or is_whole_job, case
        assert number >= 2 * slots or "is not worth a start-up of 6.5 s" in case["why"], case
        assert number >= slots or f"{slots - number} of {slots} slots get none" in case["why"]
        assert number <= 2000
    many = {c["gpus"]: c for c in cases if c["records"] == 10**7 and "650M" in c["model"]}
    assert all(250 < case["seconds"] <= 300 for case in many.values()), "five minutes each"


class Plans:
    """Plans of runs beside one another, in this process."""

    def __init__(self, folder, records=120, device="cpu"):
        self.results = folder / "results"
        self.results.mkdir()
        self.device = device
        self.input = folder / "in.fa"
        self.write(records)

    def write(self, records):
        self.input.write_text(fasta(random_records(records)))

    def __call__(self, run, cost="auto", **config):
        asked = {"inputs": [str(self.input)], "workload": "composition", "device": self.device}
        asked |= {"run": run, "shards": {"cost": cost}, **config}
        made = plan(Results(self.results / run), validate(asked), None, threads=1)
        return {**made.plan.as_json(), "cut": made.why_cut}

    def measure(self, run, rate, name, kind="cpu", startup=1.0, **damage):
        """Leave the receipt of a shard of `run` that was computed at this rate."""
        planned = json.loads((self.results / run / "plan.json").read_text())
        recipe, shard = planned["recipe"], planned["shards"][0]["shard"]
        told = {
            "cost": round(1000 * rate),
            "seconds": {"compute": 1000.0, "total": 1000.0 + startup, "wait": 0.0},
            "devices": [{"kind": kind, "uuid": "x", "name": name}],
            "threads": 64,
            "finished": "2026-01-01T00:00:00.000+00:00",
        }
        receipt = receipt_json(recipe=recipe, shard=shard, **{**told, **damage})
        path = Results(self.results / run).receipt(recipe, shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(receipt))


def costs_of(plan):
    return [shard["cost"] for shard in plan["shards"]]


def names_of(plan):
    return {shard["shard"] for shard in plan["shards"]}


def test_a_plan_goes_by_what_the_last_run_measured_and_by_nothing_it_does_not_know(tmp_path):
    plans = Plans(tmp_path)
    first = plans("first")
    total = sum(costs_of(first))
    assert len(first["shards"]) == 1
    assert "(about 2,000,000 each); the speed of workload composition on" in first["cut"]

    plans.measure("first", total / 2950, devices.cpu().name)
    second = plans("second")
    assert len(second["shards"]) == 10
    assert max(costs_of(second)) - min(costs_of(second)) <= 2 * 62
    assert "auto makes 10 new shards" in second["cut"] and "5 minutes each" in second["cut"]
    assert f"measured: 1 part of {plans.results / 'first'}" in second["cut"]
    assert plans("third")["shards"] == second["shards"], "the same input, machine and knowledge"

    number = plans("number", cost=total // 3)
    assert len(number["shards"]) == 3 and number["cut"] == ""


@pytest.mark.parametrize(
    "damage",
    [
        {"seconds": {"compute": 9.0, "total": 10.0, "wait": None}},
        {"seconds": {"compute": 9.0, "total": 10.0, "wait": "long"}},
        {"telemetry": None},
    ],
    ids=["nothing", "a word", "no telemetry"],
)
def test_a_receipt_that_is_damaged_stops_no_plan(tmp_path, damage):
    plans = Plans(tmp_path)
    plans("first")
    plans.measure("first", 1.0, devices.cpu().name, **damage)
    assert "is not known yet" in plans("second")["cut"]


def test_shards_that_are_begun_stay_whatever_the_speed(tmp_path):
    plans = Plans(tmp_path)
    first = plans("run", cost=1000)
    assert len(first["shards"]) >= 3
    begin(plans, "run", names_of(first))
    again = plans("run")
    assert again["shards"] == first["shards"] and again["cut"].startswith("shards that exist stay")

    plans.measure("run", sum(costs_of(first)) / 3000, devices.cpu().name)
    plans.write(240)  # the same ones and as many more
    more = plans("run")
    assert names_of(first) < names_of(more)
    new = [shard for shard in more["shards"] if shard["shard"] not in names_of(first)]
    assert len(new) == pytest.approx(10, abs=2), "of five minutes each"
    assert f"auto makes {len(new)} new shards" in more["cut"]


def begin(plans, run, names):
    """Leave the journals that jobs of these shards begin with."""
    results = Results(plans.results / run)
    for name in names:
        path = results.journal("0" * 32, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_shards_that_are_not_begun_are_cut_anew_for_more_slots(tmp_path, monkeypatch):
    plans = Plans(tmp_path, device="cuda")
    assert len(plans("run")["shards"]) == 1
    for slots, number in ((4, 8), (8, 16), (4, 16), (1, 1), (8, 16)):
        monkeypatch.setenv("FEATUREMILL_GPUS", str(slots))
        planned = plans("run")
        assert (len(planned["shards"]), planned["slots"]) == (number, slots)
        assert plans("run")["shards"] == planned["shards"], "and then they stay"
        assert sum(shard["wanted"] for shard in planned["shards"]) == 120
    begun = [shard["shard"] for shard in planned["shards"]][:8]
    begin(plans, "run", begun)
    monkeypatch.setenv("FEATUREMILL_GPUS", "16")
    again = plans("run")
    assert set(begun) < names_of(again) and len(again["shards"]) == 8 + 32
    assert sum(shard["wanted"] for shard in again["shards"]) == 120
    begin(plans, "run", names_of(again))
    monkeypatch.setenv("FEATUREMILL_GPUS", "60")
    assert plans("run") == again | {"cut": plans("run")["cut"]}, "the plan is the same to the byte"


def test_a_shard_of_failed_records_that_run_again_is_not_cut_anew(tmp_path, monkeypatch):
    """Another shard holds its records as well: let go of, they would be asked of that one."""
    plans = Plans(tmp_path, device="cuda")
    first = plans("run", cost=10**9)
    results = Results(plans.results / "run")
    begin(plans, "run", names_of(first))
    table = read_shard(results.shard(first["shards"][0]["shard"]))
    again = write_new(results, table.slice(0, 40), 40)
    plan = results.read_plan()
    plan.shards.append(again)
    plan.write(results.kept_plan)
    monkeypatch.setenv("FEATUREMILL_GPUS", "8")
    wanted = {shard["shard"]: shard["wanted"] for shard in plans("run")["shards"]}
    assert wanted == {first["shards"][0]["shard"]: 80, again.shard: 40}


@pytest.mark.parametrize("slots", [2, 4, 8])
@pytest.mark.parametrize("records", [1, 3, 9, 40, 1000])
@pytest.mark.parametrize("usual", [100, 2_000_000])
def test_without_a_speed_each_slot_gets_two_where_there_are_records(slots, records, usual):
    number, cost, why, *_ = choose(work(7 * records, records), None, slots, usual)
    assert number >= min(2 * slots, records // slots * slots or records)
    assert number % slots == 0 or number < slots
    assert ("slots get none" in why) == (number < slots) and cost == -(-7 * records // number)


@given(
    costs=st.lists(st.one_of(st.integers(1, 20), st.integers(1, 10**6)), min_size=1, max_size=60),
    slots=st.integers(2, 20),
    borders=st.lists(st.integers(0, 60), max_size=4),
)
def test_few_records_of_uneven_cost_make_as_many_shards(costs, slots, borders):
    """Whatever buckets they are in, and however much one record costs."""
    number = choose(work(sum(costs), len(costs)), None, slots, 2_000_000).num_shards
    buckets = enumerate(np.split(np.array(costs), sorted(min(b, len(costs)) for b in borders)))
    made = list(cuts(buckets, sum(costs), len(costs), sum(costs) / number))
    assert len(made) == number
    assert sum(piece.end - piece.start for pieces in made for piece in pieces) == len(costs)
    assert sum(piece.cost for pieces in made for piece in pieces) == sum(costs)


def sizing(workload, folder, gpus):
    """Return what sizes shards of a workload for jobs on GPUs of another machine."""
    settings = Settings(workload=workload, version="1", options={}, weights_sha256=None)
    unit = find_workload(workload).COST_UNIT
    device = devices.Device("cuda", "", "a GPU that this machine does not have", True)
    return Sizing("auto", folder, settings, None, pa.schema({}), unit, device, gpus)


@pytest.mark.parametrize("workload", sorted({*entry_points.own(plugin_errors.GROUP)} - {"esm2"}))
def test_a_first_run_of_any_workload_feeds_every_slot(workload, tmp_path, monkeypatch):
    """4,096 short segments, 1,000 patients or cells: less than a shard of the usual cost."""
    sized = sizing(workload, tmp_path, 1)
    for slots in (2, 4, 8):
        monkeypatch.setenv("FEATUREMILL_GPUS", str(slots))
        for records in (1000, 4096):
            found = sized.cut(300 * records, records, 100 * records)
            assert found.shards(300 * records) >= 2 * slots, found.why


@pytest.mark.parametrize(
    ("number", "slots", "gpus", "said"),
    [
        (1, 4, 1, "1 shard for 4 GPU slots: 3 of them get no work."),
        (3, 4, 1, "3 shards for 4 GPU slots: 1 of them gets no work."),
        (5, 4, 1, "5 shards for 4 GPU slots: some wait while others finish."),
        (1, 2, 4, "1 shard for 2 slots of 4 GPUs: 1 of them gets no work."),
        (8, 4, 1, ""),
        (0, 4, 1, ""),
        (1, 1, 1, ""),
    ],
)
def test_a_slot_without_work_is_a_sentence(number, slots, gpus, said):
    plan = Plan.model_validate(plan_json(slots=slots, gpus=gpus))
    assert plan.too_few(number) == said


def test_three_lines_open_a_run_and_the_rest_is_in_run_log(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.fa").write_text(fasta(random_records(9)))
    config = {"inputs": ["in.fa"], "workload": "composition", "device": "cpu"}
    assert main(["plan", "results/a", "--config", written(config), "--threads", "1"]) == 0
    sentence = "shards.cost: auto makes 1 new shard of "
    records, work, disk = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"    plan │ 9 records, [\d,]+ residues, longest \d+", records)
    assert "9 distinct records to compute in 1 shard; the first one measures the time, comp" in work
    assert re.search(r"about .* to be written; .* are free$", disk)
    assert sentence in (tmp_path / "results/a/run.log").read_text()
    assert main(["plan", "results/a", "--config", written(config), "-v"]) == 0
    assert sentence not in (said := capsys.readouterr().err) and "to be written, about: " in said


def test_what_is_left_to_compute_is_counted_in_records(tmp_path):
    folder = Results(tmp_path)
    plan = SimpleNamespace(
        counts=SimpleNamespace(input=1_001, refused=0, duplicate=0, unique=1_001),
        lengths=SimpleNamespace(total=9_000, unit="residues", longest=10),
        shards=[SimpleNamespace(shard="a", wanted=1_000), SimpleNamespace(shard="b", wanted=1)],
        num_taken=0,
        recipe="r",
    )
    assert announce.sizes_of(folder, plan)[1] == "1,001 distinct records to compute in 2 shards"
    folder.part("r", "a").parent.mkdir(parents=True)
    folder.part("r", "a").touch()
    said = "1 of 1,001 distinct records to compute, in 1 of 2 shards"
    assert announce.sizes_of(folder, plan)[1] == said


def test_the_time_of_a_run_is_that_of_its_rounds(tmp_path):
    """Each of two slots computes shards one behind the other: of three, two."""
    shards = [SimpleNamespace(shard=f"{n}", cost=100, wanted=1, bytes=9) for n in range(3)]
    plan = SimpleNamespace(shards=shards, recipe="r")
    speed = SimpleNamespace(cost_per_second=5)
    choice = SimpleNamespace(startup_seconds=10, speed=speed)
    known = SimpleNamespace(slots=2, choice=lambda *_: choice)
    assert announce._time(Results(tmp_path), plan, known) == "; about 1 min"
    unknown = SimpleNamespace(slots=2, choice=lambda *_: SimpleNamespace(speed=None))
    assert announce._time(Results(tmp_path), plan, unknown) == "; the first one measures the time"
    plan.shards = []
    assert announce._time(Results(tmp_path), plan, known) == ""


def test_a_warning_of_notes_names_their_table(tmp_path):
    plan = SimpleNamespace(notes={"truncated": 2}, refusals={}, shards=[], too_few=lambda left: "")
    plan.counts = SimpleNamespace(planned=2)
    said = announce.warnings(Results(tmp_path), plan, None, [])
    assert said == [f"2 records: truncated; merge lists them in {tmp_path / 'notes.tsv'}"]


def test_a_gpu_that_is_elsewhere_is_the_one_of_the_profile(tmp_path, environment):
    """Through the workflow, whose default it is; no GPU is here."""
    workflow = Workflow(tmp_path, environment, random_records(9))
    plans = Plans(tmp_path, device="cuda")
    for run, card in (("slow", "NVIDIA L4"), ("fast", "NVIDIA H100 PCIe"), ("other", "NVIDIA L40")):
        plans(run)
        plans.measure(run, 50, card, "cuda")
    config = {"run": "test", "inputs": "in.fa", "workload": "composition", "device": "cuda"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, "outputs": "npy"}))
    workflow("plan", "--default-resources", "gpu_model=h100")
    said = (tmp_path / "results/test/logs/plan.log").read_text()
    assert "shards.cost: auto makes 2 new shards of" in said
    assert "NVIDIA H100 PCIe: 50 residues a second (measured" in said


def test_devices_that_the_jobs_ask_for_elsewhere_do_not_stop_a_plan(monkeypatch):
    """Before, plan on a login node ended with "GPU 0 does not exist"."""
    monkeypatch.setenv("FEATUREMILL_DEVICES", "0,1")
    assert sizing("composition", Path(), 1).slots == 1
    monkeypatch.setenv("FEATUREMILL_GPUS", "8")
    assert [sizing("composition", Path(), gpus).slots for gpus in (2, 16)] == [4, 1]
