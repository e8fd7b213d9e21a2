"""featuremill init: what it says of an input, and the config that it writes."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from broken_inputs import GENE, GOOD, INSULIN_A, UBIQUITIN
from conftest import PLUGINS
from programs import written

from featuremill import config
from featuremill.__main__ import main
from featuremill.base.errors import UserError
from featuremill.workload import find_workload

DEMO = Path(__file__).parent.parent / "config" / "demo.fasta"
ESM2 = [
    *("esm2_t6_8M_UR50D", "esm2_t12_35M_UR50D", "esm2_t30_150M_UR50D"),
    *("esm2_t33_650M_UR50D", "esm2_t36_3B_UR50D", "esm2_t48_15B_UR50D"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, no_handlers):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, content):
    Path(name).write_text(content, "utf-8")
    return name


def init(*words, status=0):
    assert main(["init", *words]) == status


@pytest.fixture
def said(capsys):
    """Return a function that returns what init says of these words."""

    def say(*words, status=0):
        init(*words, status=status)
        return capsys.readouterr().err

    return say


def test_the_demo_becomes_a_valid_config(said):
    init(str(DEMO))
    run = config.read(Path("demo.yaml"))
    assert run == config.validate({"inputs": [str(DEMO)]})
    text = Path("demo.yaml").read_text()
    keys = [line.partition(":")[0] for line in text.splitlines() if line[:1].isalpha()]
    assert keys == ["run", "inputs", "workload", "options", "device", "outputs"]
    assert len(text.splitlines()) < 40 and "--full" in text
    told = said(str(DEMO), "--force", "--full")
    assert run == config.read(Path("demo.yaml"))
    assert "\n  cost: auto\n" in Path("demo.yaml").read_text()
    assert "1,000 protein records, 363,884 residues" in told
    assert "median length 296, longest 1,488 (sp|Q7TXL6|PPSE_MYCBO)" in told
    assert told.endswith("wrote demo.yaml; next: featuremill run demo.yaml\n")


def test_every_key_is_explained_and_every_ready_option_is_valid():
    init(str(DEMO), "--full")
    text = Path("demo.yaml").read_text("utf-8")
    assert all(name in text for name in ESM2)
    assert max(len(line) for line in text.splitlines()) <= 100
    words = " ".join(text.replace("#", " ").split())
    models = (config.Config, config.Shards, find_workload("esm2").Options)
    described = {name: text for model in models for name, text in model.descriptions().items()}
    assert len(described) > 20
    for name in described.keys() - {"options", "shards"}:
        assert " ".join(described[name].split()) in words, name
    assert '\n  # file: ""\n' in text, "what is optional sleeps"
    woken = re.sub(r"^  # (\w+: \S+)$", r"  \1", text, flags=re.MULTILINE)
    options = yaml.safe_load(woken)["options"]
    assert options.keys() == find_workload("esm2").Options.model_fields.keys()
    assert config.validate(yaml.safe_load(woken)) == config.read(Path("demo.yaml"))


def test_says_what_is_odd(said):
    told = said(write("odd.fa", f"{GOOD}>P1\n>P2\nMKJV\n>P3\n>P4\nMK*V\n"))
    assert "5 protein records, 80 residues" in told
    assert "1 of them: J read as X" in told
    assert "2 refused: empty sequence (first: odd.fa:3)" in told
    assert "1 refused: stop codon (*) inside the sequence (first: odd.fa:7)" in told


def test_refuses_nucleotides_with_what_to_type(said):
    write("genes.fna", f">g1\n{GENE}\n>g2\n{GENE}A\n>p\n{UBIQUITIN}\n")
    told = said("genes.fna", status=2)
    assert "3 nucleotide records" in told
    assert "error: genes.fna: most of the records look like nucleotides, not proteins" in told
    translate = "featuremill translate genes.fna --by orfs --output translated"
    made = "translated/proteins.faa.gz"
    assert f"; translate them first: {translate}, and then featuremill init {made}; " in told
    assert main(translate.split()[1:]) == 0 and Path(made).exists()


def test_takes_an_esm2_that_is_on_this_machine(said, monkeypatch):
    """Where there is none, it says that the bundled network is none."""
    for name, place in (("TORCH_HOME", "torch"), ("HF_HOME", "hf"), ("FEATUREMILL_CACHE", "cache")):
        monkeypatch.setenv(name, place)
    caution = f"mill_t6_8M is a demonstration model, not ESM-2. For science: model: {ESM2[3]}"
    assert f"warning: {caution}\n" in said(write("a.fa", GOOD))
    assert f"  # {caution}\n  model: mill_t6_8M\n" in Path("a.yaml").read_text()
    about = {"version": 1, "name": "m", "path": "m", "bytes": 1, "sha256": "m", "metadata": {}}
    Path("m").write_text("1")
    places = {
        ESM2[5]: f"torch/hub/checkpoints/{ESM2[5]}.pt",
        ESM2[1]: f"weights/{ESM2[1]}.json",
        ESM2[3]: f"cache/esm2-1/{ESM2[3]}.safetensors",
    }
    for model, place in places.items():
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_text(json.dumps(about))
        told = said("a.fa", "--force")
        assert f"\n  model: {model}\n" in Path("a.yaml").read_text()
        assert f"{model} is on this machine" in told and "demonstration" not in told
    init("a.fa", "--force", "--model", "mill_t6_8M")
    assert "\n  model: mill_t6_8M\n" in Path("a.yaml").read_text()


def test_names_with_spaces_and_letters_of_all_kinds(said):
    """Also beside somebody else's Snakefile."""
    write("Snakefile", "# somebody else's\n")
    name = write("mein Prot\u00e9om: no, 'v2'.faa", GOOD)
    told = said(name, "--output", "my run.yaml")
    run = config.read(Path("my run.yaml"))
    assert run.inputs == (name,) and run.run == "my_run"
    assert told.endswith("next: featuremill run 'my run.yaml'\n")


def test_a_file_of_a_format_that_its_workload_alone_knows_names_the_run_without_its_suffix():
    init(write("day.1.h5ad", ""), "--workload", "geneformer")
    assert "run: day.1\n" in Path("day.1.yaml").read_text()


def test_each_of_several_files_is_a_sample(said):
    table = write("b.csv", f"id,sequence\nP1,{INSULIN_A}\n")
    init(write("a.b.fasta", GOOD), table, "--model", ESM2[0])
    run = config.read(Path("a.b.yaml"))
    assert (run.inputs, run.samples) == ((), "a.b.tsv")
    assert Path("a.b.tsv").read_text() == "sample\tfile\na.b\ta.b.fasta\nb\tb.csv\n"
    assert run.options.model == ESM2[0]
    Path("many").mkdir()
    for name in ("late.fa", "early.faa", ".hidden.fa", "notes.md"):
        Path("many", name).write_text(GOOD)
    assert "wrote many.tsv and many.yaml; next: " in said("many")
    sheet = "sample\tfile\nearly\tmany/early.faa\nlate\tmany/late.fa\n"
    assert Path("many.tsv").read_text() == sheet
    assert config.read(Path("many.yaml")).samples == "many.tsv"
    Path("many", "late.faa").write_text(">P1\nMKV*V\n")
    told = said("many", "--force", status=2)
    assert "many/late.fa and many/late.faa would both be sample 'late'" in told
    assert Path("many.tsv").read_text().count("many/") == 2


def keys_of(text):
    """Return the options that are set, and not commented out."""
    options = text.partition("\noptions:\n")[2].partition("\nshards:\n")[0]
    return re.findall(r"^  (\w+):", options, re.MULTILINE)


@pytest.mark.parametrize(("workload", "keys"), [("esm2", ["model"]), ("composition", [])])
def test_another_workload(workload, keys):
    init(write("a.fa", GOOD), "--workload", workload)
    run, text = config.read(Path("a.yaml")), Path("a.yaml").read_text()
    assert run.workload == workload and run.outputs == ("parquet", "per_protein_h5")
    assert keys_of(text) == keys


@pytest.mark.parametrize(
    ("words", "outputs"),
    [
        (["scores", "--model", "mill_t6_8M"], ("parquet", "variant_scores")),
        (["contacts"], ("parquet", "contacts_tsv")),
    ],
)
def test_what_a_workload_is_for_is_among_the_outputs(words, outputs):
    init(write("a.fa", GOOD), "--workload", *words)
    asked = yaml.safe_load(Path("a.yaml").read_text())
    assert tuple(asked["outputs"]) == outputs
    if words == ["contacts"]:
        named = "model: this is empty; give a text. The network: .* `esm2_t33_650M_UR50D`"
        with pytest.raises(UserError, match=named):
            config.read(Path("a.yaml"))


@pytest.mark.parametrize(
    ("workload", "option", "words", "kind"),
    [
        ("numbered", "number", "A file with a number.", "the path of a file"),
        ("weighed", "network", "A file with a number, or a folder of such files.",
         "the path of a file or folder"),
    ],
)  # fmt: skip
def test_what_a_workload_cannot_do_without_is_left_to_be_filled_in(
    workload, option, words, kind, monkeypatch, said
):
    monkeypatch.syspath_prepend(str(PLUGINS))
    told = said(write("a.fa", GOOD), "--workload", workload)
    assert told.endswith(f"wrote a.yaml; fill in options.{option}, then: featuremill run a.yaml\n")
    text = Path("a.yaml").read_text()
    assert f"  # {words}\n  # Required: {kind}.\n  {option}:\n" in text
    assert keys_of(text) == [option] and "\noutputs: [parquet]\n" in text
    line = text[: text.index(f"\n  {option}:")].count("\n") + 2
    with pytest.raises(UserError) as refusal:
        config.read(Path("a.yaml"))
    sentence = f"a.yaml:{line}: options.{option}: this is empty; give {kind}. {words}"
    assert str(refusal.value) == sentence
    filled = text.replace(f"  {option}:", f"  {option}: {write('number.txt', '7')}")
    write("a.yaml", filled)
    assert config.read(Path("a.yaml")).options_given[option] == "number.txt"


def test_no_output_that_has_no_place_for_the_values(monkeypatch):
    """By the schema too, where the options promise vectors that do not come."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    for promised in ({"table"}, {"pooled", "table"}):
        workload = find_workload("bulky")
        monkeypatch.setattr(workload.Options, "delivers", lambda _, found=promised: found)
        init(write("a.fa", GOOD), "--workload", "bulky", "--force")
        assert config.read(Path("a.yaml")).outputs == ("parquet",)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a.fa", "--output", "a.fa", "--force"], "this is the input itself"),
        (["a.fa", "--output", "there.yaml"], "it exists already; add --force"),
        (["a.fa", "--output", "."], "this is a folder"),
        (["a.fa", "--output", "there.yaml/a.yaml"], "choose another place"),
        (["a.fa", "--workload", "esm3"], "there is no workload 'esm3'"),
        (["a.fa", "--workload", "composition", "--model", "x"], "there is no such key"),
        (["gone.fa"], "this file does not exist"),
        (["gone.fa", "--workload", "numbered"], "gone.fa: there is no such file; check the path"),
        (["-"], "-: records are read twice, so not from a pipe; save them to a file and name it"),
        (["a.fa", "--workload", "numbered", "--model", "x"], "options.model: there is no such key"),
        (["empty.fa"], "empty.fa: this file is empty"),
        (["a{b}.fa"], "'a{b}.fa' has a name in braces"),
        (["late.fa"], "late.fa: it was last changed in the future"),
        (["a.fa", "--model", "esm2_t99"], "options.model: there is no model 'esm2_t99'; did you"),
        (["a.fa", "--model", "nets/my.pt"], "nets/my.pt: this file does not exist; check the path"),
        (["bad.fa"], "every record is refused"),
    ],
)
def test_refusals(arguments, sentence, said, folder, monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGINS))
    write("a.fa", GOOD)
    write("bad.fa", ">P1\n>P2\nMK*V\n")
    write("there.yaml", "mine")
    write("empty.fa", "")
    write("a{b}.fa", GOOD)
    os.utime(write("late.fa", GOOD), (2**32, 2**32))
    before = set(folder.iterdir())
    assert sentence in said(*arguments, status=2)
    assert Path("there.yaml").read_text() == "mine"
    assert set(folder.iterdir()) == before


def test_what_the_jobs_lack_here_is_said(monkeypatch, said):
    """And no more: with --sdm conda they have it from elsewhere."""
    monkeypatch.setattr("featuremill.workload.find_spec", lambda module: None)
    told = said(write("a.fa", GOOD))
    assert "init │ warning: torch is not installed in this Python" in told


def test_says_which_columns_of_a_table_are_read(said):
    write("t.csv", f"Entry,name,sequence\nP1,n,{INSULIN_A}\n")
    told = said(write("a.fa", GOOD), "t.csv")
    assert "init │ id from column 'Entry', sequence from 'sequence'\n" in told
    write("both.csv", f"acc,entry,product,letters\nP1,Q1,ubiquitin,{INSULIN_A}\n")
    each = "both.csv: 'acc', 'entry' may each be the id column; set id_column under options to the"
    told = said("both.csv", status=2)
    assert f"{each} right one (featuremill init takes --id-column)." in told
    told = said("both.csv", "--id-column", "entry", "--sequence-column", "letters")
    assert "id from column 'entry', sequence from 'letters', description from 'product'" in told
    options = config.read(Path("both.yaml")).options_given
    assert (options["id_column"], options["sequence_column"]) == ("entry", "letters")


def test_a_sheet_of_samples_is_taken_for_one(said):
    write("a.fa", GOOD)
    write("soils.tsv", "sample\tfile\tsite\nnorth\ta.fa\tforest\n")
    assert "warning: there" not in said("soils.tsv")
    assert config.read(Path("soils.yaml")).samples == "soils.tsv"


def test_an_id_that_all_records_have_is_told(said, capsys):
    """As foldcomp writes them; the run names it as well."""
    write("e.fa", "".join(f">ESMFOLD V0 PREDICTION FOR MGYP{n}\nMKV{'L' * n}\n" for n in range(4)))
    told = said("--workload", "composition", "e.fa")
    assert "'ESMFOLD' is the id of all 4 records, and they are different, so a run refuses" in told
    asked = written({"inputs": ["e.fa"], "workload": "composition", "outputs": ["parquet"]})
    assert main(["plan", "run", "--config", asked]) == 2
    sentence = "two different sequences, such as 'ESMFOLD' (an id is the first word of a header)"
    assert sentence in capsys.readouterr().err


def test_the_command_has_a_path_where_the_shell_finds_no_featuremill(folder, monkeypatch, said):
    """As when it is called by its path, out of an environment that is not active."""
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(folder / "env" / "bin" / "python"))
    program = folder / "env" / "bin" / "featuremill"
    program.parent.mkdir(parents=True)
    program.touch()
    told = said(write("a.fa", GOOD))
    assert told.endswith("next: env/bin/featuremill run a.yaml\n")
