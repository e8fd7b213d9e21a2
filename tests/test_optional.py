"""What a workload may say of itself, and what comes of it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import PLUGINS
from programs import Verbs, random_records

from featuremill import step
from featuremill.base import reasons, this_process
from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.base.reasons import Kind
from featuremill.config import validate
from featuremill.flow import internals, refusals
from featuremill.flow.context import RunOfRules
from featuremill.flow.screen import RefusedError
from featuremill.merge import provenance
from featuremill.plan import speeds
from featuremill.plan.shard_cost import Sizing
from featuremill.report.shards import troubles_of
from featuremill.store.plan import Plan, Settings
from featuremill.workload import UnitWork, Weights, find_workload
from featuremill.workload.contract import OptionalAttributes, optional
from featuremill.workload.recipe import precision_name_of

RECORDS = [
    (f"r{n}", f"{'DEF'[n % 3]}{sequence}") for n, (_, sequence) in enumerate(random_records(30))
]


@pytest.fixture
def numbered(monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGINS))
    return find_workload("numbered")


def test_a_row_fails_for_its_own_reason_and_nothing_is_computed_again(tmp_path, environment):
    computed = tmp_path / "computed.txt"
    told = {"BULKY_UNLUCKY": "E", "COMPUTED": str(computed)}
    verbs = Verbs(tmp_path, {**environment, **told})
    plan = verbs.plan(RECORDS, "bulky", cost=15, outputs=["parquet"])
    verbs.extract(plan)
    assert sorted(computed.read_text().split()) == sorted(sequence for _, sequence in RECORDS)
    root = verbs.run_folder.root
    verbs("merge", root, "--outputs", "parquet", "--max-failed", "30")
    unlucky = [id for id, sequence in RECORDS if sequence.startswith("E")]
    lines = (root / "failed.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[0] for line in lines] == unlucky and len(unlucky) == 10
    assert all(line.endswith("\tdrawn blank: E") for line in lines)
    ids = pq.read_table(root / "embeddings.parquet")["id"].to_pylist()
    assert ids == [id for id, _ in RECORDS if id not in unlucky]

    said = verbs.type("featuremill", "status", root, "--json", status=2).out
    (group,) = json.loads(said)["reasons"]
    assert (group["kind"], group["reason"], group["number"]) == ("unlucky", "drawn blank", 10)
    assert group["remedy"] == "Draw again."
    said = verbs("retry", root, "--reason", "unlucky", "--dry-run")
    assert "10 failed records would run again: 10 unlucky" in said
    said = verbs("retry", root, "--reason", "unknown", status=2)
    assert "there is no such kind of reason" in said and "unlucky" in said


@pytest.mark.parametrize(
    "kind",
    [
        Kind("oom", ("of my own",), ""),
        Kind("mine", ("out of memory",), ""),
        Kind("mine", (), ""),
        Kind("mine", ("with: a colon",), ""),
    ],
)
def test_a_kind_of_reasons_that_is_taken_is_refused(kind):
    with pytest.raises(ValueError, match="the kind of reasons"):
        reasons.learn([kind])
    assert reasons.kind_of("out of memory: x") is reasons.OUT_OF_MEMORY


def test_no_option_means_anything_by_its_name(numbered, monkeypatch, tmp_path):
    """A `dtype` and a `model` of somebody else's are options as others are, and so are metadata."""
    options = {"dtype": "wide", "model": "of mine", "layers": 3}
    settings = Settings(workload="numbered", version="1", options=options, weights_sha256=None)
    other = settings.model_copy(update={"options": {**options, "layers": 4}})
    assert precision_name_of(settings) == "" and not speeds.is_alike(settings, other)
    for more in ({"weights_sha256": "1" * 64}, {"files": {"number": "1" * 64}}):
        assert not speeds.is_alike(settings, settings.model_copy(update=more))
    assert speeds.is_alike(settings, settings.model_copy())
    weights = Weights("mine", Path(), "", {"num_layers": "6", "embed_dim": "320"})
    with pytest.raises(UserError, match="workload numbered: its speed on h100 is unknown"):
        speeds.find(speeds.JobSpec(settings, "h100", is_gpu=True), tmp_path, weights, 350)
    monkeypatch.setattr(numbered, "SPEED_OPTIONS", ("model",), raising=False)
    assert speeds.is_alike(settings, other)
    monkeypatch.setattr(numbered, "PRECISION", "dtype", raising=False)
    assert precision_name_of(settings) == "wide"
    work = UnitWork(1e9, 0, 1e9, {"wide": 2.0}, 3e-6)
    monkeypatch.setattr(numbered, "unit_work", lambda weights, mean_cost: work, raising=False)
    speed = speeds.find(speeds.JobSpec(settings, "h100", is_gpu=True), tmp_path, weights, 350)
    assert speed.is_assumed and speed.cost_per_second == pytest.approx(0.5 * 756e3)
    job = speeds.JobSpec(settings, "a CPU", is_gpu=False)
    assert (
        "2 GFLOP/s a core in wide and 3 µs a record"
        in speeds.find(job, tmp_path, weights, 350).source
    )


def test_a_workload_without_a_gpu_gets_none(monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGINS))
    config = {"inputs": "in.fa", "device": "cuda", "workload": "files", "outputs": "parquet"}
    assert validate(config).device == "cpu"
    assert validate({**config, "workload": "composition"}).device == "cuda"


def test_conda_environments_are_the_workloads_where_they_are_needed():
    def environments(workload, *outputs):
        run = SimpleNamespace(workload=workload, outputs=outputs, module=find_workload(workload))
        flow = SimpleNamespace(run=run)
        verbs = ("weights", "plan", "extract", "merge", "report")
        return [Path(RunOfRules.environment(flow, verb)).name for verb in verbs]

    esm2, base = "esm2.yaml", "base.yaml"
    assert environments("esm2") == [esm2, base, esm2, base, base]
    assert environments("esm2", "fair_esm_pt") == [esm2, base, esm2, esm2, base]
    assert environments("composition") == [base] * 5


def test_a_plug_ins_environment_is_everywhere_and_one_without_is_refused(numbered, monkeypatch):
    asked = {"inputs": "in.fa", "workload": "numbered", "options": {"number": "n"}}
    config = validate(asked)
    monkeypatch.setattr(internals, "makes_conda_environments", lambda workflow: True)
    monkeypatch.setattr(internals, "is_imported", lambda workflow: False)
    with pytest.raises(
        RefusedError, match=r"--sdm conda: workload numbered \(package featuremill-"
    ):
        refusals.refuse_without_packages(None, config)
    monkeypatch.setattr(numbered, "ENVIRONMENT", Path("/its/own.yaml"), raising=False)
    refusals.refuse_without_packages(None, config)
    flow = SimpleNamespace(run=config)
    assert {RunOfRules.environment(flow, verb) for verb in ("plan", "extract", "report")} == {
        "/its/own.yaml"
    }


def test_a_workload_says_how_large_shards_are_while_nothing_is_known(
    numbered, tmp_path, monkeypatch
):
    monkeypatch.setattr(numbered, "SHARD_COST", 77, raising=False)
    settings = Settings(workload="numbered", version="1", options={}, weights_sha256=None)
    sizing = Sizing("auto", tmp_path, settings, None, pa.schema({}), "records", cpu(), 1)
    cut = sizing.cut(1000, 1000, 1000)
    assert cut.shards(1000) == 13 and "about 77 each" in cut.why


def test_versions_of_other_packages_are_told():
    assert this_process.versions(["pytest", "there-is-none"])["pytest"] == pytest.__version__
    assert "pytest" not in this_process.versions()


@pytest.mark.parametrize(
    ("workload", "batches", "written"),
    [
        ("esm2", "A smaller batch (batch_tokens in the options of esm2) or", "no per_residue"),
        ("composition", "A smaller batch or a device", "or less written."),
        ("of nobody here", "A smaller batch or a device", "or less written."),
    ],
)
def test_the_report_names_the_workloads_own_options_that_help(workload, batches, written):
    receipt = SimpleNamespace(
        oom_splits=2, retries=0, resumed_batches=0, seconds={"waited_for_disk": 1.0}
    )
    shard = SimpleNamespace(receipt=receipt, name="0123456789", lane="GPU 0")
    memory, disk = troubles_of([shard], workload)
    assert batches in memory.remedy and written in disk.remedy
    assert "{" not in memory.remedy + disk.remedy


def test_only_what_a_workload_says_stands_by_its_name_among_the_attributes():
    options = {"dtype": "fp32", "layers": [1, 2]}
    about = {}
    for name in ("esm2", "composition"):
        settings = Settings(workload=name, version="1", options=options, weights_sha256=None)
        told = {"workload": name, "workload_version": "1", "recipe": "r", "settings": settings}
        about[name] = provenance.provenance_of(Plan.model_construct(**told), [])
    assert (about["esm2"]["dtype"], about["esm2"]["layers"]) == ("fp32", "1, 2")
    assert not {"dtype", "layers"} & about["composition"].keys()
    assert json.loads(about["composition"]["options"]) == options


def test_bytes_are_no_lengths_where_a_file_adds_to_payloads():
    """With regions the energy of a million residues would count the letters of their ends."""
    settings = Settings(workload="esm2", version="1", options={}, weights_sha256=None)
    with_regions = settings.model_copy(update={"files": {"regions": "1" * 64}})
    plans = [Plan.model_construct(workload="esm2", settings=s) for s in (settings, with_regions)]
    assert list(map(provenance.bytes_are_lengths, plans)) == [True, False]


def test_every_attribute_has_a_default():
    names = [name for name in vars(OptionalAttributes) if name.isupper()]
    assert set(names) == set(OptionalAttributes.__annotations__)
    assert [optional(object(), name) for name in names] == [
        getattr(OptionalAttributes, name) for name in names
    ]


def test_a_workload_or_step_without_an_optional_method_gives_what_means_nothing(tmp_path):
    assert optional(object(), "figures")([], None) == ()
    assert optional(object(), "write_object")({}, tmp_path / "x") is None
    assert optional(object(), "spreads")(None) is True
    assert optional(object(), "published")(tmp_path, tmp_path, "", None) is None
    assert step.optional(object(), "proteins_of")(["in.fa"]) is None
    assert step.optional(object(), "VARIABLES") == ()
