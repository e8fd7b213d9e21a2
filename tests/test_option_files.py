"""Options that name files: their contents are in the recipe, their paths are not."""

import hashlib
import json
import os
import shutil
import subprocess

import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import read_sealed
from programs import NO_REPORT, ROOT, Desk, Verbs, Workflow, fasta, random_records, written

from featuremill.store.files import digest_at
from featuremill.workload import OptionFile, OptionFolder, WorkloadOptions
from featuremill.workload.option_files import kinds_of

RECORDS = random_records(12)


class Reading(Workflow):
    """A run whose values are what stands in a file and in a folder."""

    def configure(self, **options):
        self.options = {"number": "number.txt", "more": "more", **options}
        config = {"run": "test", "inputs": "in.fa", "workload": "numbered", "device": "cpu"}
        config |= {"options": self.options, "shards": {"cost": 6}, "outputs": ["parquet"]}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def put(self, name, number):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{number}\n")

    def values(self):
        """Return what stands in the results: of one content, or this fails."""
        table = pq.read_table(self.run_folder.root / "embeddings.parquet")
        (value,) = {tuple(row) for row in table["number"].to_pylist()}
        return value

    def parts(self):
        return {path: path.stat().st_mtime_ns for path in self.run_folder.store.rglob("*.arrows")}

    def problems(self, status):
        said = self.verb("status", "results/test", "--json", status=status)
        return {problem["code"] for problem in json.loads(said.out)["problems"]}


@pytest.fixture
def reading(tmp_path, environment):
    run = Reading(tmp_path, environment, RECORDS)
    run.put("number.txt", 1)
    run.put("more/a.txt", 10)
    return run


def test_an_edit_computes_anew_and_a_move_nothing(reading):
    reading(NO_REPORT)
    assert reading.values() == (1, 10)
    parts = reading.parts()

    reading.put("number.txt", 1)  # touched
    (reading.folder / "elsewhere").mkdir()
    shutil.move(reading.folder / "number.txt", reading.folder / "elsewhere" / "other.txt")
    shutil.move(reading.folder / "more", reading.folder / "renamed")
    reading.put("renamed/.hidden", 5)
    reading.configure(number="elsewhere/other.txt", more="renamed")
    reading(NO_REPORT)
    assert reading.parts() == parts and reading.values() == (1, 10)
    assert reading.problems(status=0) == set()

    reading.put("elsewhere/other.txt", 2)
    assert reading.problems(status=1) == {"option_changed"}
    reading(NO_REPORT)
    assert reading.values() == (2, 10)
    computed = reading.parts()
    assert not computed.keys() & parts.keys() - computed.keys() and len(computed) == 2 * len(parts)

    # A file more, and one as it comes out of an archive: with the time that it had there.
    reading.put("renamed/b.txt", 100)
    path = reading.folder / "renamed" / "a.txt"
    path.write_text("30\n")
    os.utime(path, (10**9, 10**9))
    assert "options.more: renamed has changed" in reading(NO_REPORT)
    assert reading.values() == (2, 130)


def test_files_that_were_put_away_after_the_run_are_not_missed(reading):
    reading(NO_REPORT)
    (reading.folder / "number.txt").unlink()
    assert "Nothing to be done" in reading(NO_REPORT)
    assert reading.problems(status=0) == {"option_missing"}


def test_a_search_computes_with_the_contents_of_the_run_or_says_what_is_not_the_same(reading):
    reading(NO_REPORT)
    (reading.folder / "query.fa").write_text(fasta(random_records(1, seed=1)))
    asked = ("search", "results/test", "--query", "query.fa", "-k", 1)
    first, _ = min(RECORDS, key=lambda record: hashlib.sha256(record[1].encode()).digest())
    assert f"\np1.0\t1\t{first}\t" in reading.verb(*asked).out  # all vectors are the same
    reading.put("number.txt", 2)
    assert "number.txt: it has changed since" in reading.verb(*asked, status=2).err
    (reading.folder / "number.txt").unlink()
    assert "number.txt: there is no such file" in reading.verb(*asked, status=2).err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"number": "gone.txt"}, "options.number: gone.txt: there is no such file"),
        ({"number": "more"}, "options.number: more: this is a folder, and a file is meant"),
        ({"more": "number.txt"}, "options.more: number.txt: this is a file, and a folder is"),
        ({"more": "gone"}, "options.more: gone: there is no such folder"),
        ({"more": "empty"}, "options.more: empty: there is no file in this folder"),
        ({"number": ""}, "options.number: "),
    ],
)
def test_a_wrong_path_is_one_sentence_with_the_line_before_anything_is_read(
    reading, options, sentence
):
    (reading.folder / "empty").mkdir()
    reading.configure(**options)
    lines = (reading.folder / "config.yaml").read_text().splitlines()
    (name,) = options
    number = next(n for n, line in enumerate(lines, 1) if line.strip().startswith(f"{name}:"))
    told = f"config.yaml:{number}: {sentence}"
    assert told in reading(status=1)
    assert told in reading.verb("plan", "results/test", "--config", "config.yaml", status=2).err
    assert not reading.run_folder.plan.exists()


def test_a_file_that_another_rule_makes_moves_with_the_prefix(tmp_path, environment):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "in.fa").write_text(fasta(RECORDS))
    root = os.path.relpath(ROOT, tmp_path)
    (tmp_path / "Snakefile").write_text(
        f"""
asked = {{"run": "test", "inputs": ["in.fa"], "workload": "numbered", "device": "cpu"}}
asked |= {{"options": {{"number": "number.txt", "more": "more"}}}}
asked["outputs"] = ["parquet"]

rule number:
    output: "made/number.txt"
    shell: "echo 4 > {{output}}"

module mill:
    snakefile: "{root}/Snakefile"
    config: asked
    prefix: "made"

use rule * from mill as mill_*
"""
    )
    folder = tmp_path / "made" / "more"
    folder.mkdir()
    desk, target = Desk(tmp_path, environment), "made/results/test/manifest.json"
    for number in (8, 9):  # an edit inside a folder leaves the folder's own time
        (folder / "a.txt").write_text(f"{number}")
        desk.type("snakemake", "--cores", "2", target)
        table = pq.read_table(tmp_path / "made" / "results" / "test" / "embeddings.parquet")
        assert {tuple(row) for row in table["number"].to_pylist()} == {(4.0, number)}
    assert "Nothing to be done" in desk.type("snakemake", "--cores", "2", target).text


class Steps(Verbs):
    """The same without Snakemake, a verb a step."""

    def put(self, number, records):
        (self.folder / "number.txt").write_text(f"{number}\n")
        (self.folder / "in.fa").write_text(fasta(random_records(records)))

    def take(self, verb, *arguments, **environment):
        words = ("featuremill", verb, self.run_folder.root, *arguments)
        said = self.type(*words, status=None, **environment)
        assert "Traceback" not in said.text, said.text
        return said.status, said.err

    def plans(self):
        config = {"run": "test", "inputs": ["in.fa"], "workload": "numbered", "device": "cpu"}
        config |= {"options": {"number": "number.txt"}, "shards": {"cost": 6}}
        status, said = self.take("plan", "--config", written(config))
        assert status == 0, said

    def shards(self):
        return [shard["shard"] for shard in read_sealed(self.run_folder.plan)["shards"]]

    def delivered(self):
        """Merge; return the one number in the results where that went well."""
        status, said = self.take("merge")
        assert status in (0, 2, 4), said
        if status != 0:
            return None
        table = pq.read_table(self.run_folder.root / "embeddings.parquet")
        ((value, _),) = {tuple(row) for row in table["number"].to_pylist()}
        return value


@pytest.fixture
def steps(tmp_path, environment):
    made = Steps(tmp_path, environment)
    made.put(1, 12)
    made.plans()
    return made


def test_a_worker_refuses_another_content(steps):
    steps.put(2, 12)
    status, said = steps.take("extract", steps.shards()[0])
    assert status == 2 and "number.txt: it has changed since" in said
    steps.put(1, 12)
    assert steps.take("extract", steps.shards()[0])[0] == 0


def test_also_one_that_came_while_the_model_was_loaded(steps):
    path = steps.folder / "number.txt"
    status, said = steps.take("extract", steps.shards()[0], EDITS_WHILE_LOADING=str(path))
    assert status == 2 and "it has changed since" in said
    assert not list(steps.run_folder.store.glob("parts/*/*.arrows"))


STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 3), st.sampled_from([6, 12, 14])),
    st.tuples(st.just("plan")),
    st.tuples(st.just("extract"), st.integers(0, 2), st.sampled_from(["", "1", "2", "3"])),
    st.tuples(st.just("merge")),
)


def goes_on(steps, sequence):
    """Take the steps, then do all that is left; every result is of one content."""
    steps.put(1, 12)
    steps.plans()
    for verb, *more in sequence:
        if verb == "put":
            steps.put(*more)
        elif verb == "plan":
            steps.plans()
        elif verb == "merge":
            steps.delivered()
        else:
            number, dies_after = more
            shards = steps.shards()
            shard = shards[number % len(shards)]
            status, said = steps.take("extract", shard, DIES_AFTER=dies_after)
            assert status in (0, 2, -9), said
    steps.plans()
    for shard in steps.shards():
        assert steps.take("extract", shard)[0] == 0
    assert steps.delivered() == float((steps.folder / "number.txt").read_text())


def examples(number):
    def wrapped(test):
        return settings(
            max_examples=number,
            derandomize=True,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        )(given(st.lists(STEP, min_size=3, max_size=10))(test))

    return wrapped


@examples(2)
def test_no_edits_and_kills_put_two_contents_into_one_result(
    tmp_path_factory, environment, sequence
):
    goes_on(Steps(tmp_path_factory.mktemp("run"), environment), sequence)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@examples(80)
def test_nor_do_many_more(tmp_path_factory, environment, sequence):
    goes_on(Steps(tmp_path_factory.mktemp("run"), environment), sequence)


def test_which_options_are_paths():
    class Options(WorkloadOptions):
        plain: str = ""
        file: OptionFile
        perhaps: OptionFile | None = None
        folder: OptionFolder = "here"
        maybe: OptionFolder | None = None

    found = {name: kind.is_folder for name, kind in kinds_of(Options).items()}
    assert found == {"file": False, "perhaps": False, "folder": True, "maybe": True}


def test_a_folder_has_the_digest_that_sha256sum_tells(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b" / "c.txt").write_text("two")
    command = ["bash", "-c", "sha256sum a.txt b/c.txt | sha256sum"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert digest_at(tmp_path) == shown.stdout.split()[0]
