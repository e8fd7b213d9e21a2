"""One result has values of one version: of the workload, and of the engine that runs it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import yaml
from conftest import NOT_IMPORTED
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import plan_json, read_sealed, write_sealed
from programs import NO_REPORT, Verbs, Workflow, fasta, random_records, written

from featuremill.config import validate
from featuremill.flow import reruns
from featuremill.status.outdated import is_computed
from featuremill.status.reader import RunReader
from featuremill.store import journal_log
from featuremill.store.files import read_json
from featuremill.store.results import Results

VERSIONS = ("1.1", "2.1", "1.2")
"""Of the workload and of the engine: either may be raised alone."""


def value_of(version):
    workload, engine = version.split(".")
    return round(int(workload) + int(engine) / 10, 1)


def delivered(folder):
    """Return the one value in the results, and the versions that manifest.json says it is of."""
    table = pq.read_table(folder.root / "embeddings.parquet")
    (value,) = {round(row[0], 1) for row in table["version"].to_pylist()}
    told = read_json(folder.root / "manifest.json")["settings"]
    assert value == value_of(f"{told['version']}.{told.get('engine', 1)}")
    return value


class Versioned(Workflow):
    """A run whose installation changes from one start to the next."""

    def configure(self, **options):
        config = {"run": "test", "inputs": "in.fa", "workload": "versioned", "device": "cpu"}
        config["shards"] = {"cost": 8}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def __call__(self, version, *arguments, **more):
        return super().__call__(NO_REPORT, *arguments, VERSIONED=version, **more)

    def status(self, version, status=0):
        said = self.verb("status", "results/test", "--json", VERSIONED=version, status=status)
        return {problem["code"] for problem in json.loads(said.out)["problems"]}


def test_a_run_of_another_version_is_planned_and_computed_anew(tmp_path, environment):
    """Wherever the run of the earlier version was killed, and with the same command."""
    run = Versioned(tmp_path, environment, random_records(16))
    plan = run.run_folder.plan
    run("1.1", status=-9, DIES_PLANNING="1")
    run("2.1", status=-9, DIES_AFTER="4")
    logs = run.run_folder.store.glob("journals/*/*.log")
    assert any(journal_log.read_log(log).commits for log in logs)
    said = run("2.2")
    assert "engine and not version 1: it is planned and computed anew" in said
    assert delivered(run.run_folder) == 2.2
    assert run.status("2.2") == set()

    assert run.status("3.2", status=1) == {"version_changed"}
    said = run("3.2", "--dry-run")
    assert "here is version 3 of workload versioned and not version 2" in said
    assert "a dry run does not show" in said and read_sealed(plan)["settings"]["version"] == "2"
    run("3.2")
    assert delivered(run.run_folder) == 3.2
    made = plan.stat().st_mtime_ns
    assert "anew" not in run("3.2") and plan.stat().st_mtime_ns == made


def test_where_another_workflow_imports_it_nothing_is_taken_away(tmp_path, monkeypatch):
    """Its target may need no plan: then nothing would make one again."""
    monkeypatch.chdir(tmp_path)
    run = validate({"inputs": "in.fa", "workload": "composition", "run": "my"})
    plan = Results(Path("results/my")).plan
    write_sealed(plan, plan_json(settings={"version": "0"}))
    names = {"modify_rulename": lambda name: f"my_{name}"}
    modifier = SimpleNamespace(is_main_snakefile=lambda: False, **names)
    settings = SimpleNamespace(dryrun=False)
    workflow = SimpleNamespace(modifier=modifier, output_settings=settings)
    said = []
    monkeypatch.setattr(reruns.log, "warning", said.append)
    reruns.rerun_outdated(workflow, run, needs_plan=False)
    assert plan.exists() and "--forcerun my_plan plans it anew" in said[0]
    workflow.modifier.is_main_snakefile = lambda: True
    reruns.rerun_outdated(workflow, run, needs_plan=False)
    assert not plan.exists() and "it is planned and computed anew" in said[1]


def test_a_run_that_starts_with_more_slots_is_planned_anew(tmp_path, monkeypatch):
    """As one is that was planned on a login node; not once its shards are begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reruns.internals, "executes", lambda workflow: True)
    run = validate({"inputs": "in.fa", "workload": "composition", "run": "my"})
    folder, workflow = Results(Path("results/my")), SimpleNamespace(modifier=NOT_IMPORTED)
    monkeypatch.setattr(reruns.internals, "is_main", lambda workflow: True)

    def is_forgotten(slots, shard):
        monkeypatch.setenv("FEATUREMILL_GPUS", str(slots))
        write_sealed(folder.plan, plan_json([shard], slots=2))
        reruns.replan_for_more_slots(workflow, run)
        return not folder.plan.exists()

    many = {"shard": "a", "records": 9, "wanted": 9}
    assert [is_forgotten(slots, many) for slots in (0, 1, 2, 3)] == [False, False, False, True]
    assert not is_forgotten(4, {"shard": "a"}), "one record is one shard"
    folder.journal("r", "a").parent.mkdir(parents=True)
    folder.journal("r", "a").touch()
    assert not is_forgotten(4, many)


@pytest.mark.parametrize(
    "plan", [{}, {"workload": "composition", "settings": None}, {"workload": "gone"}]
)
def test_of_what_is_no_plan_nothing_is_said(tmp_path, monkeypatch, plan):
    monkeypatch.chdir(tmp_path)
    run = validate({"inputs": "in.fa", "workload": "composition", "run": "my"})
    write_sealed(Results(Path(run.folder)).plan, plan)
    assert RunReader(Path(run.folder), config=run).needing_rerun() == []
    assert not is_computed(run.folder)


class Steps(Verbs):
    """The same without Snakemake, a verb a step, each of whatever version is installed then."""

    def take(self, version, verb, *arguments, **environment):
        words = ("featuremill", verb, self.run_folder.root, *arguments)
        said = self.type(*words, status=None, VERSIONED=version, **environment)
        return said.status, said.err

    def plan(self, version):
        (self.folder / "in.fa").write_text(fasta(random_records(12)))
        config = {"run": "test", "inputs": ["in.fa"], "workload": "versioned", "device": "cpu"}
        asked = json.dumps({**config, "shards": {"cost": 6}})
        status, said = self.take(version, "plan", "--config", written(asked))
        assert status == 0, said

    def shards(self):
        return [shard["shard"] for shard in read_sealed(self.run_folder.plan)["shards"]]

    def delivers(self, version):
        """Merge, and return whether that went well."""
        status, said = self.take(version, "merge")
        assert status in (0, 2, 4) and "Traceback" not in said, said
        if status == 0:
            delivered(self.run_folder)
        return status == 0


@pytest.fixture
def steps(tmp_path, environment):
    return Steps(tmp_path, environment)


def test_a_worker_of_another_version_refuses(steps):
    steps.plan("1.1")
    shard = steps.shards()[0]
    assert steps.take("1.1", "extract", shard, DIES_AFTER="3")[0] == -9
    status, said = steps.take("2.1", "extract", shard)
    assert status == 2
    assert "here is version 2 of workload versioned and not version 1" in said
    status, said = steps.take("1.2", "extract", shard)
    assert status == 2 and "here is version 2 of featuremill's engine and not version 1" in said
    status, said = steps.take("1.1", "extract", shard)
    assert status == 0 and "resumed from before a stop or a crash" in said


def test_merge_refuses_parts_of_two_versions(steps):
    """As an installation that is replaced in the middle of a job could leave them."""
    steps.plan("1.1")
    first, last = steps.shards()
    for shard in (first, last):
        assert steps.take("1.1", "extract", shard)[0] == 0
    recipe = read_sealed(steps.run_folder.plan)["recipe"]
    part = steps.run_folder.part(recipe, last)
    receipt = steps.run_folder.receipt(recipe, last)
    whole = read_sealed(receipt)
    for key, other in (("workload_version", "2"), ("engine_version", 2)):
        write_sealed(receipt, whole | {key: other})
        status, said = steps.take("1.1", "merge")
        assert status == 4 and "it was computed by version 2 of" in said
        assert not receipt.exists() and not part.exists()
        assert steps.take("1.1", "extract", last)[0] == 0
    assert steps.delivers("1.1")
    # Receipts of 0.1 do not tell.
    write_sealed(receipt, {k: v for k, v in whole.items() if not k.endswith("_version")})
    assert steps.delivers("1.1")


VERSION, DIES_AFTER = st.sampled_from(VERSIONS), st.sampled_from(["", "1", "2", "3"])
STEP = st.one_of(
    st.tuples(st.just("plan"), VERSION),
    st.tuples(st.just("extract"), VERSION, st.integers(0, 1), DIES_AFTER),
    st.tuples(st.just("merge"), VERSION),
)


def goes_on(steps, sequence, last):
    """Take the steps, then do all that is left by version `last`; every result is of one."""
    steps.plan(sequence[0][1])
    for verb, version, *more in sequence:
        if verb == "plan":
            steps.plan(version)
        elif verb == "merge":
            steps.delivers(version)
        else:
            number, dies_after = more
            shards = steps.shards()
            status, said = steps.take(
                version, "extract", shards[number % len(shards)], DIES_AFTER=dies_after
            )
            assert status in (0, 2, -9), said
    steps.plan(last)
    for shard in steps.shards():
        assert steps.take(last, "extract", shard)[0] == 0
    assert steps.delivers(last)
    assert delivered(steps.run_folder) == value_of(last)


def examples(number):
    """Return what has hypothesis draw `number` of sequences of steps, the same each time."""

    def wrapped(test):
        drawn = given(st.lists(STEP, min_size=3, max_size=8), VERSION)(test)
        quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
        more = {"derandomize": True, "deadline": None, "suppress_health_check": quiet}
        return settings(max_examples=number, **more)(drawn)

    return wrapped


@examples(2)
def test_no_kills_and_versions_put_two_into_one_result(tmp_path_factory, environment, steps, last):
    goes_on(Steps(tmp_path_factory.mktemp("run"), environment), steps, last)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@examples(80)
def test_nor_do_many_more(tmp_path_factory, environment, steps, last):
    goes_on(Steps(tmp_path_factory.mktemp("run"), environment), steps, last)
