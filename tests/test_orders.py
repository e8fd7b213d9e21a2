"""Both orders of results hold the same, of each built-in workload and in each built-in output."""

import runpy
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.dataset as ds
import pytest
import yaml
from esm2_models import ROOT, demo_proteins
from programs import Desk, fasta

from featuremill import config
from featuremill.base import entry_points
from featuremill.base.errors import UserError
from featuremill.lease.devices import cpu
from featuremill.merge.command import merge
from featuremill.merge.export import export
from featuremill.store import formats
from featuremill.store.results import Results
from featuremill.workload import find_workload, plugin_errors, weights
from featuremill.workload.outputs import Target, open_writer

EXAMPLES = ROOT / "config" / "examples"
FASTA = {"inputs": "in.fa"}
MILL = {"model": "mill_t6_8M", "dtype": "fp32"}
CASES = {
    "composition": (None, FASTA),
    "esm2": (None, FASTA | {"options": {**MILL, "layers": [3, -1], "per_residue": True}}),
    "esmc": ("esmc", FASTA | {"options": {"model": "esmc", "dtype": "fp32"}}),
    "contacts": (
        "random_regression.pt",
        FASTA | {"options": {**MILL, "regression": "random_regression.pt", "maps": True}},
    ),
    "scores": (None, FASTA | {"options": {**MILL, "marginals": ["wildtype"]}}),
    "encoder": ("random_encoder", FASTA),
    "geneformer": ("made_cells", {}),
    "llm_json": ("random_llm", {}),
    "pac": ("made", {}),
}
SCRIPTS = {"contacts": "random_regression.py", "encoder": "random_encoder.py"}
COMPUTES_NOTHING = {"imported"}


def test_no_workload_is_left_out():
    assert {*CASES} | COMPUTES_NOTHING == {*entry_points.own(plugin_errors.GROUP)}


def prepared(name, folder, monkeypatch):
    """Write the inputs of a workload and its config with several shards; return the config."""
    made, more = CASES[name]
    monkeypatch.chdir(folder)
    records = [(f"p{n}", text[: 24 + n]) for n, text in enumerate(demo_proteins(18, 300))]
    (folder / "in.fa").write_text(fasta([*records, ("twin", records[4][1])]))
    about = {"workload": name, "run": "my", "device": "cpu", "order": "input", "max_failed": 9}
    if name == "esmc":
        from esmc_models import esmc

        esmc(2, 64, 128).save_pretrained("esmc")
    elif made:
        script = EXAMPLES / SCRIPTS.get(name, f"{name}.py")
        monkeypatch.setattr(sys, "argv", [str(script), made])
        runpy.run_path(str(script), run_name="__main__")
        about = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text("utf-8")) | about
    about = {**about, **more}
    workload, inputs = find_workload(name), about["inputs"]
    asked = workload.Options.model_validate(about.get("options", {}))
    model = workload.weights(asked)
    found = weights.weights_of(weights.convert(model, workload=name)) if model else None
    options = workload.resolve(asked, cpu(), found)
    costs = [
        workload.cost(record.payload, options)
        for record in workload.records([folder / inputs], options)
        if not record.reason
    ]
    values = workload.schema(options, found)
    about |= {"shards": {"cost": -(-sum(costs) // 3)}, "outputs": outputs_of(about, values)}
    (folder / "my.yaml").write_text(yaml.safe_dump(about))
    return about


def outputs_of(about, values):
    """Return the outputs that have a place for what the workload delivers."""
    fitting = []
    for name in entry_points.own(formats.GROUP):
        try:
            config.check_outputs(config.validate({**about, "outputs": [name]}))
            formats.refuse_outputs([name], values)
            with TemporaryDirectory() as folder:
                path = Path(folder) / "file"
                if formats.format_of(name).is_folder:
                    path.mkdir()
                open_writer(name, Target(path, values, 0, {})).close()
        except UserError:
            continue
        fitting.append(name)
    return fitting


def contents(path):
    files = [file for file in (path, *sorted(path.rglob("*"))) if file.is_file()]
    files = [file for file in files if file.name != formats.OF_SNAKEMAKE]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def rows(folder):
    table = ds.dataset(folder.root / "embeddings", partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: row["id"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_both_orders_hold_the_same_of_each_workload_in_each_output(
    name, tmp_path, environment, monkeypatch
):
    about = prepared(name, tmp_path, monkeypatch)
    Desk(tmp_path, environment).type("featuremill", "run", "my.yaml", "--cores", "2")
    folder = Results(tmp_path / "results" / "my")
    assert len(folder.read_plan().shards) > 1 and {"parquet_dataset"} < {*about["outputs"]}
    before, paths = rows(folder), [formats.format_of(output).file for output in about["outputs"]]
    written = {path: contents(folder.root / path) for path in paths}
    lists = {name: (folder.root / name).read_bytes() for name in formats.FAILED}
    merge(folder, ["parquet_dataset"], 9, order="shard")
    assert rows(folder) == before and len(before) > 5
    assert [row["id"] for row in before] == sorted({row["id"] for row in before})
    assert {name: (folder.root / name).read_bytes() for name in formats.FAILED} == lists
    export(folder, about["outputs"], tmp_path / "exported")
    for path in paths:
        assert contents(tmp_path / "exported" / path) == written[path], path
    shutil.rmtree(tmp_path / "results")
