"""audit: its figures against an independent computation, what it finds, says and refuses.

The model and the engine are the real ones; where something has to be bad, one batch's values are.
"""

import json
import random
import re
import shutil
import tempfile
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from broken_inputs import BROKEN, GENE, GOOD, INSULIN_A, UBIQUITIN
from esm2_models import cosines, demo_proteins, relative_l2
from programs import fasta
from safetensors.torch import load_file, save_file
from test_doctor import maybe, several, some, thing

from featuremill.__main__ import main
from featuremill.base import devices
from featuremill.base.devices import Device
from featuremill.commands.audit import command, measure, report
from featuremill.commands.audit.measure import draw
from featuremill.inputs.residues import protein
from featuremill.workload import compute, weights
from featuremill.workload.batches import make_batches
from featuremill.workloads import esm2

ROOT = Path(__file__).parent.parent
TEXT, NUMBER, COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}
FLAG, COSINE = {"type": "boolean"}, {"type": "number", "minimum": -1, "maximum": 1}


FIGURES = thing(
    **dict.fromkeys(["cosine_mean", "cosine_min"], maybe(COSINE)),
    **dict.fromkeys(["relative_l2_mean", "relative_l2_max"], some("number")),
)
WORST = thing(
    **dict.fromkeys(["id", "place", "column"], TEXT),
    cosine_min=maybe(COSINE),
    relative_l2=some("number"),
)
SCHEMA = thing(
    version={"const": 2},
    within=FLAG,
    inputs=several(TEXT),
    **dict.fromkeys(["records", "refused", "batch_tokens"], COUNT),
    sample=thing(**dict.fromkeys(["proteins", "residues", "truncated", "longest"], COUNT)),
    model=TEXT,
    weights_sha256={"type": "string", "pattern": "^[0-9a-f]{64}$"},
    options={"type": "object"},
    device=thing(kind={"enum": ["cuda", "cpu"]}, name=TEXT),
    versions={"type": "object", "additionalProperties": TEXT, "required": ["torch", "numpy"]},
    dtype_here=TEXT,
    reference=thing(dtype={"const": "fp32"}, backend=TEXT, matmul_precision={"const": "highest"}),
    dtypes=several(
        thing(
            dtype={"enum": ["bf16", "fp16"]},
            backend=TEXT,
            records_not_finite=COUNT,
            columns=several(thing(column=TEXT, num_vectors=COUNT, figures=FIGURES, bounds=FIGURES)),
            worst=several(WORST),
            beyond=several(TEXT),
            within=FLAG,
            remedy=some("string"),
        )
    ),
)


@pytest.fixture(autouse=True)
def a_cpu_with_bf16(monkeypatch):
    """Audit bf16 on any CPU: torch computes it everywhere, only not fast."""
    real = devices.cpu()
    monkeypatch.setattr(devices, "cpu", lambda: real._replace(has_bf16=True))


@pytest.fixture(autouse=True)
def spool_folder(tmp_path_factory, monkeypatch):
    """A folder for temporary files of each test's own, empty again at the end."""
    folder = tmp_path_factory.mktemp("spool")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())


@pytest.fixture
def audit(capsys):
    """Return a function that runs the verb; it returns (the page, the JSON, stderr)."""

    def run(*arguments, status=0):
        fixed = ("--device", "cpu", "--json")
        done = main(["audit", *map(str, arguments), *fixed])
        out, err = capsys.readouterr()
        assert done == status, out + err
        if status == 2:
            assert out == ""
            return "", {}, err
        answer = json.loads(out, parse_constant=pytest.fail)  # NaN is no JSON
        jsonschema.validate(answer, SCHEMA)
        assert answer["within"] == (status == 0)
        return "\n".join(report.Audit.model_validate(answer).lines()), answer, err

    return run


def refusal(capsys, *words):
    """Return the one sentence that the verb ends with."""
    assert main(["audit", *words]) == 2
    out, err = capsys.readouterr()
    (sentence,) = [line for line in err.splitlines() if "error:" in line]
    assert out == "" and "Traceback" not in err
    return sentence


def columns_of(told):
    """Return the figures of a dtype by column."""
    return {column["column"]: column["figures"] for column in told["columns"]}


def write(folder, sequences, name="in.fa"):
    path = folder / name
    path.write_text(fasta(sequences.items()))
    return path


def config_of(folder, told):
    (folder / "my.yaml").write_text(yaml.safe_dump(told))
    return folder / "my.yaml"


def joined(page):
    """Return the page without its line breaks, which depend on the length of paths."""
    return " ".join(page.split())


def some_proteins(count, longest=300):
    return {f"p{index}": text for index, text in enumerate(demo_proteins(count, longest))}


def of_cells(column):
    """Return a column of vectors, or of matrices of them, as a list of NumPy arrays."""
    matrices = pa.types.is_list(column.type)
    rows = [cell.values.flatten() if matrices else cell.values for cell in column]
    return [row.to_numpy().reshape(-1, 320) if matrices else row.to_numpy() for row in rows]


def computed(sequences, dtype, **options):
    """Return {column: list of arrays} in the order of sha256, computed as the contract says."""
    found = weights.weights_of(weights.convert("mill_t6_8M"))
    chosen = esm2.Options(dtype=dtype, per_residue=True, output_dtype="float32", **options)
    model = esm2.load(chosen, [devices.cpu()], found)
    payloads = [record.payload for record in draw(records(sequences), 10**6).proteins]
    columns = {}
    for rows in make_batches([esm2.cost(p, chosen) for p in payloads], chosen.batch_tokens):
        batch = [payloads[row] for row in rows]
        values = compute.values_of(esm2, model, batch, chosen.batch_tokens)
        for name in values.schema.names:
            told = columns.setdefault(name, [None] * len(payloads))
            for row, cell in zip(rows, of_cells(values.column(name)), strict=True):
                told[row] = cell
    return columns


def records(sequences):
    return [protein(id, "", text, "in.fa", 1) for id, text in sequences.items()]


def test_figures_equal_an_independent_computation(audit, tmp_path):
    sequences = some_proteins(26, 120)
    options = {"layers": [3, 6], "pool": ["mean", "bos"], "batch_tokens": 1500}
    options |= {"long": "chunk", "max_residues": 90, "chunk_overlap": 20}
    told = {"inputs": str(write(tmp_path, sequences)), "options": options}
    _, answer, _ = audit("--config", config_of(tmp_path, told))
    expected, found = (computed(sequences, dtype, **options) for dtype in ("fp32", "bf16"))
    ids = [one.id for one in draw(records(sequences), len(sequences)).proteins]
    (told,) = answer["dtypes"]
    assert (told["dtype"], answer["options"]["dtype"]) == ("bf16", "bf16")
    figures, worst = columns_of(told), {one["id"]: one for one in told["worst"]}
    kinds = ("bos", "mean", "residues")
    assert set(figures) == {f"{kind}_layer_{layer}" for kind in kinds for layer in (3, 6)}
    lowest = {}
    for name, told_of in figures.items():
        pairs = list(zip(found[name], expected[name], strict=True))
        each = [cosines(np.atleast_2d(one), np.atleast_2d(other)) for one, other in pairs]
        l2 = [relative_l2(one, other) for one, other in pairs]
        (column,) = (one for one in told["columns"] if one["column"] == name)
        assert column["num_vectors"] == sum(map(len, each))
        assert told_of["cosine_mean"] == pytest.approx(np.concatenate(each).mean(), abs=1e-9)
        assert told_of["cosine_min"] == pytest.approx(min(map(min, each)), abs=1e-9)
        assert told_of["relative_l2_mean"] == pytest.approx(np.mean(l2), rel=1e-5)
        assert told_of["relative_l2_max"] == pytest.approx(max(l2), rel=1e-5)
        for id, cosine, distance in zip(ids, map(min, each), l2, strict=True):
            lowest[id] = min(lowest.get(id, (2.0, "", 0.0)), (cosine, name, distance))
    assert figures["residues_layer_6"] and min(lowest.values())[0] < 1, "bf16 is not fp32"
    farthest = sorted(lowest, key=lowest.get)[: report.NUM_WORST]
    assert list(worst) == farthest
    for id in farthest:
        cosine, name, distance = lowest[id]
        assert worst[id]["cosine_min"] == pytest.approx(cosine, abs=1e-9)
        assert worst[id]["relative_l2"] == pytest.approx(distance, rel=1e-5)
        assert worst[id]["column"] == name
        assert worst[id]["place"].endswith(f"in.fa:{2 * int(id[1:]) + 1}")


def test_a_sample_has_the_longest_and_does_not_follow_the_order_of_the_input():
    sequences = some_proteins(300, 1000)
    given = records(sequences | {"again": sequences["p7"]})
    sample = draw(given, 40)
    shuffled = given.copy()
    random.Random(1).shuffle(shuffled)
    assert draw(shuffled, 40).proteins == sample.proteins
    assert len(sample.proteins) == 40
    by_length = sorted(sequences.values(), key=len)
    drawn = {one.payload.decode() for one in sample.proteins}
    assert drawn >= set(by_length[-4:])
    # The others are the lowest by hash: those of a smaller sample are among those of a larger one.
    few, many = ({p.sha256 for p in draw(given, size).proteins} for size in (20, 80))
    assert few <= many
    for size in (300, 301, 1000):
        everything = draw(shuffled, size)
        assert len(everything.proteins) == 300
        assert {one.id for one in everything.proteins if one.id == "again"} == {"again"}
    (only,) = draw(given, 1).proteins
    assert len(only.payload) == len(by_length[-1])


def test_the_answer_is_the_same_for_a_shuffled_file(audit, tmp_path):
    sequences = some_proteins(12, 200)
    shuffled = list(sequences.items())
    random.Random(2).shuffle(shuffled)
    first = audit(write(tmp_path, sequences), "--sample", 4)[1]
    second = audit(write(tmp_path, dict(shuffled)), "--sample", 4)[1]
    text = json.dumps(first), json.dumps(second)
    without_lines = [re.sub(r"in.fa:\d+", "", one) for one in text]
    assert without_lines[0] == without_lines[1]


def rounded(found, folder, bits):
    """Return the weights with `bits` bits of mantissa."""
    state = {}
    for name, tensor in load_file(found.path).items():
        fraction, exponent = torch.frexp(tensor.float())
        coarse = torch.ldexp(torch.round(fraction * 2**bits) / 2**bits, exponent)
        state[name] = coarse.to(tensor.dtype) if tensor.ndim > 1 else tensor
    path = folder / "coarse.safetensors"
    save_file(state, path)
    return found._replace(path=path)


def test_an_engine_that_rounds_too_much_is_found(audit, tmp_path, monkeypatch):
    real = esm2.load

    def load(options, devices, found):
        is_bad = options.dtype == "bf16"
        return real(options, devices, rounded(found, tmp_path, 1) if is_bad else found)

    monkeypatch.setattr(esm2, "load", load)
    path = write(tmp_path, some_proteins(6))
    page, answer, _ = audit(path, "--dtype", "bf16", "--dtype", "fp16", status=1)
    bf16, fp16 = answer["dtypes"]
    assert (bf16["within"], fp16["within"], fp16["remedy"]) == (False, True, None)
    assert bf16["remedy"] == "set dtype: fp32"  # fp16 is slower than fp32 on a CPU
    assert re.search(r"^bf16: outside the bounds; set dtype: fp32\.$", page, re.MULTILINE)
    assert "residues_layer_6: the relative L2 is" in page and "fp16: within the bounds." in page


@pytest.fixture
def spoil(monkeypatch):
    """Return a function that lets another one change the values of batches in some dtypes."""
    real = compute.values_of

    def install(dtypes, change):
        def values_of(workload, model, payloads, batch_cost):
            values = real(workload, model, payloads, batch_cost)
            return change(values, payloads) if model.options.dtype in dtypes else values

        monkeypatch.setattr(compute, "values_of", values_of)

    return install


def scaled_at(payload, residue, factor, column="residues_layer_6"):
    """Return a change that multiplies a residue's vector, every other number of it."""

    def change(values, payloads):
        if payload not in payloads:
            return values
        row, place = payloads.index(payload), values.schema.get_field_index(column)
        cells = values.column(place).to_pylist()
        cells[row][residue][::2] = [factor * number for number in cells[row][residue][::2]]
        return values.set_column(place, column, pa.array(cells, values.column(place).type))

    return change


def test_one_bad_residue_is_named(audit, tmp_path, spoil, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(Path(), {"a": UBIQUITIN, "worst one": INSULIN_A, "b": UBIQUITIN[::-1]})
    spoil(["bf16"], scaled_at(INSULIN_A.encode(), 4, -1))
    page, answer, _ = audit(path, status=1)
    first, *others = answer["dtypes"][0]["worst"]
    assert (first["id"], first["place"]) == ("worst", f"{path}:3") and len(others) == 2
    assert first["cosine_min"] < 0.99 < min(one["cosine_min"] for one in others)
    assert "residues_layer_6: the cosine falls to" in page and ", below 0.99." in page
    assert f"worst {path}:3 residues_layer_6" in joined(page)


def test_values_that_are_not_finite_are_counted_and_never_within(audit, tmp_path, spoil):
    path = write(tmp_path, {"a": UBIQUITIN, "b": INSULIN_A, "c": UBIQUITIN[::-1]})
    spoil(["bf16"], scaled_at(INSULIN_A.encode(), 4, float("nan")))
    page, answer, _ = audit(path, status=1)
    (told,) = answer["dtypes"]
    assert (told["records_not_finite"], told["worst"][0]["id"]) == (1, "b")
    assert told["worst"][0]["cosine_min"] is told["worst"][0]["relative_l2"] is None
    assert told["columns"][1]["num_vectors"] == 2 * len(UBIQUITIN)
    assert told["columns"][0]["num_vectors"] == 2, "a record with a bad value counts nowhere"
    assert columns_of(told)["residues_layer_6"]["cosine_min"] > 0.99
    assert "1 record with values not finite: a run would fail it" in page


def test_when_nothing_is_finite_there_are_no_figures(audit, tmp_path, spoil):
    spoil(["bf16"], scaled_at(INSULIN_A.encode(), 4, float("nan")))
    page, answer, _ = audit(write(tmp_path, {"b": INSULIN_A}), status=1)
    for figures in columns_of(answer["dtypes"][0]).values():
        assert set(figures.values()) == {None}
    assert "1 record with values not finite" in page


def test_a_reference_that_is_not_finite_is_refused(audit, tmp_path, spoil):
    path = write(tmp_path, {"a": UBIQUITIN, "b": INSULIN_A})
    spoil(["fp32"], scaled_at(INSULIN_A.encode(), 4, float("nan")))
    said = audit(path, status=2)[2]
    assert re.search(rf"{path}:3: b .21 residues. cannot be computed in fp32 on .*finite", said)
    assert "check the weights of mill_t6_8M" in said


@pytest.mark.parametrize("at", ["load", "batch", "filled", "one"])
def test_out_of_memory_is_halved_or_a_sentence(audit, tmp_path, monkeypatch, at):
    path = write(tmp_path, {"a": UBIQUITIN, "b": INSULIN_A, "c": UBIQUITIN[::-1]})
    usual = audit(path)[1] if at in ("batch", "filled") else None
    real = compute.values_of
    most = {"batch": 1, "filled": 3, "one": 0, "load": 3}[at]
    room = 100 if at == "filled" else 10**9  # as on a GPU, where a batch is filled up to its budget

    def values_of(workload, model, payloads, batch_cost):
        if (len(payloads) > most or batch_cost > room) and model.options.dtype == "fp32":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(workload, model, payloads, batch_cost)

    def load(*given):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(compute, "values_of", values_of)
    if at == "load":
        monkeypatch.setattr(esm2, "load", load)
    if at in ("batch", "filled"):
        _, answer, said = audit(path)
        assert answer["dtypes"] == usual["dtypes"]
        assert "did not fit; continuing with" in said
        return
    said = audit(path, status=2)[2]
    sentence = {
        "one": rf"{path}:1: a .76 residues. cannot be computed in fp32 on .*memory.*; set long:",
        "load": r"mill_t6_8M in fp32 takes about \d+ MB, and .* has not so much",
    }
    assert re.search(sentence[at], said)


def test_a_machine_that_is_too_small_is_told_before_the_work(audit, tmp_path, monkeypatch):
    path = write(tmp_path, {"a": UBIQUITIN})
    with monkeypatch.context() as patch:
        patch.setattr(measure, "free_memory_mb", lambda: 10)
        patch.setattr(esm2, "load", pytest.fail)
        said = audit(path, status=2)[2]
        assert re.search(r"take about \d{3} MB of memory, and 10 MB are free; lower", said)
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert "set TMPDIR to another folder" in audit(path, status=2)[2]


def test_many_layers_of_a_wide_model_make_smaller_batches():
    found = weights.Weights("wide", Path("wide"), "", {"embed_dim": "2560", "num_layers": "36"})
    ampere = Device("cuda", "GPU-1", "NVIDIA A100", has_bf16=True, num_multiprocessors=132)
    for layers, tokens in (((36,), 16_896), (tuple(range(37)), 708)):
        assert measure.Task(esm2, esm2.Options(layers=layers), (), ampere, found).budget == tokens


@pytest.mark.parametrize(
    ("kind", "has_bf16", "own", "usual"),
    [
        ("cuda", True, "auto", ["bf16", "fp16"]),
        ("cuda", False, "auto", ["fp16"]),
        ("cpu", True, "fp32", ["bf16"]),
        ("cpu", False, "fp16", ["fp16"]),
        ("cpu", False, "auto", []),
    ],
)
def test_dtypes_that_are_audited_unasked(kind, has_bf16, own, usual):
    assert command._default_dtypes(Device(kind, "", "", has_bf16), own) == usual


@pytest.mark.parametrize(
    ("dtype", "within", "kind", "other"),
    [
        ("bf16", {"bf16": False, "fp16": True}, "cuda", "fp16, which is within the bounds here"),
        ("bf16", {"bf16": False, "fp16": True}, "cpu", "fp32"),
        ("bf16", {"bf16": False}, "cuda", "fp32"),
        ("fp16", {"bf16": True, "fp16": False}, "cpu", "bf16, which is within the bounds here"),
        ("fp16", {"bf16": False, "fp16": False}, "cuda", "fp32"),
    ],
)
def test_the_remedy_is_a_dtype_that_was_found_well(dtype, within, kind, other):
    assert report.remedy(dtype, within, kind) == f"set dtype: {other}"


def test_a_cpu_without_bf16_has_nothing_to_audit(audit, tmp_path, monkeypatch):
    old = Device("cpu", "cpu", "an old one", has_bf16=False)
    monkeypatch.setattr(devices, "cpu", lambda: old)
    path = write(tmp_path, {"a": UBIQUITIN, "b": INSULIN_A})
    assert "an old one has no bf16, so a run computes in fp32" in audit(path, status=2)[2]
    assert "options.dtype: an old one has no bf16" in audit(path, "--dtype", "bf16", status=2)[2]
    assert audit(path, "--dtype", "fp16")[1]["dtypes"][0]["dtype"] == "fp16"


def test_the_page(audit, tmp_path, capsys):
    path = write(tmp_path, {"a": UBIQUITIN, "b": "MKV*", "c": INSULIN_A, "d": "MK*L", "e": "MKV"})
    words = (path, "--layers", "0", "-1", "--quiet")
    page, answer, said = audit(*words)
    assert said == ""
    assert main(["audit", *map(str, words), "--device", "cpu"]) == 0
    assert capsys.readouterr().out == page + "\n"
    assert max(map(len, page.splitlines())) <= 100
    assert "in.fa: 5 records, 1 refused" in page
    assert "3 proteins, 100 residues; the longest has 76" in page
    rows = [line.split() for line in page.splitlines()]
    assert ["bf16", "mean_layer_0", "1.000000", "1.000000", "0.0e+00", "0.0e+00"] in rows
    at = next(number for number, row in enumerate(rows) if row[1:2] == ["residues_layer_6"])
    assert rows[at + 1] == ["bound", "≥0.9995", "≥0.99", "≤0.02"]
    heads, *others = page[page.index("  dtype") : page.index("Farthest")].splitlines()[:-1]
    ends = {match.end() for match in re.finditer(r"\b(mean|min|max)\b", heads)}
    for row in others:  # numbers stand under the ends of their headings
        assert {match.end() for match in re.finditer(r"(?<= )[≥≤]?\d\S+", row)} <= ends
    assert page.endswith("\nbf16: within the bounds.")
    for name, version in answer["versions"].items():
        assert f"{name} {version}" in joined(page)
    assert answer["refused"] == 1 and answer["sample"]["proteins"] == 3


@pytest.mark.parametrize("has_samples", [False, True])
def test_a_single_protein_is_audited(audit, tmp_path, has_samples):
    path = write(tmp_path, {"a": UBIQUITIN, "b": UBIQUITIN.lower()})
    asked = [path]
    if has_samples:
        (tmp_path / "s.tsv").write_text(f"sample\tfile\none\t{path}\nother\t{path}\n")
        told = {"samples": str(tmp_path / "s.tsv"), "workload": "esm2"}
        asked = ["--config", config_of(tmp_path, told), "--model", "mill_t6_8M"]
    page, answer, _ = audit(*asked)
    assert answer["inputs"] == [str(path)]
    assert "1 protein, 76 residues;" in page and answer["records"] == 2
    assert columns_of(answer["dtypes"][0])["mean_layer_6"]["cosine_min"] > 0.9999


@pytest.mark.parametrize(
    ("kind", "is_one_token", "bounds"),
    [
        ("per_residue", False, {"cosine_mean": 0.9995, "cosine_min": 0.99, "l2": (2e-2, 5e-3)}),
        ("pooled", False, {"cosine_mean": None, "cosine_min": 0.9999, "l2": (None, None)}),
        ("pooled", True, {"cosine_mean": None, "cosine_min": 0.99, "l2": (None, None)}),
    ],
)
def test_the_bounds_of_each_kind_of_column(kind, is_one_token, bounds):
    for dtype, l2 in zip(("bf16", "fp16"), bounds["l2"], strict=True):
        told = report.bounds_of(kind, is_one_token, dtype)
        assert (told.cosine_mean, told.cosine_min) == (bounds["cosine_mean"], bounds["cosine_min"])
        assert (told.relative_l2_mean, told.relative_l2_max) == (l2, None)


def test_long_ones_are_told(audit, tmp_path):
    path = write(tmp_path, {"long": UBIQUITIN * 15, "b": GENE, "c": GENE[::-1]})
    page, answer, _ = audit(path)
    assert "the longest has 1,140; 1 truncated" in page
    assert (answer["sample"]["longest"], answer["sample"]["truncated"]) == (1140, 1)
    config = config_of(tmp_path, {"inputs": str(path), "options": {"long": "full"}})
    page, answer, _ = audit("--config", config, "--sample", 1)
    assert answer["sample"]["residues"] == 1140 and "truncated" not in page


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--sample", "0", "in.fa"], "--sample 0: give the number"),
        ([], "there is no input; name a FASTA file"),
        (["gone.fa"], "gone.fa: this file does not exist"),
        (["in.fa", "--layers", "7"], "no layer 7 in a model of 6"),
        (["in.fa", "--model", "esm3"], "options.model: there is no model 'esm3'"),
        (["in.fa", "--model", "gone.pt"], "gone.pt"),
        (["in.fa", "--device", "cuda"], "no NVIDIA GPU is visible"),
        (["--config", "gone.yaml"], "gone.yaml: this config cannot be read"),
        (["gone.yaml"], "gone.yaml: this config cannot be read"),
        (["."], ".: this is a folder; name the config of the run, as in my.yaml."),
        (["--config", "bad.yaml"], "bad.yaml:3: options.layer: "),
        (["--config", "other.yaml"], "other.yaml: workload composition has no dtype"),
        (["none.fa"], "all 2 records were refused, 2 because: empty sequence (first: none.fa:1)"),
    ],
)
def test_user_errors_are_one_sentence(arguments, part, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("in.fa").write_text(GOOD)
    Path("none.fa").write_text(">a\n>b\n*\n")
    Path("bad.yaml").write_text("inputs: in.fa\noptions:\n  layer: 6\n")
    Path("other.yaml").write_text("inputs: in.fa\nworkload: composition\n")
    assert part in refusal(capsys, *arguments)


@pytest.mark.parametrize("wrong", [["--dtype", "fp32"], ["--layers", "last"], ["--sample", "x"]])
def test_a_wrong_option_is_refused(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["audit", "in.fa", *wrong])
    assert ended.value.code == 2 and wrong[0] in capsys.readouterr().err


def first_of(outcome):
    return next(case for case in BROKEN if case.outcome == outcome and not case.unprivileged)


def test_broken_inputs_end_as_in_a_plan(tmp_path, capsys):
    """One of each outcome: test_broken_inputs.py has them all, and the reader is the same."""
    for outcome in ("refused", "note", "ok"):
        case, folder = first_of(outcome), tmp_path / outcome
        folder.mkdir()
        sample = draw(esm2.records([case.make(folder)], esm2.Options()), 2)
        assert (sample.refused.total() > 0) == (outcome == "refused")
        assert sample.proteins or sample.refused.total() == sample.records
        assert outcome != "refused" or any(case.fragment in text for text in sample.refused)
    case = first_of("error")
    assert case.fragment in refusal(capsys, str(case.make(tmp_path)))


@pytest.mark.gpu
def test_a_gpu_is_audited_in_both_dtypes(tmp_path, capsys):
    path = write(tmp_path, some_proteins(100, 1000))
    assert main(["audit", str(path), "--device", "cuda", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, SCHEMA)
    has_bf16 = torch.cuda.get_device_capability() >= devices.BF16_CAPABILITY
    dtypes = ["bf16", "fp16"] if has_bf16 else ["fp16"]
    assert [found["dtype"] for found in told["dtypes"]] == dtypes
