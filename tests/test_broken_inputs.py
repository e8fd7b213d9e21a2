"""The verbs on every kind of broken input, run and weights: the documented outcome, and never a
traceback."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from broken_inputs import ASKED, BROKEN, as_ordinary_user
from broken_stores import DAMAGES, TOLD, WEIGHTS, part_of, receipt_of
from conftest import PLUGINS
from programs import Verbs, written

from featuremill.__main__ import main
from featuremill.base.errors import UserError
from featuremill.inputs import proteins
from featuremill.inputs.residues import ALPHABET
from featuremill.store.parts import read_verified
from featuremill.store.results import Results
from featuremill.workload import find_workload
from featuremill.workloads.esm2.sources import BUNDLED


def check_reader(case, path):
    """Let the reader have the file."""
    if case.outcome == "error":
        with pytest.raises(UserError) as caught:
            list(proteins([path]))
        sentence = str(caught.value)
        assert case.fragment in sentence
        assert sentence.startswith(str(path)) and sentence.endswith(".") and ";" in sentence
        assert sentence.isprintable()
        return
    records = list(proteins([path]))
    refused = [record for record in records if record.reason]
    notes = [record.note for record in records if record.note]
    for record in records:
        assert bool(record.reason) != bool(record.payload)
        assert not record.payload.translate(None, ALPHABET)
        for text in (record.id, record.description, record.reason, record.note):
            text.encode()  # whatever stood in the file, Arrow and HDF5 can hold this
    if case.outcome == "refused":
        assert any(case.fragment in record.reason for record in refused)
    else:
        assert not refused
        assert any(case.fragment in note for note in notes) if case.fragment else not notes


def check_plan(case, folder, status, said):
    """Check what `featuremill plan` said and left."""
    outcome = case.plan or case.outcome
    fragment = case.plan_fragment or case.fragment
    if outcome == "error":
        assert status == 2
        (sentence,) = [line for line in said.splitlines() if "error:" in line]
        assert fragment in sentence
        assert not (folder / "plan.json").exists()
        return
    assert status == 0, said
    counts = json.loads((folder / "plan.json").read_text())["counts"]
    assert counts["planned"] >= 1
    assert counts["input"] == counts["planned"] + counts["refused"] + counts["duplicate"]
    rows = pq.read_table(folder / "records.parquet").to_pylist()
    told = [row["reason" if outcome == "refused" else "note"] or "" for row in rows]
    if outcome in ("refused", "note"):
        assert any(fragment in text for text in told)
        assert "record" in said and "warning" in said
    else:
        assert counts["refused"] == 0


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_the_reader_plan_and_init_end_as_documented(case, tmp_path, capsys):
    path = case.make(tmp_path)
    config = {"inputs": [str(path)], "workload": "composition", "device": "cpu"}
    folder = tmp_path / "run"
    folder.mkdir()
    with as_ordinary_user() if case.unprivileged else contextlib.nullcontext():
        check_reader(case, path)
        status = main(["plan", str(folder), "--config", written(config)])
        said = capsys.readouterr().err
        # What plan refuses, init has refused before it, on the same ground.
        written_file = ["--workload", "composition", "--output", str(folder / "my.yaml")]
        assert main(["init", str(path), *written_file]) == status
        surveyed = capsys.readouterr().err
    if status:
        last = surveyed.splitlines()[-1]
        fragment = case.init or case.plan_fragment or case.fragment
        assert fragment in last or "every record is refused" in last
    check_plan(case, folder, status, said)


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_what_a_workload_cannot_have_is_one_sentence(case, capsys, monkeypatch):
    monkeypatch.syspath_prepend(PLUGINS)
    find_workload(case.workload)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        monkeypatch.chdir(folder)
        (folder / "in.fa").write_text(">a\nMKV\n")
        asked = {"inputs": ["in.fa"], "workload": case.workload, "device": "cpu"}
        asked |= {"outputs": ["parquet"], **case.make(folder)}
        words = ["plan", "run", "--config", written(asked)]
        if case.verb == "weights":
            words = ["weights", "more", "--workload", case.workload, "--output", "out/w.json"]
        with as_ordinary_user() if case.unprivileged else contextlib.nullcontext():
            assert main(words) == 2
        said = capsys.readouterr().err
        (sentence,) = [line for line in said.splitlines() if "error:" in line]
        assert case.fragment in sentence and "Traceback" not in said
        assert sentence.endswith(".") and sentence.isprintable()
        assert not Path("run", "plan.json").exists() and not Path("out", "w.json").exists()
        monkeypatch.undo()


ANSWERS = [(damage, verb) for damage in DAMAGES for verb in damage.answers]


def test_broken_things_are_many():
    assert len([*BROKEN, *ANSWERS, *WEIGHTS, *ASKED]) >= 200
    for cases in (DAMAGES, BROKEN):
        names = [case.name for case in cases]
        assert len(names) == len(set(names)) >= 45
    assert all(case.answers or case.seen or case.verified for case in DAMAGES)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, environment):
    """Return the verbs of a whole run of several shards."""
    verbs = Verbs(tmp_path_factory.mktemp("whole"), environment)
    records = [(f"p{n}", "ACDEFGHIKL"[: n % 9 + 1] * (n + 1)) for n in range(40)]
    assert 2 < len(verbs.finish(records, "parquet", cost=1000)["shards"]) < 6
    return verbs


KEPT = ["embeddings.parquet", "failed.tsv", "manifest.json"]


@pytest.mark.parametrize(("damage", "verb"), ANSWERS, ids=[f"{d.name}-{v}" for d, v in ANSWERS])
def test_a_damaged_run_is_answered_in_one_sentence(
    damage, verb, finished, tmp_path, capsys, monkeypatch
):
    shutil.copytree(finished.folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setenv("PYTHONPATH", finished.environment["PYTHONPATH"])
    run = Results(Path("results/test"))
    recipe, shard = receipt_of(run).parent.name, receipt_of(run).stem
    expected, fragment = damage.answers[verb]
    if verb == "extract":
        part_of(run).unlink()
    damage.harm(run)
    left = {name: (run.root / name) for name in KEPT}
    left = {name: path.read_bytes() for name, path in left.items() if path.is_file()}
    config = {"run": "test", "inputs": ["in.fa"], "workload": "composition", "device": "cpu"}
    arguments = {
        "merge": ["merge", str(run.root), "--outputs", "parquet"],
        "extract": ["extract", str(run.root), shard, "--recipe", recipe],
        "plan": ["plan", str(run.root), "--config", written(config)],
        "report": ["report", str(run.root), "--output", "report.html"],
    }
    assert main(arguments[verb]) == expected
    said = capsys.readouterr().err
    errors = [line for line in said.splitlines() if "error:" in line]
    assert "Traceback" not in said
    if expected:
        (sentence,) = errors
        assert fragment in sentence and "results/test" in sentence
        assert sentence.endswith(".") and len(sentence) < 500
        assert not Path("report.html").exists()
        assert {name: (run.root / name).read_bytes() for name in left} == left
    else:
        assert not errors
        if verb == "extract":
            assert run.part(recipe, shard).exists()
        else:
            plan = json.loads(run.plan.read_text())
            assert all(read_verified(run.shard(s["shard"])) for s in plan["shards"])


@pytest.mark.parametrize("name", WEIGHTS)
def test_broken_weights_are_answered_in_one_sentence(name, tmp_path, capsys):
    make, fragment = WEIGHTS[name]
    path = make(tmp_path, next(BUNDLED.glob("*.safetensors")).read_bytes())
    output = tmp_path / "weights" / "w.json"
    arguments = ["weights", str(path), "--output", str(output), "--cache", str(tmp_path / "cache")]
    assert main(arguments) == 2
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert fragment in sentence and str(tmp_path) in sentence and sentence.endswith(".")
    assert not output.exists() and not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.parametrize(("text", "fragment"), TOLD.items())
def test_a_broken_description_of_weights(text, fragment, tmp_path, capsys):
    path = tmp_path / "w.json"
    path.write_text(text)
    (tmp_path / "in.fa").write_text(">a\nMKV\n")
    config = {"inputs": [str(tmp_path / "in.fa")], "workload": "esm2", "device": "cpu"}
    told = ["--config", written(config), "--weights", str(path)]
    assert main(["plan", str(tmp_path / "run"), *told]) == 2
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert fragment in sentence and str(path) in sentence and f"delete {path}" in sentence


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "a config is a YAML mapping"),
        ("{", "this is not valid YAML"),
        ("[]", "a config is a YAML mapping"),
        ("[" * 50_000, "its brackets or indents are nested too deeply"),
        ('{"inputs": "a\\u0000b"}', "holds a line break or another control character"),
        ('{"inputs": ""}', "one of the names is empty"),
        ('{"inputs": "~/a.fa"}', "~/a.fa: ~ works only in a shell"),
        ('{"inputs": "a", "max_failed": .inf}', "give a whole number of at least 0, not inf"),
        (f'{{"inputs": "a", "run": "{"r" * 300}"}}', "use at most 100 letters"),
    ],
)
def test_a_broken_config_that_plan_is_given(text, fragment, tmp_path, capsys):
    assert main(["plan", str(tmp_path / "run"), "--config", written(text)]) == 2
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert fragment in sentence and sentence.endswith(".")
    assert not (tmp_path / "run" / "plan.json").exists()


def test_a_variable_that_is_no_number(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEATUREMILL_STALL_SECONDS", "soon")
    assert main(["extract", str(tmp_path), "0" * 32]) == 2
    said = "FEATUREMILL_STALL_SECONDS: 'soon' is not a number of seconds;"
    assert said in capsys.readouterr().err
