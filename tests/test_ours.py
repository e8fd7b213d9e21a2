"""What a person put beside or in the place of our files survives every command, and is said."""

import argparse
import contextlib
import itertools
import json
import logging
import os
import shutil
from pathlib import Path

import h5py
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Verbs, Workflow, fasta, random_records

from featuremill.base.errors import UserError
from featuremill.flow import guard
from featuremill.merge import clean
from featuremill.merge.command import merge, merge_partial
from featuremill.merge.export import export
from featuremill.store import files, formats, ours, state
from featuremill.store.results import Results


@pytest.fixture(scope="module")
def finished(tmp_path_factory, environment):
    verbs = Verbs(tmp_path_factory.mktemp("ours"), environment)
    verbs.finish(random_records(10), "parquet", "parquet_dataset", "npy")
    (verbs.folder / ".snakemake").mkdir()
    return verbs


@pytest.fixture
def run(finished, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    shutil.copytree(finished.folder, tmp_path / "work")
    return Results(tmp_path / "work" / "results" / "test")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- any command, any order ----

FORMATS = ("parquet", "parquet_dataset", "npy", "h5ad", "tsv", "safetensors")
OURS = tuple(formats.format_of(name).file for name in FORMATS)
NAMES = (
    *OURS,
    *("embeddings/part-00000.parquet", "embeddings/keep.txt", "embeddings.npy.json", "report.html"),
    *("failed.tsv", "failed.fa", "notes.tsv", "samples.tsv", "exports.json", "manifest.json"),
    *("partial/embeddings.parquet", "partial/keep.txt", "mine.txt", "umap/plot.png", "x.bad"),
    *("store/mine.txt", "store/parts/mine.arrows", "logs/mine.txt", "embeddings.yours-1.tsv"),
)
HEX = "0123456789abcdef" * 2
FOLDERS = (
    *(".", "logs", f"logs/extract/{HEX}", "partial", "figures", ".backup.20261128", "embeddings"),
    *("receipts", f"receipts/{HEX}", "receipts/delivered", "store", "store/spool", "store/merge"),
    *(f"store/{name}" for name in ("parts", "journals", "shards", "delivered", "identities")),
    *(f"store/{name}/{HEX}" for name in ("parts", "journals", "delivered", "identities")),
)
LIKE_OURS = (
    *(".notes.markdown", ".embeddings.parquet.abcd1234", f".{HEX}.arrows.12345678", "thesis.docx"),
    *("experiment.log", "plan.log", "merge.log", "run.log", "export.npy.log", f"{HEX}.txt", ".x"),
    *(".lock", ".my.lock", "plan.lock", "deliver.lock", "x.bad", "failed.tsv", "rows.arrow"),
    *(".embeddings.abcd1234/embeddings/part-00000.parquet", ".spool.0123abcd/rows.arrow"),
)
"""What a person may call a file, which looks like what a command leaves."""
ANY = st.one_of(
    st.sampled_from(NAMES),
    st.builds("{}/{}".format, st.sampled_from(FOLDERS), st.sampled_from(LIKE_OURS)),
)
lots = st.lists(st.sampled_from(FORMATS), min_size=1, max_size=3, unique=True)
DEEDS = st.one_of(
    st.tuples(st.just("put"), ANY),
    st.tuples(st.just("change"), ANY),
    st.tuples(st.just("merge"), lots),
    st.tuples(st.just("export"), lots),
    st.tuples(st.just("clean"), st.sampled_from(clean.KEEP)),
    st.tuples(st.just("keep"), st.sampled_from(clean.KEEP[1:3])),
    st.just(("partial", None)),
)


def put(path, content):
    """Put a person's file at `path`, if nothing of another kind is there."""
    if not path.is_dir() and not (path.parent.exists() and not path.parent.is_dir()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (1e9, 1e9))  # what is young may be in use
        return True
    return False


def do(run, verb, what):
    if verb == "keep" and run.store.is_dir():
        clean.after_run(run.root, what)
        return
    with_whole_plan = run.plan.exists() and run.store.is_dir()
    if verb == "merge" and with_whole_plan:
        merge(run, what, 0)
    elif verb == "export" and with_whole_plan:
        export(run, what)
    elif verb == "partial" and with_whole_plan:
        merge_partial(run, ["parquet"])
    elif verb == "clean" and run.root.exists():
        clean.run(argparse.Namespace(run_folder=run.root, keep=what, yes=True))


@given(st.lists(DEEDS, min_size=2, max_size=8))
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_bytes_of_a_person_survive_every_command(finished, tmp_path, caplog, deeds):
    caplog.set_level(logging.INFO)
    caplog.clear()
    work = tmp_path / "any"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(finished.folder, work)
    run, mine = Results(work / "results" / "test"), {}
    for number, (verb, what) in enumerate(deeds):
        content = b"a person's %d" % number
        if verb in ("put", "change"):
            path = run.root / what
            if verb == "change" and path.is_file():
                content = path.read_bytes() + content
            if put(path, content):
                mine.pop(path, None)  # a person may replace what is a person's
                mine[path] = content
            continue
        try:
            do(run, verb, what)
        except UserError:
            pass
        except Exception as error:  # of a manifest.json or parts that a person made unreadable
            assert "IntegrityError" in type(error).__name__, deeds
        there = contents(work)
        for path, content in list(mine.items()):
            if there.get(path) == content:
                continue
            found = [one for one, theirs in there.items() if theirs == content]
            assert found, (deeds, path)
            said = caplog.text
            assert any(str(one) in said or str(one.parent) in said for one in found), (deeds, path)
            mine[found[0]] = mine.pop(path)


# ---- the ways in which it was lost ----


@pytest.fixture
def workflow(tmp_path, environment):
    """Return a run with its results, but for the report."""
    workflow = Workflow(tmp_path, environment, random_records(8))
    workflow("merge")
    return workflow


def test_an_annotated_h5ad_survives_the_next_run(workflow):
    """Exported, annotated, saved under our name; then a protein is added."""
    root = workflow.run_folder.root
    workflow.verb("export", root, "--to", "h5ad", "npy")
    with h5py.File(root / "embeddings.h5ad", "a") as file:
        file["obsm/X_umap"] = [[1.0, 2.0]]
    annotated = (root / "embeddings.h5ad").read_bytes()
    workflow.write(random_records(8) + random_records(1, seed=9))
    said = workflow("merge")
    assert "embeddings.h5ad is kept: " in said
    assert (root / "embeddings.h5ad").read_bytes() == annotated
    assert not (root / "embeddings.npy").exists(), "which is as it was written"
    said = workflow.verb("export", root, "--to", "h5ad").err
    assert "changed since featuremill wrote it; it is kept as" in said
    assert (root / "embeddings.yours-1.h5ad").read_bytes() == annotated


def test_a_first_run_into_a_folder_of_others_and_changed_outputs_lose_nothing(
    tmp_path, environment
):
    """Snakemake itself removes declared outputs before a job, and after one that failed."""
    workflow = Workflow(tmp_path, environment, random_records(8))
    root = workflow.run_folder.root
    names = ("embeddings.parquet", "embeddings.tsv", "report.html", "failed.tsv", "plan.json")
    names += ("records.parquet", "manifest.json")
    theirs = {}
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"another program's {name}")
        theirs[name] = f"another program's {name}".encode()
    said = workflow()
    there = contents(root)
    for name, content in theirs.items():
        (found,) = [path for path, theirs in there.items() if theirs == content]
        assert str(found.relative_to(tmp_path)) in said
        assert (found.name == Path(name).name) == (name == "embeddings.tsv")
    for name in ("report.html", "embeddings.parquet"):
        with (root / name).open("ab") as file:
            file.write(b"mine")
    said = workflow("--forceall")
    aside = {path.name for path in contents(root) if "yours-2" in path.name}
    assert aside == {"report.yours-2.html", "embeddings.yours-2.parquet"}, "the others are ours"
    for name in aside:
        assert (root / name).read_bytes().endswith(b"mine") and name in said


def test_changed_outputs_survive_a_snakemake_of_other_insides(workflow):
    root, changed = workflow.run_folder.root, ("embeddings.parquet", "failed.tsv")
    for name in changed:
        with (root / name).open("ab") as file:
            file.write(b"mine")
    words = ("guard_outputs", *workflow.words("merge")[1:])
    said = workflow.type("without_internals", *words, "--dry-run").err
    assert "yours-1" not in said and not list(root.glob("*yours*"))
    said = workflow.type("without_internals", *words).err
    for name in ("embeddings.yours-1.parquet", "failed.yours-1.tsv"):
        assert (root / name).read_bytes().endswith(b"mine") and name in said
    assert all((root / name).exists() for name in changed), "made again"
    workflow.type("without_internals", *words, "--forceall")
    assert len(list(root.glob("*yours*"))) == 2, "the others are ours"


def test_a_touch_claims_nothing(workflow):
    root = workflow.run_folder.root
    (root / "embeddings.parquet").write_bytes(b"mine")
    workflow("merge", "--touch", "--forceall")
    workflow("merge", "--forceall")
    assert (root / "embeddings.yours-1.parquet").read_bytes() == b"mine"


def test_a_touch_makes_nothing_current(tmp_path, environment):
    workflow = Workflow(tmp_path, environment, random_records(8))
    said = workflow("--touch", status=1)
    assert "plan.json: there is no plan to --touch yet" in said and "Traceback" not in said
    workflow("merge")
    root = workflow.run_folder.root
    embeddings = (root / "embeddings.parquet").read_bytes()
    workflow.write([("other", "MKV")])
    assert "again" not in workflow("--touch")
    assert (root / "embeddings.parquet").read_bytes() == embeddings
    assert "again" in workflow("merge")
    assert (root / "embeddings.parquet").read_bytes() != embeddings


def test_a_file_in_a_folder_of_ours_survives(run, caplog):
    (run.root / "embeddings" / "keep.txt").write_text("mine")
    merge(run, ["parquet"], 0)
    assert [path.name for path in (run.root / "embeddings").iterdir()] == ["keep.txt"]
    assert f"{run.root / 'embeddings'} is kept" in caplog.text
    merge(run, ["parquet_dataset"], 0)
    assert (run.root / "embeddings.yours-1" / "keep.txt").read_text() == "mine"
    assert not (run.root / "embeddings" / "keep.txt").exists()


def test_a_report_that_was_changed_survives_and_one_that_is_named_is_replaced(
    run, tmp_path, environment
):
    verbs = Verbs(tmp_path / "work", environment)
    root, other = verbs.run_folder.root, tmp_path / "named.html"
    verbs("report", root)
    with (root / "report.html").open("ab") as file:
        file.write(b"mine")
    assert "it is kept as" in verbs("report", root)
    assert (root / "report.yours-1.html").read_bytes().endswith(b"mine")
    assert "it is kept as" not in verbs("report", root)
    other.write_text("named, as for cp and sort -o")
    assert "kept" not in verbs("report", root, "--output", other)
    assert "<html" in other.read_text()[:100]
    (tmp_path / "folder").mkdir()
    said = verbs("report", root, "--output", tmp_path / "folder", status=2)
    assert "this is a folder; name a file" in said
    words = ("search", root, "--query", "MKV", "--output", tmp_path / "folder")
    assert "this is a folder; name a file" in verbs(*words, status=2)


def test_what_is_beside_a_named_table_is_named_only_by_default(run, tmp_path, environment):
    verbs = Verbs(tmp_path / "work", environment)
    labels = tmp_path / "labels.csv"
    ids = [record[0] for record in random_records(10)]
    labels.write_text("id,class\n" + "".join(f"{id},{n % 2}\n" for n, id in enumerate(ids)))
    for name in ("t.tsv", "t.missing.tsv", "t.json"):
        (tmp_path / name).write_text("mine")
    words = ("transfer", verbs.run_folder.root, "--labels", labels, "--column", "class")
    words += ("--vectors", "composition", "--output", tmp_path / "t.tsv")
    said = verbs(*words)
    assert (tmp_path / "t.tsv").read_text().startswith("id\t")
    for name in ("t.missing.yours-1.tsv", "t.yours-1.json"):
        assert (tmp_path / name).read_text() == "mine" and name in said
    assert "kept" not in verbs(*words)


def test_a_config_that_was_edited_survives_init_by_force(tmp_path, environment):
    verbs = Verbs(tmp_path, environment)
    (tmp_path / "my.fa").write_text(fasta(random_records(3)))
    words = ("init", "my.fa", "--workload", "composition")
    verbs(*words)
    assert "kept" not in verbs(*words, "--force")
    with (tmp_path / "my.yaml").open("a") as file:
        file.write("# mine\n")
    assert "my.yours-1.yaml" in verbs(*words, "--force")
    assert {path.name for path in tmp_path.iterdir()} == {"my.fa", "my.yaml", "my.yours-1.yaml"}
    assert (tmp_path / "my.yours-1.yaml").read_text().endswith("# mine\n")


@pytest.mark.parametrize("keep", clean.KEEP)
def test_clean_leaves_what_only_looks_like_ours(run, keep, caplog):
    paths = [run.root / folder / name for folder in FOLDERS for name in LIKE_OURS]
    mine = [path for path in paths if put(path, b"mine")]
    assert len(mine) > 250
    with contextlib.suppress(UserError):  # a file in a folder of results is not what merge wrote
        clean.run(argparse.Namespace(run_folder=run.root, keep=keep, yes=True))
    assert not [path for path in mine if not path.exists() or path.read_bytes() != b"mine"]
    if keep == "nothing":
        left = {path for path, content in contents(run.root).items() if content != b"mine"}
        assert not {path for path in left if not ours.is_beside(path.name)}, "all else was ours"
        assert f"{len(mine) - clean.MOST_NAMED:,} more" in caplog.text


def test_what_a_kill_leaves_is_known_until_it_is_copied(tmp_path):
    path = tmp_path / "embeddings.parquet"
    temporary = files.temporary_file(path)
    folder = files.temporary_folder(tmp_path / "embeddings")
    put(folder / "embeddings" / "part-00000.parquet", b"half")
    assert files.is_temporary(temporary) and files.is_temporary(folder)
    assert all(map(ours.is_ours, (temporary, folder / "embeddings" / "part-00000.parquet")))
    shutil.copy(temporary, tmp_path / "copy")
    (tmp_path / "copy").rename(temporary)
    assert not files.is_temporary(temporary) and not ours.is_ours(temporary)
    mine = temporary.rename(temporary.with_name(".notes.abcd1234"))
    files.remove_left(path)
    assert mine.exists()
    files.remove_left(tmp_path / "embeddings")
    assert not folder.exists()


@pytest.mark.parametrize("name", formats.names())
def test_each_format_is_written_into_the_file_that_is_known_as_temporary(run, name, monkeypatch):
    """Where a library makes another file in its place, a kill would leave what nobody knows."""
    known = []
    for module in (files, ours):
        for sync in ("sync", "sync_folder"):
            monkeypatch.setattr(
                module, sync, lambda path: known.append(files.is_in_temporary(path)), raising=False
            )
    with contextlib.suppress(UserError):  # a format for other values
        merge(run, [name], 0)
        assert len(known) > 3
    folders = known.count(False)  # the folders in which they stand
    assert known.count(True) >= folders - 1


# ---- what proves a file to be ours ----


@pytest.mark.parametrize("is_in_folder", [False, True])
def test_an_older_copy_of_ours_is_ours_and_not_the_latest(tmp_path, is_in_folder):
    """Such as predictions of other labels, which a result that is done would be taken for."""
    path, copy = tmp_path / "made" / "a.tsv", tmp_path / "copy"
    path.parent.mkdir()
    for text in ("old", "new"):
        if is_in_folder:
            with ours.delivering_folder(path.parent) as new:
                (new / path.name).write_text(text)
        else:
            with ours.delivering(path) as new:
                new.write_text(text)
        assert ours.is_latest(path) and state.damaged([str(path)]) == []
        if text == "old":
            shutil.copy(path, copy)
    shutil.copy(copy, path)
    assert ours.is_ours(path) and state.damaged([str(path)]) == [str(path)]


def test_a_file_is_ours_while_its_bytes_are(tmp_path):
    path = tmp_path / "a.tsv"
    with ours.delivering(path) as new:
        new.write_text("ours")
    assert ours.is_ours(path)
    shutil.copytree(tmp_path, tmp_path / "copy")  # with other times
    assert ours.is_ours(tmp_path / "copy" / "a.tsv")
    before = path.stat()
    path.write_text("mine")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # size and mtime are as they were
    assert not ours.is_ours(path)
    (tmp_path / "b.tsv").symlink_to(tmp_path / "copy" / "a.tsv")
    assert not ours.is_ours(tmp_path / "b.tsv")
    (tmp_path / formats.RECORD).write_text('half a line\n{"name": 3}\n[]\n')
    assert not ours.is_ours(path)


def test_an_unchanged_file_is_not_read_again(tmp_path, monkeypatch):
    path = tmp_path / "large.npy"
    with ours.delivering(path) as new:
        new.write_bytes(b"x" * 100)
    with ours.touching(path, None):  # as Snakemake does after a job
        os.utime(path)
    monkeypatch.setattr(ours, "sha256_of", None)
    assert ours.is_ours(path)


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_changed_between_a_job_and_its_touch_is_a_persons(tmp_path, is_folder):
    """A cluster's jobs are looked at every few seconds, and steps of others write no record."""
    path, deliver = tmp_path / "a", ours.delivering_folder if is_folder else ours.delivering
    inside = path / "part" if is_folder else path
    for number in range(2):
        guard._vacate(path)
        with deliver(path) as new:
            (new / "part" if is_folder else new).write_text(f"ours {number}")
        (path / "note" if is_folder else path).write_text("mine")
        with guard._touching(path):
            os.utime(path)
        assert not ours.is_ours(path)
    for number in range(2):
        guard._vacate(path)
        inside.parent.mkdir(exist_ok=True)
        inside.write_text(f"another package's {number}")
        with guard._touching(path):
            os.utime(path)
        assert ours.is_ours(path)


def test_a_kill_between_the_name_and_the_record_leaves_ours(tmp_path, monkeypatch):
    path = tmp_path / "a.tsv"

    def stop(line):
        if line == "a.tsv":
            raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        append, calls = ours._append, []

        def killed(*arguments):
            calls.append(arguments)
            append(*arguments) if len(calls) == 1 else stop("a.tsv")

        patch.setattr(ours, "_append", killed)
        with ours.delivering(path) as new:
            new.write_text("ours")
    assert path.read_text() == "ours" and ours.is_ours(path)


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_saved_while_ours_is_written_to_the_disk_survives(tmp_path, monkeypatch, is_folder):
    """fsync of a large file takes minutes."""
    path, deliver = tmp_path / "a", ours.delivering_folder if is_folder else ours.delivering
    for _ in range(2):  # where there is nothing, and where there is one of ours
        with monkeypatch.context() as patch, deliver(path) as new:
            (new / "part" if is_folder else new).write_text("ours")

            def save_meanwhile(*_):
                patch.undo()  # the first of all calls
                put(path / "part" if is_folder else path, b"mine")

            for module, name in itertools.product((files, ours), ("sync", "sync_folder")):
                patch.setattr(module, name, save_meanwhile, raising=False)
        (kept,) = tmp_path.glob("a.yours-*")
        assert (kept / "part" if is_folder else kept).read_bytes() == b"mine"
        files.remove(kept)
        assert ours.is_ours(path)


def test_a_long_record_keeps_the_last_line_of_each_file(tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "MOST_BYTES", 2000)
    for number in range(30):
        for name in ("a.tsv", "b.tsv"):
            with ours.delivering(tmp_path / name) as new:
                new.write_text(str(number))
    assert (tmp_path / formats.RECORD).stat().st_size < 3000
    assert ours.is_ours(tmp_path / "a.tsv") and ours.is_ours(tmp_path / "b.tsv")


def test_a_record_of_many_files_is_not_read_again_for_each(tmp_path, monkeypatch):
    """As `clean` of results by shard appends to it, and as they are written."""
    monkeypatch.setattr(ours, "MOST_BYTES", 20_000)  # of 45,000 that the last lines have
    paths, num_read, loads = [tmp_path / f"{n}.tsv" for n in range(300)], 0, json.loads

    def counting(text):
        nonlocal num_read
        num_read += 1
        return loads(text)

    monkeypatch.setattr(ours.json, "loads", counting)
    for path in paths:
        path.touch()
        ours.note(path)
    for path in paths:
        with ours.touching(path):
            os.utime(path, (1, 1))
    assert num_read < 10 * len(paths)
    monkeypatch.setattr(ours, "_known", {})
    assert all(map(ours.is_ours, paths))
    assert (tmp_path / formats.RECORD).stat().st_size < 110_000
