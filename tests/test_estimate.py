"""estimate: its words hold against real plans and real runs, and say what they rest on."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from plans import plan_json, read_sealed, receipt_json, write_sealed, write_weights
from programs import LETTERS, Desk, Verbs, fasta, python

from featuremill.base.errors import UserError
from featuremill.base.this_process import num_cores
from featuremill.flow.jobs import slow_speed
from featuremill.plan import speeds
from featuremill.plan.estimate.report import seconds_of_shards
from featuremill.plan.estimate.work import Work
from featuremill.plan.speeds import JobSpec
from featuremill.store.plan import Plan, PlannedShard, Settings
from featuremill.store.results import Results
from featuremill.workload import Weights
from featuremill.workload import weights as weights_verb
from featuremill.workloads import esm2
from featuremill.workloads.esm2.estimates import unit_work

DEVICE = "NVIDIA H100 80GB HBM3"


def weights_of_shape(num_layers, width):
    sizes = {"num_layers": num_layers, "embed_dim": width, "attention_heads": 20}
    return Weights("", Path(), "", {key: str(size) for key, size in sizes.items()})


def proteins(count, seed=0, longest=400):
    rng = random.Random(seed)
    drawn = ("".join(rng.choices(LETTERS, k=rng.randint(20, longest))) for _ in range(count))
    return [(f"p{seed}.{n}", sequence) for n, sequence in enumerate(drawn)]


class Estimates:
    """A folder with an input and a config, in which `featuremill estimate` runs."""

    def __init__(self, folder, environment):
        self.verbs = Verbs(folder, environment)
        self.folder = folder
        self.write(proteins(300))
        self.configure()

    def write(self, records):
        (self.folder / "in.fa").write_text(fasta(records))

    def configure(self, **config):
        self.config = {"run": "test", "inputs": "in.fa", "workload": "composition"}
        self.config |= {"shards": {"cost": 5000}, "outputs": "parquet", **config}
        (self.folder / "c.yaml").write_text(yaml.safe_dump(self.config))

    def esm2(self, model="esm2_t33_650M_UR50D", **options):
        self.configure(workload="esm2", options={"model": model, **options})

    def plan_of(self, num_records):
        """Leave a plan of so many records like those of the input, as nobody could make it here."""
        folder, config = self.verbs.run_folder, ("--config", "c.yaml")
        weights = ()
        if model := self.config.get("options", {}).get("model"):
            path = self.folder / weights_verb.json_of(model, "esm2")
            path.parent.mkdir(exist_ok=True)
            file = self.folder / "none.safetensors"
            file.touch()
            weights = ("--weights", write_weights(path, file))
        self.verbs("plan", folder.root, *config, *weights)
        plan = read_sealed(folder.plan)
        factor = num_records // plan["counts"]["input"]
        plan["counts"] = {key: factor * value for key, value in plan["counts"].items()}
        plan["lengths"]["total"] *= factor
        sizes = ("records", "wanted", "cost", "bytes")
        plan["shards"] = [s | {key: factor * s[key] for key in sizes} for s in plan["shards"]]
        write_sealed(folder.plan, plan)

    def plan(self):
        """Plan the run; return what its plan says."""
        self.verbs("plan", self.verbs.run_folder.root, "--config", "c.yaml")
        return json.loads(self.verbs.run_folder.plan.read_text())

    def __call__(self, *arguments, status=0):
        said = self.verbs.type("featuremill", "estimate", "c.yaml", *arguments, status=status)
        return said.err if status else said.out

    def in_one(self, *arguments, **status):
        """Return what is said, without line breaks."""
        return " ".join(self(*arguments, **status).split())

    def json(self, *arguments):
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def estimates(tmp_path, environment):
    return Estimates(tmp_path, environment)


def test_the_shards_are_those_that_plan_makes_and_nothing_is_written(estimates):
    records = proteins(300)
    estimates.write([*records, records[0], ("twin", records[1][1]), ("bad", "")])
    before = sorted(estimates.folder.rglob("*"))
    found = estimates.json("--cpu-slots", 1, "--tokens-per-second", 1000)
    assert sorted(estimates.folder.rglob("*")) == before
    assert not found["is_planned"]

    plan = estimates.plan()
    assert found["counts"] == plan["counts"]
    assert found["shards_left"] == len(plan["shards"]) > 5
    costs = [shard["cost"] for shard in plan["shards"]]
    assert found["cost_left"] == sum(costs)
    row = found["rows"][0]
    startup = row["speed"]["startup_seconds"]
    expected = sum(costs) / 1000 + startup * len(costs)
    assert row["extract_hours"] * 3600 == pytest.approx(expected)
    assert row["startup_share"] == pytest.approx(startup * len(costs) / expected)
    assert row["idle_share"] == pytest.approx(0)

    planned = estimates.json("--cpu-slots", 1, "--tokens-per-second", 1000)
    assert planned["is_planned"] and planned["cost_left"] == sum(costs)
    assert planned["rows"][0]["extract_hours"] == found["rows"][0]["extract_hours"]


def test_only_shards_without_a_part_are_left_and_an_edit_is_read_again(estimates):
    folder, plan = estimates.verbs.run_folder, estimates.plan()
    first = plan["shards"][0]
    estimates.verbs("extract", folder.root, first["shard"], "--threads", "1")
    left = sum(shard["cost"] for shard in plan["shards"][1:])
    found = estimates.json("--cpu-slots", 1)
    assert found["cost_left"] == left, "a part is there"
    speed = found["rows"][0]["speed"]
    assert speed["kind"] in ("earlier run", "assumption"), "the part tells how fast this CPU is"
    assert "test" in speed["source"]

    told = ("run", "recipe", "settings", "inputs", "lengths", "records_sha256")
    results = {key: plan[key] for key in told} | {"plan": plan["counts"], "outputs": {}}
    results["parts"] = {shard["shard"]: "" for shard in plan["shards"]}
    results["counts"] = {"input": 300, "ok": 300, "failed": 0, "refused": 0, "duplicate": 0}
    (folder.root / "manifest.json").write_text(json.dumps(results))
    found = estimates.json("--cpu-slots", 1)
    assert found["shards_left"] == 0, "the results are complete: parts may have been removed"
    said = estimates.in_one("--cpu-slots", 1)
    assert "the times are those of the merge and the report" in said, "no output is there"
    assert f"computed are all its {len(plan['shards'])} shards" in said
    (folder.root / "embeddings.parquet").write_bytes(b"")
    found = estimates.json("--cpu-slots", 1)
    assert found["shards_left"] == 0 and found["rows"][0]["extract_hours"] == 0
    (folder.root / "manifest.json").unlink()

    estimates.write(proteins(301))
    found = estimates.json("--cpu-slots", 1)
    assert not found["is_planned"] and found["counts"]["input"] == 301


def test_a_gpu_that_has_computed_nothing_is_an_assumption_with_a_range(estimates):
    estimates.esm2()
    said = estimates.in_one("--device", DEVICE, "--gpus", "1,64")
    share = "an assumption: 65 % of what the data sheet of"
    assert f"{share} {DEVICE} allows, as NVIDIA H200 reached (docs/performance.md)" in said
    known = estimates.in_one("--device", "h200")
    assert f"{share} NVIDIA H200 allows, as NVIDIA H200 reached" in known
    found = estimates.json("--device", "l40s")["rows"][0]["speed"]
    assert found["uncertainty"] == speeds.ASSUMED
    assert "With 64, `shards: {cost: auto}` cuts 1 shard of" in said, "13 shards"
    assert "tokens: less than 58 s is not worth a start-up of 6.5 s, so 63 of 64" in said
    estimates.esm2(dtype="fp32")  # the plan's is that of this machine, which may have no bf16
    estimates.plan_of(999_900)
    found = estimates.json("--device", DEVICE, "--gpus", "1,64")
    one, many = found["rows"]
    for row in (one, many):
        assert row["speed"]["kind"] == "assumption"
    assert many["hours"] < one["hours"]
    assert found["counts"]["input"] == 999_900
    values = 1_000_000 * 1280 * 4
    assert found["disk"]["store/"] == pytest.approx(values, rel=0.05)
    assert re.search(r"about 3,\d{3} MB of the GPU \(the doctor's estimate\)", said)


def test_what_was_measured_beats_the_table(estimates):
    """Receipts such as a GPU's runs leave: another dtype or device among them does not count."""
    options = {"model": "esm2_t33_650M_UR50D", "dtype": "bf16", "per_residue": False}
    settings = {"workload": "esm2", "version": esm2.VERSION, "options": options}
    settings["weights_sha256"] = "0"
    root = estimates.folder / "results"

    def run(name, dtype, device, rate, resumed=0):
        options = {**settings["options"], "dtype": dtype}
        folder = Results(root / name)
        receipt = receipt_json(
            cost=1000 * rate,
            seconds={"compute": 1000.0, "total": 1012.0, "wait": 2.0},
            devices=[{"kind": "cuda", "uuid": "GPU-1", "name": device}],
            threads=4,
            resumed_batches=resumed,
            peak_memory_mb=2222,
            finished="2026-01-01T00:00:00.000+00:00",
        )
        path = folder.receipt("r", "s")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(receipt))
        folder.plan.write_text(json.dumps(plan_json(settings={**settings, "options": options})))

    run("good", "bf16", DEVICE, 300_000)
    run("fp32", "fp32", DEVICE, 30_000)
    run("other", "bf16", "NVIDIA L4", 20_000)
    run("resumed", "bf16", DEVICE, 900_000, resumed=3)
    job = JobSpec(Settings(**settings), "h100", is_gpu=True)
    found = speeds.find(job, root, weights_of_shape(33, 1280), 350)
    assert (found.kind, found.device) == ("earlier run", DEVICE)
    assert found.cost_per_second == 300_000 and "good" in found.source
    assert found.startup_seconds == 10 + speeds.AROUND_JOB_SECONDS
    assert found.most_seconds(3_000_000) == pytest.approx(20.25)

    estimates.esm2()
    said = estimates("--device", "h100", "--gpus", "4")
    assert "300,000 tokens a second a job" in said and "measured: 1 part of results/good" in said
    assert "2,222 MB of the GPU (measured)" in said
    shutil.rmtree(root / "good")
    shutil.rmtree(root / "resumed")
    assert speeds.find(job, root, weights_of_shape(33, 1280), 350).is_assumed


def test_limits_are_for_the_slowest_of_what_is_meant(tmp_path):
    options = {"model": "esm2_t33_650M_UR50D", "dtype": "bf16"}
    told = plan_json(
        [{"cost": 300_000}],
        device="cuda",
        counts={"unique": 1000},
        settings={"workload": "esm2", "options": options},
        weights=str(write_weights(tmp_path / "w.json")),
    )
    plan = Plan.model_validate_json(json.dumps(told))
    run = tmp_path / "results" / "x"
    names = ("", "t4", "a100", "h100", "k80")
    by_name = {name: slow_speed(run, plan, name) for name in names}
    seconds = {name: speed.most_seconds(2e6) for name, speed in by_name.items()}
    assert seconds[""] == seconds["k80"] == seconds["t4"] > seconds["a100"] > seconds["h100"]
    assert by_name["h100"].device == "NVIDIA H100 PCIe", "the slowest that is called so"
    for name in ("k80", "a100 3g.20gb", ""):
        assert not speeds.cards_called(name)
    job = JobSpec(plan.settings, "k80", is_gpu=True)
    with pytest.raises(UserError, match="--tokens-per-second"):
        speeds.find(job, run.parent, weights_of_shape(33, 1280), 350)


def test_shards_are_done_in_rounds_of_all_slots():
    def seconds(costs, jobs):
        shards = [PlannedShard("", 1, 1, cost, 0) for cost in costs]
        return seconds_of_shards(Work(None, shards, "", True), jobs, rate=10, startup=1)

    assert seconds([10] * 8, 4) == pytest.approx(2 * 2)
    assert seconds([10] * 9, 4) == pytest.approx(3 * 2), "the last one alone"
    assert seconds([10, 10, 40, 10], 4) == pytest.approx(5), "the largest one"
    assert seconds([], 4) == 0


def test_too_few_shards_are_told_a_cost_that_gives_each_device_one(estimates):
    """Plan cuts as many as the advice says."""
    estimates.configure(shards={"cost": 15_000})
    given = ("--device", DEVICE, "--tokens-per-second", 10, "--startup-seconds", 1)
    found = estimates.json(*given, "--gpus", "4,64,128,400")
    assert found["shards_left"] == 4
    said = estimates.in_one(*given, "--gpus", "4,64,128,400")
    assert "With 4," not in said
    for row in found["rows"]:
        seconds = row["extract_hours"] * 3600 * row["jobs"]
        shares = 4 / seconds, (seconds - found["cost_left"] / 10 - 4) / seconds
        assert (row["startup_share"], row["idle_share"]) == pytest.approx(shares)
    for row, slots in zip(found["rows"][1:3], (64, 128), strict=True):
        cost = row["best_cost"]
        number = round(found["cost_left"] / cost)
        assert number >= slots
        cut = f"cuts {number} shards of {cost:_} resid"
        assert f"With {slots}, `shards: {{cost: auto}}` {cut}" in said
    assert re.search(r"is not worth a start-up of 1.0 s, so \d+ of 400 slots get none", said)
    estimates.configure(shards={"cost": found["rows"][1]["best_cost"]})
    estimates.plan()
    again = estimates.json(*given, "--gpus", "64")
    assert again["shards_left"] >= 64
    assert again["rows"][0]["hours"] < found["rows"][1]["hours"] / 10


def test_auto_cuts_for_each_number_of_devices_and_says_why(estimates):
    """As plan does, which knows the same."""
    estimates.configure(shards={"cost": "auto"})
    given = ("--device", DEVICE, "--tokens-per-second", 50, "--startup-seconds", 1)
    found = estimates.json(*given, "--gpus", "1,4,64")
    assert not found["is_cut"]
    assert [row["shards_left"] for row in found["rows"]] == [5, 8, 44]
    assert found["shards"] == 5 and found["cost_left"] == 66_023
    said = estimates.in_one(*given, "--gpus", "1,4,64")
    assert "300 distinct; 66,023 residues; composition" in said
    assert "With 4, `shards: {cost: auto}` cuts 8 shards of 8_253 residues: 2 a slot, with" in said
    assert "less than 30 s is not worth a start-up of 1.0 s, so 20 of 64 slots get none." in said


def test_a_small_model_is_limited_by_the_host_whatever_the_card(estimates):
    estimates.esm2("mill_t6_8M")
    for name in ("a100", "h100"):
        said = estimates.in_one("--device", name)
        assert "an assumption: what one thread of the host prepares, 2,300,000 tokens a sec" in said


@pytest.mark.parametrize("machine", ["AMD-EPYC", "Intel-R-Xeon-R-Processor"])
def test_what_was_measured_on_cpus_lies_well_within_the_assumption(machine):
    record = ROOT / "bench" / "results" / f"2026-11-23-{machine}-2-cores-cpu.json"
    data = json.loads(record.read_text())
    for name, one in data["stages"].items():
        weights = weights_of_shape(one["layers"], one["width"])
        work = unit_work(weights, data["data"]["mean"])
        rows = data["measured"][f"compare {name} mean"]["rows"]
        measured = {row["name"]: row["tokens_per_second"] for row in rows}
        for dtype in ("fp32", "bf16"):
            rate = measured[f"featuremill {dtype}"]
            assumed = speeds.on_cpu(work, dtype, data["machine"]["cores"])
            assert 0.75 < rate / assumed < 1.33 < speeds.ASSUMED


@pytest.mark.parametrize("shape", ["650M", "3B"])
@pytest.mark.parametrize("kind", ["gpu", "our-attention-gpu"])
def test_what_was_measured_on_an_h200_is_what_is_said_of_one(shape, kind):
    record = ROOT / "bench" / "results" / f"2026-11-26-NVIDIA-H200-{shape}-{kind}.json"
    data = json.loads(record.read_text())
    one, (card,) = data["stages"][shape], speeds.cards_called(data["machine"]["gpu"])
    work = unit_work(weights_of_shape(one["layers"], one["width"]), data["data"]["mean"])
    rows = data["measured"][f"compare {shape} mean"]["rows"]
    measured = {row["name"]: row.get("tokens_per_second_of_extract") for row in rows}
    for dtype in ("fp32", "fp16", "bf16"):
        far = 0.12 if dtype == "fp32" else 0.1  # its share differs most between both shapes
        assumed = speeds.on_card(work, dtype, card)
        assert measured[f"featuremill {dtype}"] == pytest.approx(assumed, rel=far)
        assert 1 + far < speeds.ASSUMED
    small = unit_work(weights_of_shape(6, 320), data["data"]["mean"])
    assert not small.shares, "no such model was measured"


def test_runs_beside_it_that_cannot_be_read_are_skipped(estimates):
    estimates.esm2("mill_t6_8M")
    options = {"model": "mill_t6_8M", "dtype": "bf16", "per_residue": False}
    settings = {"workload": "esm2", "version": "1", "options": options, "weights_sha256": "0"}
    job = JobSpec(Settings(**settings), "h100", is_gpu=True)
    results = estimates.folder / "results"
    plans = {
        "damaged": {"settings": settings},
        "odd": plan_json(settings=settings),
        "newer": {"version": 99},
        "newer-parts": plan_json(settings=settings),
    }
    for name, plan in plans.items():
        (results / name / "receipts" / "r").mkdir(parents=True)
        (results / name / "plan.json").write_text(json.dumps(plan))
    newer = json.dumps(receipt_json(version=99))
    (results / "newer-parts" / "receipts" / "r" / "s.json").write_text(newer)
    (results / "odd" / "receipts" / "r" / "s.json").mkdir(parents=True)  # reading it: OSError
    (results / "unreadable" / "plan.json").mkdir(parents=True)
    assert speeds.earlier_parts(job, results) == ([], [])
    assert "an assumption" in estimates("--device", "h100")


def test_what_does_not_fit_and_what_is_large_is_said_plainly(estimates):
    estimates.configure(outputs=["parquet", "per_protein_h5"], shards={"cost": 10**9})
    given = ("--cpu-slots", 1, "--tokens-per-second", 1e6)
    estimates.plan_of(20_000_100)
    said = estimates.in_one(*given)
    assert "outputs: parquet for 20,000,100 records: one file of that size is hard to move" in said
    assert "outputs: per_protein_h5 for 20,000,100 records: a dataset a record" in said
    estimates.plan_of(10**11)
    said = estimates.in_one(*given)
    assert "What will be written, " in said and "that are free on the disk; plan will ref" in said


def test_options_that_are_in_no_recipe_count(estimates):
    def memory(batch_tokens):
        estimates.esm2(batch_tokens=batch_tokens)
        return estimates.json("--gpus", 1, "--device", DEVICE)["device_mb"]

    assert memory(60_000) > 1.1 * memory(6_000)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "0", "--device", DEVICE], "--gpus '0': give numbers from 1"),
        (["--gpus", "1,x", "--device", DEVICE], "such as 1,4,64"),
        (["--cpu-slots", "999"], "--cpu-slots 999: this machine has"),
        (["--cpu-slots", "1", "--device", DEVICE], "give --gpus with it"),
        (["--gpus", "1", "--tokens-per-second", "nan"], "--tokens-per-second nan: give a positive"),
        (["--gpus", "1"], "no GPU is here and none has computed this model yet"),
        (["--device", "Voodoo \x1b[31m2"], "its speed on Voodoo \\x1b[31m2 is unknown; compute"),
        (["--cpu-slots", "1"], "is unknown; compute a shard or two there first"),
    ],
)
def test_what_cannot_be_answered_is_a_sentence(estimates, arguments, said):
    answer = estimates(*arguments, status=2)
    assert said in answer
    assert "\x1b[31m" not in answer


def test_a_config_and_an_input_that_do_not_fit_are_sentences(estimates):
    estimates.configure(device="cpu")
    assert "device: cpu computes on the CPU" in estimates("--gpus", "1", status=2)
    estimates.configure(gpus=4, device="cuda")
    said = estimates("--gpus", "2", "--device", DEVICE, status=2)
    assert "one job of this config needs 4" in said
    estimates.configure(gpus=4, workload="esm2", options={"model": "esm2_t48_15B_UR50D"})
    assert "does not fit" not in (fits := estimates("--device", "t4"))
    assert "\n   4  " in fits, "of four GPUs, if nobody says how many"
    estimates.configure(gpus=2, workload="esm2", options={"model": "esm2_t48_15B_UR50D"})
    said = estimates.in_one("--device", "t4")
    assert "does not fit 2 such GPUs of 15,360 MB: set gpus_per_job: 3 or more" in said
    assert "MB of its 2 GPUs (the doctor's estimate)" in said
    for name, sentence in (
        ("missing.fa", "missing.fa: there is no such file"),
        (".", ".: this is a folder; name the files in it"),
    ):
        estimates.configure(inputs=name)
        words = ("--cpu-slots", "1", "--tokens-per-second", "5")
        assert sentence in estimates(*words, status=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_run_takes_what_was_estimated(environment):
    """Jobs that sleep, so that other work on the machine changes little: real runs of Snakemake on
    one and on two slots, each estimated beforehand from a smaller run.

    What comes before and after the shards (Snakemake's start, plan, merge, report) is reckoned at
    constant rates, which only hold where the processors are not shared out several times.
    """
    options = json.dumps({"residues_per_second": 4000.0})
    words = ("-m", "bench.estimate", "--workload", "timed", "--options", options)
    done = python(*words, cwd=ROOT, env=environment, timeout=840)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["slots"] for one in found] == [1, 2]
    for one in found:
        assert one["speed"]["kind"] == "earlier run"
        assert one["speed"]["cost_per_second"] == pytest.approx(4000, rel=0.15)
        assert abs(one["shards"]["error"]) <= 0.15, found
        is_calm = max(one["load"]) <= 1.5 * num_cores()
        assert not is_calm or abs(one["whole"]["error"]) <= 0.15, found


def test_only_weights_that_are_elsewhere_are_to_be_fetched(estimates):
    fetched = ("esm2_t12_35M_UR50D", "to fetch and convert")
    for model, how in (("mill_t6_8M", "to convert"), fetched):
        estimates.esm2(model)
        said = estimates.in_one("--tokens-per-second", 9)
        assert f"2 cores); {how} the weights comes on top." in said


# The answer in one sentence, without a config, for a card by any of its names

RECORDS = "".join(f">p{n}\n{'MKVLAAGIVGL' * (n + 1)}\n" for n in range(28))
MODEL = "esm2_t33_650M_UR50D"


@pytest.fixture
def desk(tmp_path, environment):
    (tmp_path / "my.fa").write_text(RECORDS)
    return Desk(tmp_path, environment)


def ask(desk, *words, status=0):
    return " ".join(desk.type("featuremill", "estimate", *words, status=status).text.split())


@pytest.mark.parametrize(
    ("typed", "card"),
    [
        ("H200", "NVIDIA H200"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("RTX3090", "NVIDIA GeForce RTX 3090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("h100 hbm3", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
    ],
)
def test_the_first_line_is_the_answer_without_a_config(desk, typed, card):
    said = ask(desk, "my.fa", "--model", MODEL, "--device", typed)
    assert said.startswith(f"28 records with {MODEL} on {card}, 1 GPU: about ")
    assert "s). Assumed, not measured. 28 records, 28 distinct; " in said
    assert not (desk.folder / "results").exists() and not list(desk.folder.glob("*.yaml"))


def test_a_name_of_several_cards_says_which_it_took(desk):
    said = ask(desk, "my.fa", "--model", MODEL, "--device", "H100", "--gpus", "1,4")
    assert " on NVIDIA H100 PCIe, 1 GPU: about " in said and "; 4 GPUs: about " in said
    assert "H100 may also be NVIDIA H100 NVL and NVIDIA H100 80GB HBM3: then name" in said


@pytest.mark.parametrize("typed", ["A10G", "rtx 4080", "potato"])
def test_a_card_that_is_not_in_the_table_is_answered_with_the_table(desk, typed):
    said = ask(desk, "my.fa", "--model", MODEL, "--device", typed, status=2)
    assert "A10, RTX A5000" in said and said.endswith("give --tokens-per-second.")
    said = ask(desk, "my.fa", "--device", typed, "--tokens-per-second", "1000")
    assert "At the speed that was given." in said


def test_of_a_config_another_model_and_what_is_done(desk):
    config = {"run": "my", "inputs": "my.fa", "workload": "composition", "device": "cpu"}
    (desk.folder / "my.yaml").write_text(json.dumps(config))
    said = ask(desk, "my.yaml", "--tokens-per-second", "1000")
    assert said.startswith("28 records with composition on ")
    said = ask(desk, "my.yaml", "--workload", "esm2", "--model", MODEL, "--cpu-slots", "1")
    assert said.startswith(f"28 records with {MODEL} on ")
    desk.type("featuremill", "run", "my.yaml", "--cores", "1")
    said = ask(desk, "results/my")
    assert said.startswith("Nothing is left to compute of 28 records with composition; what comes")
    config["features"] = {"a": {"workload": config.pop("workload")}}
    del config["device"]
    (desk.folder / "my.yaml").write_text(json.dumps(config | {"run": "two"}))
    said = ask(desk, "my.yaml", "--model", MODEL, status=2)
    assert "it has several models; leave --model and --workload out." in said
