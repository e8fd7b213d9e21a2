"""The store that runs share: what it has is not computed again, and nothing else is delivered."""

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hdf5_elsewhere import ELSEWHERE
from hypothesis import strategies as st
from plans import receipt_json
from programs import Workflow, flip, random_records
from test_properties import VECTOR, holds, vector_of

from featuremill import config, features
from featuremill.base.errors import IntegrityError, UserError
from featuremill.extract import command as extract
from featuremill.merge import clean, store_command, store_exchange
from featuremill.merge import command as merging
from featuremill.merge.command import merge
from featuremill.merge.export import export
from featuremill.plan.command import plan
from featuremill.plan.retry import retry
from featuremill.report import page
from featuremill.status import view
from featuremill.status.reader import RunReader
from featuremill.store import journal, shared, shared_index
from featuremill.store.journal_log import digest_of_file
from featuremill.store.parts import read_shard
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results
from featuremill.workload import Weights
from featuremill.workloads import composition
from featuremill.workloads.imported import read

OUTPUTS = ["parquet", "npy"]
SPAWN = multiprocessing.get_context("spawn")


class Run:
    """A run whose shards are computed here, with values that only its recipe gives."""

    def __init__(self, root, *stores, hydropathy=True):
        self.results = Results(root)
        self.stores = list(map(str, stores))
        self.hydropathy = hydropathy
        self.version = composition.VERSION
        self.weights = None
        self.columns = VECTOR
        root.mkdir(parents=True, exist_ok=True)
        self.input = root / "in.fa"

    def write(self, sequences):
        self.input.write_text("".join(f">id{n}\n{one}\n" for n, one in enumerate(sequences)))
        return self

    def plan(self, cost=25):
        told = {"inputs": [str(self.input)], "workload": "composition", "device": "cpu"}
        options = {"options": {"hydropathy": self.hydropathy}, "shards": {"cost": cost}}
        asked = config.validate({**told, **options, "store": self.stores})
        workload = {"VERSION": self.version, "schema": lambda options, weights: self.columns}
        with mock.patch.multiple(composition, **workload):
            return plan(self.results, asked, self.weights).plan

    def compute(self, planned, failed=(), most=None):
        """Compute and publish what the plan asks for, as extract does; at `most` so many shards."""
        left = [entry.shard for entry in planned.shards]
        left = [name for name in left if not self.results.receipt(planned.recipe, name).exists()]
        for name in left[:most]:
            part = self.results.part(planned.recipe, name)
            if not part.exists():
                self._compute(planned, name, failed)
            receipt = Receipt.read(part.with_suffix(".json"))
            receipt.write(self.results.receipt(planned.recipe, name))
            for store in planned.store[:1]:
                told = planned.settings.as_json()
                shared.publish(Path(store), planned.recipe, told, part, receipt)
        return left[:most]

    def values_of(self, sequence):
        """Return what only this sequence has under these options, VERSION and weights."""
        return vector_of(f"{sequence} {self.hydropathy} {self.version} {self.weights}")

    def _compute(self, planned, name, failed):
        recipe = planned.recipe
        schema = journal.part_schema(self.columns)
        opened = journal.Journal(self.results.journal(recipe, name), schema, 10)
        made = []
        for row in read_shard(self.results.shard(name)).to_pylist():
            sequence = row["payload"].decode()
            values = {"status": "ok", "reason": None}
            for column in self.columns:
                values[column.name] = self.values_of(sequence)[: column.type.list_size]
            if sequence in failed:
                values = {"status": "failed", "reason": f"bad: {sequence}"}
            made.append({"sha256": row["sha256"], **values})
        opened.commit(pa.RecordBatch.from_pylist(made, schema=schema))
        digest = opened.finish()
        part = self.results.part(recipe, name)
        part.parent.mkdir(parents=True, exist_ok=True)
        opened.path.replace(part)
        num_failed = sum(row["status"] == "failed" for row in made)
        counts = {"rows": len(made), "ok": len(made) - num_failed, "failed": num_failed}
        told = receipt_json(shard=name, recipe=recipe, part=digest, **counts)
        told |= {"workload_version": self.version}
        Receipt.model_validate_json(json.dumps(told)).write(part.with_suffix(".json"))

    def finish(self, failed=(), max_failed=0):
        """Plan, compute and merge as the same command again and again would; return the shards that
        were computed."""
        computed = []
        for _ in range(10):
            computed += self.compute(self.plan(), failed)
            try:
                self.delivery = merge(self.results, OUTPUTS, max_failed)
            except IntegrityError:
                continue
            return computed
        raise AssertionError("it never came to its end")

    def finish_as_fresh(self, failed=(), max_failed=0):
        """Come to the end; return how many records were computed."""
        computed = self.finish(failed, max_failed)
        self.check()
        return self.num_rows(computed)

    def check(self):
        """Compare the results with those of a run of its own, without a store."""
        other = Run(
            Path(tempfile.mkdtemp(dir=self.results.root.parent)), hydropathy=self.hydropathy
        )
        other.version, other.weights, other.columns = self.version, self.weights, self.columns
        shutil.copy(self.input, other.input)
        other.finish()
        theirs, mine = (str(run.results.root).encode() for run in (other, self))
        expected = {name: data.replace(theirs, mine) for name, data in other.data().items()}
        assert self.data() == expected

    def data(self):
        names = ("embeddings.parquet", "embeddings.npy", "failed.tsv")
        return {name: (self.results.root / name).read_bytes() for name in names}

    def num_rows(self, shards):
        return sum(read_shard(self.results.shard(name)).num_rows for name in shards)


def sequences(*numbers):
    return [f"{'ACDEFGHIKL'[n % 10] * (n // 10 + 1)}W" for n in numbers]


FORTY = sequences(*range(40))
WEIGHTS = [Weights("net", Path("net.pt"), letter * 64, {}) for letter in "ab"]
"""Of one name."""


@pytest.fixture
def store(tmp_path):
    return tmp_path / "shelf"


@pytest.fixture
def filled(tmp_path, store):
    """Return a run that filled the store with 36 of 40 payloads."""
    run = Run(tmp_path / "first", store).write(FORTY[:36])
    run.finish()
    return run


@pytest.fixture
def run(tmp_path, store, filled):
    """Return another run, of all 40, that reads the store."""
    return Run(tmp_path / "second", store).write(FORTY)


def parts_of(store):
    return sorted(store.glob("*/*/*.arrows"))


def test_what_a_store_has_is_taken_and_the_results_are_those_of_a_fresh_run(run, tmp_path, store):
    assert run.finish_as_fresh() == 4
    counts = run.delivery.counts
    assert (counts.input, counts.ok, counts.taken) == (40, 40, 36)
    assert {one.device for one in run.delivery.taken} == {"a CPU"}
    assert sum(one.records for one in run.delivery.taken) == 36
    assert {Path(one.path) for one in run.delivery.taken} == {
        path for path in parts_of(store) if path.stem in run.delivery.parts
    }
    again = Run(tmp_path / "third", store).write(FORTY[5:])
    assert again.finish() == [], "nothing is left to compute"
    assert again.delivery.counts.taken == 35 and not again.delivery.receipts


def test_features_and_the_report_read_parts_that_were_taken(run):
    run.finish()
    parts = features.open_parts(run.results.root, "vector")
    parts.check()
    ids, rows = next(parts.records())
    assert ids == [f"id{n}" for n in range(40)]
    assert parts.of_rows(rows)[0].tolist() == [run.values_of(one) for one in FORTY]
    assert page._taken(run.delivery) == ["From the store: 36 distinct records, a CPU."]


def test_published_parts_are_links_that_only_their_publisher_may_write(store, filled):
    planned = filled.results.read_plan()
    own = filled.results.part(planned.recipe, planned.shards[0].shard)
    (published,) = (path for path in parts_of(store) if path.samefile(own))
    assert published.stat().st_mode & 0o777 == 0o444
    assert (published.parent / shared.RECIPE).exists()
    assert not list(store.rglob(".*")), "nothing that is half done is left"


def test_without_a_store_no_file_says_anything_of_one(tmp_path):
    run = Run(tmp_path / "run").write(FORTY[:9])
    run.finish()
    plan_json, manifest = (
        json.loads((run.results.root / name).read_text()) for name in ("plan.json", "manifest.json")
    )
    assert not {"store", "taken"} & (plan_json.keys() | manifest.keys() | manifest["counts"].keys())


def test_the_environment_names_stores_and_a_config_has_precedence(tmp_path, monkeypatch):
    monkeypatch.setenv("FEATUREMILL_STORE", f"{tmp_path}/a{os.pathsep}{tmp_path}/b")
    assert shared.layers(()) == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert shared.layers(("/c",)) == ["/c"]
    monkeypatch.setenv("FEATUREMILL_STORE", f"{tmp_path}/a:https://b.org:80/c:s3://d:/e")
    assert shared.layers(()) == [f"{tmp_path}/a", "https://b.org:80/c", "s3://d", "/e"]
    monkeypatch.setenv("FEATUREMILL_STORE", "")
    assert shared.layers(()) == []


def test_all_layers_are_read_and_the_first_is_written(tmp_path, store, filled):
    before = parts_of(store)
    run = Run(tmp_path / "second", tmp_path / "mine", store).write(FORTY)
    assert run.num_rows(run.finish()) == 4
    assert parts_of(store) == before
    assert len(parts_of(tmp_path / "mine")) == len(run.results.read_plan().shards)


@pytest.mark.parametrize("where", ["first", "second"])
def test_a_store_that_cannot_be_used_is_refused_in_a_sentence(tmp_path, where):
    (tmp_path / "file").write_text("")
    bad = tmp_path / "file" / "shelf"
    stores = [bad] if where == "first" else [tmp_path / "mine", bad]
    with pytest.raises(UserError, match=r"^store: .*/shelf: .*;.*\.$"):
        Run(tmp_path / "run", *stores).write(FORTY[:3]).plan()


def test_what_failed_is_not_taken(tmp_path, store):
    Run(tmp_path / "first", store).write(FORTY[:20]).finish(failed=FORTY[:3], max_failed=3)
    assert Run(tmp_path / "second", store).write(FORTY[:20]).finish_as_fresh() == 3


def test_another_version_option_or_weights_of_the_same_name_find_nothing(tmp_path, store):
    def planned(name, **told):
        run = Run(tmp_path / name, store).write(FORTY[:9])
        for key, value in {"weights": WEIGHTS[0], **told}.items():
            setattr(run, key, value)
        return run, run.plan()

    first, plan = planned("first")
    first.compute(plan)
    assert planned("same")[1].num_taken == 9
    for told in ({"version": "2"}, {"hydropathy": False}, {"weights": WEIGHTS[1]}):
        assert planned(str(*told), **told)[1].num_taken == 0, told


def test_shards_that_were_planned_but_not_computed_give_way(tmp_path, store):
    run = Run(tmp_path / "run", store).write(FORTY)
    assert len(run.plan().shards) > 3
    Run(tmp_path / "other", store).write(FORTY[:36]).finish()
    assert run.finish_as_fresh() == 4


def test_what_a_run_computed_itself_stays_its_own(tmp_path, store, filled):
    planned = filled.plan()
    assert planned.shards == filled.results.read_plan().shards and not planned.taken


def test_retry_leaves_what_was_taken_where_it_is(run):
    run.finish(failed=FORTY[37:39], max_failed=2)
    assert retry([run.results], ())
    run.compute(run.results.read_plan())
    merge(run.results, OUTPUTS, 0)
    run.check()


def spoil_receipt(path):
    """Damage what stands beside a part, as a newer version would write it."""
    receipt = path.with_suffix(".json")
    receipt.unlink()
    receipt.write_text('{"version": 99}')


@pytest.mark.parametrize("harm", [flip, Path.unlink, spoil_receipt])
def test_a_part_that_is_damaged_or_gone_is_computed_again_and_said(run, store, harm):
    run.compute(run.plan())
    victim = Path(run.results.read_plan().taken[0].path)
    assert not RunReader(run.results.root).inspect(verifies=True).problems
    harm(victim)
    state = RunReader(run.results.root).inspect(verifies=True)
    (problem,) = state.problems
    code, verb = ("part_damaged", "merge") if victim.exists() else ("part_missing", "plan")
    assert problem.code == code and problem.is_in_the_way and str(victim) in problem.what
    assert state.next[0].startswith(f"featuremill {verb} ")
    assert view.summary(state) == "all parts were computed, but a part is gone or damaged."
    with pytest.raises(IntegrityError, match="run the same command again to compute it anew"):
        merge(run.results, OUTPUTS, 0)
    assert not run.results.plan.exists(), "Snakemake has to plan again"
    assert run.finish_as_fresh()
    (warning,) = (line for line in run.delivery.warnings if str(victim) in line)
    assert warning.endswith("; it was not taken.")
    for path in parts_of(store):  # whole results do not need them
        path.unlink()
    assert RunReader(run.results.root).poll().phase == "idle"
    found = RunReader(run.results.root).inspect()
    assert found.exit_status == 0 and {one.code for one in found.problems} <= {"part_missing"}


def test_of_a_part_that_is_there_again_and_taken_no_warning_is_left(run, tmp_path):
    run.compute(run.plan())
    victim = Path(run.results.read_plan().taken[0].path)
    victim.rename(tmp_path / "away")
    with pytest.raises(IntegrityError):
        merge(run.results, OUTPUTS, 0)
    shutil.copyfile(tmp_path / "away", victim)
    assert run.finish() == [] and str(victim) in {part.path for part in run.delivery.taken}
    assert not run.delivery.warnings


def test_a_part_that_goes_under_a_merge_never_delivers_anything_wrong(run, monkeypatch):
    run.compute(run.plan())
    victim = Path(run.results.read_plan().taken[0].path)
    count = merging.count

    def removing(*arguments):
        victim.unlink()
        return count(*arguments)

    monkeypatch.setattr(merging, "count", removing)
    with pytest.raises(OSError):
        merge(run.results, OUTPUTS, 0)
    assert not run.results.delivery.exists()
    monkeypatch.undo()
    run.finish_as_fresh()


NARROW = pa.schema({"vector": pa.list_(pa.float32(), 2), "other": pa.list_(pa.float32(), 1)})


@pytest.mark.parametrize("when", ["before", "between"])
def test_parts_with_other_columns_are_computed_again_and_said(tmp_path, store, filled, when):
    """A workload that changes its columns under one VERSION blocks nobody."""
    run = Run(tmp_path / "second", store).write(FORTY if when == "between" else FORTY[:36])
    if when == "between":  # plan and extract
        planned = run.plan()
        assert planned.num_taken == 36
    run.columns = NARROW
    if when == "between":
        run.compute(planned)
        victims = [one.path for one in planned.taken]
        with pytest.raises(IntegrityError, match="its columns are not those that the workload"):
            merge(run.results, OUTPUTS, 0)
        assert not run.results.plan.exists(), "Snakemake has to plan again"
    else:
        victims = list(map(str, parts_of(store)))
    run.finish_as_fresh()
    for victim in victims:
        assert any(f"{victim}: its columns are not" in line for line in run.delivery.warnings)


# ---- featuremill store ----


def test_the_command_says_who_needs_what_and_removes_only_what_no_run_refers_to(
    tmp_path, store, filled, caplog
):
    caplog.set_level("INFO")
    second = Run(tmp_path / "second", store).write(FORTY)
    second.finish()
    parts = parts_of(store)
    store_command.show(store)
    assert f"{store}: {len(parts)} parts" in caplog.text and "composition" in caplog.text
    assert f"run {filled.results.root} refers to" in caplog.text
    assert "no run refers to 0 parts" in caplog.text
    store_command.remove(store, "", 0, is_meant=True)
    assert parts_of(store) == parts
    shutil.rmtree(filled.results.root)
    needed = {Path(one.path) for one in second.results.read_plan().taken}
    needed |= {path for path in parts if path.stem in second.delivery.parts.values()}
    unneeded = Run(tmp_path / "third", store).write(sequences(77, 78))
    unneeded.finish()
    shutil.rmtree(unneeded.results.root)
    store_command.remove(store, "", 0, is_meant=False)
    assert set(parts_of(store)) > needed, "nothing goes without --yes"
    litter = [shared.own_folder(store) / f".fetch.{name}" for name in ("killed", "new", "slow")]
    for folder in litter:
        folder.mkdir()
    (litter[2] / "part").write_bytes(b"so far")
    for folder in (litter[0], litter[2]):
        os.utime(folder, (0, 0))
    store_command.remove(store, "", 30, is_meant=False)
    assert "of killed commands" in caplog.text and all(place.exists() for place in litter)
    store_command.remove(store, "", 30, is_meant=True)
    assert [place.exists() for place in litter] == [False, True, True], "two may be in use"
    store_command.remove(store, "fff", 0, is_meant=True)
    assert set(parts_of(store)) > needed
    store_command.remove(store, second.results.read_plan().recipe[:6], 0, is_meant=True)
    assert set(parts_of(store)) == needed
    assert Run(tmp_path / "again", store).write(FORTY).finish() == []


def test_a_finished_run_is_added_without_a_copy(tmp_path, store, caplog):
    caplog.set_level("INFO")
    old = Run(tmp_path / "old").write(FORTY[:36])
    old.finish()
    arguments = argparse.Namespace(store=store, act="add", run_folder=old.results.root)
    store_command.run(arguments)
    own = sorted((old.results.store / "parts").rglob("*.arrows"))
    assert {path.stat().st_ino for path in parts_of(store)} == {path.stat().st_ino for path in own}
    store_command.run(arguments)
    assert f"0 parts added, {len(own)} there already" in caplog.text
    run = Run(tmp_path / "new", store).write(FORTY)
    assert run.num_rows(run.finish()) == 4
    victim = next(path for path in parts_of(store) if path.samefile(own[0]))
    before = victim.read_bytes()
    flip(victim)
    store_command.run(arguments)
    assert victim.read_bytes() == before, "a damaged part is replaced"


def test_clean_of_one_run_leaves_what_others_take(run, filled):
    run.finish()
    before = run.data()
    clean.remove(clean.removable(filled.results, "nothing"), [])
    merge(run.results, OUTPUTS, 0)
    assert run.data() == before


# ---- give and take ----


def store_act(store, *words):
    parser = argparse.ArgumentParser()
    store_command.add_arguments(parser)
    store_command.run(parser.parse_args([*map(str, words), "--store", str(store)]))


def test_an_export_is_a_data_set_with_a_card_that_others_import(tmp_path, store, filled, caplog):
    Run(tmp_path / "more", tmp_path / "mine", store).write(FORTY[30:]).finish()
    other = Run(tmp_path / "twice", tmp_path / "alone").write(FORTY[:10])
    other.finish()
    store_act(store, "add", other.results.root)  # payloads that are there already
    out = tmp_path / "out"
    store_act(store, "export", out, "--licence", "MIT")
    (folder,) = out.iterdir()
    card = json.loads((folder / "card.json").read_text())
    assert card["recipe"] == folder.name and card["licence_of_weights"] == "MIT"
    table = pa.concat_tables(map(pq.read_table, sorted(folder.glob("*.parquet"))))
    digests = [hashlib.sha256(one.encode()).digest() for one in FORTY[:36]]
    assert sorted(table["sha256"].to_pylist()) == sorted(digests), "each once"
    assert card["records"] == 36 and card["columns"] == ["vector", "other"]
    with pytest.raises(UserError, match=r"it exists already; remove it"):
        store_act(store, "export", out)
    theirs = tmp_path / "theirs"
    store_act(theirs, "import", folder)
    assert Run(tmp_path / "second", theirs).write(FORTY).finish_as_fresh() == 4
    victim = sorted(folder.glob("*.parquet"))[0]
    for harm in (flip, Path.unlink):
        harm(victim)
        with pytest.raises(UserError, match=r"it is not as card.json lists it; copy it again"):
            store_act(tmp_path / "bad", "import", folder)
    card["files"][victim.name]["receipt"]["recipe"] = "f" * 32
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match=rf"its recipe is not that of {victim.name}.*; export it"):
        store_act(tmp_path / "bad", "import", folder)
    del card["files"][victim.name]["sha256"]
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match=r"it is not as featuremill wrote it; copy it again"):
        store_act(tmp_path / "bad", "import", folder)


SHORT = pa.array([b"x"] * 3)
NO_NUMBER = pa.array([[np.nan] * 4] * 3, pa.list_(pa.float32(), 4))


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda table: None, "Parquet"),
        (lambda table: table.set_column(0, "sha256", SHORT), "widths"),
        (lambda table: table.set_column(1, "vector", NO_NUMBER), "a value is missing or not fin"),
        (lambda table: pa.concat_tables([table, table]), "a payload is there twice"),
    ],
)
def test_an_import_refuses_rows_that_no_run_could_take(tmp_path, store, edit, problem):
    Run(tmp_path / "one", store).write(FORTY[:3]).finish()
    store_act(store, "export", tmp_path / "out")
    ((folder, (victim,)),) = ((f, f.glob("*.parquet")) for f in (tmp_path / "out").iterdir())
    table = edit(pq.read_table(victim))
    victim.write_bytes(b"not Parquet")
    if table:
        pq.write_table(table, victim)
    card = json.loads((folder / "card.json").read_text())
    card["files"][victim.name]["sha256"] = hashlib.sha256(victim.read_bytes()).hexdigest()
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match=f"^{victim}: .*{problem}.*; export it again"):
        store_act(tmp_path / "theirs", "import", folder)
    assert not parts_of(tmp_path / "theirs")


def test_what_is_exported_and_imported_stands_in_blocks(tmp_path, store, filled, monkeypatch):
    """Nobody has to hold a whole part to read one."""
    monkeypatch.setattr(store_exchange, "BLOCK_BYTES", 100)  # of rows of 48
    store_act(store, "export", tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    theirs = tmp_path / "theirs"
    store_act(theirs, "import", folder)
    for path in folder.glob("*.parquet"):
        groups = pq.ParquetFile(path)
        sizes = [groups.metadata.row_group(n).num_rows for n in range(groups.num_row_groups)]
        assert max(sizes) <= 4
    for path in parts_of(theirs):
        with pa.ipc.open_stream(path) as stream:
            assert max(batch.num_rows for batch in stream) <= 4


def test_what_an_export_lacks_of_a_damaged_part_it_has_of_a_good_one(tmp_path, store, caplog):
    Run(tmp_path / "one", store).write(FORTY[:20]).finish()
    for part in parts_of(store):
        part.chmod(0o644)
        flip(part)
    Run(tmp_path / "two", tmp_path / "mine").write(FORTY[:10]).finish()
    for part in parts_of(tmp_path / "mine"):
        for path in (part, part.with_suffix(".json")):
            shutil.copy(path, parts_of(store)[0].parent / path.name)
    store_act(store, "export", tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    assert json.loads((folder / "card.json").read_text())["records"] == 10
    assert "its bytes are not those that were written" in caplog.text


def test_files_of_a_store_that_are_none_cost_nobody_a_run(tmp_path, store, filled, caplog):
    shelf = parts_of(store)[0].parent
    for content in (b"", b"no Arrow"):
        (shelf / "index" / f"{hashlib.sha256(content).hexdigest()}.arrow").write_bytes(content)
    runs = shared.own_folder(store) / shared.RUNS
    (runs / "notes.json").write_text('{"mine": "a person\'s"}')
    second = Run(tmp_path / "second", store).write(FORTY)
    assert second.num_rows(second.finish()) == 4
    store_command.show(store)
    store_command.remove(store, "", 0, is_meant=True)
    assert "cannot be read" not in caplog.text and (runs / "notes.json").exists()


BAD_REFERENCES = {
    "cut": '{"run": "/elsewhere", "rec',
    "foreign": '{"run": "/elsewhere", "of": "another version"}',
    "a text": '{"run": "/r", "recipe": "r", "parts": "abc", "noted": "2026-01-01T00:00:00+00:00"}',
}


@pytest.mark.parametrize("content", BAD_REFERENCES.values(), ids=BAD_REFERENCES)
def test_of_what_cannot_be_read_no_part_goes_that_it_may_refer_to(
    tmp_path, store, filled, content, caplog
):
    caplog.set_level("INFO")
    old = parts_of(store)
    shutil.rmtree(filled.results.root)
    (store / "another" / shared.RUNS).mkdir(parents=True)
    bad = store / "another" / shared.RUNS / f"{'0' * 32}.json"
    bad.write_text(content)
    for path in old:
        os.utime(path, (0, 0))
    Run(tmp_path / "second", store).write(sequences(77, 78)).finish()
    shutil.rmtree(tmp_path / "second")
    os.utime(bad, (10_000, 10_000))
    assert len(parts_of(store)) > len(old)
    store_command.remove(store, "", 0, is_meant=True)
    assert parts_of(store) == old, "later ones cannot be in it"
    assert f"{bad}: which parts runs refer to cannot be read here" in caplog.text
    assert f"what cannot be read may refer to {len(old)} parts" in caplog.text
    bad.unlink()
    store_command.remove(store, "", 0, is_meant=True)
    assert not parts_of(store)


def test_a_receipt_without_its_part_is_a_leftover(tmp_path, store, filled, caplog):
    caplog.set_level("INFO")
    part = parts_of(store)[0]
    receipts = [part.with_name(f"{digit * 32}.json") for digit in "ab"]
    for receipt in receipts:
        shutil.copy(part.with_suffix(".json"), receipt)
    mine = part.with_name("notes.json")
    mine.write_text("a person's")
    for path in (receipts[0], mine, part.with_suffix(".json")):
        os.utime(path, (0, 0))
    store_command.remove(store, "", 0, is_meant=False)
    assert "1 leftover of killed commands" in caplog.text and receipts[0].exists()
    store_command.remove(store, "", 0, is_meant=True)
    assert [path.exists() for path in receipts] == [False, True], "one may be published just now"
    assert mine.exists() and part.exists() and part.with_suffix(".json").exists()


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_receipt_that_is_gone_or_cut_is_not_said_to_be_damaged_bytes(run, is_cut):
    run.compute(run.plan())
    receipt = Path(run.results.read_plan().taken[0].path).with_suffix(".json")
    text = receipt.read_text()
    receipt.unlink()
    if is_cut:
        receipt.write_text(text[:50])
    with pytest.raises(IntegrityError, match=f"its receipt {receipt.name} is gone or incomplete"):
        merge(run.results, OUTPUTS, 0)


def test_an_export_without_the_store_says_what_computes_its_parts(run, tmp_path, store):
    run.finish()
    for path in parts_of(store):
        path.unlink()
    remedy = r"it is gone; have it computed anew \(featuremill run YOUR.yaml --forcerun plan\)\.$"
    with pytest.raises(IntegrityError, match=remedy):
        export(run.results, ["tsv"], tmp_path / "to")


PROTEINS = [("sp|P12345|AATM_RABIT", "MKVLA"), ("sp|Q9Y2X3|NOP58", "MKVLAA"), ("plain", "ACDW")]


def write_uniprot(path):
    """Write per-protein.h5 as UniProt does: float16, a dataset a protein, named by accession."""
    with h5py.File(path, "w") as file:
        for number, name in enumerate(("P12345", "Q9Y2X3")):
            file.create_dataset(name, data=np.arange(4, dtype=np.float16) + number)


def write_bio_embeddings(path):
    """Write what bio_embeddings reduced: datasets by number, the id as an attribute."""
    with h5py.File(path, "w") as file:
        for number, (id, _) in enumerate(PROTEINS[:2]):
            made = file.create_dataset(str(number), data=np.arange(4, dtype=np.float32) + number)
            made.attrs["original_id"] = id


def write_fair_esm(path):
    path.mkdir()
    for number, (id, _) in enumerate(PROTEINS[:2]):
        means = {5: torch.zeros(4), 6: torch.arange(4.0) + number}
        torch.save({"label": id, "mean_representations": means}, path / f"{number}.pt")


def test_a_number_that_is_a_dataset_is_not_the_protein_of_that_id(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for number, id in enumerate(("1", "2", b"3")):
            made = file.create_dataset(str(number), data=np.full(2, int(id), np.float32))
            made.attrs["original_id"] = id
    published = read(tmp_path / "in.h5", None)
    vectors = {id: published.vector_of(key)[0] for id, key in published.keys.items()}
    assert vectors == {"1": 1, "2": 2, "3": 3}
    with h5py.File(tmp_path / "twice.h5", "w") as file:
        for number in (0, 2):
            file.create_dataset(str(number), data=np.ones(2)).attrs["original_id"] = "1"
    with pytest.raises(UserError, match="datasets 0 and 2 are both of '1'"):
        read(tmp_path / "twice.h5", None)


@pytest.mark.parametrize("write", [write_uniprot, write_bio_embeddings, write_fair_esm])
def test_published_vectors_are_taken_by_a_run_and_searched(tmp_path, store, write, caplog, capsys):
    caplog.set_level("INFO")
    fasta = tmp_path / "in.fa"
    fasta.write_text("".join(f">{id}\n{one}\n" for id, one in PROTEINS))
    source = tmp_path / "published"
    write(source)
    with pytest.raises(UserError, match="give --fasta"):
        store_act(store, "import", source)
    store_act(store, "import", source, "--fasta", fasta, "--declared", "UniProt, ProtT5")
    assert "2 vectors imported; 1 records of" in caplog.text
    told = yaml.safe_load(capsys.readouterr().out)
    asked = config.validate({**told, "inputs": [str(fasta)], "outputs": ["parquet"]})
    results = Results(tmp_path / "results")
    results.root.mkdir()
    planned = plan(results, asked, None).plan
    assert sum(entry.wanted for entry in planned.taken) == 2
    more = {"recipe": None, "threads": 1, "stall_seconds": None}
    extract.run(argparse.Namespace(run_folder=results.root, shard=planned.shards[0].shard, **more))
    delivery = merge(results, ["parquet", "per_protein_h5"], 1)
    assert delivery.counts.taken == 2 and delivery.counts.failed == 1
    declared = told["options"]["declared"]
    assert {one.device for one in delivery.taken} == {f"declared by {declared}, not computed here"}
    assert declared == "UniProt, ProtT5" + ", layer 6" * (write is write_fair_esm)
    listed = (results.root / "failed.tsv").read_text()
    assert "not among the imported vectors: declared by UniProt, ProtT5" in listed
    found = features.open(results.root)
    assert np.asarray(found.vectors[np.arange(2)]).tolist() == [[0, 1, 2, 3], [1, 2, 3, 4]]
    with pytest.raises(UserError, match="none of the proteins"):
        other = tmp_path / "other.fa"
        other.write_text(">z\nMMM\n")
        store_act(store, "import", source, "--fasta", other, "--declared", "x")


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [([], "has no numbers"), ([1e300], "is not finite in float32"), (None, "HDF5 cannot read it")],
)
def test_vectors_that_cannot_be_imported_are_refused_with_their_file(tmp_path, numbers, problem):
    source, fasta = tmp_path / "vectors.h5", tmp_path / "my.fa"
    fasta.write_text(">A\nMKV\n")
    with h5py.File(source, "w") as file:
        file["A"] = np.array(numbers or [], np.float64)
    if numbers is None:
        source.write_bytes(source.read_bytes()[:100])
    with pytest.raises(UserError, match=f"^{source}: .*{problem}"):
        store_act(tmp_path / "mine", "import", source, "--fasta", fasta, "--declared", "x")


@pytest.mark.parametrize("write", ELSEWHERE)
def test_a_file_whose_values_are_in_another_one_publishes_none_of_them(tmp_path, write):
    source, fasta = tmp_path / "per-protein.h5", tmp_path / "in.fa"
    fasta.write_text(">A\nMKTAY\n>B\nMKTAYIAKQR\n")
    with h5py.File(source, "w") as file:
        file["A"] = np.zeros(8, "f2")
        write(file, "B", tmp_path)
    with h5py.File(source) as file:
        assert np.isfinite(file["B"][()]).all(), "h5py follows it"
    asked = ("import", source, "--fasta", fasta, "--declared", "x")
    with pytest.raises(UserError, match=r"the data of (B|zz) are in another file .*; write all"):
        store_act(tmp_path / "shelf", *asked)
    assert not list((tmp_path / "shelf").rglob("*.arrows"))
    with h5py.File(source, "a") as file:
        del file["B"]
        file.pop("zz", None)
        file["B"] = h5py.SoftLink("/A")
        file["C"] = h5py.SoftLink("/nowhere")
    with pytest.raises(UserError, match="the link C leads nowhere; remove it"):
        store_act(tmp_path / "shelf", *asked)


def test_a_vector_that_could_be_that_of_two_sequences_is_taken_by_none(tmp_path, store):
    source, fasta = tmp_path / "per-protein.h5", tmp_path / "in.fa"
    with h5py.File(source, "w") as file:
        file["Q00001"] = np.arange(4, dtype=np.float16)
    asked = ("import", source, "--fasta", fasta, "--declared", "x")
    fasta.write_text(">sp|Q00001|X\nMKVLA\n>tr|Q00001|Y\nMKVLAAW\n")
    with pytest.raises(UserError, match=r"'Q00001' could be .* sp\|Q00001\|X or of tr\|Q00001\|Y"):
        store_act(store, *asked)
    assert not parts_of(store)
    fasta.write_text(">sp|Q00001|X\nMKVLA\n>sp|Q00001-2|X\nMKV\n>tr|Q00001|Y\nMKVLA\n")
    store_act(store, *asked)
    (part,) = parts_of(store)
    assert Receipt.read(part.with_suffix(".json")).ok == 1, "an isoform is another protein"


# ---- several people ----

GROUP, STRANGERS = 4242, 4243


@contextlib.contextmanager
def being(user, *groups, umask=0o077):
    """Do the block as another user with files of its own and of its groups."""
    before = os.umask(umask)
    had = os.getgroups()
    os.setgroups(groups)
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(had)
        os.umask(before)


def own_place(root, user):
    place = root / str(user)
    place.mkdir(mode=0o700)
    os.chown(place, user, user)
    return place


@pytest.fixture
def place():
    """Return a folder that all users may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("umask", [0o027, 0o077])
@pytest.mark.parametrize("mode", [0o2770, 0o770, 0o3775])
def test_users_of_a_group_share_and_cannot_harm_each_other(place, umask, mode):
    shelf = place / "shelf"
    shelf.mkdir()
    os.chown(shelf, 0, GROUP)
    shelf.chmod(mode)
    first, second, third = (own_place(place, user) for user in (4001, 4002, 4003))
    with being(4001, GROUP, umask=umask):
        Run(first / "run", shelf).write(FORTY[:36]).finish()
    with being(4002, GROUP, umask=umask):
        run = Run(second / "run", shelf).write(FORTY)
        assert run.num_rows(run.finish()) == 4
        theirs = [path for path in parts_of(shelf) if "4001" in path.parts]
        assert theirs and all(path.stat().st_mode & 0o222 == 0 for path in theirs)
        for harm in (Path.unlink, lambda path: path.open("r+b"), lambda path: path.chmod(0o777)):
            with pytest.raises(PermissionError):
                harm(theirs[0])
        with pytest.raises(PermissionError):
            (theirs[0].parent / "mine.arrows").write_bytes(b"")
        store_command.remove(shelf, "", 0, is_meant=True)
        assert all(path.exists() for path in theirs)
    with being(4003, STRANGERS, umask=umask):
        if mode & 0o007:  # others may read
            assert Run(third / "run", third / "mine", shelf).write(FORTY).finish() == []
        with pytest.raises(UserError, match=r"^store: .*shelf: nothing can be published there"):
            Run(third / "other", shelf).write(FORTY).plan()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_a_folder_that_could_not_be_opened_to_its_group_is_opened_by_the_next_start(place):
    shelf = place / "shelf"
    shelf.mkdir()
    os.chown(shelf, 0, GROUP)
    shelf.chmod(0o773)
    with being(4001):
        for _ in range(2):  # in the second try, too
            with pytest.raises(UserError, match="Operation not permitted"):
                shared.open_layers([str(shelf)])
        assert not (shelf / "4001").exists()
        own = shelf / "4001" / "recipe" / "index"  # as earlier versions left it
        own.mkdir(parents=True)
        (own / "level.arrow").write_bytes(b"level")
        (own.parent / "part.arrows").write_bytes(b"part")
        with pytest.raises(UserError, match="Operation not permitted"):
            shared.open_layers([str(shelf)])
    with being(4002, GROUP), pytest.raises(PermissionError):
        list((shelf / "4001").iterdir())
    shelf.chmod(0o2770)
    with being(4001, GROUP):
        shared.open_layers([str(shelf)])
        shared.open_folder(shelf / "4001" / "new" / "index", shelf)
    with being(4002, GROUP):
        assert (own.parent / "part.arrows").read_bytes() == b"part"
        assert (own / "level.arrow").read_bytes() == b"level"
        assert (shelf / "4001" / "new" / "index").is_dir()
        with pytest.raises(PermissionError):
            (own / "mine").write_bytes(b"")


def test_a_kill_while_a_folder_is_made_leaves_none_that_is_closed(tmp_path, monkeypatch):
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            shared.open_layers([str(shelf)])
    assert not shared.own_folder(shelf).exists()
    (left,) = shelf.iterdir()
    os.utime(left, (0, 0))
    shared.open_layers([str(shelf)])
    store_command.remove(shelf, "", 0, is_meant=True)
    assert list(shelf.iterdir()) == [shared.own_folder(shelf)]


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_a_store_of_ones_own_stays_ones_own(place):
    first, second = (own_place(place, user) for user in (4001, 4002))
    with being(4001):
        Run(first / "run", first / "shelf").write(FORTY[:9]).finish()
    with being(4002), pytest.raises(UserError, match=r"^store: .*shelf: .*\.$"):
        Run(second / "run", second / "mine", first / "shelf").write(FORTY).plan()


def _work(place, store, start):
    """Be a person whose runs take and publish until the process is killed."""
    for number in range(start, 1000):
        Run(place / f"run{number}", store).write(sequences(*range(number, number + 9))).finish()


@pytest.mark.slow
def test_two_writers_and_kills_at_any_moment_leave_a_store_that_is_whole(tmp_path, store):
    """The writers are of one user, so that they write the same index."""
    chance = random.Random(0)
    for turn in range(10):
        workers = [
            SPAWN.Process(target=_work, args=(tmp_path / f"{turn}-{n}", store, 5 * n))
            for n in range(2)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            time.sleep(chance.uniform(1, 4))
            worker.kill()
            worker.join()
        run = Run(tmp_path / f"after{turn}", store).write(FORTY)
        run.finish()
        assert not run.delivery.warnings
        run.check()
        shared_index.keep_index(store, run.results.read_plan().recipe)
        for part in parts_of(store):
            assert digest_of_file(part) == part.stem and part.with_suffix(".json").exists()


# ---- the index ----


def levels_in(store):
    return sorted(store.glob("*/*/index/*.arrow"))


@pytest.mark.parametrize("harm", ["lost", "damaged", "old"])
def test_an_index_is_made_of_the_parts_alone(run, tmp_path, store, filled, harm):
    recipe = filled.results.read_plan().recipe
    shared_index.keep_index(store, recipe)
    (level,) = levels_in(store)
    if harm == "old":
        Run(tmp_path / "more", store).write(FORTY[36:]).finish()
    else:
        (Path.unlink if harm == "lost" else flip)(level)
    assert run.finish_as_fresh() == (0 if harm == "old" else 4)
    shared_index.keep_index(store, recipe)
    assert all(map(shared_index.opened, levels_in(store))), "it is whole again"


def shifted(part, row, parts):
    return part, np.array([*parts.values()])[part] - 1 - row  # each is a row of its part


def of_other_parts(part, row, parts):
    return (part + 1) % len(parts), row


def beyond(part, row, parts):
    return part, row + 10_000


def of_no_part(part, row, parts):
    return part - 1, row


def poison(path, change):
    """Write a wrong index in place of the one at `path`, with a name that fits its bytes."""
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
        batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        schema = file.schema
    entries = pa.Table.from_batches(batches).combine_chunks()
    parts = json.loads(schema.metadata[shared_index.PARTS])
    part, row = change(entries["part"].to_numpy(), entries["row"].to_numpy(), parts)
    new, first = path.with_name("new"), 0
    with pa.ipc.new_file(str(new), schema) as file:
        for batch in batches:
            here = slice(first, first + len(batch))
            columns = [batch["sha256"], pa.array(part[here]), pa.array(row[here])]
            columns = [each.cast(field.type) for each, field in zip(columns, schema, strict=True)]
            file.write_batch(pa.record_batch(columns, schema=schema))
            first = here.stop
    path.unlink()
    return new.rename(path.with_name(f"{digest_of_file(new)}.arrow"))


@pytest.mark.parametrize(
    ("change", "whose"),
    [
        (shifted, "another's"),
        (of_other_parts, "another's"),
        (beyond, "another's"),
        (of_no_part, "another's"),
        (shifted, "one's own"),
        (beyond, "one's own"),
    ],
)
def test_a_wrong_index_is_named_and_its_parts_are_read(run, tmp_path, store, change, whose, caplog):
    if whose == "another's":
        shared.own_folder(store).rename(store / "another")
    (index,) = store.glob("*/*/index/*.arrow")
    wrong = poison(index, change)
    planned = run.plan()
    assert f"{wrong}: this index names rows that its parts do not have" in caplog.text
    assert wrong.exists() == (whose == "another's"), "what is another's stays"
    assert sum(part.wanted for part in planned.taken) == 36
    run.compute(planned)
    run.delivery = merge(run.results, OUTPUTS, 0)
    run.check()
    caplog.clear()
    store_exchange.export(store, tmp_path / "to", "", "")
    (card,) = (tmp_path / "to").glob("*/card.json")
    assert json.loads(card.read_text())["records"] == 40


def keys(*texts):
    return np.array(sorted(text.ljust(32, b"x") for text in texts), "S32")


def test_keys_that_begin_alike_are_told_apart():
    have = keys(b"12345678a", b"12345678c", b"12345678d", b"9")
    entries = (have, np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32) + 7)
    wanted = keys(b"0", b"12345678b", b"12345678c", b"12345678d", b"9", b"99")
    where, part, row = shared_index.find(wanted, entries)
    assert (where.tolist(), part.tolist(), row.tolist()) == ([2, 3, 5], [1, 2, 3], [8, 9, 10])


def test_levels_grow_like_a_tree(tmp_path, store, monkeypatch):
    """Each entry is written a few times in all, and few levels are left."""
    written = []
    write = shared_index._written

    def counting(folder, parts, buckets):
        written.append(sum(parts.values()))
        return write(folder, parts, buckets)

    monkeypatch.setattr(shared_index, "_written", counting)
    for number in range(0, 40, 4):
        run = Run(tmp_path / f"{number}", store).write(FORTY[number : number + 4])
        planned = run.plan()
        run.compute(planned)
        shared_index.keep_index(store, planned.recipe)
    assert len(levels_in(store)) <= 3
    assert sum(written) <= 6 * 40
    assert Run(tmp_path / "all", store).write(FORTY).plan().shards == []


@pytest.mark.slow
def test_a_workflow_computes_a_tenth_and_then_nothing(tmp_path, environment):
    records = random_records(100)
    shared_by = {**environment, "FEATUREMILL_STORE": str(tmp_path / "shelf")}
    for name in ("first", "second", "third", "alone"):
        (tmp_path / name).mkdir()
    first = Workflow(tmp_path / "first", shared_by, records[:90])
    first()
    assert len(first.news()) == 90
    for name, num_new in (("second", 10), ("third", 0)):
        run = Workflow(tmp_path / name, shared_by, records)
        assert f"{100 - num_new} of 100 distinct records are computed already" in run()
        assert len(run.news()) == num_new
        assert run.counts()["taken"] == 100 - num_new
        assert (run.run_folder.root / "report.html").exists()
        assert "Nothing to be done" in run()
    alone = Workflow(tmp_path / "alone", environment, records)
    alone()
    assert run.data() == alone.data()


# ---- whatever happens ----

RUNS = st.integers(0, 3)
CHOSEN = st.lists(st.integers(0, 40), min_size=1, max_size=25)
MOST = st.sampled_from([None, None, 1, 2, "removed"])
HARMS = st.sampled_from(["flip", "remove", "flip index", "lose index", "litter"])
ACTS = st.one_of(
    st.tuples(st.just("run"), RUNS, CHOSEN, MOST, st.integers(0, 99)),
    st.tuples(st.just("version"), RUNS, st.sampled_from(["1", "2"])),
    st.tuples(st.just("weights"), RUNS, st.sampled_from([None, *WEIGHTS])),
    st.tuples(HARMS, st.integers(0, 99)),
)


def removed_under_merge(run, folder, which):
    """Merge while a part goes that was checked already; what comes out then is whole, if any."""
    count = merging.count

    def removing(*arguments):
        there = sorted(folder.glob("*/*/*/*.arrows"))
        if there:
            there[which % len(there)].unlink()
        return count(*arguments)

    run.compute(run.plan())
    is_hit = mock.patch.object(merging, "count", removing)
    with is_hit, contextlib.suppress(IntegrityError, OSError):
        run.delivery = merge(run.results, OUTPUTS, 0)
        return
    run.finish()


@holds(4, 300, acts=st.lists(ACTS, min_size=3, max_size=12))
def test_nothing_is_delivered_that_a_fresh_run_would_not_deliver(folder, acts):
    """Runs of two stores and several recipes, edited, killed, one after the other and in between,
    while versions and weights change and parts go."""
    stores = [folder / "mine", folder / "shared"]
    stores[1].mkdir()
    runs = [Run(folder / f"run{n}", *stores[n % 2 :], hydropathy=n < 2) for n in range(4)]
    for what, which, *more in acts:
        if what == "run":
            run, (chosen, most, victim) = runs[which], more
            run.write(sequences(*chosen))
            if most == "removed":
                removed_under_merge(run, folder, victim)
            elif most is not None:  # it is killed then
                run.compute(run.plan(), most=most)
                continue
            else:
                run.finish_as_fresh()
            continue
        if what in ("version", "weights"):
            setattr(runs[which], what, *more)
            continue
        there = sorted(folder.glob("*/*/*/index/*.arrow" if "index" in what else "*/*/*/*.arrows"))
        if not there:
            continue
        victim = there[which % len(there)]
        if what == "litter":  # of a kill
            (victim.parent / f".{victim.name}.abcdefgh").mkdir(exist_ok=True)
        else:
            (flip if "flip" in what else Path.unlink)(victim)
