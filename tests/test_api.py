"""featuremill.compute: the numbers of a run, from whatever a program holds; what it refuses."""

import fcntl
import json
import os
import pickle
import pty
import runpy
import struct
import subprocess
import sys
import tempfile
import termios
import traceback
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
from conftest import PLUGINS, ROOT
from encoder_models import write as write_encoder
from esmc_models import esmc as random_esmc
from geneformer_models import cells_of, ensembl, some_counts, write_cells, write_genes, write_model
from programs import Verbs, fasta, python, random_records
from recordings import noise

import featuremill
from featuremill import api
from featuremill.base.errors import UserError, WorkloadError
from featuremill.workload import find_workload

pytestmark = pytest.mark.filterwarnings("ignore:The following device_map keys")
RECORDS = random_records(30)
SEQUENCES = dict(RECORDS)
OF_RECIPE = ("model_name", "workload", "workload_version", "options", "weights_sha256", "recipe")
ABOUT = ["accession", "description", "length", "sha256"]


@pytest.fixture
def run(tmp_path, environment):
    """Return what computes a run of one shard and gives its table."""
    verbs = Verbs(tmp_path, {**environment})

    def table(inputs, workload, options=None):
        more = ()
        asked = find_workload(workload).Options.model_validate(options or {})
        if model := find_workload(workload).weights(asked):
            verbs("weights", model, "--workload", workload, "--output", "weights.json")
            more = ("--weights", "weights.json")
        return merged(verbs, inputs, workload, options, more)

    return table


def merged(verbs, inputs, workload, options=None, more=(), max_failed=0):
    given = {"inputs": [str(inputs)], "outputs": ["parquet"]}
    plan = verbs.plan([], workload, options, 10**9, more, **given)
    assert len(plan["shards"]) == 1
    verbs.extract(plan)
    root = verbs.run_folder.root
    verbs("merge", root, "--outputs", "parquet", "--max-failed", str(max_failed))
    return featuremill.load(root)


@pytest.fixture
def few(tmp_path):
    """Return a file with the records."""
    path = tmp_path / "few.fa"
    path.write_text(fasta(RECORDS))
    return path


GENES = [ensembl(number) for number in range(60)]


@pytest.fixture
def of_genes(tmp_path):
    """Return options for a random Geneformer of all but five genes."""
    write_model(tmp_path / "model", 4 + 55)
    dictionaries = write_genes(tmp_path, GENES[5:])
    return {**dictionaries, "dtype": "fp32", "model": str(tmp_path / "model")}


def assert_same(frame, table):
    """Compare to the bit, with the types of the columns and of what is in them."""
    assert list(frame.columns) == list(table.columns) and len(frame)
    pd.testing.assert_frame_equal(frame[ABOUT], table[ABOUT])
    for name in table.columns.drop(ABOUT):
        assert frame[name].dtype == table[name].dtype
        for ours, theirs in zip(frame[name], table[name], strict=True):
            assert type(ours) is type(theirs)
            if isinstance(theirs, np.ndarray):
                assert ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()
            else:
                assert ours == theirs


def test_what_a_tab_shows_is_what_there_is():
    """In a new process: what other tests imported is listed anyway."""
    code = "import featuremill; print(*dir(featuremill))"
    done = python("-c", code, check=True)
    shown = done.stdout.split()
    assert {*featuremill.__all__, "__version__"} <= {*shown} and shown == sorted({*shown})


@pytest.mark.parametrize("call", ["embed(['MKV'])", "compute(['MKV'])"])
def test_the_demonstration_network_is_never_used_without_a_word(tmp_path, environment, call):
    code = f"import featuremill\nfor _ in range(2):\n    found = featuremill.{call}\n"
    words = ("-W", "always", "-c", f"{code}print(getattr(found, 'attrs', ''))")
    done = python(*words, check=True, env={**os.environ, **environment}, cwd=tmp_path)
    caution = "mill_t6_8M is a demonstration model, not ESM-2. For science: model: esm2_t33_650M"
    assert done.stderr.count(f"<string>:3: UserWarning: {caution}") == 1
    if call.startswith("compute"):
        assert "'model_name': 'mill_t6_8M'" in done.stdout


# The numbers of a run


def test_a_file_gives_the_table_of_a_run(run, tmp_path):
    path = tmp_path / "few.fa"
    again = [(f"{id} said twice", sequence) for id, sequence in RECORDS[:2]]
    described = [("sp|P12345|AATM_RABIT Aspartate aminotransferase", "MALLHSARVLSG"), *again]
    path.write_text(fasta([*RECORDS, *described, ("other", RECORDS[0][1])]))
    table = run(path, "composition")
    assert table.loc["sp|P12345|AATM_RABIT", "accession"] == "P12345"
    frame = featuremill.compute(path, "composition")
    assert_same(frame, table)
    assert frame.attrs["failed"] == [] and frame.attrs["recipe"]
    assert all(frame.attrs[name] == table.attrs[name] for name in OF_RECIPE)
    assert_same(featuremill.compute(str(path), "composition", {}, device="cpu"), table)
    one, two = tmp_path / "one.fa", tmp_path / "two.fa"
    one.write_text(fasta(RECORDS[:10]))
    two.write_text(fasta([*RECORDS[10:], *described, ("other", RECORDS[0][1])]))
    assert_same(featuremill.compute([one, two], "composition"), table)


@pytest.mark.parametrize("dtype", ["auto", pytest.param("fp32", marks=pytest.mark.slow)])
def test_esm2_gives_the_numbers_of_a_run(run, tmp_path, dtype):
    path = tmp_path / "few.fa"
    path.write_text(fasta([*RECORDS, ("equal", RECORDS[3][1])]))
    options = {"layers": [2, -1], "pool": ["mean", "bos"], "per_residue": True, "dtype": dtype}
    table = run(path, "esm2", options)
    frame = featuremill.compute(SEQUENCES | {"equal": RECORDS[3][1]}, "esm2", options, device="cpu")
    assert_same(frame, table)
    embedded = featuremill.embed(list(SEQUENCES.values()), dtype=dtype, device="cpu")
    assert np.allclose(np.stack(frame["mean_layer_6"])[:-1], embedded, atol=1e-2)
    first, equal = frame.loc[[RECORDS[3][0], "equal"], "mean_layer_6"]
    first[:] = 0
    assert equal.any(), "each row has an array of its own"


def test_esmc_gives_the_numbers_of_a_run(run, few, tmp_path):
    random_esmc(2, 64, 128).save_pretrained(tmp_path / "esmc")
    options = {"model": str(tmp_path / "esmc"), "layers": [1, -1], "pool": ["mean", "bos"]}
    options |= {"per_residue": True}
    table = run(few, "esmc", options)
    assert_same(featuremill.compute(SEQUENCES, "esmc", options, device="cpu"), table)


def test_encoder_gives_the_numbers_of_a_run(run, few, tmp_path):
    options = {"alphabet": "proteins", "pool": ["mean", "cls"], "layers": [1, -1], "dtype": "fp32"}
    options |= {"model": str(write_encoder(tmp_path / "protbert", "protbert"))}
    table = run(few, "encoder", options)
    assert_same(featuremill.compute(SEQUENCES, "encoder", options), table)
    options["model"] = Path(options["model"])
    assert_same(featuremill.compute(pd.Series(SEQUENCES), "encoder", options), table)


def test_geneformer_gives_the_numbers_of_a_run_of_an_anndata(run, of_genes, tmp_path):
    cells = cells_of(some_counts(9, 60), GENES)
    path = write_cells(tmp_path / "cells.h5ad", cells)
    found = featuremill.compute(cells, "geneformer", of_genes)
    assert_same(found, run(path, "geneformer", of_genes))
    shifts = {**of_genes, "perturb": "delete", "genes": GENES[5:8]}
    few, same = (featuremill.compute(given, "geneformer", shifts) for given in (path, cells))
    assert_same(few.map(str), same.map(str))  # NaN, where a gene is not in a cell


def test_an_anndata_is_read_as_its_file_and_stays_as_it_is(of_genes):
    options = of_genes
    expected = featuremill.compute(cells_of(some_counts(5, 60), GENES), "geneformer", options)
    cells = cells_of(some_counts(5, 60), [f"gene {number}" for number in range(60)])
    cells.var["gene_ids"] = GENES
    cells.obs["kind"], cells.obs["times"] = ["a", "b", None, "a", "b"], [1, 2, 3, 4, 5]
    cells.obsm["X_pca"], cells.uns["of anyone's"] = np.zeros((5, 2)), object()
    cells.raw, cells.layers["counts"] = cells, cells.X.copy()
    cells.X = cells.X / 2
    obs, var, held = cells.obs.copy(), cells.var.copy(), cells.X.copy()
    for counts in ("raw", "layers/counts"):
        told = {**options, "counts": counts}
        assert_same(featuremill.compute(cells, "geneformer", told), expected)
    for given, sentence in ((cells, "^inputs: X holds "), (["MKV"], "or an AnnData for cells.$")):
        with pytest.raises(UserError, match=sentence):
            featuremill.compute(given, "geneformer", options)
    pd.testing.assert_frame_equal(cells.obs, obs)
    pd.testing.assert_frame_equal(cells.var, var)
    assert (held != cells.X).nnz == 0 and set(cells.uns) == {"of anyone's"} and cells.obsm


def test_llm_json_gives_the_replies_of_a_run_of_a_dataframe(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["llm_json.py", str(tmp_path / "llm")])
    runpy.run_path(str(ROOT / "config" / "examples" / "llm_json.py"), run_name="__main__")
    monkeypatch.chdir(tmp_path / "llm")
    notes = pd.read_csv("notes.csv", dtype=str).head(5)
    notes["age"] = [30.5, None, 1, 2, 3]
    Path("prompt.jinja").write_text("{{ note }} {{ age }}")
    notes.to_parquet("few.parquet")
    options = {"prompt": "prompt.jinja", "json_schema": "schema.json", "model": "model"}
    absolute = {name: str(Path(path).absolute()) for name, path in options.items()}
    options, absolute = (o | {"dtype": "fp32", "max_tokens": 128} for o in (options, absolute))
    table = run(Path("few.parquet").absolute(), "llm_json", absolute)
    for frame in (notes, notes.set_index("id"), notes[::-1].set_index("id")[::-1]):
        assert_same(featuremill.compute(frame, "llm_json", options), table)


def test_pac_takes_arrays_and_tensors(run, tmp_path):
    import torch

    signals = np.stack([noise(2, seed=seed) for seed in range(3)])
    options = {"phase_bands": [[3, 6]], "amplitude_bands": [[30, 50], [60, 90]], "permutations": 5}
    options["sampling_rate_hz"] = 400.0
    np.save(tmp_path / "inputs.npy", signals)
    table = run(tmp_path / "inputs.npy", "pac", options)
    assert list(table.index)[:3] == ["inputs:ch1:1", "inputs:ch2:1", "inputs:ch1:2"]
    for given in (signals, torch.from_numpy(signals).requires_grad_()):
        assert_same(featuremill.compute(given, "pac", options), table)
    del options["sampling_rate_hz"]
    with pytest.raises(ValueError, match=r"^inputs: its sampling rate is missing"):
        featuremill.compute(signals, "pac", options)
    with pytest.raises(ValueError, match="inputs: an array of complex128 and shape"):
        featuremill.compute(np.ones((2, 5), complex), "pac", options)


def test_a_workload_of_another_package_computes(run, few, monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGINS))
    table = run(few, "bulky")
    for given in (few, SEQUENCES):
        assert_same(featuremill.compute(given, "bulky"), table)
    mistakes = ("load raises", "run raises", "cost raises", "records raises", "batch_cost is 0")
    for mistake in (*mistakes, "a column is reserved", "collect gives other columns"):
        with pytest.raises(WorkloadError, match=r"^workload mistaken \(package "):
            featuremill.compute(few, "mistaken", {"mistake": mistake})


# What is given


def composition(inputs, **more):
    return featuremill.compute(inputs, "composition", **more)


def test_ids_are_those_that_the_inputs_have():
    expected = composition({"a": "MKV", "b": "GIV"})
    assert list(expected.index) == ["a", "b"] and expected.index.name == "id"
    for columns in (["id", "sequence"], ["Entry", "aa"]):
        frame = pd.DataFrame([["a", "MKV"], ["b", "GIV"]], columns=columns)
        assert_same(composition(frame), expected)
        assert_same(composition(frame.set_index(columns[0])), expected)
        # An index without a name is only numbers, unless nothing else is the ids.
        assert_same(composition(frame[::-1][::-1]), expected)
        nameless = pd.DataFrame({"sequence": ["MKV", "GIV"]}, index=["a", "b"])
    assert_same(composition(nameless), expected)
    assert_same(composition(nameless["sequence"]), expected)
    named = {"id_column": "who", "sequence_column": "what"}
    frame = pd.DataFrame({"who": ["a", "b"], "what": ["MKV", "GIV"], "id": ["x", "x"]})
    assert_same(composition(frame, options=named), expected)
    assert_same(composition({"a": "MKV", "b": "GIV"}, options=named), expected)
    for listed in (["MKV", "GIV"], ("MKV", "GIV"), np.array(["MKV", "GIV"]), iter(["MKV", "GIV"])):
        assert list(composition(listed).index) == ["0", "1"]


def test_what_was_cleaned_is_said_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.warns(UserWarning) as told:
        composition(["MKV*", "mkv *", "MKJ"])
    said = ["2 records: * at the end dropped.", "1 record: J read as X."]
    assert [str(one.message) for one in told] == said
    line = composition.__code__.co_firstlineno + 1
    assert {(one.filename, one.lineno) for one in told} == {(__file__, line)}
    with pytest.raises(UserError):
        composition(["MK1"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("inputs", "more", "sentence"),
    [
        ("none.fa", {}, "none.fa: this file does not exist"),
        (["MK", "M1", "", "M2"], {}, "inputs:2: record '1', like 2 others, is refused: not an "
         "amino acid: '1' at residue 2. Fix "),
        ({"a": "MK", "b": "M\ud8001"}, {}, "inputs:2: record 'b' is refused: not an amino acid"),
        ({"a": "MK", 3: None}, {}, r"inputs\[3\]: this is of type NoneType; give a string"),
        (b"MKV", {}, "inputs: this is of type bytes; give the path"),
        (None, {}, "inputs: this is of type NoneType"),
        ({"MKV", "MKL"}, {}, "inputs: this is of type set; give"),
        ([], {}, "inputs: there is no record in it; give at least one"),
        (["few.fa", "MKV"], {}, r"inputs\[0\]: few.fa is a file, and a list of strings holds "
         "sequences; give files as pathlib"),
        (pd.DataFrame({"id": ["a"], "text": ["MKV"]}), {}, "inputs: no column of "
         r"sequences is found \(columns: 'id', 'text'\)"),
        (pd.DataFrame({"id": ["a", "b"], "sequence": ["Zwiebel", 3]}), {}, "inputs: this DataFrame "
         r"cannot be read \(Conversion failed for column sequence with type object\)"),
        (pd.DataFrame([["a", "b"]], columns=["id", "id"]), {}, "inputs: this DataFrame cannot be"),
        (["MKV"], {"workload": "composed"}, "compute: workload: there is no workload 'composed'"),
        (["MKV"], {"options": {"hydropathi": 1}}, "compute: options.hydropathi: there is no such "
         "key here; did you mean 'hydropathy'"),
        (["MKV"], {"options": ["model"]}, r"options=\['model'\]: give a dictionary"),
        (["MKV"], {"device": "gpu"}, "compute: device: give one of"),
        (["MKV"], {"max_failed": -1}, "compute: max_failed"),
        (["MKV"], {"workload": "pac", "options": {"phase_bands": [[3, 6]]}}, "inputs: this "
         r"workload reads no sequences in memory \(list\); give the path of a file, or an array"),
        (anndata.AnnData(np.ones((1, 1))), {}, "inputs: this is of type AnnData; give the path"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_a_sentence(tmp_path, monkeypatch, inputs, more, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.fa").write_text(">a\nMKV\n")
    with pytest.raises(UserError, match=f"^{sentence}") as raised:
        featuremill.compute(inputs, **{"workload": "composition", **more})
    said = str(raised.value).replace(str(tmp_path), "")
    assert "Zwiebel" not in said and tempfile.gettempdir() not in said


def test_a_traceback_has_the_public_name_of_an_error():
    with pytest.raises(featuremill.UserError) as raised:
        composition(["MK1"])
    (line,) = traceback.format_exception_only(raised.value)
    assert line.startswith("featuremill.UserError: ")
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is UserError and str(again) == str(raised.value)


def test_option_files_have_to_be_there(tmp_path):
    files = {"prompt": tmp_path / "none", "json_schema": tmp_path / "none", "model": tmp_path}
    with pytest.raises(UserError, match=r"^options.prompt: .*none: there is no such file"):
        featuremill.compute(pd.DataFrame({"id": [1]}), "llm_json", files)


# Records without values


def test_records_without_values_are_errors_or_listed(tmp_path, monkeypatch, environment):
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.setattr(find_workload("bulky"), "UNLUCKY", b"D")
    path = tmp_path / "few.fa"
    lines = [(id, f"{'DEF'[n % 3]}{sequence}") for n, (id, sequence) in enumerate(RECORDS)]
    path.write_text(fasta([*lines, ("bad", "MK1"), ("p0.1", "KKK"), lines[2]]))
    with pytest.raises(UserError, match=r":61: record 'bad', like 2 others, is refused: not an"):
        featuremill.compute(path, "bulky")
    with pytest.raises(UserError, match="Or set max_failed"):
        featuremill.compute(path, "bulky", max_failed=2)
    with pytest.raises(UserError, match=r"'p0.3' failed: drawn blank: D. Draw again. Or set"):
        featuremill.compute(dict(lines[1:5]), "bulky")
    with pytest.raises(UserError, match="is refused"):  # 12 of 13
        featuremill.compute(path, "bulky", max_failed=12)
    with pytest.warns(UserWarning, match=r"^13 records left out; see attrs\['failed'\]\.$"):
        frame = featuremill.compute(path, "bulky", max_failed=13)
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(PLUGINS))
    verbs = Verbs(tmp_path, {**environment, "BULKY_UNLUCKY": "D"})
    assert_same(frame, merged(verbs, path, "bulky", max_failed=13))
    path = verbs.run_folder.root / "failed.tsv"
    failed = pd.read_csv(path, sep="\t", dtype={"line": int})
    listed = pd.DataFrame(frame.attrs["failed"])
    assert len(failed) == 13 and set(failed["status"]) == {"refused", "failed"}
    by_line = {"by": "line", "ignore_index": True}
    pd.testing.assert_frame_equal(listed.sort_values(**by_line), failed.sort_values(**by_line))


def test_all_may_fail():
    with pytest.warns(UserWarning, match="2 records left out"):
        frame = composition(["M1", "M2"], max_failed=2)
    assert len(frame) == 0 and list(frame.columns) == [*ABOUT, "composition", "hydropathy"]


def test_a_model_that_does_not_fit_is_a_sentence(monkeypatch):
    def load(*_):
        raise MemoryError("of 4 GB")

    monkeypatch.setattr(find_workload("composition"), "load", load)
    featuremill.forget_model()
    with pytest.raises(UserError, match=r"^composition: memory ran out while the model was loaded"):
        composition(["MKV"])


# Model and progress


def test_a_model_is_loaded_again_for_other_options_or_files(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGINS))
    numbered, loads = find_workload("numbered"), []
    load = numbered.load
    monkeypatch.setattr(numbered, "load", lambda *given: loads.append(given) or load(*given))
    path = tmp_path / "number.txt"
    path.write_text("3")
    featuremill.forget_model()
    first = featuremill.compute(["MKV"], "numbered", {"number": path})
    assert_same(featuremill.compute(["MKV"], "numbered", {"number": path}), first)
    assert len(loads) == 1
    path.write_text("15")
    other = featuremill.compute(["MKV"], "numbered", {"number": path})
    assert len(loads) == 2 and str(other.iloc[0, -1]) != str(first.iloc[0, -1])
    composition(["MKV"])
    featuremill.compute(["MKV"], "numbered", {"number": path})
    assert len(loads) == 3
    composition(["MKV"])
    (loaded,) = api._loaded
    composition(["MKV"], options={"hydropathy": False})
    assert api._loaded[0].model is not loaded.model
    featuremill.forget_model()
    assert api._loaded == []


def test_progress_is_told_after_each_batch(monkeypatch):
    monkeypatch.setattr(find_workload("composition"), "batch_cost", lambda *_: 100)
    seen = []
    composition([*SEQUENCES.values()] * 2, progress=lambda *told: seen.append(told))
    assert len(seen) > 3 and seen[-1] == (30, 30) and seen == sorted(seen)


SHOWN = """
import json, sys
import featuremill
from featuremill.workload import find_workload

find_workload("composition").batch_cost = lambda *_: 100
frame = featuremill.compute(json.loads(sys.argv[1]), "composition")
assert not {"anndata", "torch"} & set(sys.modules)
"""


@pytest.fixture
def shown(environment):
    """Return what a call writes to an error output that is a terminal, or is none."""

    def written(on_terminal):
        command = [sys.executable, "-c", SHOWN, json.dumps(SEQUENCES)]
        ours, theirs = pty.openpty() if on_terminal else os.pipe()
        if on_terminal:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        with os.fdopen(ours, "rb", buffering=0) as mine:
            done = subprocess.Popen(
                command, env=dict(environment), stdout=subprocess.PIPE, stderr=theirs
            )
            os.close(theirs)
            out, _ = done.communicate(timeout=120)
            assert done.returncode == 0 and out == b""
            text = b""
            try:
                while part := mine.read(4096):
                    text += part
            except OSError:  # so ends a terminal
                pass
        return text.decode()

    return written


def test_a_terminal_shows_progress_and_nothing_else_does(shown):
    assert shown(on_terminal=False) == ""
    text = shown(on_terminal=True)
    assert text.count("\n") == 1 and text.endswith("\rfeaturemill: 30 of 30 records\r\n")
    assert text.count("\rfeaturemill: ") > 3
