"""The config: what is accepted, how each mistake is answered, and that its documents are true."""

# ruff: noqa: E501 - a sentence that people get stands here on one line

import json
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
import yaml
from pydantic import AliasChoices, Field, ValidationError
from snakemake.io import WILDCARD_REGEX

from featuremill import config
from featuremill.__main__ import main
from featuremill.base import entry_points
from featuremill.base.described import key_of
from featuremill.base.errors import UserError
from featuremill.config import docs, products, project
from featuremill.step import finding
from featuremill.store import formats
from featuremill.workload import WorkloadOptions, find_workload, plugin_errors, workloads
from featuremill.workloads.esm2 import sources

FOLDER = Path(__file__).parents[1] / "config"
SCHEMA = FOLDER.parent / "workflow/schemas/config.schema.json"
MODELS = ", ".join(["mill_t6_8M", *sources.PUBLISHED])
OUTPUTS = ", ".join(f"`{name}`" for name in formats.names())
SHIPPED = [FOLDER / "config.yaml", *sorted(FOLDER.glob("examples/*.yaml"))]


def read(tmp_path, text):
    path = tmp_path / "my.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (run,) = project.read(path).runs.values()
    return run


def refusal(tmp_path, text):
    with pytest.raises(UserError) as error:
        read(tmp_path, text)
    return str(error.value).replace(f"{tmp_path}/", "")


def test_the_smallest_config_gets_every_default(tmp_path):
    run = read(tmp_path, "inputs: a.fa")
    assert run.inputs == ("a.fa",)
    assert (run.run, run.workload, run.device, run.max_failed) == ("demo", "esm2", "auto", 0)
    assert run.shards.cost == "auto"
    assert run.outputs == ("parquet", "per_protein_h5")
    assert run.options == find_workload("esm2").Options()
    assert config.validate(run.model_dump(mode="json")) == run, "what is validated stays valid"


def test_a_section_whose_keys_are_all_commented_out_means_the_defaults(tmp_path):
    run = read(tmp_path, "inputs: a\noptions:\n# model: x\nshards:\noutputs: npy")
    assert run.options == read(tmp_path, "inputs: a").options
    assert (run.shards, run.outputs) == (config.Shards(), ("npy",))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("inputs: a\nshard: {cost: 3}", "my.yaml:2: shard: there is no such key here; did you mean 'shards'?"),
        ("inputs: a\nmax-failed: 3", "my.yaml:2: max-failed: there is no such key here; did you mean 'max_failed'?"),
        ("inputs: a\n7: b", "my.yaml:2: 7: there is no such key here; valid keys are run, results, samples, inputs, store, workload, options, shards, device, gpus_per_job, outputs, order, labels, max_failed, keep, features, autoencoders, groups, heads, maps, transfer, translate, verdicts, virnucpro."),
        ("inputs: a\nfeature: {}", "my.yaml:2: feature: there is no such key here; did you mean 'features'?"),
        ("inputs: a\nrun: a/b", "my.yaml:2: run: leave the / out, as it names a folder of its own."),
        ("inputs: a\nfeatures:", "my.yaml:2: features: this is empty; give a mapping of names to values."),
        ("inputs: a\nfeatures: 3", "my.yaml:2: features: give a mapping of names to values, not 3."),
        ("inputs: a\nfeatures:\n  b: esm2", "my.yaml:3: features.b: give a section with `workload`, `options`, `shards`, `device`, `gpus_per_job`, `outputs`, `order`, `labels`, `max_failed`, `keep`, `of`, not 'esm2'."),
        ("inputs: a\nfeatures:\n  b/c:", "my.yaml:3: features.b/c: use letters, digits, '.', '_' and '-' only, as it names a folder."),
        ("inputs: a\nfeatures:\n  store:", "my.yaml:3: features.store: store is the name of other files in results/<run>; take another one."),
        ("inputs: a\ntransfer: {t: &t {labels: l.csv, column: c}, t.missing: *t}", "my.yaml: transfer.t.missing: results/demo/transfer/t.missing.tsv is also a file of transfer.t; take another name."),
        ("inputs: a\nfeatures: {predictions: {workload: composition}}\nheads: {h: {labels: a, column: b, vectors: composition}}", "my.yaml:2: features.predictions: results/demo/predictions is a folder of predictions.h; take another name."),
        ("inputs: a\nautoencoders: {s: {encode: r/b}, s.b: {}}", "my.yaml: autoencoders.s.b: results/demo/.state/autoencoders.s.b.json is also a file of autoencoders.s.b; take another name."),
        ("inputs: a\nautoencoders: {s: {encode: [r/b, r/b, q/b]}}", "my.yaml:2: autoencoders.s.encode: r/b and q/b end alike, and so would the names of tables."),
        ("inputs: a\nfeatures:\n  b:\n    optins: {}", "my.yaml:4: optins: there is no such key here; did you mean 'options'?"),
        ("inputs: a\nfeatures:\n  b:\n  c:\n    options:\n      layer: 3", "my.yaml:6: options.layer: there is no such key here; did you mean 'layers'?"),
        ("inputs: a\nfeatures:\n  b:\n    inputs: c", "my.yaml:4: inputs: it belongs to the top level, outside 'features:'."),
        ("inputs: a\nfeatures:\n  b: {outputs: per_residue_h5}", "my.yaml: features.b: outputs: per_residue_h5 needs values per residue, but with these options workload 'esm2' delivers none; change the options or drop the output."),
        ("inputs: a\nmax_failed: 3\nfeatures: {b: }", "my.yaml:2: max_failed: there is no such key here; put it into each set below 'features:'."),
        ("inputs: a\nmodel: x", "my.yaml:2: model: there is no such key here; put it under 'options:'."),
        ("inputs: a\n\ncost: 3", "my.yaml:3: cost: there is no such key here; put it under 'shards:'."),
        ("inputs: a\nshards:\n  costs: 3", "my.yaml:3: shards.costs: there is no such key here; did you mean 'cost'?"),
        ("inputs: a\noptions:\n  layer: 3", "my.yaml:3: options.layer: there is no such key here; did you mean 'layers'?"),
        ("inputs: a\noptions:\n  device: cpu", "my.yaml:3: options.device: there is no such key here; it belongs to the top level, outside 'options:'."),
        ("inputs: a\nworkload: composition\noptions:\n  model: x", "my.yaml:4: options.model: there is no such key here; it is one of workload 'esm2', but this run's is 'composition'."),
        ("inputs: a\nworkload: esm3", f"my.yaml:2: workload: there is no workload 'esm3'; known ones are {', '.join(entry_points.own(plugin_errors.GROUP))}."),
        ("inputs: a\nshards: 100000", "my.yaml:2: shards: give a section with `cost`, not 100000."),
        ("inputs: a\nshards:\n  cost: 2e6", "my.yaml:3: shards.cost: give a whole number of at least 1 or `auto`, not the text '2e6' (as a number, write 2000000)."),
        ("inputs: a\nshards:\n  cost: 0", "my.yaml:3: shards.cost: give a whole number of at least 1 or `auto`, not 0."),
        ("inputs: a\nshards:\n  cost: big", "my.yaml:3: shards.cost: give a whole number of at least 1 or `auto`, not 'big'."),
        ("inputs: a\nshards:\n  cost: 1.5", "my.yaml:3: shards.cost: give a whole number of at least 1 or `auto`, not 1.5."),
        ("inputs: a\nshards:\n  cost: true", "my.yaml:3: shards.cost: give a whole number of at least 1 or `auto`, not True."),
        ("inputs: a\nmax_failed: true", "my.yaml:2: max_failed: give a whole number of at least 0, not True."),
        ("inputs: a\nrun: 2026", "my.yaml:2: run: give a text, not 2026; put it in quotes."),
        ("inputs: a\nrun: 2026-11-20", "my.yaml:2: run: give a text, not 2026-11-20; put it in quotes."),
        ("inputs: a\nrun: ../up", "my.yaml:2: run: use letters, digits, '.', '_' and '-' only, as it names a folder."),
        ("inputs: a\ndevice: gpu", "my.yaml:2: device: give one of `auto`, `cuda`, `cpu`, not 'gpu'."),
        ("inputs: a\noutputs:\n  - h5", f"my.yaml:2: outputs.entry 1: give one of {OUTPUTS}, not 'h5'; you may mean `per_protein_h5`."),
        ("inputs: a\noutputs: []", f"my.yaml:2: outputs: this is empty; give a list (each entry one of {OUTPUTS})."),
        ("inputs: [a, b, a]", "my.yaml:1: inputs: a is named more than once; keep one."),
        ("inputs:", "my.yaml:1: inputs: this is empty; give a list (each entry a text)."),
        ("inputs: a\noptions: fast", "my.yaml:2: options: give a mapping of names to values, not 'fast'."),
        ("inputs: a\noptions:\n  layers: [6, last]", "my.yaml:3: options.layers.entry 2: give a whole number, not 'last'."),
        ("inputs: a\noptions:\n  layers: yes", "my.yaml:3: options.layers: give a list (each entry a whole number), not True."),
        ("inputs: a\noptions:\n  pool: none", "my.yaml:2: options: pool: none leaves nothing to deliver; set per_residue: true with it."),
        ("inputs: a\nrun: b\ninputs: c", "my.yaml:3: inputs is set here and in line 1; keep one."),
        ("inputs: a\nshards:\n  cost: 3\n  cost: 4", "my.yaml:4: shards.cost is set here and in line 3; keep one."),
        ("inputs: a\n\trun: b", "my.yaml:2: this is not valid YAML (found character '\\t' that cannot start any token); indent with spaces, not tabs."),
        ("inputs: [a\nrun: b", "my.yaml:2: this is not valid YAML (expected ',' or ']', but got ':'); look there, and one line above, at colons, quotes and indentation."),
        ("run: 2026-13-45", "my.yaml: this is not valid YAML (month must be in 1..12); look there, and one line above, at colons, quotes and indentation."),
        ("", "my.yaml:1: a config is a YAML mapping; begin with a line such as 'inputs: my.fa'."),
        ("- inputs", "my.yaml:1: a config is a YAML mapping; begin with a line such as 'inputs: my.fa'."),
        (b"inputs: caf\xe9", "my.yaml: this is no UTF-8 text at byte 11; save it as UTF-8."),
        ("inputs: a\noutputs: per_residue_h5", "my.yaml: outputs: per_residue_h5 needs values per residue, but with these options workload 'esm2' delivers none; change the options or drop the output."),
        ("inputs: a\noutputs: npy\noptions: {pool: none, per_residue: true}", "my.yaml: outputs: npy needs values per record, but with these options workload 'esm2' delivers none; change the options or drop the output."),
        ("inputs: a\noptions:\n  layers: 3\n  model: esm2_t33_650m", f"my.yaml:4: options.model: there is no model 'esm2_t33_650m'; did you mean 'esm2_t33_650M_UR50D'? There are {MODELS}, or give the path of a checkpoint, or of a folder from Hugging Face."),
        ("inputs: a\noptions:\n  model: 3B", f"my.yaml:3: options.model: there is no model '3B'; did you mean 'esm2_t36_3B_UR50D'? There are {MODELS}, or give the path of a checkpoint, or of a folder from Hugging Face."),
        ("inputs: a\noptions: {model: ProtT5}", "my.yaml:2: options.model: 'ProtT5' is no ESM-2; workload encoder computes it: type hf download Rostlab/prot_t5_xl_half_uniref50-enc, then featuremill init YOUR.fasta --workload encoder --model Rostlab/prot_t5_xl_half_uniref50-enc. Set alphabet: proteins in that config."),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_with_its_line_and_what_to_do(tmp_path, text, sentence):
    assert refusal(tmp_path, text) == sentence


def test_a_checkpoint_that_is_not_there_is_answered_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "inputs: a\noptions:\n\n  model: {}\n"
    assert refusal(tmp_path, text.format("nets/mine.pt")) == (
        "my.yaml:4: options.model: nets/mine.pt: this file does not exist; check the path (seen "
        f"from where the command is started: {tmp_path})."
    )
    Path("my.yaml").write_text(text.format("facebook/esm2_t33_650M_UR50D"))
    assert config.read(Path("my.yaml")).options.model, "a name, which needs no file"
    # What was made of it is enough: the checkpoint may be put away.
    Path("weights").mkdir()
    Path("weights/mine.json").touch()
    Path("my.yaml").write_text(text.format("nets/mine.pt"))
    assert config.read(Path("my.yaml")).options.model == "nets/mine.pt"


def test_all_mistakes_are_named_at_once(tmp_path):
    lines = refusal(tmp_path, "rnu: a\ndevice: gpu\nmax_failed: -1").splitlines()
    places = [line.partition(": ")[0] for line in lines]
    assert places == ["my.yaml", "my.yaml:2", "my.yaml:3", "my.yaml:1"]
    assert lines[0].startswith("my.yaml: inputs: this is missing; give a list (each entry a text).")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("missing.yaml", r"this config cannot be read \(.+\); featuremill init"),
        (".", "this is a folder; name the config of the run"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_sentence(tmp_path, name, sentence):
    with pytest.raises(UserError, match=sentence):
        config.read(tmp_path / name)


def test_a_dictionary_is_refused_without_lines():
    with pytest.raises(UserError, match=r"^config: inputs: this is missing"):
        config.validate({"run": "a"})


def test_values_that_no_output_holds_are_named(tmp_path):
    idle = "inputs: a\noutputs: npy\noptions: {per_residue: true}"
    assert products.unused_settings(read(tmp_path, idle)) == [
        "options: values per residue are computed, but no output holds them."
    ]
    assert products.unused_settings(read(tmp_path, idle.replace("npy", "parquet"))) == []


def test_labels_for_a_map_that_is_not_drawn_are_named(tmp_path):
    labels = "inputs: a\nlabels: {file: b.tsv, column: c}\n"
    assert products.unused_settings(read(tmp_path, labels)) == []
    (said,) = products.unused_settings(read(tmp_path, f"{labels}outputs: npy"))
    assert said.startswith("labels: they colour the report's map")
    assert "file and column belong together" in refusal(tmp_path, "inputs: a\nlabels: {file: b}")
    assert "put it under 'labels:'" in refusal(tmp_path, "inputs: a\ncolumn: b")


def test_several_gpus_for_a_cpu_are_named(tmp_path):
    spread = "inputs: a\ngpus_per_job: 2\n"
    assert products.unused_settings(read(tmp_path, spread)) == []
    said = products.unused_settings(read(tmp_path, f"{spread}device: cpu"))
    assert said == ["gpus_per_job: 2 changes nothing with device: cpu."]
    for key in ("gpus_per_job", "gpus"):
        said = refusal(tmp_path, f"inputs: a\n{key}: 0")
        assert f":2: {key}: give a whole number of at least 1" in said


@pytest.mark.parametrize("key", ["gpus_per_job", "gpus"])
def test_gpus_of_a_job_are_refused_where_the_workload_takes_one(tmp_path, key):
    whole = f"inputs: a.csv\n{key}: 2\nworkload: llm_json\noptions: %s"
    options = {"prompt": "a", "json_schema": "b", "model": "c", "quantize": "4bit"}
    said = refusal(tmp_path, whole % options)
    assert f":2: {key}: workload llm_json computes on one GPU with these options" in said
    rows = {"inputs": ["a.csv"], "outputs": ["rows_jsonl"], key: 2, "workload": "llm_json"}
    for more in ({"engine": "vllm"}, {"quantize": "none"}):
        assert config.validate({**rows, "options": {**options, **more}}).gpus == 2
    assert read(tmp_path, "inputs: a\ngpus_per_job: 2\n").gpus == 2


def test_the_old_key_for_gpus_of_a_job_is_understood_and_said(tmp_path):
    new, old = (read(tmp_path, f"inputs: a\n{key}: 2") for key in ("gpus_per_job", "gpus"))
    assert new.gpus == old.gpus == 2 and new.model_dump() == old.model_dump()
    assert products.unused_settings(new) == []
    (said,) = products.unused_settings(old)
    assert said.endswith(":2: gpus: this key is called gpus_per_job now; rename it.")
    said = refusal(tmp_path, "inputs: a\ngpus: 2\ngpus_per_job: 2")
    assert "gpus: there is no such key here; gpus_per_job is its name" in said


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configs_are_valid_and_have_no_idle_setting(path, tmp_path, monkeypatch):
    for folder in ("random_encoder", "made_cells/model", "random_llm/model"):
        (tmp_path / folder).mkdir(parents=True)  # which scripts make beforehand
        (tmp_path / folder / "config.json").touch()
    for file in ("made_cells/tokens.json", "made_cells/medians.json", "random_llm/notes.csv"):
        (tmp_path / file).touch()
    for file in ("prompt.jinja", "schema.json"):
        (tmp_path / "random_llm" / file).write_text("{{ note }}")
    monkeypatch.chdir(tmp_path)
    raw = yaml.safe_load(path.read_text())
    runs = project.validate(raw).runs.values()
    assert not any(products.unused_settings(run) for run in runs)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(raw)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"inputs": []},
        {"inputs": "a", "runs": "b"},
        {"inputs": "a", "options": {"hydropathy": True}},
        {"inputs": "a", "workload": "composition", "options": {"model": "b"}},
        {"inputs": "a", "outputs": "h5"},
    ],
)
def test_the_schema_refuses_what_the_model_refuses(wrong):
    assert list(jsonschema.Draft202012Validator(docs.run_schema()).iter_errors(wrong))
    with pytest.raises(UserError):
        config.validate(wrong)


def test_every_option_is_described():
    for model in (
        config.Config,
        config.Shards,
        config.Labels,
        *(find_workload(name).Options for name in entry_points.own(plugin_errors.GROUP)),
    ):
        lacking = model.model_fields.keys() - model.descriptions() - {"shards", "labels"}
        assert not lacking, model


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_an_option_with_another_key_is_described(mode):
    class Options(WorkloadOptions):
        first: int = Field(1, alias="one")
        """A number."""
        second: int = Field(2, validation_alias=AliasChoices("two", "deux"))
        """Another number."""

    properties = Options.model_json_schema(mode=mode)["properties"]
    told = [field["description"] for field in properties.values()]
    assert told == ["A number.", "Another number."]


def sections():
    """Yield each section of a config, and the options of each workload."""
    for name in workloads():
        yield find_workload(name).Options
    for key in finding.built_in():
        section = finding.step_of(key).SECTION
        yield (get_args(section) or (section,))[-1]


@pytest.mark.parametrize("model", [*sections()], ids=lambda model: model.__module__)
def test_yes_is_no_number(model):
    """YAML reads `yes`, `on` and `true` as True, which Python and Pydantic take for 1."""
    for name, field in model.model_fields.items():
        types = str(field.annotation)
        if ("int" in types or "float" in types) and "bool" not in types:
            for value in (True, [True], [[True, 3]], {"low": True}):
                with pytest.raises(ValidationError) as refused:
                    model.model_validate({key_of(name, field): value})
                wrong = {each["loc"][0] for each in refused.value.errors()}
                assert key_of(name, field) in wrong, (name, value)


def test_config_docs_check_tells_how_to_renew(tmp_path, capsys):
    folder = ["--folder", str(tmp_path), "--docs", str(tmp_path), "--schemas", str(tmp_path)]
    assert main(["config-docs", *folder]) == 0
    assert main(["config-docs", "--check", *folder]) == 0
    for path in (FOLDER / "README.md", SCHEMA, FOLDER.parent / "docs/environment.md"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), "run make format"
    (tmp_path / "README.md").write_text("old")
    assert main(["config-docs", "--check", *folder]) == 2
    said = capsys.readouterr().err
    assert "README.md: this differs from the code; run featuremill config-docs" in said
    assert (tmp_path / "README.md").read_text() == "old"


@pytest.mark.parametrize(
    "name",
    [
        *("a{b}.fa", "{a.b}", "{a, b{2,3}}", "{ a }", "{a,[^{]}", "{a-b}"),
        *("{}", "a{", "}{", "{a,{x}}", "{é,.+}"),
    ],
)
def test_names_in_braces_are_those_that_snakemake_takes_for_wildcards(name):
    assert bool(products.PATTERN.search(name)) == bool(WILDCARD_REGEX.search(name))


def test_many_inputs_are_no_aliases_and_few_aliases_may_not_unfold(tmp_path):
    many = "".join(f"- d/{number}.fa\n" for number in range(10_001))
    assert len(read(tmp_path, f"inputs:\n{many}").inputs) == 10_001
    said = refusal(tmp_path, "inputs: [a.fa]\nx: &a [1, 1]\n" + "".join(
        f"x{n}: &a{n} [{', '.join(['*a' + str(n - 1) * (n > 0)] * 10)}]\n" for n in range(5)
    ))  # fmt: skip
    assert "its aliases (*) unfold into more than 10,000 values" in said
