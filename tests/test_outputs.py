"""Every result is read by the tool that it is for, and export makes it later to the byte."""

import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import anndata
import duckdb
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from conftest import ROOT
from esm2_models import fair_esm_bundled
from mounts import Mount
from programs import Verbs, flip, written
from safetensors import safe_open

import featuremill
from featuremill import __main__
from featuremill.base.errors import IntegrityError, UserError
from featuremill.flow import reruns
from featuremill.merge import gather, provenance
from featuremill.merge.command import merge
from featuremill.merge.export import export, export_of
from featuremill.plan.needs import needs_of_run
from featuremill.store.disk_space import needs_of_outputs
from featuremill.store.formats import (
    ABOUT,
    bytes_of,
    digest_of_result,
    files,
    files_of,
    format_of,
    names,
    refuse_outputs,
    sidecar_of,
)
from featuremill.store.plan import Plan, Settings
from featuremill.store.receipt import Receipt, UsedDevice
from featuremill.store.results import Results
from featuremill.workload.outputs import Target, open_writer

LONG = "word " * 80 + "end"
HEADERS = {
    "sp|P35309|HSP1_PANTR Sperm protamine P1 OS=Pan troglodytes GN=PRM1 PE=2 SV=2": "MKVLAAGIVG",
    "P35309 the same accession once more": "MKVLAAGIVK",
    "sp|P35309|OTHER_NAME and again": "MKVLAAGIVR",
    "UniRef50_Q8WZ42 Cluster: Titin n=1": "GGGSGGG",
    "gi|4504345|ref|NP_000549.1| hemoglobin": "MVLSPADKTNVKAAWGK",
    "plain": "MKTAYIAKQRQISFVKSHFSRQ",
    "with/slash 3'/5' end": "ACDEFGHIK",
    "../../outside": "WWWWWW",
    f"long {LONG}": "PPPP",
    "twin of plain": "MKTAYIAKQRQISFVKSHFSRQ",
    "refused": "MK*LA",
}
IDS = [header.partition(" ")[0] for header in HEADERS if header != "refused"]
ACCESSIONS = {"sp|P35309|HSP1_PANTR": "P35309", "sp|P35309|OTHER_NAME": "P35309"} | {
    "UniRef50_Q8WZ42": "Q8WZ42",
    "gi|4504345|ref|NP_000549.1|": "NP_000549.1",
}
POOLED = ["mean_layer_3", "bos_layer_3", "mean_layer_6", "bos_layer_6"]
OF_ONE_WORKLOAD = {
    *("gene_embeddings", "gene_shifts", "gene_statistics", "perturbations", "rows_jsonl"),
    *("position_scores", "variant_metrics", "variant_scores"),
    *("attention_h5", "contacts_h5", "contacts_tsv"),
}
"""What ESM-2's values cannot fill: test_geneformer.py, test_geneformer_genes.py, test_llm_json.py,
test_scores.py and test_contacts.py have these."""
ALL = [name for name in names() if name not in OF_ONE_WORKLOAD]
OPTIONS = {"model": "mill_t6_8M", "layers": [3, 6], "pool": ["mean", "bos"], "dtype": "fp32"}
OPTIONS |= {"per_residue": True}


ROWS, TEXTS = pa.list_(pa.struct({"variant": pa.string()})), pa.list_(pa.string())
LACKING = {
    **{key: {"contacts": ROWS} for key in ("attention_h5", "contacts_h5")},
    "contacts_tsv": {"attention": ROWS},
    "gene_embeddings": {"genes": pa.string(), "mean_layer_2": pa.list_(pa.float32(), 3)},
    **{key: {"genes": TEXTS} for key in ("gene_shifts", "gene_statistics", "perturbations")},
    **{key: {"variants": ROWS} for key in ("position_scores", "variant_metrics")},
    "rows_jsonl": {"reply": pa.string()},
    "safetensors": {"ids": pa.list_(pa.float32(), 3)},
    "variant_scores": {"positions": ROWS},
}
"""By output, columns of its workload that leave it empty."""


@pytest.mark.parametrize("name", LACKING)
def test_an_output_that_would_be_empty_is_refused_by_plan(name):
    """It calls this with the schema of the values, before anything is computed."""
    with pytest.raises(UserError, match=f"outputs: {name} .*drop it"):
        refuse_outputs([name], pa.schema(LACKING[name]))


@pytest.fixture(scope="module")
def done(tmp_path_factory, environment):
    """Return the verbs of a real run of ESM-2 with every output."""
    folder = tmp_path_factory.mktemp("outputs")
    verbs = Verbs(folder, {**environment, "FEATUREMILL_CACHE": str(folder / "cache")})
    verbs("weights", "mill_t6_8M", "--output", "weights.json")
    written = [(header.replace("NAME and", "NAME\t and"), HEADERS[header]) for header in HEADERS]
    more = ("--weights", "weights.json")
    verbs.finish(written, *ALL, workload="esm2", options=OPTIONS, more=more)
    return verbs


@pytest.fixture
def run(done, tmp_path):
    """Return a copy of that run's folder."""
    shutil.copytree(done.run_folder.root, tmp_path / "run")
    return Results(tmp_path / "run")


@pytest.fixture
def results(done):
    return done.run_folder.root


@pytest.fixture
def table(results):
    return pq.read_table(results / "embeddings.parquet")


def vectors(table, column):
    return np.array(table[column].to_pylist(), np.float32)


def manifest_of(run):
    return json.loads((run.root / "manifest.json").read_text())


def test_the_page_says_of_each_format_what_the_table_does():
    most = {5_000_000: "5 million", 1_000_000: "1 million", 100_000: "100,000", None: ""}
    page = (ROOT / "docs" / "outputs.md").read_text().splitlines()
    for name in names():
        format = format_of(name)
        (row,) = [line for line in page if line.startswith(f"| `{name}` |")]
        assert f"`{format.file}" in row and f"| {format.made_for} |" in row, name
        assert row.endswith(f"{most[format.most_records]} |"), name


def test_the_text_table_has_the_same_numbers_to_the_bit(results, table):
    frame = pd.read_csv(results / "embeddings.tsv", sep="\t", dtype={"id": str})
    numbers = [name for name in frame.columns if name not in ("id", "accession", "length")]
    assert numbers == [f"{name}_{place}" for name in POOLED for place in range(320)]
    for name in ("id", "accession", "length"):
        assert frame[name].tolist() == table[name].to_pylist()
    for name in POOLED:
        found = frame[[f"{name}_{place}" for place in range(320)]].to_numpy(np.float32)
        assert (found == vectors(table, name)).all()
    size = (results / "embeddings.tsv").stat().st_size
    assert size < 1.1 * 3 * 4 * len(table) * len(POOLED) * 320, "plan expects so many bytes"


def test_parquet_has_accession_and_header_for_pandas_polars_and_duckdb(results, table):
    path = str(results / "embeddings.parquet")
    frame, by_polars = pd.read_parquet(path), pl.read_parquet(path)
    by_duckdb = duckdb.sql(f"select * from '{path}'").arrow().read_all()
    for found in (frame["id"].tolist(), by_polars["id"].to_list(), by_duckdb["id"].to_pylist()):
        assert found == IDS
    assert frame["accession"].tolist() == [ACCESSIONS.get(id, id) for id in IDS]
    header = (frame["id"] + " " + frame["description"]).str.strip()
    assert header.tolist() == [header for header in HEADERS if header != "refused"]
    for column in POOLED:
        expected = vectors(table, column)
        assert expected.shape == (10, 320)
        assert (np.stack(frame[column]) == expected).all()
        assert (np.stack(by_polars[column].to_numpy()) == expected).all()
        assert (np.array(by_duckdb[column].to_pylist(), np.float32) == expected).all()
    [(count,)] = duckdb.sql(f"select count(*) from '{path}' where accession = 'P35309'").fetchall()
    assert count == 3
    assert featuremill.load(results).columns[:2].tolist() == ["accession", "description"]


@pytest.mark.parametrize("backed", [None, "r"])
def test_anndata_reads_the_h5ad(results, table, backed):
    found = anndata.read_h5ad(results / "embeddings.h5ad", backed=backed)
    assert found.obs_names.tolist() == IDS
    assert found.obs["accession"].tolist() == [ACCESSIONS.get(id, id) for id in IDS]
    for column in ("description", "length", "sha256"):
        assert found.obs[column].tolist() == table[column].to_pylist()
    assert found.var_names[[0, -1]].tolist() == ["mean_layer_3_0", "mean_layer_3_319"]
    assert (found[:, :].X[:] == vectors(table, "mean_layer_3")).all()
    assert found[["plain"]].to_memory().X.shape == (1, 320)
    assert sorted(found.obsm) == sorted(POOLED[1:])
    for column in POOLED[1:]:
        assert (found.obsm[column][:] == vectors(table, column)).all()
    assert found.uns["featuremill"]["X"] == "mean_layer_3"


def test_the_safetensors_library_reads_tensors_ids_and_metadata(results, table):
    with safe_open(results / "embeddings.safetensors", "pt") as file:
        assert set(file.keys()) == {*POOLED, "ids"}
        for column in POOLED:
            assert (file.get_tensor(column).numpy() == vectors(table, column)).all()
            assert file.get_slice(column).get_shape() == [10, 320]
        assert bytes(file.get_tensor("ids")).decode().splitlines() == IDS
        assert file.metadata()["columns"] == ",".join(POOLED)


def test_one_dataset_an_accession_as_uniprot_has_it(results, table):
    names = {"P35309": "sp|P35309|HSP1_PANTR", "P35309%": "P35309"} | {
        "sp|P35309|OTHER_NAME": "sp|P35309|OTHER_NAME",
        "Q8WZ42": "UniRef50_Q8WZ42",
        "NP_000549.1": "gi|4504345|ref|NP_000549.1|",
        "with%2Fslash": "with/slash",
        "..%2F..%2Foutside": "../../outside",
        **{id: id for id in ("plain", "long", "twin")},
    }
    side_by_side = np.concatenate([vectors(table, column) for column in POOLED], axis=1)
    with h5py.File(results / "per-protein.h5") as pooled:
        assert {name: pooled[name].attrs["original_id"] for name in pooled} == names
        for name, id in names.items():
            assert (pooled[name][:] == side_by_side[IDS.index(id)]).all()
    with h5py.File(results / "per-residue.h5") as residues:
        assert {name: residues[name].attrs["original_id"] for name in residues} == names
        assert residues["P35309"].shape == (2, 10, 320)
        assert residues.attrs["columns"] == "residues_layer_3,residues_layer_6"


def test_each_pt_is_what_fair_esms_script_would_write(results, table):
    folder = results / "fair-esm-pt"
    rows = dict(zip(IDS, table.to_pylist(), strict=True))
    for header, sequence in HEADERS.items():
        id, _, _ = header.partition(" ")
        if id not in ("refused", "../../outside", "long"):
            # Where fair-esm's own tutorial looks: named by the header, a "/" makes folders.
            found = torch.load(folder / f"{header}.pt", weights_only=True)
            check_pt(found, header, len(sequence), rows[id])
    shortened = sorted(folder.glob("*-" + "[0-9a-f]" * 32 + ".pt"))
    labels = [torch.load(path, weights_only=True)["label"] for path in shortened]
    assert sorted(labels) == ["../../outside", f"long {LONG}"]
    assert len(files_of(folder)) == len(IDS)
    assert not [name for name in {path.name for path in results.iterdir()} if "outside" in name]


def test_a_header_may_make_a_folder_that_is_named_like_a_table(tmp_path):
    (tmp_path / "part-1.parquet").mkdir()
    (tmp_path / "part-1.parquet" / "x.pt").write_bytes(b"12345")
    assert bytes_of(tmp_path) == 5
    assert len(digest_of_result(tmp_path)) == 64


def check_pt(found, header, length, row):
    representations = ["mean_representations", "bos_representations", "representations"]
    assert list(found) == ["label", *representations]
    assert found["label"] == header
    for layer in (3, 6):
        assert found["mean_representations"][layer].tolist() == row[f"mean_layer_{layer}"]
        assert found["bos_representations"][layer].tolist() == row[f"bos_layer_{layer}"]
        assert found["representations"][layer].shape == (length, 320)
        assert found["representations"][layer].dtype == torch.float16  # output_dtype


def test_the_numbers_in_a_pt_are_those_of_fair_esms_network(results):
    """By the lines of extract.py that pool: the BOS token apart, the mean over the residues."""
    model = fair_esm_bundled()
    sequence = HEADERS["plain"]
    tokens = torch.tensor([[0, *(model.alphabet.get_idx(letter) for letter in sequence), 2]])
    with torch.no_grad():
        given = model(tokens, repr_layers=[3, 6])["representations"]
    found = torch.load(results / "fair-esm-pt" / "plain.pt", weights_only=True)
    for layer in (3, 6):
        expected = given[layer][0, 1 : len(sequence) + 1]
        pairs = {
            "representations": expected,
            "mean_representations": expected.mean(0),
            "bos_representations": given[layer][0, 0],
        }
        for key, numbers in pairs.items():
            size = numbers.norm()
            assert (found[key][layer].float() - numbers).norm() < 1e-3 * size, (layer, key)


def attributes(path, name):
    """Return what the file itself says about how it was made."""
    if name in ("parquet", "parquet_dataset"):
        return json.loads(pq.read_schema(files_of(path)[0]).metadata[b"featuremill"])
    if name == "fair_esm_pt" or format_of(name).has_sidecar:
        beside = path / "provenance.json" if path.is_dir() else path.parent / sidecar_of(path.name)
        return json.loads(beside.read_text())
    if name == "safetensors":
        with safe_open(path, "np") as file:
            return file.metadata()
    with h5py.File(path) as file:
        if name == "h5ad":
            return {key: value.asstr()[()] for key, value in file["uns/featuremill"].items()}
        return dict(file.attrs)


@pytest.mark.parametrize("name", ALL)
def test_every_file_says_how_it_was_made(done, name):
    plan = json.loads(done.run_folder.plan.read_text())
    found = attributes(done.run_folder.root / files()[name], name)
    expected = {"model_name": "mill_t6_8M", "layers": "3, 6", "pool": "mean, bos", "dtype": "fp32"}
    expected |= {"workload": "esm2", "featuremill_version": featuremill.__version__}
    expected |= {"recipe": plan["recipe"], "weights_sha256": plan["settings"]["weights_sha256"]}
    assert {key: found[key] for key in expected} == expected
    assert json.loads(found["versions"])["torch"] == torch.__version__
    assert json.loads(found["options"])["layers"] == [3, 6]


@pytest.mark.parametrize("name", ALL)
def test_the_estimate_is_near_what_the_file_takes(tmp_path, name):
    """Of records as large as people's, with headers as Swiss-Prot's."""
    count, length, width = 200, 300, 64
    residue = pa.list_(pa.float16(), width)
    values = {"mean_layer_6": pa.list_(pa.float32(), width), "residues_layer_6": pa.list_(residue)}
    values = pa.schema(values)
    numbers = np.random.default_rng(0).standard_normal(count * (length + 1) * width)
    pooled, residues = numbers[: count * width], numbers[count * width :].astype(np.float16)
    edges = np.arange(0, count * length + 1, length, dtype=np.int32)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(residues), width)
    ids = [f"sp|P{number:05d}|NAME{number}_HUMAN" for number in range(count)]
    titles = [f"Protein {id} OS=Homo sapiens OX=9606 PE=1 SV=2" for id in ids]
    digests = pa.array([bytes([number]) * 32 for number in range(count)], pa.binary(32))
    means = pa.FixedSizeListArray.from_arrays(pa.array(pooled.astype(np.float32)), width)
    columns = {"id": ids, "description": titles, "length": [length] * count, "sha256": digests}
    columns |= {"sample": [""] * count, "mean_layer_6": means}
    columns["residues_layer_6"] = pa.ListArray.from_arrays(pa.array(edges), rows)
    block = pa.table(columns)
    path = tmp_path / "result"
    if format_of(name).is_folder:
        path.mkdir()
    else:
        path.touch()
    writer = open_writer(name, Target(path, values, count, {}))
    writer.write(block)
    writer.close()
    [need] = needs_of_outputs([name], values, count, count * length, tmp_path)
    size = sum(-(-file.stat().st_size // 4096) * 4096 for file in files_of(path))
    assert 0.95 * size < need.num_bytes < 1.1 * size
    assert need.num_files == (count if name == "fair_esm_pt" else 0)


def test_small_blocks_make_the_same_files(run, monkeypatch):
    same = ["h5ad", "safetensors", "fair_esm_pt", "per_residue_h5", "npy"]
    before = {name: manifest_of(run)["outputs"][files()[name]] for name in same}
    monkeypatch.setattr(gather, "BLOCK_BYTES", 20_000)
    after = merge(run, same, 0).as_json()["outputs"]
    arrays = [files()[name] for name in same if name != "h5ad"]  # its texts lie block by block
    before = {files()[name]: about for name, about in before.items()}
    assert {file: after[file] for file in arrays} == {file: before[file] for file in arrays}
    again = anndata.read_h5ad(run.root / "embeddings.h5ad")
    assert again.obs_names.tolist() == IDS
    assert (np.load(run.root / "embeddings.npy")[:, :320] == again.X).all()


def test_export_gives_what_merge_would_have_written(run):
    told = manifest_of(run)["outputs"]
    kept = ["npy"]
    merge(run, kept, 0)
    before = (run.root / "manifest.json").stat().st_mtime_ns
    others = [name for name in ALL if name not in kept]
    exported = export(run, others)
    assert set(exported) == {files()[name] for name in others}
    for name in others:
        path = run.root / files()[name]
        told_of = {"bytes": bytes_of(path), "sha256": digest_of_result(path)}
        assert exported[path.name].as_json() == told_of == told[path.name], name
    assert (run.root / "manifest.json").stat().st_mtime_ns == before, "Snakemake sees nothing new"
    assert not (run.store / "merge").exists()


def test_exported_files_are_known_until_the_next_merge_removes_them(run, capsys):
    merge(run, ["parquet"], 0)
    assert __main__.main(["export", str(run.root), "--to", "h5ad", "npy", "--to", "parquet"]) == 0
    assert "embeddings.parquet is there already" in capsys.readouterr().err
    assert isinstance(featuremill.load_matrix(run.root, "bos_layer_6")[1], np.memmap)
    status = ["status", str(run.root), "--json", "--verify"]
    __main__.main(status)
    said = json.loads(capsys.readouterr().out)
    assert set(said["exported"]) == {"embeddings.h5ad", "embeddings.npy"}
    assert set(said["outputs"]) == {"embeddings.parquet"}
    assert not [one for one in said["problems"] if one["code"].startswith("export")]
    with (run.root / "embeddings.h5ad").open("r+b") as file:
        file.seek(5000)
        file.write(b"x")
    (run.root / "embeddings.npy").unlink()
    __main__.main(status)
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert {(one["code"], one["is_in_the_way"]) for one in problems if "export" in one["code"]} == {
        ("export_damaged", False),
        ("export_missing", False),
    }
    assert "--to h5ad" in str(problems) and "--to npy" in str(problems)
    merge(run, ["parquet"], 0)
    left = {path.name for path in run.root.iterdir()}
    assert not left & {"embeddings.npy", "embeddings.npy.json", "exports.json"}
    assert "embeddings.h5ad" in left, "somebody changed it"


def test_exports_of_earlier_results_that_were_put_back_are_none(run, tmp_path, monkeypatch):
    """`load` read them with their exports.json, and Snakemake took them for current."""
    merge(run, ["tsv"], 0)
    export(run, ["parquet", "npy"])
    names = ("embeddings.parquet", "embeddings.npy", "embeddings.npy.json", "exports.json")
    for name in names:
        shutil.copy2(run.root / name, tmp_path)
    merge(run, ["tsv", "h5ad"], 0)
    for name in names:
        shutil.copy2(tmp_path / name, run.root)
    mine = run.root / "embeddings.safetensors"
    mine.write_text("mine")
    assert run.find_exports() == {} and set(run.written()) == {"embeddings.tsv", "embeddings.h5ad"}
    with pytest.raises(UserError, match=r"embeddings.parquet: no such result"):
        featuremill.load(run.root)
    of_run = SimpleNamespace(folder=str(run.root))
    reruns.remove_other_exports(of_run)
    assert not [name for name in names[:2] if (run.root / name).exists()] and mine.exists()
    monkeypatch.setattr("sys.argv", ["snakemake", str(mine)])
    reruns.remove_other_exports(of_run)
    assert not mine.exists()
    assert mine.with_name("embeddings.yours-1.safetensors").read_text() == "mine"
    export(run, ["npy", "safetensors"])
    reruns.remove_other_exports(of_run)
    assert mine.exists() and {*run.find_exports()} == {mine.name, "embeddings.npy"}
    earlier = json.loads(run.exports.read_text())
    for entry in earlier.values():
        del entry["results"]  # as before it was written
    run.exports.write_text(json.dumps(earlier))
    assert {*run.find_exports()} == {mine.name, "embeddings.npy"}


def test_an_export_elsewhere_overwrites_nothing(run, tmp_path):
    export(run, ["safetensors", "npy"], tmp_path / "new" / "place")
    found = {path.name for path in (tmp_path / "new" / "place").glob("[!.]*")}
    assert found == {"embeddings.safetensors", "embeddings.npy", "embeddings.npy.json"}
    assert not (run.root / "exports.json").exists()
    for name in ("embeddings.npy", "embeddings.npy.json"):
        with pytest.raises(UserError, match=rf"{name}: it exists already"):
            export(run, ["npy"], tmp_path / "new" / "place")
        (tmp_path / "new" / "place" / name).unlink()
    part = next((run.root / "embeddings").glob("*.parquet"))
    table = pq.read_table(part).replace_schema_metadata(None)
    pq.write_table(table, part)
    with pytest.raises(UserError, match="featuremill did not write this table"):
        export_of(run, ["npy"], tmp_path / "few", table["id"].to_pylist()[:1])


def test_what_cannot_be_exported_is_said(run):
    merge(run, ["npy"], 0)
    (run.root / "embeddings.npy").unlink()
    with pytest.raises(UserError, match=r"embeddings\.npy: it belongs to the results, and is gone"):
        export(run, ["npy"])
    plan = run.read_plan()
    [shard] = plan.shards
    part = run.part(plan.recipe, shard.shard)
    flip(part)
    with pytest.raises(IntegrityError, match=r"status .* --verify prints what to do"):
        export(run, ["h5ad"])
    assert part.exists(), "export only looks"
    part.unlink()
    with pytest.raises(UserError, match=r"there is nothing left to make other formats of"):
        export(run, ["h5ad"])
    (run.root / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"no finished results of plan\.json yet"):
        export(run, ["h5ad"])


def test_an_impossible_format_is_refused_with_those_beside_it(verbs):
    verbs.finish([("a", "MKV")], "parquet")
    words = ("export", verbs.run_folder.root, "--to", "npy", "per_residue_h5", "h5ad")
    assert "per_residue_h5 needs" in verbs(*words, status=2)
    left = {path.name for path in verbs.run_folder.root.iterdir()}
    assert not left & {"embeddings.npy", "embeddings.h5ad", "per-residue.h5"}


def test_formats_are_named_for_who_types_others(verbs):
    """And the folder behind --to, which argparse would take for one."""
    folder = verbs.run_folder.root
    for typed, meant in (("csv", "tsv"), (".H5", "per_protein_h5"), ("parkuet", "parquet")):
        assert f"you may mean `{meant}`." in verbs("export", folder, "--to", typed, status=2)
    verbs.run_folder.root.mkdir(parents=True, exist_ok=True)
    said = verbs("export", folder, "--to", "npy", folder, status=2)
    assert f"{folder} is a folder and no format; the run's folder comes first" in said


def test_commands_that_take_a_folder_take_its_config(verbs, tmp_path):
    verbs.extract(verbs.plan([("a", "MKV")]))
    config = {"run": "test", "inputs": "in.fa", "workload": "composition", "outputs": "parquet"}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    verbs("merge", "my.yaml", "--outputs", "parquet")
    verbs("export", "my.yaml", "--to", "npy")
    assert (verbs.run_folder.root / "embeddings.npy").exists()
    sets = {name: {"workload": "composition", "outputs": "parquet"} for name in ("a", "b")}
    two = {"run": "two", "inputs": "in.fa", "features": sets}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(two))
    for name in sets:
        (tmp_path / "results" / "two" / name).mkdir(parents=True)
        (tmp_path / "results" / "two" / name / "plan.json").touch()
    for typed in ("two.yaml", "results/two"):
        said = verbs("export", typed, "--to", "npy", status=2)
        names = "results/two/a, results/two/b"
        assert f"{typed}: it has 2 sets of features; name one of their folders: {names}." in said
    assert "none.yaml: there is no such config" in verbs("merge", "none.yaml", status=2)
    said = verbs("estimate", "results/test", status=2)
    assert "results/test: this is a folder; name the config" in said


def test_a_workload_without_layers_is_told_before_anything_is_computed(verbs):
    config = {"run": "test", "inputs": ["in.fa"], "workload": "composition", "device": "cpu"}
    config["outputs"] = ["fair_esm_pt"]
    (verbs.folder / "in.fa").write_text(">a\nMKV\n")
    words = ("plan", verbs.run_folder.root, "--config", written(config))
    assert "outputs: fair_esm_pt holds columns such as mean_layer_6" in verbs(*words, status=2)


def test_results_without_a_record_are_read_too(tmp_path, table):
    """As when every record failed."""
    settings = Settings(workload="w", version="1", options={}, weights_sha256=None)
    told = {"workload": "w", "workload_version": "1", "recipe": "r", "settings": settings}
    about = provenance.provenance_of(Plan.model_construct(**told), [])
    values = table.select(POOLED).schema.remove_metadata()
    for name in ("h5ad", "safetensors"):
        (tmp_path / name).touch()
        open_writer(name, Target(tmp_path / name, values, 0, about)).close()
    assert anndata.read_h5ad(tmp_path / "h5ad").shape == (0, 320)
    with safe_open(tmp_path / "safetensors", "np") as file:
        assert file.get_tensor("mean_layer_6").shape == (0, 320)


def test_a_part_that_was_only_finished_is_of_no_other_version():
    """As when a job ended between its last batch and its receipt: torch is not loaded again."""
    devices = [UsedDevice(kind="cpu", uuid="cpu", name="CPU")]
    first, second, other = (
        Receipt.model_construct(devices=devices, versions=versions)
        for versions in ({"torch": "2.9"}, {}, {"torch": "2.8"})
    )
    assert provenance.warnings_of([first, second]) == []
    said = ["parts were computed with different torch: 2.8, 2.9."]
    assert provenance.warnings_of([first, other]) == said


def test_a_column_never_takes_the_place_of_the_ids(tmp_path):
    values = pa.schema({"ids": pa.list_(pa.int32(), 2)})
    with pytest.raises(UserError, match="a tensor 'ids' of its own"):
        open_writer("safetensors", Target(tmp_path / "x", values, 1, {}))


class Disk:
    """A small file system of one's own with a plan to make in it."""

    def __init__(self, tmp_path, environment, options, outputs="parquet npy", **config):
        self.mount = Mount(tmp_path / "disk", options)
        self.environment = environment
        letters = "ACDEFGHIKLMNPQRS"
        sequences = ("".join(letters[int(digit, 16)] for digit in f"{n:06x}") for n in range(6_000))
        (tmp_path / "in.fa").write_text("".join(f">p{s}\n{s}\n" for s in sequences))
        config = {"workload": "composition", "shards": {"cost": 100_000}, **config}
        config |= {"run": "test", "inputs": [str(tmp_path / "in.fa")], "device": "cpu"}
        config["outputs"] = outputs.split()
        self.words = ("plan", "run", "--config", written(config))
        self.seen = Results(self.mount.seen(tmp_path / "disk") / "run")

    def __call__(self, *words, **variables):
        command = self.mount.command(sys.executable, "-m", "featuremill", *words)
        environment = self.environment | variables
        return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_disk_that_cannot_hold_the_run_is_refused_before_anything_is_computed(
    tmp_path, environment
):
    disk = Disk(tmp_path, environment, "6m", "parquet npy per_protein_h5 h5ad")
    try:
        refused = disk(*disk.words)
        assert refused.returncode == 2, refused.stderr
        for words in ("it needs about", "store/", "embeddings.parquet", "embeddings.npy", "free"):
            assert words in refused.stderr
        assert "FEATUREMILL_WITHOUT_ROOM=1 continues all the same" in refused.stderr
        assert disk(*disk.words, FEATUREMILL_WITHOUT_ROOM="1").returncode == 0
    finally:
        disk.mount.close()


def test_parts_that_are_computed_or_begun_are_paid_for(run, table):
    plan = run.read_plan()
    values = table.drop_columns(list(ABOUT)).schema
    [shard] = plan.shards
    part = run.part(plan.recipe, shard.shard)
    assert needs_of_run(run, plan, values, [], "input")[0].num_bytes == 0
    size = part.stat().st_size
    part.unlink()
    whole = needs_of_run(run, plan, values, [], "input")[0].num_bytes
    assert 0.85 * whole < size < 1.2 * whole  # compression takes a tenth of them
    run.journal(plan.recipe, shard.shard).write_bytes(bytes(10_000))
    assert needs_of_run(run, plan, values, [], "input")[0].num_bytes == whole - 10_000
    # So are results that the new ones take the place of.
    outputs = ["npy", "fair_esm_pt"]
    _, npy, tensors, _ = needs_of_run(run, plan, values, outputs, "input")
    assert (npy.num_bytes, tensors.num_files) == (0, 0)
    (run.root / "embeddings.npy").unlink()
    next(run.root.glob("fair-esm-pt/*.pt")).unlink()
    _, npy, tensors, _ = needs_of_run(run, plan, values, outputs, "input")
    assert (npy.num_bytes, tensors.num_files) == (table.num_rows * 4 * 320 * 4, 1)


def snippets(language):
    """Return the snippets for tools in a language; tests/test_documents.py types the whole page."""
    page = (ROOT / "docs" / "outputs.md").read_text("utf-8").partition("## Vectors per")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.fixture
def my_run(run, tmp_path, monkeypatch):
    """Stand where the page's paths lead to a run."""
    (tmp_path / "results").mkdir()
    run.root.rename(tmp_path / "results" / "demo")
    monkeypatch.chdir(tmp_path)
    return Results(tmp_path / "results" / "demo")


@pytest.mark.parametrize("snippet", snippets("python"), ids=lambda text: text.split()[1])
def test_each_snippet_of_the_page_runs_as_it_stands(my_run, table, snippet):
    assert len([line for line in snippet.splitlines() if line]) <= (10 if "h5py" in snippet else 5)
    found = {}
    exec(snippet, found)
    expected = vectors(table, "mean_layer_6")
    if "ids" in found:
        assert sorted(found["ids"]) == sorted(IDS)
    if "X" in found:
        X = np.array([row.tolist() for row in found["X"]], np.float32)
        if "h5py" in found:
            X = X[[found["ids"].index(id) for id in IDS]][:, 640:960]
        assert ((vectors(table, "mean_layer_3") if "anndata" in found else expected) == X).all()
    elif "ours" in found:
        assert found["ours"]["label"].tolist() == ["sperm"] * 3
    elif "several" in found:
        names = [f"{pool}_layer_{layer}" for layer in (3, 6) for pool in ("mean", "bos")]
        assert [(name, array.shape) for name, array in found["several"].items()] == [
            (name, (2, 320)) for name in names
        ]
        assert [array.shape for array in found["residues"]] == [(10, 320)] * 2
    elif "rows" in found:
        assert {row[0] for row in found["rows"]} == {id for id in IDS if "P35309" in id}
    else:
        got = found["vectors"]
        assert got.keys() == set(HEADERS) - {"refused"}
        for header, vector in got.items():
            assert (vector.numpy() == expected[IDS.index(header.partition(" ")[0])]).all()


def test_the_pages_protein_is_in_the_demo():
    demo = (ROOT / "config" / "demo.fasta").read_text("utf-8")
    assert f">{next(iter(HEADERS))}\n" in demo
    assert {*re.findall(r"[OPQ][0-9][A-Z0-9]{3}[0-9]", "".join(snippets("python")))} == {"P35309"}


def test_the_pages_command_runs(my_run):
    merge(my_run, ["parquet"], 0)
    for line in "".join(snippets("bash")).splitlines():
        program, *words = line.split()
        assert program == "featuremill" and __main__.main(words) == 0
    assert (my_run.root / "embeddings.h5ad").exists()
